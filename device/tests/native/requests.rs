//! Requests of any size and shape: puts, gets, strided blocks, lists; signals and counters.

use warpverbs_device::{
    Collapsed, Db, Error, Exclusive, Gpu, LocalView, RemoteView, Ring, Signal, Sq,
    abi::{Descriptor, FLAG_READ_NEEDS_DUMP},
    op::{Direction, Nop},
};
use warpverbs_wire::wqe::{Data, Opcode, Wqe};

use crate::{
    LOCAL, REMOTE, open,
    queue::{CQN, Queue},
};

/// What the WQE at an index moves: opcode, remote address, local address, bytes.
fn moved(queue: &Queue, index: u64) -> (Opcode, u64, u64, u64) {
    let bytes = queue.wqe(index);
    let wqe = Wqe::decode(&bytes).unwrap();
    let (mut local, mut len) = (0, 0);
    for data in wqe.data() {
        if let Data::Pointer(pointer) = data {
            (local, len) = (pointer.address, pointer.len());
        }
    }
    let remote = wqe.remote.map_or(0, |remote| remote.address);
    (wqe.control.opcode, remote, local, len)
}

/// Completes what is outstanding, whenever the queue waits: a NIC in another thread, which returns what it saw.
fn with_nic<T: Send>(
    queue: &Queue,
    first: u64,
    post: impl FnOnce() -> T + Send,
) -> (T, Vec<(Opcode, u64, u64, u64)>) {
    use std::sync::atomic::{AtomicBool, Ordering};
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let nic = scope.spawn(|| {
            let mut seen = Vec::new();
            let mut next = first;
            let mut number = 0;
            loop {
                let last = done.load(Ordering::Acquire);
                let dbr = queue.dbr();
                let record = u16::from_be_bytes([dbr[2], dbr[3]]);
                if record == next as u16 {
                    if last {
                        return seen;
                    }
                    std::thread::yield_now();
                    continue;
                }
                let ds = queue.wqebb(next)[7];
                seen.push(moved(queue, next));
                queue.succeed(number, next);
                number += 1;
                next += u64::from(ds).div_ceil(4);
            }
        });
        let result = post();
        done.store(true, Ordering::Release);
        (result, nic.join().unwrap())
    })
}

#[test]
fn sizes_around_the_largest_message() {
    const MAX: u64 = 1 << 30;
    for len in [1, MAX - 1, MAX, MAX + 1, 2 * MAX, (4 << 30) + 1] {
        for (direction, opcode) in [
            (Direction::Put, Opcode::RdmaWrite),
            (Direction::Get, Opcode::RdmaRead),
        ] {
            let mut queue = Queue::new(8, false, 0);
            let mut sq = open!(queue, Exclusive, Db, Ring).unwrap();
            let ticket = match direction {
                Direction::Put => sq.put(LOCAL, REMOTE, len),
                Direction::Get => sq.get(LOCAL, REMOTE, len),
            }
            .unwrap();
            drop(sq);
            let count = len.div_ceil(MAX);
            assert_eq!((ticket.index(), queue.reserved()), (count, count), "{len}");
            let mut sum = 0;
            for index in 0..count {
                let (found, remote, local, bytes) = moved(&queue, index);
                assert_eq!(found, opcode);
                assert_eq!(
                    (remote, local),
                    (REMOTE.addr.wrapping_add(sum), LOCAL.addr.wrapping_add(sum))
                );
                assert!(bytes <= MAX);
                sum += bytes;
            }
            assert_eq!(sum, len);
        }
    }
}

#[test]
fn nothing_is_done_already() {
    let mut queue = Queue::new(8, false, 40);
    let mut sq = open!(queue, Gpu, Db, Ring).unwrap();
    for ticket in [sq.put(LOCAL, REMOTE, 0), sq.get(LOCAL, REMOTE, 0)] {
        assert_eq!(sq.wait(ticket.unwrap()), Ok(()));
    }
    assert_eq!(queue.doorbell(), [0; 8]);
}

