//! What reliable connections promise (IBA 9.7, 9.9), stated as simply as possible: requests of one QP are executed in order and
//! exactly once; the first that cannot be is refused with its code, and nothing behind it is executed.
//!
//! Knows: memories as byte arrays, requests, receives. No packets, no time, no state of any NIC.
//! Must not know: the simulated NIC. Syndromes are numbers of the PRM's table of error CQEs.

use std::ops::Range;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Write,
    WriteImmediate,
    Read,
    Send,
    SendImmediate,
    SendInvalidate,
    CompareSwap,
    FetchAdd,
    /// Of 8 bytes.
    MaskedCompareSwap,
    /// Of 4 bytes.
    MaskedFetchAdd,
    Nop,
    /// Reads its local memory.
    Dump,
    /// No such opcode.
    Malformed,
}

/// The local key of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocalKey {
    Good,
    /// Names nothing.
    Wrong,
    /// Nothing may be written by it.
    ReadOnly,
}

/// The remote key of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemoteKey {
    Good,
    Wrong,
    /// Allows READ alone.
    ReadOnly,
    /// Allows all until a SEND invalidates it.
    Extra,
}

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    /// Where its data is or goes in the requester's memory, in order.
    pub(crate) local: Vec<Range<usize>>,
    pub(crate) local_key: LocalKey,
    /// The data itself, in place of memory.
    pub(crate) inline: Option<Vec<u8>>,
    /// Where it acts in the responder's memory.
    pub(crate) remote: usize,
    pub(crate) remote_key: RemoteKey,
    pub(crate) immediate: u32,
    /// Compare, swap; or add.
    pub(crate) operands: (u64, u64),
    /// Of a masked atomic: bits compared and swapped; or last bits of the fields that are added.
    pub(crate) masks: (u64, u64),
}

impl Request {
    pub(crate) fn len(&self) -> usize {
        match &self.inline {
            Some(data) => data.len(),
            None => self.local.iter().map(Range::len).sum(),
        }
    }

    /// Bytes that it changes as one.
    pub(crate) fn atomic(&self) -> Option<usize> {
        match self.kind {
            Kind::CompareSwap | Kind::FetchAdd | Kind::MaskedCompareSwap => Some(8),
            Kind::MaskedFetchAdd => Some(4),
            _ => None,
        }
    }

    /// It brings data back.
    pub(crate) fn fetches(&self) -> bool {
        self.kind == Kind::Read || self.atomic().is_some()
    }

    pub(crate) fn is_send(&self) -> bool {
        matches!(
            self.kind,
            Kind::Send | Kind::SendImmediate | Kind::SendInvalidate
        )
    }

    pub(crate) fn takes_receive(&self) -> bool {
        self.is_send() || self.kind == Kind::WriteImmediate
    }

    /// Where it acts in the responder's memory.
    pub(crate) fn remote_range(&self) -> Range<usize> {
        let acts = self.fetches() || matches!(self.kind, Kind::Write | Kind::WriteImmediate);
        if acts {
            self.remote..self.remote + self.len()
        } else {
            0..0
        }
    }
}

/// A receive.
#[derive(Clone, Debug)]
pub(crate) struct Receive {
    pub(crate) pieces: Vec<Range<usize>>,
    /// Its keys name nothing.
    pub(crate) wrong_key: bool,
}

/// What both QPs allow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) mtu: usize,
    pub(crate) writes: bool,
    pub(crate) reads: bool,
    pub(crate) atomics: bool,
}

/// A change of a memory: bytes of a message, in order, with their places.
pub(crate) type Changes = Vec<(usize, Vec<u8>)>;

/// What one request did.
#[derive(Clone, Debug, Default)]
pub(crate) struct Effect {
    pub(crate) at_responder: Changes,
    pub(crate) at_requester: Changes,
    /// The receive that it took: bytes, immediate.
    pub(crate) received: Option<(usize, u32)>,
}

/// Why a request was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// By the requester: no packet was sent.
    Local(u8),
    /// No receive was posted, and the retries end.
    NotReady,
    /// By the responder, which goes to ERR: syndrome at the requester, and at the receive if one is in use.
    Remote(u8, Option<u8>),
}

impl Refusal {
    /// Syndrome at the requester.
    pub(crate) fn syndrome(self) -> u8 {
        match self {
            Self::Local(code) | Self::Remote(code, _) => code,
            Self::NotReady => 0x16,
        }
    }
}

