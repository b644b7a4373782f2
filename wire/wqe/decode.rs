//! A whole WQE: from bytes to a form whose segments all make sense, and to text.

use core::fmt;

use crate::wqe::inline::HEADER;
use crate::wqe::{
    Atomic, Control, DataPointer, INLINE, MAX_DS, Opcode, RemoteAddress, SEGMENT, Wait, wqebbs,
};

/// A WQE that was found well-formed: every segment that its opcode demands is there, and `ds` covers exactly its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wqe<'a> {
    /// The control segment.
    pub control: Control,
    /// The remote address, where the opcode has one.
    pub remote: Option<RemoteAddress>,
    /// The operands of an atomic.
    pub atomic: Option<Atomic>,
    /// What a wait is for.
    pub wait: Option<Wait>,
    data: &'a [u8],
}

/// One piece of a WQE's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data<'a> {
    /// Data in memory.
    Pointer(DataPointer),
    /// Data in the WQE itself.
    Inline(&'a [u8]),
}

impl Data<'_> {
    /// Bytes.
    pub const fn len(&self) -> u64 {
        match self {
            Self::Pointer(pointer) => pointer.len(),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }

    /// True if it has no bytes, which only inline data can say.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Why bytes are not a WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// There are fewer bytes than `ds` declares, or than a control segment has.
    Short {
        /// Bytes needed.
        needed: usize,
        /// Bytes that there are.
        found: usize,
    },
    /// `ds` is zero or more than 6 bits hold.
    BadDs(u8),
    /// The opcode is not one that is understood here.
    UnsupportedOpcode(Opcode),
    /// The opcode has no such variant.
    BadOpmod(u8),
    /// The opcode demands a remote address, and `ds` leaves no room for it.
    NoRemoteAddress(Opcode),
    /// A reserved byte of a remote-address, atomic or wait segment is not zero.
    ReservedNotZero {
        /// Byte of the WQE.
        byte: usize,
    },
    /// The opcode demands operands, and `ds` leaves no room for them.
    NoOperands(Opcode),
    /// The opcode demands data, and there is none.
    NoData(Opcode),
    /// The local buffer of an atomic is not as long as its value.
    AtomicLength {
        /// Bytes of the value.
        needed: u32,
        /// Bytes of the buffer.
        found: u64,
    },
    /// `ds` declares segments behind what the opcode has.
    TooManySegments(Opcode),
    /// The opcode cannot carry inline data.
    InlineNotAllowed(Opcode),
    /// Inline data ends outside the WQE.
    InlineTooLong {
        /// Bytes of inline data declared.
        len: u32,
        /// Bytes that `ds` leaves for them.
        room: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Short { needed, found } => write!(f, "a WQE of {needed} bytes in {found} bytes"),
            Self::BadDs(ds) => write!(f, "ds is {ds}, not 1 to {MAX_DS}"),
            Self::UnsupportedOpcode(opcode) => write!(
                f,
                "opcode {:#04x} ({opcode:?}) is not supported",
                opcode.code()
            ),
            Self::BadOpmod(opmod) => {
                write!(f, "opmod is {opmod:#04x}, which the opcode does not have")
            }
            Self::NoRemoteAddress(opcode) => write!(
                f,
                "ds leaves no room for the remote-address segment of {opcode:?}"
            ),
            Self::ReservedNotZero { byte } => write!(f, "reserved byte {byte} is not zero"),
            Self::NoOperands(opcode) => {
                write!(f, "ds leaves no room for the operands of {opcode:?}")
            }
            Self::AtomicLength { needed, found } => {
                write!(f, "an atomic of {needed} bytes with a buffer of {found}")
            }
            Self::NoData(opcode) => write!(f, "{opcode:?} without a data segment"),
            Self::TooManySegments(opcode) => {
                write!(f, "ds declares more segments than {opcode:?} has")
            }
            Self::InlineNotAllowed(opcode) => write!(f, "{opcode:?} with inline data"),
            Self::InlineTooLong { len, room } => {
                write!(f, "{len} bytes of inline data in {room} bytes")
            }
        }
    }
}

