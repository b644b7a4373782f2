//! The native build of the device crate as a builder of WQEs.
//!
//! Knows: which of its operations says what a request says: one line each in [`post`], and in [`Own::post`] for what verbs cannot
//! ask for. Must not know: verbs.

use warpverbs_device::abi::{Line, QpHandle, State, VERSION};
use warpverbs_device::op::{
    CompareSwap, Dump, Fenced, FetchAdd, InlineFrom, MaskedCompareSwap4, MaskedCompareSwap8,
    MaskedFetchAdd4, MaskedFetchAdd8, Nop, Read, ReadInto, Send, SendFrom, SendImm, SendInline,
    WaitCqe, Work, Write, WriteFrom, WriteImm, WriteInline, WriteInlineFrom,
};
use warpverbs_device::{
    BlueFlame, Db, DbEarly, Doorbell, Error, Exclusive, Gpu, Inline, Local, Remote, Ring, Sharing,
    Sq, Ticket,
};
use warpverbs_wire::wqe::{
    MASKED_4, MASKED_8, Opcode, Segment, control, control_head, data, masked_compare_swap_4,
    masked_compare_swap_8, masked_fetch_add_4, masked_fetch_add_8, qpn_ds, remote, segment_bytes,
    wait, with_opmod,
};

use crate::memory::Memory;
use crate::request::{Kind, Payload, Pointer, Request};

type Posted = Result<Ticket, Error>;

/// Posts an operation, fenced if the request is.
fn with_fence<S: Sharing, D: Doorbell>(
    sq: &mut Sq<S, D, Ring>,
    request: &Request,
    work: impl Work,
) -> Posted {
    if request.fence {
        sq.post(Fenced::reads(work))
    } else {
        sq.post(work)
    }
}

fn local(pointer: Pointer) -> Local {
    Local {
        addr: pointer.addr,
        lkey: pointer.key,
    }
}

/// Posts what a request says; `None` if the device has no operation for it.
fn post<S: Sharing, D: Doorbell>(sq: &mut Sq<S, D, Ring>, request: &Request) -> Option<Posted> {
    // All that it posts here is signalled.
    if !request.signalled || request.solicited {
        return None;
    }
    let remote = Remote {
        addr: request.remote.0,
        rkey: request.remote.1,
    };
    let (first, second) = request.operands;
    let immediate = request.immediate;
    let one = match &request.data {
        Payload::Pointers(pointers) if pointers.len() == 1 => pointers[0],
        Payload::Pointers(_) => return several(sq, request, remote),
        Payload::Inline(parts) => return inline(sq, request, remote, &parts.concat()),
    };
    let (at, len) = (local(one), sq.length(one.len).ok()?);
    let write = Write::new(at, remote, len);
    let send = Send::new(at, len);
    Some(match request.kind {
        Kind::Write => with_fence(sq, request, write),
        Kind::WriteImmediate => with_fence(sq, request, WriteImm::new(write, immediate)),
        Kind::Read => with_fence(sq, request, Read::new(at, remote, len)),
        Kind::Send => with_fence(sq, request, send),
        Kind::SendImmediate => with_fence(sq, request, SendImm::new(send, immediate)),
        Kind::CompareSwap => with_fence(
            sq,
            request,
            CompareSwap::new(at, remote, second, first).ok()?,
        ),
        Kind::FetchAdd => with_fence(sq, request, FetchAdd::new(at, remote, first).ok()?),
        Kind::SendInvalidate => return None,
    })
}

fn inline<S: Sharing, D: Doorbell>(
    sq: &mut Sq<S, D, Ring>,
    request: &Request,
    remote: Remote,
    bytes: &[u8],
) -> Option<Posted> {
    let mut words = [0; 7];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks(4)) {
        let mut four = [0; 4];
        four[..chunk.len()].copy_from_slice(chunk);
        *word = u32::from_le_bytes(four);
    }
    let len = bytes.len() as u32;
    let held = Inline::new(words, len);
    // SAFETY: `new` demands that the bytes live, and that nobody writes them, until the operation is posted: they are borrowed.
    let there = unsafe { InlineFrom::new(bytes.as_ptr().expose_provenance() as u64, len) }.ok()?;
    let immediate = Some(request.immediate);
    Some(match (request.kind, held) {
        (Kind::Write, Some(held)) => with_fence(sq, request, WriteInline::new(remote, held)),
        (Kind::Write, None) => with_fence(sq, request, WriteInlineFrom::new(remote, there, None)),
        (Kind::WriteImmediate, _) => {
            with_fence(sq, request, WriteInlineFrom::new(remote, there, immediate))
        }
        (Kind::Send, Some(held)) => with_fence(sq, request, SendInline::new(held, None)),
        (Kind::SendImmediate, Some(held)) => {
            with_fence(sq, request, SendInline::new(held, immediate))
        }
        _ => return None,
    })
}

