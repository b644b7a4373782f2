//! What a program may write and this NIC refuses, and events that nothing else raises.

use warpverbs_sim_nic::{CablePlan, InjectedFault, NicConfig};
use warpverbs_wire::eqe::{CqErrorSyndrome, Event, EventType};
use warpverbs_wire::prm::cqc::CqStatus;
use warpverbs_wire::prm::qpc::RqType;
use warpverbs_wire::prm::query_cq;
use warpverbs_wire::wqe::{Opcode, SIGNALLED};

use crate::rig::{ALL_RIGHTS, EVERY_RIGHT, Rig};

/// UMR, core-direct's ENABLE (send and receive), local invalidation, large send, tag matching: none of them is modelled.
#[test]
fn opcodes_that_the_nic_lacks_are_local_errors_and_named() {
    for opcode in [0x25, 0x16, 0x17, 0x1b, 0x0e, 0x28, 0x18, 0x13] {
        let rig = Rig::new();
        let mut cq = rig.cq(4);
        let (mut a, _b) = rig.pair(&cq, 4);
        a.nop(&rig);
        a.post(&rig, Opcode::from_code(opcode), SIGNALLED, &[0; 48]);
        a.nop(&rig);
        a.ring(&rig);
        rig.run();
        cq.success(&rig);
        assert_eq!(cq.error(&rig), (0x02, 0x68, 1), "{opcode:#x}");
        assert_eq!(cq.error(&rig), (0x05, 0xf9, 2), "{opcode:#x}");
        assert_eq!(rig.take_findings(), ["wqe-malformed"], "{opcode:#x}");
    }
}

#[test]
fn a_cqe_that_cannot_be_written_is_an_event_and_stops_the_cq() {
    let rig = Rig::new();
    let cq = rig.cq(4);
    let (mut a, _b) = rig.pair(&cq, 4);
    rig.free(cq.ring);
    a.nop(&rig);
    a.ring(&rig);
    rig.run();
    let error = Event::CqError {
        cqn: cq.cqn,
        syndrome: CqErrorSyndrome::AccessViolation,
    };
    assert_eq!(rig.nic().take_events(), [error]);
    let status = rig
        .command(query_cq::In { cqn: cq.cqn })
        .unwrap()
        .cq_context
        .status;
    assert_eq!(status, CqStatus::WriteFailed);
    assert_eq!(rig.take_findings(), ["dma-fault"]);
}

#[test]
fn a_shared_receive_queue_that_cannot_be_read_raises_its_event() {
    let (near, far, _) = Rig::joined(NicConfig::default(), CablePlan::default(), 1);
    let (near_cq, far_cq) = (near.cq(4), far.cq(4));
    let (request, mut srq) = far.rmp_request(3);
    let number = far.command(request).unwrap().rmpn;
    let mut a = near.qp(&near_cq, 4);
    let (mut request, mut b) = far.qp_request(&far_cq, 4);
    (request.qpc.rq_type, request.qpc.srqn_rmpn_xrqn) = (RqType::Shared, number);
    b.qpn = far.command(request).unwrap().qpn;
    near.connect(a.qpn, &far, b.qpn, |_| ());
    far.connect(b.qpn, &near, a.qpn, |_| ());
    srq.post(&far, far.mr(64, ALL_RIGHTS).piece(0, 64));
    // A reserved byte of the next segment.
    far.write(srq.ring + 9, &[1]);
    a.post(&near, Opcode::Send, SIGNALLED, &[]);
    a.ring(&near);
    near.run();
    let events = far.nic().take_events();
    let event = EventType::SrqCatastrophicError;
    assert!(
        events.contains(&Event::Queue { event, number }),
        "{events:?}"
    );
    assert_eq!(far.take_findings(), ["receive-malformed"]);
}

#[test]
fn the_first_request_that_a_qp_takes_in_rtr_is_an_event() {
    let rig = Rig::new();
    let mut cq = rig.cq(4);
    let (mut a, b) = (rig.qp(&cq, 4), rig.qp(&cq, 4));
    rig.to_rts(a.qpn, b.qpn);
    rig.command(rig.rst2init(b.qpn)).unwrap();
    rig.command(rig.init2rtr(b.qpn, a.qpn)).unwrap();
    let mr = rig.mr(64, EVERY_RIGHT);
    for _ in 0..2 {
        a.write(&rig, mr.piece(0, 8), mr.piece(8, 8));
        a.ring(&rig);
        rig.run();
        cq.success(&rig);
    }
    let established = Event::Queue {
        event: EventType::CommunicationEstablished,
        number: b.qpn,
    };
    assert_eq!(rig.nic().take_events(), [established]);
}

#[test]
fn a_device_that_is_removed_says_so_once() {
    let rig = Rig::new();
    rig.nic().inject(InjectedFault::Removed);
    assert_eq!(
        rig.nic().take_events(),
        [Event::Other(EventType::InternalError)]
    );
}
