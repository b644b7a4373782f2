//! Which queue a thread uses, and in which modes: chosen once, before its loop.
//!
//! Knows: what a parameter block says of them. Must not know: what is done with the queue.

use warpverbs_device::{
    Collapsed, CqForm, Cta, Doorbell, Error, Exclusive, Flags, Gpu, OnError, Ring, Sharing,
    abi::{self, BwParams},
    group::{Block, Group, Lanes, Thread},
    thread,
};

/// What a thread does with its queue.
pub(crate) trait Job {
    /// Lanes of a warp, or the threads of a block, that share a queue post together: one reserve and one ring for all. Else each
    /// posts by itself.
    const TOGETHER: bool;

    /// Does it.
    ///
    /// # Safety
    ///
    /// `handle` is that of an exported QP that the threads of the group, and those that the sharing names, may use.
    unsafe fn run<S: Sharing, D: Doorbell, C: CqForm, G: Group>(
        &mut self,
        handle: u64,
        group: G,
    ) -> Result<(), Error>;
}

/// The handle of the queue of this thread, one of `threads` that post.
///
/// With exclusive sharing a thread has one of its own; with a warp's or a block's each block, and of the former none has more than
/// one warp; else threads take queues in turn.
///
/// # Safety
///
/// As the kernels'.
#[inline(always)]
pub(crate) unsafe fn queue(params: &BwParams, threads: u64) -> Result<u64, Error> {
    if params.version != abi::VERSION {
        return Err(Error::BadVersion(params.version));
    }
    if params.qps == 0 || params.slots == 0 {
        return Err(Error::InvalidArgument);
    }
    let (qps, block) = (u64::from(params.qps), u64::from(thread::block_threads()));
    let blocks = u64::from(thread::block());
    let (number, fits) = match params.sharing {
        abi::SHARING_EXCLUSIVE => (thread::index(), threads <= qps),
        abi::SHARING_WARP => (blocks, threads <= qps * block && block <= 32),
        abi::SHARING_CTA => (blocks, threads <= qps * block),
        abi::SHARING_GPU => (thread::index() % qps, true),
        _ => (0, false),
    };
    if !fits {
        return Err(Error::InvalidArgument);
    }
    // SAFETY: the caller's: an array of `qps` addresses; the number is below that.
    Ok(unsafe { *(params.handles as *const u64).wrapping_add(number as usize) })
}

/// Modes of the usual kind: exclusive or the GPU's sharing, every WQE signalled.
pub(crate) const USUAL: u8 = 1;
/// All others.
pub(crate) const OTHERS: u8 = 2;

/// Does the job in the modes of the block and of the queue, if they are among `MODES`.
///
/// # Safety
///
/// As the kernels': `handle` is the one that [`queue`] gave.
#[inline(always)]
pub(crate) unsafe fn run<J: Job, D: Doorbell, const MODES: u8>(
    job: &mut J,
    handle: u64,
    sharing: u32,
    form: u32,
) -> Result<(), Error> {
    // SAFETY: the caller's.
    let collapsed = unsafe { Flags::load(handle) }?.collapsed();
    let modes = (form, collapsed);
    // SAFETY: the caller's; `queue` has compared threads and queues.
    unsafe {
        match sharing {
            abi::SHARING_EXCLUSIVE => {
                in_form::<J, Exclusive, D, Thread, MODES>(job, handle, modes, Thread)
            }
            abi::SHARING_WARP if J::TOGETHER && MODES & OTHERS != 0 => {
                let lanes = Lanes::all();
                in_form::<J, Exclusive, D, Lanes, USUAL>(job, handle, modes, lanes)
            }
            abi::SHARING_CTA if J::TOGETHER && MODES & OTHERS != 0 => {
                in_form::<J, Exclusive, D, Block, USUAL>(job, handle, modes, Block)
            }
            // A warp's threads share at the scope of their block: PTX has none below.
            abi::SHARING_WARP | abi::SHARING_CTA if !J::TOGETHER && MODES & OTHERS != 0 => {
                in_form::<J, Cta, D, Thread, { USUAL | OTHERS }>(job, handle, modes, Thread)
            }
            abi::SHARING_GPU => in_form::<J, Gpu, D, Thread, MODES>(job, handle, modes, Thread),
            _ => Err(Error::InvalidArgument),
        }
    }
}

/// # Safety
///
/// As [`run`]'s.
#[inline(always)]
unsafe fn in_form<J: Job, S: Sharing, D: Doorbell, G: Group, const MODES: u8>(
    job: &mut J,
    handle: u64,
    modes: (u32, bool),
    group: G,
) -> Result<(), Error> {
    // SAFETY: the caller's.
    unsafe {
        match modes {
            (abi::FORM_EVERY, true) if MODES & USUAL != 0 => {
                job.run::<S, D, Collapsed, G>(handle, group)
            }
            (abi::FORM_EVERY, false) if MODES & USUAL != 0 => {
                job.run::<S, D, Ring, G>(handle, group)
            }
            (abi::FORM_ON_ERROR, false) if MODES & OTHERS != 0 => {
                job.run::<S, D, OnError<16>, G>(handle, group)
            }
            _ => Err(Error::InvalidArgument),
        }
    }
}
