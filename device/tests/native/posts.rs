//! What a post writes, and when it is refused.

use warpverbs_device::{
    Collapsed, Db, DbEarly, Error, Exclusive, Gpu, Inline, Remote, Ring,
    abi::{FLAG_CQ_COLLAPSED, FaultCause, State},
};

use crate::{
    LOCAL, REMOTE, open,
    queue::{DIRT, QPN, Queue},
};

/// Short, for waits that are to end by it.
const DEADLINE_NS: u64 = 1_000_000;

/// From the PRM's tables: control, remote address and data segments of an RDMA write of 0x1000 bytes at index 0xffff.
const WRITE_AT_FFFF: [u8; 48] = [
    0x00, 0xff, 0xff, 0x08, 0xab, 0xcd, 0xef, 0x03, 0x00, 0x00, 0x00, 0x08, 0x00, 0x00, 0x00,
    0x00, // control
    0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff, 0x00, 0x11, 0x22, 0x33, 0x44, 0x00, 0x00, 0x00,
    0x00, // remote address
    0x00, 0x00, 0x10, 0x00, 0x01, 0x02, 0x03, 0x04, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77,
    0x88, // data
];

#[test]
fn a_write_is_these_bytes_and_no_others() {
    let mut queue = Queue::new(8, true, 0xffff);
    let ticket = open!(queue, Exclusive, Db, Collapsed)
        .unwrap()
        .post_write(LOCAL, REMOTE, 0x1000)
        .unwrap();
    assert_eq!(ticket.index(), 0x1_0000);
    let bytes = queue.wqebb(0xffff);
    assert_eq!(bytes[..48], WRITE_AT_FFFF);
    assert_eq!(
        bytes[48..],
        [DIRT; 16],
        "the fourth segment is not the WQE's"
    );
    assert_eq!(
        queue.dbr(),
        [0, 0, 0, 0],
        "the producer index 0x10000, low 16 bits"
    );
    assert_eq!(queue.doorbell(), WRITE_AT_FFFF[..8]);
}

#[test]
fn a_read_differs_from_a_write_by_its_opcode() {
    let mut queue = Queue::new(8, false, 0xffff);
    open!(queue, Gpu, DbEarly, Ring)
        .unwrap()
        .post_read(LOCAL, REMOTE, 0x1000)
        .unwrap();
    let mut expected = WRITE_AT_FFFF;
    expected[3] = 0x10;
    assert_eq!(queue.wqebb(0xffff)[..48], expected);
    assert_eq!(queue.doorbell(), expected[..8]);
}

#[test]
fn no_carry_of_an_index_reaches_the_opmod() {
    for first in [(1 << 16) - 2, (1 << 32) - 2] {
        let mut queue = Queue::new(8, true, first);
        let mut sq = open!(queue, Exclusive, Db, Collapsed).unwrap();
        for k in 0..4 {
            let index = first + k;
            assert_eq!(sq.post_write(LOCAL, REMOTE, 1).unwrap().index(), index + 1);
            let low = (index as u16).to_be_bytes();
            assert_eq!(queue.wqebb(index)[..4], [0, low[0], low[1], 0x08]);
            let next = ((index + 1) as u16).to_be_bytes();
            assert_eq!(queue.dbr(), [0, 0, next[0], next[1]]);
        }
        drop(sq);
        assert_eq!(queue.reserved(), first + 4);
        assert_eq!(queue.turn(), first + 4);
    }
}

#[test]
fn inline_data_fills_as_many_segments_as_it_needs() {
    let words = [
        0x0302_0100,
        0x0706_0504,
        0x0b0a_0908,
        0x0f0e_0d0c,
        0x1312_1110,
        0x1716_1514,
        0x1b1a_1918,
    ];
    for (len, ds) in [(1u8, 3u8), (11, 3), (12, 3), (13, 4), (27, 4), (28, 4)] {
        let mut queue = Queue::new(8, true, 0);
        let data = Inline::new(words, u32::from(len)).unwrap();
        open!(queue, Exclusive, Db, Collapsed)
            .unwrap()
            .post_write_inline(REMOTE, data)
            .unwrap();
        let bytes = queue.wqebb(0);
        assert_eq!(bytes[..8], [0, 0, 0, 0x08, 0xab, 0xcd, 0xef, ds], "{len}");
        assert_eq!(bytes[32..36], [0x80, 0, 0, len], "{len}");
        for i in 0..len {
            assert_eq!(bytes[36 + usize::from(i)], i, "{len}");
        }
        let declared = 16 * usize::from(ds);
        assert!(bytes[declared..].iter().all(|&byte| byte == DIRT), "{len}");
        assert!(
            bytes[36 + usize::from(len)..declared]
                .iter()
                .all(|&byte| byte != DIRT),
            "{len}: stale bytes"
        );
    }
    assert_eq!(Inline::new(words, 0), None);
    assert_eq!(Inline::new(words, 29), None);
    assert_eq!(
        Inline::from_u64(0x0706_0504_0302_0100),
        Inline::new([words[0], words[1], 0, 0, 0, 0, 0], 8).unwrap()
    );
    assert_eq!(
        Inline::from_u32(0x0302_0100),
        Inline::new([words[0], 0, 0, 0, 0, 0, 0], 4).unwrap()
    );
}

