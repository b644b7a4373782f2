//! `wv_*_bw_*` and `wv_*_rate_*`: each thread posts its operations as fast as the queue takes them.
//!
//! One entry a doorbell; sharing and form of the CQ are in the block. The entries of writes and reads leave out what `wv_write_bw`
//! and `wv_read_bw` have. What is not usual, a warp's or a block's sharing and completions of errors alone, the doorbell `Db` has.
//!
//! Geometry: any one-dimensional grid. With a warp's sharing a block has at most 32 threads.

use core::marker::PhantomData;

use warpverbs_device::{
    BlueFlame, CqForm, Db, DbEarly, Doorbell, Error, Flags, InGpu, Inline, Length, Local, NoDbr,
    Proxy, Remote, Sharing, Sq, Ticket,
    abi::{self, RateParams, ThreadResult},
    group::Group,
    op::{Dump, Either, Fenced, FetchAdd, Read, Work, Write, WriteInline},
    thread,
};

use crate::{
    modes::{self, Job, OTHERS, USUAL},
    report,
};

/// What a thread posts.
trait Operation {
    /// The operation.
    type Work: Work;
    /// It fetches: where its completion does not make its data visible, each thread ends with a DUMP (rule O14).
    const FETCHES: bool;
    /// Threads that share a queue as a warp or a block do post together.
    const TOGETHER: bool;
    /// Bytes of local memory from one operation to the next, and of remote memory.
    fn steps(size: u64) -> (u64, u64);
    /// Operation `op`.
    fn work(at: Place, len: Length, op: u64, params: &RateParams) -> Result<Self::Work, Error>;
}

/// Where an operation is.
#[derive(Clone, Copy)]
struct Place {
    local: Local,
    remote: Remote,
}

struct Writes;
impl Operation for Writes {
    type Work = Write;
    const FETCHES: bool = false;
    const TOGETHER: bool = false;
    #[inline(always)]
    fn steps(size: u64) -> (u64, u64) {
        (size, size)
    }
    #[inline(always)]
    fn work(at: Place, len: Length, _: u64, _: &RateParams) -> Result<Write, Error> {
        Ok(Write::new(at.local, at.remote, len))
    }
}

struct Reads;
impl Operation for Reads {
    type Work = Read;
    const FETCHES: bool = true;
    const TOGETHER: bool = false;
    #[inline(always)]
    fn steps(size: u64) -> (u64, u64) {
        (size, size)
    }
    #[inline(always)]
    fn work(at: Place, len: Length, _: u64, _: &RateParams) -> Result<Read, Error> {
        Ok(Read::new(at.local, at.remote, len))
    }
}

struct Adds;
impl Operation for Adds {
    type Work = FetchAdd;
    const FETCHES: bool = true;
    const TOGETHER: bool = false;
    #[inline(always)]
    fn steps(_: u64) -> (u64, u64) {
        (8, 0)
    }
    #[inline(always)]
    fn work(at: Place, _: Length, _: u64, params: &RateParams) -> Result<FetchAdd, Error> {
        FetchAdd::new(at.local, at.remote, params.add)
    }
}

struct Posts;
impl Operation for Posts {
    type Work = WriteInline;
    const FETCHES: bool = false;
    const TOGETHER: bool = true;
    #[inline(always)]
    fn steps(size: u64) -> (u64, u64) {
        (0, size)
    }
    #[inline(always)]
    fn work(at: Place, len: Length, op: u64, _: &RateParams) -> Result<WriteInline, Error> {
        match Inline::new(abi::inline_words(thread::index(), op), len.bytes()) {
            Some(data) => Ok(WriteInline::new(at.remote, data)),
            None => Err(Error::InvalidArgument),
        }
    }
}

struct Rate<'a, O> {
    params: &'a RateParams,
    result: &'a mut ThreadResult,
    operation: PhantomData<O>,
}

