//! What a QP in ERR completes: the error that brought it there, then flushes, up to its doorbell record.
//!
//! Knows: the order and the vendor syndromes that were measured (docs/hardware-facts.md).
//! Must not know: why the QP is in ERR.

use warpverbs_wire::cqe::{Syndrome, vendor_syndrome};
use warpverbs_wire::wqe::CompletionMode;

use crate::failure::Failed;
use crate::qp::{Done, Outcome, Received, Slot};
use crate::receive::ReceiveQueue;
use crate::work::Work;

impl Work<'_> {
    /// One step of a QP in ERR whose doorbell record has been read. Nothing completes that the record does not cover, the
    /// causing error included.
    pub(crate) fn flush(&mut self) {
        let Some(qp) = self.qp() else { return };
        if !qp.indices.has_work() {
            return self.flush_receive();
        }
        let done = match qp.cause.take() {
            Some(failure) => Done {
                slot: failure.slot,
                bytes: 0,
                outcome: Outcome::Error {
                    syndrome: failure.failed.syndrome,
                    vendor: failure.failed.vendor,
                },
            },
            None => self.flushed(),
        };
        // A lost CQE changes nothing here: the CQ's overrun was reported.
        self.complete(done);
    }

    fn flushed(&mut self) -> Done {
        let (index, vendor) = self
            .qp()
            .map(|qp| {
                let vendor = std::mem::replace(&mut qp.flush_vendor, vendor_syndrome::FLUSHED);
                (qp.indices.consumer, vendor)
            })
            .unwrap_or_default();
        let unreadable = Slot {
            index,
            wqebbs: 1,
            ..Slot::default()
        };
        // The WQE says how many WQEBBs it has; one that is not due here counts as one.
        let mut silent = false;
        let slot = match self.fetch(index) {
            Ok(fetched) if self.is_due(&fetched) => {
                silent = fetched.slot.mode == CompletionMode::OnFirstError;
                fetched.slot
            }
            Ok(_) => unreadable,
            Err(fault) => {
                self.note_fault(self.id(), &fault);
                unreadable
            }
        };
        let outcome = if silent {
            Outcome::Silent
        } else {
            Outcome::Error {
                syndrome: Syndrome::Flushed,
                vendor,
            }
        };
        Done {
            slot,
            bytes: 0,
            outcome,
        }
    }

    /// Receives that were posted are flushed after sends (the order between the two queues is assumed).
    fn flush_receive(&mut self) {
        if let Some(counter) = self.qp().and_then(|qp| qp.responder.unfinished.take()) {
            return self.flushed_receive(counter);
        }
        let is_due = |queue: &ReceiveQueue| queue.dbr_due;
        if self
            .qp()
            .and_then(|qp| qp.receives.as_ref())
            .is_some_and(is_due)
        {
            return self.read_receive_dbr();
        }
        let Some(queue) = self.qp().and_then(|qp| qp.receives.as_mut()) else {
            return;
        };
        let counter = queue.consumer as u16;
        queue.consumer += 1;
        self.flushed_receive(counter);
    }

    fn flushed_receive(&mut self, counter: u16) {
        self.complete_receive(Received {
            counter,
            bytes: 0,
            solicited: false,
            immediate: 0,
            outcome: Err(Failed {
                syndrome: Syndrome::Flushed,
                vendor: vendor_syndrome::FLUSHED,
            }),
        });
    }
}
