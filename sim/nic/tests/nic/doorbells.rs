//! Doorbells and doorbell records: what is legal, what is ignored, what is reported.

use warpverbs_sim_bus::{FaultKind, Step};
use warpverbs_sim_nic::{FindingKind, InjectedFault, NicConfig, UarKind};
use warpverbs_wire::doorbell::doorbell;
use warpverbs_wire::prm::destroy_qp;
use warpverbs_wire::prm::qpc::SendDbrMode;
use warpverbs_wire::wqe::{Opcode, SIGNALLED};

use crate::rig::{ALL_RIGHTS, Rig, TestQp, inline};

#[test]
fn both_forms_ring_the_same_wqes() {
    let rig = Rig::new();
    let mut cq = rig.cq(4);
    let (mut a, _b) = rig.pair(&cq, 4);
    let mr = rig.mr(256, ALL_RIGHTS);
    // 5 segments, two WQEBBs: the last WQE's index is not the producer less one.
    let segments = [mr.piece(0, 0).remote(), inline(&[7; 40])].concat();
    a.nop(&rig);
    let head = a
        .control(Opcode::RdmaWrite, SIGNALLED, segments.len())
        .emit();
    a.post(&rig, Opcode::RdmaWrite, SIGNALLED, &segments);
    a.dbr(&rig);
    rig.mmio(a.uar, 0x800, &head[..8]).unwrap();
    rig.run();
    assert_eq!(cq.success(&rig).wqe_counter, 0);
    assert_eq!(cq.success(&rig).wqe_counter, 1);
    assert_eq!(rig.query_qp(a.qpn).sw_sq_wqebb_counter, 3);
    a.nop(&rig);
    a.ring(&rig);
    rig.run();
    assert_eq!(cq.success(&rig).wqe_counter, 3);
    rig.assert_no_findings();
}

#[test]
fn in_rts_the_doorbell_alone_carries_traffic_and_the_record_is_reported() {
    let rig = Rig::new();
    let mut cq = rig.cq(5);
    let (mut a, _b) = rig.pair(&cq, 4);
    for index in 0..3 {
        a.nop(&rig);
        a.doorbell(&rig);
        rig.run();
        assert_eq!(cq.success(&rig).wqe_counter, index);
        assert_eq!(rig.query_qp(a.qpn).sw_sq_wqebb_counter, index + 1);
    }
    // Judged at the next higher doorbell, and the last one at the end.
    let behind = |doorbell| FindingKind::DbrBehind { doorbell, dbr: 0 };
    assert_eq!(rig.finding_kinds(), [behind(1), behind(2)]);
    rig.nic().end_of_run();
    assert_eq!(rig.finding_kinds(), [behind(1), behind(2), behind(3)]);
}

#[test]
fn the_record_covers_more_than_the_doorbell() {
    let rig = Rig::new();
    let mut cq = rig.cq(5);
    let (mut a, _b) = rig.pair(&cq, 4);
    a.nop(&rig);
    a.doorbell(&rig);
    a.nop(&rig);
    a.nop(&rig);
    a.dbr(&rig);
    rig.run();
    for index in 0..3 {
        assert_eq!(cq.success(&rig).wqe_counter, index);
    }
    // A doorbell that comes after its WQEs were done is legal.
    a.doorbell_at(&rig, 2);
    a.doorbell_at(&rig, 3);
    rig.run();
    cq.assert_empty(&rig);
    rig.assert_no_findings();
}

#[test]
fn without_a_doorbell_nothing_happens() {
    let rig = Rig::new();
    let mut cq = rig.cq(5);
    let (mut a, _b) = rig.pair(&cq, 4);
    a.nop(&rig);
    a.dbr(&rig);
    assert_eq!(rig.run(), 0);
    cq.assert_empty(&rig);
}

#[test]
fn ring_record_ring_is_legal() {
    let rig = Rig::new();
    let mut cq = rig.cq(5);
    let (mut a, _b) = rig.pair(&cq, 4);
    for index in 0..20 {
        a.nop(&rig);
        a.doorbell(&rig);
        // The NIC may be anywhere when the record comes.
        for _ in 0..index % 5 {
            rig.bus.lock().step_device(0);
        }
        a.dbr(&rig);
        a.doorbell(&rig);
        rig.run();
        assert_eq!(cq.success(&rig).wqe_counter, index);
    }
    rig.assert_no_findings();
}

