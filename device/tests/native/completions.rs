//! What CQEs mean.

use warpverbs_device::{
    Collapsed, Db, Error, Exclusive, Gpu, Progress, Ring,
    abi::{FaultCause, State},
};

use crate::{LOCAL, REMOTE, open, queue::Queue};

const REQUESTER_ERROR: u8 = 0xd;

/// The test body with each sharing and CQ form.
macro_rules! in_every_mode {
    ($body:ident) => {
        $body!(Exclusive, Collapsed);
        $body!(Exclusive, Ring);
        $body!(Gpu, Collapsed);
        $body!(Gpu, Ring);
    };
}

fn collapsed(name: &str) -> bool {
    name == "Collapsed"
}

#[test]
fn a_fresh_cq_is_pending_and_its_first_cqe_is_seen() {
    macro_rules! body {
        ($sharing:ident, $form:ident) => {
            let mut queue = Queue::new(8, collapsed(stringify!($form)), 0);
            let mut sq = open!(queue, $sharing, Db, $form).unwrap();
            let ticket = sq.post_write(LOCAL, REMOTE, 1).unwrap();
            assert_eq!(sq.poll(ticket), Ok(Progress::Pending));
            queue.succeed(0, 0);
            assert_eq!(sq.poll(ticket), Ok(Progress::Done));
            assert_eq!(sq.wait(ticket), Ok(()));
            drop(sq);
            assert_eq!(queue.completed(), 1);
        };
    }
    in_every_mode!(body);
}

#[test]
fn completions_stay_right_across_16_and_32_bits_and_many_laps() {
    macro_rules! body {
        ($sharing:ident, $form:ident) => {
            for first in [0, (1 << 16) - 70, (1 << 32) - 70] {
                let mut queue = Queue::new(8, collapsed(stringify!($form)), first);
                let mut sq = open!(queue, $sharing, Db, $form).unwrap();
                for k in 0..200 {
                    let ticket = sq.post_write(LOCAL, REMOTE, 1).unwrap();
                    // An older CQE, of this slot's last lap in particular, completes nothing.
                    assert_eq!(sq.poll(ticket), Ok(Progress::Pending), "{k}");
                    queue.succeed(k, first + k);
                    assert_eq!(sq.poll(ticket), Ok(Progress::Done), "{k}");
                    assert_eq!(sq.completed(), first + k + 1);
                }
            }
        };
    }
    in_every_mode!(body);
}

#[test]
fn an_error_says_what_and_where_and_stays() {
    macro_rules! body {
        ($sharing:ident, $form:ident) => {
            let first = (1 << 16) - 1;
            let mut queue = Queue::new(8, collapsed(stringify!($form)), first);
            let mut sq = open!(queue, $sharing, Db, $form).unwrap();
            let tickets = [(); 4].map(|()| sq.post_write(LOCAL, REMOTE, 1).unwrap());
            queue.succeed(0, first);
            queue.complete(1, first + 1, REQUESTER_ERROR, 0x13, 0x88);
            let expected = State::fault(
                FaultCause::Completion,
                0x13,
                0x88,
                REQUESTER_ERROR,
                first + 1,
            );
            assert_eq!(sq.wait(tickets[1]), Err(Error::Fault(expected)));
            assert_eq!(queue.state(), expected.0);
            assert_eq!(
                sq.wait(tickets[0]),
                Ok(()),
                "a success before the error is a success"
            );
            // The flush of the rest changes nothing.
            queue.complete(2, first + 2, REQUESTER_ERROR, 0x05, 0xf9);
            queue.complete(3, first + 3, REQUESTER_ERROR, 0x05, 0xf9);
            assert_eq!(sq.wait(tickets[3]), Err(Error::Fault(expected)));
            assert_eq!(sq.poll(tickets[3]), Err(Error::Fault(expected)));
            assert_eq!(sq.post_write(LOCAL, REMOTE, 1), Err(Error::Fault(expected)));
            assert_eq!(queue.state(), expected.0);
        };
    }
    in_every_mode!(body);
}