#[test]
fn a_transfer_of_more_messages_than_the_queue_takes() {
    let mut queue = Queue::new(4, false, 0).with(|handle| handle.log_max_message = 4);
    let address = queue.address();
    let queue = &*queue;
    let (ticket, seen) = with_nic(queue, 0, || {
        // SAFETY: a live handle; this thread alone uses it.
        let mut sq = unsafe { Sq::<Exclusive, Db, Ring>::open(address) }.unwrap();
        let ticket = sq.put(LOCAL, REMOTE, 16 * 20 + 3).unwrap();
        sq.wait(ticket).unwrap();
        ticket
    });
    assert_eq!(ticket.index(), 21);
    assert_eq!(seen.len(), 21);
    for (k, (opcode, remote, local, bytes)) in seen.into_iter().enumerate() {
        let offset = 16 * k as u64;
        assert_eq!(opcode, Opcode::RdmaWrite);
        assert_eq!(
            (remote, local),
            (
                REMOTE.addr.wrapping_add(offset),
                LOCAL.addr.wrapping_add(offset)
            )
        );
        assert_eq!(bytes, if k == 20 { 3 } else { 16 });
    }
}

#[test]
fn a_get_ends_with_a_dump_where_the_handle_says_so() {
    for (len, reads) in [(16, 1), (33, 3)] {
        let mut queue = Queue::new(8, false, 0).with(|handle| {
            handle.flags |= FLAG_READ_NEEDS_DUMP;
            handle.log_max_message = 4;
        });
        let mut sq = open!(queue, Gpu, Db, Ring).unwrap();
        let ticket = sq.get(LOCAL, REMOTE, len).unwrap();
        assert_eq!(ticket.index(), reads + 1);
        assert_eq!(moved(&queue, reads - 1).0, Opcode::RdmaRead);
        assert_eq!(moved(&queue, reads), (Opcode::Dump, 0, LOCAL.addr, 1));
        assert_eq!(
            queue.wqebb(reads)[11],
            0x88,
            "the DUMP starts behind the reads"
        );
    }
    let mut queue = Queue::new(8, false, 0).with(|handle| handle.flags |= FLAG_READ_NEEDS_DUMP);
    let mut sq = open!(queue, Exclusive, Db, Ring).unwrap();
    let word = warpverbs_device::Remote { addr: 64, ..REMOTE };
    assert_eq!(sq.fetch_add(LOCAL, word, 1).unwrap().index(), 2);
    assert_eq!(sq.compare_swap(LOCAL, word, 1, 2).unwrap().index(), 4);
    drop(sq);
    let opcodes = [0, 1, 2, 3].map(|index| queue.wqebb(index)[3]);
    assert_eq!(opcodes, [0x12, 0x23, 0x11, 0x23]);
    // Without the flag there is none.
    let mut queue = Queue::new(8, false, 0);
    let mut sq = open!(queue, Exclusive, Db, Ring).unwrap();
    assert_eq!(sq.fetch_add(LOCAL, word, 1).unwrap().index(), 1);
    assert_eq!(
        sq.fetch_add(LOCAL, word.offset(4), 1),
        Err(Error::InvalidArgument)
    );
}

#[test]
fn strided_blocks() {
    let mut queue = Queue::new(16, false, 0).with(|handle| handle.log_max_message = 4);
    let mut sq = open!(queue, Exclusive, Db, Ring).unwrap();
    let block = sq.chunks(LOCAL, REMOTE, 20, Direction::Put);
    let ticket = sq.strided(block, 100, 1000, 3).unwrap();
    assert_eq!(ticket.index(), 6, "two messages a block");
    for block in 0..3 {
        for (part, len) in [(0, 16), (1, 4)] {
            assert_eq!(
                moved(&queue, block * 2 + part),
                (
                    Opcode::RdmaWrite,
                    REMOTE.addr.wrapping_add(block * 1000 + part * 16),
                    LOCAL.addr.wrapping_add(block * 100 + part * 16),
                    len
                )
            );
        }
    }
    let none = sq.chunks(LOCAL, REMOTE, 0, Direction::Put);
    let ticket = sq.strided(none, 1, 1, u64::MAX).unwrap();
    assert!(sq.test(ticket));
}