#[test]
fn a_record_that_comes_after_the_last_doorbell_is_seen_before_the_end() {
    let rig = Rig::new();
    let mut cq = rig.cq(5);
    let (mut a, _b) = rig.pair(&cq, 4);
    a.nop(&rig);
    a.doorbell(&rig);
    rig.run();
    cq.success(&rig);
    a.dbr(&rig);
    rig.run();
    rig.assert_no_findings();
    assert_eq!(rig.bus.lock().step_device(0), Step::Idle);
}

#[test]
fn the_receive_word_in_place_of_the_send_word_is_named() {
    let rig = Rig::new();
    let cq = rig.cq(5);
    let (mut a, _b) = rig.pair(&cq, 4);
    for _ in 0..2 {
        a.nop(&rig);
        rig.write(a.dbr, &(a.next as u32).to_be_bytes());
        a.doorbell(&rig);
        rig.run();
    }
    assert_eq!(
        rig.finding_kinds(),
        [FindingKind::DbrWrongWord { doorbell: 1 }]
    );
}

#[test]
fn an_unused_receive_word_is_not_taken_for_a_wrong_one() {
    let rig = Rig::with(NicConfig {
        first_index: (1 << 16) - 2,
        ..NicConfig::default()
    });
    let cq = rig.cq(5);
    let (mut a, _b) = rig.pair(&cq, 4);
    for _ in 0..3 {
        a.nop(&rig);
        a.doorbell(&rig);
        rig.run();
    }
    let dbr = (1 << 16) - 2;
    let behind = |doorbell| FindingKind::DbrBehind { doorbell, dbr };
    assert_eq!(rig.finding_kinds(), [behind(0xffff), behind(0x1_0000)]);
}

#[test]
fn repeated_findings_are_counted_and_not_all_kept() {
    let rig = Rig::new();
    for _ in 0..20 {
        rig.mmio(rig.uar, 0x800, &doorbell(1, 0xf0_0000).to_le_bytes())
            .unwrap();
    }
    assert_eq!(rig.nic().findings_total(), 20);
    assert_eq!(rig.take_findings().len(), 8);
}

#[test]
fn a_dropped_record_is_reported() {
    let rig = Rig::new();
    let cq = rig.cq(5);
    let (mut a, _b) = rig.pair(&cq, 4);
    rig.nic().inject(InjectedFault::DropDbr { qpn: a.qpn });
    for _ in 0..2 {
        a.nop(&rig);
        a.ring(&rig);
        rig.run();
    }
    rig.nic().end_of_run();
    assert_eq!(rig.take_findings(), ["dbr-behind", "dbr-behind"]);
}

#[test]
fn indices_that_move_back_or_too_far_are_ignored_and_reported() {
    for first_index in [0, (1 << 16) - 2] {
        let rig = Rig::with(NicConfig {
            first_index,
            ..NicConfig::default()
        });
        let mut cq = rig.cq(5);
        let (mut a, _b) = rig.pair(&cq, 4);
        for _ in 0..4 {
            a.nop(&rig);
        }
        a.ring(&rig);
        rig.run();
        a.doorbell_at(&rig, first_index + 3);
        a.doorbell_at(&rig, first_index + 4 + 17);
        a.dbr_at(&rig, first_index + 2);
        a.doorbell(&rig);
        rig.run();
        a.dbr_at(&rig, first_index + 4 + 17);
        a.doorbell(&rig);
        rig.run();
        let value = (first_index + 21) as u16;
        assert_eq!(
            rig.finding_kinds(),
            [
                FindingKind::DoorbellRegression {
                    last: first_index + 4,
                    rung: first_index + 3
                },
                FindingKind::DoorbellBeyondQueue,
                FindingKind::DbrRegression {
                    last: first_index + 4,
                    now: first_index + 2
                },
                FindingKind::DbrBeyondQueue { value },
            ]
        );
        for _ in 0..4 {
            cq.success(&rig);
        }
        cq.assert_empty(&rig);
    }
}

#[test]
fn a_doorbell_goes_to_the_qp_of_its_page_only() {
    let rig = Rig::new();
    let mut cq = rig.cq(5);
    let (mut a, _b) = rig.pair(&cq, 4);
    let other = rig.nic().alloc_uar(UarKind::NonCached).unwrap();
    a.nop(&rig);
    a.dbr(&rig);
    let value = doorbell(1, a.qpn).to_le_bytes();
    rig.mmio(other, 0x800, &value).unwrap();
    assert_eq!(rig.run(), 0);
    cq.assert_empty(&rig);
    rig.mmio(a.uar, 0x800, &doorbell(1, 0xf0_0000).to_le_bytes())
        .unwrap();
    rig.mmio(a.uar, 0x800, &[0, 0, 1, 8, 0, 0, 7, 0]).unwrap();
    let expected = a.uar;
    assert_eq!(
        rig.finding_kinds(),
        [
            FindingKind::DoorbellWrongPage {
                rung: other,
                expected
            },
            FindingKind::DoorbellUnknownQp,
            FindingKind::DoorbellMalformed
        ]
    );
}

