//! The responder: takes requests in order, executes them once, and answers (IBA 9.7, 9.9).
//!
//! Knows: expected PSN, message under way, rights and keys, duplicates.
//! Must not know: the requester's WQE, or how an answer's packets are made (`respond`).

use std::collections::VecDeque;

use warpverbs_sim_bus::{CopyFault, DmaAccess, RmwOp};
use warpverbs_wire::cqe::CqeOpcode;
use warpverbs_wire::eqe::EventType;
use warpverbs_wire::prm::qpc::{AtomicMode, QpState, Qpc};
use warpverbs_wire::roce::{NakCode, Opcode, Psn, Reth, packets};
use warpverbs_wire::wqe::{masked_sum, masked_swapped};

use crate::failure::{Failed, LOCAL_LENGTH, LOCAL_PROTECTION};
use crate::keys::{self, Request, Right};
use crate::packet::{Packet, Source};
use crate::qp::Received;
use crate::receive::Posted;
use crate::trace::Event;
use crate::transfer::payload;
use crate::work::Work;

/// The responder's half of a QP.
#[derive(Clone, Debug, Default)]
pub(crate) struct Responder {
    /// PSN of the next request.
    pub(crate) expected: Psn,
    /// Messages completed.
    pub(crate) msn: u32,
    /// The message under way, and where its data goes.
    message: Option<Message>,
    /// A NAK asked for `expected`: until it comes, nothing is answered.
    nak_sent: bool,
    /// Answers not sent yet, in order.
    pub(crate) answers: VecDeque<Answer>,
    /// Original values of the last atomics, for their duplicates.
    originals: VecDeque<(Psn, u64)>,
    /// A fatal NAK is among `answers`: no request is taken any more.
    closed: bool,
    /// It took a request in RTR.
    established: bool,
    /// Number of the receive WQE of a message that an error cut off: it is to be flushed.
    pub(crate) unfinished: Option<u16>,
}

/// A message of several packets.
#[derive(Clone, Debug)]
enum Message {
    Write {
        /// What of the RDMA header's range is still to come.
        rest: Reth,
        /// Bytes that came.
        done: u64,
    },
    Send {
        posted: Posted,
        done: u64,
    },
}

/// An answer.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Ack {
        psn: Psn,
    },
    NotReady {
        psn: Psn,
    },
    Nak {
        psn: Psn,
        code: NakCode,
    },
    Original {
        psn: Psn,
        original: u64,
        repeats: bool,
    },
    /// READ data: `request` is what of it is not sent yet.
    Data {
        psn: Psn,
        request: Reth,
        begun: bool,
        repeats: bool,
    },
}

impl Answer {
    /// Whether it is the first answer to a READ or an atomic. The requester may have had one that `repeats` another, and have
    /// asked for more since: it holds none of the requests that the responder has promised to take at a time.
    fn holds_request(&self) -> bool {
        matches!(
            self,
            Self::Original { repeats: false, .. } | Self::Data { repeats: false, .. }
        )
    }
}

impl Responder {
    /// Whether one more READ or atomic may come: it has promised to take so many at a time (IBA 9.7, responder resources).
    fn has_room(&self, context: &Qpc) -> bool {
        let held = self.answers.iter().filter(|answer| answer.holds_request());
        held.count() < 1 << context.log_rra_max
    }

