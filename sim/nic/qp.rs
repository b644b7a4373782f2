//! Queue pairs: context and state, and which part of one has something to do.
//!
//! Knows: the state machine's consequences for the queues.
//! Must not know: mailboxes, memory, CQs, or what a packet says.

use warpverbs_wire::cqe::{CqeOpcode, Syndrome, vendor_syndrome};
use warpverbs_wire::prm::qpc::{QpState, Qpc, SendDbrMode};
use warpverbs_wire::roce::Psn;
use warpverbs_wire::wqe::{CompletionMode, Opcode};

use crate::failure::Failed;
use crate::findings::Told;
use crate::objects::ObjectId;
use crate::packet::Path;
use crate::receive::ReceiveQueue;
use crate::requester::Requester;
use crate::responder::Responder;
use crate::sq::SendIndices;

/// Bytes of a send queue slot.
pub(crate) const WQEBB_BYTES: u64 = warpverbs_wire::wqe::WQEBB as u64;
/// Bytes of a doorbell record.
pub(crate) const DBR_BYTES: u64 = warpverbs_wire::doorbell::DBR as u64;

/// A reliable connected queue pair.
#[derive(Clone, Debug)]
pub(crate) struct Qp {
    pub(crate) uid: u16,
    /// The context as commands set it; state, PSNs and counters are the fields below.
    pub(crate) context: Qpc,
    /// The context as CREATE_QP left it.
    made: Qpc,
    pub(crate) state: QpState,
    /// Where the rings and the doorbell record lie.
    pub(crate) memory: QpMemory,
    pub(crate) uses: Vec<ObjectId>,
    pub(crate) path: Path,
    pub(crate) indices: SendIndices,
    /// Who stored the last doorbell and its record.
    pub(crate) told: Told,
    /// The same of the doorbell that a higher one has followed without having made sure of its record.
    pub(crate) unordered_told: Told,
    /// The doorbell record is to be read before anything else.
    pub(crate) dbr_due: bool,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    /// The QP's own receive queue, if it has one.
    pub(crate) receives: Option<ReceiveQueue>,
    /// The error that brought the QP to ERR, until its CQE is written.
    pub(crate) cause: Option<Failure>,
    /// The error that brought the QP to ERR, as QUERY_QP tells it until the QP is reset.
    pub(crate) last_error: Option<Failed>,
    /// Vendor syndrome of the next flush.
    pub(crate) flush_vendor: u8,
    /// The deadline that the clock knows, if any.
    pub(crate) alarm: Option<u64>,
    /// A fault: it does nothing.
    pub(crate) stuck: bool,
    /// It had a life before this one, whose WQEs may still be in its ring.
    pub(crate) was_reset: bool,
}

/// Bus addresses of a QP's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpMemory {
    /// WQEBB 0.
    pub(crate) ring: u64,
    /// Receive WQE 0.
    pub(crate) receives: u64,
    /// The doorbell record.
    pub(crate) dbr: u64,
}

/// What a QP does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Read the send doorbell record.
    ReadDbr,
    /// Send an answer.
    Respond,
    /// End the WQE at the head of the queue.
    Retire,
    /// Execute the WQE at the head, which has no packets.
    Local,
    /// Send a packet.
    Send,
    /// Fetch a WQE.
    Fetch,
    /// Complete what an error leaves.
    Flush,
}

/// A WQE that completed or failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) slot: Slot,
    /// Bytes moved to local memory.
    pub(crate) bytes: u64,
    pub(crate) outcome: Outcome,
}

/// Where a WQE stood, and what it was.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slot {
    /// First WQEBB.
    pub(crate) index: u64,
    pub(crate) wqebbs: u64,
    pub(crate) opcode: Opcode,
    /// Which completions have a CQE.
    pub(crate) mode: CompletionMode,
}

/// How a WQE ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome {
    Success,
    /// Flushed, and its completion mode asks for the first error only.
    Silent,
    Error {
        syndrome: Syndrome,
        vendor: u8,
    },
}

/// A receive WQE that completed or failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    /// Number of the WQE in its queue.
    pub(crate) counter: u16,
    pub(crate) bytes: u64,
    pub(crate) solicited: bool,
    /// Immediate data, or the key that was invalidated.
    pub(crate) immediate: u32,
    pub(crate) outcome: Result<CqeOpcode, Failed>,
}

/// Why a WQE failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    pub(crate) slot: Slot,
    pub(crate) failed: Failed,
}

/// A piece of a WQE's data.
#[derive(Clone, Debug)]
pub(crate) enum Piece {
    Memory { key: u32, addr: u64, len: u64 },
    Inline(Vec<u8>),
}

