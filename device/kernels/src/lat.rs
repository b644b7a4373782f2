//! `wv_write_lat`, and `wv_write_lat_*` for the modes that it leaves out: two queues that answer each other.
//!
//! Geometry: two blocks of one thread, launched cooperatively, since each waits for the other. Further
//! threads do nothing.

use warpverbs_device::{
    BlueFlame, Collapsed, CqForm, Db, DbEarly, Doorbell, Error, Exclusive, Flags, InGpu, Local,
    NoDbr, OnError, Proxy, Remote, Ring, Sq, Ticket,
    abi::{self, LatParams, LatSide, ThreadResult},
    message::Sequence,
    thread,
};

use crate::report;

entry! {
    /// Ping-pong of RDMA writes.
    ///
    /// # Safety
    ///
    /// The addresses in the block are live for the kernel, as `LatParams` describes them.
    fn wv_write_lat(params: LatParams) {
        // SAFETY: the caller's.
        unsafe { kernel::<Usual>(&params) }
    }
}

macro_rules! entries {
    ($($name:ident $doorbell:ty, $usual:literal;)*) => {$(
        entry! {
            #[doc = concat!("As `wv_write_lat`. Doorbell: `", stringify!($doorbell), "`.")]
            ///
            /// # Safety
            ///
            /// The addresses in the block are live for the kernel, as `LatParams` describes them.
            fn $name(params: LatParams) {
                // SAFETY: the caller's.
                unsafe { kernel::<Other<$doorbell, $usual>>(&params) }
            }
        }
    )*};
}
entries! {
    wv_write_lat_db Db, false;
    wv_write_lat_bf BlueFlame, true;
    wv_write_lat_proxy Proxy, true;
    wv_write_lat_nodbr NoDbr, true;
    wv_write_lat_ingpu InGpu<Db>, true;
}

/// The modes of an entry.
trait Modes {
    /// Chooses them, once.
    ///
    /// # Safety
    ///
    /// As the kernel's.
    unsafe fn choose(
        params: &LatParams,
        side: LatSide,
        starts: bool,
        result: &mut ThreadResult,
    ) -> Result<(), Error>;
}

/// # Safety
///
/// As the kernel's.
#[inline(always)]
unsafe fn kernel<M: Modes>(params: &LatParams) {
    let block = thread::block();
    if block > 1 || thread::index_in_block() != 0 {
        return;
    }
    let mut result = ThreadResult::default();
    let side = if block == 0 {
        params.sides[0]
    } else {
        params.sides[1]
    };
    let ended = match check(params, side) {
        // SAFETY: the caller's.
        Ok(()) => unsafe { M::choose(params, side, block == 0, &mut result) },
        Err(error) => Err(error),
    };
    // SAFETY: the caller's: one result an end.
    unsafe { report::write(params.results, u64::from(block), ended, result) }
}

#[inline(always)]
fn check(params: &LatParams, side: LatSide) -> Result<(), Error> {
    if params.version != abi::VERSION {
        return Err(Error::BadVersion(params.version));
    }
    let size = u64::from(params.size);
    if size == 0 || (side.inbox.wrapping_add(size) | side.outbox.wrapping_add(size)) % 8 != 0 {
        return Err(Error::InvalidArgument);
    }
    Ok(())
}

/// Those of `wv_write_lat`.
struct Usual;

impl Modes for Usual {
    #[inline(always)]
    unsafe fn choose(
        params: &LatParams,
        side: LatSide,
        starts: bool,
        result: &mut ThreadResult,
    ) -> Result<(), Error> {
        // SAFETY: the caller's: an exported handle, used by this thread alone.
        unsafe {
            match (params.doorbell, Flags::load(side.handle)?.collapsed()) {
                (abi::DOORBELL_DB, true) => run::<Db, Collapsed>(params, side, starts, result),
                (abi::DOORBELL_DB, false) => run::<Db, Ring>(params, side, starts, result),
                (abi::DOORBELL_EARLY, true) => {
                    run::<DbEarly, Collapsed>(params, side, starts, result)
                }
                (abi::DOORBELL_EARLY, false) => run::<DbEarly, Ring>(params, side, starts, result),
                _ => Err(Error::InvalidArgument),
            }
        }
    }
}

/// Those of one doorbell: every WQE signalled, or, of one that `wv_write_lat` has, errors and one in 16.
struct Other<D, const USUAL: bool>(core::marker::PhantomData<D>);

impl<D: Doorbell, const USUAL: bool> Modes for Other<D, USUAL> {
    #[inline(always)]
    unsafe fn choose(
        params: &LatParams,
        side: LatSide,
        starts: bool,
        result: &mut ThreadResult,
    ) -> Result<(), Error> {
        // SAFETY: the caller's: an exported handle, used by this thread alone.
        unsafe {
            match (params.form, Flags::load(side.handle)?.collapsed()) {
                (abi::FORM_EVERY, true) if USUAL => {
                    run::<D, Collapsed>(params, side, starts, result)
                }
                (abi::FORM_EVERY, false) if USUAL => run::<D, Ring>(params, side, starts, result),
                (abi::FORM_ON_ERROR, false) if !USUAL => {
                    run::<D, OnError<16>>(params, side, starts, result)
                }
                _ => Err(Error::InvalidArgument),
            }
        }
    }
}

/// # Safety
///
/// As the kernel's.
#[inline(always)]
unsafe fn run<D: Doorbell, C: CqForm>(
    params: &LatParams,
    side: LatSide,
    starts: bool,
    result: &mut ThreadResult,
) -> Result<(), Error> {
    // SAFETY: the caller's.
    let mut sq = unsafe { Sq::<Exclusive, D, C>::open(side.handle) }?;
    sq.set_deadline(params.deadline_ns);
    sq.length(params.size)?;
    // SAFETY: the caller's: live buffers; size and alignment were checked.
    let (inbox, outbox) = unsafe {
        (
            Sequence::new(side.inbox, params.size),
            Sequence::new(side.outbox, params.size),
        )
    };
    let local = Local {
        addr: side.local,
        lkey: side.lkey,
    };
    let remote = Remote {
        addr: side.remote,
        rkey: side.rkey,
    };
    let mut last = Ticket::default();
    let mut ended = Ok(());
    result.start_ns = thread::now_ns();
    while ended.is_ok() && result.posted < params.iters {
        let sequence = result.posted + 1;
        if !starts {
            ended = inbox.wait(sequence, &sq);
            if ended.is_err() {
                break;
            }
        }
        outbox.store(sequence);
        match sq.post_write(local, remote, params.size) {
            Ok(ticket) => last = ticket,
            Err(error) => {
                ended = Err(error);
                break;
            }
        }
        result.posted += 1;
        // The outbox is the NIC's until then. An answer does not end that: an acknowledgement may be lost, and the message is
        // read again. And a message that failed gets no answer.
        ended = sq.wait(last);
        if starts && ended.is_ok() {
            ended = inbox.wait(sequence, &sq);
        }
    }
    report::note_end(result, &sq, last);
    ended
}
