//! CQEs that the simulated NIC writes: what libmlx5 reads is what was meant, and what `wire`'s and the device's readers read.
//!
//! What is meant follows from the requests alone, and from docs/hardware-facts.md for errors: nothing here asks the NIC.

use std::time::{Duration, Instant};

use warpverbs_sim_bus::Rng;
use warpverbs_sim_nic::InjectedFault;
use warpverbs_wire::cqe::{
    Completion, Cqe, CqeOpcode, ErrorCqe, Syndrome, is_new, vendor_syndrome,
};

use crate::Tally;
use crate::cqes::{SYNDROMES, opcode_of, received, status, syndrome};
use crate::device::{Bench, CQES};
use crate::ffi::*;
use crate::memory::Memory;
use crate::request::{Kind, Payload, Pointer, Request, Shape, chance};
use crate::verbs::{Caps, Cq, Device, Peer, Qp, Srq, Told};

/// Plants a fault in the NIC.
pub fn plant(fault: InjectedFault) {
    warpverbs_sim::with_nic(0, |nic| nic.inject(fault)).expect("an opened device");
}

/// How long a completion may take on a machine that has other things to do.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes that each end reads from, and as many that it writes to.
const AREA: usize = 1 << 16;
/// First packet numbers of the two ends: one is about to wrap.
const PSNS: (u32, u32) = (0xff_f000, 0x10_0000);
/// Bytes of a packet.
const MTU: u32 = 1024;
/// Most bytes of a message here, the port's largest aside.
const MOST: u32 = 12 << 10;

/// A completion that is to come.
#[derive(Clone, Debug)]
struct Expected {
    told: Told,
    /// The CQE, but for time and owner.
    cqe: Result<Cqe, ErrorCqe>,
    /// Of a send, its index.
    index: Option<u64>,
}

/// One end of a connection, with a CQ for both its queues.
struct End {
    qp: Qp,
    cq: Cq,
    consumer: u64,
    /// Time of the last completion.
    clock: u64,
    /// Next index of the send queue.
    next: u64,
    /// Receives so far, as a queue of its own counts them.
    receives: u64,
    /// Posted, and not completed.
    posted: Vec<Posted>,
}

/// A receive that is posted: its request, and its index in the queue.
#[derive(Clone, Copy, Debug)]
struct Posted {
    id: u64,
    counter: u16,
}

struct Rig {
    device: Device,
    memory: Memory,
    keys: (u32, u32),
    /// Posts sends, and answers.
    ends: [End; 2],
    srq: Option<Srq>,
    gid: [u8; 16],
    bench: Bench,
    connected: bool,
    /// Packet numbers that the first end has used since it was connected: a READ uses those of its answer.
    packets: u32,
}

/// Why a request fails.
#[derive(Clone, Copy, Debug)]
enum Cause {
    /// A fault is planted at the WQE: a syndrome, 0 any without name.
    Planted(u8),
    LocalKey,
    LocalLength,
    LocalOperation,
    RemoteKey,
    RemoteRight,
    LongerThanReceive,
    KeyOfReceive,
    KeyToInvalidate,
    NoPeer,
    NotReady,
    Command,
}

