//! Receive queues.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use warpverbs_device::{
    Error, Exclusive, Gpu, Local, Received, ReceivedKind, Rq,
    abi::{FLAG_CQ_OVERRUN_CHECKED, FaultCause, Line, RqHandle, VERSION},
};

use crate::LOCAL;
use warpverbs_wire::doorbell::dbr_word;

const QPN: u32 = 0x12_3456;

/// A receive queue made by hand, as `queue::Queue` is.
struct Receives {
    handle: Box<RqHandle>,
    rq: Vec<u128>,
    cq: Vec<[AtomicU8; 64]>,
    dbr: AtomicU64,
    cq_dbr: AtomicU64,
    stop: AtomicU64,
}

impl Receives {
    /// `carried`: CQEs that the CQ had written before index 0.
    fn new(depth: u32, log_stride: u32, carried: u64, first: u64) -> Box<Self> {
        let cq_depth = 2 * depth;
        let mut made = Box::new(Self {
            handle: Box::new(RqHandle {
                version: VERSION,
                flags: 0,
                rq: 0,
                dbr: 0,
                rq_depth: depth,
                log_stride,
                cq: 0,
                cq_depth,
                qpn: QPN,
                stop: 0,
                cq_dbr: 0,
                reserved: Line::new(first),
                turn: Line::new(first),
                consumer: Line {
                    second: carried,
                    ..Line::new(first + carried)
                },
                state: Line::new(0),
            }),
            rq: vec![u128::MAX; (depth as usize) << (log_stride - 4)],
            cq: (0..cq_depth)
                .map(|_| std::array::from_fn(|_| AtomicU8::new(0xff)))
                .collect(),
            dbr: AtomicU64::new(u64::from(dbr_word(first))),
            cq_dbr: AtomicU64::new(0),
            stop: AtomicU64::new(0),
        });
        made.handle.rq = made.rq.as_mut_ptr().expose_provenance() as u64;
        made.handle.cq = made.cq.as_ptr().expose_provenance() as u64;
        made.handle.dbr = (&raw const made.dbr).expose_provenance() as u64;
        made.handle.cq_dbr = (&raw const made.cq_dbr).expose_provenance() as u64;
        made.handle.stop = (&raw const made.stop).expose_provenance() as u64;
        made
    }

    fn address(&mut self) -> u64 {
        (&raw mut *self.handle).expose_provenance() as u64
    }

    fn word(at: *const u64) -> u64 {
        // SAFETY: a word of the live handle, accessed atomically by everyone.
        unsafe { AtomicU64::from_ptr(at.cast_mut()) }.load(Ordering::Acquire)
    }

    /// The segment `n` of the receive at `index`.
    fn segment(&self, index: u64, n: usize) -> [u8; 16] {
        let pieces = 1 << (self.handle.log_stride - 4);
        let at = (index as usize % self.handle.rq_depth as usize) * pieces + n;
        let base = self.rq.as_ptr().cast::<u64>();
        let low = Self::word(base.wrapping_add(2 * at));
        let high = Self::word(base.wrapping_add(2 * at + 1));
        [low.to_le_bytes(), high.to_le_bytes()]
            .concat()
            .try_into()
            .unwrap()
    }

    fn dbr(&self) -> [u8; 4] {
        self.dbr.load(Ordering::Acquire).to_le_bytes()[..4]
            .try_into()
            .unwrap()
    }

    /// The CQE number `number`, of `opcode`; bytes as the PRM has them.
    fn complete(&self, number: u64, index: u64, opcode: u8, len: u32, immediate: u32) {
        let lap = number / self.cq.len() as u64;
        let cqe = &self.cq[number as usize % self.cq.len()];
        let put = |at: usize, bytes: &[u8]| {
            for (k, byte) in bytes.iter().enumerate() {
                cqe[at + k].store(*byte, Ordering::Relaxed);
            }
        };
        put(32, &0x00ab_cdefu32.to_be_bytes());
        put(36, &immediate.to_be_bytes());
        put(44, &len.to_be_bytes());
        put(54, &[0x77, 0x01]);
        put(56, &QPN.to_be_bytes());
        put(60, &(index as u16).to_be_bytes());
        cqe[63].store(opcode << 4 | (lap & 1) as u8, Ordering::Release);
    }
}

/// A queue of the given sharing, opened.
macro_rules! open {
    ($receives:expr, $sharing:ty) => {{
        let address = $receives.address();
        // SAFETY: a live handle; the test keeps it, and uses it in one mode at a time.
        unsafe { Rq::<$sharing>::open(address) }
    }};
}