#[test]
fn a_flush_where_the_cause_was_is_told_from_the_cause() {
    // Collapsed: the cause at index 0 was overwritten before anyone looked.
    let mut queue = Queue::new(8, true, 0);
    let mut sq = open!(queue, Gpu, Db, Collapsed).unwrap();
    let tickets = [(); 3].map(|()| sq.post_write(LOCAL, REMOTE, 1).unwrap());
    queue.complete(2, 2, REQUESTER_ERROR, 0x05, 0xf9);
    let overwritten = State::fault(FaultCause::CauseOverwritten, 0x05, 0xf9, REQUESTER_ERROR, 2);
    assert_eq!(sq.wait(tickets[2]), Err(Error::Fault(overwritten)));
    assert_eq!(sq.completed(), 0, "how many had succeeded is not known");

    // A ring keeps the cause, so a flush that comes first is the cause.
    let mut queue = Queue::new(8, false, 0);
    let mut sq = open!(queue, Gpu, Db, Ring).unwrap();
    let ticket = sq.post_write(LOCAL, REMOTE, 1).unwrap();
    queue.complete(0, 0, REQUESTER_ERROR, 0x05, 0xf5);
    let cause = State::fault(FaultCause::Completion, 0x05, 0xf5, REQUESTER_ERROR, 0);
    assert_eq!(sq.wait(ticket), Err(Error::Fault(cause)));
}

#[test]
fn what_succeeded_before_an_error_is_known_to_other_threads_too() {
    let mut queue = Queue::new(8, true, 0);
    let mut sq = open!(queue, Gpu, Db, Collapsed).unwrap();
    let mut other = open!(queue, Gpu, Db, Collapsed).unwrap();
    let tickets = [(); 3].map(|()| sq.post_write(LOCAL, REMOTE, 1).unwrap());
    queue.complete(1, 1, REQUESTER_ERROR, 0x13, 0x88);
    assert!(matches!(sq.wait(tickets[1]), Err(Error::Fault(_))));
    assert_eq!(queue.completed(), 1);
    // The flush has overwritten the error, from which the other thread could have told.
    queue.complete(2, 2, REQUESTER_ERROR, 0x05, 0xf9);
    assert_eq!(other.wait(tickets[0]), Ok(()));
}

#[test]
fn an_opcode_that_a_send_cq_does_not_carry_is_recorded() {
    let mut queue = Queue::new(8, true, 0);
    let mut sq = open!(queue, Exclusive, Db, Collapsed).unwrap();
    let ticket = sq.post_write(LOCAL, REMOTE, 1).unwrap();
    queue.complete(0, 0, 0x7, 0xee, 0xdd);
    let fault = State::fault(FaultCause::Completion, 0xee, 0xdd, 0x7, 0);
    assert_eq!(sq.wait(ticket), Err(Error::Fault(fault)));
}

#[test]
fn a_fault_keeps_the_stop_bit() {
    let mut queue = Queue::new(8, false, 0);
    let mut sq = open!(queue, Gpu, Db, Ring).unwrap();
    let ticket = sq.post_write(LOCAL, REMOTE, 1).unwrap();
    queue.set_stop();
    assert_eq!(sq.wait(ticket), Err(Error::Stopped));
    queue.complete(0, 0, REQUESTER_ERROR, 0x15, 0x81);
    let fault = State::fault(FaultCause::Completion, 0x15, 0x81, REQUESTER_ERROR, 0);
    assert_eq!(queue.state(), State::STOP);
    assert_eq!(
        sq.wait(ticket),
        Err(Error::Fault(State(fault.0 | State::STOP)))
    );
}

#[test]
fn waits_for_a_silent_nic_end_and_change_nothing() {
    macro_rules! body {
        ($sharing:ident, $form:ident) => {
            let mut queue = Queue::new(8, collapsed(stringify!($form)), 0);
            let mut sq = open!(queue, $sharing, Db, $form).unwrap();
            sq.set_deadline(1_000_000);
            let ticket = sq.post_write(LOCAL, REMOTE, 1).unwrap();
            assert_eq!(sq.wait(ticket), Err(Error::Timeout));
            assert_eq!(queue.state(), 0);
            queue.succeed(0, 0);
            assert_eq!(sq.wait(ticket), Ok(()));
        };
    }
    in_every_mode!(body);
}

#[test]
fn the_next_user_of_an_exclusive_queue_goes_on_where_the_last_stopped() {
    let mut queue = Queue::new(8, false, 0);
    let mut sq = open!(queue, Exclusive, Db, Ring).unwrap();
    for k in 0..20 {
        let ticket = sq.post_write(LOCAL, REMOTE, 1).unwrap();
        queue.succeed(k, k);
        sq.wait(ticket).unwrap();
    }
    drop(sq);
    let mut sq = open!(queue, Gpu, Db, Ring).unwrap();
    let ticket = sq.post_write(LOCAL, REMOTE, 1).unwrap();
    assert_eq!(ticket.index(), 21);
    assert_eq!(sq.poll(ticket), Ok(Progress::Pending));
    queue.succeed(20, 20);
    assert_eq!(sq.poll(ticket), Ok(Progress::Done));
}
