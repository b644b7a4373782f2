//! Memory that the NIC reads or writes: WQEs, the doorbell record, the doorbell register, CQEs.
//!
//! Knows: strides, alignment and the store or load that each needs. Must not know: indices' meaning or ordering; the
//! caller places the fences.
#![allow(unsafe_code)]

use warpverbs_wire::{
    cqe::{CQE, ErrorWord, MiddleWords, Tail},
    doorbell,
    wqe::{SEGMENT, SEGMENTS_PER_WQEBB, Segment, WQEBB},
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

    /// A segment of the WQE at `index`, which may go on at the ring's start.
    ///
    /// Who writes it must own the index of its WQEBB and know its slot to be free.
    #[inline(always)]
    pub(crate) fn write_segment(&self, index: u64, n: u32, segment: Segment) {
        let wqebb = self.wqebb(index.wrapping_add(u64::from(n / SEGMENTS_PER_WQEBB)));
        let offset = u64::from(n % SEGMENTS_PER_WQEBB) * SEGMENT as u64;
        // SAFETY: `new`: 64 live, 64-byte aligned bytes; the owner of the index alone writes them until it rings.
        unsafe { arch::store_segment::<0>(wqebb.0.offset(offset), segment) }
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
        const { assert!(BEHIND < 4, "a WQE of one WQEBB") }
        // SAFETY: `SqRing::new`: 64 live, 64-byte aligned bytes; the owner of the index alone writes them
        // until it rings.
        unsafe {
            arch::store_segment::<0>(self.0, control);
            if let Some(&segment) = behind.first() {
                arch::store_segment::<16>(self.0, segment);
            }
            if let Some(&segment) = behind.get(1) {
                arch::store_segment::<32>(self.0, segment);
            }
            if let Some(&segment) = behind.get(2) {
                arch::store_segment::<48>(self.0, segment);
            }
        }
    }

    /// What the writer of a WQEBB, or one who has synchronised with it, finds there.
    #[inline(always)]
    fn read(self) -> [Segment; 4] {
        // SAFETY: `SqRing::new`: 64 live, 64-byte aligned bytes; the owner of the index alone writes them.
        unsafe {
            [
                arch::load_segment::<0>(self.0),
                arch::load_segment::<16>(self.0),
                arch::load_segment::<32>(self.0),
                arch::load_segment::<48>(self.0),
            ]
        }
    }
}

/// What tells the NIC of WQEs: the send doorbell record and the doorbell register, or the word of a host thread that has them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bell {
    record: Global,
    register: Global,
}

impl Bell {
    /// # Safety
    ///
    /// `record` is the address of the QP's live send doorbell record, `register` that of its mapped doorbell register; or
    /// `record` is that of its `ProxyRecord`, and `register` is not used.
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

    /// The doorbell record, as it stands.
    #[inline(always)]
    pub(crate) fn recorded(&self) -> u32 {
        // SAFETY: `new`.
        unsafe { arch::load_relaxed_sys_u32(self.record) }
    }

    /// Rings: one 8-byte MMIO store (rule O4).
    #[inline(always)]
    pub(crate) fn ring(&self, value: u64) {
        // SAFETY: `new`.
        unsafe { arch::store_mmio::<0>(self.register, value) }
    }

    /// Pushes a WQEBB to the register: eight 8-byte MMIO stores, in any order (rule O4). The NIC has a buffer for them, and
    /// fetches the WQE if they do not come together.
    #[inline(always)]
    pub(crate) fn push(&self, wqebb: Wqebb) {
        let [a, b, c, d] = wqebb.read();
        // SAFETY: `new`: the register begins a buffer of at least 64 bytes.
        unsafe {
            arch::store_mmio::<0>(self.register, a[0]);
            arch::store_mmio::<8>(self.register, a[1]);
            arch::store_mmio::<16>(self.register, b[0]);
            arch::store_mmio::<24>(self.register, b[1]);
            arch::store_mmio::<32>(self.register, c[0]);
            arch::store_mmio::<40>(self.register, c[1]);
            arch::store_mmio::<48>(self.register, d[0]);
            arch::store_mmio::<56>(self.register, d[1]);
        }
    }

    /// Tells the host thread of the producer.
    #[inline(always)]
    pub(crate) fn produce(&self, producer: u64) {
        // SAFETY: `new`: the record's first word.
        unsafe { Sys::store_relaxed::<0>(self.record, producer) }
    }

    /// What the host thread was told last.
    #[inline(always)]
    pub(crate) fn produced(&self) -> u64 {
        // SAFETY: `new`: the record's first word.
        unsafe { Sys::load_relaxed::<0>(self.record) }
    }
}

/// The completion queue's CQEs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CqRing {
    base: Global,
    mask: u64,
    record: Global,
}

/// A CQE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cqe(Global);

impl CqRing {
    /// # Safety
    ///
    /// `base` is the address of `mask + 1` live CQEs, a power of two, which the NIC alone writes. `record` is that of the
    /// consumer word of the CQ's doorbell record, or [`Self::record`] is not used.
    #[inline(always)]
    pub(crate) unsafe fn new(base: u64, mask: u32, record: u64) -> Self {
        Self {
            base: Global::new(base),
            mask: u64::from(mask),
            record: Global::new(record),
        }
    }

    /// Writes the consumer to the CQ's doorbell record: strong, system scope.
    #[inline(always)]
    pub(crate) fn record(&self, consumer: u64) {
        // SAFETY: `new`.
        unsafe { arch::store_relaxed_sys_u32(self.record, doorbell::cq_dbr_word(consumer)) }
    }

    /// The CQE of a consumer index.
    #[inline(always)]
    pub(crate) fn cqe(&self, index: u64) -> Cqe {
        Cqe(self.base.offset((index & self.mask) << LOG_STRIDE))
    }

    /// True if a CQE of the ring is the success of a send WQE that the NIC writes at this index.
    #[inline(always)]
    pub(crate) fn is_success(&self, tail: Tail, index: u64) -> bool {
        tail.is_success(index, self.mask as u32 + 1)
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

    /// Bytes 32 to 47, of a CQE that the NIC may be writing again.
    #[inline(always)]
    pub(crate) fn changing_words(self) -> MiddleWords {
        // SAFETY: `CqRing::new`: 64 live, aligned bytes.
        unsafe {
            MiddleWords([
                Sys::load_relaxed::<{ MiddleWords::OFFSET }>(self.0),
                Sys::load_relaxed::<{ MiddleWords::OFFSET + 8 }>(self.0),
            ])
        }
    }

    /// The error word of a CQE that the NIC may be writing again.
    #[inline(always)]
    pub(crate) fn changing_error(self) -> ErrorWord {
        // SAFETY: `CqRing::new`: 64 live, aligned bytes.
        ErrorWord(unsafe { Sys::load_relaxed::<{ ErrorWord::OFFSET }>(self.0) })
    }
}