#[test]
fn a_batch_rings_once_for_its_last_wqe() {
    let mut queue = Queue::new(8, true, 5);
    let mut sq = open!(queue, Gpu, Db, Collapsed).unwrap();
    let len = sq.length(64).unwrap();
    let at = |k: u32| Remote {
        addr: u64::from(k),
        rkey: 0,
    };
    let ticket = sq
        .submit(3, |k, slot| slot.write(LOCAL, at(k), len))
        .unwrap();
    assert_eq!(ticket.index(), 8);
    for k in 0..3u8 {
        assert_eq!(queue.wqebb(5 + u64::from(k))[..4], [0, 0, 5 + k, 0x08]);
        assert_eq!(
            queue.wqebb(5 + u64::from(k))[16..24],
            [0, 0, 0, 0, 0, 0, 0, k]
        );
    }
    assert_eq!(queue.doorbell()[..4], [0, 0, 7, 0x08]);
    assert_eq!(queue.dbr(), [0, 0, 0, 8]);
    assert_eq!(queue.turn(), 8);
}

#[test]
fn lower_layers_do_the_same_step_by_step() {
    let mut queue = Queue::new(8, false, 0);
    let mut sq = open!(queue, Gpu, Db, Ring).unwrap();
    let len = sq.length(64).unwrap();
    let reservation = sq.try_reserve(2).unwrap();
    assert_eq!(queue.reserved(), 2);
    assert!(sq.slot(&reservation, 2).is_none());
    sq.slot(&reservation, 0).unwrap().write(LOCAL, REMOTE, len);
    let last = sq.slot(&reservation, 1).unwrap().read(LOCAL, REMOTE, len);
    assert_eq!(
        queue.doorbell(),
        [0; 8],
        "nothing is rung before it is published"
    );
    assert_eq!(sq.publish(reservation, last).unwrap().index(), 2);
    assert_eq!(queue.doorbell()[..4], [0, 0, 1, 0x10]);
    assert_eq!(queue.turn(), 2);
}

#[test]
fn more_than_the_depth_less_one_is_refused_at_once() {
    let mut queue = Queue::new(8, true, 0);
    let mut sq = open!(queue, Exclusive, Db, Collapsed).unwrap();
    let len = sq.length(64).unwrap();
    for count in [0, 8, 65, u32::MAX] {
        let refused = sq.submit(count, |_, slot| slot.write(LOCAL, REMOTE, len));
        assert_eq!(refused, Err(Error::InvalidArgument), "{count}");
        assert_eq!(
            sq.try_reserve(count).err(),
            Some(Error::InvalidArgument),
            "{count}"
        );
    }
    assert_eq!(
        sq.submit(7, |_, slot| slot.write(LOCAL, REMOTE, len))
            .unwrap()
            .index(),
        7
    );
}

#[test]
fn a_full_queue_is_left_as_it_is() {
    let mut exclusive = Queue::new(8, true, 0);
    let mut sq = open!(exclusive, Exclusive, Db, Collapsed).unwrap();
    for _ in 0..7 {
        sq.post_write(LOCAL, REMOTE, 1).unwrap();
    }
    assert_eq!(sq.try_reserve(1).err(), Some(Error::NoResource));
    sq.set_deadline(DEADLINE_NS);
    assert_eq!(sq.post_write(LOCAL, REMOTE, 1), Err(Error::Timeout));
    assert_eq!(exclusive.dbr(), [0, 0, 0, 7]);
    // Room again: the failed posts took no index.
    exclusive.succeed(0, 0);
    assert_eq!(sq.post_write(LOCAL, REMOTE, 1).unwrap().index(), 8);
    drop(sq);
    assert_eq!(
        (
            exclusive.reserved(),
            exclusive.completed(),
            exclusive.state()
        ),
        (8, 1, 0)
    );

    let mut shared = Queue::new(8, true, 0);
    let mut sq = open!(shared, Gpu, Db, Collapsed).unwrap();
    for _ in 0..7 {
        sq.post_write(LOCAL, REMOTE, 1).unwrap();
    }
    assert_eq!(sq.try_reserve(1).err(), Some(Error::NoResource));
    assert_eq!((shared.reserved(), shared.state()), (7, 0));
    shared.succeed(0, 0);
    let reservation = sq.try_reserve(1).unwrap();
    assert_eq!(shared.reserved(), 8);
    assert_eq!(shared.completed(), 1);
    drop(reservation);
}

