//! Moving a message's data, one packet a step.
//!
//! Knows: local and remote memory of an operation, packets of at most one MTU, PSNs.
//! Must not know: how a WQE is read, or what follows its end.

use warpverbs_sim_bus::{DmaAccess, Fault, Purpose};
use warpverbs_wire::wqe::Opcode;

use crate::failure::{
    Failed, LOCAL_PROTECTION, LOCAL_QP_OPERATION, REMOTE_ACCESS, REMOTE_INVALID_REQUEST,
    REMOTE_OPERATION,
};
use crate::findings::FindingKind;
use crate::keys::{self, DUMP_FILL_MKEY, KeyFault, Request, Right};
use crate::objects::ObjectId;
use crate::qp::{Operation, Piece, Slot, Task, psn_after};
use crate::requester::finished;
use crate::responder::{self, Admitted, Refusal, RemoteRequest};
use crate::work::Work;

impl Work<'_> {
    /// Moves one packet.
    pub(crate) fn transfer(&mut self, mut operation: Operation) {
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
                let access = payload(self.qpn, target.relaxed_ordering);
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
                let access = payload(self.qpn, target.relaxed_ordering);
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

    pub(crate) fn admit(&self, operation: &Operation) -> Result<Admitted, Refusal> {
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

    /// Checks all local memory of a WQE before its first packet: nothing is moved if any of it is refused (that hardware
    /// looks ahead so far is assumed).
    pub(crate) fn check_local(&mut self, operation: &Operation) -> Result<(), Failed> {
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
            Ok(target) => Ok(Some((
                target.bus_addr,
                payload(self.qpn, target.relaxed_ordering),
            ))),
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

fn payload(qpn: u32, relaxed_ordering: bool) -> DmaAccess {
    DmaAccess {
        relaxed_ordering,
        ..DmaAccess::new(Purpose::Payload, qpn)
    }
}

fn local_right(opcode: Opcode) -> Right {
    match opcode {
        Opcode::RdmaRead => Right::LocalWrite,
        _ => Right::LocalRead,
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