#[test]
fn lists_of_every_length() {
    for count in [0, 1, 511, 512, 513, 1024, 4096u64] {
        let list: Vec<Descriptor> = (0..count)
            .map(|k| Descriptor {
                local: 0x1000 + k,
                remote: 0x10_0000 + 3 * k,
                // Some of nothing, some of two messages.
                len: if k % 7 == 3 { 0 } else { 1 + k % 20 },
                lkey: k as u32,
                rkey: !k as u32,
            })
            .collect();
        let at = list.as_ptr().expose_provenance() as u64;
        let mut queue = Queue::new(64, false, 0).with(|handle| handle.log_max_message = 4);
        let address = queue.address();
        let queue = &*queue;
        let (ticket, seen) = with_nic(queue, 0, || {
            // SAFETY: a live handle, and a live list.
            unsafe {
                let mut sq = Sq::<Gpu, Db, Ring>::open(address).unwrap();
                let ticket = sq.list(Direction::Put, at, count).unwrap();
                sq.wait(ticket).unwrap();
                ticket
            }
        });
        let expected: Vec<_> = list
            .iter()
            .flat_map(|d| {
                (0..d.len.div_ceil(16)).map(move |k| {
                    let len = (d.len - 16 * k).min(16);
                    (Opcode::RdmaWrite, d.remote + 16 * k, d.local + 16 * k, len)
                })
            })
            .collect();
        assert_eq!(seen, expected, "{count} descriptors");
        assert_eq!(ticket.index(), expected.len() as u64);
    }
    let mut queue = Queue::new(8, false, 0);
    let mut sq = open!(queue, Exclusive, Db, Ring).unwrap();
    // SAFETY: misaligned, so that it is refused.
    let refused = unsafe { sq.list(Direction::Get, 12, 1) };
    assert_eq!(refused, Err(Error::InvalidArgument));
}

const SIGNAL: Signal = Signal {
    remote: warpverbs_device::Remote {
        addr: 0x4000,
        rkey: 9,
    },
    add: 5,
    fetched: warpverbs_device::Local {
        addr: 0x5000,
        lkey: 8,
    },
};

#[test]
fn a_signal_is_an_atomic_behind_the_data() {
    let mut queue = Queue::new(16, false, 0).with(|handle| handle.log_max_message = 4);
    let mut sq = open!(queue, Gpu, Db, Ring).unwrap();
    assert_eq!(sq.put_signal(LOCAL, REMOTE, 16, SIGNAL).unwrap().index(), 2);
    assert_eq!(queue.dbr(), [0, 0, 0, 2], "one post");
    assert_eq!(sq.put_signal(LOCAL, REMOTE, 40, SIGNAL).unwrap().index(), 6);
    assert_eq!(sq.put_signal(LOCAL, REMOTE, 0, SIGNAL).unwrap().index(), 7);
    assert_eq!(sq.signal(SIGNAL).unwrap().index(), 8);
    let opcodes: Vec<_> = (0..8).map(|index| moved(&queue, index).0).collect();
    use Opcode::{AtomicFetchAdd as A, RdmaWrite as W};
    assert_eq!(opcodes, [W, A, W, W, W, A, A, A]);
    assert_eq!(moved(&queue, 1), (A, 0x4000, 0x5000, 8));
    assert_eq!(queue.wqebb(1)[32..40], 5u64.to_be_bytes());
    let mut odd = SIGNAL;
    odd.remote.addr += 4;
    assert_eq!(sq.signal(odd), Err(Error::InvalidArgument));
    assert_eq!(
        sq.put_signal(LOCAL, REMOTE, 16, odd),
        Err(Error::InvalidArgument)
    );
    assert_eq!(queue.reserved(), 8);
}

