//! What a program may write and this NIC refuses, and events that nothing else raises.

use std::collections::VecDeque;

use warpverbs_sim_bus::{Device, Dma, DmaAccess, Fault, FaultKind};
use warpverbs_sim_nic::{CablePlan, InjectedFault, Link, NicConfig};
use warpverbs_wire::doorbell::{DBR_RECEIVE, doorbell};
use warpverbs_wire::eqe::{CqErrorSyndrome, Event, EventType};
use warpverbs_wire::prm::cqc::CqStatus;
use warpverbs_wire::prm::qpc::RqType;
use warpverbs_wire::prm::{destroy_rmp, query_cq};
use warpverbs_wire::roce::{
    self, Aeth, AtomicAckEth, Bth, Ethernet, Extended, Frame, Ip, NakCode, Syndrome, address,
};
use warpverbs_wire::wqe::{Opcode, SIGNALLED, fetch_add, segment_bytes};

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

/// What a peer answers a request with, whatever it asks for.
#[derive(Clone, Copy, Debug)]
struct Lie {
    opcode: roce::Opcode,
    syndrome: Syndrome,
    payload: usize,
    /// Added to the request's PSN.
    psn: u32,
}

/// A link at whose other end there is no NIC, but somebody who answers.
struct Liar {
    lie: Lie,
    qpn: u32,
    mac: [u8; 6],
    gid: [u8; 16],
    frames: VecDeque<Vec<u8>>,
    now: u64,
}

impl Link for Liar {
    fn send(&mut self, _: u64, bytes: &[u8]) {
        let request = Frame::parse(bytes).unwrap();
        let (Ip::V4(ip), Lie { opcode, .. }) = (request.ip, self.lie) else {
            panic!("{request:?}");
        };
        let headers = opcode.headers().unwrap();
        let payload = vec![7; self.lie.payload];
        let answer = Frame {
            ethernet: Ethernet {
                destination: self.mac,
                source: request.ethernet.destination,
                ..Ethernet::default()
            },
            ip: Ip::between(address::gid_of_ipv4(ip.destination), self.gid, 64),
            bth: Bth {
                opcode,
                destination_qp: self.qpn,
                ack_request: false,
                psn: (request.bth.psn + self.lie.psn) & 0xff_ffff,
                ..request.bth
            },
            extended: Extended {
                aeth: headers.aeth.then_some(Aeth {
                    syndrome: self.lie.syndrome,
                    msn: 1,
                }),
                atomic_ack: headers.atomic_ack.then_some(AtomicAckEth { original: 5 }),
                ..Extended::default()
            },
            payload: &payload,
            ..request
        };
        let mut bytes = vec![0; answer.len()];
        answer.emit(&mut bytes).unwrap();
        self.frames.push_back(bytes);
    }

    fn receive(&mut self) -> Option<Vec<u8>> {
        self.frames.pop_front()
    }

    fn wait(&mut self, now: u64, deadline: Option<u64>) -> Option<u64> {
        self.now = deadline.unwrap_or(now);
        deadline
    }

    fn resume(&mut self) {}
}

const ACK: Syndrome = Syndrome::Ack { credits: 31 };

/// Status of a WQE that asks for 64 bytes, or for an atomic, of a liar.
fn asked(opcode: Opcode, lie: Lie) -> (u8, u8) {
    let rig = Rig::new();
    let mut cq = rig.cq(4);
    let mut a = rig.qp(&cq, 4);
    let own = rig.nic().query_gid(1, 3).unwrap().unwrap();
    rig.nic().connect(Liar {
        lie,
        qpn: a.qpn,
        mac: own.mac,
        gid: own.gid,
        frames: VecDeque::new(),
        now: 0,
    });
    rig.command(rig.rst2init(a.qpn)).unwrap();
    let mut request = rig.init2rtr(a.qpn, 0x77);
    let path = &mut request.qpc.primary_address_path;
    (path.rgid_rip, path.rmac) = (address::gid_of_ipv4([10, 9, 9, 9]), [2, 9, 9, 9, 9, 9]);
    rig.command(request).unwrap();
    rig.command(rig.rtr2rts(a.qpn)).unwrap();
    let mr = rig.mr(4096, EVERY_RIGHT);
    let (operands, len) = match opcode {
        Opcode::AtomicFetchAdd => (segment_bytes(fetch_add(1)).to_vec(), 8),
        _ => (vec![], 64),
    };
    let segments = [
        mr.piece(0, 0).remote(),
        operands,
        mr.piece(1024, len).local(),
    ]
    .concat();
    a.post(&rig, opcode, SIGNALLED, &segments);
    a.ring(&rig);
    rig.run();
    let error = cq.error(&rig);
    rig.assert_no_findings();
    (error.0, error.1)
}

