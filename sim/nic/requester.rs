//! The requester: executes the send queue of a QP in RTS.
//!
//! Knows: what each opcode does, local protection, packets of at most one MTU, retries, and which error each failure is.
//! Must not know: how a completion is written, or what happens in ERR.

use warpverbs_sim_bus::{DmaAccess, Fault, Purpose};
use warpverbs_wire::cqe::{Syndrome, vendor_syndrome};
use warpverbs_wire::wqe::{Data, Opcode, Wqe};

use crate::findings::{FindingKind, one_line};
use crate::keys::{self, DUMP_FILL_MKEY, KeyFault, Request, Right};
use crate::objects::ObjectId;
use crate::qp::{Done, Failure, Operation, Outcome, Piece, Slot, Task, psn_after};
use crate::responder::{self, Admitted, Refusal, RemoteRequest};
use crate::work::{Fetched, Work};

/// Vendor syndrome of a local protection error: seen in a public report (93005204, hardware-facts).
const VENDOR_LOCAL_PROTECTION: u8 = 0x52;
/// Vendor syndrome of a local QP operation error: assumed.
const VENDOR_LOCAL_QP_OPERATION: u8 = 0x68;
/// Vendor syndromes of a local length and a remote operation error: assumed.
const VENDOR_UNKNOWN: u8 = 0;

/// An error that ends a WQE.
#[derive(Clone, Copy, Debug)]
struct Failed {
    syndrome: Syndrome,
    vendor: u8,
}

const LOCAL_QP_OPERATION: Failed = Failed {
    syndrome: Syndrome::LocalQpOperation,
    vendor: VENDOR_LOCAL_QP_OPERATION,
};
const LOCAL_LENGTH: Failed = Failed {
    syndrome: Syndrome::LocalLength,
    vendor: VENDOR_UNKNOWN,
};
const LOCAL_PROTECTION: Failed = Failed {
    syndrome: Syndrome::LocalProtection,
    vendor: VENDOR_LOCAL_PROTECTION,
};
const REMOTE_INVALID_REQUEST: Failed = Failed {
    syndrome: Syndrome::RemoteInvalidRequest,
    vendor: vendor_syndrome::REMOTE_INVALID_REQUEST,
};
const REMOTE_ACCESS: Failed = Failed {
    syndrome: Syndrome::RemoteAccess,
    vendor: vendor_syndrome::REMOTE_ACCESS,
};
const REMOTE_OPERATION: Failed = Failed {
    syndrome: Syndrome::RemoteOperation,
    vendor: VENDOR_UNKNOWN,
};
const RETRY_EXCEEDED: Failed = Failed {
    syndrome: Syndrome::TransportRetryExceeded,
    vendor: vendor_syndrome::RETRY_EXCEEDED,
};

