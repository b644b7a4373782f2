//! Which thread this is, and what time it is.

use crate::arch;

#[cfg(not(target_arch = "nvptx64"))]
pub use crate::arch::{Place, Team};

/// This thread's index in a one-dimensional grid.
#[inline(always)]
pub fn index() -> u64 {
    u64::from(arch::block()) * u64::from(arch::block_threads()) + u64::from(arch::thread_in_block())
}

/// Threads of a one-dimensional grid.
#[inline(always)]
pub fn count() -> u64 {
    u64::from(arch::blocks()) * u64::from(arch::block_threads())
}

/// This thread's index in its block.
#[inline(always)]
pub fn index_in_block() -> u32 {
    arch::thread_in_block()
}

/// Threads of a block.
#[inline(always)]
pub fn block_threads() -> u32 {
    arch::block_threads()
}

/// This thread's block in the grid.
#[inline(always)]
pub fn block() -> u32 {
    arch::block()
}

/// A clock in ns, the same for all threads. It may tick in microseconds.
#[inline(always)]
pub fn now_ns() -> u64 {
    arch::now_ns()
}

/// This thread's lane in its warp.
#[inline(always)]
pub fn lane() -> u32 {
    arch::lane()
}

/// This thread's warp in a one-dimensional grid, whose blocks are whole warps.
#[inline(always)]
pub fn warp() -> u64 {
    index() / 32
}
