//! A work request with parameters by chance, and its WQE as `wire` builds it.
//!
//! Knows: which segments a WQE has, and which of its bytes a poster may leave alone.
//! Must not know: verbs.

use std::ops::Range;

use warpverbs_sim_bus::Rng;
use warpverbs_wire::wqe::{
    AtomicOperands, Control, Data, DataPointer, FENCE, INLINE, InlineHeader, Opcode, RemoteAddress,
    SIGNALLED, SOLICITED, Segment, Wqe, compare_swap, control, control_head, data, fetch_add,
    inline_head, inline_segments, qpn_ds, remote, segment_bytes,
};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Write,
    WriteImmediate,
    Read,
    Send,
    SendImmediate,
    SendInvalidate,
    CompareSwap,
    FetchAdd,
}

impl Kind {
    pub const ALL: [Self; 8] = [
        Self::Write,
        Self::WriteImmediate,
        Self::Read,
        Self::Send,
        Self::SendImmediate,
        Self::SendInvalidate,
        Self::CompareSwap,
        Self::FetchAdd,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Write => "WRITE",
            Self::WriteImmediate => "WRITE_IMM",
            Self::Read => "READ",
            Self::Send => "SEND",
            Self::SendImmediate => "SEND_IMM",
            Self::SendInvalidate => "SEND_INVAL",
            Self::CompareSwap => "CAS",
            Self::FetchAdd => "FAA",
        }
    }

    pub fn opcode(self) -> Opcode {
        match self {
            Self::Write => Opcode::RdmaWrite,
            Self::WriteImmediate => Opcode::RdmaWriteImmediate,
            Self::Read => Opcode::RdmaRead,
            Self::Send => Opcode::Send,
            Self::SendImmediate => Opcode::SendImmediate,
            Self::SendInvalidate => Opcode::SendInvalidate,
            Self::CompareSwap => Opcode::AtomicCompareSwap,
            Self::FetchAdd => Opcode::AtomicFetchAdd,
        }
    }

    /// The control segment carries immediate data, or a key.
    pub fn has_immediate(self) -> bool {
        matches!(
            self,
            Self::WriteImmediate | Self::SendImmediate | Self::SendInvalidate
        )
    }

    pub fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }
}

/// How the data is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One buffer.
    One,
    /// None to [`MOST_POINTERS`] buffers.
    Gather,
    /// In the WQE, of one to four pieces.
    Inline,
}

impl Shape {
    pub const ALL: [Self; 3] = [Self::One, Self::Gather, Self::Inline];

    pub fn name(self) -> &'static str {
        match self {
            Self::One => "",
            Self::Gather => " of many buffers",
            Self::Inline => " inline",
        }
    }

    pub fn fits(self, kind: Kind) -> bool {
        match self {
            Self::One => true,
            Self::Gather => !kind.is_atomic(),
            Self::Inline => kind.opcode().may_inline(),
        }
    }
}

/// Most buffers of a request.
pub const MOST_POINTERS: u32 = 16;
/// Most bytes of inline data of a request.
pub const MOST_INLINE: u32 = 400;

/// A buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    pub addr: u64,
    pub len: u32,
    pub key: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    Pointers(Vec<Pointer>),
    Inline(Vec<Vec<u8>>),
}

/// A work request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub kind: Kind,
    pub id: u64,
    pub signalled: bool,
    pub solicited: bool,
    pub fence: bool,
    /// Address and key.
    pub remote: (u64, u32),
    /// Immediate data, or key to invalidate.
    pub immediate: u32,
    /// What to swap in or to add, and what to compare with.
    pub operands: (u64, u64),
    pub data: Payload,
}

/// A number that is as often small, large, or has few bits, as any.
pub fn number(rng: &mut Rng) -> u64 {
    let any = rng.next_u64();
    match rng.below(4) {
        0 => any >> rng.below(64),
        1 => u64::MAX << rng.below(64),
        2 => 1 << rng.below(64),
        _ => any,
    }
}

pub fn chance(rng: &mut Rng) -> bool {
    rng.below(2) == 0
}

/// A buffer of 1 to 2^31 - 1 bytes.
pub fn pointer(rng: &mut Rng) -> Pointer {
    Pointer {
        addr: number(rng),
        len: (number(rng) as u32 & 0x7fff_ffff).max(1),
        key: number(rng) as u32,
    }
}

