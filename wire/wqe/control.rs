//! Control segment (`mlx5_wqe_ctrl_seg`): the first of every WQE.
//!
//! | bits | field |
//! |---|---|
//! | 0..8 | opmod: variant of the opcode |
//! | 8..24 | index of the WQE's first WQEBB |
//! | 24..32 | opcode |
//! | 32..56 | QP number |
//! | 56..64 | ds: segments, of which the device takes the low 6 bits |
//! | 64..72 | signature |
//! | 72..88 | stream channel of a DCI, else zero |
//! | 88..96 | fence mode, completion and event mode, solicited event |
//! | 96..128 | immediate data, key to invalidate |

use crate::layout::{open_enum, structure};
use crate::wqe::{Opcode, Segment, pair};

open_enum! {
    /// High three bits of `fm_ce_se`: what the WQE waits for (`MLX5_FENCE_MODE_*` of Linux's `mlx5/qp.h`, which has them
    /// shifted).
    pub enum FenceMode: u8 {
        /// Nothing.
        None = 0,
        /// Earlier local invalidations and registrations.
        InitiatorSmall = 1,
        /// Earlier READs and atomics.
        Fence = 2,
        /// All earlier WQEs.
        StrongOrdering = 3,
        /// Earlier READs and atomics, local invalidations and registrations.
        SmallAndFence = 4,
    }
}

open_enum! {
    /// Bits 2 and 3 of `fm_ce_se`: which completions have a CQE (DOCA GPUNetIO `DOCA_GPUNETIO_IB_MLX5_WQE_CTRL_CE_*`, DPDK mlx5
    /// `mlx5_completion_mode`).
    pub enum CompletionMode: u8 {
        /// Those with an error.
        OnError = 0,
        /// The first with an error.
        OnFirstError = 1,
        /// All.
        Always = 2,
        /// All, each with an event.
        AlwaysWithEvent = 3,
    }
}

/// `fm_ce_se`: the WQE's completion writes a CQE (`MLX5_WQE_CTRL_CQ_UPDATE`).
pub const SIGNALLED: u8 = 2 << 2;
/// `fm_ce_se`: the receiver's completion raises an event (`MLX5_WQE_CTRL_SOLICITED`).
pub const SOLICITED: u8 = 1 << 1;
/// `fm_ce_se`: wait for earlier reads and atomics (`MLX5_WQE_CTRL_FENCE`).
pub const FENCE: u8 = 4 << 5;
/// `fm_ce_se`: wait for earlier local invalidations and registrations (`MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE`).
pub const INITIATOR_SMALL_FENCE: u8 = 1 << 5;
/// Bits of `fm_ce_se` that mean nothing.
pub const RESERVED_FLAGS: u8 = (1 << 4) | 1;
/// Most segments of a WQE: what 6 bits hold (`MLX5_WQE_CTRL_DS_MASK` of Linux's `mlx5/qp.h`).
pub const MAX_DS: u8 = 0x3f;

structure! {
    /// A control segment.
    pub struct Control: Mlx5dv "mlx5_wqe_ctrl_seg", 128 bits {
        /// Variant of the opcode.
        opmod: u8 => 0, 8 cited "mlx5dv.h: mlx5dv_set_ctrl_seg(opmod)";
        /// Index of the WQE's first WQEBB, low 16 bits.
        index = "pi": u16 => 8, 16 cited "mlx5dv.h: mlx5dv_set_ctrl_seg(pi)";
        /// What the WQE asks for.
        opcode: Opcode => 24, 8 cited "mlx5dv.h: mlx5dv_set_ctrl_seg(opcode)";
        /// QP number.
        qpn = "qp_num": u32 => 32, 24 cited "mlx5dv.h: mlx5dv_set_ctrl_seg(qp_num)";
        /// Segments of the WQE.
        ds: u8 => 56, 8 cited "mlx5dv.h: mlx5dv_set_ctrl_seg(ds)";
        /// Signature; zero where the QP has none.
        signature: u8 => 64, 8;
        /// Stream channel of a DCI.
        dci_stream_channel_id: u16 => 72, 16;
        /// [`SIGNALLED`], [`SOLICITED`], [`FENCE`], [`INITIATOR_SMALL_FENCE`].
        flags = "fm_ce_se": u8 => 88, 8;
        /// Immediate data or key to invalidate.
        immediate = "imm": u32 => 96, 32;
    }
}

impl Control {
    /// True if the WQE's completion writes a CQE.
    pub const fn is_signalled(&self) -> bool {
        self.flags & SIGNALLED != 0
    }

    /// What the WQE waits for.
    pub const fn fence_mode(&self) -> FenceMode {
        FenceMode::from_code(self.flags >> 5)
    }

    /// Which completions have a CQE.
    pub const fn completion_mode(&self) -> CompletionMode {
        CompletionMode::from_code((self.flags >> 2) & 3)
    }
}