pub fn compare(tally: &mut Tally, rng: &mut Rng) {
    for extended in [false, true] {
        let by = if extended {
            "ibv_start_poll"
        } else {
            "ibv_poll_cq"
        };
        for shared in [false, true] {
            let mut rig = Rig::new(extended, shared);
            let into = if shared { ", into a shared queue" } else { "" };
            for kind in Kind::ALL {
                if shared && !needs_receive(kind) {
                    continue;
                }
                for shape in Shape::ALL {
                    let name = format!("{}{}{into}, by {by}", kind.name(), shape.name());
                    while shape.fits(kind) && tally.wants(&name) {
                        for _ in 0..rig.succeed(rng, kind, shape) {
                            tally.add(name.clone());
                        }
                    }
                }
            }
        }
        assert_eq!(
            warpverbs_sim::take_findings(),
            [] as [&str; 0],
            "libmlx5 does nothing wrong"
        );
        let mut rig = Rig::new(extended, false);
        let planted = SYNDROMES.map(|code| {
            let what = match code {
                0 => "an unnamed syndrome".to_owned(),
                code => format!("{:?}", Syndrome::from_code(code)),
            };
            (format!("error planted, {what}"), Cause::Planted(code))
        });
        let own = [
            ("error, a local key that is nobody's", Cause::LocalKey),
            (
                "error, a message longer than the port's longest",
                Cause::LocalLength,
            ),
            (
                "error, an opcode that the NIC does not have",
                Cause::LocalOperation,
            ),
            ("error, a remote key that is nobody's", Cause::RemoteKey),
            (
                "error, a right that the peer does not give",
                Cause::RemoteRight,
            ),
            (
                "error, a send longer than its receive",
                Cause::LongerThanReceive,
            ),
            (
                "error, a receive with a key that is nobody's",
                Cause::KeyOfReceive,
            ),
            (
                "error, a key to invalidate that is nobody's",
                Cause::KeyToInvalidate,
            ),
            ("error, a peer that is not there", Cause::NoPeer),
            ("error, a peer without a receive", Cause::NotReady),
            ("error, by command", Cause::Command),
        ];
        let own = own.map(|(name, cause)| (name.to_owned(), cause));
        for (what, cause) in planted.into_iter().chain(own) {
            let name = format!("{what}, by {by}");
            while tally.wants(&name) {
                rig.fail(rng, cause);
                let findings = warpverbs_sim::take_findings();
                // The WQE that a planted fault has spoilt.
                let spoilt = usize::from(matches!(cause, Cause::LocalOperation));
                let named = findings
                    .iter()
                    .filter(|line| line.contains("wqe-malformed"));
                assert_eq!(
                    (findings.len(), named.count()),
                    (spoilt, spoilt),
                    "{findings:#?}"
                );
                tally.add(name.clone());
            }
        }
    }
}

/// What `ibv_query_qp` says of packet numbers once so many packets have gone and were answered.
pub fn query_after_traffic(tally: &mut Tally, rng: &mut Rng) {
    let name = "packet numbers by ibv_query_qp after traffic";
    let mut rig = Rig::new(false, false);
    while tally.wants(name) {
        let kind = Kind::ALL[rng.below(8) as usize];
        rig.succeed(rng, kind, Shape::One);
        let [a, b] = rig.ends.each_ref().map(|end| end.qp.query().0);
        let moved = (PSNS.0 + rig.packets) & 0xff_ffff;
        assert_eq!(
            (a.sq_psn, b.rq_psn),
            (moved, moved),
            "{name}: from the first end"
        );
        assert_eq!(
            (b.sq_psn, a.rq_psn),
            (PSNS.1, PSNS.1),
            "{name}: from the second"
        );
        assert_eq!((a.qp_state, b.qp_state), (IBV_QPS_RTS, IBV_QPS_RTS));
        tally.add(name);
    }
}

fn needs_receive(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::WriteImmediate | Kind::Send | Kind::SendImmediate | Kind::SendInvalidate
    )
}

impl End {
    fn flush_of_receive(&self, posted: Posted) -> Expected {
        self.failed_receive(posted, Syndrome::Flushed, vendor_syndrome::FLUSHED)
    }

    fn failed_receive(&self, posted: Posted, syndrome: Syndrome, vendor: u8) -> Expected {
        Expected {
            told: Told {
                id: posted.id,
                status: status(syndrome.code()),
                vendor: vendor.into(),
                qpn: self.qp.number,
                ..Told::default()
            },
            cqe: Err(ErrorCqe {
                srqn_uidx: self.qp.user_index,
                vendor_syndrome: vendor,
                syndrome,
                qpn: self.qp.number,
                wqe_counter: posted.counter,
                opcode: CqeOpcode::ResponderError,
                solicited: true,
                ..ErrorCqe::default()
            }),
            index: None,
        }
    }