impl Work<'_> {
    /// One step of a QP in RTS.
    pub(crate) fn send(&mut self) {
        let Some(qp) = self.qp() else { return };
        match std::mem::take(&mut qp.task) {
            Task::Idle if qp.indices.has_work() => self.begin(),
            Task::Idle => {}
            Task::Transfer(operation) => self.transfer(operation),
            Task::Retry {
                operation,
                steps,
                retries,
            } => self.retry(operation, steps, retries),
            Task::Complete(done) => {
                if !self.complete(done)
                    && let Some(qp) = self.qp()
                {
                    // A QP whose CQ is in error cannot go on (IBA 10.9.1.2, "CQ error").
                    qp.enter_error(None);
                }
            }
        }
    }

    fn set_task(&mut self, task: Task) {
        if let Some(qp) = self.qp() {
            qp.task = task;
        }
    }

    /// Ends a WQE with an error: the QP goes to ERR, where the completion waits for the doorbell record.
    fn fail(&mut self, slot: Slot, failed: Failed) {
        if let Some(qp) = self.qp() {
            qp.enter_error(Some(Failure {
                slot,
                syndrome: failed.syndrome,
                vendor: failed.vendor,
            }));
        }
    }

    /// Fetches and checks the WQE at the consumer.
    fn begin(&mut self) {
        let fetched = match self.fetch() {
            Ok(fetched) => fetched,
            Err(fault) => {
                self.note_fault(self.id(), &fault);
                let slot = Slot {
                    index: self.qp().map_or(0, |qp| qp.indices.consumer),
                    wqebbs: 1,
                    opcode: Opcode::Nop,
                };
                return self.fail(slot, LOCAL_QP_OPERATION);
            }
        };
        if let Some((syndrome, vendor)) = self.faults.on_execute(self.qpn, fetched.slot.index) {
            let syndrome = Syndrome::from_code(syndrome);
            return self.fail(fetched.slot, Failed { syndrome, vendor });
        }
        match self.understand(&fetched) {
            Ok(task) => self.set_task(task),
            Err(failed) => self.fail(fetched.slot, failed),
        }
    }

    /// What a fetched WQE asks for.
    fn understand(&mut self, fetched: &Fetched) -> Result<Task, Failed> {
        if !self.is_due(fetched) {
            return Err(LOCAL_QP_OPERATION);
        }
        let slot = fetched.slot;
        let index = Some(slot.index);
        let Some((producer, max_message)) =
            self.qp().map(|qp| (qp.indices.producer, qp.max_message()))
        else {
            return Err(LOCAL_QP_OPERATION);
        };
        let wqe = match Wqe::decode(fetched.bytes()) {
            Ok(wqe) => wqe,
            Err(error) => {
                let control = fetched.control();
                self.findings
                    .add(self.id(), index, FindingKind::WqeMalformed, || {
                        format!("{error}; {}", one_line(control))
                    });
                return Err(LOCAL_QP_OPERATION);
            }
        };
        if slot.index + slot.wqebbs > producer {
            let kind = FindingKind::WqeBeyondProducer { producer };
            self.findings.add(self.id(), index, kind, || one_line(wqe));
            return Err(LOCAL_QP_OPERATION);
        }
        if let Some(byte) = leftover(&wqe) {
            let kind = FindingKind::WqeReserved { byte };
            self.findings.add(self.id(), index, kind, || one_line(wqe));
        }
        let opcode = wqe.control.opcode;
        if !matches!(
            opcode,
            Opcode::Nop | Opcode::RdmaWrite | Opcode::RdmaRead | Opcode::Dump
        ) {
            self.findings
                .add(self.id(), index, FindingKind::WqeMalformed, || {
                    format!(
                        "{opcode:?} needs a receive queue, which no QP here has; {}",
                        one_line(wqe)
                    )
                });
            return Err(LOCAL_QP_OPERATION);
        }
        let operation = Operation {
            slot,
            signalled: wqe.control.is_signalled(),
            remote: wqe.remote.unwrap_or_default(),
            pieces: wqe.data().map(piece).collect(),
            len: wqe.byte_count(),
            done: 0,
        };
        if operation.len > max_message {
            if wqe
                .data()
                .any(|data| matches!(data, Data::Pointer(pointer) if pointer.byte_count == 0))
            {
                self.findings
                    .add(self.id(), index, FindingKind::WqeMalformed, || {
                        format!("a byte count of 0 means 2^31 bytes; {}", one_line(wqe))
                    });
            }
            return Err(LOCAL_LENGTH);
        }
        self.check_local(&operation)?;
        Ok(match opcode {
            Opcode::Nop => finished(&operation),
            _ => Task::Transfer(operation),
        })
    }

    /// Checks all local memory of a WQE before its first packet: nothing is moved if any of it is refused (that hardware
    /// looks ahead so far is assumed).
    fn check_local(&mut self, operation: &Operation) -> Result<(), Failed> {
        let right = local_right(operation.slot.opcode);
        for piece in &operation.pieces {
            if let Piece::Memory { key, addr, len } = *piece {
                self.local(operation.slot, key, addr, len, right)?;
            }
        }
        Ok(())
    }

    /// Bus address and ordering of local memory; `None` if the key stands for no memory.
    fn local(
        &mut self,
        slot: Slot,
        key: u32,
        addr: u64,
        len: u64,
        right: Right,
    ) -> Result<Option<(u64, DmaAccess)>, Failed> {
        if key == DUMP_FILL_MKEY && slot.opcode == Opcode::Dump {
            return Ok(None);
        }
        let pd = self.qp().map_or(0, |qp| qp.context.pd);
        let request = Request {
            key,
            pd,
            addr,
            len,
            right,
        };
        match keys::translate(&self.objects.mkeys, request) {
            Ok(target) => Ok(Some((target.bus_addr, payload(target.relaxed_ordering)))),
            Err(fault) => {
                self.note_key(slot, key, fault);
                Err(LOCAL_PROTECTION)
            }
        }
    }

    fn note_key(&mut self, slot: Slot, key: u32, fault: KeyFault) {
        if fault == KeyFault::Deregistered {
            let kind = FindingKind::DeregisteredKey { key };
            self.findings
                .add(keys::object_of(key), Some(slot.index), kind, || {
                    format!("by QP {:#x}", self.qpn)
                });
        }
    }

    fn admit(&self, operation: &Operation) -> Result<Admitted, Refusal> {
        let qp = self.objects.qps.get(self.qpn).ok_or(Refusal::NoAnswer)?;
        let request = RemoteRequest {
            key: operation.remote.key,
            addr: operation.remote.address.wrapping_add(operation.done),
            remaining: operation.len - operation.done,
            len: operation.len,
            right: match operation.slot.opcode {
                Opcode::RdmaRead => Right::RemoteRead,
                _ => Right::RemoteWrite,
            },
        };
        responder::admit(self.objects, self.qpn, qp, request)
    }

    /// Moves one packet.
    fn transfer(&mut self, mut operation: Operation) {
        let slot = operation.slot;
        let Some(qp) = self.qp() else { return };
        let (mtu, retries) = (qp.mtu(), qp.context.retry_count);
        let bytes = mtu.min(operation.len - operation.done);
        let remote = if slot.opcode.has_remote() {
            match self.admit(&operation) {
                Ok(admitted) => Some(admitted),
                Err(Refusal::NoAnswer) => {
                    let steps = self.config.steps_per_retry;
                    return self.set_task(Task::Retry {
                        operation,
                        steps,
                        retries,
                    });
                }
                Err(Refusal::InvalidRequest { peer }) => {
                    return self.refused(slot, peer, REMOTE_INVALID_REQUEST);
                }
                Err(Refusal::Access { peer, fault }) => {
                    self.note_key(slot, operation.remote.key, fault);
                    return self.refused(slot, peer, REMOTE_ACCESS);
                }
            }
        } else {
            None
        };
        if let Err(stop) = self.move_packet(&operation, remote, bytes) {
            return match stop {
                Stop::Local(failed) => self.fail(slot, failed),
                Stop::Remote(peer) => self.refused(slot, peer, REMOTE_OPERATION),
            };
        }
        operation.done += bytes;
        if operation.done < operation.len {
            return self.set_task(Task::Transfer(operation));
        }
        if let Some(Admitted { peer, .. }) = remote {
            self.advance_psns(peer, operation.len);
        }
        self.set_task(finished(&operation));
    }

    /// Moves `bytes` from `operation.done` on.
    fn move_packet(
        &mut self,
        operation: &Operation,
        remote: Option<Admitted>,
        bytes: u64,
    ) -> Result<(), Stop> {
        let target =
            remote.and_then(|admitted| admitted.target.map(|target| (admitted.peer, target)));
        match (operation.slot.opcode, target) {
            (Opcode::RdmaWrite, Some((peer, target))) => {
                self.gather(operation, bytes)?;
                let access = payload(target.relaxed_ordering);
                match self.dma.write(access, target.bus_addr, self.packet) {
                    Ok(()) => {
                        self.stats.bytes_written += bytes;
                        Ok(())
                    }
                    Err(fault) => Err(self.remote_fault(operation, peer, &fault)),
                }
            }
            (Opcode::RdmaRead, Some((peer, target))) => {
                self.packet.clear();
                self.packet.resize(bytes as usize, 0);
                let access = payload(target.relaxed_ordering);
                match self.dma.read(access, target.bus_addr, self.packet) {
                    Ok(()) => {
                        self.stats.bytes_read += bytes;
                        self.scatter(operation, bytes)
                    }
                    Err(fault) => Err(self.remote_fault(operation, peer, &fault)),
                }
            }
            // A DUMP reads and drops.
            (Opcode::Dump, _) => self.gather(operation, bytes),
            // A message of 0 bytes.
            _ => Ok(()),
        }
    }

    fn remote_fault(&mut self, operation: &Operation, peer: u32, fault: &Fault) -> Stop {
        self.note_fault(keys::object_of(operation.remote.key), fault);
        Stop::Remote(peer)
    }

    /// Collects `bytes` of local data from `operation.done` on into the packet.
    fn gather(&mut self, operation: &Operation, bytes: u64) -> Result<(), Stop> {
        self.packet.clear();
        for span in spans(&operation.pieces, operation.done, bytes) {
            match *span.piece {
                Piece::Inline(ref data) => {
                    let end = span.offset.saturating_add(span.len) as usize;
                    let data = data.get(span.offset as usize..end).unwrap_or_default();
                    self.packet.extend_from_slice(data);
                }
                Piece::Memory { key, addr, .. } => {
                    let addr = addr.wrapping_add(span.offset);
                    let start = self.packet.len();
                    self.packet.resize(start + span.len as usize, 0);
                    let target =
                        self.local(operation.slot, key, addr, span.len, Right::LocalRead)?;
                    if let Some((bus_addr, access)) = target {
                        let room = self.packet.get_mut(start..).unwrap_or_default();
                        if let Err(fault) = self.dma.read(access, bus_addr, room) {
                            return Err(self.local_fault(keys::object_of(key), &fault));
                        }
                        self.stats.bytes_read += span.len;
                    }
                }
            }
        }
        Ok(())
    }

    /// Spreads the packet over local memory from `operation.done` on.
    fn scatter(&mut self, operation: &Operation, bytes: u64) -> Result<(), Stop> {
        let mut taken = 0;
        for span in spans(&operation.pieces, operation.done, bytes) {
            let Piece::Memory { key, addr, .. } = *span.piece else {
                // `Wqe::decode` refuses inline data in a READ.
                return Err(Stop::Local(LOCAL_QP_OPERATION));
            };
            let addr = addr.wrapping_add(span.offset);
            let target = self.local(operation.slot, key, addr, span.len, Right::LocalWrite)?;
            let end = taken + span.len as usize;
            if let Some((bus_addr, access)) = target {
                let data = self.packet.get(taken..end).unwrap_or_default();
                if let Err(fault) = self.dma.write(access, bus_addr, data) {
                    return Err(self.local_fault(keys::object_of(key), &fault));
                }
                self.stats.bytes_written += span.len;
            }
            taken = end;
        }
        Ok(())
    }

    fn local_fault(&mut self, object: ObjectId, fault: &Fault) -> Stop {
        self.note_fault(object, fault);
        Stop::Local(LOCAL_PROTECTION)
    }

    fn advance_psns(&mut self, peer: u32, len: u64) {
        let Some(qp) = self.qp() else { return };
        let packets = qp.packets(len);
        qp.send_psn = psn_after(qp.send_psn, packets);
        if let Some(peer) = self.objects.qps.get_mut(peer) {
            peer.receive_psn = psn_after(peer.receive_psn, packets);
        }
    }

    /// The peer refused: it goes to ERR itself (IBA 9.9.3.1: responder class C faults), then the requester.
    fn refused(&mut self, slot: Slot, peer: u32, failed: Failed) {
        if peer != self.qpn
            && let Some(responder) = self.objects.qps.get_mut(peer)
        {
            responder.enter_error(None);
            self.schedule.wake(peer);
        }
        self.fail(slot, failed);
    }

    /// Waits for an answer, and gives up when retries are used up. A timeout of 0, which on hardware never ends, ends
    /// like the others (assumed: a model that waits for ever helps nobody).
    fn retry(&mut self, operation: Operation, steps: u32, retries: u8) {
        let answered = !matches!(self.admit(&operation), Err(Refusal::NoAnswer));
        let full = self.config.steps_per_retry;
        let task = match (answered, steps.saturating_sub(1), retries) {
            (true, _, _) => Task::Transfer(operation),
            (false, 0, 0) => return self.fail(operation.slot, RETRY_EXCEEDED),
            (false, 0, retries) => Task::Retry {
                operation,
                steps: full,
                retries: retries - 1,
            },
            (false, steps, retries) => Task::Retry {
                operation,
                steps,
                retries,
            },
        };
        self.set_task(task);
    }
}

