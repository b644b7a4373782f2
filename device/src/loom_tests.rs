//! The shared protocols under loom, which tries all interleavings and all values that a load may return.
//!
//! Addresses are keys of modelled memory (`native::modelled`). WQE segments are cells that loom checks for
//! races, so a fence that is missing between a writer and the NIC, or between the NIC and a poller, fails the
//! model.

#![allow(unsafe_code)] // Opens queues and touches modelled memory.

use loom::{sync::atomic::Ordering, thread};
use warpverbs_wire::{
    abi::{self, FaultCause, State},
    cqe::{CqeOpcode, Syndrome},
    doorbell,
};

use crate::{
    Collapsed, CqForm, Db, Doorbell, Error, Exclusive, Gpu, Inline, Lazy, Progress, Remote, Ring,
    Rq, Sharing, Sq, Ticket,
    arch::modelled::{self, Change, fence_acq_rel, init, store_segment, word},
    message::{Sequence, acquire},
    op::WriteInline,
    wait::Watched,
};

const HANDLE: u64 = 0x1000;
const SQ: u64 = 0x2000;
const CQ: u64 = 0x3000;
const DBR: u64 = 0x4000;
const DOORBELL: u64 = 0x5000;
const STOP: u64 = 0x6000;
/// Memory that the NIC writes before a completion.
const PAYLOAD: u64 = 0x7000;
const INBOX: u64 = 0x8000;

const RESERVED: u64 = HANDLE + 128;
const TURN: u64 = HANDLE + 192;
const COMPLETED: u64 = HANDLE + 256;
const CONSUMER: u64 = HANDLE + 264;
const STATE: u64 = HANDLE + 320;

/// A queue in the memory of this execution.
fn queue(depth: u32, collapsed: bool) {
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let cq_depth = if collapsed { 1 } else { 2 * depth };
    init(
        HANDLE,
        pair(
            abi::VERSION,
            if collapsed { abi::FLAG_CQ_COLLAPSED } else { 0 },
        ),
    );
    init(HANDLE + 8, SQ);
    init(HANDLE + 16, DBR);
    init(HANDLE + 24, DOORBELL);
    init(HANDLE + 32, pair(depth, 7));
    init(HANDLE + 40, CQ);
    init(HANDLE + 48, pair(cq_depth, 30));
    init(HANDLE + 56, STOP);
    for at in [
        RESERVED, TURN, COMPLETED, CONSUMER, STATE, DBR, DOORBELL, STOP, INBOX,
    ] {
        init(at, 0);
    }
    for ready in 0..4 {
        init(TURN + 32 + 8 * ready, u64::MAX);
    }
    for cqe in 0..u64::from(cq_depth) {
        init(CQ + 64 * cqe + 48, u64::MAX);
        init(CQ + 64 * cqe + 56, u64::MAX);
    }
}

fn load_segment(at: u64) -> [u64; 2] {
    // SAFETY: modelled memory.
    unsafe { modelled::load_segment(at) }
}

fn load(at: u64) -> u64 {
    // SAFETY: modelled memory.
    unsafe { word(at) }.load(Ordering::Relaxed)
}

fn store(at: u64, value: u64) {
    // SAFETY: modelled memory.
    unsafe { word(at) }.store(value, Ordering::Relaxed);
}

fn open<D: Doorbell, C: CqForm>() -> Sq<Gpu, D, C> {
    // SAFETY: modelled memory; every thread uses it as `Gpu`.
    unsafe { Sq::open(HANDLE) }.unwrap()
}

/// A queue of one thread.
fn own<C: CqForm>() -> Sq<Exclusive, Db, C> {
    // SAFETY: modelled memory; the test's first thread alone uses it.
    unsafe { Sq::open(HANDLE) }.unwrap()
}

fn post<S: Sharing, D: Doorbell, C: CqForm>(
    sq: &mut Sq<S, D, C>,
    tag: u64,
) -> Result<Ticket, Error> {
    sq.post_write_inline(Remote { addr: tag, rkey: 0 }, Inline::from_u32(1))
}

/// Posts two WQEs with one ring.
fn post_two<C: CqForm>(sq: &mut Sq<Exclusive, Db, C>) -> Result<Ticket, Error> {
    sq.submit(2, |k, slot| {
        slot.write_inline(
            Remote {
                addr: u64::from(k),
                rkey: 0,
            },
            Inline::from_u32(1),
        )
    })
}

/// The NIC's side: writes a CQE after the payload.
fn complete(slot: u64, index: u16, opcode: u8, owner: u8, syndrome: u8) {
    fence_acq_rel();
    store(CQ + 64 * slot + 48, u64::from(syndrome) << 56);
    let tail = u64::from(index.swap_bytes()) << 32 | u64::from(opcode << 4 | owner) << 56;
    // SAFETY: modelled memory.
    unsafe { word(CQ + 64 * slot + 56) }.store(tail, Ordering::Release);
}

