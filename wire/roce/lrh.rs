//! Local route header (IBA 7.7): what InfiniBand's switches look at.
//!
//! | bits | field |
//! |---|---|
//! | 0..4 | virtual lane, which varies on the way |
//! | 4..8 | link version, zero |
//! | 8..12 | service level |
//! | 14..16 | what follows: 2 a BTH, 3 a GRH |
//! | 16..32 | destination LID |
//! | 37..48 | words of 4 bytes from here to the invariant CRC, which counts |
//! | 48..64 | source LID |

use crate::layout::structure;

/// `next` of a packet whose BTH follows (`IBA_LOCAL`).
pub const NEXT_BTH: u8 = 2;
/// `next` of a packet whose GRH follows (`IBA_GLOBAL`).
pub const NEXT_GRH: u8 = 3;

structure! {
    /// A local route header.
    pub struct Lrh: Iba "lrh", 64 bits {
        /// Virtual lane.
        virtual_lane: u8 => 0, 4 cited "IBA 7.7";
        /// Version of the link: zero.
        version: u8 => 4, 4 cited "IBA 7.7";
        /// Service level.
        service_level: u8 => 8, 4 cited "IBA 7.7";
        /// What follows.
        next: u8 => 14, 2 cited "IBA 7.7";
        /// LID of the receiver.
        destination: u16 => 16, 16 cited "IBA 7.7";
        /// Words from here to the end of the invariant CRC.
        words: u16 => 37, 11 cited "IBA 7.7";
        /// LID of the sender.
        source: u16 => 48, 16 cited "IBA 7.7";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        // Of the sample packet that the tests of the CRCs have.
        let lrh = Lrh {
            virtual_lane: 7,
            version: 0,
            service_level: 1,
            next: NEXT_BTH,
            destination: 0x375c,
            words: 14,
            source: 0x17d2,
        };
        assert_eq!(lrh.emit(), [0x70, 0x12, 0x37, 0x5c, 0x00, 0x0e, 0x17, 0xd2]);
        assert_eq!(Lrh::parse(&lrh.emit()), Ok(lrh));
    }
}