impl core::error::Error for Error {}

impl<'a> Wqe<'a> {
    /// Reads a WQE from the start of `bytes`, which hold it in one piece: a fetcher joins a WQE that wraps around the
    /// ring. Bytes behind the segments that `ds` declares are not looked at.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Error> {
        let found = bytes.len();
        let control = Control::parse(bytes).map_err(|_| Error::Short {
            needed: SEGMENT,
            found,
        })?;
        if control.ds == 0 || control.ds > MAX_DS {
            return Err(Error::BadDs(control.ds));
        }
        let needed = control.ds as usize * SEGMENT;
        let rest = bytes
            .get(SEGMENT..needed)
            .ok_or(Error::Short { needed, found })?;
        let opcode = control.opcode;
        if !opcode.is_supported() {
            return Err(Error::UnsupportedOpcode(opcode));
        }
        let operand_bytes = Atomic::operand_bytes(opcode, control.opmod);
        if opcode.is_atomic() && operand_bytes.is_none()
            || !opcode.is_atomic() && control.opmod != 0
        {
            return Err(Error::BadOpmod(control.opmod));
        }
        let (remote, data) = if opcode.has_remote() {
            let (segment, data) = rest
                .split_at_checked(SEGMENT)
                .ok_or(Error::NoRemoteAddress(opcode))?;
            if let Some(bit) = RemoteAddress::reserved_nonzero(segment) {
                return Err(Error::ReservedNotZero {
                    byte: SEGMENT + (bit / 8) as usize,
                });
            }
            let remote =
                RemoteAddress::parse(segment).map_err(|_| Error::NoRemoteAddress(opcode))?;
            (Some(remote), data)
        } else {
            (None, rest)
        };
        let at = |data: &[u8]| needed - data.len();
        let (atomic, data) = match operand_bytes {
            Some(len) => {
                let (operands, rest) = data
                    .split_at_checked(len)
                    .ok_or(Error::NoOperands(opcode))?;
                let atomic = Atomic::parse(opcode, control.opmod, operands).map_err(|bit| {
                    bit.map_or(Error::NoOperands(opcode), |bit| Error::ReservedNotZero {
                        byte: at(data) + (bit / 8) as usize,
                    })
                })?;
                (Some(atomic), rest)
            }
            None => (None, data),
        };
        let (wait, data) = match opcode {
            Opcode::Wait => {
                let wait = Wait::parse(data).map_err(|_| Error::NoOperands(opcode))?;
                if let Some(bit) = Wait::reserved_nonzero(data) {
                    return Err(Error::ReservedNotZero {
                        byte: at(data) + (bit / 8) as usize,
                    });
                }
                (Some(wait), data.get(SEGMENT..).unwrap_or_default())
            }
            _ => (None, data),
        };
        match (opcode, data.len()) {
            (Opcode::Nop | Opcode::Wait, 0) => {}
            (Opcode::Nop | Opcode::Wait, _) => return Err(Error::TooManySegments(opcode)),
            (_, 0) if opcode == Opcode::Dump || atomic.is_some() => {
                return Err(Error::NoData(opcode));
            }
            (_, len) if len > SEGMENT && (opcode == Opcode::Dump || atomic.is_some()) => {
                return Err(Error::TooManySegments(opcode));
            }
            _ => {}
        }
        let mut segments = DataSegments { rest: data };
        while let Some(segment) = segments.try_next() {
            match segment? {
                Data::Inline(_) if !opcode.may_inline() => {
                    return Err(Error::InlineNotAllowed(opcode));
                }
                _ => {}
            }
        }
        let wqe = Self {
            control,
            remote,
            atomic,
            wait,
            data,
        };
        match atomic.map(|atomic| atomic.value_bytes()) {
            Some(needed) if wqe.byte_count() != needed as u64 => Err(Error::AtomicLength {
                needed,
                found: wqe.byte_count(),
            }),
            _ => Ok(wqe),
        }
    }

    /// The WQE's data, piece by piece. None at all is a transfer of 0 bytes.
    pub fn data(&self) -> DataSegments<'a> {
        DataSegments { rest: self.data }
    }

    /// Bytes of all data.
    pub fn byte_count(&self) -> u64 {
        self.data().map(|data| data.len()).sum()
    }

    /// Basic blocks that the WQE occupies.
    pub const fn wqebbs(&self) -> u32 {
        wqebbs(self.control.ds as u32)
    }
}

