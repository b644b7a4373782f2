//! Completion queues.
//!
//! Knows: producer and consumer index, owner bit, overrun, where the next CQE goes.
//! Must not know: what a CQE says.

use warpverbs_wire::prm::cqc::{CqStatus, Cqc};

use crate::events::Arming;
use crate::objects::ObjectId;

/// Bytes of a CQE (`cqe_sz` 0).
pub(crate) const CQE_BYTES: u64 = 64;

/// A completion queue over a UMEM.
#[derive(Clone, Debug)]
pub(crate) struct Cq {
    pub(crate) uid: u16,
    pub(crate) log_size: u8,
    /// `cc`: every CQE is written to entry 0.
    pub(crate) collapsed: bool,
    /// `oi`: a full queue is overwritten.
    pub(crate) overrun_ignore: bool,
    /// Bus address of entry 0.
    pub(crate) ring: u64,
    /// Bus address of the 8-byte doorbell record: consumer index, then arm.
    pub(crate) dbr: u64,
    pub(crate) uses: Vec<ObjectId>,
    /// CQEs written, counted from `NicConfig::first_index`.
    pub(crate) producer: u64,
    /// Consumer index as last read from the doorbell record.
    pub(crate) consumer: u64,
    /// A CQE was lost, and why; no more are written.
    pub(crate) failed: Option<CqStatus>,
    pub(crate) arming: Arming,
    /// QPs that wait for the next CQE.
    waiting: Vec<u32>,
    /// The context it was created with.
    pub(crate) context: Cqc,
}

impl Cq {
    /// A CQ that CREATE_CQ has checked.
    pub(crate) fn new(
        uid: u16,
        context: Cqc,
        ring: u64,
        dbr: u64,
        uses: Vec<ObjectId>,
        first: u64,
    ) -> Self {
        Self {
            uid,
            log_size: context.log_cq_size,
            collapsed: context.cc,
            overrun_ignore: context.oi,
            ring,
            dbr,
            uses,
            producer: first,
            consumer: first,
            failed: None,
            arming: Arming::default(),
            waiting: Vec::new(),
            context,
        }
    }

    /// True if the CQE of an index was produced. Of the index the low 24 bits count, as of the CQ's other indices (DPDK mlx5
    /// masks it so): it is the nearest, before or behind the producer.
    pub(crate) fn has_produced(&self, index: u32) -> bool {
        let last = (self.producer as u32).wrapping_sub(1);
        last.wrapping_sub(index) & 0xff_ffff < 1 << 23
    }

    /// The next CQE wakes a QP.
    pub(crate) fn wake(&mut self, qpn: u32) {
        if !self.waiting.contains(&qpn) {
            self.waiting.push(qpn);
        }
    }

    /// QPs to wake, which are then forgotten.
    pub(crate) fn take_waiting(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.waiting)
    }

    pub(crate) fn entries(&self) -> u64 {
        1 << self.log_size
    }

    /// Bus address of the next CQE.
    pub(crate) fn slot(&self) -> u64 {
        let entry = if self.collapsed {
            0
        } else {
            self.producer & (self.entries() - 1)
        };
        self.ring.wrapping_add(entry * CQE_BYTES)
    }

    /// Owner bit of the next CQE: the parity of the lap (rdma-core `get_sw_cqe`). A collapsed queue counts laps of its
    /// nominal size all the same (assumed; software ignores the bit there).
    pub(crate) fn owner(&self) -> bool {
        (self.producer >> self.log_size) & 1 == 1
    }

    /// True if, as far as the NIC has read, software has not consumed the CQE that the next one would overwrite.
    pub(crate) fn looks_full(&self) -> bool {
        !self.overrun_ignore && self.producer.wrapping_sub(self.consumer) >= self.entries()
    }

    /// Takes the consumer index of the doorbell record (24 bits). False if software consumed what was never produced, or
    /// went backwards: the index is then left alone.
    pub(crate) fn take_consumer(&mut self, low24: u32) -> bool {
        let ahead = u64::from(low24.wrapping_sub(self.consumer as u32) & 0xff_ffff);
        let consumer = self.consumer + ahead;
        if consumer > self.producer {
            return false;
        }
        self.consumer = consumer;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cq(log_size: u8, first: u64) -> Cq {
        let context = Cqc {
            log_cq_size: log_size,
            ..Cqc::default()
        };
        Cq::new(0, context, 0x1000, 0, vec![], first)
    }

    #[test]
    fn a_wait_is_for_the_nearest_index_of_24_bits() {
        for first in [0, (1 << 24) - 1, 1 << 24, (1u64 << 32) - 1] {
            let mut cq = cq(2, first);
            let next = first as u32;
            assert!(!cq.has_produced(next));
            assert!(!cq.has_produced(next.wrapping_add(1)));
            cq.producer += 1;
            assert!(cq.has_produced(next));
            assert!(!cq.has_produced(next.wrapping_add(1)));
            assert!(!cq.has_produced(next.wrapping_add(1 << 23)));
        }
    }

    #[test]
    fn the_owner_bit_is_the_parity_of_the_lap_across_every_wrap() {
        for first in [0, (1 << 16) - 2, (1 << 24) - 2, (1u64 << 32) - 2] {
            let mut cq = cq(2, first);
            for _ in 0..20 {
                assert_eq!(cq.owner(), (cq.producer / 4) % 2 == 1);
                assert_eq!(cq.slot(), 0x1000 + (cq.producer % 4) * 64);
                cq.producer += 1;
            }
        }
    }

    #[test]
    fn the_consumer_index_moves_across_24_bits() {
        let mut cq = cq(3, (1 << 24) - 3);
        cq.producer += 8;
        assert!(cq.looks_full());
        assert!(cq.take_consumer(2));
        assert_eq!(cq.consumer, (1 << 24) + 2);
        assert!(!cq.looks_full());
        assert!(!cq.take_consumer(6), "beyond the producer");
        assert!(!cq.take_consumer(1), "backwards");
        assert_eq!(cq.consumer, (1 << 24) + 2);
    }

    #[test]
    fn a_large_queue_uses_all_24_bits() {
        let mut cq = cq(18, 0);
        cq.producer = 1 << 18;
        assert!(cq.take_consumer(0x2_0001));
        assert_eq!(cq.consumer, 0x2_0001);
    }
}