/// Why a packet could not be moved.
enum Stop {
    Local(Failed),
    /// The peer could not.
    Remote(u32),
}

impl From<Failed> for Stop {
    fn from(failed: Failed) -> Self {
        Self::Local(failed)
    }
}

fn finished(operation: &Operation) -> Task {
    Task::Complete(Done {
        slot: operation.slot,
        bytes: operation.len,
        outcome: Outcome::Success {
            signalled: operation.signalled,
        },
    })
}

fn payload(relaxed_ordering: bool) -> DmaAccess {
    DmaAccess {
        relaxed_ordering,
        ..DmaAccess::new(Purpose::Payload)
    }
}

fn local_right(opcode: Opcode) -> Right {
    match opcode {
        Opcode::RdmaRead => Right::LocalWrite,
        _ => Right::LocalRead,
    }
}

fn piece(data: Data<'_>) -> Piece {
    match data {
        Data::Pointer(pointer) => Piece::Memory {
            key: pointer.key,
            addr: pointer.address,
            len: pointer.len(),
        },
        Data::Inline(bytes) => Piece::Inline(bytes.to_vec()),
    }
}

/// The first byte of the control segment that is set although neither opcode nor QP uses it: hardware ignores it, and a
/// slot with old bytes looks like this.
fn leftover(wqe: &Wqe<'_>) -> Option<u16> {
    if wqe.control.signature != 0 {
        Some(8)
    } else if wqe.control.dci_stream_channel_id != 0 {
        Some(9)
    } else if wqe.control.immediate != 0 {
        Some(12)
    } else {
        None
    }
}

/// A part of one piece.
struct Span<'a> {
    piece: &'a Piece,
    offset: u64,
    len: u64,
}

/// The parts of `pieces` that hold bytes `start..start + len` of the message.
fn spans(pieces: &[Piece], start: u64, len: u64) -> impl Iterator<Item = Span<'_>> {
    let end = start + len;
    let mut at = 0;
    pieces.iter().filter_map(move |piece| {
        let (first, last) = (at, at + piece.len());
        at = last;
        let (from, to) = (start.max(first), end.min(last));
        (from < to).then(|| Span {
            piece,
            offset: from - first,
            len: to - from,
        })
    })
}
