//! What a WQE waits for: a CQ (core-direct), and what its fence says.

use warpverbs_sim_nic::{CablePlan, Event, NicConfig};
use warpverbs_wire::eqe;
use warpverbs_wire::prm::qpc::QpState;
use warpverbs_wire::prm::{destroy_cq, destroy_qp};
use warpverbs_wire::roce;
use warpverbs_wire::wqe::{Opcode, SIGNALLED, segment_bytes, wait};

use crate::rig::{ALL_RIGHTS, EVERY_RIGHT, Rig, TestCq, TestQp, pattern};

/// A QP that may wait, connected with itself.
fn master(rig: &Rig, cq: &TestCq) -> TestQp {
    let (mut request, mut qp) = rig.qp_request(cq, 4);
    request.qpc.cd_master = true;
    qp.qpn = rig.command(request).unwrap().qpn;
    rig.to_rts(qp.qpn, qp.qpn);
    qp
}

fn post_wait(rig: &Rig, qp: &mut TestQp, index: u64, cqn: u32) {
    let segment = segment_bytes(wait(index as u32, cqn));
    qp.post(rig, Opcode::Wait, SIGNALLED, &segment);
}

#[test]
fn a_wait_holds_the_queue_until_the_cqe_of_its_index_is_there() {
    // Indices start anywhere, across each width that they have somewhere.
    for first_index in [0, (1 << 16) - 2, (1 << 24) - 2, (1u64 << 32) - 2] {
        let rig = Rig::with(NicConfig {
            first_index,
            ..NicConfig::default()
        });
        let (mut cq, mut other_cq) = (rig.cq(4), rig.cq(4));
        let (mut other, _peer) = rig.pair(&other_cq, 4);
        let mut qp = master(&rig, &cq);
        let mr = rig.mr(64, ALL_RIGHTS);
        rig.write(mr.addr, &pattern(64, 1));
        post_wait(&rig, &mut qp, first_index + 2, other_cq.cqn);
        qp.write(&rig, mr.piece(0, 8), mr.piece(32, 8));
        qp.ring(&rig);
        for completed in 0..3 {
            rig.run();
            cq.assert_empty(&rig);
            assert_ne!(rig.read(mr.addr + 32, 8), pattern(8, 1), "{completed}");
            other.nop(&rig);
            other.ring(&rig);
            rig.run();
            other_cq.success(&rig);
        }
        assert_eq!(cq.success(&rig).send_opcode, 0x0f);
        assert_eq!(cq.success(&rig).send_opcode, 0x08);
        assert_eq!(rig.read(mr.addr + 32, 8), pattern(64, 1)[..8]);
        // One that is behind does not hold.
        post_wait(&rig, &mut qp, first_index, other_cq.cqn);
        qp.ring(&rig);
        rig.run();
        cq.success(&rig);
        rig.assert_no_findings();
    }
}

/// CQEs of a QP's life before its reset stay counted: 10 posts, reset, 5 posts, reset.
#[test]
fn what_a_cq_produced_before_a_reset_counts_for_a_wait() {
    let rig = Rig::new();
    let (mut cq, mut other_cq) = (rig.cq(4), rig.cq(4));
    let mut other = rig.qp(&other_cq, 4);
    let mut qp = master(&rig, &cq);
    let mut carried = 0;
    for posts in [10, 5, 1] {
        other.next = 0;
        other.dbr(&rig);
        rig.to_rts(other.qpn, other.qpn);
        post_wait(&rig, &mut qp, carried + posts - 1, other_cq.cqn);
        qp.ring(&rig);
        for post in 0..posts {
            rig.run();
            cq.assert_empty(&rig);
            other.nop(&rig);
            other.ring(&rig);
            rig.run();
            assert_eq!(other_cq.success(&rig).wqe_counter, post as u16);
        }
        cq.success(&rig);
        carried += posts;
        rig.to_reset(other.qpn);
    }
    rig.assert_no_findings();
}

