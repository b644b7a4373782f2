//! `wv_put_signal`, `wv_wait_signal`, `wv_put_list`, `wv_progress`, `wv_drain`: single calls of the data path as kernels.
//!
//! Geometry: any one-dimensional grid; which queue a thread uses, `modes::queue` says. Modes: exclusive or the GPU's sharing, the
//! doorbell `Db`, every WQE signalled.

use core::marker::PhantomData;

use warpverbs_device::{
    CqForm, Db, Doorbell, Error, Local, Remote, Sharing, Signal, Sq, Ticket,
    abi::{Descriptor, TaskParams, ThreadResult},
    group::{Group, Thread},
    op::Direction,
    thread,
};

use crate::{
    modes::{self, Job, USUAL},
    report,
};

/// What a thread does.
trait Call {
    /// Does it; the ticket is what is waited for.
    ///
    /// # Safety
    ///
    /// As the kernels'.
    unsafe fn call<S: Sharing, D: Doorbell, C: CqForm>(
        sq: &mut Sq<S, D, C>,
        params: &TaskParams,
        result: &mut ThreadResult,
    ) -> Result<Ticket, Error>;
}

struct PutSignal;
impl Call for PutSignal {
    #[inline(always)]
    unsafe fn call<S: Sharing, D: Doorbell, C: CqForm>(
        sq: &mut Sq<S, D, C>,
        params: &TaskParams,
        result: &mut ThreadResult,
    ) -> Result<Ticket, Error> {
        let common = &params.common;
        let size = u64::from(common.size);
        let span = u64::from(common.slots).wrapping_mul(size);
        let first = thread::index().wrapping_mul(span);
        let signal = Signal {
            remote: Remote {
                addr: params.address,
                rkey: params.rkey,
            },
            add: params.add,
            fetched: Local {
                addr: params.fetched.wrapping_add(thread::index().wrapping_mul(8)),
                lkey: params.lkey,
            },
        };
        let local = Local {
            addr: common.local.wrapping_add(first),
            lkey: common.lkey,
        };
        let remote = Remote {
            addr: common.remote.wrapping_add(first),
            rkey: common.rkey,
        };
        let (mut last, mut offset) = (Ticket::default(), 0);
        while result.posted < common.iters {
            last = sq.put_signal(local.offset(offset), remote.offset(offset), size, signal)?;
            result.posted += 1;
            offset += size;
            if offset == span {
                offset = 0;
            }
        }
        Ok(last)
    }
}

struct WaitSignal;
impl Call for WaitSignal {
    #[inline(always)]
    unsafe fn call<S: Sharing, D: Doorbell, C: CqForm>(
        sq: &mut Sq<S, D, C>,
        params: &TaskParams,
        _: &mut ThreadResult,
    ) -> Result<Ticket, Error> {
        // SAFETY: the caller's: a live word.
        unsafe { sq.wait_signal(params.address, params.count) }?;
        Ok(Ticket::default())
    }
}

struct PutList;
impl Call for PutList {
    #[inline(always)]
    unsafe fn call<S: Sharing, D: Doorbell, C: CqForm>(
        sq: &mut Sq<S, D, C>,
        params: &TaskParams,
        result: &mut ThreadResult,
    ) -> Result<Ticket, Error> {
        let direction = match params.direction {
            0 => Direction::Put,
            1 => Direction::Get,
            _ => return Err(Error::InvalidArgument),
        };
        if !params.address.is_multiple_of(8) {
            return Err(Error::InvalidArgument);
        }
        // Each thread has its share, one behind the other; the first ones have what is left over.
        let (index, threads) = (thread::index(), thread::count());
        let each = params.count.checked_div(threads).unwrap_or(0);
        let more = params.count - each * threads;
        let (first, count) = if index < more {
            (index * (each + 1), each + 1)
        } else {
            (index * each + more, each)
        };
        let own = (params.address as *const Descriptor).wrapping_add(first as usize);
        let mut last = Ticket::default();
        let mut read = Local { addr: 0, lkey: 0 };
        while result.posted < count {
            // SAFETY: the caller's: `count` descriptors in all, aligned as just checked, which nobody writes.
            let piece = unsafe { *own.wrapping_add(result.posted as usize) };
            let local = Local {
                addr: piece.local,
                lkey: piece.lkey,
            };
            let remote = Remote {
                addr: piece.remote,
                rkey: piece.rkey,
            };
            let messages = sq.chunks(local, remote, piece.len, direction);
            let ticket = sq.stream_by(Thread, messages)?;
            // Of no bytes there is nothing to wait for.
            if ticket > last {
                last = ticket;
                read = local;
            }
            result.posted += 1;
        }
        if direction == Direction::Get && last != Ticket::default() {
            sq.wait(last)?;
            sq.settle_reads(read)?;
        }
        Ok(last)
    }
}

