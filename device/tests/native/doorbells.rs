//! How the NIC is told, in each mode.

use warpverbs_device::{
    BlueFlame, Collapsed, Db, DbEarly, Error, Exclusive, Gpu, Lazy, NoDbr, Proxy, Ring, Sq,
    abi::{FLAG_NO_DBR, FaultCause},
    op::Nop,
    ring_all,
};

use crate::{LOCAL, REMOTE, open, queue::Queue};

#[test]
fn a_small_post_is_pushed_whole_and_others_are_not() {
    macro_rules! body {
        ($sharing:ident) => {
            let mut queue = Queue::new(8, true, 0);
            let mut sq = open!(queue, $sharing, BlueFlame, Collapsed).unwrap();
            sq.post_write(LOCAL, REMOTE, 64).unwrap();
            assert_eq!(queue.pushed(), queue.wqebb(0));
            assert_eq!(queue.dbr(), [0, 0, 0, 1]);
            queue.clear_register();
            sq.post([Nop; 2]).unwrap();
            assert_eq!(queue.doorbell(), queue.wqebb(2)[..8]);
            assert_eq!(queue.pushed()[8..], [0; 56], "a post of two is not pushed");
            assert_eq!(queue.dbr(), [0, 0, 0, 3]);
        };
    }
    body!(Exclusive);
    body!(Gpu);
}

#[test]
fn a_host_thread_is_told_of_the_producer_and_nothing_else_is_touched() {
    macro_rules! body {
        ($sharing:ident) => {
            let first = (1 << 32) - 1;
            let mut queue = Queue::new(8, false, first).with_proxy();
            let mut sq = open!(queue, $sharing, Proxy, Ring).unwrap();
            sq.post_write(LOCAL, REMOTE, 64).unwrap();
            assert_eq!(queue.proxy().producer, 1 << 32);
            sq.post([Nop; 3]).unwrap();
            assert_eq!(queue.proxy().producer, (1 << 32) + 3);
            assert_eq!((queue.dbr(), queue.doorbell()), ([0; 4], [0; 8]));
        };
    }
    body!(Exclusive);
    body!(Gpu);
}

#[test]
fn without_a_record_it_is_never_written() {
    macro_rules! body {
        ($sharing:ident) => {
            let mut queue = Queue::new(8, false, 0).with(|handle| handle.flags |= FLAG_NO_DBR);
            let mut sq = open!(queue, $sharing, NoDbr, Ring).unwrap();
            for index in 0..5 {
                sq.post_write(LOCAL, REMOTE, 64).unwrap();
                assert_eq!(queue.doorbell(), queue.wqebb(index)[..8]);
            }
            assert_eq!(queue.dbr(), [0; 4]);
        };
    }
    body!(Exclusive);
    body!(Gpu);
}

#[test]
fn a_mode_that_the_handle_does_not_have_is_refused() {
    macro_rules! refused {
        ($queue:expr, $($doorbell:ty),*) => {{
            let mut queue = $queue;
            $(assert_eq!(
                open!(queue, Gpu, $doorbell, Ring).err(),
                Some(Error::InvalidArgument)
            );)*
        }};
    }
    refused!(Queue::new(8, false, 0), NoDbr, Lazy<NoDbr>, Proxy);
    refused!(
        Queue::new(8, false, 0)
            .with_proxy()
            .with(|handle| handle.flags |= FLAG_NO_DBR),
        Db,
        DbEarly,
        BlueFlame,
        Proxy
    );
}

