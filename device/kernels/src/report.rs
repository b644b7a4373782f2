//! What a thread reports to the host.

use warpverbs_device::{
    CqForm, Doorbell, Error, Sharing, Sq, Ticket,
    abi::{Outcome, ThreadResult},
    thread,
};

/// Writes a thread's result.
///
/// # Safety
///
/// `results` is the address of an array with at least `index + 1` live results, of which this thread alone
/// writes that one.
#[inline(always)]
pub(crate) unsafe fn write(
    results: u64,
    index: u64,
    ended: Result<(), Error>,
    mut result: ThreadResult,
) {
    let outcome = match ended {
        Ok(()) => Outcome::Done,
        Err(error) => {
            if let Error::BadVersion(seen) = error {
                result.seen_version = seen;
            }
            if let Error::Fault(state) = error {
                result.state = state.0;
            }
            error.outcome()
        }
    };
    result.outcome = outcome.code();
    // SAFETY: the caller's.
    unsafe {
        (results as *mut ThreadResult)
            .wrapping_add(index as usize)
            .write(result)
    }
}

/// Notes how far a thread came on a queue, after its last operation.
#[inline(always)]
pub(crate) fn note_end<S: Sharing, D: Doorbell, C: CqForm>(
    result: &mut ThreadResult,
    sq: &Sq<S, D, C>,
    last: Ticket,
) {
    result.end_ns = thread::now_ns();
    result.state = sq.state().0;
    // Each operation is one WQEBB, so this thread has at most as many outstanding as the queue has below its
    // last ticket.
    let outstanding = last.index().saturating_sub(sq.completed());
    result.completed = result.posted.saturating_sub(outstanding);
}
