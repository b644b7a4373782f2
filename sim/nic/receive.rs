//! Receive queues: which WQE a message lands in.
//!
//! Knows: producer and consumer of the queue, its doorbell record, its WQEs' place.
//! Must not know: packets, or what a completion says.

use warpverbs_sim_bus::{DmaAccess, Purpose};
use warpverbs_wire::doorbell::{DBR_RECEIVE, dbr_producer};
use warpverbs_wire::eqe::{Event, EventType};
use warpverbs_wire::prm::qpc::{Qpc, RqType};
use warpverbs_wire::wqe::{Receive, SEGMENT};

use crate::failure::{Failed, LOCAL_QP_OPERATION};
use crate::findings::FindingKind;
use crate::qp::Piece;
use crate::work::Work;

/// Most bytes of a receive WQE: `log_rq_stride` has 3 bits.
const MAX_STRIDE: usize = SEGMENT << 7;

/// How a receive queue's WQEs follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// As a ring; with a next segment that says nothing, if true.
    Ring(bool),
    /// Each names the next; this is the first.
    List(u16),
}

/// A receive queue, a QP's own or a shared one.
#[derive(Clone, Debug)]
pub(crate) struct ReceiveQueue {
    pub(crate) shape: Shape,
    /// PD of the buffers' keys.
    pub(crate) pd: u32,
    pub(crate) ring: u64,
    /// Bus address of the doorbell record.
    pub(crate) dbr: u64,
    /// Bytes of a WQE.
    pub(crate) stride: u64,
    pub(crate) depth: u64,
    /// WQEs used.
    pub(crate) consumer: u64,
    /// WQEs posted, as last read from the doorbell record.
    pub(crate) producer: u64,
    /// In ERR: the record is to be read before the queue is flushed.
    pub(crate) dbr_due: bool,
}

/// A receive WQE that was taken from its queue.
#[derive(Clone, Debug)]
pub(crate) struct Posted {
    pub(crate) counter: u16,
    /// PD of the buffers' keys.
    pub(crate) pd: u32,
    pub(crate) pieces: Vec<Piece>,
}

impl ReceiveQueue {
    /// The queue that a QP's context asks for, if it asks for one.
    pub(crate) fn of_qp(context: &Qpc, ring: u64, dbr: u64, first: u64) -> Option<Self> {
        (context.rq_type == RqType::Regular).then(|| Self {
            shape: Shape::Ring(false),
            pd: context.pd,
            ring,
            dbr,
            stride: stride_of(context),
            depth: 1 << context.log_rq_size,
            consumer: first,
            producer: first,
            dbr_due: false,
        })
    }

    /// Bytes of the ring that a QP's context asks for.
    pub(crate) fn bytes_of_qp(context: &Qpc) -> u64 {
        match context.rq_type {
            RqType::Regular => stride_of(context) << context.log_rq_size,
            _ => 0,
        }
    }

    pub(crate) fn has_posted(&self) -> bool {
        self.consumer < self.producer
    }

    /// Takes the 16 bits of the doorbell record. False if they name more WQEs than the queue has.
    fn record(&mut self, value: u16) -> bool {
        let ahead = u64::from(value.wrapping_sub(self.consumer as u16));
        if ahead > self.depth {
            return false;
        }
        self.producer = self.consumer + ahead;
        true
    }

    /// Number of the next WQE to use, as CQEs name it.
    fn number(&self) -> u16 {
        match self.shape {
            Shape::Ring(_) => self.consumer as u16,
            Shape::List(first) => first,
        }
    }

    fn slot(&self) -> u64 {
        self.ring + (u64::from(self.number()) & (self.depth - 1)) * self.stride
    }
}

fn stride_of(context: &Qpc) -> u64 {
    (SEGMENT as u64) << context.log_rq_stride
}

