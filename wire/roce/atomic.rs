//! Extended headers of atomics (IBA 9.3, 9.5).
//!
//! AtomicETH:
//!
//! | bits | field |
//! |---|---|
//! | 0..64 | remote address |
//! | 64..96 | remote key |
//! | 96..160 | value to swap in, or to add |
//! | 160..224 | value to compare with |
//!
//! AtomicAckETH is the 64 bits of the original value. The header of masked atomics is assumed, as their opcodes are.

use crate::layout::structure;

structure! {
    /// What an atomic does, and where.
    pub struct AtomicEth: Iba "atomic_eth", 224 bits {
        /// Remote address, as the key addresses it.
        address: u64 => 0, 64;
        /// Remote key.
        key: u32 => 64, 32;
        /// Value to swap in, or to add.
        swap_or_add: u64 => 96, 64;
        /// Value to compare with.
        compare: u64 => 160, 64;
    }
}

structure! {
    /// The value that was there before an atomic.
    pub struct AtomicAckEth: Iba "atomic_ack_eth", 64 bits {
        /// The value.
        original: u64 => 0, 64;
    }
}

structure! {
    /// What a masked atomic does, and where (assumed).
    pub struct MaskedAtomicEth: Assumed "masked_atomic_eth", 384 bits {
        /// Remote address, as the key addresses it.
        address: u64 => 0, 64;
        /// Remote key.
        key: u32 => 64, 32;
        /// Bytes of the operand: 4 or 8.
        length: u32 => 96, 32;
        /// Value to swap in, or to add.
        swap_or_add: u64 => 128, 64;
        /// Bits that are swapped; of an addition, the last bit of each field: carries end there.
        swap_mask_or_boundary: u64 => 192, 64;
        /// Value to compare with.
        compare: u64 => 256, 64;
        /// Bits that are compared.
        compare_mask: u64 => 320, 64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let atomic = AtomicEth {
            address: 0x0102_0304_0506_0708,
            key: 0x1112_1314,
            swap_or_add: 0x2122_2324_2526_2728,
            compare: 0x3132_3334_3536_3738,
        };
        #[rustfmt::skip]
        let golden = [
            1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14,
            0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38,
        ];
        assert_eq!(atomic.emit(), golden);
        assert_eq!(AtomicEth::parse(&golden), Ok(atomic));
        assert_eq!(
            AtomicAckEth {
                original: 0x0102_0304_0506_0708
            }
            .emit(),
            golden[..8]
        );
    }
}