/// How many pieces the requests of many buffers have here: the device takes the number as a type.
pub const PIECES: [usize; 6] = [2, 3, 4, 5, 8, 16];

fn several<S: Sharing, D: Doorbell>(
    sq: &mut Sq<S, D, Ring>,
    request: &Request,
    remote: Remote,
) -> Option<Posted> {
    let Payload::Pointers(pointers) = &request.data else {
        return None;
    };
    match pointers.len() {
        2 => gather::<2, S, D>(sq, request, remote, pointers),
        3 => gather::<3, S, D>(sq, request, remote, pointers),
        4 => gather::<4, S, D>(sq, request, remote, pointers),
        5 => gather::<5, S, D>(sq, request, remote, pointers),
        8 => gather::<8, S, D>(sq, request, remote, pointers),
        16 => gather::<16, S, D>(sq, request, remote, pointers),
        _ => None,
    }
}

fn gather<const N: usize, S: Sharing, D: Doorbell>(
    sq: &mut Sq<S, D, Ring>,
    request: &Request,
    remote: Remote,
    pointers: &[Pointer],
) -> Option<Posted> {
    let pieces = std::array::from_fn::<_, N, _>(|at| (local(pointers[at]), pointers[at].len));
    let pieces = sq.pieces(pieces).ok()?;
    Some(match request.kind {
        Kind::Write => with_fence(sq, request, WriteFrom::new(pieces, remote)),
        Kind::Read => with_fence(sq, request, ReadInto::new(pieces, remote)),
        Kind::Send => with_fence(sq, request, SendFrom::new(pieces, None)),
        Kind::SendImmediate => {
            with_fence(sq, request, SendFrom::new(pieces, Some(request.immediate)))
        }
        _ => return None,
    })
}

/// Operations that verbs cannot ask for.
#[derive(Clone, Copy, Debug)]
pub enum Own {
    Nop,
    Dump(Pointer),
    Wait { index: u32, cqn: u32 },
    CompareSwap4(Aimed, [u32; 4]),
    CompareSwap8(Aimed, [u64; 4]),
    FetchAdd4(Aimed, [u32; 2]),
    FetchAdd8(Aimed, [u64; 2]),
}

/// Where an atomic finds its value, and where it puts it.
#[derive(Clone, Copy, Debug)]
pub struct Aimed {
    pub remote: (u64, u32),
    pub local: Pointer,
}

impl Aimed {
    fn places(&self) -> (Local, Remote) {
        let remote = Remote {
            addr: self.remote.0,
            rkey: self.remote.1,
        };
        (local(self.local), remote)
    }

    fn around(&self, operands: &[Segment], bytes: u32) -> Vec<Segment> {
        let mut segments = vec![remote(self.remote.0, self.remote.1)];
        segments.extend(operands);
        segments.push(data(bytes, self.local.key, self.local.addr));
        segments
    }
}

impl Own {
    fn parts(&self) -> (Opcode, u8, Vec<Segment>) {
        match *self {
            Self::Nop => (Opcode::Nop, 0, Vec::new()),
            Self::Dump(at) => (Opcode::Dump, 0, vec![data(at.len, at.key, at.addr)]),
            Self::Wait { index, cqn } => (Opcode::Wait, 0, vec![wait(index, cqn)]),
            Self::CompareSwap4(aimed, [swap, compare, swap_mask, compare_mask]) => {
                let operands = masked_compare_swap_4(swap, compare, swap_mask, compare_mask);
                (
                    Opcode::AtomicMaskedCompareSwap,
                    MASKED_4,
                    aimed.around(&[operands], 4),
                )
            }
            Self::CompareSwap8(aimed, [swap, compare, swap_mask, compare_mask]) => {
                let operands = masked_compare_swap_8(swap, compare, swap_mask, compare_mask);
                (
                    Opcode::AtomicMaskedCompareSwap,
                    MASKED_8,
                    aimed.around(&operands, 8),
                )
            }
            Self::FetchAdd4(aimed, [add, boundary]) => {
                let operands = masked_fetch_add_4(add, boundary);
                (
                    Opcode::AtomicMaskedFetchAdd,
                    MASKED_4,
                    aimed.around(&[operands], 4),
                )
            }
            Self::FetchAdd8(aimed, [add, boundary]) => {
                let operands = masked_fetch_add_8(add, boundary);
                (
                    Opcode::AtomicMaskedFetchAdd,
                    MASKED_8,
                    aimed.around(&[operands], 8),
                )
            }
        }
    }

