//! Memory of a receive queue that the NIC reads or writes: receive WQEs, the record, CQEs.
//!
//! Knows: strides and the store or load that each needs. Must not know: indices' meaning or ordering; the caller places the
//! fences.
#![allow(unsafe_code)]

use core::mem::size_of;

use warpverbs_wire::{
    cqe::{ErrorWord, Tail},
    doorbell,
    wqe::Segment,
};

use crate::{
    arch::{self, Global},
    ring::CqRing,
    rq_handle::Fields,
};

/// The ring, the receive word of the doorbell record, and the CQ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RqRing {
    base: Global,
    mask: u64,
    log_stride: u32,
    record: Global,
    cq: CqRing,
}

/// What a receive's CQE says besides its tail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words {
    pub(crate) user_index: u32,
    pub(crate) immediate: u32,
    pub(crate) len: u32,
}

impl RqRing {
    /// # Safety
    ///
    /// The fields are those of a live handle, whose ring only the NIC and `RqRing`s of this queue access.
    #[inline(always)]
    pub(crate) unsafe fn new(fields: &Fields) -> Self {
        Self {
            base: Global::new(fields.rq),
            mask: u64::from(fields.rq_depth - 1),
            log_stride: fields.log_stride,
            record: Global::new(fields.dbr),
            // SAFETY: the caller's.
            cq: unsafe { CqRing::new(fields.cq, fields.cq_depth - 1, fields.cq_dbr) },
        }
    }

    /// Writes the `n`th segment of the receive at `index`: one 16-byte store (rule O1). Who writes it owns the index and knows its
    /// slot to be free, and `n` to be within the stride.
    #[inline(always)]
    pub(crate) fn write(&self, index: u64, n: u32, segment: Segment) {
        let at = self
            .base
            .offset((index & self.mask) << self.log_stride)
            .offset(u64::from(n) * size_of::<Segment>() as u64);
        // SAFETY: `new`.
        unsafe { arch::store_segment::<0>(at, segment) }
    }

    /// Writes the receive word of the doorbell record: strong, system scope.
    #[inline(always)]
    pub(crate) fn record(&self, value: u32) {
        // SAFETY: `new`.
        unsafe { arch::store_relaxed_sys_u32(self.record, value) }
    }

    /// Writes the consumer to the CQ's doorbell record.
    #[inline(always)]
    pub(crate) fn record_consumer(&self, consumer: u64) {
        self.cq.record(consumer);
    }

    /// The last 8 bytes of a CQE (rule O6).
    #[inline(always)]
    pub(crate) fn tail(&self, consumer: u64) -> Tail {
        self.cq.cqe(consumer).tail()
    }

    /// True if the CQE is the one that the NIC writes at this index.
    #[inline(always)]
    pub(crate) fn is_new(&self, tail: Tail, consumer: u64) -> bool {
        self.cq.is_new(tail, consumer)
    }

    /// The syndromes of an error CQE, which is never overwritten, behind the fence.
    #[inline(always)]
    pub(crate) fn error(&self, consumer: u64) -> ErrorWord {
        self.cq.cqe(consumer).error()
    }

    /// What else a CQE says, behind the fence. If another thread takes the completion, the NIC may be writing it again: then the
    /// words are not used.
    #[inline(always)]
    pub(crate) fn words(&self, consumer: u64) -> Words {
        let words = self.cq.cqe(consumer).changing_words();
        Words {
            user_index: words.user_index(),
            immediate: words.immediate(),
            len: words.byte_count(),
        }
    }
}

const _: () = assert!(doorbell::DBR_RECEIVE == 0);