fn model(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // Unless the environment says otherwise: complete exploration takes too long for most of these.
    builder.preemption_bound = builder.preemption_bound.or(Some(2));
    builder.check(test);
}

/// Looks at the queue as the NIC does: doorbell, then the WQEs that it covers. Returns what doorbell and record said.
fn look_as_nic() -> (u64, u64) {
    let rung = load(DOORBELL).to_le_bytes();
    fence_acq_rel();
    let record = u64::from((load(DBR) as u32).swap_bytes());
    let end = if rung == [0; 8] {
        0
    } else {
        u64::from(u16::from_be_bytes([rung[1], rung[2]])) + 1
    };
    for index in 0..end {
        let control = load_segment(SQ + 64 * index)[0].to_le_bytes();
        assert_eq!(
            control[1..3],
            (index as u16).to_be_bytes(),
            "the doorbell covers a WQE that is not there"
        );
    }
    (end, record)
}

fn posters_and_nic<D: Doorbell>() {
    model(|| {
        queue(4, true);
        let posters = [10, 20]
            .map(|tag| thread::spawn(move || post(&mut open::<D, Collapsed>(), tag).unwrap()));
        let first = look_as_nic();
        let second = look_as_nic();
        assert!(second.0 >= first.0, "the doorbell moved backwards");
        assert!(second.1 >= first.1, "the record moved backwards");
        for poster in posters {
            poster.join().unwrap();
        }
        let (end, record) = look_as_nic();
        assert_eq!((end, record, load(TURN), load(RESERVED)), (2, 2, 2, 2));
        assert_eq!(load(DBR), u64::from(doorbell::dbr_word(2)));
    });
}

#[test]
fn posters_ring_in_order_for_what_is_written() {
    posters_and_nic::<Db>();
}

#[test]
fn posters_that_ring_early_do_so_too() {
    posters_and_nic::<crate::DbEarly>();
}

#[test]
fn with_one_ring_the_record_is_never_behind_the_doorbell() {
    model(|| {
        queue(4, true);
        let poster = thread::spawn(|| post(&mut open::<Db, Collapsed>(), 10).unwrap());
        let (end, record) = look_as_nic();
        assert!(record >= end, "rule O3");
        poster.join().unwrap();
    });
}

/// Who rings covers what an earlier post has left, whose WQE was written; and leaves its own ring to no quiet post.
#[test]
fn what_quiet_posts_leave_is_written_when_another_rings() {
    model(|| {
        queue(4, true);
        let quiet = || {
            thread::spawn(|| {
                let write = WriteInline::new(Remote { addr: 10, rkey: 0 }, Inline::from_u32(1));
                open::<Lazy<Db>, Collapsed>().post_quiet(write).unwrap()
            })
        };
        let quiet = [quiet()];
        let loud = thread::spawn(|| post(&mut open::<Lazy<Db>, Collapsed>(), 20).unwrap());
        look_as_nic();
        for quiet in quiet {
            quiet.join().unwrap();
        }
        let loud = loud.join().unwrap();
        // Behind the last ring, a quiet post stays untold.
        assert_eq!(look_as_nic(), (loud.index(), loud.index()));
    });
}

const RQ_HANDLE: u64 = 0x9000;
const RQ: u64 = 0xa000;
const RQ_CONSUMER: u64 = RQ_HANDLE + 192;

/// A receive queue of two in the memory of this execution.
fn receive_queue() {
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    init(RQ_HANDLE, pair(abi::VERSION, 0));
    init(RQ_HANDLE + 8, RQ);
    init(RQ_HANDLE + 16, DBR);
    init(RQ_HANDLE + 24, pair(2, 4));
    init(RQ_HANDLE + 32, CQ);
    init(RQ_HANDLE + 40, pair(4, 7));
    init(RQ_HANDLE + 48, STOP);
    for at in [64, 128, 192, 200, 256] {
        init(RQ_HANDLE + at, 0);
    }
    init(DBR, 0);
    init(STOP, 0);
    for cqe in 0..4 {
        for word in [32, 40, 48, 56] {
            init(CQ + 64 * cqe + word, u64::MAX);
        }
    }
}

fn open_receives() -> Rq<Gpu> {
    // SAFETY: modelled memory; every thread uses it as `Gpu`.
    unsafe { Rq::open(RQ_HANDLE) }.unwrap()
}

const LOCAL: crate::Local = crate::Local { addr: 1, lkey: 2 };