#[test]
fn several_queues_wait_for_one_cq_and_one_waits_for_its_own() {
    let rig = Rig::new();
    let (mut cq, mut other_cq) = (rig.cq_oi(4, false), rig.cq(4));
    let mut waiting: Vec<_> = (0..3).map(|_| master(&rig, &cq)).collect();
    for qp in &mut waiting {
        post_wait(&rig, qp, 0, other_cq.cqn);
        qp.ring(&rig);
    }
    // It waits for its own CQ, where its own first WQE completes.
    let mut own = master(&rig, &other_cq);
    own.nop(&rig);
    post_wait(&rig, &mut own, 0, other_cq.cqn);
    rig.run();
    cq.assert_empty(&rig);
    own.ring(&rig);
    rig.run();
    for _ in 0..2 {
        other_cq.success(&rig);
    }
    for _ in 0..3 {
        cq.success(&rig);
    }
    rig.assert_no_findings();
}

#[test]
fn a_wait_that_cannot_be_is_refused_and_one_that_is_stuck_is_flushed() {
    let rig = Rig::new();
    let (mut cq, other_cq) = (rig.cq(4), rig.cq(4));
    // No CQ of that number.
    let mut qp = master(&rig, &cq);
    post_wait(&rig, &mut qp, 0, 0x99_9999);
    qp.ring(&rig);
    rig.run();
    assert_eq!(cq.error(&rig), (0x02, 0x68, 0));
    assert_eq!(rig.take_findings(), ["wqe-malformed"]);
    // A QP that may not wait.
    let (mut plain, _peer) = rig.pair(&cq, 4);
    post_wait(&rig, &mut plain, 0, other_cq.cqn);
    plain.ring(&rig);
    rig.run();
    assert_eq!(cq.error(&rig), (0x02, 0x68, 0));
    assert_eq!(rig.take_findings(), ["wqe-malformed"]);
    // Its CQ goes away.
    let gone = rig.cq(4);
    let mut qp = master(&rig, &cq);
    post_wait(&rig, &mut qp, 0, gone.cqn);
    qp.ring(&rig);
    rig.run();
    cq.assert_empty(&rig);
    rig.command(destroy_cq::In { cqn: gone.cqn }).unwrap();
    rig.run();
    assert_eq!(cq.error(&rig), (0x02, 0x68, 0));
    assert_eq!(rig.take_findings(), ["wqe-malformed"]);
    // It waits for ever: 2ERR ends it, and destruction leaves nothing behind.
    let mut qp = master(&rig, &cq);
    post_wait(&rig, &mut qp, 0, other_cq.cqn);
    qp.ring(&rig);
    rig.run();
    rig.to_error(qp.qpn);
    rig.run();
    assert_eq!(cq.error(&rig), (0x05, 0xf5, 0));
    let mut last = master(&rig, &cq);
    post_wait(&rig, &mut last, 0, other_cq.cqn);
    last.ring(&rig);
    rig.run();
    rig.command(destroy_qp::In { qpn: last.qpn }).unwrap();
    let (mut other, _peer) = rig.pair(&other_cq, 4);
    other.nop(&rig);
    other.ring(&rig);
    rig.run();
    cq.assert_empty(&rig);
    assert_eq!(rig.state(qp.qpn), QpState::Err);
    rig.assert_no_findings();
}

