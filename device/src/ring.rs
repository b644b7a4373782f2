//! Memory that the NIC reads or writes: WQEs, the doorbell record, the doorbell register, CQEs.
//!
//! Knows: strides, alignment and the store or load that each needs. Must not know: indices' meaning or ordering; the
//! caller places the fences.
#![allow(unsafe_code)]

use warpverbs_wire::{
    cqe::{CQE, ErrorWord, Tail},
    wqe::{Segment, WQEBB},
};

use crate::{
    arch::{self, Global},
    scope::{Plain, Scope, Sys},
};

/// log2 of a WQEBB's, and of a CQE's, size.
const LOG_STRIDE: u64 = 6;

const _: () = assert!(1 << LOG_STRIDE == WQEBB && 1 << LOG_STRIDE == CQE);

/// The send queue's WQEBBs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SqRing {
    base: Global,
    mask: u64,
}

/// A WQEBB.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wqebb(Global);

impl SqRing {
    /// # Safety
    ///
    /// `base` is the address of `mask + 1` live WQEBBs, a power of two, which only the NIC and `SqRing`s of
    /// this queue access.
    #[inline(always)]
    pub(crate) unsafe fn new(base: u64, mask: u32) -> Self {
        Self {
            base: Global::new(base),
            mask: u64::from(mask),
        }
    }

    /// The WQEBB of an index. Who writes it must own the index and know its slot to be free.
    #[inline(always)]
    pub(crate) fn wqebb(&self, index: u64) -> Wqebb {
        Wqebb(self.base.offset((index & self.mask) << LOG_STRIDE))
    }
}

impl Wqebb {
    /// Writes a WQE of whole segments: every byte that it declares, in 16-byte stores (rule O1).
    #[inline(always)]
    pub(crate) fn write<const BEHIND: usize>(self, control: Segment, behind: [Segment; BEHIND]) {
        const { assert!(BEHIND >= 1 && BEHIND < 4, "a WQE of one WQEBB") }
        // SAFETY: `SqRing::new`: 64 live, 64-byte aligned bytes; the owner of the index alone writes them
        // until it rings.
        unsafe {
            arch::store_segment::<0>(self.0, control);
            arch::store_segment::<16>(self.0, behind[0]);
            if BEHIND > 1 {
                arch::store_segment::<32>(self.0, behind[1]);
            }
            if BEHIND > 2 {
                arch::store_segment::<48>(self.0, behind[2]);
            }
        }
    }
}

/// The send doorbell record and the doorbell register.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bell {
    record: Global,
    register: Global,
}

impl Bell {
    /// # Safety
    ///
    /// `record` is the address of the QP's live send doorbell record, `register` that of its mapped doorbell register.
    #[inline(always)]
    pub(crate) unsafe fn new(record: u64, register: u64) -> Self {
        Self {
            record: Global::new(record),
            register: Global::new(register),
        }
    }

    /// Writes the doorbell record: strong, system scope (rule O3).
    #[inline(always)]
    pub(crate) fn record(&self, value: u32) {
        // SAFETY: `new`.
        unsafe { arch::store_relaxed_sys_u32(self.record, value) }
    }

    /// Rings: one 8-byte MMIO store (rule O4).
    #[inline(always)]
    pub(crate) fn ring(&self, value: u64) {
        // SAFETY: `new`.
        unsafe { arch::store_mmio(self.register, value) }
    }
}

/// The completion queue's CQEs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CqRing {
    base: Global,
    mask: u64,
}

/// A CQE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cqe(Global);

impl CqRing {
    /// # Safety
    ///
    /// `base` is the address of `mask + 1` live CQEs, a power of two, which the NIC alone writes.
    #[inline(always)]
    pub(crate) unsafe fn new(base: u64, mask: u32) -> Self {
        Self {
            base: Global::new(base),
            mask: u64::from(mask),
        }
    }

    /// The CQE of a consumer index.
    #[inline(always)]
    pub(crate) fn cqe(&self, index: u64) -> Cqe {
        Cqe(self.base.offset((index & self.mask) << LOG_STRIDE))
    }

    /// True if a CQE of the ring is the one that the NIC writes at this index, not an older one.
    #[inline(always)]
    pub(crate) fn is_new(&self, tail: Tail, index: u64) -> bool {
        tail.is_new(index, self.mask as u32 + 1)
    }
}

impl Cqe {
    /// The last 8 bytes, with opcode, WQE counter and owner bit, by one strong system-scope load (rule O6).
    #[inline(always)]
    pub(crate) fn tail(self) -> Tail {
        // SAFETY: `CqRing::new`: 64 live, aligned bytes.
        Tail(unsafe { Sys::load_relaxed::<{ Tail::OFFSET }>(self.0) })
    }

    /// The 8 bytes before, which in an error CQE hold the syndromes: for who has seen that CQE's tail and fenced.
    #[inline(always)]
    pub(crate) fn error(self) -> ErrorWord {
        // SAFETY: `CqRing::new`: 64 live, aligned bytes; the NIC does not write this CQE again.
        ErrorWord(unsafe { Plain::load_relaxed::<{ ErrorWord::OFFSET }>(self.0) })
    }

    /// The same of a CQE that the NIC may be writing again.
    #[inline(always)]
    pub(crate) fn changing_error(self) -> ErrorWord {
        // SAFETY: `CqRing::new`: 64 live, aligned bytes.
        ErrorWord(unsafe { Sys::load_relaxed::<{ ErrorWord::OFFSET }>(self.0) })
    }
}
