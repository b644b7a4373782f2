//! Operand segments of atomics, which lie between remote address and local buffer. All operands are big-endian.
//!
//! | operation | opmod | bytes | operands |
//! |---|---|---|---|
//! | compare and swap, fetch and add | 0 | 16 | swap or add (8), compare (8) |
//! | masked compare and swap of 4 | 8 | 16 | swap, compare, swap mask, compare mask (4 each) |
//! | masked compare and swap of 8 | 9 | 32 | swap, compare, swap mask, compare mask (8 each) |
//! | masked fetch and add of 4 | 8 | 16 | add (4), field boundary (4), reserved (8) |
//! | masked fetch and add of 8 | 9 | 16 | add (8), field boundary (8) |
//!
//! The 32 bytes of a masked compare and swap of 8 push the local buffer into a second WQEBB. The operand size is in opmod as
//! `8 | (log2(bytes) - 2)` (`UCT_IB_MLX5_OPMOD_EXT_ATOMIC` of UCX, `DOCA_GPUNETIO_4_BYTE_ATOMIC_EXT_OPMOD` of DOCA GPUNetIO).

use crate::layout::structure;
use crate::wqe::{Opcode, SEGMENT, Segment, pair};

/// Opmod of masked atomics with operands of 4 bytes.
pub const MASKED_4: u8 = 8;
/// Opmod of masked atomics with operands of 8 bytes.
pub const MASKED_8: u8 = 9;

structure! {
    /// Operands of compare and swap, and of fetch and add.
    pub struct AtomicOperands: Mlx5dv "mlx5_wqe_atomic_seg", 128 bits {
        /// Value to swap in, or to add.
        swap_or_add = "swap_add": u64 => 0, 64;
        /// Value to compare with; not used by fetch and add.
        compare: u64 => 64, 64;
    }
}

structure! {
    /// Operands of a masked compare and swap of 4 bytes.
    pub struct MaskedCompareSwap4: Doca "doca_gpu_dev_verbs_atomic_32_masked_cs_seg_t", 128 bits {
        /// Value to swap in.
        swap = "swap_data": u32 => 0, 32;
        /// Value to compare with.
        compare = "compare_data": u32 => 32, 32;
        /// Bits that are swapped.
        swap_mask: u32 => 64, 32;
        /// Bits that are compared.
        compare_mask: u32 => 96, 32;
    }
}

structure! {
    /// Operands of a masked compare and swap of 8 bytes.
    pub struct MaskedCompareSwap8: Mlx5dv "mlx5_wqe_masked_atomic_seg", 256 bits {
        /// Value to swap in.
        swap = "swap_add": u64 => 0, 64 cited "Linux mlx5/qp.h: mlx5_wqe_masked_atomic_seg";
        /// Value to compare with.
        compare: u64 => 64, 64 cited "Linux mlx5/qp.h: mlx5_wqe_masked_atomic_seg";
        /// Bits that are swapped.
        swap_mask = "swap_add_mask": u64 => 128, 64 cited "Linux mlx5/qp.h: mlx5_wqe_masked_atomic_seg";
        /// Bits that are compared.
        compare_mask: u64 => 192, 64 cited "Linux mlx5/qp.h: mlx5_wqe_masked_atomic_seg";
    }
}

structure! {
    /// Operands of a masked fetch and add of 4 bytes.
    pub struct MaskedFetchAdd4: Doca "doca_gpu_dev_verbs_atomic_32_masked_fa_seg_t", 128 bits {
        /// Value to add.
        add = "add_data": u32 => 0, 32;
        /// The highest bit of each field: no carry leaves it.
        boundary = "field_boundary": u32 => 32, 32;
    }
}

structure! {
    /// Operands of a masked fetch and add of 8 bytes.
    pub struct MaskedFetchAdd8: Doca "doca_gpu_dev_verbs_atomic_64_masked_fa_seg_t", 128 bits {
        /// Value to add.
        add = "add_data": u64 => 0, 64;
        /// The highest bit of each field: no carry leaves it.
        boundary = "field_boundary": u64 => 64, 64;
    }
}

/// The operands of compare and swap.
#[inline(always)]
pub const fn compare_swap(swap: u64, compare: u64) -> Segment {
    [swap.swap_bytes(), compare.swap_bytes()]
}

