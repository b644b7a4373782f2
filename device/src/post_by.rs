//! Posting by a group: one reserve, one publish and one ring for the operations of all members.
//!
//! Knows: which member does what, and where members meet. Must not know: how a thread waits, rings or polls.
//!
//! The leader waits, for room and for its turn, in loops of its own; members meet between these (rule O13). All get the leader's
//! answer, so that none leaves before a meeting that the others come to.

use warpverbs_wire::abi::State;

use crate::{
    arch,
    error::Error,
    group::Group,
    mode::{CqForm, Doorbell, Sharing},
    op::{Filled, Nop, Work},
    poll::Progress,
    post::Size,
    sq::{Sq, Ticket},
};

impl<S: Sharing, D: Doorbell, C: CqForm> Sq<S, D, C> {
    /// Posts the operation of each member, in the order of members, with one ring. A member that has nothing to do brings `None`. All
    /// get the ticket of the last WQE, or the same error.
    ///
    /// # Errors
    ///
    /// As [`Self::post`]'s.
    #[inline(always)]
    pub fn post_by<G: Group, W: Work>(&mut self, group: G, work: W) -> Result<Ticket, Error> {
        if G::ALONE {
            return self.post(work);
        }
        self.post_together::<G, W, true, false, false>(group, work, &mut 0)
    }

    /// Posts one NOP by a group; `cqe` becomes the number of its CQE.
    #[inline(always)]
    pub(crate) fn post_marker_by<G: Group>(
        &mut self,
        group: G,
        cqe: &mut u64,
    ) -> Result<Ticket, Error> {
        let nop = group.is_leader().then_some(Nop);
        self.post_together::<G, _, true, false, true>(group, nop, cqe)
    }

    /// As [`Self::post_by`], without ringing: see [`Self::post_quiet`].
    ///
    /// # Errors
    ///
    /// As [`Self::post`]'s.
    #[inline(always)]
    pub fn post_quiet_by<G: Group, W: Work>(&mut self, group: G, work: W) -> Result<Ticket, Error> {
        const {
            assert!(
                !S::SHARED || D::LAZY,
                "on a shared queue a doorbell that is put off needs the mode Lazy"
            );
        }
        if G::ALONE {
            return self.post_quiet(work);
        }
        self.post_together::<G, W, false, false, false>(group, work, &mut 0)
    }

    /// As [`Self::post_by`], without waiting for room.
    ///
    /// # Errors
    ///
    /// As [`Self::try_post`]'s.
    #[inline(always)]
    pub fn try_post_by<G: Group, W: Work>(&mut self, group: G, work: W) -> Result<Ticket, Error> {
        if G::ALONE {
            return self.try_post(work);
        }
        self.post_together::<G, W, true, true, false>(group, work, &mut 0)
    }

    #[inline(always)]
    fn post_together<G: Group, W: Work, const RING: bool, const TRY: bool, const NUMBERED: bool>(
        &mut self,
        group: G,
        work: W,
        cqe: &mut u64,
    ) -> Result<Ticket, Error> {
        let own = Size::of(&work);
        let (before, wqebbs) = group.scan(W::WQEBBS, own.wqebbs);
        if wqebbs == 0 {
            return Ok(Ticket::default());
        }
        if wqebbs > u64::from(self.max_wqebbs()) {
            return Err(Error::InvalidArgument);
        }
        arch::phase_post();
        let gaps = if W::SHORT {
            0
        } else {
            group.scan(0, own.wqebbs - own.wqes).1
        };
        let all = Size {
            wqebbs: wqebbs as u32,
            wqes: (wqebbs - gaps) as u32,
        };
        let reserved = if group.is_leader() {
            self.reserve_for_group::<TRY>(all.wqebbs)
        } else {
            Ok(0)
        };
        let [answer, first] = group.broadcast([
            code(reserved.map(|_| Progress::Done)),
            reserved.unwrap_or(0),
        ]);
        decode(answer)?;
        // The leader may have waited.
        arch::phase_post();
        let mut filled = Filled::NONE;
        if own.wqebbs != 0 {
            filled = work.fill(self.place(first + before));
        }
        let more = if W::SHORT {
            0
        } else {
            let is_last = own.wqebbs != 0 && before + u64::from(own.wqebbs) == wqebbs;
            group.scan(0, if is_last { filled.more } else { 0 }).1
        };
        // All slots are filled.
        group.sync();
        let end = first + wqebbs;
        let last = Filled {
            head: self.producer_head(end),
            more: more as u32,
        };
        let mut published = Ok(0);
        if group.is_leader() {
            published = self.publish_for_group::<RING, NUMBERED>(first, all, last);
        }
        if S::SHARED || NUMBERED {
            let [answer, number] = group.broadcast([
                code(published.map(|_| Progress::Done)),
                published.unwrap_or(0),
            ]);
            decode(answer)?;
            *cqe = number;
        }
        if !S::SHARED {
            self.reserved = end;
        }
        arch::phase_other();
        Ok(Ticket(end - more))
    }