#[test]
fn answers_that_fit_no_request_are_bad_responses_or_ghosts() {
    use roce::Opcode as Packet;
    let lie = |opcode, payload| Lie {
        opcode,
        syndrome: ACK,
        payload,
        psn: 0,
    };
    let bad = (0x10, 0);
    let reserved = [
        Syndrome::Unknown(0x45),
        Syndrome::Nak(NakCode::InvalidRdRequest),
    ];
    for syndrome in reserved {
        let lie = Lie {
            syndrome,
            ..lie(Packet::Acknowledge, 0)
        };
        assert_eq!(asked(Opcode::RdmaWrite, lie), bad, "{syndrome:?}");
    }
    // Data that is too short or too long, data to a WRITE, an original to a READ.
    for len in [0, 60, 68, 1024] {
        let lie = lie(Packet::ReadResponseOnly, len);
        assert_eq!(asked(Opcode::RdmaRead, lie), bad, "{len} bytes");
    }
    assert_eq!(
        asked(Opcode::RdmaWrite, lie(Packet::ReadResponseOnly, 64)),
        bad
    );
    assert_eq!(
        asked(Opcode::RdmaRead, lie(Packet::AtomicAcknowledge, 0)),
        bad
    );
    assert_eq!(
        asked(Opcode::AtomicFetchAdd, lie(Packet::ReadResponseOnly, 8)),
        bad
    );
    // An acknowledgement alone brings no data; one of what was never sent is none.
    let exceeded = (0x15, 0x81);
    assert_eq!(
        asked(Opcode::RdmaRead, lie(Packet::Acknowledge, 0)),
        exceeded
    );
    let future = Lie {
        psn: 5,
        ..lie(Packet::Acknowledge, 0)
    };
    assert_eq!(asked(Opcode::RdmaWrite, future), exceeded);
}

#[test]
fn a_record_that_names_more_receives_than_there_are_is_named() {
    let (near, far, _) = Rig::joined(NicConfig::default(), CablePlan::default(), 1);
    let (mut near_cq, far_cq) = (near.cq(4), far.cq(4));
    let mut a = near.qp(&near_cq, 4);
    let (b, mut receives) = far.qp_with_receives(&far_cq, 2);
    near.connect(a.qpn, &far, b.qpn, |_| ());
    far.connect(b.qpn, &near, a.qpn, |_| ());
    far.write(receives.dbr + DBR_RECEIVE as u64, &5u32.to_be_bytes());
    a.post(&near, Opcode::Send, SIGNALLED, &[]);
    a.ring(&near);
    for _ in 0..100 {
        near.bus.lock().step_device(0);
        near.bus.lock().step_device(1);
    }
    let found = far.take_findings();
    assert!(found.iter().all(|name| *name == "receive-dbr-beyond-queue") && !found.is_empty());
    // A legal record, and the send completes.
    receives.post(&far, &[far.mr(64, ALL_RIGHTS).piece(0, 64)]);
    near.run();
    near_cq.success(&near);
}

#[test]
fn a_record_that_nobody_rang_for_is_named_though_the_nic_may_act_on_it() {
    let rig = Rig::with(NicConfig {
        reads_records_early: true,
        ..NicConfig::default()
    });
    let mut cq = rig.cq(4);
    let (mut a, _b) = rig.pair(&cq, 4);
    a.nop(&rig);
    a.dbr(&rig);
    for _ in 0..100 {
        rig.bus.lock().step_device(0);
    }
    cq.success(&rig);
    rig.nic().end_of_run();
    assert_eq!(rig.take_findings(), ["dbr-unrung"]);
}

/// Memory in which every word is a record's.
struct Record(u32);

impl Dma for Record {
    fn read(&mut self, _: DmaAccess, _: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        bytes.copy_from_slice(&self.0.to_be_bytes());
        Ok(())
    }
    fn write(&mut self, _: DmaAccess, addr: u64, bytes: &[u8]) -> Result<(), Fault> {
        Err(Fault::new(
            FaultKind::Refused,
            addr,
            bytes.len() as u64,
            "read only",
        ))
    }
}

#[test]
fn a_doorbell_that_may_overtake_its_record_is_named() {
    let rig = Rig::new();
    let cq = rig.cq(4);
    let (mut a, _b) = rig.pair(&cq, 4);
    let register = u64::from(a.uar) * 4096 + 0x800;
    let arrives = |producer: u64, record| {
        let value = doorbell(producer, a.qpn).to_le_bytes();
        rig.nic()
            .mmio_arrives(register, &value, &mut Record(record))
            .unwrap();
    };
    // The record of the first is there for certain, that of the second is not.
    arrives(1, 1);
    arrives(2, 1);
    a.nop(&rig);
    a.nop(&rig);
    a.dbr(&rig);
    rig.nic().end_of_run();
    let found = rig.take_findings();
    assert!(found.contains(&"dbr-unordered"), "{found:?}");
}

#[test]
fn an_rmp_is_destroyed_when_its_last_qp_is() {
    let rig = Rig::new();
    let cq = rig.cq(4);
    let rmpn = rig.command(rig.rmp_request(3).0).unwrap().rmpn;
    let (mut request, _) = rig.qp_request(&cq, 4);
    (request.qpc.rq_type, request.qpc.srqn_rmpn_xrqn) = (RqType::Shared, rmpn);
    let qpn = rig.command(request).unwrap().qpn;
    assert!(rig.command(destroy_rmp::In { rmpn }).is_err());
    rig.command(warpverbs_wire::prm::destroy_qp::In { qpn })
        .unwrap();
    rig.command(destroy_rmp::In { rmpn }).unwrap();
    assert!(rig.command(destroy_rmp::In { rmpn }).is_err());
}
