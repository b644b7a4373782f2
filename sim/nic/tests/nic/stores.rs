//! NICs to which each store to a doorbell page is delivered by itself.

use std::time::Duration;

use warpverbs_sim_nic::{Background, NicConfig};
use warpverbs_wire::cqe::Completion;
use warpverbs_wire::doorbell::{REGISTER, doorbell};

use crate::rig::{Rig, TestQp};

#[test]
fn stores_that_are_delivered_one_by_one_are_all_there_is() {
    let rig = Rig::with(NicConfig::default());
    let background =
        Background::start_with_stores(&rig.bus, vec![(0, rig.nic.clone())], Box::new(|_, _| {}))
            .unwrap();
    let settle = || assert!(background.quiesce(Duration::from_secs(60)));
    let mut cq = rig.cq(6);
    let (mut a, mut b) = rig.pair(&cq, 6);
    let ring = |qp: &TestQp| {
        let value = doorbell(qp.next, qp.qpn).to_le_bytes();
        assert!(background.store(0, rig.uar, REGISTER as u16, &value));
    };
    // Queues share a page: a record that nobody rang for starts nothing there.
    for qp in [&mut a, &mut b] {
        qp.nop(&rig);
        qp.dbr(&rig);
    }
    settle();
    std::thread::sleep(Duration::from_millis(20));
    assert!(cq.poll(&rig).is_none());
    ring(&a);
    settle();
    assert!(matches!(cq.poll(&rig), Some(Completion::Done(cqe)) if cqe.qpn == a.qpn));
    assert!(cq.poll(&rig).is_none());
    ring(&b);
    settle();
    assert!(matches!(cq.poll(&rig), Some(Completion::Done(cqe)) if cqe.qpn == b.qpn));
    rig.assert_no_findings();
    // Each is an event, and a bad one is named with its width and place.
    let before = rig.nic().stats().doorbells;
    for _ in 0..10 {
        ring(&a);
    }
    for (offset, bytes) in [
        (REGISTER as u16, &[0u8; 4][..]),
        (REGISTER as u16 + 4, &[0; 8]),
        (REGISTER as u16, &[0; 16]),
        (0x10, &[0; 8]),
        (0xfff, &[0; 1]),
        (REGISTER as u16, &[]),
    ] {
        assert!(background.store(0, rig.uar, offset, bytes));
    }
    settle();
    assert_eq!(rig.nic().stats().doorbells, before + 10);
    assert_eq!(rig.take_findings(), ["doorbell-refused"; 6]);
    // Too long for an instruction; no such NIC; and NICs that look for themselves take none.
    assert!(!background.store(0, rig.uar, 0, &[0; 65]));
    assert!(!background.store(1, rig.uar, 0, &[0; 8]));
    let other = Rig::with(NicConfig::default());
    let looking = Background::start(&other.bus, vec![(0, other.nic.clone())]).unwrap();
    assert!(!looking.store(0, other.uar, 0, &[0; 8]));
}
