//! Receive queues: which WQE a message lands in.
//!
//! Knows: producer and consumer of the queue, its doorbell record, its WQEs' place.
//! Must not know: packets, or what a completion says.

use warpverbs_sim_bus::{DmaAccess, Purpose};
use warpverbs_wire::doorbell::{DBR_RECEIVE, dbr_producer};
use warpverbs_wire::prm::qpc::{Qpc, RqType};
use warpverbs_wire::wqe::{Receive, SEGMENT};

use crate::failure::{Failed, LOCAL_QP_OPERATION};
use crate::findings::FindingKind;
use crate::qp::Piece;
use crate::work::Work;

/// Most bytes of a receive WQE: `log_rq_stride` has 3 bits.
const MAX_STRIDE: usize = SEGMENT << 7;

/// A receive queue.
#[derive(Clone, Debug)]
pub(crate) struct ReceiveQueue {
    ring: u64,
    /// Bytes of a WQE.
    stride: u64,
    depth: u64,
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
    pub(crate) pieces: Vec<Piece>,
}

impl ReceiveQueue {
    /// The queue that a QP's context asks for, if it asks for one.
    pub(crate) fn of_qp(context: &Qpc, ring: u64) -> Option<Self> {
        (context.rq_type == RqType::Regular).then(|| Self {
            ring,
            stride: stride_of(context),
            depth: 1 << context.log_rq_size,
            consumer: 0,
            producer: 0,
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

    fn slot(&self) -> u64 {
        self.ring + (self.consumer & (self.depth - 1)) * self.stride
    }
}

fn stride_of(context: &Qpc) -> u64 {
    (SEGMENT as u64) << context.log_rq_stride
}

impl Work<'_> {
    /// Reads the receive doorbell record.
    pub(crate) fn read_receive_dbr(&mut self) {
        let Some(record) = self.qp().map(|qp| qp.memory.dbr) else {
            return;
        };
        let word = self.read_word(Purpose::Dbr, record + DBR_RECEIVE as u64);
        let id = self.id();
        let Some(queue) = self
            .objects
            .qps
            .get_mut(self.qpn)
            .and_then(|qp| qp.receives.as_mut())
        else {
            return;
        };
        queue.dbr_due = false;
        if let Some(value) = word.map(dbr_producer)
            && !queue.record(value)
        {
            let kind = FindingKind::ReceiveDbrBeyondQueue { value };
            self.findings
                .add(id, Some(queue.consumer), kind, String::new);
        }
    }

    /// Takes the next receive WQE; `None` if none is posted. The record is read only when all known ones are used up
    /// (assumed: receives have no doorbell).
    pub(crate) fn take_receive(&mut self) -> Result<Option<Posted>, (Posted, Failed)> {
        let posted = |work: &mut Self| {
            work.qp()
                .and_then(|qp| qp.receives.as_ref())
                .is_some_and(ReceiveQueue::has_posted)
        };
        if !posted(self) {
            self.read_receive_dbr();
            if !posted(self) {
                return Ok(None);
            }
        }
        let id = self.id();
        let Some(queue) = self
            .objects
            .qps
            .get_mut(self.qpn)
            .and_then(|qp| qp.receives.as_mut())
        else {
            return Ok(None);
        };
        let (slot, stride, index) = (queue.slot(), queue.stride as usize, queue.consumer);
        queue.consumer += 1;
        let mut taken = Posted {
            counter: index as u16,
            pieces: Vec::new(),
        };
        let mut bytes = [0; MAX_STRIDE];
        let bytes = bytes.get_mut(..stride).unwrap_or_default();
        if let Err(fault) = self
            .dma
            .read(DmaAccess::new(Purpose::Wqe, self.qpn), slot, bytes)
        {
            self.note_fault(id, &fault);
            return Err((taken, LOCAL_QP_OPERATION));
        }
        self.stats.receives_fetched += 1;
        match Receive::decode(bytes, false) {
            Ok(receive) => {
                taken.pieces = receive
                    .data()
                    .map(|pointer| Piece::Memory {
                        key: pointer.key,
                        addr: pointer.address,
                        len: pointer.len(),
                    })
                    .collect();
                Ok(Some(taken))
            }
            Err(error) => {
                self.findings
                    .add(id, Some(index), FindingKind::ReceiveMalformed, || {
                        error.to_string()
                    });
                Err((taken, LOCAL_QP_OPERATION))
            }
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
        let mut queue = ReceiveQueue::of_qp(&context, 0x1000).unwrap();
        (queue.consumer, queue.producer) = (0xfffe, 0xfffe);
        assert!(queue.record(4));
        assert_eq!((queue.producer, queue.has_posted()), (0x1_0004, true));
        assert_eq!(queue.slot(), 0x1000 + 6 * 32);
        assert!(!queue.record(7), "more than the queue has");
        assert_eq!(queue.producer, 0x1_0004);
    }
}
