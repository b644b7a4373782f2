//! Local memory of a message: collecting its bytes, and spreading them.
//!
//! Knows: pieces of a WQE, local keys.
//! Must not know: packets, or what follows an error.

use warpverbs_sim_bus::{DmaAccess, Fault, Purpose};
use warpverbs_wire::wqe::Opcode;

use crate::failure::{Failed, LOCAL_PROTECTION, LOCAL_QP_OPERATION};
use crate::findings::FindingKind;
use crate::keys::{self, DUMP_FILL_MKEY, KeyFault, NULL_MKEY, Request, Right};
use crate::objects::ObjectId;
use crate::qp::{Piece, Slot};
use crate::receive::Posted;
use crate::requester::Operation;
use crate::work::Work;

impl Work<'_> {
    /// Adds bytes `start..start + len` of an operation's local data to `data`.
    pub(crate) fn gather(
        &mut self,
        operation: &Operation,
        start: u64,
        len: u64,
        data: &mut Vec<u8>,
    ) -> Result<(), Failed> {
        for span in spans(&operation.pieces, start, len) {
            match *span.piece {
                Piece::Inline(ref bytes) => {
                    let end = span.offset.saturating_add(span.len) as usize;
                    let bytes = bytes.get(span.offset as usize..end).unwrap_or_default();
                    data.extend_from_slice(bytes);
                }
                Piece::Memory { key, addr, .. } => {
                    let addr = addr.wrapping_add(span.offset);
                    let begin = data.len();
                    data.resize(begin + span.len as usize, 0);
                    let slot = Some(operation.slot);
                    let pd = self.pd();
                    let target = self.local(slot, pd, key, addr, span.len, Right::LocalRead)?;
                    if let Some((bus_addr, access)) = target {
                        let room = data.get_mut(begin..).unwrap_or_default();
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

    /// Bus address and ordering of bytes `start..start + len` of an operation's local data, if they lie together in memory.
    pub(crate) fn whole(
        &mut self,
        operation: &Operation,
        start: u64,
        len: u64,
    ) -> Result<Option<(u64, DmaAccess)>, Failed> {
        let mut found = spans(&operation.pieces, start, len);
        let (Some(span), None) = (found.next(), found.next()) else {
            return Ok(None);
        };
        let Piece::Memory { key, addr, .. } = *span.piece else {
            return Ok(None);
        };
        let addr = addr.wrapping_add(span.offset);
        let pd = self.pd();
        self.local(Some(operation.slot), pd, key, addr, len, Right::LocalRead)
    }

    /// Spreads `data` over an operation's local memory from byte `start` on.
    pub(crate) fn scatter(
        &mut self,
        operation: &Operation,
        start: u64,
        data: &[u8],
    ) -> Result<(), Failed> {
        let pd = self.pd();
        self.spread(Some(operation.slot), pd, &operation.pieces, start, data)
    }

    /// Spreads `data` over a receive WQE's memory from byte `start` on.
    pub(crate) fn scatter_receive(
        &mut self,
        posted: &Posted,
        start: u64,
        data: &[u8],
    ) -> Result<(), Failed> {
        self.spread(None, posted.pd, &posted.pieces, start, data)
    }

    fn spread(
        &mut self,
        slot: Option<Slot>,
        pd: u32,
        pieces: &[Piece],
        start: u64,
        data: &[u8],
    ) -> Result<(), Failed> {
        let mut taken = 0;
        for span in spans(pieces, start, data.len() as u64) {
            let Piece::Memory { key, addr, .. } = *span.piece else {
                // Inline data is refused where data comes in (`Wqe::decode`, `Receive::decode`).
                return Err(LOCAL_QP_OPERATION);
            };
            let addr = addr.wrapping_add(span.offset);
            let target = self.local(slot, pd, key, addr, span.len, Right::LocalWrite)?;
            let end = taken + span.len as usize;
            if let Some((bus_addr, access)) = target {
                let part = data.get(taken..end).unwrap_or_default();
                if let Err(fault) = self.dma.write(access, bus_addr, part) {
                    return Err(self.local_fault(keys::object_of(key), &fault));
                }
                self.stats.bytes_written += span.len;
            }
            taken = end;
        }
        Ok(())
    }

    fn pd(&mut self) -> u32 {
        self.qp().map_or(0, |qp| qp.context.pd)
    }

    fn local_fault(&mut self, object: ObjectId, fault: &Fault) -> Failed {
        self.note_fault(object, fault);
        LOCAL_PROTECTION
    }

    /// Checks all local memory of a WQE before its first packet: nothing is moved if any of it is refused (that hardware
    /// looks ahead so far is assumed).
    pub(crate) fn check_local(&mut self, operation: &Operation) -> Result<(), Failed> {
        let right = if operation.is_fetching() {
            Right::LocalWrite
        } else {
            Right::LocalRead
        };
        for piece in &operation.pieces {
            if let Piece::Memory { key, addr, len } = *piece {
                let pd = self.pd();
                self.local(Some(operation.slot), pd, key, addr, len, right)?;
            }
        }
        Ok(())
    }

    /// Bus address and ordering of local memory; `None` if the key stands for no memory.
    fn local(
        &mut self,
        slot: Option<Slot>,
        pd: u32,
        key: u32,
        addr: u64,
        len: u64,
        right: Right,
    ) -> Result<Option<(u64, DmaAccess)>, Failed> {
        if key == DUMP_FILL_MKEY && slot.is_some_and(|slot| slot.opcode == Opcode::Dump) {
            return Ok(None);
        }
        // Reads through it give zeroes, and writes go nowhere (`null_mkey`).
        if key == NULL_MKEY {
            return Ok(None);
        }
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

    pub(crate) fn note_key(&mut self, slot: Option<Slot>, key: u32, fault: KeyFault) {
        if fault == KeyFault::Deregistered {
            let kind = FindingKind::DeregisteredKey { key };
            let index = slot.map(|slot| slot.index);
            self.findings.add(keys::object_of(key), index, kind, || {
                format!("by QP {:#x}", self.qpn)
            });
        }
    }
}

/// An access to message data.
pub(crate) fn payload(qpn: u32, relaxed_ordering: bool) -> DmaAccess {
    DmaAccess {
        relaxed_ordering,
        ..DmaAccess::new(Purpose::Payload, qpn)
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
