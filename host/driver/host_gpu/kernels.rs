//! The kernels that a CPU can run: the native build of those that the PTX embeds.
//!
//! Knows: their names and parameter blocks.
//! Must not know: threads.
//!
//! One of the files with `unsafe`: kernels are unsafe functions.

use warpverbs_kernels::{bw, data, lat, rate, send, task};
use warpverbs_wire::abi::{BwParams, DataParams, LatParams, RateParams, SendParams, TaskParams};

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

macro_rules! kernels {
    ($($module:ident($params:ident): $($name:ident)*;)*) => {
        /// All of them. Their order is their handle.
        pub(super) const KERNELS: &[Native] = &[$($(
            Native {
                name: stringify!($name),
                params: $params::LEN,
                run: |params| {
                    if let Ok(params) = $params::from_bytes(params) {
                        // SAFETY: the kernel demands that the addresses in the block are live: the caller's, as `Native::run`'s.
                        unsafe { $module::$name(params) }
                    }
                },
            },
        )*)*];
    };
}
kernels! {
    bw(BwParams): wv_write_bw wv_read_bw;
    lat(LatParams): wv_write_lat wv_write_lat_db wv_write_lat_bf wv_write_lat_proxy wv_write_lat_nodbr
        wv_write_lat_ingpu;
    rate(RateParams): wv_write_bw_db wv_write_bw_bf wv_write_bw_proxy wv_write_bw_nodbr wv_write_bw_ingpu
        wv_read_bw_db wv_read_bw_bf wv_read_bw_proxy wv_read_bw_nodbr wv_read_bw_ingpu
        wv_atomic_rate_db wv_atomic_rate_early wv_atomic_rate_bf wv_atomic_rate_proxy wv_atomic_rate_nodbr wv_atomic_rate_ingpu
        wv_post_rate_db wv_post_rate_early wv_post_rate_bf wv_post_rate_proxy wv_post_rate_nodbr wv_post_rate_ingpu;
    send(SendParams): wv_send_bw_db wv_send_bw_early wv_send_bw_bf wv_send_bw_proxy wv_send_bw_nodbr wv_send_bw_ingpu;
    task(TaskParams): wv_put_signal wv_wait_signal wv_put_list wv_progress wv_drain;
    data(DataParams): wv_fill wv_verify;
}
