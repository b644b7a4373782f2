//! Transfers of any size and shape: put, get, strided, lists; reads and atomics whose data is visible when they complete.
//!
//! Knows: how a request becomes messages, and messages posts. Must not know: how a post is made.

use crate::{
    error::Error,
    group::{Group, Thread},
    mode::{CqForm, Doorbell, Sharing},
    op::{
        Chunks, CompareSwap, Direction, Dump, Fenced, FetchAdd, Fill, Filled, Length, Local, Nop,
        Place, Read, Remote, Signalled, Source, Then, Work, Write,
    },
    sq::{Sq, Ticket},
};

/// The next `count` messages of a source, one WQE each.
#[derive(Clone, Copy, Debug)]
struct Run<X> {
    source: X,
    count: u32,
}

impl<X: Source> Fill for Run<X> {
    const WQEBBS: u32 = 0;
    const SHORT: bool = true;
    #[inline(always)]
    fn wqebbs(&self) -> u32 {
        self.count
    }
    #[inline(always)]
    fn fill(self, mut place: Place) -> Filled {
        let mut source = self.source;
        let mut last = Filled::NONE;
        for _ in 0..self.count {
            if let Some((message, len)) = source.next() {
                last = message.fill_one(len, place);
                place = place.ahead(1);
            }
        }
        last
    }
}

impl<S: Sharing, D: Doorbell, C: CqForm> Sq<S, D, C> {
    /// Writes `len` bytes, any number, to the peer's memory: one post, or several where the queue does not take all messages at
    /// once. The ticket is the last WQE's; of no bytes, one that is done.
    ///
    /// # Errors
    ///
    /// As [`Self::post`]'s. A later one of several posts may fail when earlier ones were made: these complete or fail by themselves.
    #[inline(always)]
    pub fn put(&mut self, local: Local, remote: Remote, len: u64) -> Result<Ticket, Error> {
        self.put_by(Thread, local, remote, len)
    }

    /// As [`Self::put`], by a group: each member brings a transfer of its own, and all get the ticket of the last WQE.
    ///
    /// # Errors
    ///
    /// As [`Self::put`]'s.
    #[inline(always)]
    pub fn put_by<G: Group>(
        &mut self,
        group: G,
        local: Local,
        remote: Remote,
        len: u64,
    ) -> Result<Ticket, Error> {
        if G::ALONE
            && let Some(len) = self.one_message(len)
        {
            return self.post(Write::new(local, remote, len));
        }
        self.stream_by(group, self.chunks(local, remote, len, Direction::Put))
    }

    /// Reads `len` bytes, any number, from the peer's memory. When the ticket is done, they are visible to this GPU: where a
    /// completion does not prove it, a DUMP follows the reads (rule O14).
    ///
    /// # Errors
    ///
    /// As [`Self::put`]'s.
    #[inline(always)]
    pub fn get(&mut self, local: Local, remote: Remote, len: u64) -> Result<Ticket, Error> {
        self.get_by(Thread, local, remote, len)
    }

    /// As [`Self::get`], by a group: each member brings a transfer of its own.
    ///
    /// # Errors
    ///
    /// As [`Self::put`]'s.
    #[inline(always)]
    pub fn get_by<G: Group>(
        &mut self,
        group: G,
        local: Local,
        remote: Remote,
        len: u64,
    ) -> Result<Ticket, Error> {
        if G::ALONE
            && let Some(len) = self.one_message(len)
        {
            let read = Read::new(local, remote, len);
            return self.post_visible(read, local);
        }
        let read = self.stream_by(group, self.chunks(local, remote, len, Direction::Get))?;
        if !self.reads_need_dump {
            return Ok(read);
        }
        self.post_by(group, (len != 0).then(|| self.settling(local)))
    }

    /// Fetches and adds 8 bytes. When the ticket is done, what was found is visible in `fetched`.
    ///
    /// # Errors
    ///
    /// As [`Self::post`]'s, and [`Error::InvalidArgument`] for addresses that are not aligned.
    #[inline(always)]
    pub fn fetch_add(&mut self, fetched: Local, remote: Remote, add: u64) -> Result<Ticket, Error> {
        self.post_visible(FetchAdd::new(fetched, remote, add)?, fetched)
    }

    /// Compares and swaps 8 bytes. When the ticket is done, what was found is visible in `fetched`.
    ///
    /// # Errors
    ///
    /// As [`Self::fetch_add`]'s.
    #[inline(always)]
    pub fn compare_swap(
        &mut self,
        fetched: Local,
        remote: Remote,
        compare: u64,
        swap: u64,
    ) -> Result<Ticket, Error> {
        self.post_visible(CompareSwap::new(fetched, remote, compare, swap)?, fetched)
    }

