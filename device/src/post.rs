//! Posting: reserve, fill, publish, ring.
//!
//! Knows: the order of stores, fences and the doorbell, and whose turn it is. Must not know: WQE or CQE bytes.
//!
//! A shared queue is posted to in ticket order (rule O5). Each writer reserves indices, fills its slots, and
//! waits until `turn` is its first index; then it writes the doorbell record, rings, and hands the turn on.
//! So it rings only for WQEs whose writers it has synchronised with (it loads `turn`, which the predecessor
//! released after its ring, and fences), and neither the record nor the doorbell moves backwards. (A
//! compare-and-swap of a ready index would let two writers store the record out of order.)

use warpverbs_wire::{
    abi::{FaultCause, State},
    doorbell,
};

use crate::{
    arch,
    error::Error,
    mode::{CqForm, Doorbell, Sharing},
    sq::{Sq, Ticket},
    wait::Wait,
    wqe::{Filled, Inline, Local, Remote, Slot},
};

/// Reserved, free WQEBBs that are not published yet.
///
/// On a shared queue it is an obligation: until it is published, no later post to the queue reaches the NIC, and their
/// writers end in a latched [`FaultCause::Abandoned`]. On an exclusive one it is void after the owner's next post.
#[must_use = "no later post reaches the NIC until this is published"]
#[derive(Debug)]
pub struct Reservation {
    first: u64,
    count: u64,
}

impl<S: Sharing, D: Doorbell, C: CqForm> Sq<S, D, C> {
    /// Posts an RDMA write of `len` bytes. Zero bytes are a success without a WQE.
    ///
    /// # Errors
    ///
    /// As [`Self::submit`]'s, and [`Error::InvalidArgument`] for more than the port's largest message.
    #[inline(always)]
    pub fn post_write(&mut self, local: Local, remote: Remote, len: u32) -> Result<Ticket, Error> {
        match self.length(len) {
            Ok(len) => self.submit_checked(1, |_, slot| slot.write(local, remote, len)),
            Err(error) => self.nothing_to_do(len == 0, error),
        }
    }

    /// Posts an RDMA read of `len` bytes. Zero bytes are a success without a WQE.
    ///
    /// Its completion may not prove that the data is visible to the GPU: see [`Self::settle_reads`].
    ///
    /// # Errors
    ///
    /// As [`Self::submit`]'s, and [`Error::InvalidArgument`] for more than the port's largest message.
    #[inline(always)]
    pub fn post_read(&mut self, local: Local, remote: Remote, len: u32) -> Result<Ticket, Error> {
        match self.length(len) {
            Ok(len) => self.submit_checked(1, |_, slot| slot.read(local, remote, len)),
            Err(error) => self.nothing_to_do(len == 0, error),
        }
    }

    /// Posts an RDMA write of bytes that travel in the WQE.
    ///
    /// # Errors
    ///
    /// As [`Self::submit`]'s.
    #[inline(always)]
    pub fn post_write_inline(&mut self, remote: Remote, data: Inline) -> Result<Ticket, Error> {
        self.submit_checked(1, |_, slot| slot.write_inline(remote, data))
    }

    /// A ticket that is done already, for an operation of zero bytes.
    #[inline(always)]
    fn nothing_to_do(&self, zero: bool, error: Error) -> Result<Ticket, Error> {
        if zero {
            Ok(Ticket(self.completed()))
        } else {
            Err(error)
        }
    }

    /// Posts `count` WQEs with one reserve and one ring: waits for room, calls `fill` for each slot in order,
    /// waits for its turn, and rings. The ticket is the last WQE's.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for no WQEs, and for more than the queue takes (at once: such a wait would
    /// never end); [`Error::Stopped`] and [`Error::Fault`]. An exclusive queue also reports
    /// [`Error::Timeout`] with nothing changed. A thread of a shared queue that must give up after its
    /// reserve latches [`FaultCause::Abandoned`], which ends every wait on the QP.
    #[inline(always)]
    pub fn submit(
        &mut self,
        count: u32,
        fill: impl FnMut(u32, Slot) -> Filled,
    ) -> Result<Ticket, Error> {
        if count == 0 || u64::from(count) > self.capacity {
            return Err(Error::InvalidArgument);
        }
        self.submit_checked(count, fill)
    }