    /// A send at `index` that fails.
    fn failed(
        &self,
        request: &Request,
        index: u64,
        syndrome: u8,
        vendor: u8,
        opcode: u8,
    ) -> Expected {
        Expected {
            told: Told {
                id: request.id,
                status: status(syndrome),
                vendor: vendor.into(),
                qpn: self.qp.number,
                ..Told::default()
            },
            cqe: Err(ErrorCqe {
                srqn_uidx: self.qp.user_index,
                vendor_syndrome: vendor,
                syndrome: Syndrome::from_code(syndrome),
                wqe_opcode: opcode,
                qpn: self.qp.number,
                wqe_counter: index as u16,
                opcode: CqeOpcode::RequesterError,
                solicited: true,
                ..ErrorCqe::default()
            }),
            index: Some(index),
        }
    }

    /// A send at `index` that succeeds.
    fn done(&self, request: &Request, index: u64) -> Expected {
        // Of READs and atomics alone.
        let bytes = match request.kind {
            Kind::Read | Kind::CompareSwap | Kind::FetchAdd => len(request),
            _ => 0,
        };
        Expected {
            told: Told {
                id: request.id,
                status: IBV_WC_SUCCESS,
                qpn: self.qp.number,
                opcode: opcode_of(request.kind),
                bytes,
                ..Told::default()
            },
            cqe: Ok(Cqe {
                srqn_uidx: self.qp.user_index,
                byte_count: bytes,
                send_opcode: request.kind.opcode().code(),
                qpn: self.qp.number,
                wqe_counter: index as u16,
                opcode: CqeOpcode::Requester,
                ..Cqe::default()
            }),
            index: Some(index),
        }
    }

    /// A receive that a request has used up.
    fn received(&self, request: &Request, posted: Posted, extended: bool) -> Expected {
        let opcode = match request.kind {
            Kind::WriteImmediate => CqeOpcode::ResponderWriteImmediate,
            Kind::SendImmediate => CqeOpcode::ResponderSendImmediate,
            Kind::SendInvalidate => CqeOpcode::ResponderSendInvalidate,
            _ => CqeOpcode::ResponderSend,
        };
        let immediate = if request.kind == Kind::Send {
            0
        } else {
            request.immediate
        };
        let (said, flags) = received(opcode);
        Expected {
            told: Told {
                id: posted.id,
                status: IBV_WC_SUCCESS,
                qpn: self.qp.number,
                opcode: said,
                flags,
                bytes: len(request),
                immediate,
                // Of RC neither source nor path is said, and `ibv_poll_cq` takes the partition's index from the same field.
                pkey_index: if extended { 0 } else { immediate as u16 },
                ..Told::default()
            },
            cqe: Ok(Cqe {
                srqn_uidx: self.qp.user_index,
                immediate,
                byte_count: len(request),
                qpn: self.qp.number,
                wqe_counter: posted.counter,
                opcode,
                solicited: request.solicited,
                ..Cqe::default()
            }),
            index: None,
        }
    }

    fn is_there(&self, ahead: u64) -> bool {
        let at = self.consumer + ahead;
        is_new(
            self.cq.ring.acquire(self.cq.slot(at) + 63),
            at,
            self.cq.entries,
        )
    }
}

fn len(request: &Request) -> u32 {
    match &request.data {
        _ if request.kind.is_atomic() => 8,
        Payload::Pointers(pointers) => pointers.iter().map(|pointer| pointer.len).sum(),
        Payload::Inline(parts) => parts.iter().map(|part| part.len() as u32).sum(),
    }
}

impl Rig {
    fn new(extended: bool, shared: bool) -> Self {
        let device = Device::open();
        let srq = shared.then(|| device.srq(63, 1));
        let memory = Memory::leak(4 * AREA);
        let keys = device.register(&memory);
        let end = |srq: Option<&Srq>| {
            let cq = device.cq(CQES, extended);
            End {
                qp: device.qp(&cq, &cq, Caps::default(), srq),
                cq,
                consumer: 0,
                clock: 0,
                next: 0,
                receives: 0,
                posted: Vec::new(),
            }
        };
        let ends = [end(None), end(srq.as_ref())];
        Self {
            gid: device.gid(crate::verbs::GID),
            memory,
            keys,
            ends,
            srq,
            device,
            bench: Bench::new(),
            connected: false,
            packets: 0,
        }
    }

