//! Doorbell records and doorbell registers.
//!
//! Knows: the words by which software tells the device of new WQEs and consumed CQEs, and where they lie.
//! Must not know: when they are written, or in which order.
//!
//! A QP's doorbell record is two big-endian words: receive producer, then send producer (`MLX5_RCV_DBR`, `MLX5_SND_DBR`). A
//! CQ's is two: consumer, then arm command (`MLX5_CQ_SET_CI`, `MLX5_CQ_ARM_DB`).

use core::fmt;

use crate::wqe::{Control, Opcode, wqebbs};

/// Bytes of a doorbell record.
pub const DBR: usize = 8;
/// Alignment that the device needs of a doorbell record.
pub const DBR_ALIGN: usize = 8;
/// Byte offset of the receive producer in a QP's record.
pub const DBR_RECEIVE: usize = 0;
/// Byte offset of the send producer in a QP's record.
pub const DBR_SEND: usize = 4;
/// Byte offset of the consumer in a CQ's record.
pub const DBR_CQ_CONSUMER: usize = 0;
/// Byte offset of the arm command in a CQ's record.
pub const DBR_CQ_ARM: usize = 4;

/// Byte offset of the doorbell register in a UAR page (`MLX5_BF_OFFSET` of Linux): the first of the page's BlueFlame
/// registers, which takes plain 8-byte doorbells too.
pub const REGISTER: usize = 0x800;
/// Byte offset of the doorbell register of QPs whose send doorbell record is not read.
pub const REGISTER_NO_DBR: usize = 0x600;
/// Byte offset of the CQ arm register in a UAR page (`MLX5_CQ_DOORBELL` of Linux).
pub const REGISTER_CQ_ARM: usize = 0x20;
/// Bytes of a UAR page with `uar_4k`.
pub const UAR_PAGE: usize = 4096;

/// Bit of a CQ's arm command: only a solicited completion, or one with error, raises the event
/// (`MLX5_CQ_DB_REQ_NOT_SOL`).
pub const ARM_SOLICITED: u32 = 1 << 24;

/// A QP's record word as a little-endian machine stores it: the low 16 bits of the producer (rule O11), big-endian.
#[inline(always)]
pub const fn dbr_word(producer: u64) -> u32 {
    ((producer as u32) & 0xffff).swap_bytes()
}

/// The producer that a QP's record word holds, low 16 bits.
pub const fn dbr_producer(bytes: [u8; 4]) -> u16 {
    u32::from_be_bytes(bytes) as u16
}

/// A CQ's consumer word as a little-endian machine stores it: 24 bits (rule O11), big-endian.
#[inline(always)]
pub const fn cq_dbr_word(consumer: u64) -> u32 {
    ((consumer as u32) & 0xff_ffff).swap_bytes()
}

/// The consumer that a CQ's record word holds, 24 bits.
pub const fn cq_dbr_consumer(bytes: [u8; 4]) -> u32 {
    u32::from_be_bytes(bytes) & 0xff_ffff
}

/// The doorbell's value in the form that names the producer: `{(producer & 0xffff) << 8, qpn << 8}` in big-endian words,
/// as a little-endian machine stores them. The other form is the first word of the last WQE
/// ([`crate::wqe::control_head`]).
#[inline(always)]
pub const fn doorbell(producer: u64, qpn: u32) -> u64 {
    (((producer as u32) & 0xffff) << 8).swap_bytes() as u64
        | (((qpn << 8).swap_bytes() as u64) << 32)
}

/// What software writes to have a CQ raise an event with its next completion: first to its record, then, with the CQ's
/// number, to the register at [`REGISTER_CQ_ARM`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CqArm {
    /// Events that the CQ has raised, low 2 bits: an arm command of an older number is void.
    pub sequence: u8,
    /// Only a solicited completion, or one with error, raises the event.
    pub solicited: bool,
    /// Consumer, low 24 bits: the event is raised at once if a completion lies behind it.
    pub consumer: u32,
}

impl CqArm {
    /// The record's word, big-endian, as a little-endian machine stores it.
    #[inline(always)]
    pub const fn word(self) -> u32 {
        let solicited = if self.solicited { ARM_SOLICITED } else { 0 };
        (((self.sequence as u32 & 3) << 28) | solicited | (self.consumer & 0xff_ffff)).swap_bytes()
    }

    /// The register's value: the word, and the CQ's number.
    #[inline(always)]
    pub const fn doorbell(self, cqn: u32) -> u64 {
        self.word() as u64 | ((cqn.swap_bytes() as u64) << 32)
    }

    /// Reads the record's word.
    pub const fn parse_word(bytes: [u8; 4]) -> Self {
        let word = u32::from_be_bytes(bytes);
        Self {
            sequence: (word >> 28) as u8 & 3,
            solicited: word & ARM_SOLICITED != 0,
            consumer: word & 0xff_ffff,
        }
    }

    /// Reads the register's value: the command, and the CQ's number.
    pub const fn parse(bytes: [u8; 8]) -> (Self, u32) {
        let [a, b, c, d, e, f, g, h] = bytes;
        (
            Self::parse_word([a, b, c, d]),
            u32::from_be_bytes([e, f, g, h]),
        )
    }
}

/// What 8 bytes written to a doorbell register say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbell {
    /// The first 8 bytes of the last WQE.
    LastWqe {
        /// Index of its first WQEBB, low 16 bits.
        index: u16,
        /// Its opcode.
        opcode: Opcode,
        /// QP number.
        qpn: u32,
        /// Its segments, not zero.
        ds: u8,
    },
    /// The producer.
    Producer {
        /// Index behind the last WQEBB, low 16 bits.
        producer: u16,
        /// QP number.
        qpn: u32,
    },
}

