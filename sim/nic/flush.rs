//! What a QP in ERR completes: the error that brought it there, then flushes, up to its doorbell record.
//!
//! Knows: the order and the vendor syndromes that were measured (docs/hardware-facts.md).
//! Must not know: why the QP is in ERR.

use warpverbs_wire::cqe::{Syndrome, vendor_syndrome};

use crate::qp::{Done, Outcome, Slot, Task};
use crate::work::Work;

impl Work<'_> {
    /// One step of a QP in ERR whose doorbell record has been read. Nothing completes that the record does not cover, the
    /// causing error included.
    pub(crate) fn flush(&mut self) {
        let Some(qp) = self.qp() else { return };
        if let Task::Complete(done) = std::mem::take(&mut qp.task) {
            // A lost CQE changes nothing here: the CQ's overrun was reported.
            self.complete(done);
            return;
        }
        if !qp.indices.has_work() {
            return;
        }
        if let Some(failure) = qp.cause.take() {
            qp.task = Task::Complete(Done {
                slot: failure.slot,
                bytes: 0,
                outcome: Outcome::Error {
                    syndrome: failure.syndrome,
                    vendor: failure.vendor,
                },
            });
            return;
        }
        let vendor = std::mem::replace(&mut qp.flush_vendor, vendor_syndrome::FLUSHED);
        let index = qp.indices.consumer;
        let unreadable = Slot {
            index,
            wqebbs: 1,
            opcode: Default::default(),
        };
        // The WQE says how many WQEBBs it has; one that is not due here counts as one.
        let slot = match self.fetch() {
            Ok(fetched) if self.is_due(&fetched) => fetched.slot,
            Ok(_) => unreadable,
            Err(fault) => {
                self.note_fault(self.id(), &fault);
                unreadable
            }
        };
        if let Some(qp) = self.qp() {
            qp.task = Task::Complete(Done {
                slot,
                bytes: 0,
                outcome: Outcome::Error {
                    syndrome: Syndrome::Flushed,
                    vendor,
                },
            });
        }
    }
}
