//! Wait segment: holds the send queue back until a completion queue has got so far (core-direct).
//!
//! | bits | field |
//! |---|---|
//! | 0..64 | reserved, zero |
//! | 64..96 | index of the CQE that must have been produced |
//! | 96..128 | completion queue |
//!
//! Opcode 0x0f with opmod 0 waits for a CQ's producer; its other opmods wait for data and for time (DPDK mlx5 `mlx5_prm.h`:
//! `MLX5_OPCODE_WAIT`, `MLX5_OPC_MOD_WAIT_*`, and `mlx5_wqe_qseg`, whose fields are these). That the index is the CQE's, so that
//! the queue goes on once the producer is past it, is what DOCA GPUNetIO relies on (`doca_gpu_dev_verbs_put_counter` waits for the
//! index of the last WQE, each of which has one CQE). A CQ that served a QP before its reset has produced CQEs already: they count.

use crate::layout::structure;
use crate::wqe::{Segment, pair};

structure! {
    /// A wait segment.
    pub struct Wait: Doca "doca_gpunetio_ib_mlx5_wqe_wait_seg", 128 bits {
        /// Index of the CQE that must have been produced, counted since the CQ was created.
        index = "max_index": u32 => 64, 32;
        /// The completion queue.
        cqn = "qpn_cqn": u32 => 96, 32;
    }
}

/// A wait segment.
#[inline(always)]
pub const fn wait(index: u32, cqn: u32) -> Segment {
    [0, pair(index, cqn)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wqe::segment_bytes;

    #[test]
    fn golden_bytes() {
        let bytes = segment_bytes(wait(0x0102_0304, 0x11_1213));
        assert_eq!(
            bytes,
            [0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 0, 0x11, 0x12, 0x13]
        );
        let parsed = Wait {
            index: 0x0102_0304,
            cqn: 0x11_1213,
        };
        assert_eq!(Wait::parse(&bytes), Ok(parsed));
        assert_eq!(parsed.emit(), bytes);
    }
}