#[test]
fn a_counter_waits_for_the_number_of_the_datas_cqe() {
    macro_rules! body {
        ($sharing:ident, $form:ident, $collapsed:expr) => {
            // SQ indices started 10 above the CQ's, as after a reset of the CQ's QP with 10 fewer.
            let mut queue = Queue::new(32, $collapsed, 100).with(|handle| {
                handle.log_max_message = 4;
                handle.reserved.second = 10;
            });
            let mut companion = Queue::new(32, true, 0);
            let mut sq = open!(queue, $sharing, Db, $form).unwrap();
            let mut other = open!(companion, Gpu, Db, Collapsed).unwrap();
            let (data, counted) = sq
                .put_counter(&mut other, LOCAL, REMOTE, 8, SIGNAL)
                .unwrap();
            assert_eq!((data.index(), counted.index()), (101, 2));
            let wait = |index: u64| {
                let bytes = companion.wqe(index);
                let wait = Wqe::decode(&bytes).unwrap().wait.unwrap();
                (wait.cqn, wait.index)
            };
            assert_eq!(wait(0), (CQN, 90));
            assert_eq!(moved(&companion, 1).0, Opcode::AtomicFetchAdd);
            // A WQE of two WQEBBs has one CQE.
            let swap = warpverbs_device::op::MaskedCompareSwap8::new(
                SIGNAL.fetched,
                SIGNAL.remote,
                1,
                2,
                3,
                4,
            )
            .unwrap();
            sq.post(swap).unwrap();
            let (data, _) = sq
                .put_counter(&mut other, LOCAL, REMOTE, 16 * 3 + 1, SIGNAL)
                .unwrap();
            assert_eq!(data.index(), 107, "101 and 102, then four messages");
            assert_eq!(wait(2), (CQN, 95));
            // Nothing to wait for.
            let (_, counted) = sq
                .put_counter(&mut other, LOCAL, REMOTE, 0, SIGNAL)
                .unwrap();
            assert_eq!(counted.index(), 5);
            drop(sq);
            assert_eq!(queue.gap(), 11);
        };
    }
    body!(Exclusive, Ring, false);
    body!(Exclusive, Collapsed, true);
    body!(Gpu, Ring, false);
}

#[test]
fn fence_and_flush() {
    let mut queue = Queue::new(8, false, 0);
    let mut sq = open!(queue, Exclusive, Db, Ring).unwrap();
    sq.post(Nop).unwrap();
    assert_eq!(sq.fence().unwrap().index(), 2);
    assert_eq!(
        queue.wqebb(1)[..12],
        [0, 0, 1, 0, 0xab, 0xcd, 0xef, 1, 0, 0, 0, 0x68]
    );
    sq.set_deadline(1_000_000);
    assert_eq!(sq.flush(), Err(Error::Timeout));
    for index in 0..4 {
        queue.succeed(index, index);
    }
    assert_eq!(sq.flush(), Ok(()));
    assert_eq!(sq.completed(), 4);
}

#[test]
fn a_signal_is_waited_for() {
    let word = std::sync::atomic::AtomicU64::new(3);
    let at = (&raw const word).expose_provenance() as u64;
    let mut queue = Queue::new(8, false, 0);
    let mut sq = open!(queue, Exclusive, Db, Ring).unwrap();
    sq.set_deadline(1_000_000);
    // SAFETY: a live word that is accessed atomically; a misaligned address is refused.
    unsafe {
        assert_eq!(sq.wait_signal(at, 3), Ok(()));
        assert_eq!(sq.wait_signal(at, 4), Err(Error::Timeout));
        assert_eq!(sq.wait_signal(at + 4, 0), Err(Error::InvalidArgument));
    }
}

#[test]
fn views_know_their_bounds() {
    let view = LocalView::new(LOCAL, 100).unwrap();
    assert_eq!(view.at(0, 100), Ok(LOCAL));
    assert_eq!(view.at(99, 1), Ok(LOCAL.offset(99)));
    assert_eq!(view.at(100, 0), Ok(LOCAL.offset(100)));
    for (offset, len) in [
        (0, 101),
        (100, 1),
        (101, 0),
        (u64::MAX, 1),
        (1, u64::MAX),
        (u64::MAX, u64::MAX),
    ] {
        assert_eq!(view.at(offset, len), Err(Error::InvalidArgument));
    }
    let end = warpverbs_device::Remote {
        addr: u64::MAX - 9,
        rkey: 1,
    };
    assert!(RemoteView::new(end, 9).is_ok());
    assert_eq!(RemoteView::new(end, 10).err(), Some(Error::InvalidArgument));
}

#[test]
fn waits_end_by_their_number_of_looks() {
    let mut queue = Queue::new(4, false, 0);
    let mut sq = open!(queue, Exclusive, Db, Ring).unwrap();
    let ticket = sq.post(Nop).unwrap();
    sq.set_spins(100);
    sq.set_back_off(1000);
    assert_eq!(sq.wait(ticket), Err(Error::Timeout));
    queue.succeed(0, 0);
    sq.set_spins(0);
    assert_eq!(sq.wait(ticket), Ok(()), "what is there is seen first");
}
