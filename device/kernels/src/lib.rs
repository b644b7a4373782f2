//! PTX entry points over `warpverbs-device`: loops, no logic. On any other target the same functions with Rust's ABI, each
//! of which is one thread of its kernel ([`warpverbs_device::thread::Place`] says which).
//!
//! Every kernel takes its parameter block (`wire::abi`) by value, and every thread writes its own
//! `ThreadResult`, whatever happens.
#![no_std]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, stdarch_nvptx))]

/// Declares an unsafe public function that is a kernel where the target has them.
macro_rules! entry {
    ($(#[$attribute:meta])* fn $name:ident($params:ident: $block:ty) $body:block) => {
        $(#[$attribute])*
        #[cfg(target_arch = "nvptx64")]
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name($params: $block) $body

        $(#[$attribute])*
        #[cfg(not(target_arch = "nvptx64"))]
        pub unsafe fn $name($params: $block) $body
    };
}

pub mod bw;
pub mod data;
pub mod lat;
mod modes;
pub mod rate;
mod report;
pub mod send;
pub mod task;

/// Never reached: the PTX build aborts in place of a panic, and the check of its result refuses whatever could.
#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: ends the grid with an error.
    unsafe { core::arch::nvptx::trap() }
}
