//! Polling: what the CQ says, and waits for it.
//!
//! Knows: how a CQE becomes a completed index or a fault. Must not know: how WQEs are posted.
//!
//! # From 16 bits to 64
//!
//! A CQE names a WQE by the low 16 bits of its index `v`. Let `k0` be the shared completed index, loaded before the CQE.
//!
//! - Success. `k0 <= v + 1`: whoever published `k0` had read a CQE for `k0 - 1`; we acquired `k0`, so we see that CQE or a
//!   later one. (On a ring: whoever published it had read consumer index `j`, so we see a consumer index of at least `j`,
//!   whose CQE is that or a later.) The least index from `k0` on with these bits is therefore at most `v + 1`. It is less only
//!   if others got 2^16 ahead since `k0` was loaded; then it says what is true, and raises nothing.
//! - Error. Let `k1` be the completed index loaded behind the CQE and the acquire fence. Nobody publishes more than `v`, since
//!   only errors follow; and `v < k1 + capacity`, since who posted `v` had found room for it, that is, had loaded a completed
//!   index above `v - capacity`; that load happens before its ring, the ring before the CQE, the CQE (by the fence) before the
//!   load of `k1`, and the index only grows. Capacity is below 2^15, so from `k1` on the 16 bits name one index: `v`'s.
//!
//! The owner of an exclusive queue has `k0 = k1` in a register.
//!
//! # Which WQEBBs are free
//!
//! The completion of the WQE at `v` publishes `v + 1`: all WQEs before it are complete, RC being in order.
//! The tail of a longer one counts as in use until a later WQE completes, which is safe, and never keeps a post of one WQEBB
//! waiting; what a longer post does, `Sq::has_room_behind_long` says.
//!
//! # Rings
//!
//! The CQE of consumer index `c` is valid if its opcode is and its owner bit is that of `c`'s lap. The owner bit tells a lap from
//! the one before, not from the one before that. So `c` is acquired: whoever published it had read the CQE of `c - 1`, which
//! the NIC wrote behind the one that was in `c`'s slot a lap ago; that one or a later one is seen. (By a relaxed load, a
//! thread that others got far ahead of could pair a new `c` with a CQE of two laps ago, whose index is below `k0`: 2^16 too much
//! would count as completed.)
//!
//! Pollers of a shared queue may read the same CQE; publishing by maximum makes that harmless. One whose `c` is old by
//! whole laps may even take a later CQE for `c`'s: what that CQE says is true all the same, and `c + 1`
//! advances nothing. A CQE is never overwritten before it was consumed: the completed index covers at most
//! the CQE at the consumer index, so at most `capacity + 1` CQEs can follow it, and the ring holds more than
//! the send queue's depth. Hence no CQ doorbell record either: the host creates the CQ with overrun-ignore,
//! and no overrun can be.

use warpverbs_wire::{
    abi::{FaultCause, State},
    cqe::{CqeOpcode, Syndrome, Tail},
};

use crate::{
    arch,
    error::Error,
    mode::{CqForm, Doorbell, Sharing},
    op::{Nop, Signalled},
    ring::Cqe,
    sq::{Sq, Ticket},
    wait::{Wait, Watched},
};

/// Whether an operation has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It has.
    Done,
    /// Not yet.
    Pending,
}

/// The completed index that a CQE with this WQE counter tells of, if it is at most 2^16 - 1 above `known`: at least it is
/// that much (see above).
#[inline(always)]
const fn extend(known: u64, wqe_counter: u16) -> u64 {
    known + wqe_counter.wrapping_add(1).wrapping_sub(known as u16) as u64
}

impl<S: Sharing, D: Doorbell, C: CqForm> Sq<S, D, C> {
    /// Looks at the CQ once.
    ///
    /// # Errors
    ///
    /// [`Error::Fault`] if the QP is at fault, unless the ticket's WQE had completed before.
    #[inline(always)]
    pub fn poll(&mut self, ticket: Ticket) -> Result<Progress, Error> {
        if self.is_done(ticket) {
            return Ok(Progress::Done);
        }
        arch::phase_poll();
        let looked = self.look_and_check();
        arch::phase_other();
        if self.is_done(ticket) {
            return Ok(Progress::Done);
        }
        looked?;
        Ok(Progress::Pending)
    }