    /// As [`Self::submit`], for a count that the queue takes: any queue takes one.
    #[inline(always)]
    fn submit_checked(
        &mut self,
        count: u32,
        fill: impl FnMut(u32, Slot) -> Filled,
    ) -> Result<Ticket, Error> {
        arch::phase_post();
        let ticket = if S::SHARED {
            self.submit_shared(count, fill)
        } else {
            self.submit_exclusive(count, fill)
        }?;
        arch::phase_other();
        Ok(ticket)
    }

    #[inline(always)]
    fn submit_exclusive(
        &mut self,
        count: u32,
        fill: impl FnMut(u32, Slot) -> Filled,
    ) -> Result<Ticket, Error> {
        self.check_state()?;
        let first = self.reserved;
        let end = first + u64::from(count);
        if Self::looks_for_stop(first, u64::from(count)) {
            arch::cold();
            if self.handle.look_for_stop() {
                return Err(Error::Stopped);
            }
        }
        if !self.has_room(end) {
            arch::cold();
            // Nothing is reserved yet, as nobody else can see our index: a wait that ends here changes nothing.
            self.wait_for_room(end)?;
            arch::phase_post();
        }
        let head = self.fill(first, count, fill);
        self.reserved = end;
        self.ring(head, end);
        Ok(Ticket(end))
    }

    /// Waits for room for the WQEBBs of an exclusive queue up to `end`.
    ///
    /// A slot may be written when the NIC has read the WQE that was in it, so behind an acquire of that WQE's completion, or of
    /// a later one. For one WQEBB the previous post has acquired it. A queue of `d` slots takes `d - 1` WQEBBs: index `n`
    /// waits for the completion of `n - d + 1`, but has the slot of `n - d`, whose completion index `n - 1` waited for, in front
    /// of its own fence (O2). What is seen here without a fence is acquired by the fence of this post, which follows: with one
    /// WQEBB missing, a wait that saw a completion is a wait that succeeds. (A QP's first post finds an empty queue, or what
    /// its last user acquired, behind a launch.) Of several WQEBBs only the first has the previous post's assurance.
    #[inline(always)]
    fn wait_for_room(&mut self, end: u64) -> Result<(), Error> {
        let index = end - self.capacity;
        if end - self.reserved == 1 {
            self.look_until::<false>(index)
        } else {
            self.look_until::<true>(index)
        }
    }

    /// One loop for room, fill, turn, ring and hand-off, left only after hand-off, and without any `.sync` in
    /// it (rule O13): lanes of a warp wait for each other's turn, so a lane that has handed off is all that
    /// may wait for others. With a loop for each, lanes that have room could be held at the end of the first
    /// until lanes that need their completions have room too.
    #[inline(always)]
    fn submit_shared(
        &mut self,
        count: u32,
        mut fill: impl FnMut(u32, Slot) -> Filled,
    ) -> Result<Ticket, Error> {
        self.check_state()?;
        let first = self.handle.reserve(u64::from(count));
        let end = first + u64::from(count);
        if Self::looks_for_stop(first, u64::from(count)) {
            arch::cold();
            // Copied for the posts after this one; this one has its indices and goes on to its hand-off.
            self.handle.look_for_stop();
        }
        let mut wait = Wait::new();
        let mut filled: Option<u64> = None;
        loop {
            if filled.is_none() {
                if !self.has_room(end) {
                    arch::cold();
                    if wait.is_fresh() {
                        arch::phase_poll();
                    }
                    // Whoever waits for room polls: nobody else might (rule O13).
                    self.look::<true>()?;
                }
                if self.has_room(end) {
                    arch::phase_post();
                    filled = Some(self.fill(first, count, &mut fill));
                }
            }
            if let Some(head) = filled
                && self.handle.turn() == first
            {
                arch::phase_post();
                self.ring(head, end);
                self.handle.hand_off(end);
                return Ok(Ticket(end));
            }
            arch::cold();
            arch::phase_spin();
            if let Err(error) = wait.tick(&self.handle, self.deadline_ns) {
                return Err(self.abandon(first, error));
            }
        }
    }

