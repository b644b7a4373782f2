//! `wv_write_bw` and `wv_read_bw`: each thread posts its operations as fast as the queue takes them.
//!
//! Geometry: any one-dimensional grid. Thread `t` of the grid uses QP `t % qps`; with exclusive sharing there
//! must be no more threads than QPs, else every thread reports `InvalidArgument` and posts nothing.

use warpverbs_device::{
    Collapsed, CqForm, Db, DbEarly, Doorbell, Error, Exclusive, Flags, Gpu, Local, Remote, Ring,
    Sharing, Sq, Ticket,
    abi::{self, BwParams, ThreadResult},
    thread,
};

use crate::report;

/// What a thread posts.
trait Operation {
    const READ: bool;
}
struct Write;
struct Read;
impl Operation for Write {
    const READ: bool = false;
}
impl Operation for Read {
    const READ: bool = true;
}

entry! {
    /// RDMA writes.
    ///
    /// # Safety
    ///
    /// The addresses in the block are live for the kernel, as `BwParams` describes them.
    fn wv_write_bw(params: BwParams) {
        // SAFETY: the caller's.
        unsafe { kernel::<Write>(&params) }
    }
}

entry! {
    /// RDMA reads. Where the completion of a read does not make its data visible, each thread ends with a DUMP.
    ///
    /// # Safety
    ///
    /// The addresses in the block are live for the kernel, as `BwParams` describes them.
    fn wv_read_bw(params: BwParams) {
        // SAFETY: the caller's.
        unsafe { kernel::<Read>(&params) }
    }
}

/// # Safety
///
/// As the kernels'.
#[inline(always)]
unsafe fn kernel<O: Operation>(params: &BwParams) {
    let mut result = ThreadResult::default();
    // SAFETY: the caller's.
    let ended = unsafe { choose::<O>(params, &mut result) };
    // SAFETY: the caller's: one result a thread.
    unsafe { report::write(params.results, thread::index(), ended, result) }
}

/// Chooses the modes, once.
///
/// # Safety
///
/// As the kernels'.
#[inline(always)]
unsafe fn choose<O: Operation>(params: &BwParams, result: &mut ThreadResult) -> Result<(), Error> {
    if params.version != abi::VERSION {
        return Err(Error::BadVersion(params.version));
    }
    let exclusive = params.sharing == abi::SHARING_EXCLUSIVE;
    if params.qps == 0
        || params.slots == 0
        || (exclusive && thread::count() > u64::from(params.qps))
    {
        return Err(Error::InvalidArgument);
    }
    let qp = thread::index() as u32 % params.qps;
    // SAFETY: the caller's: an array of `qps` addresses.
    let handle = unsafe { *(params.handles as *const u64).wrapping_add(qp as usize) };
    // SAFETY: the caller's: each names an exported handle.
    let collapsed = unsafe { Flags::load(handle) }?.collapsed();
    // SAFETY: the caller's; exclusive queues have one thread each, as just checked.
    unsafe {
        match (params.sharing, params.doorbell, collapsed) {
            (abi::SHARING_EXCLUSIVE, abi::DOORBELL_DB, true) => {
                run::<O, Exclusive, Db, Collapsed>(handle, params, result)
            }
            (abi::SHARING_EXCLUSIVE, abi::DOORBELL_DB, false) => {
                run::<O, Exclusive, Db, Ring>(handle, params, result)
            }
            (abi::SHARING_EXCLUSIVE, abi::DOORBELL_EARLY, true) => {
                run::<O, Exclusive, DbEarly, Collapsed>(handle, params, result)
            }
            (abi::SHARING_EXCLUSIVE, abi::DOORBELL_EARLY, false) => {
                run::<O, Exclusive, DbEarly, Ring>(handle, params, result)
            }
            (abi::SHARING_GPU, abi::DOORBELL_DB, true) => {
                run::<O, Gpu, Db, Collapsed>(handle, params, result)
            }
            (abi::SHARING_GPU, abi::DOORBELL_DB, false) => {
                run::<O, Gpu, Db, Ring>(handle, params, result)
            }
            (abi::SHARING_GPU, abi::DOORBELL_EARLY, true) => {
                run::<O, Gpu, DbEarly, Collapsed>(handle, params, result)
            }
            (abi::SHARING_GPU, abi::DOORBELL_EARLY, false) => {
                run::<O, Gpu, DbEarly, Ring>(handle, params, result)
            }
            _ => Err(Error::InvalidArgument),
        }
    }
}

/// # Safety
///
/// As the kernels'; `handle` is an exported handle that this thread may use in the mode `S`.
#[inline(always)]
unsafe fn run<O: Operation, S: Sharing, D: Doorbell, C: CqForm>(
    handle: u64,
    params: &BwParams,
    result: &mut ThreadResult,
) -> Result<(), Error> {
    // SAFETY: the caller's.
    let mut sq = unsafe { Sq::<S, D, C>::open(handle) }?;
    sq.set_deadline(params.deadline_ns);
    sq.length(params.size)?;
    let size = u64::from(params.size);
    let span = u64::from(params.slots).wrapping_mul(size);
    let first = thread::index().wrapping_mul(span);
    let (local, remote) = (
        params.local.wrapping_add(first),
        params.remote.wrapping_add(first),
    );
    let mut offset = 0;
    let mut last = Ticket::default();
    let mut posting = Ok(());
    result.start_ns = thread::now_ns();
    while result.posted < params.iters {
        let local = Local {
            addr: local.wrapping_add(offset),
            lkey: params.lkey,
        };
        let remote = Remote {
            addr: remote.wrapping_add(offset),
            rkey: params.rkey,
        };
        let posted = if O::READ {
            sq.post_read(local, remote, params.size)
        } else {
            sq.post_write(local, remote, params.size)
        };
        match posted {
            Ok(ticket) => last = ticket,
            Err(error) => {
                posting = Err(error);
                break;
            }
        }
        result.posted += 1;
        offset = if offset + size == span {
            0
        } else {
            offset + size
        };
    }
    let ended = posting.and_then(|()| sq.wait(last));
    let ended = match ended {
        Ok(()) if O::READ => sq.settle_reads(Local {
            addr: local,
            lkey: params.lkey,
        }),
        other => other,
    };
    report::note_end(result, &sq, last);
    ended
}
