//! A QP in the hands of GPU threads, and its way back.
//!
//! Knows: what is written to the handle, and what can be read back from it.
//! Must not know: kernels.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use warpverbs_wire::abi::{self, FaultCause};
use warpverbs_wire::cqe::Syndrome;

use crate::error::{Error, Refused, Result};
use crate::resource::{QueuePair, hand_over};
use crate::teardown::{CloseReport, GRACE};

/// A QP that GPU threads may use. It cannot be modified until [`Self::unexport`] returns it. Clones are the same QP; a launch holds one.
#[derive(Clone, Debug)]
pub struct ExportedQp(Arc<QueuePair>);

/// How a QP stands, as GPU threads left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpStatus {
    /// It takes posts.
    Live,
    /// It was stopped.
    Stopped,
    /// It is at fault: later posts fail with the same fault.
    Fault(QpFault),
}

/// The first fault of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpFault {
    /// What kind of fault.
    pub cause: FaultCause,
    /// Syndrome of the error completion, if `cause` is [`FaultCause::Completion`] or
    /// [`FaultCause::CauseOverwritten`].
    pub syndrome: Syndrome,
    /// Vendor syndrome of the error completion.
    pub vendor_syndrome: u8,
    /// CQE opcode of the error completion.
    pub opcode: u8,
    /// Low 32 bits of the SQ index of the work request at fault.
    pub index: u32,
}

/// Where GPU threads have got to on a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpProgress {
    /// SQ index that the next post reserves.
    pub reserved: u64,
    /// SQ index below which all WQEs were handed to the NIC.
    pub handed_off: u64,
    /// SQ index below which all WQEs have completed.
    pub completed: u64,
    /// CQEs taken.
    pub cq_index: u64,
    /// Stop and fault.
    pub status: QpStatus,
}

impl QueuePair {
    /// Hands a connected QP to the GPU: writes its handle and returns what a launch needs. A QP that
    /// was stopped is live again; one at fault stays at fault until [`Self::reset`].
    #[allow(clippy::result_large_err, reason = "a refusal hands the QP back")]
    pub fn export(self) -> Result<ExportedQp, Refused<Self>> {
        match hand_over(std::slice::from_ref(&self)) {
            Ok(()) => Ok(ExportedQp::new(self)),
            Err(error) => Err(Refused { error, value: self }),
        }
    }

    /// Hands all of them to the GPU, or none. The handles of neighbours in a pool are written in one copy.
    pub fn export_all(qps: Vec<Self>) -> Result<Vec<ExportedQp>, Refused<Vec<Self>>> {
        match hand_over(&qps) {
            Ok(()) => Ok(qps.into_iter().map(ExportedQp::new).collect()),
            Err(error) => Err(Refused { error, value: qps }),
        }
    }
}

impl ExportedQp {
    fn new(qp: QueuePair) -> Self {
        tracing::debug!(qpn = qp.qpn(), "exported");
        Self(Arc::new(qp))
    }

    /// Address of the [`abi::QpHandle`], for a kernel's parameters.
    pub fn handle(&self) -> u64 {
        self.0.queues().handle_addr()
    }

    /// Address of the [`abi::RqHandle`] of its receive queue, if it has one.
    pub fn receive_handle(&self) -> Option<u64> {
        self.0.queues().receive_handle_addr()
    }

    /// QP number.
    pub fn qpn(&self) -> u32 {
        self.0.qpn()
    }

    /// The QP, to look at.
    pub fn qp(&self) -> &QueuePair {
        &self.0
    }

    /// Asks all GPU threads to leave the QP. They see it at their next look at the stop word (rule
    /// O10).
    pub fn stop(&self) -> Result<()> {
        tracing::debug!(qpn = self.qpn(), "stop");
        self.0.tell_stop()
    }

    /// Where GPU threads have got to. While a kernel runs, the words are each from some moment; the owner of
    /// an exclusive queue keeps its indices in registers and writes them when it ends.
    pub fn progress(&self) -> Result<QpProgress> {
        self.0
            .look(|queues| Ok(QpProgress::of(&queues.read_handle()?)))
    }