    pub(crate) fn has_answer(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Work under way is forgotten, but for the receive of a message that will not be finished.
    pub(crate) fn abandon(&mut self) {
        self.answers.clear();
        if let Some(Message::Send { posted, .. }) = self.message.take() {
            self.unfinished = Some(posted.counter);
        }
        self.originals.clear();
        self.closed = false;
    }

    fn advance(&mut self, packets: u32, ends: bool) {
        self.expected = self.expected.plus(packets);
        if ends {
            self.msn = self.msn.wrapping_add(1) & 0xff_ffff;
        }
    }
}

/// Why a request is not executed.
enum Refusal {
    /// The packet did not come after all.
    Missed,
    /// No receive is posted.
    NotReady,
    /// NAK, and the QP goes to ERR.
    Nak(NakCode),
    /// The same, and the receive WQE in use completes with an error.
    Receive(Posted, Failed, NakCode),
}

const INVALID: Refusal = Refusal::Nak(NakCode::InvalidRequest);

impl Work<'_> {
    /// Takes a packet that has arrived.
    pub(crate) fn take_packet(&mut self, packet: Packet) {
        let Some(qp) = self.objects.qps.get(self.qpn) else {
            return;
        };
        self.note(Event::Arrived {
            qpn: self.qpn,
            opcode: packet.opcode,
            psn: packet.psn.get(),
            bytes: packet.len() as u32,
        });
        // Packets for a QP that is not ready, from a port that it is not connected to, or of another
        // partition, are dropped (IBA 9.6).
        let ready = match qp.state {
            _ if qp.stuck => false,
            QpState::Rts => true,
            QpState::Rtr => packet.opcode.is_request(),
            _ => false,
        };
        if ready && qp.path.leads_to(packet.source) && qp.path.shares_partition(packet.pkey) {
            // What the peer did happens before what follows from its packet.
            let there = qp
                .path
                .remote_address()
                .filter(|_| packet.source != Source::Here);
            self.dma.follow(self.qpn, qp.context.remote_qpn, there);
            if packet.opcode.is_request() {
                self.take_request(&packet);
            } else if packet.opcode.is_response() {
                self.take_answer(&packet);
            }
            self.settle();
        }
        if self.buffers.len() < 64 {
            self.buffers.push(packet.payload);
        }
    }

    fn take_request(&mut self, packet: &Packet) {
        let Some(qp) = self.qp() else { return };
        let responder = &mut qp.responder;
        if responder.closed {
            return;
        }
        let ahead = packet.psn.since(responder.expected);
        if ahead < 0 && ahead.unsigned_abs() < packet.packets() {
            let rest = packet.without(ahead.unsigned_abs(), qp.mtu());
            return self.take_request(&rest);
        }
        if ahead < 0 {
            return self.take_duplicate(packet);
        }
        if ahead > 0 {
            // Once for each gap (IBA 9.7).
            let (known, psn) = (responder.nak_sent, responder.expected);
            responder.nak_sent = true;
            self.count(|set| &mut set.out_of_sequence);
            if !known {
                self.answer(Answer::Nak {
                    psn,
                    code: NakCode::PsnSequence,
                });
            }
            return;
        }
        responder.nak_sent = false;
        let refusal = match self.execute(packet) {
            Ok(()) => {
                self.note_request(packet.opcode);
                // READs and atomics are acknowledged by their data.
                if packet.ack_request && (packet.opcode.is_send() || packet.opcode.is_write()) {
                    let psn = packet.psn.plus(packet.packets() - 1);
                    self.answer(Answer::Ack { psn });
                }
                return;
            }
            Err(refusal) => refusal,
        };
        let psn = packet.psn;
        let Some(qp) = self.qp() else { return };
        match refusal {
            Refusal::Missed => {}
            Refusal::NotReady => {
                qp.responder.nak_sent = true;
                self.count(|set| &mut set.out_of_buffer);
                self.answer(Answer::NotReady { psn });
            }
            Refusal::Nak(code) => {
                qp.responder.closed = true;
                self.count_refusal(code);
                self.answer(Answer::Nak { psn, code });
            }
            Refusal::Receive(posted, failed, code) => {
                qp.responder.closed = true;
                self.count_receive_failure(failed);
                self.complete_receive(Received {
                    counter: posted.counter,
                    bytes: 0,
                    solicited: false,
                    immediate: 0,
                    outcome: Err(failed),
                });
                self.answer(Answer::Nak { psn, code });
            }
        }
    }

    /// Counts a request by its first packet. The first one that a QP in RTR takes tells software that its peer is there (IBA
    /// 11.6: communication established).
    fn note_request(&mut self, opcode: Opcode) {
        let Some(qp) = self.qp() else { return };
        let counts = qp.context.counter_set_id != 0;
        if qp.state == QpState::Rtr && !std::mem::replace(&mut qp.responder.established, true) {
            self.raise(EventType::CommunicationEstablished);
        }
        if !counts {
            return;
        }
        let begins = opcode.position().is_none_or(|at| at.is_first());
        if opcode.is_write() && begins {
            self.count(|set| &mut set.rx_write_requests);
        } else if opcode == Opcode::ReadRequest {
            self.count(|set| &mut set.rx_read_requests);
        } else if opcode.is_atomic() {
            self.count(|set| &mut set.rx_atomic_requests);
        }
    }

