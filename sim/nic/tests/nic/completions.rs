//! CQ forms, owner bits, overrun.

use warpverbs_sim_nic::{FindingKind, InjectedFault, NicConfig};
use warpverbs_wire::prm::cqc::CqStatus;
use warpverbs_wire::prm::qpc::QpState;
use warpverbs_wire::prm::query_cq;
use warpverbs_wire::wqe::{Opcode, SIGNALLED};

use crate::rig::{ALL_RIGHTS, Rig};

#[test]
fn a_collapsed_cq_shows_the_last_completion_in_entry_0() {
    let rig = Rig::new();
    let cq = rig.cq_oi(3, true);
    let (mut a, _b) = rig.pair(&cq, 5);
    let mut owners = vec![];
    for index in 0..40u16 {
        a.nop(&rig);
        a.ring(&rig);
        rig.run();
        let entry = rig.read(cq.ring, 64);
        assert_eq!(entry[60..62], index.to_be_bytes());
        owners.push(entry[63] & 1);
        assert_eq!(rig.read(cq.ring + 64, 7 * 64), [0xff; 7 * 64]);
    }
    let laps: Vec<u8> = (0..40).map(|index| (index / 8 % 2) as u8).collect();
    assert_eq!(
        owners, laps,
        "the owner bit counts laps of the nominal size"
    );
    rig.assert_no_findings();
}

#[test]
fn a_flush_overwrites_the_cause_on_a_collapsed_cq_but_not_on_a_ring() {
    for collapsed in [true, false] {
        let rig = Rig::new();
        let mut cq = rig.cq_oi(5, collapsed);
        let (mut a, _b) = rig.pair(&cq, 4);
        let mr = rig.mr(64, ALL_RIGHTS);
        let mut bad = mr.piece(0, 8);
        bad.key ^= 0x100_0000;
        a.write(&rig, mr.piece(0, 8), bad);
        for _ in 0..3 {
            a.nop(&rig);
        }
        a.ring(&rig);
        rig.run();
        if collapsed {
            assert_eq!(cq.error(&rig), (0x05, 0xf9, 3), "the cause is gone");
        } else {
            assert_eq!(cq.error(&rig), (0x13, 0x88, 0));
            for counter in 1..4 {
                assert_eq!(cq.error(&rig), (0x05, 0xf9, counter));
            }
        }
        let stats = rig.nic().stats().clone();
        assert_eq!((stats.error_cqes, stats.flush_cqes), (1, 3));
    }
}

#[test]
fn a_full_cq_that_does_not_ignore_overrun_stops_and_is_reported() {
    let rig = Rig::new();
    let mut cq = rig.cq(2);
    let (mut a, _b) = rig.pair(&cq, 5);
    for _ in 0..6 {
        a.nop(&rig);
    }
    a.ring(&rig);
    rig.run();
    let kinds = rig.finding_kinds();
    assert_eq!(kinds, [FindingKind::CqOverrun]);
    assert_eq!(rig.state(a.qpn), QpState::Err);
    let context = rig
        .command(query_cq::In { cqn: cq.cqn })
        .unwrap()
        .cq_context;
    assert_eq!(
        (context.status, context.producer_counter),
        (CqStatus::Overflow, 4)
    );
    for index in 0..4 {
        assert_eq!(
            cq.success(&rig).wqe_counter,
            index,
            "what was written is still there"
        );
    }
    cq.assert_empty(&rig);
}

#[test]
fn the_consumer_in_the_record_makes_room_when_the_cq_seems_full() {
    let rig = Rig::new();
    let mut cq = rig.cq(2);
    let (mut a, _b) = rig.pair(&cq, 5);
    for _ in 0..50 {
        for _ in 0..4 {
            a.nop(&rig);
        }
        a.ring(&rig);
        rig.run();
        for _ in 0..4 {
            cq.success(&rig);
        }
    }
    rig.assert_no_findings();
}

#[test]
fn a_consumer_beyond_the_producer_is_reported() {
    let rig = Rig::new();
    let cq = rig.cq(1);
    let (mut a, _b) = rig.pair(&cq, 5);
    rig.write(cq.dbr, &9u32.to_be_bytes());
    for _ in 0..3 {
        a.nop(&rig);
    }
    a.ring(&rig);
    rig.run();
    assert_eq!(rig.take_findings(), ["cq-consumer", "cq-overrun"]);
}

#[test]
fn a_cq_that_ignores_overrun_is_overwritten() {
    let rig = Rig::new();
    let cq = rig.cq_oi(1, false);
    let (mut a, _b) = rig.pair(&cq, 5);
    for _ in 0..7 {
        a.nop(&rig);
    }
    a.ring(&rig);
    rig.run();
    assert_eq!(rig.nic().stats().cqes, 7);
    assert_eq!(rig.read(cq.ring + 60, 2), [0, 6]);
    assert_eq!(rig.read(cq.ring + 64 + 60, 2), [0, 5]);
    rig.assert_no_findings();
}

#[test]
fn several_qps_share_a_cq() {
    let rig = Rig::with(NicConfig {
        first_index: (1 << 24) - 3,
        ..NicConfig::default()
    });
    let mut cq = rig.cq(6);
    let mut qps: Vec<_> = (0..3).map(|_| rig.pair(&cq, 4).0).collect();
    for qp in &mut qps {
        for _ in 0..10 {
            qp.nop(&rig);
        }
        qp.ring(&rig);
    }
    rig.run();
    let mut next = [((1u64 << 24) - 3) as u16; 3];
    for _ in 0..30 {
        let cqe = cq.success(&rig);
        let at = qps.iter().position(|qp| qp.qpn == cqe.qpn).unwrap();
        assert_eq!(cqe.wqe_counter, next[at], "in order for each QP");
        next[at] = next[at].wrapping_add(1);
    }
    cq.assert_empty(&rig);
    rig.assert_no_findings();
}

#[test]
fn a_planted_owner_bit_hides_a_completion() {
    let rig = Rig::new();
    let mut cq = rig.cq(2);
    let (mut a, _b) = rig.pair(&cq, 4);
    rig.nic().inject(InjectedFault::FlipOwner {
        cqn: cq.cqn,
        index: 1,
    });
    for _ in 0..3 {
        a.post(&rig, Opcode::Nop, SIGNALLED, &[]);
    }
    a.ring(&rig);
    rig.run();
    cq.success(&rig);
    cq.assert_empty(&rig);
    assert_eq!(rig.read(cq.ring + 64 + 63, 1), [0x01]);
    assert_eq!(rig.read(cq.ring + 128 + 63, 1), [0x00]);
}