#[test]
fn who_gives_up_between_reserve_and_hand_off_ends_every_wait() {
    let mut queue = Queue::new(4, false, 100);
    let mut sq = open!(queue, Gpu, Db, Ring).unwrap();
    let mut other = open!(queue, Gpu, Db, Ring).unwrap();
    let tickets = [(); 3].map(|()| sq.post_write(LOCAL, REMOTE, 1).unwrap());
    sq.set_deadline(DEADLINE_NS);
    let Err(Error::Fault(state)) = sq.post_write(LOCAL, REMOTE, 1) else {
        panic!("the queue is full and silent");
    };
    assert_eq!((state.cause(), state.index()), (FaultCause::Abandoned, 103));
    assert_eq!(queue.state(), state.0);
    assert_eq!(queue.turn(), 103, "no later turn is served");
    assert_eq!(
        queue.dbr(),
        [0, 0, 0, 103],
        "the record does not pass the abandoned index"
    );
    assert_eq!(other.post_write(LOCAL, REMOTE, 1), Err(Error::Fault(state)));
    assert_eq!(other.wait(tickets[2]), Err(Error::Fault(state)));
    assert_eq!(other.poll(tickets[2]), Err(Error::Fault(state)));
    // What had completed before is a success all the same.
    queue.succeed(0, 100);
    assert_eq!(other.wait(tickets[0]), Ok(()));
}

#[test]
fn a_turn_that_never_comes_ends_in_a_latch() {
    let mut queue = Queue::new(8, true, 0);
    let mut first = open!(queue, Gpu, Db, Collapsed).unwrap();
    let mut second = open!(queue, Gpu, Db, Collapsed).unwrap();
    let unpublished = first.try_reserve(1).unwrap();
    second.set_deadline(DEADLINE_NS);
    let Err(Error::Fault(state)) = second.post_write(LOCAL, REMOTE, 1) else {
        panic!("its predecessor never published");
    };
    assert_eq!((state.cause(), state.index()), (FaultCause::Abandoned, 1));
    assert_eq!(queue.doorbell(), [0; 8]);
    drop(unpublished);
}

#[test]
fn a_reservation_is_published_in_its_turn_only() {
    let mut queue = Queue::new(8, true, 0);
    let mut first = open!(queue, Gpu, Db, Collapsed).unwrap();
    let mut second = open!(queue, Gpu, Db, Collapsed).unwrap();
    let len = first.length(1).unwrap();
    let earlier = first.try_reserve(1).unwrap();
    let later = second.try_reserve(1).unwrap();
    let filled = second.slot(&later, 0).unwrap().write(LOCAL, REMOTE, len);
    second.set_deadline(DEADLINE_NS);
    let Err(Error::Fault(state)) = second.publish(later, filled) else {
        panic!("its predecessor has not published");
    };
    assert_eq!((state.cause(), state.index()), (FaultCause::Abandoned, 1));
    assert_eq!((queue.doorbell(), queue.turn()), ([0; 8], 0));
    drop(earlier);
}

#[test]
fn an_exclusive_reservation_is_void_after_the_next_post() {
    let mut queue = Queue::new(8, true, 0);
    let mut sq = open!(queue, Exclusive, Db, Collapsed).unwrap();
    let len = sq.length(1).unwrap();
    let [dropped, first, second] = [(); 3].map(|()| sq.try_reserve(1).unwrap());
    drop(dropped);
    let fill = |slot: Option<warpverbs_device::Slot>| slot.unwrap().write(LOCAL, REMOTE, len);
    let (a, b) = (fill(sq.slot(&first, 0)), fill(sq.slot(&second, 0)));
    assert_eq!(sq.publish(second, b).unwrap().index(), 1);
    assert!(sq.slot(&first, 0).is_none());
    assert_eq!(sq.publish(first, a), Err(Error::InvalidArgument));
    assert_eq!(queue.dbr(), [0, 0, 0, 1]);
    // A reservation that a post overtook would ring for a WQE that was never written.
    let third = sq.try_reserve(1).unwrap();
    let c = fill(sq.slot(&third, 0));
    sq.post_write(LOCAL, REMOTE, 1).unwrap();
    assert_eq!(sq.publish(third, c), Err(Error::InvalidArgument));
    assert_eq!(queue.dbr(), [0, 0, 0, 2]);
    drop(sq);
    assert_eq!((queue.reserved(), queue.turn()), (2, 2));
}

