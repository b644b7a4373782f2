//! Two NICs with connected QPs, driven by a script, and what they show.
//!
//! Knows: how requests of the reference become WQEs, keys and addresses, and completions become what the judge compares.
//! Must not know: what is right.

use std::collections::BTreeMap;
use std::ops::Range;

use warpverbs_sim_nic::{CablePlan, NicConfig, access};
use warpverbs_wire::cqe::{Completion, CqeOpcode};
use warpverbs_wire::doorbell::{DBR_RECEIVE, DBR_SEND, dbr_word};
use warpverbs_wire::eqe::{Event, EventType};
use warpverbs_wire::prm::qpc::{AtomicMode, Mtu, QpState};
use warpverbs_wire::wqe::{
    FENCE, MASKED_4, MASKED_8, Opcode, SIGNALLED, compare_swap, fetch_add, masked_compare_swap_8,
    masked_fetch_add_4, segment_bytes,
};

use crate::judge::{Disturbance, Received, Seen, Sent, judge};
use crate::reference::{Kind, LocalKey, Receive, Refusal, RemoteKey, Request, Rules, Stream};
use crate::rig::{EVERY_RIGHT, Piece, Rig, TestCq, TestMr, TestQp, TestRq, inline, pattern};

/// Bytes of a QP's memory that its own requests use; behind them those that the peer's use; behind those the receives'.
pub(crate) const LOCAL: usize = 8192;
pub(crate) const TARGET: usize = 8192;
pub(crate) const LANDING: usize = 8192;
const ALL: usize = LOCAL + TARGET + LANDING;

/// How a run is set up.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) plan: CablePlan,
    pub(crate) seed: u64,
    pub(crate) first_index: u64,
    pub(crate) qps: usize,
    pub(crate) rules: Rules,
    /// log2 of the READs and atomics outstanding.
    pub(crate) log_reads: u8,
    /// Receives may come late; otherwise all are there, and retries for want of one end.
    pub(crate) late: bool,
}

/// One end of a connection.
struct End {
    qp: TestQp,
    rq: TestRq,
    good: TestMr,
    read_only: TestMr,
    extra: TestMr,
    stream: Stream,
    signalled: Vec<bool>,
    /// Where each request's WQE begins.
    indices: Vec<u16>,
    /// Fetches since the last fence: what they read there, and write here.
    fetching: Vec<(Range<usize>, Vec<Range<usize>>)>,
    invalidates: bool,
    sent: Vec<Sent>,
    received: Vec<Received>,
    ordered_to_error: bool,
    /// Requests for which it rang.
    rung: usize,
    /// It has run while a message found no receive.
    starved: bool,
}

/// Both NICs.
pub(crate) struct World {
    setup: Setup,
    rigs: [Rig; 2],
    cqs: [TestCq; 2],
    /// Of each connection both ends.
    pairs: Vec<[End; 2]>,
    /// How often each connection was reset.
    lives: Vec<u32>,
    events: [BTreeMap<u32, Vec<EventType>>; 2],
}