impl<O: Operation> Job for Rate<'_, O> {
    const TOGETHER: bool = O::TOGETHER;

    #[inline(always)]
    unsafe fn run<S: Sharing, D: Doorbell, C: CqForm, G: Group>(
        &mut self,
        handle: u64,
        group: G,
    ) -> Result<(), Error> {
        let common = &self.params.common;
        // SAFETY: the caller's.
        let settles = O::FETCHES && unsafe { Flags::load(handle) }?.reads_need_dump();
        // SAFETY: the caller's.
        let mut sq = unsafe { Sq::<S, D, C>::open_by(group, handle) }?;
        sq.set_deadline(common.deadline_ns);
        let (len, byte) = (sq.length(common.size)?, sq.length(1)?);
        let (step, remote_step) = O::steps(u64::from(common.size));
        let span = u64::from(common.slots);
        let first = thread::index().wrapping_mul(span);
        let start = Place {
            local: Local {
                addr: common.local.wrapping_add(first.wrapping_mul(step)),
                lkey: common.lkey,
            },
            remote: Remote {
                addr: common.remote.wrapping_add(first.wrapping_mul(remote_step)),
                rkey: common.rkey,
            },
        };
        let (mut at, mut slot) = (start, 0);
        let mut last = Ticket::default();
        let mut ended = Ok(());
        let mut op = 0;
        let ops = common.iters + u64::from(settles);
        self.result.start_ns = thread::now_ns();
        while op < ops {
            let work = O::work(at, len, op, self.params)?;
            let posted = if O::FETCHES {
                let dump = Fenced::reads(Dump::new(start.local, byte));
                let work = if op < common.iters {
                    Either::Left(work)
                } else {
                    Either::Right(dump)
                };
                sq.post_by(group, work)
            } else {
                sq.post_by(group, work)
            };
            match posted {
                Ok(ticket) => last = ticket,
                Err(error) => {
                    ended = Err(error);
                    break;
                }
            }
            op += 1;
            slot += 1;
            at.local = at.local.offset(step);
            at.remote = at.remote.offset(remote_step);
            if slot == span {
                (at, slot) = (start, 0);
            }
        }
        self.result.posted = if op < common.iters { op } else { common.iters };
        if ended.is_ok() {
            ended = sq.wait_by(group, last);
        }
        report::note_end(self.result, &sq, last);
        if ended.is_ok() {
            // Of a group one member alone knows how far the queue has come.
            self.result.completed = self.result.posted;
        }
        ended
    }
}

/// # Safety
///
/// As the kernels'.
#[inline(always)]
unsafe fn kernel<O: Operation, D: Doorbell, const MODES: u8>(params: &RateParams) {
    let mut result = ThreadResult::default();
    let mut job = Rate::<O> {
        params,
        result: &mut result,
        operation: PhantomData,
    };
    // SAFETY: the caller's.
    let ended = match unsafe { modes::queue(&params.common, thread::count()) } {
        // SAFETY: the caller's; the handle is `queue`'s.
        Ok(handle) => unsafe {
            modes::run::<_, D, MODES>(&mut job, handle, params.common.sharing, params.form)
        },
        Err(error) => Err(error),
    };
    // SAFETY: the caller's: one result a thread.
    unsafe { report::write(params.common.results, thread::index(), ended, result) }
}

macro_rules! entries {
    ($([$operation:ty, $doc:literal] { $($name:ident $doorbell:ty, $modes:expr;)* })*) => {$($(
        entry! {
            #[doc = concat!($doc, " Doorbell: `", stringify!($doorbell), "`.")]
            ///
            /// # Safety
            ///
            /// The addresses in the block are live for the kernel, as `RateParams` describes them.
            fn $name(params: RateParams) {
                // SAFETY: the caller's.
                unsafe { kernel::<$operation, $doorbell, { $modes }>(&params) }
            }
        }
    )*)*};
}
entries! {
    [Writes, "RDMA writes."] {
        wv_write_bw_db Db, OTHERS;
        wv_write_bw_bf BlueFlame, USUAL;
        wv_write_bw_proxy Proxy, USUAL;
        wv_write_bw_nodbr NoDbr, USUAL;
        wv_write_bw_ingpu InGpu<Db>, USUAL;
    }
    [Reads, "RDMA reads."] {
        wv_read_bw_db Db, OTHERS;
        wv_read_bw_bf BlueFlame, USUAL;
        wv_read_bw_proxy Proxy, USUAL;
        wv_read_bw_nodbr NoDbr, USUAL;
        wv_read_bw_ingpu InGpu<Db>, USUAL;
    }
    [Adds, "Fetch-and-adds of 8 bytes, all on one counter."] {
        wv_atomic_rate_db Db, USUAL | OTHERS;
        wv_atomic_rate_early DbEarly, USUAL;
        wv_atomic_rate_bf BlueFlame, USUAL;
        wv_atomic_rate_proxy Proxy, USUAL;
        wv_atomic_rate_nodbr NoDbr, USUAL;
        wv_atomic_rate_ingpu InGpu<Db>, USUAL;
    }
    [Posts, "RDMA writes whose data is in the WQE. Threads that share a queue as a warp or a block post together."] {
        wv_post_rate_db Db, USUAL | OTHERS;
        wv_post_rate_early DbEarly, USUAL;
        wv_post_rate_bf BlueFlame, USUAL;
        wv_post_rate_proxy Proxy, USUAL;
        wv_post_rate_nodbr NoDbr, USUAL;
        wv_post_rate_ingpu InGpu<Db>, USUAL;
    }
}
