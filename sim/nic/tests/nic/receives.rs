//! Receive queues of QPs that go to ERR: every receive that was posted, and every one that still is, completes.

use warpverbs_sim_nic::{CablePlan, NicConfig};
use warpverbs_wire::cqe::{Completion, CqeOpcode};
use warpverbs_wire::wqe::{Opcode, SIGNALLED};

use crate::rig::{EVERY_RIGHT, Rig, TestCq};

/// The number of the receive that is flushed next.
#[track_caller]
fn flushed(rig: &Rig, cq: &mut TestCq) -> u16 {
    match cq.poll(rig) {
        Some(Completion::Failed(cqe)) => {
            assert_eq!(
                (cqe.opcode, cqe.syndrome.code()),
                (CqeOpcode::ResponderError, 0x05)
            );
            cqe.wqe_counter
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn receives_that_are_posted_in_error_are_flushed() {
    let rig = Rig::new();
    let mut cq = rig.cq(6);
    let (qp, mut rq) = rig.qp_with_receives(&cq, 4);
    rig.to_rts(qp.qpn, qp.qpn);
    let mr = rig.mr(4096, EVERY_RIGHT);
    rq.post(&rig, &[mr.piece(0, 64)]);
    rig.to_error(qp.qpn);
    rig.run();
    assert_eq!(flushed(&rig, &mut cq), 0);
    // As those do who wait for the end of a queue: one more, and wait for it.
    for n in 1..4 {
        rq.post(&rig, &[mr.piece(0, 64)]);
        rig.run();
        assert_eq!(flushed(&rig, &mut cq), n);
    }
    cq.assert_empty(&rig);
}

#[test]
fn the_receive_of_a_message_that_an_error_cuts_off_is_flushed() {
    let (near, far, _) = Rig::joined(NicConfig::default(), CablePlan::default(), 1);
    let (mut near_cq, mut far_cq) = (near.cq(6), far.cq(6));
    let mut a = near.qp(&near_cq, 4);
    let (b, mut rq) = far.qp_with_receives(&far_cq, 4);
    near.connect(a.qpn, &far, b.qpn, |_| ());
    far.connect(b.qpn, &near, a.qpn, |_| ());
    let (from, to) = (near.mr(8192, EVERY_RIGHT), far.mr(8192, EVERY_RIGHT));
    near.write(from.addr, &[7; 8192]);
    for _ in 0..2 {
        rq.post(&far, &[to.piece(0, 8192)]);
    }
    let message = from.piece(0, 8192).local();
    a.post(&near, Opcode::Send, SIGNALLED, &message);
    a.ring(&near);
    while far.read(to.addr, 1) != [7] {
        assert_eq!(near.bus.lock().run_devices(1), 1);
    }
    assert_eq!(far.read(to.addr + 8191, 1), [0], "under way");
    far.to_error(b.qpn);
    near.run();
    assert_eq!(
        [flushed(&far, &mut far_cq), flushed(&far, &mut far_cq)],
        [0, 1]
    );
    far_cq.assert_empty(&far);
    assert_eq!(near_cq.error(&near).0, 0x15);
}
