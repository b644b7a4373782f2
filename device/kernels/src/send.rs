//! `wv_send_bw_*`: threads send as fast as queue and receiver take it; behind them one thread a QP receives, and posts each buffer
//! again.
//!
//! Geometry: a one-dimensional grid, launched cooperatively, since senders and receivers wait for each other: whole blocks that
//! send, then blocks with at least a thread for each QP.

use warpverbs_device::{
    BlueFlame, CqForm, Db, DbEarly, Doorbell, Error, Exclusive, InGpu, Local, NoDbr, Proxy,
    ReceivedKind, Rq, Sharing, Sq, Ticket,
    abi::{self, SendParams, ThreadResult},
    group::Group,
    op::{Send, SendImm},
    thread,
};

use crate::{
    modes::{self, Job, OTHERS, USUAL},
    report,
};

struct Sender<'a> {
    params: &'a SendParams,
    result: &'a mut ThreadResult,
}

impl Job for Sender<'_> {
    const TOGETHER: bool = false;

    #[inline(always)]
    unsafe fn run<S: Sharing, D: Doorbell, C: CqForm, G: Group>(
        &mut self,
        handle: u64,
        group: G,
    ) -> Result<(), Error> {
        let common = &self.params.common;
        // SAFETY: the caller's.
        let mut sq = unsafe { Sq::<S, D, C>::open_by(group, handle) }?;
        sq.set_deadline(common.deadline_ns);
        let len = sq.length(common.size)?;
        let size = u64::from(common.size);
        let first = (thread::index() as u32).wrapping_mul(common.slots);
        let start = Local {
            addr: common
                .local
                .wrapping_add(u64::from(first).wrapping_mul(size)),
            lkey: common.lkey,
        };
        let (mut local, mut slot) = (start, 0);
        let mut last = Ticket::default();
        let mut ended = Ok(());
        self.result.start_ns = thread::now_ns();
        while self.result.posted < common.iters {
            let send = SendImm::new(Send::new(local, len), first.wrapping_add(slot));
            match sq.post_by(group, send) {
                Ok(ticket) => last = ticket,
                Err(error) => {
                    ended = Err(error);
                    break;
                }
            }
            self.result.posted += 1;
            slot += 1;
            local = local.offset(size);
            if slot == common.slots {
                (local, slot) = (start, 0);
            }
        }
        if ended.is_ok() {
            ended = sq.wait_by(group, last);
        }
        report::note_end(self.result, &sq, last);
        ended
    }
}

/// Messages that arrive at the peer of QP `qp`.
#[inline(always)]
fn expected(params: &SendParams, qp: u64) -> u64 {
    let (qps, senders) = (u64::from(params.common.qps), u64::from(params.senders));
    let block = u64::from(thread::block_threads());
    let threads = match params.common.sharing {
        abi::SHARING_WARP | abi::SHARING_CTA => {
            if (qp + 1) * block <= senders {
                block
            } else {
                0
            }
        }
        // Never by zero: there is a QP.
        _ => {
            let every = senders.checked_div(qps).unwrap_or(0);
            every + u64::from(qp < senders - every * qps)
        }
    };
    threads.wrapping_mul(params.common.iters)
}

/// Receives all that is sent to the peer of QP `qp`.
///
/// # Safety
///
/// As the kernels': the thread is the only one that uses that queue.
#[inline(always)]
unsafe fn receive(params: &SendParams, qp: u64, result: &mut ThreadResult) -> Result<(), Error> {
    let common = &params.common;
    // SAFETY: the caller's: an array of `qps` addresses of exported handles.
    let mut rq = unsafe {
        let handle = *(params.receives as *const u64).wrapping_add(qp as usize);
        Rq::<Exclusive>::open(handle)
    }?;
    rq.set_deadline(common.deadline_ns);
    let buffers = u64::from(params.buffers);
    if buffers == 0 || buffers > rq.depth() {
        return Err(Error::InvalidArgument);
    }
    let own = qp.wrapping_mul(buffers);
    let expected = expected(params, qp);
    let size = u64::from(common.size);
    let mut next = 0;
    // Index of the first receive, which has the first buffer: the queue may have been used before.
    let mut first = 0;
    result.start_ns = thread::now_ns();
    while result.completed < expected {
        let free = buffers - (result.posted - result.completed);
        let left = expected - result.posted;
        let now = if free < left { free } else { left };
        if now != 0 {
            let mut at = next;
            let posted = rq.post_many(now as u32, |_| {
                let addr = params.into.wrapping_add((own + at).wrapping_mul(size));
                at = if at + 1 == buffers { 0 } else { at + 1 };
                let local = Local {
                    addr,
                    lkey: params.into_lkey,
                };
                (local, common.size)
            })?;
            if result.posted == 0 {
                first = posted;
            }
            next = at;
            result.posted += now;
        }
        let received = rq.receive()?;
        let len = match received.kind {
            ReceivedKind::SendImmediate => received.len,
            // None that a sender here sends: of no length that one has.
            _ => u32::MAX,
        };
        let word = u64::from(len) << 32 | u64::from(received.immediate);
        let number = received.index.wrapping_sub(first);
        let at = own + number.checked_rem(buffers).unwrap_or(0);
        // SAFETY: the caller's: `qps * buffers` words, of which this thread alone writes its own.
        unsafe {
            (params.landed as *mut u64)
                .wrapping_add(at as usize)
                .write(word)
        }
        result.completed += 1;
    }
    result.end_ns = thread::now_ns();
    Ok(())
}

/// # Safety
///
/// As the kernels'.
#[inline(always)]
unsafe fn kernel<D: Doorbell, const MODES: u8>(params: &SendParams) {
    let (index, senders) = (thread::index(), u64::from(params.senders));
    let mut result = ThreadResult::default();
    let ended = if index < senders {
        // SAFETY: the caller's.
        match unsafe { modes::queue(&params.common, senders) } {
            Ok(handle) => {
                let mut job = Sender {
                    params,
                    result: &mut result,
                };
                // SAFETY: the caller's; the handle is `queue`'s.
                unsafe {
                    modes::run::<_, D, MODES>(&mut job, handle, params.common.sharing, params.form)
                }
            }
            Err(error) => Err(error),
        }
    } else if index - senders < u64::from(params.common.qps) {
        if params.common.version != abi::VERSION {
            Err(Error::BadVersion(params.common.version))
        } else {
            // SAFETY: the caller's: one thread a QP.
            unsafe { receive(params, index - senders, &mut result) }
        }
    } else {
        Ok(())
    };
    // SAFETY: the caller's: one result a thread.
    unsafe { report::write(params.common.results, index, ended, result) }
}

macro_rules! entries {
    ($($name:ident $doorbell:ty, $modes:expr;)*) => {$(
        entry! {
            #[doc = concat!("Sends with immediate data, and their receives. Doorbell: `", stringify!($doorbell), "`.")]
            ///
            /// # Safety
            ///
            /// The addresses in the block are live for the kernel, as `SendParams` describes them; the receive queues are used by
            /// nobody else.
            fn $name(params: SendParams) {
                // SAFETY: the caller's.
                unsafe { kernel::<$doorbell, { $modes }>(&params) }
            }
        }
    )*};
}
entries! {
    wv_send_bw_db Db, USUAL | OTHERS;
    wv_send_bw_early DbEarly, USUAL;
    wv_send_bw_bf BlueFlame, USUAL;
    wv_send_bw_proxy Proxy, USUAL;
    wv_send_bw_nodbr NoDbr, USUAL;
    wv_send_bw_ingpu InGpu<Db>, USUAL;
}