    /// Executes the request that is due.
    fn execute(&mut self, packet: &Packet) -> Result<(), Refusal> {
        match packet.opcode {
            opcode if opcode.is_write() => self.take_write(packet),
            opcode if opcode.is_send() => self.take_send(packet),
            Opcode::ReadRequest => self.take_read(packet),
            _ => self.take_atomic(packet),
        }
    }

    /// Length of a packet inside its message: full unless it is the last (IBA 9.7).
    fn check_length(&mut self, packet: &Packet) -> Result<u64, Refusal> {
        let mtu = self.qp().map_or(0, |qp| qp.mtu()) as usize;
        if packet.bulk.is_some() {
            return Ok(packet.len());
        }
        let len = packet.payload.len();
        let fits = match packet.opcode.position() {
            Some(position) if !position.is_last() => len == mtu,
            Some(position) if !position.is_first() => (1..=mtu).contains(&len),
            _ => len <= mtu,
        };
        if fits { Ok(len as u64) } else { Err(INVALID) }
    }

    fn take_write(&mut self, packet: &Packet) -> Result<(), Refusal> {
        let ends = packet.opcode.position().is_some_and(|at| at.is_last());
        let len = self.check_length(packet)?;
        let Some(qp) = self.qp() else { return Ok(()) };
        // What is under way stays there if the packet has to come again.
        let (rest, done) = match (&qp.responder.message, packet.extended.reth) {
            (None, Some(reth)) => {
                let allowed = qp.context.rwe && u64::from(reth.length) <= qp.max_message();
                if !allowed {
                    return Err(INVALID);
                }
                (reth, 0)
            }
            (Some(Message::Write { rest, done }), None) => (*rest, *done),
            _ => return Err(INVALID),
        };
        let remaining = u64::from(rest.length);
        if len > remaining || ends != (len == remaining) {
            return Err(INVALID);
        }
        // The whole of what is still to come: a key that is too short refuses the first packet already.
        let target = self.remote(&rest, remaining, Right::RemoteWrite)?;
        let posted = match packet.extended.immediate {
            Some(_) => Some(self.receive_for_message()?),
            None => None,
        };
        if let Some((bus_addr, access)) = target
            && len > 0
        {
            let written = match packet.bulk {
                None => self.dma.write(access, bus_addr, &packet.payload),
                Some(bulk) => {
                    let from = (bulk.access, bulk.source);
                    match self.dma.copy(from, (access, bus_addr), len) {
                        // The sender's memory is gone since: the packet never left, and is missed as one that was lost.
                        Err(CopyFault::From(_)) => return Err(Refusal::Missed),
                        Err(CopyFault::To(fault)) => Err(fault),
                        Ok(()) => {
                            self.stats.bytes_read += len;
                            Ok(())
                        }
                    }
                }
            };
            if let Err(fault) = written {
                self.note_fault(keys::object_of(rest.key), &fault);
                return Err(Refusal::Nak(NakCode::RemoteOperation));
            }
            self.stats.bytes_written += len;
        }
        let Some(qp) = self.qp() else { return Ok(()) };
        qp.responder.message = (!ends).then_some(Message::Write {
            rest: Reth {
                address: rest.address.wrapping_add(len),
                length: (remaining - len) as u32,
                ..rest
            },
            done: done + len,
        });
        qp.responder.advance(packet.packets(), ends);
        if let (Some(posted), Some(immediate)) = (posted, packet.extended.immediate) {
            self.complete_receive(Received {
                counter: posted.counter,
                bytes: done + len,
                solicited: packet.solicited,
                immediate: immediate.immediate,
                outcome: Ok(CqeOpcode::ResponderWriteImmediate),
            });
        }
        Ok(())
    }

    fn receive_for_message(&mut self) -> Result<Posted, Refusal> {
        match self.take_receive() {
            Ok(Some(posted)) => Ok(posted),
            Ok(None) => Err(Refusal::NotReady),
            Err((posted, failed)) => {
                Err(Refusal::Receive(posted, failed, NakCode::RemoteOperation))
            }
        }
    }