/// A message is taken once, with what the NIC wrote before its completion.
#[test]
fn a_message_is_taken_once() {
    model(|| {
        receive_queue();
        open_receives().post(LOCAL, 1).unwrap();
        let nic = thread::spawn(|| {
            load_segment(RQ);
            // SAFETY: modelled memory.
            unsafe { store_segment(PAYLOAD, [1, 2]) };
            complete(0, 0, CqeOpcode::ResponderSend.code(), 0, 0);
        });
        let take = || {
            let taken = open_receives().try_receive().unwrap();
            if taken.is_some() {
                assert_eq!(load_segment(PAYLOAD), [1, 2]);
            }
            taken.is_some()
        };
        let other = thread::spawn(take);
        let own = take();
        let other = other.join().unwrap();
        nic.join().unwrap();
        assert!(!(own && other), "taken twice");
        assert_eq!(load(RQ_CONSUMER), u64::from(own || other));
    });
}

/// A slot is posted again when the NIC has read it and its completion was taken.
#[test]
fn receives_are_posted_again_behind_their_completion() {
    model(|| {
        receive_queue();
        let mut rq = open_receives();
        rq.post_many(2, |_| (LOCAL, 1)).unwrap();
        let nic = thread::spawn(|| {
            load_segment(RQ);
            complete(0, 0, CqeOpcode::ResponderSend.code(), 0, 0);
        });
        let taker = thread::spawn(|| open_receives().try_receive().unwrap().is_some());
        let posted = rq.post(LOCAL, 1);
        assert!(matches!(posted, Ok(2) | Err(Error::NoResource)));
        nic.join().unwrap();
        taker.join().unwrap();
    });
}

/// A NIC in recovery goes by the record, not by the doorbell.
#[test]
fn what_the_record_covers_is_written() {
    model(|| {
        queue(4, true);
        let posters = [10, 20]
            .map(|tag| thread::spawn(move || post(&mut open::<Db, Collapsed>(), tag).unwrap()));
        let record = u64::from((load(DBR) as u32).swap_bytes());
        fence_acq_rel();
        for index in 0..record {
            let control = load_segment(SQ + 64 * index)[0].to_le_bytes();
            assert_eq!(control[1..3], (index as u16).to_be_bytes(), "rule O2");
        }
        for poster in posters {
            poster.join().unwrap();
        }
    });
}

#[test]
fn a_waiter_sees_what_the_nic_wrote_before_the_completion() {
    model(|| {
        queue(4, true);
        let mut sq = open::<Db, Collapsed>();
        let ticket = post(&mut sq, 10).unwrap();
        let nic = thread::spawn(|| {
            // SAFETY: modelled memory.
            unsafe { store_segment(PAYLOAD, [1, 2]) };
            complete(0, 0, 0, 0, 0);
        });
        sq.wait(ticket).unwrap();
        assert_eq!(load_segment(PAYLOAD), [1, 2]);
        nic.join().unwrap();
    });
}

/// Two pollers of one queue; one may learn of a completion from the other only.
fn pollers<C: CqForm>() {
    model(|| {
        queue(4, C::COLLAPSED);
        let mut sq = open::<Db, C>();
        let tickets = [post(&mut sq, 10).unwrap(), post(&mut sq, 20).unwrap()];
        // SAFETY: modelled memory.
        unsafe { store_segment(PAYLOAD, [1, 2]) };
        complete(0, 0, 0, 0, 0);
        complete(if C::COLLAPSED { 0 } else { 1 }, 1, 0, 0, 0);
        let other = thread::spawn(move || open::<Db, C>().wait(tickets[1]).unwrap());
        sq.wait(tickets[1]).unwrap();
        assert_eq!(load_segment(PAYLOAD), [1, 2]);
        other.join().unwrap();
        assert_eq!(load(COMPLETED), 2);
        assert_eq!(load(CONSUMER), if C::COLLAPSED { 0 } else { 2 });
    });
}

#[test]
fn pollers_share_a_collapsed_cq() {
    pollers::<Collapsed>();
}

#[test]
fn pollers_share_a_ring() {
    pollers::<Ring>();
}

/// A slot may be written again only after the NIC has read it: its read happens before the completion that frees it.
#[test]
fn a_slot_is_reused_after_the_nic_has_read_it() {
    model(|| {
        queue(2, true);
        let mut sq = open::<Db, Collapsed>();
        post(&mut sq, 10).unwrap();
        let nic = thread::spawn(|| {
            // It was rung before this thread began.
            load_segment(SQ);
            complete(0, 0, 0, 0, 0);
        });
        post(&mut sq, 20).unwrap();
        nic.join().unwrap();
        // The third index has the first one's slot.
        let nic = thread::spawn(|| {
            load_segment(SQ + 64);
            complete(0, 1, 0, 0, 0);
        });
        post(&mut sq, 30).unwrap();
        nic.join().unwrap();
        assert_eq!(load(TURN), 3);
    });
}