    /// The leader's: the first index.
    #[inline(always)]
    fn reserve_for_group<const TRY: bool>(&mut self, wqebbs: u32) -> Result<u64, Error> {
        if TRY {
            Ok(self.try_reserve(wqebbs)?.first)
        } else if S::SHARED {
            self.reserve_shared(wqebbs)
        } else {
            self.reserve_exclusive(wqebbs)?;
            Ok(self.reserved)
        }
    }

    /// The leader's: the number of the last WQE's CQE.
    #[inline(always)]
    fn publish_for_group<const RING: bool, const NUMBERED: bool>(
        &mut self,
        first: u64,
        size: Size,
        last: Filled,
    ) -> Result<u64, Error> {
        let mut cqe = 0;
        if S::SHARED {
            let waited = self.wait_for_turn::<RING>(first)?;
            arch::phase_post();
            self.finish_shared::<RING, NUMBERED>(first, size, last, waited, &mut cqe);
        } else {
            self.finish_exclusive::<RING, NUMBERED>(size, last, &mut cqe);
        }
        Ok(cqe)
    }

    /// As [`Self::wait`], by a group, whose members bring the same ticket. What the NIC did for it happens before what each does next.
    ///
    /// # Errors
    ///
    /// As [`Self::wait`]'s.
    #[inline(always)]
    pub fn wait_by<G: Group>(&mut self, group: G, ticket: Ticket) -> Result<(), Error> {
        let mut waited = Ok(());
        if group.is_leader() {
            waited = self.wait(ticket);
        }
        if G::ALONE {
            return waited;
        }
        self.share_answer(group, waited.map(|()| Progress::Done))?;
        Ok(())
    }

    /// As [`Self::poll`], by a group, whose members bring the same ticket.
    ///
    /// # Errors
    ///
    /// As [`Self::poll`]'s.
    #[inline(always)]
    pub fn poll_by<G: Group>(&mut self, group: G, ticket: Ticket) -> Result<Progress, Error> {
        let mut polled = Ok(Progress::Pending);
        if group.is_leader() {
            polled = self.poll(ticket);
        }
        if G::ALONE {
            return polled;
        }
        self.share_answer(group, polled)
    }

    #[inline(always)]
    fn share_answer<G: Group>(
        &mut self,
        group: G,
        answer: Result<Progress, Error>,
    ) -> Result<Progress, Error> {
        let [answer, reserved] = group.broadcast([code(answer), self.reserved]);
        if !S::SHARED {
            // A wait may have posted.
            self.reserved = reserved;
        }
        decode(answer)
    }
}

const PENDING: u64 = 1 << 5;
const TIMEOUT: u64 = 1 << 2;
const NO_RESOURCE: u64 = 1 << 3;
const INVALID_ARGUMENT: u64 = 1 << 4;
const BAD_VERSION: u64 = 1 << 6;

/// An answer in one word: a fault is its state word, of which the fault bit is set.
///
/// One question after the other, which the compiler must not join: of a `match` it makes a table of branches, with a trap for
/// those that it knows not to occur.
#[inline(always)]
fn code(answer: Result<Progress, Error>) -> u64 {
    if let Ok(Progress::Done) = answer {
        return 0;
    }
    arch::keep_apart();
    if let Err(Error::Fault(state)) = answer {
        return state.0 | State::FAULT;
    }
    arch::keep_apart();
    if let Err(Error::Stopped) = answer {
        return State::STOP;
    }
    arch::keep_apart();
    if let Err(Error::Timeout) = answer {
        return TIMEOUT;
    }
    arch::keep_apart();
    if let Err(Error::NoResource) = answer {
        return NO_RESOURCE;
    }
    arch::keep_apart();
    if let Err(Error::BadVersion(seen)) = answer {
        return BAD_VERSION | u64::from(seen) << 32;
    }
    arch::keep_apart();
    if let Ok(Progress::Pending) = answer {
        return PENDING;
    }
    INVALID_ARGUMENT
}

#[inline(always)]
fn decode(code: u64) -> Result<Progress, Error> {
    if code == 0 {
        return Ok(Progress::Done);
    }
    arch::cold();
    Err(if code & State::FAULT != 0 {
        Error::Fault(State(code))
    } else if code & State::STOP != 0 {
        Error::Stopped
    } else if code & BAD_VERSION != 0 {
        Error::BadVersion((code >> 32) as u32)
    } else {
        match code {
            PENDING => return Ok(Progress::Pending),
            TIMEOUT => Error::Timeout,
            NO_RESOURCE => Error::NoResource,
            _ => Error::InvalidArgument,
        }
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use warpverbs_wire::abi::FaultCause;

    use super::*;

    #[test]
    fn each_answer_survives_its_code() {
        let fault = State::fault(FaultCause::Completion, 0x13, 0x88, 13, u64::MAX);
        for answer in [
            Ok(Progress::Done),
            Ok(Progress::Pending),
            Err(Error::NoResource),
            Err(Error::Timeout),
            Err(Error::Stopped),
            Err(Error::Fault(fault)),
            Err(Error::Fault(State(fault.0 | State::STOP))),
            Err(Error::InvalidArgument),
            Err(Error::BadVersion(0)),
            Err(Error::BadVersion(u32::MAX)),
        ] {
            assert_eq!(decode(code(answer)), answer);
        }
    }
}