    /// Reserves `count` free WQEBBs if there are as many, without waiting.
    ///
    /// For those who write WQEs in several places before one ring. Do not loop over this on a shared queue:
    /// lanes of a warp that succeed may be held until the others have, while these need the former's
    /// completions (rule O13); [`Self::submit`] is made for waiting.
    ///
    /// # Errors
    ///
    /// [`Error::NoResource`] if the queue is full, with nothing changed; [`Error::InvalidArgument`] for no
    /// WQEBBs or more than the queue takes; [`Error::Stopped`] and [`Error::Fault`].
    #[inline(always)]
    pub fn try_reserve(&mut self, count: u32) -> Result<Reservation, Error> {
        let count = u64::from(count);
        if count == 0 || count > self.capacity {
            return Err(Error::InvalidArgument);
        }
        self.check_state()?;
        let mut first = if S::SHARED {
            self.handle.reserved()
        } else {
            self.reserved
        };
        if Self::looks_for_stop(first, count) && self.handle.look_for_stop() {
            return Err(Error::Stopped);
        }
        loop {
            if !self.has_room(first + count) {
                self.look::<true>()?;
                if !self.has_room(first + count) {
                    return Err(Error::NoResource);
                }
            }
            if !S::SHARED {
                // Nobody else reserves: `publish` moves the index, so that only the next in order can be rung (rule O5).
                break;
            }
            // Compare-and-swap and not fetch-and-add, so that a full queue is left as it was (rule O9).
            if self.handle.reserve_at(first, count) {
                break;
            }
            // Another thread's reserve succeeded meanwhile.
            first = self.handle.reserved();
        }
        Ok(Reservation { first, count })
    }

    /// The `k`th slot of a reservation; `None` beyond its end, and of a void one. Each slot is to be filled
    /// once, before [`Self::publish`].
    #[inline(always)]
    pub fn slot(&self, reservation: &Reservation, k: u32) -> Option<Slot> {
        (u64::from(k) < reservation.count && !self.is_void(reservation.first))
            .then(|| self.slot_at(reservation.first + u64::from(k)))
    }

    /// True if the owner of an exclusive queue has posted since it reserved from `first`.
    #[inline(always)]
    fn is_void(&self, first: u64) -> bool {
        !S::SHARED && first != self.reserved
    }

    /// Makes a reservation's WQEs visible to the NIC: waits for its turn, rings, hands the turn on. `last` is
    /// what filling the last slot gave.
    ///
    /// # Errors
    ///
    /// On a shared queue, [`Error::Fault`]: of [`Error::Timeout`] or a stop, it latches [`FaultCause::Abandoned`].
    /// On an exclusive one, [`Error::InvalidArgument`] if the reservation is void; nothing is rung then.
    #[inline(always)]
    pub fn publish(&mut self, reservation: Reservation, last: Filled) -> Result<Ticket, Error> {
        let Reservation { first, count } = reservation;
        let end = first + count;
        let mut wait = Wait::new();
        while S::SHARED && self.handle.turn() != first {
            if let Err(error) = wait.tick(&self.handle, self.deadline_ns) {
                return Err(self.abandon(first, error));
            }
        }
        if self.is_void(first) {
            return Err(Error::InvalidArgument);
        }
        self.ring(last.head, end);
        if S::SHARED {
            self.handle.hand_off(end);
        } else {
            self.reserved = end;
        }
        Ok(Ticket(end))
    }

    #[inline(always)]
    fn slot_at(&self, index: u64) -> Slot {
        Slot {
            wqebb: self.ring.wqebb(index),
            index,
            qpn: self.qpn,
        }
    }

    /// Fills the slots from `first`; returns the first 8 bytes of the last WQE.
    #[inline(always)]
    fn fill(&self, first: u64, count: u32, mut fill: impl FnMut(u32, Slot) -> Filled) -> u64 {
        let mut head = 0;
        for k in 0..count {
            head = fill(k, self.slot_at(first + u64::from(k))).head;
        }
        head
    }

    /// Tells the NIC of all WQEs below `end`, the last of which begins with `head`: the doorbell's value.
    #[inline(always)]
    fn ring(&self, head: u64, end: u64) {
        // O2: between the last WQE byte and what tells the NIC of it. O5: between the load of `turn` and the record.
        arch::fence_sys();
        if D::EARLY {
            // O4: the NIC may fetch now; the second ring covers one that is in recovery and reads the record.
            self.bell.ring(head);
        }
        self.bell.record(doorbell::dbr_word(end));
        // O3: the record before the doorbell, so that the record is never behind it.
        arch::fence_sys();
        self.bell.ring(head);
    }

    /// Gives up between reserve and hand-off: latches the fault that ends every wait on this QP (rule O9).
    /// The turn stays where it is, so no later WQE is ever rung.
    #[inline]
    fn abandon(&self, index: u64, error: Error) -> Error {
        match error {
            Error::Timeout | Error::Stopped => {
                Error::Fault(
                    self.handle
                        .latch(State::fault(FaultCause::Abandoned, 0, 0, 0, index)),
                )
            }
            other => other,
        }
    }
}