    /// Connects both ends anew, the first as told.
    fn connect(&mut self, peer: impl FnOnce(Peer) -> Peer, rights: u32) {
        let psns = PSNS;
        self.packets = 0;
        let [a, b] = &mut self.ends;
        for end in [&mut *a, &mut *b] {
            end.qp.reset();
            (end.next, end.receives) = (0, 0);
            assert!(end.posted.is_empty(), "receives are left");
        }
        let to = |end: &End, psns: (u32, u32)| Peer {
            send_psn: psns.0,
            receive_psn: psns.1,
            ..Peer::new(end.qp.number, self.gid)
        };
        b.qp.connect(&Peer {
            access: rights,
            ..to(a, (psns.1, psns.0))
        });
        a.qp.connect(&peer(to(b, psns)));
        self.connected = true;
    }

    fn connect_plainly(&mut self) {
        if !self.connected {
            self.connect(|peer| peer, all_rights());
        }
    }

    fn area(&self, end: usize, target: bool) -> u64 {
        self.memory.addr() + ((end * 2 + usize::from(target)) * AREA) as u64
    }

    /// A request with addresses and keys that are right.
    fn request(&self, rng: &mut Rng, kind: Kind, shape: Shape) -> Request {
        let mut request = Request::random(rng, kind, shape);
        if request.kind.is_atomic() {
            request.remote = (
                self.area(1, true) + u64::from(rng.below(AREA as u32 / 8)) * 8,
                self.keys.1,
            );
        }
        // Where READs and atomics put what they bring, and others take what they send.
        let from = self.area(0, request.kind == Kind::Read || request.kind.is_atomic());
        let mut left = if chance(rng) { MOST } else { 128 };
        if let Payload::Pointers(pointers) = &mut request.data {
            for pointer in pointers.iter_mut() {
                let len = if request.kind.is_atomic() {
                    8
                } else {
                    1 + rng.below(left)
                };
                left = (left - len).max(1);
                *pointer = Pointer {
                    addr: from + u64::from(rng.below(AREA as u32 - MOST)),
                    len,
                    key: self.keys.0,
                };
            }
        }
        if !request.kind.is_atomic() {
            let to = self.area(1, kind != Kind::Read);
            request.remote = (
                to + u64::from(rng.below(AREA as u32 - 2 * MOST)),
                self.keys.1,
            );
        }
        request
    }

    /// Posts a receive of as many bytes at the second end.
    fn post_receive(&mut self, rng: &mut Rng, pointer: Pointer) {
        let id = rng.next_u64();
        let receive = [(id, vec![pointer])];
        let end = &mut self.ends[1];
        let counter = match &self.srq {
            Some(srq) => {
                let counter = srq.head();
                srq.post(&receive);
                counter
            }
            None => {
                end.qp.post_receives(&receive);
                end.receives += 1;
                (end.receives - 1) as u16
            }
        };
        end.posted.push(Posted { id, counter });
    }

    fn receive_of(&self, rng: &mut Rng, len: u32) -> Pointer {
        Pointer {
            addr: self.area(1, true) + u64::from(rng.below(AREA as u32 - 2 * MOST)),
            len,
            key: self.keys.0,
        }
    }

    /// Posts requests at the first end, by either call. Their indices.
    fn post(&mut self, rng: &mut Rng, requests: &[Request]) -> Vec<u64> {
        self.packets += requests
            .iter()
            .map(|request| len(request).div_ceil(MTU).max(1))
            .sum::<u32>();
        let end = &mut self.ends[0];
        let failed = if chance(rng) {
            end.qp.post_send(requests)
        } else {
            end.qp.post_wr(requests, chance(rng))
        };
        assert_eq!(failed, 0, "a request is refused");
        let indices = requests.iter().map(|request| {
            let index = end.next;
            end.next += u64::from(request.segments().div_ceil(4));
            index
        });
        indices.collect()
    }