impl Request {
    /// A request by chance.
    pub fn random(rng: &mut Rng, kind: Kind, shape: Shape) -> Self {
        let data = match shape {
            Shape::One => Payload::Pointers(vec![pointer(rng)]),
            Shape::Gather => {
                let count = rng.below(MOST_POINTERS + 1);
                Payload::Pointers((0..count).map(|_| pointer(rng)).collect())
            }
            Shape::Inline => {
                // As often short as long, so that all ends of segments are met.
                let most = if chance(rng) { 33 } else { MOST_INLINE };
                let mut left = 1 + rng.below(most);
                let mut parts = Vec::new();
                let most = 1 + rng.below(4);
                for part in 1..=most {
                    let len = if part == most {
                        left
                    } else {
                        rng.below(left + 1)
                    };
                    let mut bytes = vec![0; len as usize];
                    rng.fill(&mut bytes);
                    parts.push(bytes);
                    left -= len;
                }
                Payload::Inline(parts)
            }
        };
        Self {
            kind,
            id: rng.next_u64(),
            signalled: chance(rng),
            solicited: chance(rng),
            fence: chance(rng),
            remote: (number(rng), number(rng) as u32),
            immediate: number(rng) as u32,
            operands: (number(rng), number(rng)),
            data,
        }
    }

    /// A request that the device crate may have an operation for: signalled, not solicited, no more than the port's largest
    /// message, atomics aligned, as many buffers as one of `pieces` says.
    pub fn random_plain(rng: &mut Rng, kind: Kind, shape: Shape, pieces: &[usize]) -> Self {
        let mut request = Self::random(rng, kind, shape);
        (request.signalled, request.solicited) = (true, false);
        if kind.is_atomic() {
            request.remote.0 &= !7;
        }
        match &mut request.data {
            Payload::Pointers(pointers) => {
                let count = match shape {
                    Shape::Gather => pieces[rng.below(pieces.len() as u32) as usize],
                    _ => 1,
                };
                *pointers = (0..count).map(|_| pointer(rng)).collect();
                for pointer in pointers {
                    // The sum of 16 is no more than 2^30 bytes.
                    pointer.len = (pointer.len & 0x3ff_ffff).max(1);
                    if kind.is_atomic() {
                        (pointer.addr, pointer.len) = (pointer.addr & !7, 8);
                    }
                }
            }
            Payload::Inline(parts) => {
                let mut bytes = parts.concat();
                let most = match kind {
                    Kind::Write | Kind::WriteImmediate => MOST_INLINE,
                    _ => 28,
                };
                bytes.truncate(1 + rng.below(most) as usize);
                *parts = vec![bytes];
            }
        }
        request
    }

    fn flags(&self) -> u8 {
        let flag = |set, flag| if set { flag } else { 0 };
        flag(self.signalled, SIGNALLED) | flag(self.solicited, SOLICITED) | flag(self.fence, FENCE)
    }

    fn immediate(&self) -> u32 {
        if self.kind.has_immediate() {
            self.immediate
        } else {
            0
        }
    }

    /// Of an atomic, the value's bytes, whatever the buffer's.
    fn pointers(&self) -> Vec<Pointer> {
        let Payload::Pointers(pointers) = &self.data else {
            return Vec::new();
        };
        pointers
            .iter()
            .map(|pointer| match self.kind.is_atomic() {
                true => Pointer { len: 8, ..*pointer },
                false => *pointer,
            })
            .collect()
    }

    fn inline(&self) -> Option<Vec<u8>> {
        match &self.data {
            Payload::Inline(parts) => Some(parts.concat()),
            Payload::Pointers(_) => None,
        }
    }

    /// Segments of the WQE.
    pub fn segments(&self) -> u32 {
        let operands = u32::from(self.kind.is_atomic());
        let data = match self.inline() {
            Some(bytes) => inline_segments(bytes.len() as u32),
            None => self.pointers().len() as u32,
        };
        1 + u32::from(self.kind.opcode().has_remote()) + operands + data
    }

