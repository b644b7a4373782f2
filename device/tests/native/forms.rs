//! Forms of the CQ beyond a ring and a collapsed one.

use warpverbs_device::{
    Checked, Collapsed, Db, Error, Exclusive, Gpu, OnError, Progress, Ring,
    abi::FaultCause,
    op::{MaskedCompareSwap8, Nop},
};

use crate::{LOCAL, REMOTE, open, queue::Queue};

const SIGNALLED: u8 = 8;

#[test]
fn one_wqe_in_so_many_is_signalled() {
    macro_rules! body {
        ($sharing:ident) => {
            let mut queue = Queue::new(32, false, 0);
            let mut sq = open!(queue, $sharing, Db, OnError<4>).unwrap();
            for _ in 0..8 {
                sq.post(Nop).unwrap();
            }
            let flags: Vec<u8> = (0..8).map(|index| queue.wqebb(index)[11]).collect();
            assert_eq!(flags, [0, 0, 0, 8, 0, 0, 0, 8]);
            // Of a WQE of two WQEBBs, either may be the fourth.
            let swap = || MaskedCompareSwap8::new(LOCAL, REMOTE, 1, 2, 3, 4).unwrap();
            sq.post([swap(), swap(), swap()]).unwrap();
            let flags = [8, 10, 12].map(|index| queue.wqebb(index)[11]);
            assert_eq!(flags, [0, SIGNALLED, 0]);
            sq.post(Nop).unwrap();
            sq.post(swap()).unwrap();
            assert_eq!(queue.wqebb(15)[11], SIGNALLED, "covers 15 and 16");
        };
    }
    body!(Exclusive);
    body!(Gpu);
}

#[test]
fn a_wait_for_what_nobody_signals_signals_it() {
    macro_rules! body {
        ($sharing:ident) => {
            let mut queue = Queue::new(32, false, 0);
            let mut sq = open!(queue, $sharing, Db, OnError<4>).unwrap();
            let first = sq.post(Nop).unwrap();
            let second = sq.post(Nop).unwrap();
            sq.set_deadline(1_000_000);
            assert_eq!(sq.poll(first), Ok(Progress::Pending));
            assert_eq!(sq.wait(second), Err(Error::Timeout));
            assert_eq!(queue.wqebb(2)[..4], [0, 0, 2, 0]);
            assert_eq!(queue.wqebb(2)[11], SIGNALLED);
            queue.succeed(0, 2);
            assert_eq!(sq.wait(second), Ok(()));
            assert_eq!(sq.completed(), 3);
            // Index 3 is signalled as it is.
            let last = sq.post(Nop).unwrap();
            assert_eq!(sq.wait(last), Err(Error::Timeout));
            queue.succeed(1, 3);
            assert_eq!(sq.wait(last), Ok(()));
            drop(sq);
            assert_eq!(queue.reserved(), 4, "no NOP for it");
        };
    }
    body!(Exclusive);
    body!(Gpu);
}

#[test]
fn a_post_leaves_room_for_what_is_not_signalled() {
    let mut queue = Queue::new(16, false, 0);
    let mut sq = open!(queue, Gpu, Db, OnError<8>).unwrap();
    assert_eq!(sq.max_wqebbs(), 8);
    assert_eq!(sq.post([Nop; 9]).err(), Some(Error::InvalidArgument));
    assert_eq!(sq.try_reserve(9).err(), Some(Error::InvalidArgument));
    for _ in 0..15 {
        sq.post(Nop).unwrap();
    }
    queue.succeed(0, 7);
    // 7 of those behind are not signalled, and 8 fit.
    sq.set_deadline(1_000_000);
    assert_eq!(sq.post([Nop; 8]).unwrap().index(), 23);
    // A queue of fewer than twice as many is refused.
    let mut queue = Queue::new(8, false, 0);
    assert_eq!(
        open!(queue, Gpu, Db, OnError<8>).err(),
        Some(Error::InvalidArgument)
    );
}

#[test]
fn an_error_of_what_is_not_signalled_is_found() {
    let mut queue = Queue::new(32, false, 0);
    let mut sq = open!(queue, Exclusive, Db, OnError<16>).unwrap();
    let tickets = [(); 3].map(|()| sq.post(Nop).unwrap());
    queue.complete(0, 1, 0xd, 0x13, 0x88);
    let Err(Error::Fault(state)) = sq.wait(tickets[2]) else {
        panic!("it failed");
    };
    assert_eq!((state.cause(), state.index()), (FaultCause::Completion, 1));
    assert_eq!(sq.wait(tickets[0]), Ok(()), "completed before");
}

#[test]
fn many_completions_are_taken_at_once() {
    macro_rules! body {
        ($sharing:ident) => {
            let mut queue = Queue::new(16, false, 0);
            let mut sq = open!(queue, $sharing, Db, Ring).unwrap();
            let tickets = [(); 6].map(|()| sq.post(Nop).unwrap());
            assert_eq!(sq.poll_many(10), Ok(0));
            for index in 0..5 {
                queue.succeed(index, index);
            }
            assert_eq!(sq.poll_many(2), Ok(2));
            assert!(sq.test(tickets[1]) && !sq.test(tickets[2]));
            assert_eq!(sq.poll_many(u32::MAX), Ok(5));
            queue.complete(5, 5, 0xd, 0x13, 0x88);
            assert!(matches!(sq.poll_many(10), Err(Error::Fault(_))));
        };
    }
    body!(Exclusive);
    body!(Gpu);
}

#[test]
fn an_overrun_checked_cq_is_told_of_its_consumer_with_each_ring() {
    macro_rules! body {
        ($sharing:ident, $form:ty) => {
            let mut queue = Queue::new(8, false, 0).with_overrun_check();
            let mut sq = open!(queue, $sharing, Db, $form).unwrap();
            for k in 0..40u64 {
                let ticket = sq.post_write(LOCAL, REMOTE, 1).unwrap();
                assert_eq!(queue.cq_dbr()[3], k as u8);
                queue.succeed(k, k);
                assert_eq!(sq.wait(ticket), Ok(()));
            }
        };
    }
    body!(Exclusive, Checked<Ring>);
    body!(Gpu, Checked<Ring>);
    let mut checked = Queue::new(8, false, 0).with_overrun_check();
    assert_eq!(
        open!(checked, Gpu, Db, Ring).err(),
        Some(Error::InvalidArgument)
    );
    let mut ignored = Queue::new(8, false, 0);
    assert_eq!(
        open!(ignored, Gpu, Db, Checked<Ring>).err(),
        Some(Error::InvalidArgument)
    );
    let mut collapsed = Queue::new(8, true, 0).with_overrun_check();
    assert!(open!(collapsed, Gpu, Db, Checked<Collapsed>).is_ok());
}