#[test]
fn a_doorbell_outside_rts_is_lost_and_after_destroy_it_is_named() {
    let rig = Rig::new();
    let mut cq = rig.cq(5);
    let mut qp = rig.qp(&cq, 4);
    qp.nop(&rig);
    qp.ring(&rig);
    rig.command(rig.rst2init(qp.qpn)).unwrap();
    qp.ring(&rig);
    rig.command(rig.init2rtr(qp.qpn, qp.qpn)).unwrap();
    qp.ring(&rig);
    rig.command(rig.rtr2rts(qp.qpn)).unwrap();
    assert_eq!(rig.run(), 0);
    cq.assert_empty(&rig);
    rig.command(destroy_qp::In { qpn: qp.qpn }).unwrap();
    qp.ring(&rig);
    assert_eq!(rig.run(), 0);
    let lost = "doorbell-lost";
    assert_eq!(
        rig.take_findings(),
        [lost, lost, lost, "doorbell-after-destroy"]
    );
}

#[test]
fn stores_that_are_no_doorbell_are_faults() {
    let rig = Rig::new();
    let uar = rig.uar;
    let kind = |page, offset, bytes: &[u8]| rig.mmio(page, offset, bytes).unwrap_err().kind;
    assert_eq!(kind(uar, 0x800, &[0; 4]), FaultKind::Refused);
    assert_eq!(kind(uar, 0x800, &[0; 16]), FaultKind::Refused);
    assert_eq!(kind(uar, 0x808, &[0; 4]), FaultKind::Refused);
    assert_eq!(kind(uar, 0x804, &[0; 8]), FaultKind::Unmapped);
    assert_eq!(kind(uar, 0xc00, &[0; 8]), FaultKind::Unmapped);
    assert_eq!(kind(uar, 0x0, &[0; 8]), FaultKind::Unmapped);
    assert_eq!(kind(0, 0x800, &[0; 8]), FaultKind::Unmapped);
    assert_eq!(kind(uar + 1, 0x800, &[0; 8]), FaultKind::Unmapped);
    rig.nic().free_uar(uar).unwrap();
    assert_eq!(kind(uar, 0x800, &[0; 8]), FaultKind::Freed);
}

#[test]
fn a_wqe_pushed_in_any_order_of_stores_is_executed_once() {
    for (buffer, order) in [
        (0x800, [0, 1, 2, 3, 4, 5, 6, 7]),
        (0x900, [7, 6, 5, 4, 3, 2, 1, 0]),
        (0xa00, [3, 0, 7, 1, 6, 2, 5, 4]),
    ] {
        let rig = Rig::new();
        let mut cq = rig.cq(4);
        let (mut a, _b) = rig.pair(&cq, 4);
        let index = a.post(&rig, Opcode::Nop, SIGNALLED, &[]);
        a.dbr(&rig);
        let wqe = rig.read(a.ring + index * 64, 64);
        for word in order {
            let at = word as usize * 8;
            rig.mmio(a.uar, buffer + word * 8, &wqe[at..at + 8])
                .unwrap();
        }
        rig.run();
        assert_eq!(cq.success(&rig).wqe_counter, index as u16);
        cq.assert_empty(&rig);
        rig.assert_no_findings();
    }
}

#[test]
fn without_a_record_the_doorbell_at_its_own_register_is_all_in_every_state() {
    let rig = Rig::with(NicConfig {
        no_dbr: true,
        ..NicConfig::default()
    });
    let mut cq = rig.cq(4);
    let (mut request, mut a) = rig.qp_request(&cq, 4);
    request.qpc.send_dbr_mode = SendDbrMode::NoDbr;
    a.qpn = rig.command(request).unwrap().qpn;
    rig.to_rts(a.qpn, a.qpn);
    let ring = |a: &TestQp, register| {
        rig.mmio(a.uar, register, &doorbell(a.next, a.qpn).to_le_bytes())
            .unwrap();
    };
    a.nop(&rig);
    ring(&a, 0x800);
    rig.run();
    cq.assert_empty(&rig);
    assert_eq!(rig.take_findings(), ["doorbell-wrong-register"]);
    ring(&a, 0x600);
    rig.run();
    cq.success(&rig);
    rig.to_error(a.qpn);
    a.nop(&rig);
    ring(&a, 0x600);
    rig.run();
    assert_eq!(cq.error(&rig), (0x05, 0xf5, 1));
    assert_eq!(rig.nic().stats().dbr_reads, 0);
    rig.assert_no_findings();
}

