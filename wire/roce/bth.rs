//! Base transport header (IBA 9.2).
//!
//! | bits | field |
//! |---|---|
//! | 0..8 | opcode |
//! | 8 | solicited event |
//! | 9 | migration request |
//! | 10..12 | pad count |
//! | 12..16 | transport version, zero |
//! | 16..32 | partition key |
//! | 32, 33 | FECN, BECN (A17.9); with the next 6 bits they vary on the way, and the invariant CRC takes them as ones |
//! | 40..64 | destination QP |
//! | 64 | acknowledgement requested |
//! | 72..96 | packet sequence number |

use crate::layout::structure;
use crate::roce::Opcode;

structure! {
    /// A base transport header.
    pub struct Bth: Iba "bth", 96 bits {
        /// What the packet is.
        opcode: Opcode => 0, 8;
        /// The responder raises an event when the message completes.
        solicited: bool => 8, 1;
        /// Path migration state: true of a QP that migrated, which a QP without an alternate path is.
        migration_request: bool => 9, 1;
        /// Bytes of padding between payload and invariant CRC.
        pad_count: u8 => 10, 2;
        /// Version of the transport header: zero.
        version: u8 => 12, 4;
        /// Partition key.
        pkey: u16 => 16, 16;
        /// Forward explicit congestion notification.
        fecn: bool => 32, 1;
        /// Backward explicit congestion notification.
        becn: bool => 33, 1;
        /// QP that the packet is for.
        destination_qp: u32 => 40, 24;
        /// The responder is to acknowledge.
        ack_request: bool => 64, 1;
        /// Packet sequence number.
        psn: u32 => 72, 24;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let bth = Bth {
            opcode: Opcode::WriteLast,
            solicited: true,
            migration_request: true,
            pad_count: 3,
            version: 0,
            pkey: 0xffff,
            fecn: false,
            becn: true,
            destination_qp: 0x01_0203,
            ack_request: true,
            psn: 0xab_cdef,
        };
        let golden = [
            0x08, 0xf0, 0xff, 0xff, 0x40, 0x01, 0x02, 0x03, 0x80, 0xab, 0xcd, 0xef,
        ];
        assert_eq!(bth.emit(), golden);
        assert_eq!(Bth::parse(&golden), Ok(bth));
    }
}
