//! What is alike in every packet, however it travels: BTH, extended headers, payload, padding, invariant CRC.

use core::fmt;

use crate::roce::frame::Error;
use crate::roce::icrc;
use crate::roce::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Headers, Ieth, ImmDt, MaskedAtomicEth, Reth,
};

/// The extended headers of a packet; which of them it has, its opcode says ([`crate::roce::Opcode::headers`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extended {
    /// RDMA.
    pub reth: Option<Reth>,
    /// Atomic.
    pub atomic: Option<AtomicEth>,
    /// Masked atomic.
    pub masked_atomic: Option<MaskedAtomicEth>,
    /// Acknowledgement.
    pub aeth: Option<Aeth>,
    /// Original value of an atomic.
    pub atomic_ack: Option<AtomicAckEth>,
    /// Immediate data.
    pub immediate: Option<ImmDt>,
    /// Key to invalidate.
    pub invalidate: Option<Ieth>,
}

/// Takes a header of `LEN` bytes off the front.
macro_rules! take {
    ($ty:ty, $rest:ident) => {{
        let header = <$ty>::parse($rest)?;
        $rest = $rest.get(<$ty>::LEN..).unwrap_or_default();
        header
    }};
}

pub(super) use take;

impl Extended {
    fn headers(&self) -> Headers {
        Headers {
            reth: self.reth.is_some(),
            atomic: self.atomic.is_some(),
            masked_atomic: self.masked_atomic.is_some(),
            aeth: self.aeth.is_some(),
            atomic_ack: self.atomic_ack.is_some(),
            immediate: self.immediate.is_some(),
            invalidate: self.invalidate.is_some(),
            payload: false,
        }
    }

    /// Bytes of all headers.
    pub fn len(&self) -> usize {
        macro_rules! sum {
            ($($field:ident: $ty:ty),*) => { 0 $(+ self.$field.map_or(0, |_| <$ty>::LEN))* };
        }
        sum!(reth: Reth, atomic: AtomicEth, masked_atomic: MaskedAtomicEth, aeth: Aeth, atomic_ack: AtomicAckEth,
            immediate: ImmDt, invalidate: Ieth)
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// From BTH to invariant CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transport<'a> {
    pub(super) bth: Bth,
    pub(super) extended: Extended,
    pub(super) payload: &'a [u8],
}

impl<'a> Transport<'a> {
    /// Reads it from a packet that ends with its invariant CRC, and whose BTH is at `at`; `crc` is made of all before the CRC.
    pub(super) fn parse(
        packet: &'a [u8],
        at: usize,
        crc: impl Fn(&[u8]) -> Option<u32>,
    ) -> Result<Self, Error> {
        let mut rest = packet.get(at..).unwrap_or_default();
        let bth = take!(Bth, rest);
        if bth.version != 0 {
            return Err(Error::TransportVersion(bth.version));
        }
        let short = Error::Short {
            header: "icrc",
            needed: icrc::LEN,
            found: rest.len(),
        };
        let (before, found) = rest.split_last_chunk::<{ icrc::LEN }>().ok_or(short)?;
        rest = before;
        let found = u32::from_le_bytes(*found);
        let covered = packet.get(..packet.len() - icrc::LEN).unwrap_or_default();
        match crc(covered) {
            Some(needed) if needed != found => return Err(Error::Icrc { needed, found }),
            Some(_) => {}
            None => return Err(short),
        }
        let headers = bth.opcode.headers().ok_or(Error::Opcode(bth))?;
        macro_rules! take_if {
            ($present:expr, $ty:ty) => {
                if $present {
                    Some(take!($ty, rest))
                } else {
                    None
                }
            };
        }
        let extended = Extended {
            reth: take_if!(headers.reth, Reth),
            atomic: take_if!(headers.atomic, AtomicEth),
            masked_atomic: take_if!(headers.masked_atomic, MaskedAtomicEth),
            aeth: take_if!(headers.aeth, Aeth),
            atomic_ack: take_if!(headers.atomic_ack, AtomicAckEth),
            immediate: take_if!(headers.immediate, ImmDt),
            invalidate: take_if!(headers.invalidate, Ieth),
        };
        let len = rest
            .len()
            .checked_sub(bth.pad_count as usize)
            .ok_or(Error::Padding(bth.pad_count))?;
        let payload = rest.get(..len).unwrap_or_default();
        if !headers.payload && !rest.is_empty() {
            return Err(Error::Payload {
                opcode: bth.opcode,
                len: rest.len(),
            });
        }
        Ok(Self {
            bth,
            extended,
            payload,
        })
    }

    /// An error if extended headers and payload are not those of the opcode.
    pub(super) fn check(&self) -> Result<(), Error> {
        let opcode = self.bth.opcode;
        let headers = opcode.headers().ok_or(Error::Opcode(self.bth))?;
        if self.extended.headers()
            != (Headers {
                payload: false,
                ..headers
            })
        {
            return Err(Error::Extended(opcode));
        }
        if !headers.payload && !self.payload.is_empty() {
            return Err(Error::Payload {
                opcode,
                len: self.payload.len(),
            });
        }
        self.bth.check()?;
        macro_rules! check_some {
            ($($field:ident),*) => {$(
                if let Some(header) = &self.extended.$field {
                    header.check()?;
                }
            )*};
        }
        check_some!(
            reth,
            atomic,
            masked_atomic,
            aeth,
            atomic_ack,
            immediate,
            invalidate
        );
        Ok(())
    }

    fn padding(&self) -> usize {
        self.payload.len().wrapping_neg() % 4
    }

    /// Bytes, the invariant CRC among them.
    pub(super) fn len(&self) -> usize {
        Bth::LEN + self.extended.len() + self.payload.len() + self.padding() + icrc::LEN
    }

    /// Writes all but the invariant CRC, which is the caller's.
    pub(super) fn put(&self, rest: &mut &mut [u8]) {
        let bth = Bth {
            pad_count: self.padding() as u8,
            ..self.bth
        };
        put(rest, &bth.emit());
        macro_rules! put_some {
            ($($field:ident),*) => {$(
                if let Some(header) = &self.extended.$field {
                    put(rest, &header.emit());
                }
            )*};
        }
        put_some!(
            reth,
            atomic,
            masked_atomic,
            aeth,
            atomic_ack,
            immediate,
            invalidate
        );
        put(rest, self.payload);
        put(rest, [0; 3].get(..self.padding()).unwrap_or_default());
    }
}

impl fmt::Display for Transport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bth)?;
        macro_rules! show {
            ($($field:ident),*) => {$(
                if let Some(header) = &self.extended.$field {
                    write!(f, "\n{header}")?;
                }
            )*};
        }
        show!(
            reth,
            atomic,
            masked_atomic,
            aeth,
            atomic_ack,
            immediate,
            invalidate
        );
        write!(f, "\npayload of {} bytes", self.payload.len())
    }
}

/// Writes `bytes` to the front of `rest`, which has room for them, and leaves what is behind.
pub(super) fn put(rest: &mut &mut [u8], bytes: &[u8]) {
    if let Some((front, behind)) = core::mem::take(rest).split_at_mut_checked(bytes.len()) {
        front.copy_from_slice(bytes);
        *rest = behind;
    }
}