impl Work<'_> {
    /// The queue that the QP's receives come from.
    fn receive_queue(&mut self) -> Option<&mut ReceiveQueue> {
        let qp = self.objects.qps.get_mut(self.qpn)?;
        match qp.context.rq_type {
            RqType::Shared => {
                let rmp = self.objects.rmps.get_mut(qp.context.srqn_rmpn_xrqn)?;
                Some(&mut rmp.queue)
            }
            _ => qp.receives.as_mut(),
        }
    }

    /// Reads the receive doorbell record.
    pub(crate) fn read_receive_dbr(&mut self) {
        let Some(record) = self.receive_queue().map(|queue| queue.dbr) else {
            return;
        };
        let word = self.read_word(Purpose::Dbr, record + DBR_RECEIVE as u64);
        let id = self.id();
        let Some(queue) = self.receive_queue() else {
            return;
        };
        queue.dbr_due = false;
        let consumer = queue.consumer;
        if let Some(value) = word.map(dbr_producer)
            && !queue.record(value)
        {
            let kind = FindingKind::ReceiveDbrBeyondQueue { value };
            self.findings.add(id, Some(consumer), kind, String::new);
        }
    }

    /// Takes the next receive WQE; `None` if none is posted. The record is read only when all known ones are used up
    /// (assumed: receives have no doorbell).
    pub(crate) fn take_receive(&mut self) -> Result<Option<Posted>, (Posted, Failed)> {
        if !self.has_receive() {
            self.read_receive_dbr();
            if !self.has_receive() {
                return Ok(None);
            }
        }
        let id = self.id();
        let Some(queue) = self.receive_queue() else {
            return Ok(None);
        };
        let (slot, stride, index) = (queue.slot(), queue.stride as usize, queue.consumer);
        let has_next = queue.shape != Shape::Ring(false);
        let mut taken = Posted {
            counter: queue.number(),
            pd: queue.pd,
            pieces: Vec::new(),
        };
        queue.consumer += 1;
        let mut bytes = [0; MAX_STRIDE];
        let bytes = bytes.get_mut(..stride).unwrap_or_default();
        if let Err(fault) = self
            .dma
            .read(DmaAccess::new(Purpose::Wqe, self.qpn), slot, bytes)
        {
            self.note_fault(id, &fault);
            self.raise_queue_failure();
            return Err((taken, LOCAL_QP_OPERATION));
        }
        self.stats.receives_fetched += 1;
        match Receive::decode(bytes, has_next) {
            Ok(receive) => {
                if let (Some(next), Some(queue)) = (receive.next, self.receive_queue())
                    && let Shape::List(first) = &mut queue.shape
                {
                    *first = next.next;
                }
                taken.pieces = receive
                    .data()
                    .map(|pointer| Piece::Memory {
                        key: pointer.key,
                        addr: pointer.address,
                        len: pointer.len(),
                    })
                    .collect();
                self.judge_limit();
                Ok(Some(taken))
            }
            Err(error) => {
                self.findings
                    .add(id, Some(index), FindingKind::ReceiveMalformed, || {
                        error.to_string()
                    });
                self.raise_queue_failure();
                Err((taken, LOCAL_QP_OPERATION))
            }
        }
    }

    /// A receive WQE could not be read: the event of a shared queue. That of the QP comes with its NAK.
    fn raise_queue_failure(&mut self) {
        let context = self.qp().map(|qp| qp.context);
        if let Some(context) = context.filter(|context| context.rq_type == RqType::Shared) {
            self.events.raise(Event::Queue {
                event: EventType::SrqCatastrophicError,
                number: context.srqn_rmpn_xrqn,
            });
        }
    }

    fn has_receive(&mut self) -> bool {
        self.receive_queue().is_some_and(|queue| queue.has_posted())
    }

    /// Raises the limit event of a shared queue, once.
    fn judge_limit(&mut self) {
        let Some(qp) = self.objects.qps.get(self.qpn) else {
            return;
        };
        let number = qp.context.srqn_rmpn_xrqn;
        let Some(rmp) = self
            .objects
            .rmps
            .get_mut(number)
            .filter(|_| qp.context.rq_type == RqType::Shared)
        else {
            return;
        };
        if rmp.queue.producer - rmp.queue.consumer < u64::from(rmp.limit) {
            rmp.limit = 0;
            let event = EventType::SrqLimit;
            self.events.raise(Event::Queue { event, number });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_is_seen_from_the_consumer() {
        let context = Qpc {
            rq_type: RqType::Regular,
            log_rq_size: 3,
            log_rq_stride: 1,
            ..Qpc::default()
        };
        assert_eq!(ReceiveQueue::bytes_of_qp(&context), 8 * 32);
        let mut queue = ReceiveQueue::of_qp(&context, 0x1000, 0, 0).unwrap();
        (queue.consumer, queue.producer) = (0xfffe, 0xfffe);
        assert!(queue.record(4));
        assert_eq!((queue.producer, queue.has_posted()), (0x1_0004, true));
        assert_eq!(queue.slot(), 0x1000 + 6 * 32);
        assert!(!queue.record(7), "more than the queue has");
        assert_eq!(queue.producer, 0x1_0004);
    }
}
