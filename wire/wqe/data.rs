//! Data-pointer segment (`mlx5_wqe_data_seg`).
//!
//! | bits | field |
//! |---|---|
//! | 0..32 | byte count; bit 0 (the value's bit 31) clear: set, it marks an inline segment |
//! | 32..64 | local key |
//! | 64..128 | local address |

use crate::layout::structure;
use crate::wqe::{Segment, pair};

/// Bytes that one pointer can describe, less the one special case: a byte count of 0 means 2^31 (PRM, "Send WQE
/// Construction"). No builder here makes a 0 of another size, since sizes stay below bit 31 (rule O12).
pub const MAX_BYTE_COUNT: u32 = (1 << 31) - 1;
/// A local key that no MKey has (`MLX5_INVALID_LKEY`): it ends a list of receive pointers.
pub const INVALID_LKEY: u32 = 0x100;

structure! {
    /// A data-pointer segment.
    pub struct DataPointer: Mlx5dv "mlx5_wqe_data_seg", 128 bits {
        /// The field as it stands: 0 means 2^31, see [`Self::len`]. Bit 31 marks an inline segment instead.
        byte_count: u32 => 0, 32;
        /// Local key.
        key = "lkey": u32 => 32, 32;
        /// Local address, as the key addresses it.
        address = "addr": u64 => 64, 64;
    }
}

impl DataPointer {
    /// Bytes that the pointer describes.
    pub const fn len(&self) -> u64 {
        match self.byte_count & MAX_BYTE_COUNT {
            0 => 1 << 31,
            bytes => bytes as u64,
        }
    }

    /// False: the segment cannot say 0 bytes.
    pub const fn is_empty(&self) -> bool {
        false
    }
}

/// A data-pointer segment. `len` is 1 to [`MAX_BYTE_COUNT`] (rule O12): 0 would move 2^31 bytes. Bit 31 is dropped, so
/// that no length can turn the pointer into an inline segment.
#[inline(always)]
pub const fn data(len: u32, lkey: u32, address: u64) -> Segment {
    [pair(len & MAX_BYTE_COUNT, lkey), address.swap_bytes()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wqe::segment_bytes;

    #[test]
    fn golden_bytes() {
        let bytes = segment_bytes(data(0x1000, 0x1122_3344, 0x0102_0304_0506_0708));
        assert_eq!(
            bytes,
            [
                0, 0, 0x10, 0, 0x11, 0x22, 0x33, 0x44, 1, 2, 3, 4, 5, 6, 7, 8
            ]
        );
        let parsed = DataPointer {
            byte_count: 0x1000,
            key: 0x1122_3344,
            address: 0x0102_0304_0506_0708,
        };
        assert_eq!(DataPointer::parse(&bytes), Ok(parsed));
        assert_eq!(parsed.emit(), bytes);
        assert_eq!(parsed.len(), 0x1000);
    }

    #[test]
    fn zero_is_two_gib_and_bit_31_is_never_set() {
        assert_eq!(DataPointer::default().len(), 1 << 31);
        assert_eq!(
            DataPointer {
                byte_count: MAX_BYTE_COUNT,
                ..Default::default()
            }
            .len(),
            0x7fff_ffff
        );
        assert_eq!(
            segment_bytes(data(u32::MAX, 0, 0))[..4],
            [0x7f, 0xff, 0xff, 0xff]
        );
    }
}
