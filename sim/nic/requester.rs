//! The requester's state: WQEs that were fetched and not completed, and which of their packets are sent and answered.
//!
//! Knows: order, windows, PSNs, retries (IBA 9.7, 9.7).
//! Must not know: memory, how a WQE is read (`fetch`) or a packet made (`send`), or what an answer says (`answer`).

use std::collections::VecDeque;

use warpverbs_wire::prm::qpc::Qpc;
use warpverbs_wire::roce::Psn;
use warpverbs_wire::roce::timer::ack_timeout_ns;
use warpverbs_wire::wqe::{Atomic, Opcode, RemoteAddress, Wait};

use crate::failure::Failed;
use crate::qp::{Action, Piece, Slot};
use crate::sq::SendIndices;

/// WQEs that a QP has in execution at most (assumed: hardware's number is not published).
const MAX_OPERATIONS: usize = 64;
/// Packets that may be sent beyond the oldest one that is not answered (assumed).
const SEND_WINDOW: i32 = 128;
/// PSNs in use at most: half of the numbers must stay behind (IBA 9.7), and the largest READ has 2^23 packets.
const PSN_WINDOW: u32 = Psn::WINDOW - 1;
/// `rnr_retry` that never ends (IBA 9.7).
const ENDLESS: u8 = 7;

/// A WQE in execution.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) slot: Slot,
    pub(crate) solicited: bool,
    pub(crate) fence: Fence,
    pub(crate) remote: RemoteAddress,
    pub(crate) immediate: u32,
    pub(crate) atomic: Option<Atomic>,
    pub(crate) wait: Option<Wait>,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) len: u64,
    /// PSN of the first packet.
    pub(crate) first: Psn,
    /// Packets, those of the answer if it is a READ; none if it is local.
    pub(crate) packets: u32,
    /// Packets of the answer that have arrived, or bytes of local work done.
    pub(crate) arrived: u64,
    pub(crate) progress: Progress,
    /// The bytes that were fetched, where they are compared later.
    pub(crate) image: Vec<u8>,
}

/// What must be complete before a WQE starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fence {
    None,
    /// Earlier READs and atomics.
    Fetching,
    /// All earlier WQEs.
    All,
}

/// How far a WQE is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Progress {
    Waiting,
    /// A wait whose CQ has not got so far: that wakes it.
    Held,
    Done,
    Failed(Failed),
}

impl Operation {
    /// True if its answer brings data.
    pub(crate) fn is_fetching(&self) -> bool {
        self.slot.opcode == Opcode::RdmaRead || self.slot.opcode.is_atomic()
    }

    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.progress, Progress::Waiting | Progress::Held)
    }

    /// The PSN behind its last packet.
    pub(crate) fn end(&self) -> Psn {
        self.first.plus(self.packets)
    }

    fn has(&self, psn: Psn) -> bool {
        (0..self.packets as i32).contains(&psn.since(self.first))
    }
}

/// The requester's half of a QP.
#[derive(Clone, Debug)]
pub(crate) struct Requester {
    /// First WQEBB that was not fetched.
    pub(crate) fetched: u64,
    pub(crate) operations: VecDeque<Operation>,
    /// The next packet to send: which operation, and which of its packets.
    pub(crate) cursor: (usize, u32),
    /// PSN of the next operation.
    next: Psn,
    /// PSN behind the last packet that was ever sent.
    sent: Psn,
    /// Oldest PSN that is not answered.
    pub(crate) oldest: Psn,
    /// Retransmission began and nothing new was answered since: other answers to the same loss do not begin it again.
    recovering: bool,
    retries: u8,
    rnr_retries: u8,
    /// When an answer is overdue.
    pub(crate) deadline: Option<u64>,
    /// The receiver was not ready: nothing is sent before this time.
    pub(crate) paused: Option<u64>,
}

impl Requester {
    pub(crate) fn new(first: u64) -> Self {
        Self {
            fetched: first,
            operations: VecDeque::new(),
            cursor: (0, 0),
            next: Psn::default(),
            sent: Psn::default(),
            oldest: Psn::default(),
            recovering: false,
            retries: 0,
            rnr_retries: 0,
            deadline: None,
            paused: None,
        }
    }

    /// RTR2RTS.
    pub(crate) fn start(&mut self, context: &Qpc) {
        self.next = Psn::new(context.next_send_psn);
        (self.sent, self.oldest) = (self.next, self.next);
        self.refill(context);
    }

