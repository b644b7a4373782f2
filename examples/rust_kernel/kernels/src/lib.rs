//! A kernel of one's own: each thread has a QP and sends squares over it, each in a work request of its own.
#![no_std]
#![feature(abi_ptx)]

use warpverbs_device::{
    Collapsed, Db, Error, Exclusive, Inline, Remote, Sq, Ticket, abi::Outcome, thread,
};

/// Thread `t` writes the squares of `t * count ..` to its part of the remote array of `u64`s, over the QP of handle
/// `handles[t]`, and its outcome to `outcomes[t]`.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn send_squares(
    handles: *const u64,
    remote: u64,
    rkey: u32,
    count: u32,
    outcomes: *mut u32,
) {
    let t = thread::index();
    let send = || -> Result<(), Error> {
        let mut sq = unsafe { Sq::<Exclusive, Db, Collapsed>::open(*handles.add(t as usize)) }?;
        let mut last = Ticket::default();
        for i in t * u64::from(count)..(t + 1) * u64::from(count) {
            let at = Remote {
                addr: remote + 8 * i,
                rkey,
            };
            last = sq.post_write_inline(at, Inline::from_u64(i * i))?;
        }
        sq.wait(last)
    };
    let outcome = send().map_or_else(Error::outcome, |()| Outcome::Done);
    unsafe { *outcomes.add(t as usize) = outcome.code() }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