/// What the near NIC did, from a first WQE of `first` and a second WRITE with a fence mode, both of 8 packets.
fn order(first: Opcode, mode: u8) -> Vec<Event> {
    // Answers take longer than all that the near NIC may do without them.
    let plan = CablePlan {
        delay_ns: 1000,
        ..CablePlan::default()
    };
    let (near, far, _) = Rig::joined(NicConfig::default(), plan, 1);
    let (mut cq, far_cq) = (near.cq(4), far.cq(4));
    let (mut a, b) = (near.qp(&cq, 4), far.qp(&far_cq, 4));
    near.connect(a.qpn, &far, b.qpn, |_| ());
    far.connect(b.qpn, &near, a.qpn, |_| ());
    let (here, there) = (near.mr(1 << 16, EVERY_RIGHT), far.mr(1 << 16, EVERY_RIGHT));
    let segments = |at| {
        let (local, remote) = (here.piece(at, 8192).local(), there.piece(at, 8192).remote());
        [remote, local].concat()
    };
    a.post(&near, first, SIGNALLED, &segments(0));
    a.post(
        &near,
        Opcode::RdmaWrite,
        SIGNALLED | mode << 5,
        &segments(8192),
    );
    let trace = near.watch();
    a.ring(&near);
    near.run();
    cq.success(&near);
    cq.success(&near);
    near.assert_no_findings();
    near.take_events(&trace)
}

#[test]
fn each_fence_mode_waits_for_what_it_names() {
    // Fence mode: waits for READs, waits for WRITEs.
    for (mode, reads, writes) in [
        (0, false, false),
        (1, false, false),
        (2, true, false),
        (3, true, true),
        (4, true, false),
    ] {
        for (first, waits) in [(Opcode::RdmaRead, reads), (Opcode::RdmaWrite, writes)] {
            let events = order(first, mode);
            // The second message's first packet is the last "first" that is sent.
            let begins = events
                .iter()
                .rposition(|event| {
                    matches!(event, Event::Sent { opcode, .. } if *opcode == roce::Opcode::WriteFirst)
                })
                .unwrap();
            let answered = events
                .iter()
                .position(|event| match event {
                    Event::Arrived { opcode, psn, .. } => {
                        *opcode == roce::Opcode::ReadResponseLast
                            // The acknowledgement of the first message's last packet.
                            || (*opcode == roce::Opcode::Acknowledge && *psn == (0xff_fffe + 7) & 0xff_ffff)
                    }
                    _ => false,
                })
                .unwrap();
            assert_eq!(begins > answered, waits, "mode {mode} behind {first:?}");
        }
    }
}

#[test]
fn fence_modes_and_flags_without_meaning_are_named_and_harmless() {
    for flags in [5 << 5, 6 << 5, 7 << 5, 1 << 4, 1] {
        let rig = Rig::new();
        let mut cq = rig.cq(4);
        let (mut a, _b) = rig.pair(&cq, 4);
        a.post(&rig, Opcode::Nop, SIGNALLED | flags, &[]);
        a.ring(&rig);
        rig.run();
        cq.success(&rig);
        assert_eq!(rig.take_findings(), ["wqe-reserved"], "{flags:#x}");
    }
}

#[test]
fn completion_mode_3_raises_an_event_of_a_cq_that_nobody_armed() {
    for (mode, events) in [(2, 0), (3, 1)] {
        let rig = Rig::new();
        let mut cq = rig.cq(4);
        let (mut a, _b) = rig.pair(&cq, 4);
        a.post(&rig, Opcode::Nop, mode << 2, &[]);
        a.ring(&rig);
        rig.run();
        cq.success(&rig);
        let raised = rig.nic().take_events();
        assert_eq!(raised.len(), events);
        let event = eqe::Event::Completion { cqn: cq.cqn };
        assert!(raised.iter().all(|raised| *raised == event));
        // With an error and with a flush, too.
        let mr = rig.mr(64, ALL_RIGHTS);
        let segments = [mr.piece(60, 8).remote(), mr.piece(0, 8).local()].concat();
        a.post(&rig, Opcode::RdmaWrite, mode << 2, &segments);
        a.post(&rig, Opcode::Nop, mode << 2, &[]);
        a.ring(&rig);
        rig.run();
        let completions = |event: &eqe::Event| matches!(event, eqe::Event::Completion { .. });
        let raised = rig.nic().take_events();
        assert_eq!(
            raised.into_iter().filter(completions).count(),
            2 * events,
            "one each"
        );
    }
}
