//! Remote-address segment (`mlx5_wqe_raddr_seg`).
//!
//! | bits | field |
//! |---|---|
//! | 0..64 | remote address |
//! | 64..96 | remote key |
//! | 96..128 | reserved, zero |

use crate::layout::structure;
use crate::wqe::{Segment, pair};

structure! {
    /// A remote-address segment.
    pub struct RemoteAddress: Mlx5dv "mlx5_wqe_raddr_seg", 128 bits {
        /// Remote address, as the key addresses it.
        address = "raddr": u64 => 0, 64;
        /// Remote key.
        key = "rkey": u32 => 64, 32;
    }
}

/// A remote-address segment.
#[inline(always)]
pub const fn remote(address: u64, rkey: u32) -> Segment {
    [address.swap_bytes(), pair(rkey, 0)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wqe::segment_bytes;

    #[test]
    fn golden_bytes() {
        let bytes = segment_bytes(remote(0x0102_0304_0506_0708, 0x1122_3344));
        assert_eq!(
            bytes,
            [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0]
        );
        let parsed = RemoteAddress {
            address: 0x0102_0304_0506_0708,
            key: 0x1122_3344,
        };
        assert_eq!(RemoteAddress::parse(&bytes), Ok(parsed));
        assert_eq!(parsed.emit(), bytes);
        let mut dirty = bytes;
        dirty[15] = 1;
        assert_eq!(RemoteAddress::reserved_nonzero(&dirty), Some(127));
    }
}