/// The pieces of a WQE's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataSegments<'a> {
    rest: &'a [u8],
}

impl<'a> DataSegments<'a> {
    fn try_next(&mut self) -> Option<Result<Data<'a>, Error>> {
        // A whole number of segments is left at each call.
        let pointer = DataPointer::parse(self.rest).ok()?;
        if pointer.byte_count & INLINE == 0 {
            self.rest = self.rest.get(SEGMENT..).unwrap_or_default();
            return Some(Ok(Data::Pointer(pointer)));
        }
        let len = pointer.byte_count & !INLINE;
        let end = HEADER.saturating_add(len as usize);
        let Some(bytes) = self.rest.get(HEADER..end) else {
            let room = self.rest.len() - HEADER;
            self.rest = &[];
            return Some(Err(Error::InlineTooLong { len, room }));
        };
        self.rest = self
            .rest
            .get(end.next_multiple_of(SEGMENT)..)
            .unwrap_or_default();
        Some(Ok(Data::Inline(bytes)))
    }
}

impl<'a> Iterator for DataSegments<'a> {
    type Item = Data<'a>;

    fn next(&mut self) -> Option<Data<'a>> {
        // `Wqe::decode` has walked the same bytes without an error.
        self.try_next()?.ok()
    }
}

impl fmt::Display for Wqe<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show_segment(f, 0, &self.control.emit())?;
        write!(f, "{}", self.control)?;
        let mut at = SEGMENT;
        if let Some(remote) = &self.remote {
            show_segment(f, at, &remote.emit())?;
            write!(f, "{remote}")?;
            at += SEGMENT;
        }
        macro_rules! show {
            ($segment:expr) => {{
                let bytes = $segment.emit();
                show_segment(f, at, &bytes)?;
                write!(f, "{}", $segment)?;
                at += bytes.len();
            }};
        }
        match &self.atomic {
            Some(Atomic::Plain(operands)) => show!(operands),
            Some(Atomic::CompareSwap4(operands)) => show!(operands),
            Some(Atomic::CompareSwap8(operands)) => show!(operands),
            Some(Atomic::FetchAdd4(operands)) => show!(operands),
            Some(Atomic::FetchAdd8(operands)) => show!(operands),
            None => {}
        }
        if let Some(wait) = &self.wait {
            show!(wait);
        }
        for data in self.data() {
            match data {
                Data::Pointer(pointer) => {
                    show_segment(f, at, &pointer.emit())?;
                    write!(f, "{pointer}")?;
                    at += SEGMENT;
                }
                Data::Inline(bytes) => {
                    write!(f, "\n{at:3}: inline, {} bytes:", bytes.len())?;
                    bytes.iter().try_for_each(|byte| write!(f, " {byte:02x}"))?;
                    at += (HEADER + bytes.len()).next_multiple_of(SEGMENT);
                }
            }
        }
        Ok(())
    }
}

fn show_segment(f: &mut fmt::Formatter<'_>, at: usize, bytes: &[u8]) -> fmt::Result {
    if at > 0 {
        writeln!(f)?;
    }
    write!(f, "{at:3}:")?;
    bytes.iter().try_for_each(|byte| write!(f, " {byte:02x}"))?;
    write!(f, " ")
}