macro_rules! shared_or_not {
    ($body:ident) => {
        $body!(Exclusive);
        $body!(Gpu);
    };
}

#[test]
fn receives_are_these_bytes() {
    macro_rules! body {
        ($sharing:ident) => {
            let mut receives = Receives::new(8, 6, 0, 0xfffe);
            let mut rq = open!(receives, $sharing).unwrap();
            assert_eq!(rq.post(LOCAL, 0x1000), Ok(0xfffe));
            let pieces = [
                rq.piece(LOCAL, 1).unwrap(),
                rq.piece(LOCAL.offset(8), 2).unwrap(),
                rq.piece(LOCAL, 3).unwrap(),
                rq.piece(LOCAL, 4).unwrap(),
            ];
            assert_eq!(rq.post_pieces(pieces), Ok(0xffff));
            let pointer = |len: u16, last: u8| {
                let [high, low] = len.to_be_bytes();
                [
                    0, 0, high, low, 1, 2, 3, 4, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, last,
                ]
            };
            assert_eq!(receives.segment(0xfffe, 0), pointer(0x1000, 0x88));
            let end = [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            assert_eq!(receives.segment(0xfffe, 1), end);
            assert_eq!(receives.segment(0xffff, 1), pointer(2, 0x90));
            assert_eq!(receives.segment(0xffff, 3), pointer(4, 0x88));
            assert_eq!(receives.dbr(), [0, 0, 0, 0], "0x10000, low 16 bits");
            let five = [rq.piece(LOCAL, 1).unwrap(); 5];
            assert_eq!(rq.post_pieces(five), Err(Error::InvalidArgument));
            assert_eq!(rq.piece(LOCAL, 0).err(), Some(Error::InvalidArgument));
        };
    }
    shared_or_not!(body);
}

#[test]
fn what_arrives_is_told_and_makes_room() {
    macro_rules! body {
        ($sharing:ident) => {
            let mut receives = Receives::new(4, 4, 5, (1 << 16) - 2);
            let mut rq = open!(receives, $sharing).unwrap();
            let first = (1 << 16) - 2;
            assert_eq!(rq.try_receive(), Ok(None));
            assert_eq!(rq.post_many(4, |k| (LOCAL, 10 + k)), Ok(first));
            assert_eq!(rq.post(LOCAL, 1), Err(Error::NoResource));
            assert_eq!(rq.post_many(5, |_| (LOCAL, 1)), Err(Error::InvalidArgument));
            for (k, opcode, kind) in [
                (0, 1, ReceivedKind::WriteImmediate),
                (1, 2, ReceivedKind::Send),
                (2, 3, ReceivedKind::SendImmediate),
                (3, 4, ReceivedKind::SendInvalidate),
            ] {
                receives.complete(
                    first + 5 + k,
                    first + k,
                    opcode,
                    100 + k as u32,
                    0xa1a2_a3a4,
                );
                assert_eq!(
                    rq.receive(),
                    Ok(Received {
                        index: first + k,
                        kind,
                        len: 100 + k as u32,
                        immediate: 0xa1a2_a3a4,
                        qpn: QPN,
                        user_index: 0xab_cdef,
                    })
                );
                assert_eq!(rq.try_receive(), Ok(None));
                assert_eq!(rq.post(LOCAL, 1), Ok(first + 4 + k));
            }
            drop(rq);
            // The next owner goes on.
            let mut rq = open!(receives, $sharing).unwrap();
            assert_eq!(rq.post(LOCAL, 1), Err(Error::NoResource));
            receives.complete(first + 9, first + 4, 2, 1, 0);
            assert_eq!(rq.receive().unwrap().index, first + 4);
        };
    }
    shared_or_not!(body);
}

#[test]
fn a_failed_receive_is_a_fault_that_stays() {
    macro_rules! body {
        ($sharing:ident) => {
            let mut receives = Receives::new(4, 4, 0, 0);
            let mut rq = open!(receives, $sharing).unwrap();
            rq.post_many(3, |_| (LOCAL, 1)).unwrap();
            receives.complete(0, 0, 2, 1, 0);
            receives.complete(1, 1, 0xe, 0, 0);
            receives.complete(2, 2, 0xe, 0, 0);
            assert_eq!(rq.receive().unwrap().index, 0);
            let Err(Error::Fault(state)) = rq.receive() else {
                panic!("it failed");
            };
            assert_eq!((state.cause(), state.index()), (FaultCause::Completion, 1));
            assert_eq!((state.syndrome(), state.vendor_syndrome()), (0x01, 0x77));
            assert_eq!(rq.post(LOCAL, 1), Err(Error::Fault(state)));
            assert_eq!(rq.try_receive(), Err(Error::Fault(state)));
        };
    }
    shared_or_not!(body);
}

#[test]
fn waits_are_bounded() {
    let mut receives = Receives::new(4, 4, 0, 0);
    let mut rq = open!(receives, Gpu).unwrap();
    rq.set_deadline(1_000_000);
    assert_eq!(rq.receive(), Err(Error::Timeout));
    rq.set_spins(10);
    assert_eq!(rq.receive(), Err(Error::Timeout));
    receives.stop.store(1, Ordering::Release);
    rq.set_spins(u64::MAX);
    assert_eq!(rq.receive(), Err(Error::Stopped));
    assert_eq!(rq.post(LOCAL, 1), Err(Error::Stopped));
    assert_eq!(receives.dbr(), [0; 4]);
}

#[test]
fn bad_handles_are_refused() {
    let refused = |change: fn(&mut RqHandle)| {
        let mut receives = Receives::new(4, 4, 0, 0);
        change(&mut receives.handle);
        open!(receives, Gpu).err().unwrap()
    };
    assert_eq!(refused(|handle| handle.version = 9), Error::BadVersion(9));
    for change in [
        (|handle| handle.rq_depth = 3) as fn(&mut RqHandle),
        |handle| handle.rq_depth = 0,
        |handle| handle.rq_depth = 1 << 16,
        |handle| handle.cq_depth = 4,
        |handle| handle.cq_depth = 12,
        |handle| handle.log_stride = 3,
        |handle| handle.log_stride = 10,
        |handle| handle.qpn = 1 << 24,
    ] {
        assert!(matches!(refused(change), Error::Fault(_)));
    }
}

#[test]
fn an_overrun_checked_cq_is_told_of_its_consumer() {
    macro_rules! body {
        ($sharing:ident) => {
            let mut receives = Receives::new(4, 4, 0, 0);
            receives.handle.flags = FLAG_CQ_OVERRUN_CHECKED;
            let mut rq = open!(receives, $sharing).unwrap();
            for k in 0..20u64 {
                rq.post(LOCAL, 1).unwrap();
                assert_eq!(
                    receives.cq_dbr.load(Ordering::Acquire).to_le_bytes()[..4],
                    (k as u32).to_be_bytes()
                );
                receives.complete(k, k, 2, 1, 0);
                rq.receive().unwrap();
            }
        };
    }
    shared_or_not!(body);
}

/// Threads that post and take; a NIC that completes what the record covers. Each message is taken once.
#[test]
fn threads_share_a_receive_queue() {
    const MESSAGES: u64 = 3000;
    let first = (1 << 16) - 1000;
    let mut receives = Receives::new(8, 4, 3, first);
    let address = receives.address();
    let receives = &*receives;
    let taken: Vec<u64> = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut next = first;
            while next < first + MESSAGES {
                let dbr = receives.dbr();
                if u16::from_be_bytes([dbr[2], dbr[3]]) == next as u16 {
                    std::thread::yield_now();
                    continue;
                }
                let addr = receives.segment(next, 0);
                assert_eq!(addr[8..], [0, 0, 0, 0, 0, 0, 0, 7]);
                receives.complete(next + 3, next, 3, 4, next as u32);
                next += 1;
            }
        });
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(move || {
                    // SAFETY: a live handle, which every thread uses as `Gpu`.
                    let mut rq = unsafe { Rq::<Gpu>::open(address) }.unwrap();
                    let mut taken = Vec::new();
                    loop {
                        let local = Local { addr: 7, lkey: 1 };
                        match rq.post(local, 4) {
                            Ok(_) | Err(Error::NoResource) => {}
                            Err(error) => panic!("{error:?}"),
                        }
                        match rq.try_receive().unwrap() {
                            Some(received) => {
                                assert_eq!(received.immediate, received.index as u32);
                                taken.push(received.index);
                            }
                            None => std::thread::yield_now(),
                        }
                        let consumer = Receives::word(&raw const receives.handle.consumer.word);
                        if consumer >= first + 3 + MESSAGES {
                            return taken;
                        }
                    }
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    let mut taken = taken;
    taken.sort_unstable();
    assert_eq!(taken, (first..first + MESSAGES).collect::<Vec<_>>());
}