    /// Work in execution is forgotten.
    pub(crate) fn abandon(&mut self) {
        self.operations.clear();
        self.cursor = (0, 0);
        self.deadline = None;
        self.paused = None;
    }

    pub(crate) fn sent(&self) -> Psn {
        self.sent
    }

    /// The time at which something happens without a packet.
    pub(crate) fn alarm(&self) -> Option<u64> {
        self.paused.or(self.deadline)
    }

    pub(crate) fn next_action(&self, context: &Qpc, indices: &SendIndices) -> Option<Action> {
        match self.operations.front() {
            Some(head) if !head.is_waiting() => return Some(Action::Retire),
            Some(head) if matches!(head.progress, Progress::Held) => {}
            Some(head) if head.packets == 0 => return Some(Action::Local),
            _ => {}
        }
        if self.may_send(context) {
            Some(Action::Send)
        } else if self.may_fetch(indices) {
            Some(Action::Fetch)
        } else {
            None
        }
    }

    fn may_send(&self, context: &Qpc) -> bool {
        let (at, packet) = self.cursor;
        let Some(operation) = self.operations.get(at) else {
            return false;
        };
        if !operation.is_waiting() || operation.packets == 0 || self.paused.is_some() {
            return false;
        }
        if operation.first.plus(packet).since(self.oldest) >= SEND_WINDOW {
            return false;
        }
        let begins = packet == 0;
        if !begins || !(operation.is_fetching() || operation.fence != Fence::None) {
            return true;
        }
        if self.holds_back(operation.fence, at) {
            return false;
        }
        let fetching = self
            .operations
            .iter()
            .take(at)
            .filter(|earlier| earlier.is_fetching() && earlier.is_waiting())
            .count();
        !operation.is_fetching() || fetching < 1 << context.log_sra_max
    }

    /// How many packets from `psn` on the window has room for.
    pub(crate) fn room_behind(&self, psn: Psn) -> u32 {
        let used = psn.since(self.oldest);
        SEND_WINDOW.saturating_sub(used).max(0).unsigned_abs()
    }

    fn may_fetch(&self, indices: &SendIndices) -> bool {
        let tail = self.operations.back();
        // Behind an error, and behind a wait, nothing is fetched.
        let stopped = tail.is_some_and(|tail| {
            matches!(tail.progress, Progress::Failed(_)) || tail.slot.opcode == Opcode::Wait
        });
        let in_use = self.next.since(self.oldest).unsigned_abs();
        self.fetched < indices.producer
            && self.operations.len() < MAX_OPERATIONS
            && in_use < PSN_WINDOW / 2
            && !stopped
    }

    /// Adds a fetched WQE.
    pub(crate) fn push(&mut self, mut operation: Operation) {
        operation.first = self.next;
        self.next = operation.end();
        self.fetched = operation.slot.index + operation.slot.wqebbs;
        self.operations.push_back(operation);
        self.skip_local();
    }

    /// Takes the WQE at the head away.
    pub(crate) fn pop(&mut self) -> Option<Operation> {
        let head = self.operations.pop_front()?;
        match self.cursor.0.checked_sub(1) {
            Some(at) => self.cursor.0 = at,
            None => self.cursor = (0, 0),
        }
        self.skip_local();
        Some(head)
    }

    /// The CQ that the head waits for, if it waits for one, has news.
    pub(crate) fn release(&mut self) {
        if let Some(head) = self.operations.front_mut()
            && matches!(head.progress, Progress::Held)
        {
            head.progress = Progress::Waiting;
        }
    }

    /// The cursor stands on operations that have packets, or on one that has none and whose fence still holds: those behind
    /// start after it.
    fn skip_local(&mut self) {
        while self.operations.get(self.cursor.0).is_some_and(|operation| {
            operation.packets == 0
                && operation.is_waiting()
                && !self.holds_back(operation.fence, self.cursor.0)
        }) {
            self.cursor = (self.cursor.0 + 1, 0);
        }
    }

    /// True while the fence of the operation at a place keeps it from starting.
    fn holds_back(&self, fence: Fence, at: usize) -> bool {
        let mut earlier = self
            .operations
            .iter()
            .take(at)
            .filter(|one| one.is_waiting());
        match fence {
            Fence::None => false,
            Fence::Fetching => earlier.any(Operation::is_fetching),
            Fence::All => earlier.next().is_some(),
        }
    }

