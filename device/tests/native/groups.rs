//! Warps and blocks of host threads that post together.

use std::{
    collections::HashSet,
    sync::atomic::{AtomicBool, Ordering},
};

use warpverbs_device::{
    BlueFlame, Collapsed, CqForm, Cta, Db, DbEarly, Doorbell, Error, Exclusive, Gpu, Lazy, OnError,
    Progress, Ring, Sharing, Signal, Sq, Ticket, Warp,
    group::{Block, Group, Lanes, Thread},
    op::{Direction, MaskedCompareSwap8, Nop, Then, Write},
    thread::{self, Place, Team},
};

use crate::{LOCAL, REMOTE, queue::Queue};

/// Runs `body` as each thread of `blocks` blocks of `threads`.
fn launch<T: Send>(blocks: u32, threads: u32, body: impl Fn() -> T + Sync) -> Vec<T> {
    let teams: Vec<Team> = (0..blocks).map(|_| Team::default()).collect();
    std::thread::scope(|scope| {
        let body = &body;
        let running: Vec<_> = (0..blocks)
            .flat_map(|block| (0..threads).map(move |thread| (block, thread)))
            .map(|(block, thread)| {
                let place = Place {
                    thread,
                    block_threads: threads,
                    block,
                    blocks,
                };
                let team = &teams[block as usize];
                scope.spawn(move || {
                    place.take_in(team);
                    body()
                })
            })
            .collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

/// A NIC beside the launch: completes what the record covers; the remote addresses that it saw, in order.
fn with_nic<T>(queue: &Queue, first: u64, run: impl FnOnce() -> T) -> (T, Vec<u64>) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let nic = scope.spawn(|| {
            let mut seen = Vec::new();
            let (mut next, mut number) = (first, 0);
            loop {
                let last = done.load(Ordering::Acquire);
                if queue.doorbell() == [0; 8] && !last {
                    std::thread::yield_now();
                    continue;
                }
                let dbr = queue.dbr();
                let ahead = u16::from_be_bytes([dbr[2], dbr[3]]).wrapping_sub(next as u16);
                assert!(ahead < 1 << 15, "the record moved backwards");
                if ahead == 0 {
                    if last {
                        return seen;
                    }
                    std::thread::yield_now();
                    continue;
                }
                let wqe = queue.wqebb(next);
                assert_eq!(
                    wqe[1..3],
                    (next as u16).to_be_bytes(),
                    "a stale WQE at {next}"
                );
                if wqe[3] != 0 {
                    let mut address = [0; 8];
                    address.copy_from_slice(&wqe[16..24]);
                    seen.push(u64::from_be_bytes(address));
                }
                if wqe[11] & 8 != 0 {
                    queue.succeed(number, next);
                    number += 1;
                }
                next += u64::from(wqe[7]).div_ceil(4);
            }
        });
        let result = run();
        done.store(true, Ordering::Release);
        (result, nic.join().unwrap())
    })
}

const ROUNDS: u64 = 40;

/// Each member writes to an address of its own in each round; the group waits for every other post.
fn rounds<S: Sharing, D: Doorbell, C: CqForm, G: Group>(
    handle: u64,
    group: impl Fn() -> G + Sync,
) -> Result<Ticket, Error> {
    let group = group();
    // SAFETY: a live handle, used in this mode by all.
    let mut sq = unsafe { Sq::<S, D, C>::open_by(group, handle) }?;
    let len = sq.length(8)?;
    let mut last = Ticket::default();
    for round in 0..ROUNDS {
        let mut remote = REMOTE;
        remote.addr = thread::index() * ROUNDS + round;
        // A member in turn has nothing to do.
        let idle = round % 3 == 2 && thread::index() % 5 == round % 5;
        let write = (!idle).then(|| Write::new(LOCAL, remote, len));
        last = sq.post_by(group, write)?;
        if round % 2 == 0 {
            sq.wait_by(group, last)?;
        }
    }
    sq.wait_by(group, last)?;
    Ok(last)
}

fn expected(threads: u64) -> HashSet<u64> {
    (0..threads)
        .flat_map(|t| (0..ROUNDS).map(move |round| (t, round)))
        .filter(|(t, round)| round % 3 != 2 || t % 5 != round % 5)
        .map(|(t, round)| t * ROUNDS + round)
        .collect()
}