    /// Takes the QP back, live: work that is outstanding goes on. Busy while a launch or another clone holds it. Indices,
    /// and a fault, go on where they are at the next export; [`QueuePair::reset`] starts over.
    pub fn unexport(self) -> Result<QueuePair, Refused<Self>> {
        let users = Arc::strong_count(&self.0) - 1;
        let qp = match Arc::try_unwrap(self.0) {
            Ok(qp) => qp,
            Err(shared) => {
                let error = Error::Busy {
                    what: "exported QP",
                    users,
                };
                return Err(Refused {
                    error,
                    value: Self(shared),
                });
            }
        };
        match qp.take_back() {
            Ok(()) => {
                tracing::debug!(qpn = qp.qpn(), "unexported");
                Ok(qp)
            }
            Err(error) => Err(Refused {
                error,
                value: Self(Arc::new(qp)),
            }),
        }
    }

    /// Takes the QP down in stages, whoever holds it: later launches with it are refused, GPU threads are told to stop,
    /// kernels are waited for, the QP goes to error and what is outstanding retires, it is taken from the GPU, and
    /// destroyed. A refusal leaves it where it is; closing again goes on from there.
    pub fn close(self) -> Result<CloseReport, Refused<Self>> {
        self.close_within(GRACE)
    }

    /// As [`Self::close`], with the time that kernels and outstanding work may take.
    pub fn close_within(self, time: Duration) -> Result<CloseReport, Refused<Self>> {
        self.0
            .take_down(time)
            .map_err(|error| Refused { error, value: self })
    }
}

impl QpProgress {
    fn of(handle: &abi::QpHandle) -> Self {
        Self {
            reserved: handle.reserved.word,
            handed_off: handle.turn.word,
            completed: handle.completed.word,
            cq_index: handle.completed.second,
            status: QpStatus::of(abi::State(handle.state.word)),
        }
    }
}

impl QpStatus {
    /// What a state word says.
    pub fn of(state: abi::State) -> Self {
        if state.is_fault() {
            Self::Fault(QpFault {
                cause: state.cause(),
                syndrome: Syndrome::from_code(state.syndrome()),
                vendor_syndrome: state.vendor_syndrome(),
                opcode: state.opcode(),
                index: state.index(),
            })
        } else if state.is_stopped() {
            Self::Stopped
        } else {
            Self::Live
        }
    }
}

impl QpFault {
    /// What to do about it.
    pub(crate) fn cure(&self) -> &'static str {
        match self.cause {
            FaultCause::Completion => {
                "look the syndrome up; check keys, access flags and bounds; then reset the QP"
            }
            FaultCause::CauseOverwritten => {
                "run with a ring CQ, which keeps the first error completion"
            }
            FaultCause::Abandoned => "allow a longer deadline; then reset the QP",
            FaultCause::BadHandle => {
                "export the QP with the crate version that the module was built with"
            }
            FaultCause::Unknown(_) => "use a module and a crate of the same version",
        }
    }
}

impl fmt::Display for QpFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cause {
            FaultCause::Completion => write!(
                f,
                "error completion: {} (vendor syndrome {:#04x}, CQE opcode {:#x}) at SQ index {}",
                Name(self.syndrome),
                self.vendor_syndrome,
                self.opcode,
                self.index
            ),
            FaultCause::CauseOverwritten => write!(
                f,
                "error completion whose cause was overwritten by a flush: {} at SQ index {}",
                Name(self.syndrome),
                self.index
            ),
            FaultCause::Abandoned => write!(
                f,
                "the post at SQ index {} was abandoned before its hand-off",
                self.index
            ),
            FaultCause::BadHandle => f.write_str("the handle contradicts itself"),
            FaultCause::Unknown(code) => write!(
                f,
                "fault of unknown cause {code} at SQ index {}",
                self.index
            ),
        }
    }
}

/// A syndrome as IBA 11.6 names it, with its number.
struct Name(Syndrome);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            Syndrome::LocalLength => "local length error",
            Syndrome::LocalQpOperation => "local QP operation error",
            Syndrome::LocalProtection => "local protection error",
            Syndrome::Flushed => "work request flushed",
            Syndrome::MemoryWindowBind => "memory window bind error",
            Syndrome::BadResponse => "bad response",
            Syndrome::LocalAccess => "local access error",
            Syndrome::RemoteInvalidRequest => "remote invalid request",
            Syndrome::RemoteAccess => "remote access error",
            Syndrome::RemoteOperation => "remote operation error",
            Syndrome::TransportRetryExceeded => "transport retries exceeded",
            Syndrome::RnrRetryExceeded => "receiver-not-ready retries exceeded",
            Syndrome::RemoteAborted => "remote aborted",
            Syndrome::Unknown(_) => "unknown syndrome",
        };
        write!(f, "{name} ({:#04x})", self.0.code())
    }
}