/// QP number and segment count as they lie in memory: bytes 4 to 7 of the segment. It is the same for all WQEs of one
/// shape, so a poster computes it once and keeps it in a register.
#[inline(always)]
pub const fn qpn_ds(qpn: u32, ds: u32) -> u32 {
    ((qpn << 8) | (ds & 0xff)).swap_bytes()
}

/// The segment's first word, which is also the doorbell's value: index, opcode, and [`qpn_ds`]. Only the low 16 bits of
/// `index` are used, so that no carry ever reaches opmod.
#[inline(always)]
pub const fn control_head(index: u64, opcode: Opcode, qpn_ds: u32) -> u64 {
    // Opcode and the rest stay the same across posts and are joined first, so that a post swaps two bytes and joins them.
    let same = ((opcode.code() as u64) << 24) | ((qpn_ds as u64) << 32);
    (((index as u16).swap_bytes() as u64) << 8) | same
}

/// The first word of a WQE whose opcode has variants, from [`control_head`]'s.
#[inline(always)]
pub const fn with_opmod(head: u64, opmod: u8) -> u64 {
    head | opmod as u64
}

/// A control segment from its first word, with signature and stream channel zero.
#[inline(always)]
pub const fn control(head: u64, flags: u8, immediate: u32) -> Segment {
    // Bytes 8 to 10 are zero, byte 11 is the flags: as a big-endian 32-bit field, just the flags.
    [head, pair(flags as u32, immediate)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wqe::segment_bytes;

    #[test]
    fn golden_bytes() {
        let head = control_head(0x1234, Opcode::RdmaWrite, qpn_ds(0xabcdef, 3));
        let bytes = segment_bytes(control(head, SIGNALLED, 0x0102_0304));
        assert_eq!(
            bytes,
            [
                0x00, 0x12, 0x34, 0x08, // opmod, index, opcode
                0xab, 0xcd, 0xef, 0x03, // QP number, ds
                0x00, 0x00, 0x00, 0x08, // signature, stream channel, flags
                0x01, 0x02, 0x03, 0x04, // immediate
            ]
        );
        let parsed = Control {
            opmod: 0,
            index: 0x1234,
            opcode: Opcode::RdmaWrite,
            qpn: 0xabcdef,
            ds: 3,
            signature: 0,
            dci_stream_channel_id: 0,
            flags: SIGNALLED,
            immediate: 0x0102_0304,
        };
        assert_eq!(Control::parse(&bytes), Ok(parsed));
        assert_eq!(parsed.emit(), bytes);
    }

    #[test]
    fn opmod_is_the_first_byte() {
        let head = with_opmod(
            control_head(0x1234, Opcode::AtomicMaskedFetchAdd, qpn_ds(7, 4)),
            9,
        );
        assert_eq!(
            segment_bytes(control(head, 0, 0))[..8],
            [9, 0x12, 0x34, 0x15, 0, 0, 7, 4]
        );
    }

    #[test]
    fn no_carry_of_the_index_reaches_opmod() {
        for index in [
            0xffff,
            0x1_0000,
            0x1_0001,
            0xffff_ffff,
            0x1_0000_0000,
            u64::MAX,
        ] {
            let bytes = segment_bytes(control(
                control_head(index, Opcode::Nop, qpn_ds(1, 1)),
                0,
                0,
            ));
            assert_eq!(bytes[0], 0, "{index:#x}");
            assert_eq!(bytes[1..3], (index as u16).to_be_bytes(), "{index:#x}");
            assert_eq!(bytes[3], 0, "{index:#x}");
        }
    }

    #[test]
    fn flags_have_fence_and_completion_mode() {
        let modes = |flags| {
            let control = Control {
                flags,
                ..Control::default()
            };
            (control.fence_mode(), control.completion_mode())
        };
        assert_eq!(
            modes(FENCE | SIGNALLED),
            (FenceMode::SmallAndFence, CompletionMode::Always)
        );
        assert_eq!(
            modes(INITIATOR_SMALL_FENCE | 3 << 2),
            (FenceMode::InitiatorSmall, CompletionMode::AlwaysWithEvent)
        );
        assert_eq!(
            modes(0x64),
            (FenceMode::StrongOrdering, CompletionMode::OnFirstError)
        );
        assert_eq!(
            modes(RESERVED_FLAGS | SOLICITED),
            (FenceMode::None, CompletionMode::OnError)
        );
    }

    #[test]
    fn every_field_has_its_own_bits() {
        let control = Control {
            opmod: 0x11,
            index: 0x2233,
            opcode: Opcode::from_code(0x44),
            qpn: 0x55_6677,
            ds: 0x88,
            signature: 0x99,
            dci_stream_channel_id: 0xaabb,
            flags: 0xcc,
            immediate: 0xddee_ff01,
        };
        assert_eq!(
            control.emit(),
            [
                0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee,
                0xff, 0x01
            ]
        );
    }
}
