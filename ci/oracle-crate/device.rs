//! The native build of the device crate as a builder of WQEs.
//!
//! Knows: which of its operations says what a request says: one line each in [`post`].
//! Must not know: verbs.

use std::sync::atomic::{AtomicU64, Ordering};

use warpverbs_device::abi::{Line, QpHandle, State, VERSION};
use warpverbs_device::{
    Db, DbEarly, Doorbell, Error, Exclusive, Gpu, Inline, Local, Remote, Ring, Sharing, Sq, Ticket,
};

use crate::memory::Memory;
use crate::request::{Kind, Payload, Request};

/// Posts what a request says; `None` if the device has no operation for it.
fn post<S: Sharing, D: Doorbell>(
    sq: &mut Sq<S, D, Ring>,
    request: &Request,
) -> Option<Result<Ticket, Error>> {
    // All that it posts is signalled, and has one buffer.
    if !request.is_plain() {
        return None;
    }
    let remote = Remote {
        addr: request.remote.0,
        rkey: request.remote.1,
    };
    let (local, len) = match &request.data {
        Payload::Pointers(pointers) => match pointers.as_slice() {
            [one] => (
                Local {
                    addr: one.addr,
                    lkey: one.key,
                },
                one.len,
            ),
            _ => return None,
        },
        Payload::Inline(_) => (Local { addr: 0, lkey: 0 }, 0),
    };
    let inline = inline(request);
    Some(match (request.kind, inline) {
        (Kind::Write, None) => sq.post_write(local, remote, len),
        (Kind::Write, Some(data)) => sq.post_write_inline(remote, data?),
        (Kind::Read, None) => sq.post_read(local, remote, len),
        _ => return None,
    })
}

/// Inline data, if the request has some; `None` within if it is too long for the device.
fn inline(request: &Request) -> Option<Option<Inline>> {
    let Payload::Inline(parts) = &request.data else {
        return None;
    };
    let bytes = parts.concat();
    let mut words = [0; 7];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks(4)) {
        let mut four = [0; 4];
        four[..chunk.len()].copy_from_slice(chunk);
        *word = u32::from_le_bytes(four);
    }
    Some(Inline::new(words, bytes.len() as u32))
}

/// What the device wrote.
#[derive(Debug)]
pub struct Built {
    pub wqe: Vec<u8>,
    pub record: [u8; 4],
    pub doorbell: [u8; 8],
}

/// Slots of the queue.
const DEPTH: u32 = 64;
/// What memory holds that was not stored to.
pub const POISON: u8 = 0xa5;

/// Entries of the CQs here: libmlx5's too, so that owner bits are the same.
pub const CQES: u32 = 128;

/// A QP in memory that nobody reads.
pub struct Bench {
    handle: Memory,
    sq: Memory,
    cq: Memory,
    /// Doorbell record, register, stop word.
    words: &'static [AtomicU64; 3],
}

impl Bench {
    pub fn new() -> Self {
        Self {
            handle: Memory::leak(size_of::<QpHandle>()),
            sq: Memory::leak(DEPTH as usize * 64),
            cq: Memory::leak(CQES as usize * 64),
            words: Box::leak(Box::new([const { AtomicU64::new(0) }; 3])),
        }
    }

    /// Writes the handle of a QP whose queues have got so far and are empty.
    fn export(&self, qpn: u32, index: u64, consumer: u64) {
        let word = |at: usize| self.words[at].as_ptr() as u64;
        let handle = QpHandle {
            version: VERSION,
            flags: 0,
            sq: self.sq.addr(),
            dbr: word(0) + 4,
            doorbell: word(1),
            sq_depth: DEPTH,
            qpn,
            cq: self.cq.addr(),
            cq_depth: CQES,
            log_max_message: 30,
            stop: word(2),
            reserved: Line::new(index),
            turn: Line::new(index),
            completed: Line {
                second: consumer,
                ..Line::new(index)
            },
            state: Line::new(0),
        };
        self.handle.put(0, &handle.to_bytes());
        for word in self.words {
            word.store(0, Ordering::Relaxed);
        }
    }

    fn open<S: Sharing, D: Doorbell>(&self) -> Sq<S, D, Ring> {
        // SAFETY: `open` demands a handle that stays with all it names: they are leaked; that no other thread uses it: nobody
        // else knows it. Nothing is in flight, as no NIC sees it.
        unsafe { Sq::open(self.handle.addr()) }.expect("the handle is sound")
    }

    fn run<S: Sharing, D: Doorbell>(
        &self,
        request: &Request,
        qpn: u32,
        index: u64,
    ) -> Option<Built> {
        self.export(qpn, index, 0);
        let slot = (index % u64::from(DEPTH)) as usize * 64;
        self.sq.fill(slot, 64, POISON);
        let mut sq = self.open::<S, D>();
        let ticket =
            post(&mut sq, request)?.unwrap_or_else(|error| panic!("{error:?}: {request:?}"));
        assert_eq!(ticket.index(), index + 1);
        drop(sq);
        let record = self.words[0].load(Ordering::Relaxed).to_le_bytes();
        let head = self.sq.get(slot, 64);
        let segments = usize::from(head[7]).min(4);
        assert!(
            head[segments * 16..].iter().all(|byte| *byte == POISON),
            "stores behind the WQE: {head:x?}"
        );
        Some(Built {
            wqe: head[..segments * 16].to_vec(),
            record: [record[4], record[5], record[6], record[7]],
            doorbell: self.words[1].load(Ordering::Relaxed).to_le_bytes(),
        })
    }

    /// The WQE of a request in each of the modes; nothing if the device has no operation for it.
    pub fn build(&self, request: &Request, qpn: u32, index: u64) -> Vec<Built> {
        [
            self.run::<Exclusive, Db>(request, qpn, index),
            self.run::<Exclusive, DbEarly>(request, qpn, index),
            self.run::<Gpu, Db>(request, qpn, index),
            self.run::<Gpu, DbEarly>(request, qpn, index),
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
        let one = sq.length(1).expect("one byte");
        let nowhere = Local { addr: 0, lkey: 0 };
        let ticket = sq
            .submit(1, |_, slot| slot.dump(nowhere, one))
            .expect("there is room");
        match sq.wait(ticket) {
            Ok(()) => None,
            Err(Error::Fault(state)) => Some(state),
            Err(other) => panic!("{other:?}: no CQE at {consumer:#x}"),
        }
    }
}