    /// Waits until the ticket's WQE, and all before it, have completed. What the NIC did for them happens before what the
    /// caller does next.
    ///
    /// # Errors
    ///
    /// [`Error::Fault`], [`Error::Timeout`] and [`Error::Stopped`]; the latter two change nothing.
    #[inline(always)]
    pub fn wait(&mut self, ticket: Ticket) -> Result<(), Error> {
        if self.is_done(ticket) {
            return Ok(());
        }
        if C::EVERY > 1 {
            let looked = self.poll(ticket);
            if self.is_done(ticket) {
                return Ok(());
            }
            looked?;
            self.signal_behind(ticket)?;
        }
        self.look_until::<true>(ticket.0)?;
        arch::phase_other();
        Ok(())
    }

    /// True if the ticket's WQE, and all before it, are known to have completed, without looking.
    #[inline(always)]
    pub fn test(&self, ticket: Ticket) -> bool {
        self.is_done(ticket)
    }

    /// Takes completions until there is none, at most `most`; returns the index below which all WQEs have completed.
    ///
    /// # Errors
    ///
    /// [`Error::Fault`] if the QP is at fault.
    #[inline(always)]
    pub fn poll_many(&mut self, most: u32) -> Result<u64, Error> {
        arch::phase_poll();
        let mut looked = Ok(());
        for _ in 0..most {
            let before = self.completed();
            looked = self.look_and_check();
            if looked.is_err() || self.completed() == before {
                break;
            }
        }
        arch::phase_other();
        looked?;
        Ok(self.completed())
    }

    /// Posts a signalled NOP if no WQE at or behind the ticket's is signalled.
    #[inline(always)]
    fn signal_behind(&mut self, ticket: Ticket) -> Result<(), Error> {
        let reserved = if S::SHARED {
            self.handle.reserved()
        } else {
            self.reserved
        };
        // The last of its bundle of indices: the WQE that covers that one is signalled.
        let signalled = ticket.0.wrapping_sub(1) | u64::from(C::EVERY - 1);
        if reserved <= signalled {
            self.post(Signalled(Nop))?;
        }
        Ok(())
    }

    /// Waits until the completed index is at least `index`, which it is not. A success that precedes an error is a success.
    /// `ACQUIRE`: as [`Self::look`]'s.
    #[inline(always)]
    pub(crate) fn look_until<const ACQUIRE: bool>(&mut self, index: u64) -> Result<(), Error> {
        arch::phase_poll();
        let mut wait = Wait::new();
        loop {
            let looked = self.look::<ACQUIRE>();
            if self.completed() >= index {
                return Ok(());
            }
            looked?;
            arch::phase_spin();
            wait.tick(&self.handle, self.bounds)?;
        }
    }

    #[inline(always)]
    fn is_done(&self, ticket: Ticket) -> bool {
        self.completed() >= ticket.0
    }

    /// Looks at the CQ, and on a shared queue at the state word: a fault that another thread found is ours
    /// too. (The owner of an exclusive queue finds each fault itself, and again: an error CQE is not
    /// consumed.)
    #[inline(always)]
    fn look_and_check(&mut self) -> Result<(), Error> {
        self.look::<true>()?;
        if S::SHARED {
            let state = self.handle.state();
            if state.is_fault() {
                return Err(Error::Fault(state));
            }
        }
        Ok(())
    }