/// The operands of fetch and add.
#[inline(always)]
pub const fn fetch_add(add: u64) -> Segment {
    [add.swap_bytes(), 0]
}

/// The operands of a masked compare and swap of 4 bytes; opmod is [`MASKED_4`].
#[inline(always)]
pub const fn masked_compare_swap_4(
    swap: u32,
    compare: u32,
    swap_mask: u32,
    compare_mask: u32,
) -> Segment {
    [pair(swap, compare), pair(swap_mask, compare_mask)]
}

/// The operands of a masked compare and swap of 8 bytes, two segments; opmod is [`MASKED_8`].
#[inline(always)]
pub const fn masked_compare_swap_8(
    swap: u64,
    compare: u64,
    swap_mask: u64,
    compare_mask: u64,
) -> [Segment; 2] {
    [
        [swap.swap_bytes(), compare.swap_bytes()],
        [swap_mask.swap_bytes(), compare_mask.swap_bytes()],
    ]
}

/// The operands of a masked fetch and add of 4 bytes; opmod is [`MASKED_4`].
#[inline(always)]
pub const fn masked_fetch_add_4(add: u32, boundary: u32) -> Segment {
    [pair(add, boundary), 0]
}

/// The operands of a masked fetch and add of 8 bytes; opmod is [`MASKED_8`].
#[inline(always)]
pub const fn masked_fetch_add_8(add: u64, boundary: u64) -> Segment {
    [add.swap_bytes(), boundary.swap_bytes()]
}

/// What an atomic WQE does to the value that it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// Compare and swap, fetch and add of 8 bytes: which of them is the opcode's.
    Plain(AtomicOperands),
    /// Masked compare and swap of 4 bytes.
    CompareSwap4(MaskedCompareSwap4),
    /// Masked compare and swap of 8 bytes.
    CompareSwap8(MaskedCompareSwap8),
    /// Masked fetch and add of 4 bytes.
    FetchAdd4(MaskedFetchAdd4),
    /// Masked fetch and add of 8 bytes.
    FetchAdd8(MaskedFetchAdd8),
}

impl Atomic {
    /// Bytes of the operands of an opcode and opmod; `None` if they are not an atomic's.
    pub(super) const fn operand_bytes(opcode: Opcode, opmod: u8) -> Option<usize> {
        match (opcode, opmod) {
            (Opcode::AtomicCompareSwap | Opcode::AtomicFetchAdd, 0)
            | (Opcode::AtomicMaskedFetchAdd, MASKED_4 | MASKED_8)
            | (Opcode::AtomicMaskedCompareSwap, MASKED_4) => Some(SEGMENT),
            (Opcode::AtomicMaskedCompareSwap, MASKED_8) => Some(2 * SEGMENT),
            _ => None,
        }
    }

    /// Reads the operands of an opcode and opmod for which [`Self::operand_bytes`] gives `bytes.len()`. The error is the
    /// first reserved bit that is set; `None` if there are no such operands.
    pub(super) fn parse(opcode: Opcode, opmod: u8, bytes: &[u8]) -> Result<Self, Option<u32>> {
        macro_rules! read {
            ($variant:ident, $ty:ty) => {
                match <$ty>::reserved_nonzero(bytes) {
                    Some(bit) => Err(Some(bit)),
                    None => <$ty>::parse(bytes).map(Self::$variant).map_err(|_| None),
                }
            };
        }
        match (opcode, opmod) {
            (Opcode::AtomicMaskedCompareSwap, MASKED_4) => read!(CompareSwap4, MaskedCompareSwap4),
            (Opcode::AtomicMaskedCompareSwap, MASKED_8) => read!(CompareSwap8, MaskedCompareSwap8),
            (Opcode::AtomicMaskedFetchAdd, MASKED_4) => read!(FetchAdd4, MaskedFetchAdd4),
            (Opcode::AtomicMaskedFetchAdd, MASKED_8) => read!(FetchAdd8, MaskedFetchAdd8),
            _ => read!(Plain, AtomicOperands),
        }
    }