/// What a post that does not ring leaves is rung by the next that does, by who must wait for room, and at the end.
#[test]
fn a_doorbell_that_is_put_off_is_rung_in_time() {
    macro_rules! body {
        ($doorbell:ty, $told:expr) => {
            let told: fn(&Queue) -> u64 = $told;
            let mut queue = Queue::new(8, false, 0).with_proxy();
            if stringify!($doorbell) == "NoDbr" {
                queue = queue.with(|handle| handle.flags |= FLAG_NO_DBR);
            }
            let mut sq = open!(queue, Exclusive, $doorbell, Ring).unwrap();
            for _ in 0..3 {
                sq.post_quiet(Nop).unwrap();
            }
            assert_eq!(told(&queue), 0);
            assert_eq!((queue.doorbell(), queue.dbr()), ([0; 8], [0; 4]));
            sq.post(Nop).unwrap();
            assert_eq!(told(&queue), 4);
            for _ in 0..3 {
                sq.post_quiet(Nop).unwrap();
            }
            assert_eq!(told(&queue), 4);
            // Full: who waits for room rings first.
            sq.set_deadline(1_000_000);
            assert_eq!(sq.post_quiet(Nop), Err(Error::Timeout));
            assert_eq!(told(&queue), 7);
            for index in 0..7 {
                queue.succeed(index, index);
            }
            sq.post_quiet(Nop).unwrap();
            assert_eq!(told(&queue), 7);
            drop(sq);
            assert_eq!(told(&queue), 8);
        };
    }
    fn rung(queue: &Queue) -> u64 {
        let [_, high, low, opcode, .., ds] = queue.doorbell();
        let index = u64::from(high) << 8 | u64::from(low);
        match (opcode, ds) {
            // The form that names the producer.
            (0, 0) => index,
            _ => index + 1,
        }
    }
    fn recorded(queue: &Queue) -> u64 {
        assert_eq!(rung(queue), u64::from(queue.dbr()[3]));
        rung(queue)
    }
    body!(Db, recorded);
    body!(DbEarly, recorded);
    body!(BlueFlame, recorded);
    body!(NoDbr, rung);
    body!(Proxy, |queue| queue.proxy().producer);
}

/// The same on a shared queue, where the one that waits for room need not be the one that put it off.
#[test]
fn who_waits_for_room_rings_for_others() {
    let mut queue = Queue::new(8, false, 0);
    let mut first = open!(queue, Gpu, Lazy<Db>, Ring).unwrap();
    let mut second = open!(queue, Gpu, Lazy<Db>, Ring).unwrap();
    for _ in 0..7 {
        first.post_quiet(Nop).unwrap();
    }
    assert_eq!((queue.turn(), queue.dbr()), (7, [0; 4]));
    assert_eq!(second.try_post(Nop), Err(Error::NoResource));
    assert_eq!(queue.dbr(), [0, 0, 0, 7]);
    assert_eq!(queue.doorbell(), [0, 0, 7, 0, 0xab, 0xcd, 0xef, 0]);
    for index in 0..7 {
        queue.succeed(index, index);
    }
    for _ in 0..7 {
        first.post_quiet(Nop).unwrap();
    }
    second.set_deadline(1_000_000);
    let Err(Error::Fault(state)) = second.post(Nop) else {
        panic!("the queue is full and silent");
    };
    assert_eq!((state.cause(), state.index()), (FaultCause::Abandoned, 14));
    assert_eq!(queue.dbr(), [0, 0, 0, 14]);
}

#[test]
fn several_queues_are_rung_in_one_pass() {
    let mut queues = [0u64; 3].map(|_| Queue::new(8, false, 0));
    let mut sqs = queues
        .each_mut()
        .map(|queue| open!(queue, Exclusive, Db, Ring).unwrap());
    ring_all(&mut sqs);
    for (k, sq) in sqs.iter_mut().enumerate().skip(1) {
        for _ in 0..k {
            sq.post_quiet(Nop).unwrap();
        }
    }
    ring_all(&mut sqs);
    for (k, queue) in queues.iter().enumerate() {
        assert_eq!(queue.dbr(), [0, 0, 0, k as u8]);
        let expected = if k == 0 {
            [0; 8]
        } else {
            [0, 0, k as u8, 0, 0xab, 0xcd, 0xef, 0]
        };
        assert_eq!(queue.doorbell(), expected);
    }
    // Each is told once.
    queues.iter().for_each(|queue| queue.clear_register());
    ring_all(&mut sqs);
    drop(sqs);
    assert!(queues.iter().all(|queue| queue.doorbell() == [0; 8]));
}

#[test]
fn an_address_that_no_handle_has_is_refused() {
    for address in [1, 8, 0x1020] {
        // SAFETY: misaligned, so that nothing is read.
        let refused = unsafe { Sq::<Exclusive, Db, Ring>::open(address) };
        assert_eq!(refused.err(), Some(Error::InvalidArgument));
    }
}
