//! The kernels that a CPU can run: the native build of those that the PTX embeds.
//!
//! Knows: their names and parameter blocks.
//! Must not know: threads.
//!
//! One of the files with `unsafe`: kernels are unsafe functions.

use warpverbs_kernels::{bw, lat};
use warpverbs_wire::abi::{BwParams, LatParams};

/// A kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Native {
    /// Its name in the PTX.
    pub(super) name: &'static str,
    /// Bytes of its parameter block.
    pub(super) params: usize,
    run: unsafe fn(&[u8]),
}

impl Native {
    /// Runs the calling thread's part.
    ///
    /// # Safety
    ///
    /// As for [`crate::driver::Gpu::launch`] with this parameter block.
    pub(super) unsafe fn run(&self, params: &[u8]) {
        // SAFETY: the caller's.
        unsafe { (self.run)(params) }
    }
}

/// All of them. Their order is their handle.
pub(super) const KERNELS: [Native; 3] = [
    Native {
        name: "wv_write_bw",
        params: BwParams::LEN,
        run: write_bw,
    },
    Native {
        name: "wv_read_bw",
        params: BwParams::LEN,
        run: read_bw,
    },
    Native {
        name: "wv_write_lat",
        params: LatParams::LEN,
        run: write_lat,
    },
];

/// # Safety
///
/// As [`Native::run`]'s.
unsafe fn write_bw(params: &[u8]) {
    if let Ok(params) = BwParams::from_bytes(params) {
        // SAFETY: the kernel demands that the addresses in the block are live: the caller's.
        unsafe { bw::wv_write_bw(params) }
    }
}

/// # Safety
///
/// As [`Native::run`]'s.
unsafe fn read_bw(params: &[u8]) {
    if let Ok(params) = BwParams::from_bytes(params) {
        // SAFETY: as in `write_bw`.
        unsafe { bw::wv_read_bw(params) }
    }
}

/// # Safety
///
/// As [`Native::run`]'s.
unsafe fn write_lat(params: &[u8]) {
    if let Ok(params) = LatParams::from_bytes(params) {
        // SAFETY: as in `write_bw`.
        unsafe { lat::wv_write_lat(params) }
    }
}