/// Bytes written to a doorbell register that are neither form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotADoorbell {
    /// Opmod, which both forms have zero.
    pub opmod: u8,
    /// Opcode, which without a segment count must be zero.
    pub opcode: u8,
}

impl fmt::Display for NotADoorbell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "not a doorbell: opmod {:#04x}, opcode {:#04x} with no segment count",
            self.opmod, self.opcode
        )
    }
}

impl core::error::Error for NotADoorbell {}

impl Doorbell {
    /// Reads the value. The forms differ in the last byte: a WQE has segments, the producer's form has none there.
    pub fn parse(bytes: [u8; 8]) -> Result<Self, NotADoorbell> {
        let mut segment = [0; Control::LEN];
        segment[..8].copy_from_slice(&bytes);
        // A control segment's length is given, so the default is never taken.
        let control = Control::parse(&segment).unwrap_or_default();
        let qpn = control.qpn;
        match (control.ds, control.opcode) {
            (0, Opcode::Nop) if control.opmod == 0 => Ok(Self::Producer {
                producer: control.index,
                qpn,
            }),
            (0, opcode) => Err(NotADoorbell {
                opmod: control.opmod,
                opcode: opcode.code(),
            }),
            (ds, opcode) => Ok(Self::LastWqe {
                index: control.index,
                opcode,
                qpn,
                ds,
            }),
        }
    }

    /// QP number.
    pub const fn qpn(&self) -> u32 {
        match *self {
            Self::LastWqe { qpn, .. } | Self::Producer { qpn, .. } => qpn,
        }
    }

    /// Index behind the last WQEBB, low 16 bits.
    pub const fn producer(&self) -> u16 {
        match *self {
            Self::LastWqe { index, ds, .. } => index.wrapping_add(wqebbs(ds as u32) as u16),
            Self::Producer { producer, .. } => producer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wqe::{control_head, qpn_ds};

    #[test]
    fn records_hold_16_bits_of_a_producer_and_24_of_a_consumer() {
        assert_eq!(dbr_word(0x1234).to_le_bytes(), [0, 0, 0x12, 0x34]);
        assert_eq!(dbr_word(0x1_0000).to_le_bytes(), [0; 4]);
        assert_eq!(
            dbr_word(0xffff_ffff_ffff_fffe).to_le_bytes(),
            [0, 0, 0xff, 0xfe]
        );
        assert_eq!(
            cq_dbr_word(0x0112_3456).to_le_bytes(),
            [0, 0x12, 0x34, 0x56]
        );
        assert_eq!(dbr_producer([0, 0, 0x12, 0x34]), 0x1234);
        assert_eq!(cq_dbr_consumer([0, 0x12, 0x34, 0x56]), 0x12_3456);
        assert_eq!((DBR_RECEIVE, DBR_SEND), (0, 4));
    }

    #[test]
    fn an_arm_command_has_sequence_kind_and_consumer() {
        let arm = CqArm {
            sequence: 3,
            solicited: true,
            consumer: 0x12_3456,
        };
        let golden = [0x31, 0x12, 0x34, 0x56, 0, 0xab, 0xcd, 0xef];
        assert_eq!(arm.word().to_le_bytes(), golden[..4]);
        assert_eq!(arm.doorbell(0xab_cdef).to_le_bytes(), golden);
        assert_eq!(CqArm::parse(golden), (arm, 0xab_cdef));
        // Wider values do not reach their neighbours.
        let wide = CqArm {
            sequence: 0xfc,
            solicited: false,
            consumer: 0xff00_0001,
        };
        assert_eq!(wide.word().to_le_bytes(), [0, 0, 0, 1]);
    }

    #[test]
    fn both_forms_name_the_same_producer() {
        let producer = doorbell(0x1_2345, 0xabcdef).to_le_bytes();
        assert_eq!(producer, [0, 0x23, 0x45, 0, 0xab, 0xcd, 0xef, 0]);
        let head = control_head(0x1_2344, Opcode::RdmaWrite, qpn_ds(0xabcdef, 3)).to_le_bytes();
        assert_eq!(head, [0, 0x23, 0x44, 8, 0xab, 0xcd, 0xef, 3]);
        for bytes in [producer, head] {
            let parsed = Doorbell::parse(bytes).unwrap();
            assert_eq!((parsed.producer(), parsed.qpn()), (0x2345, 0xabcdef));
        }
    }

    #[test]
    fn a_wqe_of_several_blocks_counts_them_and_the_index_wraps() {
        let head = control_head(0xffff, Opcode::Nop, qpn_ds(7, 5)).to_le_bytes();
        assert_eq!(Doorbell::parse(head).unwrap().producer(), 1);
        let head = control_head(0xffff, Opcode::Nop, qpn_ds(7, 1)).to_le_bytes();
        assert_eq!(Doorbell::parse(head).unwrap().producer(), 0);
    }

    #[test]
    fn an_opcode_without_segments_is_no_doorbell() {
        assert_eq!(
            Doorbell::parse([0, 0, 1, 8, 0, 0, 7, 0]),
            Err(NotADoorbell {
                opmod: 0,
                opcode: 8
            })
        );
        assert_eq!(
            Doorbell::parse([1, 0, 1, 0, 0, 0, 7, 0]),
            Err(NotADoorbell {
                opmod: 1,
                opcode: 0
            })
        );
    }
}