    /// Bytes of the value that the atomic changes, and of the original that it returns.
    pub const fn value_bytes(&self) -> u32 {
        match self {
            Self::CompareSwap4(_) | Self::FetchAdd4(_) => 4,
            Self::Plain(_) | Self::CompareSwap8(_) | Self::FetchAdd8(_) => 8,
        }
    }
}

/// `original` with the bits of `swap_mask` from `swap`, if it equals `compare` in the bits of `compare_mask`; else `original`.
pub const fn masked_swapped(
    original: u64,
    swap: u64,
    compare: u64,
    swap_mask: u64,
    compare_mask: u64,
) -> u64 {
    if (original ^ compare) & compare_mask == 0 {
        (original & !swap_mask) | (swap & swap_mask)
    } else {
        original
    }
}

/// `original + add`, where no carry leaves a bit that is set in `boundary`.
pub const fn masked_sum(original: u64, add: u64, boundary: u64) -> u64 {
    // Without the boundary bits no carry leaves a field; each boundary bit is then the sum's without carry out.
    (original & !boundary).wrapping_add(add & !boundary) ^ ((original ^ add) & boundary)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wqe::segment_bytes;

    #[test]
    fn golden_bytes() {
        let a = 0x0102_0304_0506_0708;
        let b = 0x1112_1314_1516_1718;
        let first = [
            1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18,
        ];
        let second = [
            0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36,
            0x37, 0x38,
        ];
        assert_eq!(segment_bytes(compare_swap(a, b)), first);
        assert_eq!(
            AtomicOperands {
                swap_or_add: a,
                compare: b
            }
            .emit(),
            first
        );
        assert_eq!(segment_bytes(fetch_add(a))[..8], first[..8]);
        assert_eq!(segment_bytes(fetch_add(a))[8..], [0; 8]);
        assert_eq!(segment_bytes(masked_fetch_add_8(a, b)), first);
        assert_eq!(
            MaskedFetchAdd8 {
                add: a,
                boundary: b
            }
            .emit(),
            first
        );
        let four = [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(
            segment_bytes(masked_fetch_add_4(0x0102_0304, 0x0506_0708)),
            four
        );
        assert_eq!(
            MaskedFetchAdd4 {
                add: 0x0102_0304,
                boundary: 0x0506_0708
            }
            .emit(),
            four
        );
        assert_eq!(
            segment_bytes(masked_compare_swap_4(
                0x0102_0304,
                0x0506_0708,
                0x1112_1314,
                0x1516_1718
            )),
            first
        );
        let four = MaskedCompareSwap4 {
            swap: 0x0102_0304,
            compare: 0x0506_0708,
            swap_mask: 0x1112_1314,
            compare_mask: 0x1516_1718,
        };
        assert_eq!(four.emit(), first);
        let (c, d) = (0x2122_2324_2526_2728, 0x3132_3334_3536_3738);
        assert_eq!(
            masked_compare_swap_8(a, b, c, d).map(segment_bytes),
            [first, second]
        );
        let eight = MaskedCompareSwap8 {
            swap: a,
            compare: b,
            swap_mask: c,
            compare_mask: d,
        };
        assert_eq!(
            (&eight.emit()[..16], &eight.emit()[16..]),
            (&first[..], &second[..])
        );
    }

    #[test]
    fn a_swap_changes_the_masked_bits_if_the_masked_bits_are_equal() {
        assert_eq!(
            masked_swapped(0xaabb, 0x1122, 0xaa00, 0x00ff, 0xff00),
            0xaa22
        );
        assert_eq!(
            masked_swapped(0xaabb, 0x1122, 0xab00, 0x00ff, 0xff00),
            0xaabb
        );
        assert_eq!(masked_swapped(5, 7, 5, !0, !0), 7);
        assert_eq!(masked_swapped(5, 7, 6, !0, !0), 5);
    }

    #[test]
    fn a_sum_carries_within_its_fields_only() {
        // Two bytes: 0xff + 1 in the lower stays there.
        assert_eq!(masked_sum(0x01ff, 0x0101, 0x8080), 0x0200);
        assert_eq!(masked_sum(0x01ff, 0x0101, 0), 0x0300);
        assert_eq!(masked_sum(u64::MAX, 1, 0), 0);
        // Every bit a field: addition without any carry.
        assert_eq!(masked_sum(0b1100, 0b1010, !0), 0b0110);
    }
}