    fn take_send(&mut self, packet: &Packet) -> Result<(), Refusal> {
        let (begins, ends) = packet
            .opcode
            .position()
            .map_or((true, true), |at| (at.is_first(), at.is_last()));
        let len = self.check_length(packet)?;
        let Some(qp) = self.qp() else { return Ok(()) };
        let max_message = qp.max_message();
        let (posted, done) = match (begins, qp.responder.message.take()) {
            (true, None) => (self.receive_for_message()?, 0),
            (false, Some(Message::Send { posted, done })) => (posted, done),
            (_, under_way) => {
                if let Some(qp) = self.qp() {
                    qp.responder.message = under_way;
                }
                return Err(INVALID);
            }
        };
        let room: u64 = posted.pieces.iter().map(|piece| piece.len()).sum();
        if done + len > room || done + len > max_message {
            return Err(Refusal::Receive(
                posted,
                LOCAL_LENGTH,
                NakCode::InvalidRequest,
            ));
        }
        if self
            .scatter_receive(&posted, done, &packet.payload)
            .is_err()
        {
            return Err(Refusal::Receive(
                posted,
                LOCAL_PROTECTION,
                NakCode::RemoteOperation,
            ));
        }
        if let Some(invalidate) = packet.extended.invalidate
            && !self.invalidate(invalidate.key)
        {
            return Err(Refusal::Receive(
                posted,
                LOCAL_PROTECTION,
                NakCode::RemoteAccess,
            ));
        }
        let Some(qp) = self.qp() else { return Ok(()) };
        qp.responder.advance(1, ends);
        if !ends {
            qp.responder.message = Some(Message::Send {
                posted,
                done: done + len,
            });
            return Ok(());
        }
        let (opcode, immediate) = match (packet.extended.immediate, packet.extended.invalidate) {
            (Some(data), _) => (CqeOpcode::ResponderSendImmediate, data.immediate),
            (_, Some(key)) => (CqeOpcode::ResponderSendInvalidate, key.key),
            _ => (CqeOpcode::ResponderSend, 0),
        };
        self.complete_receive(Received {
            counter: posted.counter,
            bytes: done + len,
            solicited: packet.solicited,
            immediate,
            outcome: Ok(opcode),
        });
        Ok(())
    }

    /// Invalidates a key that a send names: nobody can use it any more. False if the QP's PD has no such key. That hardware
    /// takes keys of plain registrations is assumed.
    fn invalidate(&mut self, key: u32) -> bool {
        let pd = self.qp().map_or(0, |qp| qp.context.pd);
        match self.objects.mkeys.get_mut(key >> 8) {
            Some(found) if found.variant == key as u8 && found.pd == pd => {
                found.invalidated = true;
                true
            }
            _ => false,
        }
    }

    /// Bus address and ordering of remote memory; `None` for a message of 0 bytes, whose key is not looked at (IBA
    /// 9.7).
    pub(crate) fn remote_target(
        &mut self,
        range: &Reth,
        len: u64,
        right: Right,
    ) -> Result<Option<(u64, DmaAccess)>, NakCode> {
        if len == 0 {
            return Ok(None);
        }
        let request = Request {
            key: range.key,
            pd: self.qp().map_or(0, |qp| qp.context.pd),
            addr: range.address,
            len,
            right,
        };
        match keys::translate(&self.objects.mkeys, request) {
            Ok(target) => Ok(Some((
                target.bus_addr,
                payload(self.qpn, target.relaxed_ordering),
            ))),
            Err(fault) => {
                self.note_key(None, range.key, fault);
                Err(NakCode::RemoteAccess)
            }
        }
    }

    fn remote(
        &mut self,
        range: &Reth,
        len: u64,
        right: Right,
    ) -> Result<Option<(u64, DmaAccess)>, Refusal> {
        self.remote_target(range, len, right).map_err(Refusal::Nak)
    }

    fn take_read(&mut self, packet: &Packet) -> Result<(), Refusal> {
        let request = packet.extended.reth.unwrap_or_default();
        let Some(qp) = self.qp() else { return Ok(()) };
        let allowed = qp.context.rre
            && u64::from(request.length) <= qp.max_message()
            && qp.responder.message.is_none()
            && qp.responder.has_room(&qp.context);
        let mtu = qp.mtu();
        if !allowed {
            return Err(INVALID);
        }
        self.remote(&request, request.length.into(), Right::RemoteRead)?;
        let count = packets(request.length, mtu);
        if let Some(qp) = self.qp() {
            qp.responder.advance(count, true);
        }
        self.answer(Answer::Data {
            psn: packet.psn,
            request,
            begun: false,
            repeats: false,
        });
        Ok(())
    }

