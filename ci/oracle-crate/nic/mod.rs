//! CQEs that the simulated NIC writes: what libmlx5 reads is what was meant, and what `wire`'s and the device's readers read.
//!
//! What is meant follows from the requests alone, and from docs/hardware-facts.md for errors: nothing here asks the NIC.

mod expected;
mod failures;

use std::time::{Duration, Instant};

use warpverbs_sim_bus::Rng;
use warpverbs_sim_nic::InjectedFault;
use warpverbs_wire::cqe::{Completion, Cqe, ErrorCqe, Syndrome};

use self::expected::{End, Expected, Posted, len};
use self::failures::Cause;
use crate::Tally;
use crate::cqes::SYNDROMES;
use crate::device::{Bench, CQES};
use crate::ffi::*;
use crate::memory::Memory;
use crate::request::{Kind, Payload, Pointer, Request, Shape, chance};
use crate::verbs::{Caps, Device, Peer, Srq};

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
}

fn all_rights() -> u32 {
    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC
}
