//! Acknowledgement extended transport header (IBA 9.3, 9.7).
//!
//! | bits | field |
//! |---|---|
//! | 0..8 | syndrome: 0 and two bits of kind, then five of value |
//! | 8..32 | message sequence number: messages that the responder has completed |

use core::fmt;

use crate::layout::{Misfit, Value, get_bits, misfit, open_enum, set_bits, structure};

open_enum! {
    /// Why a responder refuses (IBA table 46).
    pub enum NakCode: u8 {
        /// A packet is missing: retry from the PSN of this packet.
        PsnSequence = 0,
        /// Invalid request: an operation, length or opcode sequence that the QP does not take.
        InvalidRequest = 1,
        /// Remote access error: the key does not cover the data or allow the operation.
        RemoteAccess = 2,
        /// Remote operational error: the responder failed.
        RemoteOperation = 3,
        /// Invalid request of reliable datagrams.
        InvalidRdRequest = 4,
    }
}

/// How a responder answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// All up to this PSN is done; how many more receives are ready, as the code that [`credits`] reads.
    Ack {
        /// Code of the credits, 5 bits.
        credits: u8,
    },
    /// Receiver not ready: repeat no sooner than after the time that [`crate::roce::timer::rnr_us`] reads.
    RnrNak {
        /// Code of the time, 5 bits.
        timer: u8,
    },
    /// Refused.
    Nak(NakCode),
    /// A syndrome that IBA reserves.
    Unknown(u8),
}

impl Syndrome {
    /// The eight bits.
    pub const fn code(self) -> u8 {
        match self {
            Self::Ack { credits } => credits,
            Self::RnrNak { timer } => 0x20 | timer,
            Self::Nak(code) => 0x60 | code.code(),
            Self::Unknown(code) => code,
        }
    }

    /// What eight bits say.
    pub const fn from_code(code: u8) -> Self {
        let value = code & 0x1f;
        match code >> 5 {
            0b000 => Self::Ack { credits: value },
            0b001 => Self::RnrNak { timer: value },
            0b011 => Self::Nak(NakCode::from_code(value)),
            _ => Self::Unknown(code),
        }
    }
}

impl Default for Syndrome {
    /// The meaning of zero: done, and no receive is ready.
    fn default() -> Self {
        Self::from_code(0)
    }
}

impl Value for Syndrome {
    fn get(bytes: &[u8], offset: u32, width: u32) -> Self {
        Self::from_code(get_bits(bytes, offset, width) as u8)
    }
    fn set(self, bytes: &mut [u8], offset: u32, width: u32) {
        set_bits(bytes, offset, width, self.code() as u64);
    }
    fn misfit(self, width: u32) -> Option<Misfit> {
        match self {
            Self::Ack { credits: value } | Self::RnrNak { timer: value } => misfit(value as u64, 5),
            Self::Nak(code) => misfit(code.code() as u64, 5),
            Self::Unknown(code) => misfit(code as u64, width),
        }
    }
    fn show(&self, f: &mut fmt::Formatter<'_>, _: usize) -> fmt::Result {
        write!(f, "{:#x} ({self:?})", self.code())
    }
}

/// The credit code of a responder that does not count its receives, and of one with a shared receive queue.
pub const UNLIMITED_CREDITS: u8 = 0x1f;

/// Receives that a credit code stands for (IBA table 45); `None` for [`UNLIMITED_CREDITS`] and for no 5-bit code.
pub const fn credits(code: u8) -> Option<u32> {
    match code {
        0..=3 => Some(code as u32),
        // 4, 6, 8, 12, 16, 24: two for each power of two.
        4..=30 => Some((2 + (code as u32 & 1)) << (code / 2 - 1)),
        _ => None,
    }
}

structure! {
    /// How a responder answers, and how far it is.
    pub struct Aeth: Iba "aeth", 32 bits {
        /// The answer.
        syndrome: Syndrome => 0, 8;
        /// Messages that the responder has completed, low 24 bits.
        msn: u32 => 8, 24;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        for (syndrome, code) in [
            (Syndrome::Ack { credits: 0x1f }, 0x1f),
            (Syndrome::RnrNak { timer: 0x0c }, 0x2c),
            (Syndrome::Nak(NakCode::PsnSequence), 0x60),
            (Syndrome::Nak(NakCode::RemoteAccess), 0x62),
            (Syndrome::Nak(NakCode::Unknown(0x1f)), 0x7f),
            (Syndrome::Unknown(0x40), 0x40),
            (Syndrome::Unknown(0x80), 0x80),
        ] {
            let aeth = Aeth {
                syndrome,
                msn: 0x01_0203,
            };
            assert_eq!(aeth.emit(), [code, 1, 2, 3]);
            assert_eq!(Aeth::parse(&[code, 1, 2, 3]), Ok(aeth));
        }
        assert!((0..=255).all(|code| Syndrome::from_code(code).code() == code));
    }

    #[test]
    fn a_value_too_wide_is_named() {
        let aeth = Aeth {
            syndrome: Syndrome::RnrNak { timer: 0x20 },
            msn: 0,
        };
        assert!(aeth.check().is_err());
    }

    #[test]
    fn credit_codes_are_those_of_the_table() {
        let table = [
            0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
            1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
        ];
        for (code, count) in (0..).zip(table) {
            assert_eq!(credits(code), Some(count), "{code}");
        }
        assert_eq!((credits(UNLIMITED_CREDITS), credits(32)), (None, None));
    }
}