fn meets(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

impl World {
    pub(crate) fn new(setup: Setup) -> Self {
        let config = NicConfig {
            first_index: setup.first_index,
            seed: setup.seed,
            ..NicConfig::default()
        };
        let (near, far, _) = Rig::joined(config, setup.plan.clone(), setup.seed);
        let cqs = [near.cq(10), far.cq(10)];
        let rigs = [near, far];
        let mut pairs = vec![];
        for q in 0..setup.qps {
            let end = |side: usize| {
                let rig: &Rig = &rigs[side];
                let (qp, rq) = rig.qp_with_receives(&cqs[side], 8);
                let good = rig.mr(ALL as u64, EVERY_RIGHT);
                rig.write(good.addr, &pattern(ALL, (q * 2 + side) as u8));
                let again = |rights| rig.mr_at(rig.pd, good.addr, ALL as u64, good.iova, rights);
                End {
                    qp,
                    rq,
                    good,
                    read_only: again(access::REMOTE_READ),
                    extra: again(EVERY_RIGHT),
                    stream: Stream {
                        rules: setup.rules,
                        local: vec![],
                        remote: vec![],
                        requests: vec![],
                        receives: vec![],
                    },
                    signalled: vec![],
                    indices: vec![],
                    fetching: vec![],
                    invalidates: false,
                    sent: vec![],
                    received: vec![],
                    ordered_to_error: false,
                    rung: 0,
                    starved: false,
                }
            };
            pairs.push([end(0), end(1)]);
        }
        let mut world = Self {
            lives: vec![0; setup.qps],
            setup,
            rigs,
            cqs,
            pairs,
            events: Default::default(),
        };
        for q in 0..world.pairs.len() {
            world.begin_life(q);
        }
        world
    }

    /// Connects both ends, whose QPs are in RST, and takes their memories as they are.
    fn begin_life(&mut self, q: usize) {
        let Rules {
            mtu,
            writes,
            reads,
            atomics,
        } = self.setup.rules;
        let mtu = match mtu {
            256 => Mtu::Bytes256,
            1024 => Mtu::Bytes1024,
            _ => Mtu::Bytes4096,
        };
        // What is still on its way from an earlier life is far from what this one expects.
        let psn = (0xff_ffe0 + self.lives[q] * 0x20_0000) & 0xff_ffff;
        let (late, log_reads) = (self.setup.late, self.setup.log_reads);
        for side in 0..2 {
            let (qpn, remote) = (self.pairs[q][side].qp.qpn, self.pairs[q][1 - side].qp.qpn);
            let rig = &self.rigs[side];
            let gid = self.rigs[1 - side].nic().query_gid(1, 3).unwrap().unwrap();
            let mut request = rig.rst2init(qpn);
            (request.qpc.rwe, request.qpc.rre, request.qpc.rae) = (writes, reads, atomics);
            if atomics {
                request.qpc.atomic_mode = AtomicMode::UpTo8;
            }
            rig.command(request).unwrap();
            let mut request = rig.init2rtr(qpn, remote);
            let context = &mut request.qpc;
            (context.mtu, context.next_rcv_psn) = (mtu, psn);
            (context.log_rra_max, context.min_rnr_nak) = (log_reads, 12);
            let path = &mut context.primary_address_path;
            (path.rgid_rip, path.rmac) = (gid.gid, gid.mac);
            rig.command(request).unwrap();
            let mut request = rig.rtr2rts(qpn);
            let context = &mut request.qpc;
            (context.next_send_psn, context.log_sra_max) = (psn, log_reads);
            context.rnr_retry = if late { 7 } else { 2 };
            rig.command(request).unwrap();
        }
        for side in 0..2 {
            let local = self.memory(q, side, 0..LOCAL);
            let remote = self.memory(q, 1 - side, LOCAL..ALL);
            let first = self.setup.first_index;
            let rig = &self.rigs[side];
            let end = &mut self.pairs[q][side];
            (end.stream.local, end.stream.remote) = (local, remote);
            end.stream.requests.clear();
            end.stream.receives.clear();
            end.signalled.clear();
            end.indices.clear();
            end.fetching.clear();
            end.sent.clear();
            end.received.clear();
            (end.invalidates, end.ordered_to_error) = (false, false);
            (end.rung, end.starved) = (0, false);
            (end.qp.next, end.rq.next) = (first, first);
            let record = end.qp.dbr;
            rig.write(record + DBR_SEND as u64, &dbr_word(first).to_le_bytes());
            rig.write(record + DBR_RECEIVE as u64, &dbr_word(first).to_le_bytes());
            let (addr, iova) = (end.good.addr, end.good.iova);
            end.extra = rig.mr_at(rig.pd, addr, ALL as u64, iova, EVERY_RIGHT);
        }
    }

    fn memory(&self, q: usize, side: usize, range: Range<usize>) -> Vec<u8> {
        let addr = self.pairs[q][side].good.addr;
        self.rigs[side].read(addr + range.start as u64, range.len())
    }

    /// Posts a request, fenced if it must be for the outcome to be certain: an unfenced one may overtake the data of READs and
    /// atomics before it.
    pub(crate) fn post(&mut self, q: usize, side: usize, mut request: Request, flags: u8) {
        let [near, far] = &mut self.pairs[q];
        let (end, peer) = if side == 0 { (near, far) } else { (far, near) };
        if request.kind == Kind::SendInvalidate && std::mem::replace(&mut end.invalidates, true) {
            request.kind = Kind::Send;
        }
        let changes = match request.kind {
            Kind::Read => 0..0,
            _ => request.remote_range(),
        };
        let meets_fetch = end.fetching.iter().any(|(there, here)| {
            meets(there, &changes)
                || (!request.fetches()
                    && here
                        .iter()
                        .any(|piece| request.local.iter().any(|other| meets(piece, other))))
        });
        // A READ that has to be repeated needs its key still.
        let invalidates = request.kind == Kind::SendInvalidate && !end.fetching.is_empty();
        let fenced = meets_fetch || invalidates || flags & 2 != 0;
        if fenced {
            end.fetching.clear();
        }
        if request.fetches() {
            end.fetching
                .push((request.remote_range(), request.local.clone()));
        }
        let signalled = flags & 1 != 0;
        let (opcode, immediate) = match request.kind {
            Kind::Write => (Opcode::RdmaWrite, 0),
            Kind::WriteImmediate => (Opcode::RdmaWriteImmediate, request.immediate),
            Kind::Read => (Opcode::RdmaRead, 0),
            Kind::Send => (Opcode::Send, 0),
            Kind::SendImmediate => (Opcode::SendImmediate, request.immediate),
            Kind::SendInvalidate => {
                request.immediate = peer.extra.keys.rkey;
                (Opcode::SendInvalidate, request.immediate)
            }
            Kind::CompareSwap => (Opcode::AtomicCompareSwap, 0),
            Kind::FetchAdd => (Opcode::AtomicFetchAdd, 0),
            Kind::MaskedCompareSwap => (Opcode::AtomicMaskedCompareSwap, 0),
            Kind::MaskedFetchAdd => (Opcode::AtomicMaskedFetchAdd, 0),
            Kind::Dump => (Opcode::Dump, 0),
            Kind::Nop => (Opcode::Nop, 0),
            Kind::Malformed => (Opcode::from_code(0x3f), 0),
        };
        let mut segments = vec![];
        if matches!(request.kind, Kind::Write | Kind::WriteImmediate) || request.fetches() {
            let key = match request.remote_key {
                RemoteKey::Good => peer.good.keys.rkey,
                RemoteKey::ReadOnly => peer.read_only.keys.rkey,
                RemoteKey::Extra => peer.extra.keys.rkey,
                RemoteKey::Wrong => WRONG,
            };
            let at = (LOCAL + request.remote) as u64;
            let piece = peer.good.piece(at, 0);
            segments.extend(Piece { key, ..piece }.remote());
        }
        match request.kind {
            Kind::CompareSwap => {
                let (compare, swap) = request.operands;
                segments.extend(segment_bytes(compare_swap(swap, compare)));
            }
            Kind::FetchAdd => segments.extend(segment_bytes(fetch_add(request.operands.0))),
            Kind::MaskedCompareSwap => {
                let ((compare, swap), (compared, swapped)) = (request.operands, request.masks);
                let operands = masked_compare_swap_8(swap, compare, swapped, compared);
                segments.extend(operands.iter().flat_map(|half| segment_bytes(*half)));
            }
            Kind::MaskedFetchAdd => {
                let (add, last) = (request.operands.0 as u32, request.masks.0 as u32);
                segments.extend(segment_bytes(masked_fetch_add_4(add, last)));
            }
            _ => {}
        }
        if let Some(data) = &request.inline {
            segments.extend(inline(data));
        }
        let key = match request.local_key {
            LocalKey::Good => end.good.keys.lkey,
            LocalKey::ReadOnly => end.read_only.keys.lkey,
            LocalKey::Wrong => WRONG,
        };
        for piece in &request.local {
            let piece = end.good.piece(piece.start as u64, piece.len() as u32);
            segments.extend(Piece { key, ..piece }.local());
        }
        let control = |control: &mut warpverbs_wire::wqe::Control| {
            control.immediate = immediate;
            control.opmod = match request.kind {
                Kind::MaskedCompareSwap => MASKED_8,
                Kind::MaskedFetchAdd => MASKED_4,
                _ => 0,
            };
            control.flags = if signalled { SIGNALLED } else { 0 } | if fenced { FENCE } else { 0 };
        };
        let index = end
            .qp
            .post_with(&self.rigs[side], control, opcode, &segments);
        end.indices.push(index as u16);
        end.signalled.push(signalled);
        end.stream.requests.push(request);
    }

    /// Posts a receive for the requests of the peer.
    pub(crate) fn receive(&mut self, q: usize, side: usize, receive: Receive) {
        let end = &mut self.pairs[q][side];
        let pieces: Vec<Piece> = receive
            .pieces
            .iter()
            .map(|piece| {
                let at = (LOCAL + piece.start) as u64;
                let right = end.good.piece(at, piece.len() as u32);
                let key = if receive.wrong_key { WRONG } else { right.key };
                Piece { key, ..right }
            })
            .collect();
        end.rq.post(&self.rigs[side], &pieces);
        self.pairs[q][1 - side].stream.receives.push(receive);
    }

    pub(crate) fn ring(&mut self, q: usize, side: usize) {
        let end = &mut self.pairs[q][side];
        end.qp.ring(&self.rigs[side]);
        end.rung = end.stream.requests.len();
    }

    pub(crate) fn run(&mut self, steps: u64) {
        for end in self.pairs.iter_mut().flatten() {
            let rung = &end.stream.requests[..end.rung];
            let wanted = rung.iter().filter(|one| one.takes_receive()).count();
            end.starved |= wanted > end.stream.receives.len();
        }
        self.rigs[0].bus.lock().run_devices(steps);
    }

    pub(crate) fn break_off(&mut self, q: usize, side: usize) {
        let qpn = self.pairs[q][side].qp.qpn;
        if self.rigs[side].state(qpn) == QpState::Rts {
            self.rigs[side].to_error(qpn);
            self.pairs[q][side].ordered_to_error = true;
        }
    }

    /// Judges what was seen of a connection, then resets and connects it again.
    pub(crate) fn reset(&mut self, q: usize) -> Result<(), String> {
        self.judge(q, true)?;
        for side in 0..2 {
            self.rigs[side].to_reset(self.pairs[q][side].qp.qpn);
        }
        self.lives[q] += 1;
        self.begin_life(q);
        Ok(())
    }

    /// Rings for all that was posted, gives receives to all messages if there are to be any, runs, and judges all.
    pub(crate) fn finish(&mut self) -> Result<(), String> {
        for q in 0..self.pairs.len() {
            for side in 0..2 {
                self.ring(q, side);
                let stream = &self.pairs[q][side].stream;
                let wanted = stream.requests.iter().filter(|one| one.takes_receive());
                let missing = wanted.count().saturating_sub(stream.receives.len());
                for n in 0..missing * usize::from(self.setup.late) {
                    let start = TARGET + n * 64 % 2048;
                    let receive = Receive {
                        pieces: std::iter::once(start..start + 5000).collect(),
                        wrong_key: false,
                    };
                    self.receive(q, 1 - side, receive);
                }
            }
        }
        let steps = self.rigs[0].bus.lock().run_devices(3_000_000);
        if steps == 3_000_000 {
            return Err("the NICs never become idle".to_owned());
        }
        (0..self.pairs.len()).try_for_each(|q| self.judge(q, false))
    }

    /// How often an answer did not come in time.
    pub(crate) fn timeouts(&self) -> u64 {
        self.rigs.iter().map(|rig| rig.nic().stats().timeouts).sum()
    }

    /// Takes completions and events.
    fn collect(&mut self) {
        for side in 0..2 {
            while let Some(completion) = self.cqs[side].poll(&self.rigs[side]) {
                let (qpn, counter, opcode, bytes, immediate, error) = match completion {
                    Completion::Pending => panic!("a CQE that is none"),
                    Completion::Done(cqe) => {
                        let bytes = cqe.byte_count as usize;
                        (
                            cqe.qpn,
                            cqe.wqe_counter,
                            cqe.opcode,
                            bytes,
                            cqe.immediate,
                            None,
                        )
                    }
                    Completion::Failed(cqe) => {
                        let code = cqe.syndrome.code();
                        (cqe.qpn, cqe.wqe_counter, cqe.opcode, 0, 0, Some(code))
                    }
                };
                let end = self
                    .pairs
                    .iter_mut()
                    .map(|pair| &mut pair[side])
                    .find(|end| end.qp.qpn == qpn)
                    .expect("a CQE of a QP that there is");
                if matches!(opcode, CqeOpcode::Requester | CqeOpcode::RequesterError) {
                    let at = end.indices.iter().position(|index| *index == counter);
                    end.sent.push(Sent {
                        request: at.expect("a CQE of a WQE that was posted"),
                        bytes,
                        error,
                    });
                } else {
                    let first = self.setup.first_index as u16;
                    end.received.push(Received {
                        receive: counter.wrapping_sub(first).into(),
                        bytes,
                        immediate,
                        error,
                    });
                }
            }
            for event in self.rigs[side].nic().take_events() {
                if let Event::Queue { event, number } = event {
                    self.events[side].entry(number).or_default().push(event);
                }
            }
        }
    }

    fn judge(&mut self, q: usize, cut: bool) -> Result<(), String> {
        self.collect();
        let outcomes = [0, 1].map(|side| self.pairs[q][side].stream.outcome());
        let refused = |side: usize| outcomes[side].refused.as_ref().map(|(refusal, _)| *refusal);
        // An answer that overtakes another is as good as lost: what it says of later requests is not heeded.
        let lossy = self.setup.plan.loss_ppm > 0 || self.setup.plan.reorder_ppm > 0;
        for (side, outcome) in outcomes.iter().enumerate() {
            let (end, peer) = (&self.pairs[q][side], &self.pairs[q][1 - side]);
            let starves = |end: &End| lossy && self.setup.late && end.starved;
            let failed =
                |side: usize| self.rigs[side].state(self.pairs[q][side].qp.qpn) == QpState::Err;
            let seen = Seen {
                sent: end.sent.clone(),
                received: peer.received.clone(),
                local: self.memory(q, side, 0..LOCAL),
                remote: self.memory(q, 1 - side, LOCAL..ALL),
                requester_failed: failed(side),
                responder_failed: failed(1 - side),
            };
            let by = Disturbance {
                lossy,
                requester: end.ordered_to_error
                    || matches!(refused(1 - side), Some(Refusal::Remote(..))),
                responder: peer.ordered_to_error || refused(1 - side).is_some() || starves(peer),
                starved: starves(end),
                cut,
            };
            let disturbed = by.requester || by.responder || by.starved;
            if failed(side) && !disturbed && refused(side).is_none() {
                let told = end.sent.iter().find(|sent| sent.error.is_some());
                return Err(format!(
                    "QP {q} of side {side} is in ERR without a reason: {told:?}"
                ));
            }
            judge(&end.stream, &end.signalled, outcome, &seen, by)
                .map_err(|error| format!("QP {q}, requests of side {side}: {error}"))?;
            let told = end.sent.iter().find_map(|sent| sent.error);
            self.judge_events(1 - side, peer.qp.qpn, refused(side), told)?;
        }
        for side in 0..2 {
            let qpn = self.pairs[q][side].qp.qpn;
            self.events[side].remove(&qpn);
        }
        Ok(())
    }

    /// A responder raises one event for what it refuses, and none else (IBA 11.6).
    fn judge_events(
        &self,
        side: usize,
        qpn: u32,
        refused: Option<Refusal>,
        told: Option<u8>,
    ) -> Result<(), String> {
        let found = self.events[side].get(&qpn).map_or(&[][..], Vec::as_slice);
        let expected = match refused {
            Some(Refusal::Remote(0x12, _)) => Some(EventType::WqInvalidRequest),
            Some(Refusal::Remote(0x13, _)) => Some(EventType::WqAccessError),
            Some(Refusal::Remote(..)) => Some(EventType::WqCatastrophicError),
            _ => None,
        };
        let must = expected.is_some() && told == refused.map(Refusal::syndrome);
        let right = match found {
            [] => !must,
            [one] => Some(*one) == expected,
            _ => false,
        };
        right
            .then_some(())
            .ok_or_else(|| format!("events {found:?}, refused {refused:?}, told {told:?}"))
    }
}

/// A key that names nothing.
const WRONG: u32 = 0x00fe_dc00;
