//! RDMA extended transport header (IBA 9.3).
//!
//! | bits | field |
//! |---|---|
//! | 0..64 | remote address |
//! | 64..96 | remote key |
//! | 96..128 | bytes of the whole message |

use crate::layout::structure;

structure! {
    /// Where an RDMA message goes to or comes from.
    pub struct Reth: Iba "reth", 128 bits {
        /// Remote address, as the key addresses it.
        address: u64 => 0, 64;
        /// Remote key.
        key: u32 => 64, 32;
        /// Bytes of the whole message.
        length: u32 => 96, 32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let reth = Reth {
            address: 0x0102_0304_0506_0708,
            key: 0x1112_1314,
            length: 0x2122_2324,
        };
        let golden = [
            1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24,
        ];
        assert_eq!(reth.emit(), golden);
        assert_eq!(Reth::parse(&golden), Ok(reth));
    }
}