macro_rules! matrix {
    ($($name:ident: $sharing:ty, $doorbell:ty, $form:ty, $collapsed:literal, $blocks:literal x $threads:literal, $group:expr;)*) => {$(
        #[test]
        fn $name() {
            let first = (1 << 16) - 300;
            let mut queue = Queue::new(64, $collapsed, first);
            let address = queue.address();
            let queue = &*queue;
            let (answers, seen) = with_nic(queue, first, || {
                launch($blocks, $threads, || {
                    rounds::<$sharing, $doorbell, $form, _>(address, || $group)
                })
            });
            assert!(answers.iter().all(Result::is_ok), "{answers:?}");
            let wanted = expected($blocks * $threads);
            assert_eq!(seen.len(), wanted.len(), "each once");
            assert_eq!(seen.into_iter().collect::<HashSet<_>>(), wanted);
            assert_eq!((queue.state(), queue.reserved()), (0, queue.turn()));
        }
    )*};
}
matrix! {
    a_warp_owns_a_queue: Exclusive, Db, Ring, false, 1 x 32, Lanes::all();
    a_warp_owns_a_collapsed_queue: Exclusive, DbEarly, Collapsed, true, 1 x 32, Lanes::all();
    a_warp_owns_a_queue_of_few_completions: Exclusive, Db, OnError<8>, false, 1 x 32, Lanes::all();
    a_part_of_a_warp_owns_a_queue: Exclusive, Db, Ring, false, 1 x 7, Lanes::all();
    a_warp_shares_a_queue: Warp, Db, Ring, false, 1 x 32, Lanes::all();
    lanes_share_a_queue_one_by_one: Warp, Db, Ring, false, 1 x 8, Thread;
    warps_of_a_block_share_a_queue: Cta, Db, Collapsed, true, 1 x 45, Lanes::all();
    warps_of_a_gpu_share_a_queue: Gpu, Db, Ring, false, 2 x 20, Lanes::all();
    warps_of_a_gpu_share_a_lazy_queue: Gpu, Lazy<Db>, Ring, false, 2 x 20, Lanes::all();
    warps_of_a_gpu_push: Gpu, BlueFlame, Collapsed, true, 2 x 3, Lanes::all();
    threads_of_a_gpu_share_a_lazy_queue: Gpu, Lazy<Db>, OnError<8>, false, 2 x 8, Thread;
    a_block_owns_a_queue: Exclusive, Db, Ring, false, 1 x 40, Block;
    blocks_share_a_queue: Gpu, DbEarly, OnError<8>, false, 2 x 40, Block;
}

/// Members of a mask that is no run of lanes; their order is that of lanes.
#[test]
fn lanes_of_a_mask_post_together() {
    const MASK: u32 = 0b1010_0110;
    let mut queue = Queue::new(64, false, 0);
    let address = queue.address();
    let tickets = launch(1, 8, || {
        let lanes = Lanes::of(MASK)?;
        // SAFETY: a live handle, used in this mode by all.
        let mut sq = unsafe { Sq::<Gpu, Db, Ring>::open_by(lanes, address) }.unwrap();
        let len = sq.length(8).unwrap();
        let remote = REMOTE.offset(u64::from(thread::lane()));
        assert_eq!(lanes.len(), 4);
        Some(sq.post_by(lanes, Write::new(LOCAL, remote, len)).unwrap())
    });
    assert_eq!(tickets.iter().flatten().count(), 4);
    assert!(tickets.iter().flatten().all(|ticket| ticket.index() == 4));
    for (index, lane) in [1, 2, 5, 7].into_iter().enumerate() {
        let remote = (REMOTE.addr + lane).to_be_bytes();
        assert_eq!(queue.wqebb(index as u64)[16..24], remote);
    }
    assert_eq!(queue.dbr(), [0, 0, 0, 4]);
    assert_eq!(queue.doorbell(), [0, 0, 4, 0, 0xab, 0xcd, 0xef, 0]);
}

/// WQEs of different sizes, in the order of members.
#[test]
fn members_bring_what_they_have() {
    let mut queue = Queue::new(64, false, 0);
    let address = queue.address();
    let tickets = launch(1, 5, || {
        let lanes = Lanes::all();
        // SAFETY: a live handle, used in this mode by all.
        let mut sq = unsafe { Sq::<Exclusive, Db, Ring>::open_by(lanes, address) }.unwrap();
        let swap = MaskedCompareSwap8::new(LOCAL, REMOTE, 1, 2, 3, 4).unwrap();
        let lane = thread::lane();
        let work = Then(
            lane.is_multiple_of(2).then_some(Nop),
            (lane > 1).then_some(swap),
        );
        sq.post_by(lanes, work).unwrap()
    });
    // Lane 0: 0. Lane 2: 1, 2-3. Lane 3: 4-5. Lane 4: 6, 7-8, whose first WQEBB the ticket names.
    assert!(tickets.iter().all(|ticket| ticket.index() == 8));
    let opcodes = [0, 1, 2, 4, 6, 7].map(|index| queue.wqebb(index)[3]);
    assert_eq!(opcodes, [0, 0, 0x14, 0x14, 0, 0x14]);
    assert_eq!((queue.reserved(), queue.gap()), (9, 3));
    assert_eq!(queue.dbr(), [0, 0, 0, 9]);
}