/// The owner of a queue posts one WQE at a time and looks for room without a fence: what frees a slot was acquired by the fence
/// of the post before (`Sq::wait_for_room`). `spare`: how many WQEBBs the queue leaves unused.
fn one_at_a_time<C: CqForm>(spare: u64) {
    model(move || {
        queue(2, C::COLLAPSED);
        let mut sq = own::<C>();
        sq.capacity = 2 - spare;
        sq.set_completed(0);
        for index in 0..2 {
            post(&mut sq, index).unwrap();
        }
        let nic = thread::spawn(move || {
            // The third post has the slot of the first, the fourth that of the second.
            load_segment(SQ);
            complete(0, 0, 0, 0, 0);
            load_segment(SQ + 64);
            complete(if C::COLLAPSED { 0 } else { 1 }, 1, 0, 0, 0);
        });
        post(&mut sq, 2).unwrap();
        nic.join().unwrap();
        assert_eq!(load(DBR), u64::from(doorbell::dbr_word(3)));
    });
}

/// One completion is there before the second post, so that a queue with a spare WQEBB has room for that.
fn owner_reuses<C: CqForm>() {
    model(|| {
        queue(2, C::COLLAPSED);
        let mut sq = own::<C>();
        post(&mut sq, 10).unwrap();
        let slot = |n| if C::COLLAPSED { 0 } else { n };
        let nic = thread::spawn(move || {
            load_segment(SQ);
            complete(0, 0, 0, 0, 0);
            await_record(2);
            load_segment(SQ + 64);
            complete(slot(1), 1, 0, 0, 0);
        });
        post(&mut sq, 20).unwrap();
        // The slot of the first: what frees it was seen by the post before.
        post(&mut sq, 30).unwrap();
        nic.join().unwrap();
    });
}

#[test]
fn the_owner_of_a_collapsed_cq_reuses_a_slot_after_the_nic_has_read_it() {
    owner_reuses::<Collapsed>();
}

#[test]
fn the_owner_of_a_ring_reuses_a_slot_after_the_nic_has_read_it() {
    owner_reuses::<Ring>();
}

#[test]
#[should_panic(expected = "Concurrent")]
fn without_the_spare_wqebb_a_look_for_room_would_need_its_fence() {
    one_at_a_time::<Collapsed>(0);
}

/// Of a post of several WQEs only the first slot is vouched for by the post before: the wait for room acquires.
fn owner_reuses_two<C: CqForm>() {
    model(|| {
        queue(4, C::COLLAPSED);
        let mut sq = own::<C>();
        post_two(&mut sq).unwrap();
        let nic = thread::spawn(|| {
            for index in 0..3 {
                await_record(index + 1);
                load_segment(SQ + 64 * u64::from(index));
                let slot = if C::COLLAPSED { 0 } else { index };
                complete(slot.into(), index as u16, 0, 0, 0);
            }
        });
        // One WQEBB more is wanted than is free: waits for index 0.
        post_two(&mut sq).unwrap();
        // Waits for index 2, and has the slots of 0 and 1.
        post_two(&mut sq).unwrap();
        nic.join().unwrap();
    });
}

/// The NIC goes by the record, as it may.
fn await_record(index: u32) {
    while (load(DBR) as u32).swap_bytes() < index {
        thread::yield_now();
    }
    fence_acq_rel();
}

#[test]
fn the_owner_of_a_collapsed_cq_reuses_two_slots_at_once() {
    owner_reuses_two::<Collapsed>();
}

#[test]
fn the_owner_of_a_ring_reuses_two_slots_at_once() {
    owner_reuses_two::<Ring>();
}

/// The same for what an earlier wait or look has found: `completed` covers only what is acquired, whenever the caller has control.
#[test]
fn what_the_owner_polled_may_be_reused() {
    model(|| {
        queue(4, true);
        let mut sq = own::<Collapsed>();
        post_two(&mut sq).unwrap();
        let last = post(&mut sq, 10).unwrap();
        let nic = thread::spawn(|| {
            load_segment(SQ);
            complete(0, 2, 0, 0, 0);
        });
        if sq.poll(last).unwrap() == Progress::Done {
            // Has the slots of index 3, which is fresh, and of 0.
            post_two(&mut sq).unwrap();
        }
        nic.join().unwrap();
    });
}

