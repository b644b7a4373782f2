//! Registers that remember one value: what queues that share one and ring within one look of a NIC in background mode lose.

use warpverbs_sim_nic::{FindingKind, NicConfig};
use warpverbs_wire::doorbell::{CqArm, DBR_CQ_ARM, REGISTER_CQ_ARM, REGISTER_NO_DBR, doorbell};
use warpverbs_wire::eqe::Event;
use warpverbs_wire::prm::qpc::SendDbrMode;

use crate::background::Running;
use crate::rig::TestQp;

#[test]
fn cqs_that_overwrite_each_others_arms_in_one_register_all_raise_their_events() {
    let running = Running::new();
    let rig = &running.rig;
    let mut cqs = [rig.cq(4), rig.cq(4), rig.cq(4)];
    let mut qps = cqs.each_ref().map(|cq| rig.qp(cq, 4));
    for qp in &qps {
        rig.to_rts(qp.qpn, qp.qpn);
    }
    for round in 0..100u64 {
        let arms = cqs.each_ref().map(|cq| {
            let arm = CqArm {
                sequence: (round & 3) as u8,
                solicited: false,
                consumer: cq.next as u32,
            };
            rig.write(cq.dbr + DBR_CQ_ARM as u64, &arm.word().to_le_bytes());
            arm.doorbell(cq.cqn)
        });
        {
            // The NIC does not look: the last arm is what the register holds. Memory's lock comes before a NIC's.
            let _held = rig.nic();
            for arm in arms {
                running.store(REGISTER_CQ_ARM, arm);
            }
        }
        running.settle();
        assert_eq!(rig.nic().take_events(), [], "nothing has completed");
        for qp in &mut qps {
            qp.nop(rig);
            qp.dbr(rig);
            running.ring(qp);
        }
        for cq in &mut cqs {
            running.completion(cq);
        }
        running.settle();
        let mut events = rig.nic().take_events();
        events.sort_by_key(|event| format!("{event:?}"));
        let all = cqs.each_ref().map(|cq| Event::Completion { cqn: cq.cqn });
        assert_eq!(events, all);
    }
    rig.assert_no_findings();
}

#[test]
fn of_doorbells_without_record_that_overwrite_each_other_the_one_that_is_lost_is_a_finding() {
    let running = Running::with(NicConfig {
        no_dbr: true,
        ..NicConfig::default()
    });
    let rig = &running.rig;
    let mut cq = rig.cq(6);
    let [mut a, mut b, mut c] = [(); 3].map(|()| {
        let (mut request, mut qp) = rig.qp_request(&cq, 3);
        request.qpc.send_dbr_mode = SendDbrMode::NoDbr;
        qp.qpn = rig.command(request).unwrap().qpn;
        rig.to_rts(qp.qpn, qp.qpn);
        qp
    });
    let ring = |qp: &TestQp| {
        let value = u64::from_le_bytes(doorbell(qp.next, qp.qpn).to_le_bytes());
        running.store(REGISTER_NO_DBR, value);
    };
    // Twice around the ring: what is left of a lap is no WQE that waits.
    for lap in 0..20 {
        for qp in [&mut a, &mut b] {
            qp.nop(rig);
        }
        {
            let _held = rig.nic();
            ring(&a);
            ring(&b);
        }
        // The first one's is lost, and only that one's.
        running.completed(&mut cq, &[&b], 1);
        running.settle();
        cq.assert_empty(rig);
        rig.nic().end_of_run();
        let found = rig.nic().take_findings();
        let told: Vec<_> = found
            .iter()
            .map(|f| (f.kind, f.object.id, f.index))
            .collect();
        let lost = FindingKind::DoorbellOverwritten;
        assert_eq!(told, [(lost, a.qpn, Some(a.next - 1))], "lap {lap}");
        // Rung again it runs, and nothing is missing.
        ring(&a);
        running.completed(&mut cq, &[&a], 1);
        running.settle();
        rig.assert_no_findings();
    }
    // One after the other nothing is lost.
    for qp in [&mut a, &mut b] {
        qp.nop(rig);
        ring(qp);
        running.settle();
    }
    running.completed(&mut cq, &[&a, &b], 2);
    running.settle();
    rig.assert_no_findings();
    // After a reset the ring may hold a WQE of the life before with the index that is due.
    c.nop(rig);
    ring(&c);
    running.completed(&mut cq, &[&c], 1);
    rig.to_reset(c.qpn);
    rig.to_rts(c.qpn, c.qpn);
    running.settle();
    rig.assert_no_findings();
}