    /// The WQE by `wire`'s builders.
    pub fn built(&self, index: u64, qpn: u32, flags: u8, immediate: u32) -> Vec<u8> {
        let (opcode, opmod, segments) = self.parts();
        let ds = 1 + segments.len() as u32;
        let head = with_opmod(control_head(index, opcode, qpn_ds(qpn, ds)), opmod);
        let first = control(head, flags, immediate);
        let all = std::iter::once(first).chain(segments);
        all.flat_map(segment_bytes).collect()
    }

    fn post<S: Sharing, D: Doorbell>(&self, sq: &mut Sq<S, D, Ring>) -> Posted {
        match *self {
            Self::Nop => sq.post(Nop),
            Self::Dump(at) => {
                let len = sq.length(at.len)?;
                sq.post(Dump::new(local(at), len))
            }
            Self::Wait { index, cqn } => sq.post(WaitCqe::new(cqn, index)),
            Self::CompareSwap4(aimed, [swap, compare, swap_mask, compare_mask]) => {
                let (at, from) = aimed.places();
                sq.post(MaskedCompareSwap4::new(
                    at,
                    from,
                    compare,
                    compare_mask,
                    swap,
                    swap_mask,
                )?)
            }
            Self::CompareSwap8(aimed, [swap, compare, swap_mask, compare_mask]) => {
                let (at, from) = aimed.places();
                sq.post(MaskedCompareSwap8::new(
                    at,
                    from,
                    compare,
                    compare_mask,
                    swap,
                    swap_mask,
                )?)
            }
            Self::FetchAdd4(aimed, [add, boundary]) => {
                let (at, from) = aimed.places();
                sq.post(MaskedFetchAdd4::new(at, from, add, boundary)?)
            }
            Self::FetchAdd8(aimed, [add, boundary]) => {
                let (at, from) = aimed.places();
                sq.post(MaskedFetchAdd8::new(at, from, add, boundary)?)
            }
        }
    }
}

/// What the device wrote.
#[derive(Debug)]
pub struct Built {
    pub wqe: Vec<u8>,
    pub record: [u8; 4],
    /// What lies at the register: a doorbell, or the WQE's first block and what was behind it in the ring.
    pub register: [u8; 64],
    /// The WQE was pushed.
    pub pushed: bool,
}

/// Slots of the queue.
const DEPTH: u32 = 64;
/// What memory holds that was not stored to.
pub const POISON: u8 = 0xa5;
/// Entries of the CQs here: libmlx5's too, so that owner bits are the same.
pub const CQES: u32 = 128;
/// Where in a page the register lies.
const REGISTER: usize = 0x800;
/// Where in another page doorbell record and stop word lie.
const RECORD: usize = 0;
const STOP: usize = 64;

/// A QP in memory that nobody reads.
pub struct Bench {
    handle: Memory,
    sq: Memory,
    cq: Memory,
    page: Memory,
    words: Memory,
}

impl Bench {
    pub fn new() -> Self {
        Self {
            handle: Memory::leak(size_of::<QpHandle>()),
            sq: Memory::leak(DEPTH as usize * 64),
            cq: Memory::leak(CQES as usize * 64),
            page: Memory::leak(4096),
            words: Memory::leak(4096),
        }
    }

