//! Several queues: which one a thread uses, and one doorbell pass for all.
//!
//! Knows: how queues are told apart and rung together. Must not know: how a queue is posted to.
#![allow(unsafe_code)] // Reads the caller's table of handles.

use warpverbs_wire::doorbell;

use crate::{
    arch::{self, Global},
    error::Error,
    mode::{CqForm, Doorbell, Exclusive, Tell},
    scope::{Plain, Scope},
    sq::Sq,
    thread,
};

/// What decides which of several queues a thread uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Its index in the grid.
    Thread,
    /// Its warp's: for queues that the lanes of a warp share, or use together.
    Warp,
    /// Its block's.
    Block,
}

/// The address of the handle that this thread uses, of a table of `count`.
///
/// # Errors
///
/// [`Error::InvalidArgument`] for an empty table, or one that is not aligned to 8 bytes.
///
/// # Safety
///
/// `table` is the address of `count` live addresses in global memory, which nobody writes; or it is misaligned.
#[inline(always)]
pub unsafe fn choose(table: u64, count: u32, choice: Choice) -> Result<u64, Error> {
    let at = Global::new(table);
    if count == 0 || !at.is_aligned::<8>() {
        return Err(Error::InvalidArgument);
    }
    let number = match choice {
        Choice::Thread => thread::index(),
        Choice::Warp => thread::warp(),
        Choice::Block => u64::from(thread::block()),
    };
    let at = at.offset(number % u64::from(count) * 8);
    // SAFETY: the caller's: an address of the table.
    Ok(unsafe { Plain::load_relaxed::<0>(at) })
}

/// Rings for all posts that were made without ringing ([`Sq::post_quiet`]), in one pass: one fence for the WQEs of all queues, the
/// records, one fence, the doorbells. Only of exclusive queues: a shared one has a turn of its own, and nobody may hold two.
#[inline(always)]
pub fn ring_all<D: Doorbell, C: CqForm, const N: usize>(queues: &mut [Sq<Exclusive, D, C>; N]) {
    let mut pending = false;
    for queue in queues.iter() {
        pending |= queue.pending != 0;
    }
    if !pending {
        return;
    }
    // O2, for all.
    arch::fence_sys();
    for queue in queues.iter() {
        if queue.pending == 0 {
            continue;
        }
        let end = queue.reserved;
        queue.record_consumer();
        if matches!(D::TELL, Tell::Host) {
            queue.bell.produce(end);
            continue;
        }
        if D::EARLY {
            queue.bell.ring(queue.producer_head(end));
        }
        if D::RECORD {
            queue.bell.record(doorbell::dbr_word(end));
        }
    }
    if !matches!(D::TELL, Tell::Host) {
        if D::RECORD || C::CHECKED {
            // O3, for all.
            arch::fence_sys();
        }
        for queue in queues.iter() {
            if queue.pending != 0 {
                queue.touch_register(queue.producer_head(queue.reserved), None);
            }
        }
    }
    for queue in queues.iter_mut() {
        queue.pending = 0;
    }
}