impl Piece {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Memory { len, .. } => *len,
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }
}

impl Qp {
    pub(crate) fn new(
        uid: u16,
        context: Qpc,
        memory: QpMemory,
        uses: Vec<ObjectId>,
        first: u64,
    ) -> Self {
        Self {
            uid,
            context,
            made: context,
            state: QpState::Rst,
            memory,
            uses,
            path: Path::default(),
            indices: SendIndices::new(first, 1 << context.log_sq_size),
            told: Told::default(),
            unordered_told: Told::default(),
            dbr_due: false,
            requester: Requester::new(first),
            responder: Responder::default(),
            receives: ReceiveQueue::of_qp(&context, memory.receives, memory.dbr, first),
            cause: None,
            last_error: None,
            flush_vendor: vendor_syndrome::FLUSHED,
            alarm: None,
            stuck: false,
            was_reset: false,
        }
    }

    /// Back to RST: nothing of the old life is left, in the context neither. Its counter set was detached before.
    pub(crate) fn reset(&mut self, first: u64) {
        *self = Self::new(
            self.uid,
            Qpc {
                counter_set_id: 0,
                ..self.made
            },
            self.memory,
            std::mem::take(&mut self.uses),
            first,
        );
        self.was_reset = true;
    }

    /// To ERR by command. WQEs in execution are abandoned and flushed like those behind them, with the vendor syndrome seen
    /// on the head (docs/hardware-facts.md).
    pub(crate) fn enter_error_by_command(&mut self) {
        let was_sending = self.state == QpState::Rts;
        self.enter_error(None);
        if was_sending {
            self.flush_vendor = vendor_syndrome::FLUSHED_HEAD;
        }
    }

    /// To ERR. The producer is forgotten until the doorbell record has been read.
    pub(crate) fn enter_error(&mut self, cause: Option<Failure>) {
        self.state = QpState::Err;
        self.requester.abandon();
        self.responder.abandon();
        self.cause = cause;
        self.last_error = cause.map(|cause| cause.failed);
        self.flush_vendor = vendor_syndrome::FLUSHED;
        // Without a record the doorbell decides in ERR too (assumed).
        if !self.has_no_dbr() {
            self.indices.enter_error();
            self.dbr_due = true;
        }
        if let Some(receives) = &mut self.receives {
            receives.dbr_due = true;
        }
    }

    /// What is to be done, if anything.
    pub(crate) fn next_action(&self) -> Option<Action> {
        match self.state {
            _ if self.stuck => None,
            QpState::Rts | QpState::Err if self.dbr_due => Some(Action::ReadDbr),
            QpState::Rtr | QpState::Rts if self.responder.has_answer() => Some(Action::Respond),
            QpState::Rts => self.requester.next_action(&self.context, &self.indices),
            QpState::Err if self.indices.has_work() || self.has_receives_to_flush() => {
                Some(Action::Flush)
            }
            _ => None,
        }
    }

    fn has_receives_to_flush(&self) -> bool {
        self.responder.unfinished.is_some()
            || self
                .receives
                .as_ref()
                .is_some_and(|receives| receives.dbr_due || receives.has_posted())
    }

    /// When something happens without a packet or a doorbell.
    pub(crate) fn wake_at(&self) -> Option<u64> {
        self.requester.alarm().filter(|_| !self.stuck)
    }

    /// True if its doorbell records are to be read even while nothing happens: in ERR a later record releases completions
    /// (docs/hardware-facts.md), and a record behind its doorbell may still arrive.
    pub(crate) fn is_watched(&self) -> bool {
        match self.state {
            _ if self.stuck => false,
            QpState::Err => !self.has_no_dbr() || self.receives.is_some(),
            QpState::Rts if self.has_no_dbr() => false,
            QpState::Rts => self.indices.lags(),
            _ => false,
        }
    }

    /// True if it has no send doorbell record.
    pub(crate) fn has_no_dbr(&self) -> bool {
        self.context.send_dbr_mode == SendDbrMode::NoDbr
    }

    /// Path MTU in bytes.
    pub(crate) fn mtu(&self) -> u32 {
        // INIT2RTR refuses values that name no size.
        self.context.mtu.bytes().unwrap_or(256)
    }

    /// Bytes of the largest message.
    pub(crate) fn max_message(&self) -> u64 {
        1 << self.context.log_msg_max
    }

    /// PSN of the next packet to send that was never sent.
    pub(crate) fn send_psn(&self) -> Psn {
        self.requester.sent()
    }
}