    /// The packets of the cursor's operation below `upto` are sent.
    pub(crate) fn advance(&mut self, upto: u32) {
        let (at, _) = self.cursor;
        let Some(operation) = self.operations.get(at) else {
            return;
        };
        let behind = operation.first.plus(upto);
        self.cursor = if upto < operation.packets {
            (at, upto)
        } else {
            (at + 1, 0)
        };
        if self.sent.is_before(behind) {
            self.sent = behind;
        }
        self.skip_local();
    }

    /// The operation with a PSN.
    pub(crate) fn find(&self, psn: Psn) -> Option<usize> {
        self.operations.iter().position(|one| one.has(psn))
    }

    /// True if the PSN was sent and is not answered.
    pub(crate) fn expects(&self, psn: Psn) -> bool {
        !psn.is_before(self.oldest) && psn.is_before(self.sent)
    }

    /// All up to and without `psn` is answered, READs and atomics excepted, of which the first without its answer stops it.
    /// True if all of it is.
    pub(crate) fn acknowledge(&mut self, psn: Psn, context: &Qpc) -> bool {
        let mut reached = self.oldest;
        for operation in &mut self.operations {
            if operation.packets == 0 || !operation.is_waiting() {
                continue;
            }
            if !operation.first.is_before(psn) {
                break;
            }
            if operation.is_fetching() {
                reached = operation.first.plus(operation.arrived as u32);
                break;
            }
            if psn.is_before(operation.end()) {
                reached = psn;
                break;
            }
            operation.progress = Progress::Done;
            reached = operation.end();
        }
        self.answered(reached, context);
        !self.oldest.is_before(psn)
    }

    /// All before `psn` is answered: retries are there again.
    pub(crate) fn answered(&mut self, psn: Psn, context: &Qpc) {
        if self.oldest.is_before(psn) {
            self.oldest = psn;
            self.recovering = false;
            self.refill(context);
            self.deadline = None;
            // What was answered is not sent again.
            let (at, packet) = self.cursor;
            if let Some(operation) = self.operations.get(at)
                && operation.first.plus(packet).is_before(psn)
            {
                self.rewind(psn);
            }
        }
    }

    fn refill(&mut self, context: &Qpc) {
        self.retries = context.retry_count;
        self.rnr_retries = context.rnr_retry;
    }

    pub(crate) fn is_recovering(&self) -> bool {
        self.recovering
    }

    /// Sends again from `psn` on. False if no retry is left.
    pub(crate) fn repeat(&mut self, psn: Psn) -> bool {
        let Some(left) = self.retries.checked_sub(1) else {
            return false;
        };
        self.retries = left;
        self.recovering = true;
        self.deadline = None;
        self.rewind(psn);
        true
    }

    /// Sends again from `psn` on at `time`. False if no retry is left.
    pub(crate) fn pause(&mut self, psn: Psn, time: u64) -> bool {
        if self.rnr_retries != ENDLESS {
            let Some(left) = self.rnr_retries.checked_sub(1) else {
                return false;
            };
            self.rnr_retries = left;
        }
        self.paused = Some(time);
        self.deadline = None;
        self.rewind(psn);
        true
    }

    fn rewind(&mut self, psn: Psn) {
        self.cursor = match self.find(psn) {
            Some(at) => {
                let packet = self
                    .operations
                    .get(at)
                    .map_or(0, |operation| psn.since(operation.first));
                (at, packet.unsigned_abs())
            }
            None => (self.operations.len(), 0),
        };
    }

    /// Starts the timer, if something sent is without answer and it does not run.
    pub(crate) fn arm(&mut self, now: u64, context: &Qpc) {
        if self.oldest == self.sent || self.paused.is_some() {
            self.deadline = None;
        } else if self.deadline.is_none() {
            self.deadline = ack_timeout_ns(context.primary_address_path.ack_timeout)
                .map(|timeout| now.saturating_add(timeout));
        }
    }

    /// The operation that waits longest for an answer fails.
    pub(crate) fn fail_oldest(&mut self, failed: Failed) {
        self.fail_at(self.oldest, failed);
    }

    /// The operation with a PSN fails.
    pub(crate) fn fail_at(&mut self, psn: Psn, failed: Failed) {
        self.deadline = None;
        self.paused = None;
        if let Some(at) = self.find(psn)
            && let Some(operation) = self.operations.get_mut(at)
        {
            operation.progress = Progress::Failed(failed);
        }
    }
}