/// What became of all requests of a QP.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Of each request that is executed.
    pub(crate) effects: Vec<Effect>,
    /// Why the next one is not, and what of it happens all the same.
    pub(crate) refused: Option<(Refusal, Effect)>,
}

/// Requests of one QP, and the memories of both ends. They share no byte with those of other QPs, or of the other direction.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    pub(crate) rules: Rules,
    pub(crate) local: Vec<u8>,
    pub(crate) remote: Vec<u8>,
    pub(crate) requests: Vec<Request>,
    pub(crate) receives: Vec<Receive>,
}

const LOCAL_LENGTH: u8 = 0x01;
const LOCAL_QP_OPERATION: u8 = 0x02;
const LOCAL_PROTECTION: u8 = 0x04;
const REMOTE_INVALID_REQUEST: u8 = 0x12;
const REMOTE_ACCESS: u8 = 0x13;
const REMOTE_OPERATION: u8 = 0x14;

impl Stream {
    /// Executes all requests, one after another.
    pub(crate) fn outcome(&self) -> Outcome {
        let mut state = State {
            rules: self.rules,
            local: self.local.clone(),
            remote: self.remote.clone(),
            receives: self.receives.iter(),
            extra: true,
        };
        let mut outcome = Outcome::default();
        for request in &self.requests {
            match state.execute(request) {
                Ok(effect) => {
                    apply(&mut state.remote, &effect.at_responder, usize::MAX);
                    apply(&mut state.local, &effect.at_requester, usize::MAX);
                    outcome.effects.push(effect);
                }
                Err(refused) => {
                    outcome.refused = Some(refused);
                    break;
                }
            }
        }
        outcome
    }
}

/// Makes the first `len` bytes of a message's changes.
pub(crate) fn apply(memory: &mut [u8], changes: &Changes, mut len: usize) {
    for (at, bytes) in changes {
        let part = bytes.len().min(len);
        // A message without bytes may be for anywhere.
        if part == 0 {
            continue;
        }
        memory[*at..*at + part].copy_from_slice(&bytes[..part]);
        len -= part;
    }
}

struct State<'a> {
    rules: Rules,
    local: Vec<u8>,
    remote: Vec<u8>,
    receives: std::slice::Iter<'a, Receive>,
    /// The extra key is valid.
    extra: bool,
}

type Refused = (Refusal, Effect);

