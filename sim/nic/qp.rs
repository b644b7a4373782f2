//! Queue pairs: context, state, and what the NIC is doing for the send queue.
//!
//! Knows: the state machine's consequences for the send queue.
//! Must not know: mailboxes, memory, CQs.

use warpverbs_wire::cqe::{Syndrome, vendor_syndrome};
use warpverbs_wire::prm::qpc::{QpState, Qpc};
use warpverbs_wire::wqe::{Opcode, RemoteAddress};

use crate::objects::ObjectId;
use crate::sq::SendIndices;

/// Bytes of a send queue slot.
pub(crate) const WQEBB_BYTES: u64 = warpverbs_wire::wqe::WQEBB as u64;
/// Bytes of a doorbell record.
pub(crate) const DBR_BYTES: u64 = warpverbs_wire::doorbell::DBR as u64;

/// A reliable connected queue pair without receive queue.
#[derive(Clone, Debug)]
pub(crate) struct Qp {
    pub(crate) uid: u16,
    /// The context as commands set it; state, PSNs and counters are the fields below.
    pub(crate) context: Qpc,
    pub(crate) state: QpState,
    /// Bus address of WQEBB 0.
    pub(crate) ring: u64,
    /// Bus address of the doorbell record.
    pub(crate) dbr: u64,
    pub(crate) uses: Vec<ObjectId>,
    /// True if the path ends at this NIC.
    pub(crate) loops_back: bool,
    /// PSN of the next packet to send, and of the next to receive: 24 bits.
    pub(crate) send_psn: u32,
    pub(crate) receive_psn: u32,
    pub(crate) indices: SendIndices,
    /// The doorbell record is to be read before anything else.
    pub(crate) dbr_due: bool,
    pub(crate) task: Task,
    /// The error that brought the QP to ERR, until its CQE is written.
    pub(crate) cause: Option<Failure>,
    /// Vendor syndrome of the next flush.
    pub(crate) flush_vendor: u8,
}

/// What the NIC is doing for a send queue. One WQE at a time: assumed (hardware overlaps them, in order).
#[derive(Clone, Debug, Default)]
pub(crate) enum Task {
    /// Nothing.
    #[default]
    Idle,
    /// Moving a WQE's data.
    Transfer(Operation),
    /// Waiting for an answer; when `steps` have passed, a retry is used up.
    Retry {
        operation: Operation,
        steps: u32,
        retries: u8,
    },
    /// A WQE is done; its completion is to be written.
    Complete(Done),
}

/// A WQE that completed or failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) slot: Slot,
    /// Bytes moved.
    pub(crate) bytes: u64,
    pub(crate) outcome: Outcome,
}

/// Where a WQE stood, and what it was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    /// First WQEBB.
    pub(crate) index: u64,
    pub(crate) wqebbs: u64,
    pub(crate) opcode: Opcode,
}

/// How a WQE ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome {
    Success { signalled: bool },
    Error { syndrome: Syndrome, vendor: u8 },
}

/// Why a WQE failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    pub(crate) slot: Slot,
    pub(crate) syndrome: Syndrome,
    pub(crate) vendor: u8,
}

/// A WQE in execution.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) slot: Slot,
    pub(crate) signalled: bool,
    pub(crate) remote: RemoteAddress,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) len: u64,
    pub(crate) done: u64,
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
        ring: u64,
        dbr: u64,
        uses: Vec<ObjectId>,
        first: u64,
    ) -> Self {
        Self {
            uid,
            context,
            state: QpState::Rst,
            ring,
            dbr,
            uses,
            loops_back: false,
            send_psn: 0,
            receive_psn: 0,
            indices: SendIndices::new(first, 1 << context.log_sq_size),
            dbr_due: false,
            task: Task::Idle,
            cause: None,
            flush_vendor: vendor_syndrome::FLUSHED,
        }
    }

    /// Back to RST: nothing of the old life is left.
    pub(crate) fn reset(&mut self, first: u64) {
        *self = Self::new(
            self.uid,
            self.context,
            self.ring,
            self.dbr,
            std::mem::take(&mut self.uses),
            first,
        );
    }

    /// To ERR by command. A WQE in execution is abandoned and flushed like those behind it, with the vendor syndrome seen
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
        self.task = Task::Idle;
        self.cause = cause;
        self.flush_vendor = vendor_syndrome::FLUSHED;
        self.indices.enter_error();
        self.dbr_due = true;
    }

    /// True if a step would do something for it.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.state, QpState::Rts | QpState::Err)
            && (self.dbr_due || !matches!(self.task, Task::Idle) || self.indices.has_work())
    }

    /// True if its doorbell record is to be read even while nothing happens: in ERR a later record releases completions
    /// (docs/hardware-facts.md), and a record behind its doorbell may still arrive.
    pub(crate) fn is_watched(&self) -> bool {
        match self.state {
            QpState::Err => true,
            QpState::Rts => self.indices.lags(),
            _ => false,
        }
    }

    /// True if packets from another QP are answered.
    pub(crate) fn can_receive(&self) -> bool {
        matches!(self.state, QpState::Rtr | QpState::Rts)
    }

    /// Path MTU in bytes.
    pub(crate) fn mtu(&self) -> u64 {
        // INIT2RTR refuses values that name no size.
        u64::from(self.context.mtu.bytes().unwrap_or(256))
    }

    /// Bytes of the largest message.
    pub(crate) fn max_message(&self) -> u64 {
        1 << self.context.log_msg_max
    }

    /// Packets of a message of `len` bytes.
    pub(crate) fn packets(&self, len: u64) -> u64 {
        len.div_ceil(self.mtu()).max(1)
    }
}

/// The PSN `packets` after `psn` (24 bits).
pub(crate) fn psn_after(psn: u32, packets: u64) -> u32 {
    ((u64::from(psn) + packets) & 0xff_ffff) as u32
}