fn owner_sees_payload<C: CqForm>() {
    model(|| {
        queue(2, C::COLLAPSED);
        let mut sq = own::<C>();
        let first = post(&mut sq, 10).unwrap();
        let nic = thread::spawn(|| {
            // SAFETY: modelled memory.
            unsafe { store_segment(PAYLOAD, [1, 2]) };
            complete(0, 0, 0, 0, 0);
        });
        sq.wait(first).unwrap();
        assert_eq!(load_segment(PAYLOAD), [1, 2]);
        nic.join().unwrap();
    });
}

#[test]
fn the_owner_of_a_collapsed_cq_sees_what_the_nic_wrote() {
    owner_sees_payload::<Collapsed>();
}

#[test]
fn the_owner_of_a_ring_sees_what_the_nic_wrote() {
    owner_sees_payload::<Ring>();
}

/// What was seen while a post waited for room is acquired by that post's own fence.
#[test]
fn the_owner_sees_what_was_written_before_it_found_room() {
    model(|| {
        queue(2, true);
        let mut sq = own::<Collapsed>();
        let first = post(&mut sq, 10).unwrap();
        let nic = thread::spawn(|| {
            // SAFETY: modelled memory.
            unsafe { store_segment(PAYLOAD, [1, 2]) };
            complete(0, 0, 0, 0, 0);
        });
        post(&mut sq, 20).unwrap();
        // Known by now.
        sq.wait(first).unwrap();
        assert_eq!(load_segment(PAYLOAD), [1, 2]);
        nic.join().unwrap();
    });
}

#[test]
fn the_owners_record_covers_what_is_written() {
    model(|| {
        queue(4, true);
        let poster = thread::spawn(|| post(&mut own::<Collapsed>(), 10).unwrap());
        let record = u64::from((load(DBR) as u32).swap_bytes());
        fence_acq_rel();
        for index in 0..record {
            let control = load_segment(SQ + 64 * index)[0].to_le_bytes();
            assert_eq!(control[1..3], (index as u16).to_be_bytes(), "rule O2");
        }
        poster.join().unwrap();
    });
}

/// The error word is read behind the CQE, in a wait for room too.
fn owner_reads_the_error<C: CqForm>() {
    model(|| {
        queue(2, C::COLLAPSED);
        let mut sq = own::<C>();
        post(&mut sq, 10).unwrap();
        let nic = thread::spawn(|| complete(0, 0, CqeOpcode::RequesterError.code(), 0, 0x13));
        match post(&mut sq, 20) {
            Err(Error::Fault(state)) => {
                assert_eq!((state.cause(), state.index()), (FaultCause::Completion, 0));
                assert_eq!(state.syndrome(), 0x13);
            }
            other => panic!("{other:?}"),
        }
        nic.join().unwrap();
    });
}

#[test]
fn the_owner_of_a_collapsed_cq_reads_the_error_behind_its_cqe() {
    owner_reads_the_error::<Collapsed>();
}

#[test]
fn the_owner_of_a_ring_reads_the_error_behind_its_cqe() {
    owner_reads_the_error::<Ring>();
}

/// A message that has arrived was sent after the sender had seen ours: its buffer may be written again.
#[test]
fn a_message_orders_what_its_sender_did() {
    model(|| {
        queue(2, true);
        let sq = own::<Collapsed>();
        // SAFETY: modelled memory; 8 bytes.
        let inbox = unsafe { Sequence::new(INBOX, 8) };
        let nic = thread::spawn(|| {
            load_segment(PAYLOAD);
            // SAFETY: modelled memory.
            unsafe { word(INBOX) }.store(7, Ordering::Release);
        });
        inbox.wait(7, &sq).unwrap();
        acquire();
        // SAFETY: modelled memory.
        unsafe { store_segment(PAYLOAD, [3, 4]) };
        nic.join().unwrap();
    });
}

/// The same, if the poster learns of the completion from another thread, which polled it.
#[test]
fn room_that_another_thread_polled_is_room() {
    model(|| {
        queue(2, true);
        // Index 1 is under way; index 2, which is next, has the slot of index 0.
        store(RESERVED, 2);
        store(TURN, 2);
        store(COMPLETED, 1);
        let nic = thread::spawn(|| {
            load_segment(SQ);
            complete(0, 1, 0, 0, 0);
        });
        let other = thread::spawn(|| open::<Db, Collapsed>().poll(Ticket(2)).unwrap());
        post(&mut open::<Db, Collapsed>(), 20).unwrap();
        other.join().unwrap();
        nic.join().unwrap();
    });
}

#[test]
fn stop_ends_a_wait() {
    model(|| {
        queue(4, true);
        let mut sq = open::<Db, Collapsed>();
        let ticket = post(&mut sq, 10).unwrap();
        let host = thread::spawn(|| store(STOP, 1));
        let ended = sq.wait(ticket);
        assert_eq!(ended, Err(Error::Stopped));
        assert_eq!(load(STATE), State::STOP);
        host.join().unwrap();
    });
}