    /// Waits for completions of an end, and compares them with what is expected, one by one.
    fn expect(&mut self, rng: &mut Rng, which: usize, expected: &[Expected]) {
        let extended = self.ends[which].cq.is_extended();
        let mut at = 0;
        while at < expected.len() {
            let end = &mut self.ends[which];
            let until = Instant::now() + PATIENCE;
            while !end.is_there(0) {
                assert!(
                    Instant::now() < until,
                    "no completion; expected {:x?}",
                    expected[at]
                );
                std::thread::yield_now();
            }
            let most = 1 + rng.below((expected.len() - at) as u32) as u64;
            let there = (0..most).take_while(|ahead| end.is_there(*ahead)).count();
            let rings: Vec<Vec<u8>> = (0..there as u64)
                .map(|ahead| end.cq.cqe(end.consumer + ahead))
                .collect();
            let told = end.cq.poll_many(there).expect("CQEs that libmlx5 reads");
            assert_eq!(told.len(), there);
            for (mut told, ring) in told.into_iter().zip(rings) {
                let expected = &expected[at];
                let consumer = self.ends[which].consumer;
                self.ends[which].consumer += 1;
                at += 1;
                let timestamp = std::mem::take(&mut told.timestamp);
                assert_eq!(
                    told, expected.told,
                    "libmlx5 reads something else\n{ring:x?}"
                );
                let read = match Completion::parse(&ring) {
                    Ok(Completion::Done(read)) => {
                        assert!(read.timestamp >= self.ends[which].clock, "time goes back");
                        self.ends[which].clock = read.timestamp;
                        assert_eq!(timestamp, if extended { read.timestamp } else { 0 });
                        Ok(Cqe {
                            timestamp: 0,
                            owner: 0,
                            ..read
                        })
                    }
                    Ok(Completion::Failed(read)) => Err(ErrorCqe { owner: 0, ..read }),
                    other => panic!("read as {other:?}"),
                };
                assert_eq!(read, expected.cqe, "wire reads something else");
                self.read_natively(expected, &ring, consumer);
            }
        }
        assert!(!self.ends[which].is_there(0), "a completion too many");
    }

    fn read_natively(&self, expected: &Expected, ring: &[u8], consumer: u64) {
        let Some(index) = expected.index else { return };
        let state = self
            .bench
            .read(ring, consumer, self.ends[0].qp.number, index);
        let read = state.map(|state| {
            (
                state.syndrome(),
                state.vendor_syndrome(),
                state.opcode(),
                state.index(),
            )
        });
        let meant = expected.cqe.err().map(|cqe| {
            (
                cqe.syndrome.code(),
                cqe.vendor_syndrome,
                cqe.opcode.code(),
                index as u32,
            )
        });
        assert_eq!(read, meant, "the device reads something else");
    }

    /// Some requests that succeed; how many completions were compared.
    fn succeed(&mut self, rng: &mut Rng, kind: Kind, shape: Shape) -> usize {
        self.connect_plainly();
        let count = 1 + rng.below(12) as usize;
        let mut requests: Vec<Request> =
            (0..count).map(|_| self.request(rng, kind, shape)).collect();
        requests[count - 1].signalled = true;
        let mut regions = Vec::new();
        for request in &mut requests {
            if kind == Kind::SendInvalidate {
                let region = self.device.register_temporarily(&self.memory);
                request.immediate = region.rkey();
                regions.push(region);
            }
            if needs_receive(kind) {
                let room = len(request).max(1) + rng.below(2) * rng.below(MOST);
                let receive = self.receive_of(rng, room);
                self.post_receive(rng, receive);
            }
        }
        let indices = self.post(rng, &requests);
        let signalled = requests
            .iter()
            .zip(indices)
            .filter(|(request, _)| request.signalled);
        let sent: Vec<Expected> = signalled
            .map(|(request, index)| self.ends[0].done(request, index))
            .collect();
        self.expect(rng, 0, &sent);
        let mut compared = sent.len();
        if needs_receive(kind) {
            let extended = self.ends[1].cq.is_extended();
            let posted = std::mem::take(&mut self.ends[1].posted);
            let got: Vec<Expected> = requests
                .iter()
                .zip(&posted)
                .map(|(request, posted)| self.ends[1].received(request, *posted, extended))
                .collect();
            self.expect(rng, 1, &got);
            compared = got.len();
        }
        drop(regions);
        compared
    }