#[test]
fn lengths_at_their_ends() {
    let mut queue = Queue::new(8, true, 40).with(|handle| handle.log_max_message = 20);
    let mut sq = open!(queue, Exclusive, Db, Collapsed).unwrap();
    // Nothing to do: done already, and no WQE.
    let ticket = sq.post_write(LOCAL, REMOTE, 0).unwrap();
    assert_eq!(sq.wait(ticket), Ok(()));
    let ticket = sq.post_read(LOCAL, REMOTE, 0).unwrap();
    assert_eq!(sq.wait(ticket), Ok(()));
    assert_eq!(queue.doorbell(), [0; 8]);
    assert!(sq.post_write(LOCAL, REMOTE, 1 << 20).is_ok());
    for len in [(1 << 20) + 1, 1 << 31, u32::MAX] {
        assert_eq!(
            sq.post_write(LOCAL, REMOTE, len),
            Err(Error::InvalidArgument),
            "{len}"
        );
        assert_eq!(
            sq.post_read(LOCAL, REMOTE, len),
            Err(Error::InvalidArgument),
            "{len}"
        );
        assert_eq!(sq.length(len), Err(Error::InvalidArgument), "{len}");
    }
    assert_eq!(sq.length(0), Err(Error::InvalidArgument));
}

#[test]
fn stop_is_seen_at_every_64th_index_and_stays() {
    let mut queue = Queue::new(256, true, 1);
    let mut sq = open!(queue, Exclusive, Db, Collapsed).unwrap();
    queue.set_stop();
    for index in 1..64 {
        assert!(sq.post_write(LOCAL, REMOTE, 1).is_ok(), "{index}");
    }
    assert_eq!(sq.post_write(LOCAL, REMOTE, 1), Err(Error::Stopped));
    assert_eq!(queue.state(), State::STOP);
    assert_eq!(sq.post_write(LOCAL, REMOTE, 1), Err(Error::Stopped));
    drop(sq);
    assert_eq!(queue.reserved(), 64, "the refused posts took no index");

    // A thread of a shared queue that has its index finishes the post; the next one stops.
    let mut queue = Queue::new(256, true, 64);
    let mut sq = open!(queue, Gpu, Db, Collapsed).unwrap();
    queue.set_stop();
    assert_eq!(sq.post_write(LOCAL, REMOTE, 1).unwrap().index(), 65);
    assert_eq!(sq.post_write(LOCAL, REMOTE, 1), Err(Error::Stopped));
    assert_eq!((queue.reserved(), queue.turn()), (65, 65));
}

#[test]
fn stop_is_seen_by_a_post_that_only_covers_a_64th_index() {
    // One WQE, then two, so that index 64 is the second of a post.
    let mut queue = Queue::new(256, true, 62);
    let mut sq = open!(queue, Exclusive, Db, Collapsed).unwrap();
    queue.set_stop();
    assert!(sq.post_write(LOCAL, REMOTE, 1).is_ok());
    let one = sq.length(1).unwrap();
    assert_eq!(
        sq.submit(2, |_, slot| slot.write(LOCAL, REMOTE, one)),
        Err(Error::Stopped)
    );
}

#[test]
fn a_handle_of_another_version_is_refused_with_its_version() {
    let mut queue = Queue::new(8, true, 0).with(|handle| handle.version = 77);
    assert_eq!(
        open!(queue, Exclusive, Db, Collapsed).err(),
        Some(Error::BadVersion(77))
    );
}

#[test]
fn a_handle_whose_fields_contradict_each_other_is_refused() {
    let refused = |change: fn(&mut warpverbs_device::abi::QpHandle)| {
        let mut queue = Queue::new(8, true, 0).with(change);
        match open!(queue, Exclusive, Db, Collapsed) {
            Err(Error::Fault(state)) => assert_eq!(state.cause(), FaultCause::BadHandle),
            other => panic!("{other:?}"),
        }
    };
    refused(|handle| handle.sq_depth = 0);
    refused(|handle| handle.sq_depth = 1);
    refused(|handle| handle.sq_depth = 12);
    refused(|handle| handle.sq_depth = 1 << 16);
    refused(|handle| handle.cq_depth = 2);
    refused(|handle| handle.flags &= !FLAG_CQ_COLLAPSED);
    refused(|handle| handle.log_max_message = 31);
    refused(|handle| handle.qpn = QPN | 1 << 24);
    // A ring holds more than the send queue's depth.
    let mut queue = Queue::new(8, false, 0).with(|handle| handle.cq_depth = 8);
    assert!(matches!(
        open!(queue, Exclusive, Db, Ring),
        Err(Error::Fault(_))
    ));
    // The other form than the mode's.
    let mut queue = Queue::new(8, false, 0);
    assert_eq!(
        open!(queue, Exclusive, Db, Collapsed).err(),
        Some(Error::InvalidArgument)
    );
}
