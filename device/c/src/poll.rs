//! Functions that look and wait.
//!
//! Knows: their parameters. Must not know: modes.

use warpverbs_device::{
    CqForm, Doorbell, Error, Progress, Sharing, Sq, Ticket, abi::Outcome, group::Group,
};

use crate::dispatch::{Action, SHARING, dispatch};

const DONE: u32 = Outcome::Done.code();

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

struct WaitSignal {
    address: u64,
    value: u64,
    deadline_ns: u64,
}

impl Action for WaitSignal {
    #[inline(always)]
    fn run<S: Sharing, D: Doorbell, C: CqForm, G: Group>(
        &self,
        sq: &mut Sq<S, D, C>,
        _: G,
    ) -> Result<Outcome, Error> {
        sq.set_deadline(self.deadline_ns);
        // SAFETY: the caller of `wv_dev_wait_signal` promised it.
        unsafe { sq.wait_signal(self.address, self.value) }?;
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
    let mut ticket = 0;
    // SAFETY: the caller's. A NOP completes behind all before it.
    unsafe {
        match crate::post::wv_dev_nop(qp, mode, &mut ticket) {
            DONE => wv_dev_wait(qp, mode, ticket, deadline_ns),
            other => other,
        }
    }
}

/// Waits until a word that signals change is at least `value`; by one thread.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wv_dev_wait_signal(
    qp: u64,
    mode: u32,
    address: *const u64,
    value: u64,
    deadline_ns: u64,
) -> u32 {
    let wait = WaitSignal {
        address: address as u64,
        value,
        deadline_ns,
    };
    // SAFETY: the caller's.
    unsafe { dispatch(qp, mode & SHARING, &wait) }
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