    /// Posts an operation that writes `local`, and where its completion does not prove that what it wrote is visible to this GPU, a
    /// DUMP behind it (rule O14): when the ticket is done, it is visible.
    ///
    /// # Errors
    ///
    /// As [`Self::post`]'s.
    #[inline(always)]
    pub fn post_visible<W: Work>(&mut self, work: W, local: Local) -> Result<Ticket, Error> {
        if self.reads_need_dump {
            self.post(Then(work, self.settling(local)))
        } else {
            self.post(work)
        }
    }

    /// As [`Self::post_visible`], by a group.
    ///
    /// # Errors
    ///
    /// As [`Self::post`]'s.
    #[inline(always)]
    pub fn post_visible_by<G: Group, W: Work>(
        &mut self,
        group: G,
        work: W,
        local: Local,
    ) -> Result<Ticket, Error> {
        if self.reads_need_dump {
            let settles = work.wqebbs() != 0;
            self.post_by(group, Then(work, settles.then(|| self.settling(local))))
        } else {
            self.post_by(group, work)
        }
    }

    /// Behind the reads and atomics before it, reads of what they wrote a byte once more.
    #[inline(always)]
    fn settling(&self, local: Local) -> Fenced<Dump> {
        Fenced::reads(Dump::new(local, Length::ONE))
    }

    /// Makes the data of completed reads visible to this GPU where their completions do not prove it (rule
    /// O14): lets the NIC read `local`, some of what they wrote, once more. `local` may be one byte.
    ///
    /// # Errors
    ///
    /// As [`Self::submit`]'s and [`Self::wait`]'s.
    #[inline(always)]
    pub fn settle_reads(&mut self, local: Local) -> Result<(), Error> {
        if !self.reads_need_dump {
            return Ok(());
        }
        let ticket = self.post(Dump::new(local, Length::ONE))?;
        self.wait(ticket)
    }

    /// Posts all messages of a source with as few rings as the queue allows. By a group: each member brings a source of its own.
    ///
    /// # Errors
    ///
    /// As [`Self::put`]'s.
    #[inline(always)]
    pub fn stream_by<G: Group, X: Source>(&mut self, group: G, source: X) -> Result<Ticket, Error> {
        let mut source = source;
        let most = u64::from(self.max_wqebbs());
        let (rank, members) = group.scan(1, 1);
        // Each member's share of a post; where there are more members than WQEBBs, some post after others.
        let share = if members < most { most / members } else { 1 };
        let mut last = Ticket::default();
        loop {
            let mut ahead = source;
            let mut count = 0;
            while u64::from(count) < share && ahead.next().is_some() {
                count += 1;
            }
            let (_, all) = group.scan(0, count);
            if all == 0 {
                return Ok(last);
            }
            let mut first = 0;
            while first < members {
                let now = first <= rank && rank < first + most;
                last = self.post_by(
                    group,
                    Run {
                        source,
                        count: if now { count } else { 0 },
                    },
                )?;
                first += most;
            }
            source = ahead;
        }
    }

    /// Waits until all that was posted to the queue so far has completed.
    ///
    /// # Errors
    ///
    /// As [`Self::post`]'s and [`Self::wait`]'s.
    #[inline(always)]
    pub fn flush(&mut self) -> Result<(), Error> {
        self.flush_by(Thread)
    }

    /// As [`Self::flush`], by a group.
    ///
    /// # Errors
    ///
    /// As [`Self::flush`]'s.
    #[inline(always)]
    pub fn flush_by<G: Group>(&mut self, group: G) -> Result<(), Error> {
        // Completes behind all before it; of these not every one may have a CQE.
        let ticket = self.post_by(group, group.is_leader().then_some(Signalled(Nop)))?;
        self.wait_by(group, ticket)
    }

    /// Orders: what is posted behind it starts when all before it has completed.
    ///
    /// # Errors
    ///
    /// As [`Self::post`]'s.
    #[inline(always)]
    pub fn fence(&mut self) -> Result<Ticket, Error> {
        self.post(Fenced::all(Nop))
    }

    /// As [`Self::fence`], by a group: one WQE.
    ///
    /// # Errors
    ///
    /// As [`Self::post`]'s.
    #[inline(always)]
    pub fn fence_by<G: Group>(&mut self, group: G) -> Result<Ticket, Error> {
        self.post_by(group, group.is_leader().then_some(Fenced::all(Nop)))
    }

    /// A transfer as a source of messages.
    #[inline(always)]
    pub fn chunks(&self, local: Local, remote: Remote, len: u64, direction: Direction) -> Chunks {
        Chunks {
            local,
            remote,
            len,
            log_max: self.log_max_message(),
            direction,
        }
    }

    /// The length, if it is one message.
    #[inline(always)]
    pub(crate) fn one_message(&self, len: u64) -> Option<Length> {
        Length::of_one(len, self.log_max_message())
    }
}
