//! Events, and completion modes.

use warpverbs_sim_nic::{CablePlan, NicConfig};
use warpverbs_wire::doorbell::CqArm;
use warpverbs_wire::eqe::{CqErrorSyndrome, Event, EventType, PortChange};
use warpverbs_wire::wqe::{Opcode, SOLICITED};

use crate::rig::{ALL_RIGHTS, Rig};

#[test]
fn an_armed_cq_raises_one_event_for_its_next_completion() {
    let rig = Rig::new();
    let cq = rig.cq(4);
    let (mut a, _b) = rig.pair(&cq, 4);
    let arm = |sequence, consumer| {
        let command = CqArm {
            sequence,
            solicited: false,
            consumer,
        };
        rig.mmio(rig.uar, 0x20, &command.doorbell(cq.cqn).to_le_bytes())
            .unwrap();
    };
    let event = Event::Completion { cqn: cq.cqn };
    let mut nop = || {
        a.nop(&rig);
        a.ring(&rig);
        rig.run();
    };
    nop();
    assert_eq!(rig.nic().take_events(), []);
    arm(0, 1);
    assert_eq!(rig.nic().take_events(), []);
    nop();
    nop();
    assert_eq!(rig.nic().take_events(), [event]);
    arm(1, 1);
    assert_eq!(rig.nic().take_events(), [event], "completions were missed");
    assert_eq!(rig.nic().stats().cq_arms, 2);
    rig.assert_no_findings();
    rig.mmio(
        rig.uar,
        0x20,
        &CqArm::default().doorbell(0x99_9999).to_le_bytes(),
    )
    .unwrap();
    assert_eq!(rig.take_findings(), ["doorbell-unknown-qp"]);
}

#[test]
fn a_solicited_send_raises_the_event_that_an_unsolicited_one_does_not() {
    for (flags, raised) in [(0, 0), (SOLICITED, 1)] {
        let (near, far, _) = Rig::joined(NicConfig::default(), CablePlan::default(), 1);
        let (near_cq, far_cq) = (near.cq(4), far.cq(4));
        let (mut a, _) = near.qp_with_receives(&near_cq, 4);
        let (b, mut receives) = far.qp_with_receives(&far_cq, 4);
        near.connect(a.qpn, &far, b.qpn, |_| ());
        far.connect(b.qpn, &near, a.qpn, |_| ());
        let mr = far.mr(64, ALL_RIGHTS);
        receives.post(&far, &[mr.piece(0, 64)]);
        let command = CqArm {
            solicited: true,
            ..CqArm::default()
        };
        far.mmio(far.uar, 0x20, &command.doorbell(far_cq.cqn).to_le_bytes())
            .unwrap();
        a.post(&near, Opcode::Send, flags, &[]);
        a.ring(&near);
        near.run();
        assert_eq!(far.nic().stats().cqes, 1);
        assert_eq!(far.nic().take_events().len(), raised);
    }
}

#[test]
fn a_full_cq_a_refusing_responder_and_a_link_raise_events() {
    let rig = Rig::new();
    let cq = rig.cq(1);
    let (mut a, _b) = rig.pair(&cq, 4);
    for _ in 0..3 {
        a.nop(&rig);
    }
    a.ring(&rig);
    rig.run();
    let overrun = Event::CqError {
        cqn: cq.cqn,
        syndrome: CqErrorSyndrome::Overrun,
    };
    assert_eq!(rig.nic().take_events(), [overrun]);

    let cq = rig.cq(4);
    let (mut a, b) = rig.pair(&cq, 4);
    let mr = rig.mr(64, ALL_RIGHTS);
    a.write(&rig, mr.piece(0, 8), mr.piece(60, 8));
    a.ring(&rig);
    rig.run();
    let refused = Event::Queue {
        event: EventType::WqAccessError,
        number: b.qpn,
    };
    assert_eq!(rig.nic().take_events(), [refused]);

    rig.nic().set_link_up(false);
    assert!(!rig.nic().query_port(1).unwrap().active);
    rig.nic().set_link_up(true);
    let changes: Vec<_> = rig
        .nic()
        .take_events()
        .into_iter()
        .map(|event| match event {
            Event::Port { port: 1, change } => change,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(changes, [PortChange::Down, PortChange::Active]);
}

#[test]
fn completion_modes_decide_which_errors_are_seen() {
    // Modes of the WQE that fails and of the one behind it: which of them have a CQE.
    for (modes, seen) in [
        ([0, 0], vec![0, 1]),
        ([1, 1], vec![0]),
        ([2, 1], vec![0]),
        ([1, 2], vec![0, 1]),
        ([3, 3], vec![0, 1]),
    ] {
        let rig = Rig::new();
        let mut cq = rig.cq(4);
        let (mut a, _b) = rig.pair(&cq, 4);
        let mr = rig.mr(64, ALL_RIGHTS);
        let segments = [mr.piece(60, 8).remote(), mr.piece(0, 8).local()].concat();
        a.post(&rig, Opcode::RdmaWrite, modes[0] << 2, &segments);
        a.post(&rig, Opcode::Nop, modes[1] << 2, &[]);
        a.ring(&rig);
        rig.run();
        for index in seen {
            assert_eq!(cq.error(&rig).2, index, "{modes:?}");
        }
        cq.assert_empty(&rig);
        assert_eq!(rig.query_qp(a.qpn).hw_sq_wqebb_counter, 2, "{modes:?}");
    }
}
