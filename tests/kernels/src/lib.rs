//! Kernels of tests: RDMA writes with the doorbell modes that leave the record, or the doorbell, to others.
//!
//! As the embedded kernels of these names: same parameter blocks, same results. They wait for each operation if `slots` is 1.
#![no_std]
#![feature(abi_ptx)]

use warpverbs_device::{
    Collapsed, CqForm, Db, Doorbell, Error, Exclusive, Flags, Gpu, Lazy, Local, NoDbr, Proxy,
    Remote, Ring, Sharing, Sq, Ticket,
    abi::{self, BwParams, Outcome, RateParams, ThreadResult},
    thread,
};

/// [`BwParams::sharing`]: as `SHARING_GPU`, and in the mode `Lazy`.
const SHARING_LAZY: u32 = 0x100;

/// RDMA writes.
///
/// # Safety
///
/// The addresses in the block are live for the kernel, as `BwParams` describes them.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn wv_write_bw(params: BwParams) {
    unsafe {
        enter(&params, |mode, handle, result| match mode {
            (abi::SHARING_EXCLUSIVE, abi::DOORBELL_DB, false) => {
                run::<Exclusive, Db, Ring>(handle, &params, result)
            }
            (SHARING_LAZY, abi::DOORBELL_PROXY, false) => {
                run::<Gpu, Lazy<Proxy>, Ring>(handle, &params, result)
            }
            _ => Err(Error::InvalidArgument),
        })
    }
}

/// The same, with the doorbell `Proxy`.
///
/// # Safety
///
/// As [`wv_write_bw`].
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn wv_write_bw_proxy(params: RateParams) {
    unsafe { usual::<Proxy>(&params.common) }
}

/// The same, with the doorbell `NoDbr`.
///
/// # Safety
///
/// As [`wv_write_bw`].
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn wv_write_bw_nodbr(params: RateParams) {
    unsafe { usual::<NoDbr>(&params.common) }
}

#[inline(always)]
unsafe fn usual<D: Doorbell>(params: &BwParams) {
    unsafe {
        enter(params, |(sharing, _, collapsed), handle, result| {
            match (sharing, collapsed) {
                (abi::SHARING_EXCLUSIVE, false) => {
                    run::<Exclusive, D, Ring>(handle, params, result)
                }
                (abi::SHARING_EXCLUSIVE, true) => {
                    run::<Exclusive, D, Collapsed>(handle, params, result)
                }
                (abi::SHARING_GPU, false) => run::<Gpu, D, Ring>(handle, params, result),
                (abi::SHARING_GPU, true) => run::<Gpu, D, Collapsed>(handle, params, result),
                _ => Err(Error::InvalidArgument),
            }
        })
    }
}

/// Sharing, doorbell, and whether the CQ is collapsed.
type Mode = (u32, u32, bool);

/// Runs what the mode chooses, and writes the thread's result.
#[inline(always)]
unsafe fn enter(
    params: &BwParams,
    choose: impl FnOnce(Mode, u64, &mut ThreadResult) -> Result<(), Error>,
) {
    let mut result = ThreadResult::default();
    let ended = match unsafe { queue(params) } {
        Ok((handle, collapsed)) => choose(
            (params.sharing, params.doorbell, collapsed),
            handle,
            &mut result,
        ),
        Err(error) => Err(error),
    };
    result.outcome = ended.map_or_else(Error::outcome, |()| Outcome::Done).code();
    result.end_ns = thread::now_ns();
    unsafe { *(params.results as *mut ThreadResult).add(thread::index() as usize) = result }
}

/// The handle of this thread's queue, and whether its CQ is collapsed.
#[inline(always)]
unsafe fn queue(params: &BwParams) -> Result<(u64, bool), Error> {
    if params.version != abi::VERSION {
        return Err(Error::BadVersion(params.version));
    }
    let qp = thread::index() % u64::from(params.qps.max(1));
    let handle = unsafe { *(params.handles as *const u64).wrapping_add(qp as usize) };
    let collapsed = unsafe { Flags::load(handle) }?.collapsed();
    Ok((handle, collapsed))
}

#[inline(always)]
unsafe fn run<S: Sharing, D: Doorbell, C: CqForm>(
    handle: u64,
    params: &BwParams,
    result: &mut ThreadResult,
) -> Result<(), Error> {
    let mut sq = unsafe { Sq::<S, D, C>::open(handle) }?;
    sq.set_deadline(params.deadline_ns);
    sq.length(params.size)?;
    let size = u64::from(params.size);
    let first = thread::index() * u64::from(params.slots) * size;
    let mut last = Ticket::default();
    let mut ended = Ok(());
    result.start_ns = thread::now_ns();
    let mut slot = 0;
    while result.posted < params.iters {
        let offset = first + u64::from(slot) * size;
        slot = if slot + 1 < params.slots { slot + 1 } else { 0 };
        let local = Local {
            addr: params.local + offset,
            lkey: params.lkey,
        };
        let remote = Remote {
            addr: params.remote + offset,
            rkey: params.rkey,
        };
        let posted = sq.post_write(local, remote, params.size);
        ended = posted.map(|ticket| last = ticket);
        if ended.is_err() {
            break;
        }
        result.posted += 1;
        if params.slots == 1 {
            ended = sq.wait(last);
            if ended.is_err() {
                break;
            }
        }
    }
    let ended = ended.and_then(|()| sq.wait(last));
    result.state = sq.state().0;
    if ended.is_ok() {
        result.completed = result.posted;
    }
    ended
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
