//! Sending: an operation's packets, and its work that needs none.
//!
//! Knows: what each packet of a message carries (IBA 9.4, 9.5).
//! Must not know: windows and retries (`requester`), or what answers say (`answer`).

use warpverbs_wire::roce::{
    AtomicEth, Extended, Ieth, ImmDt, MaskedAtomicEth, Message, Opcode, Reth, Segments,
};
use warpverbs_wire::wqe::{self, Atomic, Wait};

use crate::failure::{Failed, LOCAL_QP_OPERATION};
use crate::findings::{FindingKind, one_line};
use crate::packet::{Bulk, Packet, Source};
use crate::qp::{Done, Failure, Outcome, Slot};
use crate::requester::{Operation, Progress};
use crate::work::Work;

/// So often a packet inside a message asks for an acknowledgement: well within the send window.
const ACK_EVERY: u32 = 32;

impl Work<'_> {
    /// Ends the WQE at the head of the queue.
    pub(crate) fn retire(&mut self) {
        let Some(operation) = self.qp().and_then(|qp| qp.requester.pop()) else {
            return;
        };
        self.compare(&operation);
        match operation.progress {
            Progress::Failed(failed) => {
                let slot = operation.slot;
                // The QP goes to ERR, where the completion waits for the doorbell record.
                self.enter_error(Some(Failure { slot, failed }));
            }
            _ => {
                let done = Done {
                    slot: operation.slot,
                    bytes: if operation.is_fetching() {
                        operation.len
                    } else {
                        0
                    },
                    outcome: Outcome::Success,
                };
                if !self.complete(done) {
                    // A QP whose CQ is in error cannot go on (IBA 10.2).
                    self.enter_error(None);
                }
            }
        }
    }

    /// A part of the work of a WQE that has no packets: a DUMP reads its data and drops it, a WAIT looks at its CQ.
    pub(crate) fn local_work(&mut self) {
        let Some((operation, mtu)) = self.qp().and_then(|qp| {
            let mtu = u64::from(qp.mtu());
            Some((qp.requester.operations.front()?.clone(), mtu))
        }) else {
            return;
        };
        if let Some(wait) = operation.wait {
            return self.look_at_cq(wait, operation.slot);
        }
        let bytes = mtu.min(operation.len - operation.arrived);
        let mut dropped = Vec::new();
        let result = self.gather(&operation, operation.arrived, bytes, &mut dropped);
        let arrived = operation.arrived + bytes;
        if let Some(head) = self.qp().and_then(|qp| qp.requester.operations.front_mut()) {
            head.arrived = arrived;
            head.progress = match result {
                Err(failed) => Progress::Failed(failed),
                Ok(()) if arrived == head.len => Progress::Done,
                Ok(()) => Progress::Waiting,
            };
        }
    }

    /// Ends the WAIT at the head of the queue if its CQ has got so far; else the CQ will wake it.
    fn look_at_cq(&mut self, wait: Wait, slot: Slot) {
        let uid = self.qp().map(|qp| qp.uid);
        let progress = match self.objects.cqs.get_mut(wait.cqn) {
            Some(cq) if Some(cq.uid) == uid => {
                if cq.has_produced(wait.index) {
                    Progress::Done
                } else {
                    cq.wake(self.qpn);
                    Progress::Held
                }
            }
            // No CQ of the QP's owner: that hardware looks, and how it fails, is assumed.
            _ => {
                let kind = FindingKind::WqeMalformed;
                self.findings.add(self.id(), Some(slot.index), kind, || {
                    format!("no CQ to wait for; {}", one_line(wait))
                });
                Progress::Failed(LOCAL_QP_OPERATION)
            }
        };
        if let Some(head) = self.qp().and_then(|qp| qp.requester.operations.front_mut()) {
            head.progress = progress;
        }
    }

    /// Sends the packet at the cursor.
    pub(crate) fn send(&mut self) {
        let Some(qp) = self.objects.qps.get_mut(self.qpn) else {
            return;
        };
        let (at, index) = qp.requester.cursor;
        let (mtu, destination_qp) = (qp.mtu(), qp.context.remote_qpn);
        // Taken out for the length of the call, so that the rest of the NIC can be used meanwhile.
        let Some(slot) = qp.requester.operations.get_mut(at) else {
            return;
        };
        let operation = std::mem::replace(slot, slot.husk());
        let mut packet = Packet {
            source: Source::Here,
            opcode: Opcode::SendOnly,
            destination_qp,
            pkey: 0,
            psn: operation.first.plus(index),
            ack_request: false,
            solicited: false,
            extended: Extended::default(),
            payload: self.buffers.pop().unwrap_or_default(),
            bulk: None,
        };
        packet.payload.clear();
        let made = self.fill(&operation, index, mtu, &mut packet);
        let Some(qp) = self.objects.qps.get_mut(self.qpn) else {
            return;
        };
        if let Some(slot) = qp.requester.operations.get_mut(at) {
            *slot = operation;
        }
        match made {
            Ok(upto) => {
                qp.requester.advance(upto);
                qp.requester.arm(self.time.now(), &qp.context);
                self.emit_packet(packet);
            }
            Err(failed) => {
                if let Some(operation) = qp.requester.operations.get_mut(at) {
                    operation.progress = Progress::Failed(failed);
                }
            }
        }
    }

    /// Makes packet `index` of an operation, and says up to which packet that sends it.
    fn fill(
        &mut self,
        operation: &Operation,
        index: u32,
        mtu: u32,
        packet: &mut Packet,
    ) -> Result<u32, Failed> {
        use wqe::Opcode as Wqe;
        let message = match operation.slot.opcode {
            Wqe::RdmaWrite => Message::Write,
            Wqe::RdmaWriteImmediate => Message::WriteImmediate,
            Wqe::Send => Message::Send,
            Wqe::SendImmediate => Message::SendImmediate,
            Wqe::SendInvalidate => Message::SendInvalidate,
            Wqe::RdmaRead => {
                // A request that is repeated asks for what has not arrived.
                let offset = u64::from(index) * u64::from(mtu);
                packet.opcode = Opcode::ReadRequest;
                packet.ack_request = true;
                packet.extended.reth = Some(Reth {
                    address: operation.remote.address.wrapping_add(offset),
                    key: operation.remote.key,
                    length: operation.len.saturating_sub(offset) as u32,
                });
                return Ok(operation.packets);
            }
            _ => return atomic_request(operation, packet).map(|()| operation.packets),
        };
        let segment = Segments::new(operation.len as u32, mtu)
            .get(index)
            .ok_or(LOCAL_QP_OPERATION)?;
        packet.opcode = message.opcode(segment.position);
        packet.bulk = self.bulk(operation, index, mtu)?;
        if packet.bulk.is_none() {
            self.gather(
                operation,
                segment.offset.into(),
                segment.len.into(),
                &mut packet.payload,
            )?;
        }
        if let Some(headers) = packet.opcode.headers() {
            packet.extended.reth = headers.reth.then_some(Reth {
                address: operation.remote.address,
                key: operation.remote.key,
                length: operation.len as u32,
            });
            packet.extended.immediate = headers.immediate.then_some(ImmDt {
                immediate: operation.immediate,
            });
            packet.extended.invalidate = headers.invalidate.then_some(Ieth {
                key: operation.immediate,
            });
        }
        let upto = index + packet.packets();
        packet.ack_request = segment.position.is_last() || upto.is_multiple_of(ACK_EVERY);
        packet.solicited = operation.solicited && segment.position.is_last();
        Ok(upto)
    }

    /// The packets from `index` on that can go as one: in real time, inside the NIC, if nobody looks at each.
    fn bulk(
        &mut self,
        operation: &Operation,
        index: u32,
        mtu: u32,
    ) -> Result<Option<Bulk>, Failed> {
        use wqe::Opcode as Wqe;
        let opcode = operation.slot.opcode;
        if !self.time.is_real()
            || self.trace.is_some()
            || !matches!(opcode, Wqe::RdmaWrite | Wqe::RdmaWriteImmediate)
        {
            return Ok(None);
        }
        let Some(qp) = self.qp().filter(|qp| qp.path.loops_back) else {
            return Ok(None);
        };
        // The last packet stands alone, and one that asks for an acknowledgement ends those before it.
        let packets = (operation.packets.saturating_sub(index + 1))
            .min(ACK_EVERY - index % ACK_EVERY)
            .min(qp.requester.room_behind(operation.first.plus(index)));
        if packets < 2 {
            return Ok(None);
        }
        let len = u64::from(packets) * u64::from(mtu);
        let target = self.whole(operation, u64::from(index) * u64::from(mtu), len)?;
        Ok(target.map(|(source, access)| Bulk {
            packets,
            source,
            access,
            len,
        }))
    }
}