impl State<'_> {
    fn execute(&mut self, request: &Request) -> Result<Effect, Refused> {
        let refuse = |refusal| Err((refusal, Effect::default()));
        if request.kind == Kind::Malformed {
            return refuse(Refusal::Local(LOCAL_QP_OPERATION));
        }
        let len = request.len();
        let usable = match request.local_key {
            LocalKey::Good => true,
            LocalKey::Wrong => false,
            LocalKey::ReadOnly => !request.fetches(),
        };
        if len > 0 && !usable && request.inline.is_none() {
            return refuse(Refusal::Local(LOCAL_PROTECTION));
        }
        let gather = || {
            let pieces = request.local.iter();
            pieces.flat_map(|piece| self.local[piece.clone()].to_vec())
        };
        let data = request.inline.clone().unwrap_or_else(|| gather().collect());
        match request.kind {
            Kind::Write | Kind::WriteImmediate => self.write(request, data),
            Kind::Send | Kind::SendImmediate | Kind::SendInvalidate => self.send(request, data),
            Kind::Read => {
                self.allow(self.rules.reads)?;
                self.reach(request, len, RemoteKey::ReadOnly)?;
                // Without bytes it may be anywhere.
                let bytes = match len {
                    0 => &[],
                    _ => &self.remote[request.remote..][..len],
                };
                Ok(Effect {
                    at_requester: spread(&request.local, bytes),
                    ..Effect::default()
                })
            }
            Kind::CompareSwap | Kind::FetchAdd | Kind::MaskedCompareSwap | Kind::MaskedFetchAdd => {
                self.atomic(request)
            }
            Kind::Nop | Kind::Dump | Kind::Malformed => Ok(Effect::default()),
        }
    }

    fn atomic(&self, request: &Request) -> Result<Effect, Refused> {
        let size = request.len();
        self.allow(self.rules.atomics && request.remote.is_multiple_of(size))?;
        self.reach(request, size, RemoteKey::Good)?;
        let original = self.remote[request.remote..][..size].to_vec();
        let mut value = [0; 8];
        value[..size].copy_from_slice(&original);
        let value = u64::from_le_bytes(value);
        let ((a, b), (compared, swapped)) = (request.operands, request.masks);
        let new = match request.kind {
            Kind::FetchAdd => value.wrapping_add(a),
            Kind::MaskedFetchAdd => add_in_fields(value, a, compared),
            Kind::CompareSwap if value == a => b,
            Kind::MaskedCompareSwap if value & compared == a & compared => {
                value & !swapped | b & swapped
            }
            _ => value,
        };
        Ok(Effect {
            at_responder: vec![(request.remote, new.to_le_bytes()[..size].to_vec())],
            at_requester: spread(&request.local, &original),
            ..Effect::default()
        })
    }

    fn allow(&self, holds: bool) -> Result<(), Refused> {
        let refusal = Refusal::Remote(REMOTE_INVALID_REQUEST, None);
        holds.then_some(()).ok_or((refusal, Effect::default()))
    }

    /// The request's key reaches the bytes. `least`: what a read-only key would have to be.
    fn reach(&self, request: &Request, len: usize, least: RemoteKey) -> Result<(), Refused> {
        let good = match request.remote_key {
            RemoteKey::Good => true,
            RemoteKey::Wrong => false,
            RemoteKey::ReadOnly => least == RemoteKey::ReadOnly,
            RemoteKey::Extra => self.extra,
        };
        // The key of a message without bytes is not looked at (IBA 9.7).
        if len == 0 || (good && request.remote + len <= self.remote.len()) {
            Ok(())
        } else {
            Err((Refusal::Remote(REMOTE_ACCESS, None), Effect::default()))
        }
    }

    fn write(&mut self, request: &Request, data: Vec<u8>) -> Result<Effect, Refused> {
        self.allow(self.rules.writes)?;
        self.reach(request, data.len(), RemoteKey::Good)?;
        let len = data.len();
        let mut effect = Effect {
            at_responder: vec![(request.remote, data)],
            ..Effect::default()
        };
        if request.kind == Kind::WriteImmediate {
            if self.receives.next().is_none() {
                // The last packet waits for a receive; those before it need none.
                let before = len.saturating_sub(1) / self.rules.mtu * self.rules.mtu;
                effect.at_responder[0].1.truncate(before);
                return Err((Refusal::NotReady, effect));
            }
            effect.received = Some((len, request.immediate));
        }
        Ok(effect)
    }

    fn send(&mut self, request: &Request, data: Vec<u8>) -> Result<Effect, Refused> {
        let Some(receive) = self.receives.next() else {
            return Err((Refusal::NotReady, Effect::default()));
        };
        let room: usize = receive.pieces.iter().map(Range::len).sum();
        let mtu = self.rules.mtu;
        if receive.wrong_key && !data.is_empty() && data.len().min(mtu) <= room {
            let refusal = Refusal::Remote(REMOTE_OPERATION, Some(LOCAL_PROTECTION));
            return Err((refusal, Effect::default()));
        }
        if data.len() > room {
            // Whole packets that fit land.
            let fits = if receive.wrong_key {
                0
            } else {
                room / mtu * mtu
            };
            let effect = Effect {
                at_responder: spread(&receive.pieces, &data[..fits]),
                ..Effect::default()
            };
            let refusal = Refusal::Remote(REMOTE_INVALID_REQUEST, Some(LOCAL_LENGTH));
            return Err((refusal, effect));
        }
        if request.kind == Kind::SendInvalidate {
            self.extra = false;
        }
        let told = match request.kind {
            Kind::Send => 0,
            _ => request.immediate,
        };
        Ok(Effect {
            at_responder: spread(&receive.pieces, &data),
            received: Some((data.len(), told)),
            ..Effect::default()
        })
    }
}

/// The sum, bit by bit: no carry leaves a bit that is set in `last`.
fn add_in_fields(a: u64, b: u64, last: u64) -> u64 {
    let (mut sum, mut carry) = (0, 0);
    for bit in 0..64 {
        let total = (a >> bit & 1) + (b >> bit & 1) + carry;
        sum |= (total & 1) << bit;
        carry = if last >> bit & 1 == 1 { 0 } else { total >> 1 };
    }
    sum
}

/// Bytes laid over pieces.
fn spread(pieces: &[Range<usize>], mut bytes: &[u8]) -> Changes {
    let mut changes = vec![];
    for piece in pieces {
        let (head, rest) = bytes.split_at(piece.len().min(bytes.len()));
        changes.push((piece.start, head.to_vec()));
        bytes = rest;
    }
    changes
}
