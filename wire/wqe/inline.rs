//! Inline data segment (`mlx5_wqe_inl_data_seg`): a header, then the data, padded to whole segments.
//!
//! | bits | field |
//! |---|---|
//! | 0 | 1: inline (`MLX5_INLINE_SEG`) |
//! | 1..32 | byte count |
//! | 32.. | data |

use crate::layout::structure;
use crate::wqe::{SEGMENT, Segment};

/// The bit of the byte count that marks an inline segment (`MLX5_INLINE_SEG`).
pub const INLINE: u32 = 1 << 31;
/// Bytes of the header.
pub(super) const HEADER: usize = 4;
/// Data bytes in the segment that begins with the header.
pub const HEAD_BYTES: u32 = (SEGMENT - HEADER) as u32;
/// Most data bytes of an RDMA WRITE that fits one WQEBB: two segments are control and remote address.
pub const MAX_INLINE_ONE_WQEBB: u32 = HEAD_BYTES + SEGMENT as u32;

structure! {
    /// The header of inline data.
    pub struct InlineHeader: Mlx5dv "mlx5_wqe_inl_data_seg", 32 bits {
        /// Byte count with [`INLINE`] set.
        byte_count: u32 => 0, 32;
    }
}

/// Segments that `len` bytes of inline data occupy, header included: 1 for 0 to 12 bytes, 2 for 13 to 28, and so on.
#[inline(always)]
pub const fn inline_segments(len: u32) -> u32 {
    (len + HEADER as u32).div_ceil(SEGMENT as u32)
}

/// Most bytes of inline data that so many segments hold, header included: the inverse of [`inline_segments`].
pub const fn inline_room(segments: u32) -> u32 {
    (segments * SEGMENT as u32).saturating_sub(HEADER as u32)
}

/// The first segment of `len` bytes of inline data: the header, data bytes 0 to 3 and data bytes 4 to 11, each as a
/// little-endian load gives them. The bytes behind `len` should be zero; later segments are data alone,
/// as two little-endian loads give them.
#[inline(always)]
pub const fn inline_head(len: u32, bytes_0_4: u32, bytes_4_12: u64) -> Segment {
    [
        (INLINE | len).swap_bytes() as u64 | ((bytes_0_4 as u64) << 32),
        bytes_4_12,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wqe::segment_bytes;

    #[test]
    fn golden_bytes() {
        let data = [
            0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xab,
        ];
        let low = u32::from_le_bytes([0xa0, 0xa1, 0xa2, 0xa3]);
        let high = u64::from_le_bytes([0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xab]);
        let bytes = segment_bytes(inline_head(28, low, high));
        assert_eq!(bytes[..4], [0x80, 0, 0, 28]);
        assert_eq!(bytes[4..], data);
        assert_eq!(
            InlineHeader::parse(&bytes).map(|h| h.byte_count),
            Ok(INLINE | 28)
        );
    }

    #[test]
    fn segments_of_the_sizes_around_a_boundary() {
        let sizes = [0, 1, 12, 13, 27, 28, 29, 44, 45];
        let segments = [1, 1, 1, 2, 2, 2, 3, 3, 4];
        for (size, segments) in sizes.into_iter().zip(segments) {
            assert_eq!(inline_segments(size), segments, "{size} bytes");
            assert!(
                size <= inline_room(segments) && inline_room(segments - 1) <= size,
                "{size} bytes"
            );
        }
        assert_eq!(MAX_INLINE_ONE_WQEBB, 28);
    }
}