#[test]
fn a_fault_of_another_thread_ends_a_wait() {
    model(|| {
        queue(4, true);
        let mut sq = open::<Db, Collapsed>();
        let ticket = post(&mut sq, 10).unwrap();
        let fault = State::fault(FaultCause::Completion, 0x15, 7, 13, 0);
        let other = thread::spawn(move || {
            let sq = open::<Db, Collapsed>();
            sq.handle.latch(fault)
        });
        assert_eq!(sq.wait(ticket), Err(Error::Fault(fault)));
        assert_eq!(post(&mut sq, 20), Err(Error::Fault(fault)));
        other.join().unwrap();
    });
}

/// A stop that is copied while a fault is recorded loses neither.
#[test]
fn stop_and_fault_are_both_kept() {
    model(|| {
        queue(4, true);
        store(STOP, 1);
        let sq = open::<Db, Collapsed>();
        let fault = State::fault(FaultCause::Completion, 0x15, 7, 13, 0);
        let other = thread::spawn(move || {
            let sq = open::<Db, Collapsed>();
            sq.handle.latch(fault)
        });
        assert!(sq.handle.look_for_stop());
        other.join().unwrap();
        assert_eq!(load(STATE), fault.0 | State::STOP);
    });
}

#[test]
fn one_fault_is_recorded_and_everyone_returns_it() {
    model(|| {
        queue(4, true);
        let mut sq = open::<Db, Collapsed>();
        let ticket = post(&mut sq, 10).unwrap();
        let threads = [1, 2].map(|vendor| {
            thread::spawn(move || {
                let sq = open::<Db, Collapsed>();
                sq.handle
                    .latch(State::fault(FaultCause::Completion, 0x15, vendor, 13, 0))
            })
        });
        store(STOP, 1);
        let stopped = sq.handle.look_for_stop();
        assert!(stopped);
        let states = threads.map(|thread| thread.join().unwrap());
        let mut word = State(load(STATE));
        assert!(word.is_stopped() && word.is_fault());
        word.0 &= !State::STOP;
        for state in states {
            assert_eq!(state.0 & !State::STOP, word.0);
        }
        assert_eq!(
            sq.wait(ticket),
            Err(Error::Fault(State(word.0 | State::STOP)))
        );
    });
}

