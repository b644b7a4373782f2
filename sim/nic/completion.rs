//! Completions: from a WQE that ended to a CQE in memory.
//!
//! Knows: what a CQE says, CQ overrun, and that the word with the owner bit is written last.
//! Must not know: why a WQE ended.

use warpverbs_sim_bus::{DmaAccess, Purpose};
use warpverbs_wire::cqe::{Cqe, CqeOpcode, ErrorCqe, Syndrome, Tail};
use warpverbs_wire::doorbell::{DBR_CQ_CONSUMER, cq_dbr_consumer};
use warpverbs_wire::eqe::{CqErrorSyndrome, Event as Raised};
use warpverbs_wire::prm::cqc::CqStatus;
use warpverbs_wire::prm::qpc::QpState;
use warpverbs_wire::wqe::CompletionMode;

use crate::findings::FindingKind;
use crate::objects::{ObjectId, ObjectKind};
use crate::qp::{Done, Outcome, Received};
use crate::trace::Event;
use crate::work::Work;

/// What both halves of a QP say in a CQE.
struct Entry {
    cqn: u32,
    /// The WQE, in messages.
    what: &'static str,
    index: u64,
    opcode: CqeOpcode,
    syndrome: u8,
    vendor: u8,
    solicited: bool,
    /// It raises an event whether or not the CQ is armed.
    event: bool,
    bytes: [u8; Cqe::LEN],
}