    /// The WQE, by the builders that give segments as two words: what device code uses.
    pub fn built(&self, index: u64, qpn: u32) -> Vec<u8> {
        let head = control_head(index, self.kind.opcode(), qpn_ds(qpn, self.segments()));
        let mut segments: Vec<Segment> = vec![control(head, self.flags(), self.immediate())];
        if self.kind.opcode().has_remote() {
            segments.push(remote(self.remote.0, self.remote.1));
        }
        match self.kind {
            Kind::CompareSwap => segments.push(compare_swap(self.operands.0, self.operands.1)),
            Kind::FetchAdd => segments.push(fetch_add(self.operands.0)),
            _ => {}
        }
        for pointer in self.pointers() {
            segments.push(data(pointer.len, pointer.key, pointer.addr));
        }
        if let Some(bytes) = self.inline() {
            let len = bytes.len() as u32;
            let mut padded = bytes;
            padded.resize(inline_segments(len) as usize * 16 - 4, 0);
            let word = |at: usize| u64::from_le_bytes(padded[at..at + 8].try_into().unwrap());
            let low = u32::from_le_bytes(padded[..4].try_into().unwrap());
            segments.push(inline_head(len, low, word(4)));
            segments.extend(
                (12..padded.len())
                    .step_by(16)
                    .map(|at| [word(at), word(at + 8)]),
            );
        }
        segments.into_iter().flat_map(segment_bytes).collect()
    }

    /// The WQE, by the structures that have names for fields: what the simulated NIC reads.
    pub fn emitted(&self, index: u64, qpn: u32) -> Vec<u8> {
        let control = Control {
            index: index as u16,
            opcode: self.kind.opcode(),
            qpn,
            ds: self.segments() as u8,
            flags: self.flags(),
            immediate: self.immediate(),
            ..Control::default()
        };
        let mut bytes = control.emit().to_vec();
        if self.kind.opcode().has_remote() {
            let (address, key) = self.remote;
            bytes.extend(RemoteAddress { address, key }.emit());
        }
        if self.kind.is_atomic() {
            let compare = match self.kind {
                Kind::CompareSwap => self.operands.1,
                _ => 0,
            };
            let operands = AtomicOperands {
                swap_or_add: self.operands.0,
                compare,
            };
            bytes.extend(operands.emit());
        }
        for pointer in self.pointers() {
            let pointer = DataPointer {
                byte_count: pointer.len,
                key: pointer.key,
                address: pointer.addr,
            };
            bytes.extend(pointer.emit());
        }
        if let Some(inline) = self.inline() {
            let byte_count = INLINE | inline.len() as u32;
            bytes.extend(InlineHeader { byte_count }.emit());
            bytes.extend(inline);
            bytes.resize(self.segments() as usize * 16, 0);
        }
        bytes
    }

    /// Bytes of the WQE that mean nothing, and that libmlx5 leaves as it finds them; our builders write zeroes there (rule O1):
    /// immediate data of an operation that has none (`ibv_wr_*` alone), what fetch and add would be compared with, and what
    /// follows inline data in its last segment.
    pub fn undefined(&self, immediate_is_left: bool) -> Vec<Range<usize>> {
        let mut undefined = Vec::new();
        if immediate_is_left && !self.kind.has_immediate() {
            undefined.push(12..16);
        }
        if self.kind == Kind::FetchAdd {
            undefined.push(40..48);
        }
        if let Some(bytes) = self.inline() {
            let before = self.segments() - inline_segments(bytes.len() as u32);
            let end = before as usize * 16 + 4 + bytes.len();
            undefined.push(end..self.segments() as usize * 16);
        }
        undefined
    }

    /// Panics unless `wire`'s reader finds the request in the bytes.
    pub fn is_read_from(&self, bytes: &[u8], index: u64, qpn: u32) -> Result<(), String> {
        let wqe = Wqe::decode(bytes).map_err(|error| error.to_string())?;
        let control = wqe.control;
        let found = (control.opcode, control.index, control.qpn, control.flags);
        let meant = (self.kind.opcode(), index as u16, qpn, self.flags());
        if found != meant {
            return Err(format!("read as {found:?}, not {meant:?}"));
        }
        if self.kind.has_immediate() && control.immediate != self.immediate {
            return Err(format!("immediate read as {:#x}", control.immediate));
        }
        let remote = wqe.remote.map(|remote| (remote.address, remote.key));
        if remote.is_some_and(|remote| remote != self.remote) {
            return Err(format!("remote read as {remote:x?}"));
        }
        let mut pointers = Vec::new();
        let mut inline: Option<Vec<u8>> = None;
        for data in wqe.data() {
            match data {
                Data::Pointer(found) => pointers.push(Pointer {
                    addr: found.address,
                    len: found.byte_count,
                    key: found.key,
                }),
                Data::Inline(bytes) => inline = Some(bytes.to_vec()),
            }
        }
        if pointers != self.pointers() || inline != self.inline() {
            return Err(format!("data read as {pointers:x?} {inline:x?}"));
        }
        Ok(())
    }
}