#[test]
fn who_waits_behind_an_abandoned_turn_ends_too() {
    model(|| {
        queue(4, true);
        // Index 0 is reserved and never published.
        store(RESERVED, 1);
        store(STOP, 1);
        let other = thread::spawn(|| post(&mut open::<Db, Collapsed>(), 10));
        let mine = post(&mut open::<Db, Collapsed>(), 20);
        for ended in [mine, other.join().unwrap()] {
            match ended {
                Err(Error::Fault(state)) => assert_eq!(state.cause(), FaultCause::Abandoned),
                Err(Error::Stopped) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(load(TURN), 0);
        assert_eq!(load(DOORBELL), 0);
    });
}

/// The index that a fault names is that of the CQE, even if other pollers got 2^16 ahead since this one looked.
#[test]
fn a_poller_left_far_behind_does_not_take_one_index_for_another() {
    const AHEAD: u64 = 1 << 16;
    model(|| {
        queue(4, true);
        let other = thread::spawn(|| {
            // All before has completed, and been polled; then comes an error.
            store(COMPLETED, AHEAD + 1);
            complete(0, 2, CqeOpcode::RequesterError.code(), 0, 0x15);
        });
        let mut sq = open::<Db, Collapsed>();
        for _ in 0..2 {
            if let Err(ended) = sq.poll(Ticket(AHEAD + 3)) {
                let Error::Fault(state) = ended else {
                    panic!("{ended:?}");
                };
                assert_eq!(
                    (state.cause(), state.index()),
                    (FaultCause::Completion, AHEAD as u32 + 2)
                );
                assert!(load(COMPLETED) > AHEAD);
            }
        }
        other.join().unwrap();
    });
}

/// On a collapsed CQ a flush may be written over its cause at any time: what is recorded is the cause, or that it was lost.
#[test]
fn a_cause_that_a_flush_overwrites_is_recorded_or_said_to_be_lost() {
    model(|| {
        queue(4, true);
        let mut sq = open::<Db, Collapsed>();
        let tickets = [post(&mut sq, 10).unwrap(), post(&mut sq, 20).unwrap()];
        let nic = thread::spawn(|| {
            complete(0, 0, CqeOpcode::RequesterError.code(), 0, 0x15);
            complete(
                0,
                1,
                CqeOpcode::RequesterError.code(),
                0,
                Syndrome::Flushed.code(),
            );
        });
        let Err(Error::Fault(state)) = sq.wait(tickets[1]) else {
            panic!("no fault");
        };
        match state.cause() {
            FaultCause::Completion => assert_eq!((state.syndrome(), state.index()), (0x15, 0)),
            FaultCause::CauseOverwritten => assert_eq!(state.syndrome(), Syndrome::Flushed.code()),
            other => panic!("{other:?}"),
        }
        nic.join().unwrap();
    });
}

fn slow_poller<C: CqForm>() {
    model(|| {
        queue(4, C::COLLAPSED);
        let mut sq = open::<Db, C>();
        let tickets = [post(&mut sq, 10).unwrap(), post(&mut sq, 20).unwrap()];
        complete(0, 0, 0, 0, 0);
        let other = thread::spawn(move || open::<Db, C>().poll(tickets[1]).unwrap());
        complete(if C::COLLAPSED { 0 } else { 1 }, 1, 0, 0, 0);
        sq.wait(tickets[1]).unwrap();
        other.join().unwrap();
        assert_eq!(load(COMPLETED), 2);
        assert_eq!(load(CONSUMER), if C::COLLAPSED { 0 } else { 2 });
    });
}

#[test]
fn a_slow_poller_does_not_take_the_completed_index_back() {
    slow_poller::<Collapsed>();
}

#[test]
fn a_slow_poller_does_not_take_the_consumer_index_back() {
    slow_poller::<Ring>();
}

/// True if a test passes with the code under test changed. In a thread of its own, which a failed model may leave in disorder.
fn passes(change: Change, test: fn()) -> bool {
    let run = move || {
        modelled::make(change);
        test();
    };
    std::thread::spawn(run).join().is_ok()
}

/// Each ordering, look and store of the small protocols that is taken away is missed by a test above.
#[test]
fn every_change_is_found() {
    let publish: &[(&str, Change, fn())] = &[
        (
            "no fence before the record (O2, O5)",
            Change::NoFence { after: TURN },
            what_the_record_covers_is_written,
        ),
        (
            "no fence before the early doorbell (O2)",
            Change::NoFence { after: TURN },
            posters_that_ring_early_do_so_too,
        ),
        (
            "exclusive: no fence before the record (O2)",
            Change::NoFence { after: SQ + 32 },
            the_owners_record_covers_what_is_written,
        ),
        (
            "the reservation is a load and a store",
            Change::Split { at: RESERVED },
            posters_ring_in_order_for_what_is_written,
        ),
        (
            "the turn is handed on relaxed (O5)",
            Change::Relaxed { at: TURN },
            posters_ring_in_order_for_what_is_written,
        ),
        (
            "the turn is not handed on",
            Change::NoStore { at: TURN },
            posters_ring_in_order_for_what_is_written,
        ),
        (
            "the turn is handed on before the doorbell",
            Change::Late {
                at: DOORBELL,
                behind: TURN,
            },
            posters_ring_in_order_for_what_is_written,
        ),
    ];
    let ring: &[(&str, Change, fn())] = &[
        (
            "no fence between record and doorbell (O3)",
            Change::NoFence { after: DBR },
            with_one_ring_the_record_is_never_behind_the_doorbell,
        ),
        (
            "the record comes behind the doorbell (O3)",
            Change::Late {
                at: DBR,
                behind: DOORBELL,
            },
            with_one_ring_the_record_is_never_behind_the_doorbell,
        ),
        (
            "no record",
            Change::NoStore { at: DBR },
            with_one_ring_the_record_is_never_behind_the_doorbell,
        ),
        (
            "no doorbell",
            Change::NoStore { at: DOORBELL },
            posters_ring_in_order_for_what_is_written,
        ),
    ];
    let poll: &[(&str, Change, fn())] = &[
        (
            "no fence behind the CQE (O6)",
            Change::NoFence { after: CQ + 56 },
            a_waiter_sees_what_the_nic_wrote_before_the_completion,
        ),
        (
            "exclusive, collapsed: no fence behind the CQE (O6)",
            Change::NoFence { after: CQ + 56 },
            the_owner_of_a_collapsed_cq_sees_what_the_nic_wrote,
        ),
        (
            "exclusive, ring: no fence behind the CQE (O6)",
            Change::NoFence { after: CQ + 56 },
            the_owner_of_a_ring_sees_what_the_nic_wrote,
        ),
        (
            "exclusive, collapsed: room for several without a fence",
            Change::NoFence { after: CQ + 56 },
            the_owner_of_a_collapsed_cq_reuses_two_slots_at_once,
        ),
        (
            "exclusive, ring: room for several without a fence",
            Change::NoFences {
                after: CQ + 56,
                every: 64,
            },
            the_owner_of_a_ring_reuses_two_slots_at_once,
        ),
        (
            "exclusive: a look without a fence",
            Change::NoFence { after: CQ + 56 },
            what_the_owner_polled_may_be_reused,
        ),
        (
            "the completed index of another poller is loaded relaxed",
            Change::Relaxed { at: COMPLETED },
            room_that_another_thread_polled_is_room,
        ),
        (
            "the completed index is not published",
            Change::NoStore { at: COMPLETED },
            pollers_share_a_collapsed_cq,
        ),
        (
            "the completed index is stored, not raised",
            Change::Split { at: COMPLETED },
            a_slow_poller_does_not_take_the_completed_index_back,
        ),
        (
            "the consumer index is not published",
            Change::NoStore { at: CONSUMER },
            pollers_share_a_ring,
        ),
        (
            "the consumer index is stored, not raised",
            Change::Split { at: CONSUMER },
            a_slow_poller_does_not_take_the_consumer_index_back,
        ),
        (
            "message: no fence behind the inbox",
            Change::NoFence { after: INBOX },
            a_message_orders_what_its_sender_did,
        ),
    ];
    let stop: &[(&str, Change, fn())] = &[
        (
            "the host's word is not looked at (O9, O10)",
            Change::Blind { at: STOP },
            stop_ends_a_wait,
        ),
        (
            "it is not copied (O10)",
            Change::NoStore { at: STATE },
            stop_ends_a_wait,
        ),
        (
            "it is copied by a load and a store (O10)",
            Change::Split { at: STATE },
            stop_and_fault_are_both_kept,
        ),
    ];
    let fault: &[(&str, Change, fn())] = &[
        (
            "collapsed: no fence between CQE and error word (O6)",
            Change::NoFence { after: CQ + 56 },
            a_cause_that_a_flush_overwrites_is_recorded_or_said_to_be_lost,
        ),
        (
            "exclusive, collapsed: no fence between CQE and error word (O6)",
            Change::NoFence { after: CQ + 56 },
            the_owner_of_a_collapsed_cq_reads_the_error_behind_its_cqe,
        ),
        (
            "exclusive, ring: no fence between CQE and error word (O6)",
            Change::NoFence { after: CQ + 56 },
            the_owner_of_a_ring_reads_the_error_behind_its_cqe,
        ),
        (
            "the index is counted from what was known before the CQE",
            Change::NoReload {
                at: COMPLETED,
                after: CQ + 48,
            },
            a_poller_left_far_behind_does_not_take_one_index_for_another,
        ),
        (
            "the latch is a load and a store (O10)",
            Change::Split { at: STATE },
            one_fault_is_recorded_and_everyone_returns_it,
        ),
        (
            "nothing is latched (O10)",
            Change::NoStore { at: STATE },
            a_fault_of_another_thread_ends_a_wait,
        ),
        (
            "waits do not look at the state (O9)",
            Change::Blind { at: STATE },
            a_fault_of_another_thread_ends_a_wait,
        ),
    ];
    let mut missed = Vec::new();
    for (protocol, changes) in [
        ("publish", publish),
        ("ring", ring),
        ("poll", poll),
        ("stop", stop),
        ("fault", fault),
    ] {
        for (name, change, test) in changes {
            if passes(*change, *test) {
                missed.push(format!("{protocol}: {name}"));
            }
        }
    }
    assert!(missed.is_empty(), "not found: {missed:#?}");
}

/// What no test can miss, since something else supplies it.
#[test]
fn these_orderings_come_twice() {
    let changes: [(&str, Change, fn()); 3] = [
        (
            // With one WQEBB missing, the fence of the post before has acquired what frees the slot.
            "exclusive, collapsed: a fence behind the CQE that makes room for one WQE",
            Change::NoFence { after: CQ + 56 },
            the_owner_of_a_collapsed_cq_reuses_a_slot_after_the_nic_has_read_it,
        ),
        (
            "exclusive, ring: the same",
            Change::NoFence { after: CQ + 56 },
            the_owner_of_a_ring_reuses_a_slot_after_the_nic_has_read_it,
        ),
        (
            // The least index with the CQE's 16 bits is a lower bound, and a maximum takes no harm from one.
            "poll: how far others got is not looked at behind a success",
            Change::NoReload {
                at: COMPLETED,
                after: CQ + 56,
            },
            a_slow_poller_does_not_take_the_completed_index_back,
        ),
    ];
    for (name, change, test) in changes {
        assert!(passes(change, test), "{name}: found, so it is needed");
    }
}