    /// Writes the handle of a QP whose queues have got so far and are empty.
    fn export(&self, qpn: u32, index: u64, consumer: u64) {
        let handle = QpHandle {
            version: VERSION,
            flags: 0,
            sq: self.sq.addr(),
            dbr: self.words.addr() + RECORD as u64 + 4,
            doorbell: self.page.addr() + REGISTER as u64,
            sq_depth: DEPTH,
            qpn,
            cq: self.cq.addr(),
            cq_depth: CQES,
            log_max_message: 30,
            stop: self.words.addr() + STOP as u64,
            cqn: 0,
            user_index: 0,
            cq_dbr: 0,
            proxy: 0,
            rq: 0,
            rest: [0; 4],
            reserved: Line {
                // How far the WQE's index is ahead of its CQE's.
                second: index.wrapping_sub(consumer),
                ..Line::new(index)
            },
            turn: Line::new(index),
            completed: Line {
                second: consumer,
                ..Line::new(index)
            },
            state: Line::new(0),
        };
        self.handle.put(0, &handle.to_bytes());
        self.words.fill(0, 128, 0);
        self.page.fill(REGISTER, 64, POISON);
    }

    fn open<S: Sharing, D: Doorbell>(&self) -> Sq<S, D, Ring> {
        // SAFETY: `open` demands a handle that stays with all it names: they are leaked; that no other thread uses it: nobody
        // else knows it. Nothing is in flight, as no NIC sees it.
        unsafe { Sq::open(self.handle.addr()) }.expect("the handle is sound")
    }

    fn run<S: Sharing, D: Doorbell>(
        &self,
        qpn: u32,
        index: u64,
        pushes: bool,
        post: impl FnOnce(&mut Sq<S, D, Ring>) -> Option<Posted>,
    ) -> Option<Built> {
        self.export(qpn, index, 0);
        let slot = (index % u64::from(DEPTH)) as usize * 64;
        self.sq.fill(slot, DEPTH as usize * 64, POISON);
        let mut sq = self.open::<S, D>();
        post(&mut sq)?.unwrap_or_else(|error| panic!("{error:?}"));
        drop(sq);
        let all = self.sq.get(slot, DEPTH as usize * 64);
        let segments = usize::from(all[7]);
        assert!(
            all[segments * 16..].iter().all(|byte| *byte == POISON),
            "stores behind the WQE: {all:x?}"
        );
        Some(Built {
            wqe: all[..segments * 16].to_vec(),
            record: self.words.get(RECORD + 4, 4).try_into().expect("4 bytes"),
            register: self.page.get(REGISTER, 64).try_into().expect("64 bytes"),
            pushed: pushes && segments <= 4,
        })
    }

    /// The WQE of a request in each of the modes; nothing if the device has no operation for it.
    pub fn build(&self, request: &Request, qpn: u32, index: u64) -> Vec<Built> {
        [
            self.run::<Exclusive, Db>(qpn, index, false, |sq| post(sq, request)),
            self.run::<Exclusive, DbEarly>(qpn, index, false, |sq| post(sq, request)),
            self.run::<Exclusive, BlueFlame>(qpn, index, true, |sq| post(sq, request)),
            self.run::<Gpu, Db>(qpn, index, false, |sq| post(sq, request)),
            self.run::<Gpu, DbEarly>(qpn, index, false, |sq| post(sq, request)),
            self.run::<Gpu, BlueFlame>(qpn, index, true, |sq| post(sq, request)),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// As [`Self::build`].
    pub fn build_own(&self, own: &Own, qpn: u32, index: u64) -> Vec<Built> {
        [
            self.run::<Exclusive, Db>(qpn, index, false, |sq| Some(own.post(sq))),
            self.run::<Gpu, BlueFlame>(qpn, index, true, |sq| Some(own.post(sq))),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// What the device makes of a CQE at `consumer`, of the WQE at `index`, which is all that is outstanding: the state at fault,
    /// if it is one.
    pub fn read(&self, cqe: &[u8], consumer: u64, qpn: u32, index: u64) -> Option<State> {
        let slot = (consumer % u64::from(CQES)) as usize * 64;
        self.cq.put(slot, cqe);
        let own = self.take::<Exclusive>(consumer, qpn, index);
        let shared = self.take::<Gpu>(consumer, qpn, index);
        self.cq.fill(slot, 64, 0xff);
        assert_eq!(own, shared, "{cqe:x?}");
        own
    }

    fn take<S: Sharing>(&self, consumer: u64, qpn: u32, index: u64) -> Option<State> {
        self.export(qpn, index, consumer);
        let mut sq = self.open::<S, Db>();
        let ticket = sq.post(Nop).expect("there is room");
        match sq.wait(ticket) {
            Ok(()) => None,
            Err(Error::Fault(state)) => Some(state),
            Err(other) => panic!("{other:?}: no CQE at {consumer:#x}"),
        }
    }
}