struct MakeProgress;
impl Call for MakeProgress {
    #[inline(always)]
    unsafe fn call<S: Sharing, D: Doorbell, C: CqForm>(
        sq: &mut Sq<S, D, C>,
        params: &TaskParams,
        _: &mut ThreadResult,
    ) -> Result<Ticket, Error> {
        sq.poll_many(params.count as u32)?;
        Ok(Ticket::default())
    }
}

struct Drain;
impl Call for Drain {
    #[inline(always)]
    unsafe fn call<S: Sharing, D: Doorbell, C: CqForm>(
        sq: &mut Sq<S, D, C>,
        _: &TaskParams,
        _: &mut ThreadResult,
    ) -> Result<Ticket, Error> {
        sq.flush()?;
        Ok(Ticket::default())
    }
}

struct Task<'a, A> {
    params: &'a TaskParams,
    result: &'a mut ThreadResult,
    call: PhantomData<A>,
}

impl<A: Call> Job for Task<'_, A> {
    const TOGETHER: bool = false;

    #[inline(always)]
    unsafe fn run<S: Sharing, D: Doorbell, C: CqForm, G: Group>(
        &mut self,
        handle: u64,
        _: G,
    ) -> Result<(), Error> {
        // SAFETY: the caller's.
        let mut sq = unsafe { Sq::<S, D, C>::open(handle) }?;
        sq.set_deadline(self.params.common.deadline_ns);
        self.result.start_ns = thread::now_ns();
        // SAFETY: the caller's.
        let ended = match unsafe { A::call(&mut sq, self.params, self.result) } {
            Ok(ticket) => sq.wait(ticket),
            Err(error) => Err(error),
        };
        self.result.end_ns = thread::now_ns();
        self.result.state = sq.state().0;
        if ended.is_ok() {
            self.result.completed = self.result.posted;
        }
        ended
    }
}

/// # Safety
///
/// As the kernels'.
#[inline(always)]
unsafe fn kernel<A: Call>(params: &TaskParams) {
    let mut result = ThreadResult::default();
    let mut task = Task::<A> {
        params,
        result: &mut result,
        call: PhantomData,
    };
    // SAFETY: the caller's.
    let ended = match unsafe { modes::queue(&params.common, thread::count()) } {
        // SAFETY: the caller's; the handle is `queue`'s.
        Ok(handle) => unsafe {
            modes::run::<_, Db, USUAL>(&mut task, handle, params.common.sharing, 0)
        },
        Err(error) => Err(error),
    };
    // SAFETY: the caller's: one result a thread.
    unsafe { report::write(params.common.results, thread::index(), ended, result) }
}

macro_rules! entries {
    ($($doc:literal $name:ident $call:ty;)*) => {$(
        entry! {
            #[doc = $doc]
            ///
            /// # Safety
            ///
            /// The addresses in the block are live for the kernel, as `TaskParams` describes them.
            fn $name(params: TaskParams) {
                // SAFETY: the caller's.
                unsafe { kernel::<$call>(&params) }
            }
        }
    )*};
}
entries! {
    "Notification send: each thread writes `iters` times, each write followed by a signal." wv_put_signal PutSignal;
    "Notification receive: each thread waits until the word at `address` is at least `count`." wv_wait_signal WaitSignal;
    "Descriptor list: the threads share `count` descriptors, and wait for what they say." wv_put_list PutList;
    "Progress: each thread takes up to `count` completions of its queue, if they are there." wv_progress MakeProgress;
    "Drain: each thread waits until all that was posted to its queue has completed." wv_drain Drain;
}
