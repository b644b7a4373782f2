//! Functions that look and wait.
//!
//! Knows: their parameters. Must not know: modes.

use warpverbs_device::{
    CqForm, Doorbell, Error, Progress, Sharing, Sq, Ticket, abi::Outcome, group::Group,
    op::Direction,
};

use crate::dispatch::{Action, dispatch};

struct Poll(u64);

impl Action for Poll {
    #[inline(always)]
    fn run<S: Sharing, D: Doorbell, C: CqForm, G: Group>(
        &self,
        sq: &mut Sq<S, D, C>,
        group: G,
    ) -> Result<Outcome, Error> {
        Ok(match sq.poll_by(group, Ticket::at(self.0))? {
            Progress::Done => Outcome::Done,
            Progress::Pending => Outcome::Pending,
        })
    }
}

struct Wait {
    ticket: u64,
    deadline_ns: u64,
}

impl Action for Wait {
    #[inline(always)]
    fn run<S: Sharing, D: Doorbell, C: CqForm, G: Group>(
        &self,
        sq: &mut Sq<S, D, C>,
        group: G,
    ) -> Result<Outcome, Error> {
        sq.set_deadline(self.deadline_ns);
        sq.wait_by(group, Ticket::at(self.ticket))?;
        Ok(Outcome::Done)
    }
}

struct Flush(u64);

impl Action for Flush {
    #[inline(always)]
    fn run<S: Sharing, D: Doorbell, C: CqForm, G: Group>(
        &self,
        sq: &mut Sq<S, D, C>,
        group: G,
    ) -> Result<Outcome, Error> {
        sq.set_deadline(self.0);
        sq.flush_by(group)?;
        Ok(Outcome::Done)
    }
}

struct List {
    direction: Direction,
    descriptors: u64,
    count: u64,
    ticket: *mut u64,
}

impl Action for List {
    #[inline(always)]
    fn run<S: Sharing, D: Doorbell, C: CqForm, G: Group>(
        &self,
        sq: &mut Sq<S, D, C>,
        group: G,
    ) -> Result<Outcome, Error> {
        // SAFETY: the caller of `wv_dev_list` promised it.
        let last = unsafe { sq.list_by(group, self.direction, self.descriptors, self.count) }?;
        if !self.ticket.is_null() {
            // SAFETY: the caller's: a place for the ticket, or null.
            unsafe { self.ticket.write(last.index()) }
        }
        Ok(Outcome::Done)
    }
}

/// Looks once.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wv_dev_poll(qp: u64, mode: u32, ticket: u64) -> u32 {
    // SAFETY: the caller's.
    unsafe { dispatch(qp, mode, &Poll(ticket)) }
}

/// Waits for a ticket.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wv_dev_wait(qp: u64, mode: u32, ticket: u64, deadline_ns: u64) -> u32 {
    let wait = Wait {
        ticket,
        deadline_ns,
    };
    // SAFETY: the caller's.
    unsafe { dispatch(qp, mode, &wait) }
}

/// Waits for all that was posted.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wv_dev_flush(qp: u64, mode: u32, deadline_ns: u64) -> u32 {
    // SAFETY: the caller's.
    unsafe { dispatch(qp, mode, &Flush(deadline_ns)) }
}

/// Transfers what a list of descriptors says: puts, or if `get` is not zero, gets.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wv_dev_list(
    qp: u64,
    mode: u32,
    get: u32,
    descriptors: *const u8,
    count: u64,
    ticket: *mut u64,
) -> u32 {
    let list = List {
        direction: if get == 0 {
            Direction::Put
        } else {
            Direction::Get
        },
        descriptors: descriptors as u64,
        count,
        ticket,
    };
    // SAFETY: the caller's.
    unsafe { dispatch(qp, mode, &list) }
}

/// The state word of a QP: stop, and the first fault with its cause.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wv_dev_state(qp: u64) -> u64 {
    // SAFETY: the caller's.
    unsafe { warpverbs_device::state_of(qp) }.0
}