#[test]
fn all_members_get_the_same_answer() {
    macro_rules! body {
        ($sharing:ident, $group:expr, $threads:literal) => {
            let mut queue = Queue::new(64, false, 0);
            let address = queue.address();
            let answers = launch(1, $threads, || {
                let group = $group;
                // SAFETY: a live handle, used in this mode by all.
                let mut sq = unsafe { Sq::<$sharing, Db, Ring>::open_by(group, address) }.unwrap();
                sq.set_deadline(1_000_000);
                let first = sq.try_post_by(group, Nop);
                let polled = first.and_then(|ticket| sq.poll_by(group, ticket));
                let second = sq.try_post_by(group, Nop);
                let many = sq.post_by(group, [Nop; 64]);
                let waited = first.and_then(|ticket| sq.wait_by(group, ticket));
                let none = sq.post_by(group, None::<Nop>);
                let third = sq.post_by(group, Nop);
                (first, polled, second, many, waited, none, third)
            });
            let (first, polled, second, many, waited, none, third) = answers[0];
            assert!(first.is_ok() && none.is_ok());
            assert_eq!(polled, Ok(Progress::Pending));
            assert_eq!(second, Err(Error::NoResource));
            assert_eq!(many, Err(Error::InvalidArgument));
            assert_eq!(waited, Err(Error::Timeout));
            if stringify!($sharing) == "Exclusive" {
                assert_eq!(third, Err(Error::Timeout));
            } else {
                assert!(matches!(third, Err(Error::Fault(_))), "{third:?}");
            }
            assert!(answers.iter().all(|answer| *answer == answers[0]));
            assert_eq!(queue.dbr(), [0, 0, 0, $threads]);
        };
    }
    body!(Exclusive, Lanes::all(), 32);
    body!(Gpu, Lanes::all(), 32);
    body!(Exclusive, Block, 40);
    body!(Cta, Block, 40);
}

/// More threads than the queue has WQEBBs, messages above the largest, lists that are shared: each message once.
#[test]
fn requests_of_a_block() {
    let mut queue = Queue::new(16, false, 0).with(|handle| handle.log_max_message = 4);
    let address = queue.address();
    let queue = &*queue;
    const THREADS: u32 = 40;
    let list: Vec<warpverbs_device::abi::Descriptor> = (0..100)
        .map(|k| warpverbs_device::abi::Descriptor {
            remote: 1_000_000 + 100 * k,
            len: k % 40,
            ..Default::default()
        })
        .collect();
    let list_at = list.as_ptr().expose_provenance() as u64;
    let (answers, seen) = with_nic(queue, 0, || {
        launch(1, THREADS, || -> Result<(), Error> {
            // SAFETY: a live handle, used in this mode by all, and a live list.
            let mut sq = unsafe { Sq::<Cta, Db, Ring>::open_by(Block, address) }?;
            let t = thread::index();
            let mut remote = REMOTE;
            remote.addr = 1000 * t;
            let last = sq.put_by(Block, LOCAL, remote, 10 * t)?;
            sq.wait_by(Block, last)?;
            remote.addr = 500_000;
            let block = sq.chunks(LOCAL, remote, 20, Direction::Put);
            let last = sq.strided_by(Block, block, 0, 1000, 50)?;
            sq.wait_by(Block, last)?;
            // SAFETY: as above.
            let last = unsafe { sq.list_by(Block, Direction::Put, list_at, 100) }?;
            sq.wait_by(Block, last)?;
            sq.flush_by(Block)
        })
    });
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    let parts = |at: u64, len: u64| (0..len.div_ceil(16)).map(move |k| at + 16 * k);
    let mut wanted: Vec<u64> = (0..u64::from(THREADS))
        .flat_map(|t| parts(1000 * t, 10 * t))
        .chain((0..50).flat_map(|k| parts(500_000 + 1000 * k, 20)))
        .chain(list.iter().flat_map(|d| parts(d.remote, d.len)))
        .collect();
    wanted.sort_unstable();
    let mut seen = seen;
    seen.sort_unstable();
    assert_eq!(seen, wanted);
}

#[test]
fn a_group_signals_once_behind_the_data_of_all() {
    for (threads, log_max) in [(6, 10), (40, 10), (6, 3)] {
        let mut queue = Queue::new(32, false, 0).with(|handle| handle.log_max_message = log_max);
        let address = queue.address();
        let queue = &*queue;
        let signal = Signal {
            remote: warpverbs_device::Remote {
                addr: 8_000_000,
                rkey: 1,
            },
            add: 1,
            fetched: warpverbs_device::Local { addr: 8, lkey: 1 },
        };
        let (answers, seen) = with_nic(queue, 0, || {
            launch(1, threads, || -> Result<(), Error> {
                // SAFETY: a live handle, used in this mode by all.
                let mut sq = unsafe { Sq::<Gpu, Db, Ring>::open_by(Block, address) }?;
                let mut remote = REMOTE;
                remote.addr = 1000 * thread::index();
                let last = sq.put_signal_by(Block, LOCAL, remote, 20, signal)?;
                sq.wait_by(Block, last)?;
                let last = sq.signal_by(Block, signal)?;
                sq.wait_by(Block, last)
            })
        });
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        let data = u64::from(threads) * 20u64.div_ceil(1 << log_max);
        let signals: Vec<usize> = (0..seen.len())
            .filter(|&index| seen[index] == 8_000_000)
            .collect();
        assert_eq!(signals, [data as usize, data as usize + 1], "{threads}");
    }
}
