//! Functions of receive queues, by threads that share one.
//!
//! Knows: their parameters. Must not know: how a receive is posted or taken.

use warpverbs_device::{Error, Gpu, Local, ReceivedKind, Rq, abi::Outcome};

/// What arrived, as the header has it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Received {
    index: u64,
    kind: u32,
    len: u32,
    immediate: u32,
    qpn: u32,
    user_index: u32,
    unused: u32,
}

fn code(done: Result<Outcome, Error>) -> u32 {
    done.unwrap_or_else(Error::outcome).code()
}

/// Posts a receive.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wv_dev_post_receive(
    rq: u64,
    local: u64,
    lkey: u32,
    len: u32,
    index: *mut u64,
) -> u32 {
    let post = || {
        // SAFETY: the caller's.
        let mut rq = unsafe { Rq::<Gpu>::open(rq) }?;
        let posted = rq.post(Local { addr: local, lkey }, len)?;
        if !index.is_null() {
            // SAFETY: the caller's: a place for the index, or null.
            unsafe { index.write(posted) }
        }
        Ok(Outcome::Done)
    };
    code(post())
}

/// Takes what has arrived.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wv_dev_try_receive(rq: u64, received: *mut Received) -> u32 {
    let take = || {
        // SAFETY: the caller's.
        let mut rq = unsafe { Rq::<Gpu>::open(rq) }?;
        let Some(found) = rq.try_receive()? else {
            return Ok(Outcome::Pending);
        };
        let kind = match found.kind {
            ReceivedKind::WriteImmediate => 1,
            ReceivedKind::Send => 2,
            ReceivedKind::SendImmediate => 3,
            ReceivedKind::SendInvalidate => 4,
        };
        if !received.is_null() {
            let found = Received {
                index: found.index,
                kind,
                len: found.len,
                immediate: found.immediate,
                qpn: found.qpn,
                user_index: found.user_index,
                unused: 0,
            };
            // SAFETY: the caller's: a place for it, or null.
            unsafe { received.write(found) }
        }
        Ok(Outcome::Done)
    };
    code(take())
}