impl Operation {
    /// What stands in the queue while the operation itself is in use.
    fn husk(&self) -> Self {
        Self {
            pieces: Vec::new(),
            image: Vec::new(),
            ..*self
        }
    }
}

fn atomic_request(operation: &Operation, packet: &mut Packet) -> Result<(), Failed> {
    let (address, key) = (operation.remote.address, operation.remote.key);
    packet.ack_request = true;
    let masked = |length, swap_or_add, swap_mask_or_boundary, compare, compare_mask| {
        Some(MaskedAtomicEth {
            address,
            key,
            length,
            swap_or_add,
            swap_mask_or_boundary,
            compare,
            compare_mask,
        })
    };
    match operation.atomic.ok_or(LOCAL_QP_OPERATION)? {
        Atomic::Plain(operands) => {
            packet.opcode = match operation.slot.opcode {
                wqe::Opcode::AtomicCompareSwap => Opcode::CompareSwap,
                _ => Opcode::FetchAdd,
            };
            packet.extended.atomic = Some(AtomicEth {
                address,
                key,
                swap_or_add: operands.swap_or_add,
                compare: operands.compare,
            });
        }
        Atomic::CompareSwap4(of) => {
            packet.opcode = Opcode::MaskedCompareSwap;
            packet.extended.masked_atomic = masked(
                4,
                of.swap.into(),
                of.swap_mask.into(),
                of.compare.into(),
                of.compare_mask.into(),
            );
        }
        Atomic::CompareSwap8(of) => {
            packet.opcode = Opcode::MaskedCompareSwap;
            packet.extended.masked_atomic =
                masked(8, of.swap, of.swap_mask, of.compare, of.compare_mask);
        }
        Atomic::FetchAdd4(of) => {
            packet.opcode = Opcode::MaskedFetchAdd;
            packet.extended.masked_atomic = masked(4, of.add.into(), of.boundary.into(), 0, 0);
        }
        Atomic::FetchAdd8(of) => {
            packet.opcode = Opcode::MaskedFetchAdd;
            packet.extended.masked_atomic = masked(8, of.add, of.boundary, 0, 0);
        }
    }
    Ok(())
}
