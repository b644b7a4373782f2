//! The requester: executes the send queue of a QP in RTS.
//!
//! Knows: how a WQE becomes an operation, and when to retry or to give up.
//! Must not know: how data moves (`transfer`), how a completion is written, or what happens in ERR.

use warpverbs_wire::cqe::Syndrome;
use warpverbs_wire::wqe::{Data, Opcode, Wqe};

use crate::failure::{Failed, LOCAL_LENGTH, LOCAL_QP_OPERATION, RETRY_EXCEEDED};
use crate::findings::{FindingKind, one_line};
use crate::qp::{Done, Failure, Operation, Outcome, Piece, Slot, Task};
use crate::responder::Refusal;
use crate::work::{Fetched, Work};

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
                    // A QP whose CQ is in error cannot go on (IBA 10.2.6).
                    qp.enter_error(None);
                }
            }
        }
    }

    pub(crate) fn set_task(&mut self, task: Task) {
        if let Some(qp) = self.qp() {
            qp.task = task;
        }
    }

    /// Ends a WQE with an error: the QP goes to ERR, where the completion waits for the doorbell record.
    pub(crate) fn fail(&mut self, slot: Slot, failed: Failed) {
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

    /// The peer refused: it goes to ERR itself (IBA 9.9.3: responder class C faults), then the requester.
    pub(crate) fn refused(&mut self, slot: Slot, peer: u32, failed: Failed) {
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

/// The completion of an operation that succeeded.
pub(crate) fn finished(operation: &Operation) -> Task {
    Task::Complete(Done {
        slot: operation.slot,
        bytes: operation.len,
        outcome: Outcome::Success {
            signalled: operation.signalled,
        },
    })
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
