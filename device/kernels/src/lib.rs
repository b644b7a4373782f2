//! PTX entry points over `warpverbs-device`: loops, no logic. Empty on any other target.
//!
//! Every kernel takes its parameter block (`wire::abi`) by value, and every thread writes its own
//! `ThreadResult`, whatever happens.
#![no_std]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, stdarch_nvptx))]

#[cfg(target_arch = "nvptx64")]
pub mod bw;
#[cfg(target_arch = "nvptx64")]
pub mod lat;
#[cfg(target_arch = "nvptx64")]
mod report;

/// Never reached: the PTX build aborts in place of a panic, and the check of its result refuses whatever could.
#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: ends the grid with an error.
    unsafe { core::arch::nvptx::trap() }
}
