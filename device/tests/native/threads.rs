//! Threads that share a queue, and a NIC beside them.

use std::{
    collections::HashSet,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use warpverbs_device::{Collapsed, Db, DbEarly, Gpu, Local, Remote, Ring, Sq};

use crate::{LOCAL, queue::Queue};

const THREADS: u64 = 4;
const POSTS: u64 = 3_000;

/// A NIC that takes what the doorbell covers, checks it, and completes it. Returns the remote addresses that it saw.
fn nic(queue: &Queue, first: u64, done: &AtomicBool) -> HashSet<u64> {
    let mut seen = HashSet::new();
    let mut next = first;
    let mut last_record = first as u16;
    while next < first + THREADS * POSTS {
        assert!(
            !done.load(Ordering::Acquire) || next > first,
            "posters ended without a doorbell"
        );
        let doorbell = queue.doorbell();
        if doorbell == [0; 8] {
            thread::yield_now();
            continue;
        }
        let rung = u16::from_be_bytes([doorbell[1], doorbell[2]]).wrapping_add(1);
        let ahead = rung.wrapping_sub(next as u16);
        assert!(ahead < 1 << 15, "the doorbell moved backwards");
        // One load: bytes of two would be of two records.
        let dbr = queue.dbr();
        let record = u16::from_be_bytes([dbr[2], dbr[3]]);
        assert!(
            record.wrapping_sub(last_record) < 1 << 15,
            "the record moved backwards"
        );
        last_record = record;
        for _ in 0..ahead {
            let wqe = queue.wqebb(next);
            assert_eq!(
                wqe[1..3],
                (next as u16).to_be_bytes(),
                "a stale WQE at {next}"
            );
            let mut address = [0; 8];
            address.copy_from_slice(&wqe[16..24]);
            assert!(
                seen.insert(u64::from_be_bytes(address)),
                "a WQE twice at {next}"
            );
            queue.succeed(next - first, next);
            next += 1;
        }
        thread::yield_now();
    }
    seen
}

macro_rules! shared {
    ($name:ident, $doorbell:ty, $form:ty, $collapsed:expr) => {
        #[test]
        fn $name() {
            let first = (1 << 16) - 500;
            let mut queue = Queue::new(16, $collapsed, first);
            let address = queue.address();
            let queue = &*queue;
            let done = AtomicBool::new(false);
            let seen = thread::scope(|scope| {
                let posters: Vec<_> = (0..THREADS)
                    .map(|t| {
                        scope.spawn(move || {
                            // SAFETY: a live handle, which every thread uses as `Gpu`.
                            let opened = unsafe { Sq::<Gpu, $doorbell, $form>::open(address) };
                            let mut sq = opened.unwrap();
                            let mut last = None;
                            for i in 0..POSTS {
                                let addr = t * POSTS + i;
                                let local = Local { addr, ..LOCAL };
                                last = Some(
                                    sq.post_write(local, Remote { addr, rkey: 1 }, 8).unwrap(),
                                );
                            }
                            sq.wait(last.unwrap()).unwrap();
                        })
                    })
                    .collect();
                let nic = scope.spawn(|| nic(queue, first, &done));
                for poster in posters {
                    poster.join().unwrap();
                }
                done.store(true, Ordering::Release);
                nic.join().unwrap()
            });
            assert_eq!(seen.len() as u64, THREADS * POSTS);
            assert_eq!(queue.completed(), first + THREADS * POSTS);
            assert_eq!(queue.turn(), first + THREADS * POSTS);
            assert_eq!(queue.state(), 0);
        }
    };
}

shared!(threads_share_a_ring, Db, Ring, false);
shared!(threads_share_a_collapsed_cq, DbEarly, Collapsed, true);