impl Work<'_> {
    /// Writes the CQE that a WQE deserves, if it deserves one, and moves the consumer past the WQE. False if the CQE was
    /// lost.
    pub(crate) fn complete(&mut self, done: Done) -> bool {
        let written = match done.outcome {
            // Unsignalled successes give no CQE (docs/hardware-facts.md).
            Outcome::Success
                if matches!(
                    done.slot.mode,
                    CompletionMode::OnError | CompletionMode::OnFirstError
                ) =>
            {
                true
            }
            Outcome::Silent => true,
            _ => self.write_send_cqe(done),
        };
        match done.outcome {
            Outcome::Success => {
                *self
                    .stats
                    .executed
                    .entry(done.slot.opcode.code())
                    .or_default() += 1;
            }
            Outcome::Error { syndrome, .. } if written => {
                if syndrome == Syndrome::Flushed {
                    self.stats.flush_cqes += 1;
                    self.count(|set| &mut set.req_cqe_flush_error);
                } else {
                    self.stats.error_cqes += 1;
                }
                self.count(|set| &mut set.req_cqe_error);
            }
            Outcome::Error { .. } | Outcome::Silent => {}
        }
        if let Some(qp) = self.qp() {
            let end = done.slot.index + done.slot.wqebbs;
            // In ERR the record may end inside a WQE; the consumer never passes the producer.
            qp.indices.consumer = end.min(qp.indices.producer.max(done.slot.index));
        }
        self.note(Event::Ended {
            qpn: self.qpn,
            index: done.slot.index,
        });
        written
    }

    fn write_send_cqe(&mut self, done: Done) -> bool {
        let Some((cqn, user_index)) = self
            .qp()
            .map(|qp| (qp.context.cqn_snd, qp.context.user_index))
        else {
            return false;
        };
        let bytes = self.emit(done, user_index);
        let (opcode, syndrome, vendor) = match done.outcome {
            Outcome::Success | Outcome::Silent => (CqeOpcode::Requester, 0, 0),
            Outcome::Error { syndrome, vendor } => {
                (CqeOpcode::RequesterError, syndrome.code(), vendor)
            }
        };
        self.write_cqe(Entry {
            cqn,
            what: "WQE",
            index: done.slot.index,
            opcode,
            syndrome,
            vendor,
            solicited: false,
            event: done.slot.mode == CompletionMode::AlwaysWithEvent,
            bytes,
        })
    }

    /// Writes the CQE of a receive WQE. The QP goes to ERR if the CQE was lost.
    pub(crate) fn complete_receive(&mut self, received: Received) {
        let Some((cqn, user_index)) = self
            .qp()
            .map(|qp| (qp.context.cqn_rcv, qp.context.user_index))
        else {
            return;
        };
        let bytes = match received.outcome {
            Ok(opcode) => Cqe {
                srqn_uidx: user_index,
                immediate: received.immediate,
                byte_count: received.bytes as u32,
                timestamp: self.clock,
                qpn: self.qpn,
                wqe_counter: received.counter,
                opcode,
                solicited: received.solicited,
                ..Cqe::default()
            }
            .emit(),
            Err(failed) => {
                if failed.syndrome == Syndrome::Flushed {
                    self.stats.flush_cqes += 1;
                    self.count(|set| &mut set.resp_cqe_flush_error);
                } else {
                    self.stats.error_cqes += 1;
                }
                self.count(|set| &mut set.resp_cqe_error);
                ErrorCqe {
                    srqn_uidx: user_index,
                    vendor_syndrome: failed.vendor,
                    syndrome: failed.syndrome,
                    qpn: self.qpn,
                    wqe_counter: received.counter,
                    opcode: CqeOpcode::ResponderError,
                    solicited: true,
                    ..ErrorCqe::default()
                }
                .emit()
            }
        };
        let written = self.write_cqe(Entry {
            cqn,
            what: "receive",
            index: received.counter.into(),
            opcode: received.outcome.unwrap_or(CqeOpcode::ResponderError),
            syndrome: received
                .outcome
                .map_or_else(|failed| failed.syndrome.code(), |_| 0),
            vendor: received.outcome.map_or_else(|failed| failed.vendor, |_| 0),
            solicited: received.solicited,
            event: false,
            bytes,
        });
        if !written && self.qp().is_some_and(|qp| qp.state != QpState::Err) {
            self.enter_error(None);
        }
    }

    fn write_cqe(&mut self, mut entry: Entry) -> bool {
        let cqn = entry.cqn;
        self.refresh_consumer(cqn);
        let id = ObjectId::new(ObjectKind::Cq, cqn);
        let Some(cq) = self.objects.cqs.get_mut(cqn) else {
            return false;
        };
        if self.faults.hides_cqe(cqn, cq.producer) {
            return true;
        }
        if cq.failed.is_some() {
            return false;
        }
        if cq.looks_full() {
            cq.failed = Some(CqStatus::Overflow);
            let index = Some(cq.producer);
            self.findings.add(id, index, FindingKind::CqOverrun, || {
                format!(
                    "for {} {:#x} of QP {:#x}",
                    entry.what, entry.index, self.qpn
                )
            });
            self.events.raise(Raised::CqError {
                cqn,
                syndrome: CqErrorSyndrome::Overrun,
            });
            self.count(|set| &mut set.cq_overflow);
            return false;
        }
        let owner = cq.owner() ^ self.faults.on_cqe(cqn, cq.producer);
        let slot = cq.slot();
        if let Some(last) = entry.bytes.last_mut() {
            *last = (*last & !1) | u8::from(owner);
        }
        // The whole CQE is one write on the bus; owner bit and opcode become visible last (rdma-core reads them first and
        // then the rest). That no other step of anyone comes in between is assumed.
        let (head, tail) = entry.bytes.split_at(Tail::OFFSET);
        let access = DmaAccess::new(Purpose::Cqe, self.qpn);
        let result = self
            .dma
            .write(access, slot, head)
            .and_then(|()| self.dma.write(access, slot + Tail::OFFSET as u64, tail));
        if let Err(fault) = result {
            self.note_fault(id, &fault);
            // As a full one, it takes no more.
            if let Some(cq) = self.objects.cqs.get_mut(cqn) {
                cq.failed = Some(CqStatus::WriteFailed);
            }
            self.events.raise(Raised::CqError {
                cqn,
                syndrome: CqErrorSyndrome::AccessViolation,
            });
            return false;
        }
        if let Some(cq) = self.objects.cqs.get_mut(cqn) {
            cq.producer += 1;
            let armed = cq.arming.complete(entry.solicited || entry.syndrome != 0);
            if armed || entry.event {
                self.events.raise(Raised::Completion { cqn });
            }
            for qpn in cq.take_waiting() {
                if let Some(qp) = self.objects.qps.get_mut(qpn) {
                    qp.requester.release();
                    self.schedule.wake(qpn);
                }
            }
        }
        self.stats.cqes += 1;
        self.note(Event::Completion {
            qpn: self.qpn,
            cqn,
            index: entry.index,
            opcode: entry.opcode,
            syndrome: entry.syndrome,
            vendor: entry.vendor,
        });
        true
    }

    /// Reads the consumer index of the CQ's doorbell record, if the CQ seems full without it.
    fn refresh_consumer(&mut self, cqn: u32) {
        let Some(record) = self
            .objects
            .cqs
            .get(cqn)
            .filter(|cq| cq.looks_full())
            .map(|cq| cq.dbr)
        else {
            return;
        };
        let id = ObjectId::new(ObjectKind::Cq, cqn);
        let mut word = [0; 4];
        let at = record + DBR_CQ_CONSUMER as u64;
        let access = DmaAccess::new(Purpose::Dbr, self.qpn);
        if let Err(fault) = self.dma.read(access, at, &mut word) {
            self.note_fault(id, &fault);
            return;
        }
        let value = cq_dbr_consumer(word);
        if let Some(cq) = self.objects.cqs.get_mut(cqn)
            && !cq.take_consumer(value)
        {
            let index = Some(cq.consumer);
            self.findings
                .add(id, index, FindingKind::CqConsumer { value }, String::new);
        }
    }

    fn emit(&self, done: Done, user_index: u32) -> [u8; Cqe::LEN] {
        let wqe_counter = done.slot.index as u16;
        match done.outcome {
            Outcome::Success | Outcome::Silent => Cqe {
                srqn_uidx: user_index,
                byte_count: done.bytes as u32,
                timestamp: self.clock,
                send_opcode: done.slot.opcode.code(),
                qpn: self.qpn,
                wqe_counter,
                opcode: CqeOpcode::Requester,
                ..Cqe::default()
            }
            .emit(),
            Outcome::Error { syndrome, vendor } => ErrorCqe {
                srqn_uidx: user_index,
                vendor_syndrome: vendor,
                syndrome,
                wqe_opcode: done.slot.opcode.code(),
                qpn: self.qpn,
                wqe_counter,
                opcode: CqeOpcode::RequesterError,
                // Error CQEs on record (…d3, …d2) have this bit set beside the owner bit (docs/hardware-facts.md).
                solicited: true,
                ..ErrorCqe::default()
            }
            .emit(),
        }
    }
}