    /// Looks at the CQ once, takes at most one CQE, and brings `self.completed` up to date.
    ///
    /// `ACQUIRE`: all that the NIC did before a completion that is taken happens before what follows. The owner of an
    /// exclusive queue who looks without must fence before anyone uses that: see the callers. (On a shared queue others
    /// learn of the completion from this thread's publication, which the fence makes a release.)
    #[inline(always)]
    pub(crate) fn look<const ACQUIRE: bool>(&mut self) -> Result<(), Error> {
        // Shared: acquire, so that the CQE is loaded after it.
        let known = if S::SHARED {
            self.handle.completed()
        } else {
            self.completed()
        };
        if S::SHARED {
            self.set_completed(known);
        }
        let consumer = match (C::COLLAPSED, S::SHARED) {
            (true, _) => 0,
            (false, true) => self.handle.consumer(),
            (false, false) => self.consumer,
        };
        let cqe = self.cq.cqe(consumer);
        // O6: opcode, owner bit and WQE counter by one strong load; the payload only after the fence below.
        let tail = cqe.tail();
        // A collapsed CQ's owner bit means nothing.
        let succeeded = if C::COLLAPSED {
            tail.opcode_bits() == CqeOpcode::Requester.code()
        } else {
            self.cq.is_success(tail, consumer)
        };
        let completed = extend(known, tail.wqe_counter());
        if !succeeded {
            // A fresh CQE is all ones: an invalid opcode.
            let new = if C::COLLAPSED {
                !tail.is_invalid() && completed != known
            } else {
                self.cq.is_new(tail, consumer)
            };
            if !new {
                return Ok(());
            }
            arch::cold();
            arch::fence_sys();
            // An error; or an opcode that a send CQ does not carry, which is recorded just the same.
            return Err(self.take_error(cqe, tail));
        }
        if C::COLLAPSED && completed == known {
            return Ok(());
        }
        if S::SHARED || ACQUIRE {
            arch::fence_sys();
        }
        self.set_completed(completed);
        if S::SHARED && C::CHECKED && !C::COLLAPSED {
            // Who acquires this completed index, and rings with the room that it makes, tells the NIC of a consumer index that
            // covers it.
            self.handle.publish_consumer(consumer + 1);
            arch::fence_sys();
            self.handle.publish_completed(completed);
            return Ok(());
        }
        if S::SHARED {
            self.handle.publish_completed(completed);
        }
        if !C::COLLAPSED {
            if S::SHARED {
                self.handle.publish_consumer(consumer + 1);
            } else {
                self.consumer = consumer + 1;
            }
        }
        Ok(())
    }

    /// Records what an error CQE says, behind the fence that follows the load of `tail`. The CQE is not consumed: the QP is at
    /// fault for good.
    #[inline]
    fn take_error(&mut self, cqe: Cqe, tail: Tail) -> Error {
        // A ring keeps the CQE: what follows are as many flushes as WQEs were outstanding, for which there is room elsewhere.
        // On a collapsed CQ a flush may be written over it at any time; behind an error nothing else is. So the error word is
        // this CQE's or a flush's, and says itself which it is: nothing need be read again.
        let error = if C::COLLAPSED {
            cqe.changing_error()
        } else {
            cqe.error()
        };
        let known = if S::SHARED {
            self.handle.completed_relaxed()
        } else {
            self.completed()
        };
        let index = extend(known, tail.wqe_counter()).wrapping_sub(1);
        let flushed = error.syndrome() == Syndrome::Flushed.code();
        let cause = if C::COLLAPSED && flushed {
            // O10: a flush follows a cause, which was here and was overwritten before anyone read it. How many WQEs had
            // succeeded before it is lost as well.
            FaultCause::CauseOverwritten
        } else {
            // The WQEs before the one at fault succeeded.
            self.set_completed(index);
            if S::SHARED {
                self.handle.publish_completed(index);
            }
            FaultCause::Completion
        };
        let fault = State::fault(
            cause,
            error.syndrome(),
            error.vendor_syndrome(),
            tail.opcode_bits(),
            index,
        );
        Error::Fault(self.handle.latch(fault))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use warpverbs_wire::abi::MAX_SQ_DEPTH;

    use super::*;

    /// The argument at the top, in numbers.
    #[test]
    fn sixteen_bits_name_the_index_that_was_read() {
        let capacity = u64::from(MAX_SQ_DEPTH) - 1;
        for known in [
            0,
            1,
            40_000,
            (1 << 16) - 1,
            1 << 16,
            (1 << 32) - 1,
            (1 << 32) + 77,
        ] {
            // An error, from what was known behind it: exactly.
            for completed in [known + 1, known + 2, known + capacity] {
                let counter = completed.wrapping_sub(1) as u16;
                assert_eq!(extend(known, counter), completed, "{known}");
            }
            // A success that others may be ahead of: never more than it says, never less than is known.
            for ahead in [0, 1, 1000, (1 << 15) - 1, 1 << 15, (1 << 16) + 5, 1 << 20] {
                for completed in [known + ahead, known + ahead + capacity] {
                    let extended = extend(known, completed.wrapping_sub(1) as u16);
                    assert!((known..=completed).contains(&extended), "{known} {ahead}");
                    assert!(completed - known >= 1 << 16 || extended == completed);
                }
            }
        }
    }
}