    fn take_atomic(&mut self, packet: &Packet) -> Result<(), Refusal> {
        let plain = packet.extended.atomic.unwrap_or_default();
        let masked = packet.extended.masked_atomic.unwrap_or_default();
        let (address, key, size) = match packet.opcode {
            Opcode::CompareSwap | Opcode::FetchAdd => (plain.address, plain.key, 8),
            _ => (masked.address, masked.key, masked.length),
        };
        let Some(qp) = self.qp() else { return Ok(()) };
        // Of the modes that the transitions take, one has atomics of fewer than 8 bytes.
        let sized = size == 8 || qp.context.atomic_mode == AtomicMode::UpTo8;
        let allowed = qp.context.rae
            && sized
            && qp.responder.message.is_none()
            && qp.responder.has_room(&qp.context);
        let keep = 1 << qp.context.log_rra_max;
        // Naturally aligned (IBA 9.4).
        if !allowed || !matches!(size, 4 | 8) || address % u64::from(size) != 0 {
            return Err(INVALID);
        }
        let range = Reth {
            address,
            key,
            length: size,
        };
        let Some((bus_addr, access)) = self.remote(&range, size.into(), Right::RemoteAtomic)?
        else {
            return Err(INVALID);
        };
        let failed = |work: &mut Self, fault| {
            work.note_fault(keys::object_of(key), &fault);
            Err(Refusal::Nak(NakCode::RemoteOperation))
        };
        // In the byte order of the host (assumed: hosts here are little-endian). One step of the NIC, so that no atomic of another queue
        // comes between; and each of the two is a read-modify-write, which finds what the others left.
        let read = self.dma.atomic(access, bus_addr, size, RmwOp::Or, 0);
        let original = match read {
            Ok(original) => original,
            Err(fault) => return failed(self, fault),
        };
        let new = match packet.opcode {
            Opcode::CompareSwap if original == plain.compare => plain.swap_or_add,
            Opcode::CompareSwap => original,
            Opcode::FetchAdd => original.wrapping_add(plain.swap_or_add),
            Opcode::MaskedCompareSwap => masked_swapped(
                original,
                masked.swap_or_add,
                masked.compare,
                masked.swap_mask_or_boundary,
                masked.compare_mask,
            ),
            _ => masked_sum(original, masked.swap_or_add, masked.swap_mask_or_boundary),
        };
        let written = self.dma.atomic(access, bus_addr, size, RmwOp::Exch, new);
        if let Err(fault) = written {
            return failed(self, fault);
        }
        self.stats.bytes_written += u64::from(size);
        if let Some(qp) = self.qp() {
            qp.responder.advance(1, true);
            qp.responder.originals.push_back((packet.psn, original));
            while qp.responder.originals.len() > keep {
                qp.responder.originals.pop_front();
            }
        }
        self.answer(Answer::Original {
            psn: packet.psn,
            original,
            repeats: false,
        });
        Ok(())
    }

    /// A request that was executed before (IBA 9.7): WRITEs and sends are acknowledged again, READs executed again,
    /// atomics answered from memory.
    fn take_duplicate(&mut self, packet: &Packet) {
        self.stats.duplicates += 1;
        self.count(|set| &mut set.duplicate_request);
        let psn = packet.psn;
        let Some(qp) = self.qp() else { return };
        let mtu = qp.mtu();
        let responder = &mut qp.responder;
        if packet.opcode.is_atomic() {
            let known = responder.originals.iter().find(|(of, _)| *of == psn);
            if let Some((_, original)) = known.copied() {
                self.answer(Answer::Original {
                    psn,
                    original,
                    repeats: true,
                });
            }
        } else if packet.opcode == Opcode::ReadRequest {
            let request = packet.extended.reth.unwrap_or_default();
            let end = psn.plus(packets(request.length, mtu));
            if responder.expected.is_before(end) {
                return;
            }
            // The requester asks again for what is still to be sent. What nobody waits for any more is not among it.
            let before = responder.answers.len();
            responder.answers.retain(
                |answer| !matches!(answer, Answer::Data { psn: of, .. } if !of.is_before(psn)),
            );
            let repeats = responder.answers.len() == before;
            if self
                .remote_target(&request, request.length.into(), Right::RemoteRead)
                .is_ok()
            {
                self.answer(Answer::Data {
                    psn,
                    request,
                    begun: false,
                    repeats,
                });
            }
        } else if packet.ack_request {
            let psn = responder.expected.minus(1);
            self.answer(Answer::Ack { psn });
        }
    }
}