/// A page that several QPs share: each overwrites the register that another has just written, as with libmlx5's one page a
/// context.
#[test]
fn qps_that_share_a_register_lose_nothing_to_each_other() {
    let rig = Rig::new();
    let cqs = [rig.cq(6), rig.cq(6), rig.cq(6)];
    let mut qps: Vec<TestQp> = cqs.iter().map(|cq| rig.pair(cq, 5).0).collect();
    // Doorbells of all, with no step of the NIC between.
    for _ in 0..4 {
        for qp in &mut qps {
            qp.nop(&rig);
            qp.ring(&rig);
        }
    }
    rig.run();
    // WQEs pushed through one buffer, store by store in turn.
    for qp in &mut qps {
        qp.nop(&rig);
        qp.dbr(&rig);
    }
    for word in 0..8u64 {
        for qp in &qps {
            let slot = (qp.next - 1) & (qp.depth - 1);
            let bytes = rig.read(qp.ring + slot * 64 + word * 8, 8);
            rig.mmio(qp.uar, 0x800 + word * 8, &bytes).unwrap();
        }
    }
    rig.run();
    for mut cq in cqs {
        for index in 0..5 {
            assert_eq!(cq.success(&rig).wqe_counter, index);
        }
        cq.assert_empty(&rig);
    }
    rig.assert_no_findings();
}

#[test]
fn a_doorbell_that_is_repeated_does_nothing_twice() {
    let rig = Rig::new();
    let mut cq = rig.cq(5);
    let (mut a, _b) = rig.pair(&cq, 4);
    for index in 0..3 {
        a.nop(&rig);
        a.dbr(&rig);
        // Before, while and after it is executed.
        for _ in 0..3 {
            a.doorbell(&rig);
            a.doorbell(&rig);
            rig.bus.lock().step_device(0);
        }
        rig.run();
        a.doorbell(&rig);
        rig.run();
        assert_eq!(cq.success(&rig).wqe_counter, index);
        cq.assert_empty(&rig);
    }
    assert_eq!(rig.nic().stats().wqes_fetched, 3);
    rig.assert_no_findings();
}

/// A push that was torn, or is not what the ring holds: the WQE is fetched all the same.
#[test]
fn a_pushed_wqe_is_fetched_from_the_ring() {
    let rig = Rig::new();
    let mut cq = rig.cq(4);
    let (mut a, _b) = rig.pair(&cq, 4);
    let mr = rig.mr(64, ALL_RIGHTS);
    rig.write(mr.addr, &[5; 8]);
    let index = a.write(&rig, mr.piece(0, 8), mr.piece(32, 8));
    a.dbr(&rig);
    let head = rig.read(a.ring + index * 64, 8);
    rig.mmio(a.uar, 0x900, &head).unwrap();
    for word in 1..5u64 {
        rig.mmio(a.uar, 0x900 + word * 8, &[0xa5; 8]).unwrap();
    }
    rig.run();
    cq.success(&rig);
    assert_eq!(rig.read(mr.addr + 32, 8), [5; 8]);
    rig.assert_no_findings();
}

#[test]
fn a_cq_is_armed_on_its_own_page_only() {
    let rig = Rig::new();
    let cq = rig.cq(4);
    let (mut a, _b) = rig.pair(&cq, 4);
    let other = rig.nic().alloc_uar(UarKind::NonCached).unwrap();
    let arm = warpverbs_wire::doorbell::CqArm::default()
        .doorbell(cq.cqn)
        .to_le_bytes();
    rig.mmio(other, 0x20, &arm).unwrap();
    a.nop(&rig);
    a.ring(&rig);
    rig.run();
    assert_eq!(rig.nic().take_events(), []);
    let expected = rig.uar;
    assert_eq!(
        rig.finding_kinds(),
        [FindingKind::DoorbellWrongPage {
            rung: other,
            expected
        }]
    );
}
