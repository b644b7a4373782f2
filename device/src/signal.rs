//! Notifications: signals behind data, counters of completions.
//!
//! Knows: which operations follow each other, on which queue. Must not know: how they are posted.

use crate::{
    error::Error,
    group::Group,
    mode::{CqForm, Doorbell, EverySignalled, Sharing},
    op::{Direction, FetchAdd, Local, Remote, Then, WaitCqe, Write},
    sq::{Sq, Ticket},
};

/// What tells a peer, or anyone who can see the memory: `add` is added to the 8 bytes at `remote`.
///
/// The value that was there is written to `fetched`, which nobody need read. The memory at `remote` must be registered without
/// relaxed ordering: then no write before it passes the signal, registered as it may be, since PCIe lets a write pass others only if
/// it carries that mark itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// Where it is added.
    pub remote: Remote,
    /// What is added.
    pub add: u64,
    /// Where the value before goes: 8 bytes.
    pub fetched: Local,
}

impl Signal {
    #[inline(always)]
    fn work(self) -> Result<FetchAdd, Error> {
        FetchAdd::new(self.fetched, self.remote, self.add)
    }
}

impl<S: Sharing, D: Doorbell, C: CqForm> Sq<S, D, C> {
    /// Signals, behind all that was posted before.
    ///
    /// # Errors
    ///
    /// As [`Self::post`]'s, and [`Error::InvalidArgument`] for addresses that are not multiples of 8.
    #[inline(always)]
    pub fn signal(&mut self, signal: Signal) -> Result<Ticket, Error> {
        self.post(signal.work()?)
    }

    /// As [`Self::put`], and a signal behind it: who sees the signal sees the data. One post, if the data is one message.
    ///
    /// # Errors
    ///
    /// As [`Self::signal`]'s and [`Self::put`]'s.
    #[inline(always)]
    pub fn put_signal(
        &mut self,
        local: Local,
        remote: Remote,
        len: u64,
        signal: Signal,
    ) -> Result<Ticket, Error> {
        let signal = signal.work()?;
        if let Some(len) = self.one_message(len) {
            return self.post(Then(Write::new(local, remote, len), signal));
        }
        self.put(local, remote, len)?;
        self.post(signal)
    }

    /// As [`Self::put_signal`], by a group: each member brings a transfer of its own, and all the same signal, which is sent once, behind
    /// all of them.
    ///
    /// # Errors
    ///
    /// As [`Self::put_signal`]'s.
    #[inline(always)]
    pub fn put_signal_by<G: Group>(
        &mut self,
        group: G,
        local: Local,
        remote: Remote,
        len: u64,
        signal: Signal,
    ) -> Result<Ticket, Error> {
        if G::ALONE {
            return self.put_signal(local, remote, len, signal);
        }
        let signal = signal.work()?;
        let chunks = self.chunks(local, remote, len, Direction::Put);
        let (rank, members) = group.scan(1, 1);
        let (_, long) = group.scan(0, u32::from(len > 1 << self.log_max_message()));
        if long == 0 && members < u64::from(self.max_wqebbs()) {
            let last = rank + 1 == members;
            return self.post_by(group, Then(chunks, last.then_some(signal)));
        }
        self.stream_by(group, chunks)?;
        self.post_by(group, group.is_leader().then_some(signal))
    }
}

impl<S: Sharing, D: Doorbell, C: EverySignalled> Sq<S, D, C> {
    /// As [`Self::put`], and when the data has been acknowledged, the NIC itself adds to a counter: on `companion`, a QP whose peer
    /// has the counter's memory (this host, as a rule), a WAIT for the data's completion, then the signal. The ticket is the data's,
    /// on this queue; the second is the signal's, on the companion.
    ///
    /// The companion was made for WAIT (`qpc.cd_master`).
    ///
    /// # Errors
    ///
    /// As [`Self::put_signal`]'s, of either queue. If the companion refuses, the data was posted all the same.
    #[inline(always)]
    pub fn put_counter<S2: Sharing, D2: Doorbell, C2: CqForm>(
        &mut self,
        companion: &mut Sq<S2, D2, C2>,
        local: Local,
        remote: Remote,
        len: u64,
        counter: Signal,
    ) -> Result<(Ticket, Ticket), Error> {
        let counter = counter.work()?;
        let mut rest = self.chunks(local, remote, len, Direction::Put);
        if self.one_message(len).is_none() && len != 0 {
            // All messages but the last, whose completion is the last.
            let max = 1 << self.log_max_message();
            let before = (len - 1) / max * max;
            self.put(local, remote, before)?;
            rest = self.chunks(
                local.offset(before),
                remote.offset(before),
                len - before,
                Direction::Put,
            );
        }
        let Some(len) = self.one_message(rest.len) else {
            // Nothing to wait for.
            return Ok((Ticket::default(), companion.post(counter)?));
        };
        let mut cqe = 0;
        let write = Write::new(rest.local, rest.remote, len);
        let data = self.post_numbered::<true, true, _>(write, &mut cqe)?;
        // Of the CQE's number the NIC compares the low 24 bits, nearest to the CQ's producer.
        let wait = WaitCqe::new(self.handle.cqn(), cqe as u32);
        let counted = companion.post(Then(wait, counter))?;
        Ok((data, counted))
    }

    /// As [`Self::put_counter`], by a group: each member brings a transfer of its own, and all the same counter, to which is added once,
    /// when all of them have been acknowledged.
    ///
    /// # Errors
    ///
    /// As [`Self::put_counter`]'s: all members get the same.
    #[inline(always)]
    pub fn put_counter_by<G: Group, S2: Sharing, D2: Doorbell, C2: CqForm>(
        &mut self,
        group: G,
        companion: &mut Sq<S2, D2, C2>,
        local: Local,
        remote: Remote,
        len: u64,
        counter: Signal,
    ) -> Result<(Ticket, Ticket), Error> {
        if G::ALONE {
            return self.put_counter(companion, local, remote, len, counter);
        }
        let counter = counter.work()?;
        self.put_by(group, local, remote, len)?;
        // Completes behind the data of all.
        let mut cqe = 0;
        let data = self.post_marker_by(group, &mut cqe)?;
        let wait = WaitCqe::new(self.handle.cqn(), cqe as u32);
        let counted = companion.post_by(group, group.is_leader().then_some(Then(wait, counter)))?;
        Ok((data, counted))
    }
}

impl<S: Sharing, D: Doorbell, C: CqForm> Sq<S, D, C> {
    /// Signals by a group: once.
    ///
    /// # Errors
    ///
    /// As [`Self::signal`]'s.
    #[inline(always)]
    pub fn signal_by<G: Group>(&mut self, group: G, signal: Signal) -> Result<Ticket, Error> {
        let signal = signal.work()?;
        self.post_by(group, group.is_leader().then_some(signal))
    }

    /// Waits until the 8 bytes at `address`, which a signal changes, are at least `value`, within the bounds of this queue's waits. What
    /// was before the signal happens before what follows.
    ///
    /// # Errors
    ///
    /// [`Error::Fault`], [`Error::Timeout`] and [`Error::Stopped`]; [`Error::InvalidArgument`] for an address that is not a multiple of 8.
    ///
    /// # Safety
    ///
    /// They are live global memory, or misaligned, and nobody but NICs and strong operations writes them.
    #[inline(always)]
    #[allow(unsafe_code)] // As `open`: the door through which the address enters.
    pub unsafe fn wait_signal(&self, address: u64, value: u64) -> Result<(), Error> {
        // SAFETY: the caller's.
        unsafe { crate::message::wait_until(address, self, |seen| seen >= value) }
    }
}
