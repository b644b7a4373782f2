//! Fetching: how a WQE becomes an operation of the requester.
//!
//! Knows: what is checked before anything of a WQE is done.
//! Must not know: packets, or how a completion is written.

use warpverbs_sim_bus::{DmaAccess, Purpose};
use warpverbs_wire::cqe::Syndrome;
use warpverbs_wire::roce::{Psn, packets};
use warpverbs_wire::wqe::{Control, Data, FenceMode, Opcode, RESERVED_FLAGS, SOLICITED, Wqe};

use crate::failure::{Failed, LOCAL_LENGTH, LOCAL_QP_OPERATION};
use crate::findings::{FindingKind, one_line};
use crate::qp::{Piece, Slot, WQEBB_BYTES};
use crate::requester::{Fence, Operation, Progress};
use crate::work::{Fetched, Work};

impl Work<'_> {
    /// Fetches and checks the next WQE. One that cannot be executed waits for its turn to fail: those before it complete.
    pub(crate) fn fetch_next(&mut self) {
        let index = self.qp().map_or(0, |qp| qp.requester.fetched);
        let mut image = Vec::new();
        let operation = match self.fetch(index) {
            Err(fault) => {
                self.note_fault(self.id(), &fault);
                let slot = Slot {
                    index,
                    wqebbs: 1,
                    ..Slot::default()
                };
                failing(slot, LOCAL_QP_OPERATION)
            }
            Ok(fetched) => {
                if self.checks_wqes {
                    image.extend_from_slice(fetched.bytes());
                }
                let planted = self.faults.on_execute(self.qpn, index);
                match planted {
                    Some((syndrome, vendor)) => {
                        let syndrome = Syndrome::from_code(syndrome);
                        failing(fetched.slot, Failed { syndrome, vendor })
                    }
                    None => self
                        .understand(&fetched)
                        .unwrap_or_else(|failed| failing(fetched.slot, failed)),
                }
            }
        };
        if let Some(qp) = self.qp() {
            qp.requester.push(Operation { image, ..operation });
        }
    }

    /// Reads the WQE of an operation that ends once more: what is there now must be what was fetched. One that software
    /// overwrote too early shows so, and one that was stale when it was fetched, whatever its index.
    pub(crate) fn compare(&mut self, operation: &Operation) {
        let fetched = &operation.image;
        if fetched.is_empty() {
            return;
        }
        let index = operation.slot.index;
        let Some((ring, depth)) = self.qp().map(|qp| (qp.memory.ring, qp.indices.depth())) else {
            return;
        };
        let access = DmaAccess::new(Purpose::Wqe, self.qpn);
        for (block, before) in (index..).zip(fetched.chunks(WQEBB_BYTES as usize)) {
            let mut now = [0; WQEBB_BYTES as usize];
            let now = now.get_mut(..before.len()).unwrap_or_default();
            let at = ring + (block & (depth - 1)) * WQEBB_BYTES;
            if let Err(fault) = self.dma.read(access, at, now) {
                return self.note_fault(self.id(), &fault);
            }
            let differs = now
                .iter()
                .zip(before)
                .position(|(now, before)| now != before);
            if let Some(byte) = differs {
                let byte = (block - index) * WQEBB_BYTES + byte as u64;
                let kind = FindingKind::WqeChanged { byte: byte as u16 };
                return self.findings.add(self.id(), Some(index), kind, || {
                    let control = Control::parse(fetched).unwrap_or_default();
                    format!("fetched: {}; now: {now:02x?}", one_line(control))
                });
            }
        }
    }

    /// What a fetched WQE asks for.
    fn understand(&mut self, fetched: &Fetched) -> Result<Operation, Failed> {
        if !self.is_due(fetched) {
            return Err(LOCAL_QP_OPERATION);
        }
        let slot = fetched.slot;
        let index = Some(slot.index);
        let Some(qp) = self.qp() else {
            return Err(LOCAL_QP_OPERATION);
        };
        let (producer, max_message, mtu) = (qp.indices.producer, qp.max_message(), qp.mtu());
        let is_master = qp.context.cd_master;
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
        if let Some(byte) = leftover(&wqe, self.ignores_unused_immediates) {
            let kind = FindingKind::WqeReserved { byte };
            self.findings.add(self.id(), index, kind, || one_line(wqe));
        }
        let opcode = wqe.control.opcode;
        if opcode == Opcode::Wait && !is_master {
            // DOCA GPUNetIO sets the bit for the QPs that wait; that hardware insists on it is assumed.
            self.findings
                .add(self.id(), index, FindingKind::WqeMalformed, || {
                    format!("a wait on a QP without cd_master; {}", one_line(wqe))
                });
            return Err(LOCAL_QP_OPERATION);
        }
        let len = wqe.byte_count();
        if len > max_message {
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
        let operation = Operation {
            solicited: wqe.control.flags & SOLICITED != 0,
            fence: match wqe.control.fence_mode() {
                FenceMode::Fence | FenceMode::SmallAndFence => Fence::Fetching,
                FenceMode::StrongOrdering => Fence::All,
                // There are no local invalidations and registrations here for a small fence to wait for.
                FenceMode::None | FenceMode::InitiatorSmall | FenceMode::Unknown(_) => Fence::None,
            },
            remote: wqe.remote.unwrap_or_default(),
            immediate: wqe.control.immediate,
            atomic: wqe.atomic,
            wait: wqe.wait,
            pieces: wqe.data().map(piece).collect(),
            len,
            packets: match opcode {
                Opcode::Nop | Opcode::Dump | Opcode::Wait => 0,
                opcode if opcode.is_atomic() => 1,
                // `max_message` is at most 2^31.
                _ => packets(len as u32, mtu),
            },
            progress: match opcode {
                Opcode::Nop => Progress::Done,
                _ => Progress::Waiting,
            },
            ..blank(slot)
        };
        self.check_local(&operation)?;
        Ok(operation)
    }
}

fn blank(slot: Slot) -> Operation {
    Operation {
        slot,
        solicited: false,
        fence: Fence::None,
        remote: Default::default(),
        immediate: 0,
        atomic: None,
        wait: None,
        image: Vec::new(),
        pieces: Vec::new(),
        len: 0,
        first: Psn::default(),
        packets: 0,
        arrived: 0,
        progress: Progress::Done,
    }
}

fn failing(slot: Slot, failed: Failed) -> Operation {
    Operation {
        progress: Progress::Failed(failed),
        ..blank(slot)
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
fn leftover(wqe: &Wqe<'_>, any_immediate: bool) -> Option<u16> {
    let has_immediate = any_immediate
        || matches!(
            wqe.control.opcode,
            Opcode::RdmaWriteImmediate | Opcode::SendImmediate | Opcode::SendInvalidate
        );
    if wqe.control.signature != 0 {
        Some(8)
    } else if wqe.control.dci_stream_channel_id != 0 {
        Some(9)
    } else if wqe.control.flags & RESERVED_FLAGS != 0
        || matches!(wqe.control.fence_mode(), FenceMode::Unknown(_))
    {
        Some(11)
    } else if wqe.control.immediate != 0 && !has_immediate {
        Some(12)
    } else {
        None
    }
}