    /// Some requests, of which one fails, and those behind it are flushed; at both ends.
    fn fail(&mut self, rng: &mut Rng, cause: Cause) {
        let (peer, rights) = match cause {
            Cause::RemoteRight => (None, 0),
            Cause::NoPeer => (Some((1, 0)), all_rights()),
            // Never: what is posted stays.
            Cause::Command => (Some((0, 7)), all_rights()),
            _ => (None, all_rights()),
        };
        // A number that no QP has: those that are given out count up from small ones.
        let nobody = 0xff_0000 | rng.below(0x1_0000);
        self.connect(
            |to| match peer {
                Some((timeout, retries)) => Peer {
                    qpn: nobody,
                    timeout,
                    retries,
                    ..to
                },
                None if matches!(cause, Cause::NotReady) => Peer {
                    rnr_retries: 0,
                    ..to
                },
                None => to,
            },
            rights,
        );
        // Requests that need no receive, before and behind.
        let plain = [Kind::Write, Kind::Read, Kind::CompareSwap, Kind::FetchAdd];
        let others = |rig: &Self, rng: &mut Rng, most: u32| -> Vec<Request> {
            let count = rng.below(most);
            (0..count)
                .map(|_| {
                    let kind = plain[rng.below(4) as usize];
                    rig.request(rng, kind, Shape::One)
                })
                .collect()
        };
        let nothing_works = matches!(cause, Cause::RemoteRight | Cause::NoPeer | Cause::Command);
        let mut requests = if nothing_works {
            Vec::new()
        } else {
            others(self, rng, 4)
        };
        let at = requests.len();
        let kind = match cause {
            Cause::RemoteKey | Cause::RemoteRight => plain[rng.below(4) as usize],
            Cause::LongerThanReceive | Cause::KeyOfReceive => Kind::SendImmediate,
            Cause::KeyToInvalidate => Kind::SendInvalidate,
            Cause::NotReady => [Kind::Send, Kind::WriteImmediate][rng.below(2) as usize],
            _ => plain[rng.below(4) as usize],
        };
        let mut request = self.request(rng, kind, Shape::One);
        // Of an index beyond the NIC's keys: one that was deregistered would be a finding.
        let nobodys = 0xff00_0000 | rng.below(1 << 24);
        // What each end says of it.
        let here;
        let mut there = None;
        let mut opcode = kind.opcode().code();
        match cause {
            Cause::Planted(named) => {
                let (syndrome, vendor) = (syndrome(rng, named), rng.below(256) as u8);
                here = (syndrome, vendor);
            }
            Cause::LocalKey => {
                let Payload::Pointers(pointers) = &mut request.data else {
                    unreachable!()
                };
                pointers[0].key = nobodys;
                here = (0x04, 0x52);
            }
            Cause::LocalLength => {
                request.kind = Kind::Write;
                opcode = request.kind.opcode().code();
                let Payload::Pointers(pointers) = &mut request.data else {
                    unreachable!()
                };
                pointers[0].len = (1 << 30) + 1 + rng.below((1 << 30) - 1);
                here = (0x01, 0);
            }
            Cause::LocalOperation => {
                // User-mode memory registration, of which the NIC can do nothing.
                opcode = 0x25;
                here = (0x02, 0x68);
            }
            Cause::RemoteKey => {
                request.remote.1 = nobodys;
                here = (0x13, vendor_syndrome::REMOTE_ACCESS);
            }
            Cause::RemoteRight => here = (0x12, vendor_syndrome::REMOTE_INVALID_REQUEST),
            Cause::LongerThanReceive => {
                let Payload::Pointers(pointers) = &mut request.data else {
                    unreachable!()
                };
                pointers[0].len += 1;
                let room = pointers[0].len - 1;
                let receive = self.receive_of(rng, room);
                self.post_receive(rng, receive);
                here = (0x12, vendor_syndrome::REMOTE_INVALID_REQUEST);
                there = Some((Syndrome::LocalLength, 0));
            }
            Cause::KeyOfReceive => {
                let receive = self.receive_of(rng, MOST + 1);
                self.post_receive(
                    rng,
                    Pointer {
                        key: nobodys,
                        ..receive
                    },
                );
                here = (0x14, 0);
                there = Some((Syndrome::LocalProtection, 0x52));
            }
            Cause::KeyToInvalidate => {
                request.immediate = nobodys;
                let receive = self.receive_of(rng, MOST + 1);
                self.post_receive(rng, receive);
                here = (0x13, vendor_syndrome::REMOTE_ACCESS);
                there = Some((Syndrome::LocalProtection, 0x52));
            }
            Cause::NoPeer => here = (0x15, vendor_syndrome::RETRY_EXCEEDED),
            Cause::NotReady => here = (0x16, 0),
            Cause::Command => here = (0x05, vendor_syndrome::FLUSHED_HEAD),
        }
        let (syndrome, vendor) = here;
        requests.push(request);
        requests.extend(others(self, rng, 4));
        let index_of_failure = self.ends[0].next
            + requests[..at]
                .iter()
                .map(|request| u64::from(request.segments().div_ceil(4)))
                .sum::<u64>();
        let qpn = self.ends[0].qp.number;
        match cause {
            Cause::Planted(_) => plant(InjectedFault::Fail {
                qpn,
                index: index_of_failure,
                syndrome,
                vendor,
            }),
            Cause::LocalOperation => plant(InjectedFault::FlipWqeByte {
                qpn,
                index: index_of_failure,
                byte: 3,
                mask: kind.opcode().code() ^ opcode,
            }),
            _ => {}
        }
        // Receives that nobody uses.
        let spare = if matches!(cause, Cause::NotReady) {
            0
        } else {
            rng.below(3)
        };
        for _ in 0..spare {
            let receive = self.receive_of(rng, 64);
            self.post_receive(rng, receive);
        }
        let indices = self.post(rng, &requests);
        if matches!(cause, Cause::Command) {
            self.to_error(0);
        }
        let mut expected = Vec::new();
        for (number, (request, index)) in requests.iter().zip(&indices).enumerate() {
            let end = &self.ends[0];
            match number.cmp(&at) {
                std::cmp::Ordering::Less if !request.signalled => {}
                std::cmp::Ordering::Less => expected.push(end.done(request, *index)),
                std::cmp::Ordering::Equal => {
                    expected.push(end.failed(request, *index, syndrome, vendor, opcode));
                }
                std::cmp::Ordering::Greater => {
                    let own = request.kind.opcode().code();
                    expected.push(end.failed(request, *index, 0x05, vendor_syndrome::FLUSHED, own));
                }
            }
        }
        self.expect(rng, 0, &expected);
        // Posted to a QP in error: flushed.
        let late = others(self, rng, 3);
        if !late.is_empty() {
            let indices = self.post(rng, &late);
            let flushed: Vec<Expected> = late
                .iter()
                .zip(indices)
                .map(|(request, index)| {
                    let own = request.kind.opcode().code();
                    self.ends[0].failed(request, index, 0x05, vendor_syndrome::FLUSHED, own)
                })
                .collect();
            self.expect(rng, 0, &flushed);
        }
        // The other end, which may be in error already.
        self.to_error(1);
        let posted = std::mem::take(&mut self.ends[1].posted);
        let flushed: Vec<Expected> = posted
            .iter()
            .enumerate()
            .map(|(number, posted)| match (number, there) {
                (0, Some((syndrome, vendor))) => {
                    self.ends[1].failed_receive(*posted, syndrome, vendor)
                }
                _ => self.ends[1].flush_of_receive(*posted),
            })
            .collect();
        self.expect(rng, 1, &flushed);
        self.connected = false;
    }

    fn to_error(&mut self, which: usize) {
        let attributes = ibv_qp_attr {
            qp_state: IBV_QPS_ERR,
            ..ibv_qp_attr::default()
        };
        self.ends[which]
            .qp
            .modify(attributes, IBV_QP_STATE)
            .expect("ERR");
    }
}

fn all_rights() -> u32 {
    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC
}
