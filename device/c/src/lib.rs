//! `wv_dev_*`: the data path as device functions that CUDA C++ links. `include/wv_dev.h` declares them and says what each does.
//!
//! Knows: which operation of `warpverbs-device` each function is. Must not know: anything of how it is done.
//!
//! Every parameter is a number or a pointer, so that the layout of parameters is PTX's own. Modes that cost nothing when they are
//! types are found at run time here, once a call: sharing and scope from the `mode` parameter, doorbell and form of the CQ from
//! the handle. An exclusive queue's indices are read from the handle and written back by each call.
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(target_arch = "nvptx64", feature(stdarch_nvptx))]

mod dispatch;
pub mod poll;
pub mod post;
pub mod receive;

/// Never reached: the PTX build aborts in place of a panic.
#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: ends the grid with an error.
    unsafe { core::arch::nvptx::trap() }
}
