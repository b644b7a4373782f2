//! Telling the NIC of WQEs: which stores, in which order.
//!
//! Knows: rules O2 to O5. Must not know: whose turn it is.

use warpverbs_wire::doorbell;

use crate::{
    arch,
    mode::{CqForm, Doorbell, Sharing, Tell},
    scope::{self, Scope},
    sq::Sq,
};

impl<S: Sharing, D: Doorbell, C: CqForm> Sq<S, D, C> {
    /// Tells the NIC of all WQEs below `end`, the last of which begins with `head`: the doorbell's value. `alone`: the index of the
    /// WQE, if the post is one of one WQEBB.
    #[inline(always)]
    pub(crate) fn ring(&self, head: u64, end: u64, alone: Option<u64>) {
        const {
            assert!(
                !(D::GPU_ORDER && matches!(D::TELL, Tell::Host)),
                "a host thread is no observer at the GPU's scope"
            );
        }
        // O2: between the last WQE byte and what tells the NIC of it. O5: between the load of `turn` and the record.
        if D::GPU_ORDER {
            <scope::Gpu as Scope>::fence();
        } else {
            arch::fence_sys();
        }
        self.tell(head, end, alone);
    }

    /// As [`Self::ring`], behind such a fence.
    #[inline(always)]
    pub(crate) fn tell(&self, head: u64, end: u64, alone: Option<u64>) {
        if matches!(D::TELL, Tell::Host) {
            // Behind the fence: a release. The host acquires it, and its stores to record and register come after.
            self.record_consumer();
            self.bell.produce(end);
            return;
        }
        if D::EARLY {
            // O4: the NIC may fetch now; the second ring covers one that is in recovery and reads the record.
            self.bell.ring(head);
        }
        if D::RECORD {
            self.bell.record(doorbell::dbr_word(end));
        }
        self.record_consumer();
        if D::RECORD || C::CHECKED {
            // O3: the record before the doorbell, so that the record is never behind it.
            arch::fence_sys();
        }
        self.touch_register(head, alone);
    }

    /// The last step: the register.
    #[inline(always)]
    pub(crate) fn touch_register(&self, head: u64, alone: Option<u64>) {
        match alone {
            Some(index) if matches!(D::TELL, Tell::Push) => self.bell.push(self.ring.wqebb(index)),
            _ => self.bell.ring(head),
        }
    }

    /// Writes the consumer to the CQ's record where the CQ does not ignore overrun: who rings does, in turn, so that it never goes
    /// back. The CQ has room for what is rung for: this thread found room in the queue by a completed index, and acquired it; the
    /// consumer index that covers it was published before (`poll`).
    #[inline(always)]
    pub(crate) fn record_consumer(&self) {
        if C::CHECKED && !C::COLLAPSED {
            let consumer = if S::SHARED {
                self.handle.consumer()
            } else {
                self.consumer
            };
            self.cq.record(consumer);
        }
    }

    /// The doorbell's value for all WQEs below `end`, where the last one's is not at hand.
    #[inline(always)]
    pub(crate) fn producer_head(&self, end: u64) -> u64 {
        doorbell::doorbell(end, self.qpn)
    }

    /// True if the NIC, or the host thread, is known to have been told of all WQEs below `end`, by who has the turn.
    #[inline(always)]
    fn is_told(&self, end: u64) -> bool {
        match D::TELL {
            Tell::Host => self.bell.produced() == end,
            // The low 16 bits name the index: fewer than 2^15 are outstanding.
            _ if D::RECORD => self.bell.recorded() == doorbell::dbr_word(end),
            _ => false,
        }
    }

    /// Shared, in turn at `first`: rings for what others have left, as this thread must before it waits for room (rule O13).
    #[inline(always)]
    pub(crate) fn ring_left(&self, first: u64) {
        arch::fence_sys();
        if !self.is_told(first) {
            self.tell(self.producer_head(first), first, None);
        }
    }

    /// Exclusive: rings for what was put off.
    #[inline(always)]
    pub(crate) fn ring_pending(&mut self) {
        if self.pending != 0 {
            self.ring(self.producer_head(self.reserved), self.reserved, None);
            self.pending = 0;
        }
    }
}
