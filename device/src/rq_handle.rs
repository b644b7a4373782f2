//! The exported handle of a receive queue, and the words in it that threads share.
//!
//! Knows: where each field stands (`wire::abi`) and at which scope it is accessed. Must not know: when.
#![allow(unsafe_code)]

use core::mem::offset_of;

use warpverbs_wire::abi::{self, State};

use crate::{
    arch::{self, Global},
    error::Error,
    handle::Flags,
    scope::Scope,
    wait::Watched,
    watch::Watch,
};

const RESERVED: usize = offset_of!(abi::RqHandle, reserved);
const TURN: usize = offset_of!(abi::RqHandle, turn);
const CONSUMER: usize = offset_of!(abi::RqHandle, consumer);
const CARRIED: usize = CONSUMER + offset_of!(abi::Line, second);
const STATE: usize = offset_of!(abi::RqHandle, state);

/// Address of an [`abi::RqHandle`] of this version, and what ends its waits. Words are accessed as a `QpHandle`'s are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RqHandle<W> {
    at: Global,
    watch: Watch<W, STATE>,
}

/// The immutable fields, as they stand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields {
    pub(crate) flags: Flags,
    pub(crate) rq: u64,
    pub(crate) dbr: u64,
    pub(crate) rq_depth: u32,
    pub(crate) log_stride: u32,
    pub(crate) cq: u64,
    pub(crate) cq_depth: u32,
    pub(crate) qpn: u32,
    pub(crate) cq_dbr: u64,
}

impl<W: Scope> RqHandle<W> {
    /// Reads the immutable line: each field once, by the non-coherent path (rule O8).
    ///
    /// # Safety
    ///
    /// As `Handle::load`'s, of an [`abi::RqHandle`].
    #[inline(always)]
    pub(crate) unsafe fn load(address: u64) -> Result<(Self, Fields), Error> {
        // SAFETY: the caller's: the version stands where a `QpHandle` has it.
        let flags = unsafe { Flags::load(address) }?;
        let at = Global::new(address);
        // SAFETY: the caller's; offsets of fields of `RqHandle`, in its immutable line.
        let (rq, dbr, depth_stride, cq, depth_qpn, stop, cq_dbr) = unsafe {
            (
                arch::load_immutable::<{ offset_of!(abi::RqHandle, rq) }>(at),
                arch::load_immutable::<{ offset_of!(abi::RqHandle, dbr) }>(at),
                arch::load_immutable::<{ offset_of!(abi::RqHandle, rq_depth) }>(at),
                arch::load_immutable::<{ offset_of!(abi::RqHandle, cq) }>(at),
                arch::load_immutable::<{ offset_of!(abi::RqHandle, cq_depth) }>(at),
                arch::load_immutable::<{ offset_of!(abi::RqHandle, stop) }>(at),
                arch::load_immutable::<{ offset_of!(abi::RqHandle, cq_dbr) }>(at),
            )
        };
        let handle = Self {
            at,
            // SAFETY: the caller's.
            watch: unsafe { Watch::new(at, Global::new(stop)) },
        };
        let fields = Fields {
            flags,
            rq,
            dbr,
            rq_depth: depth_stride as u32,
            log_stride: (depth_stride >> 32) as u32,
            cq,
            cq_depth: depth_qpn as u32,
            qpn: (depth_qpn >> 32) as u32,
            cq_dbr,
        };
        Ok((handle, fields))
    }
}

// Each method's `unsafe` rests on what `load` demands, as `Handle`'s do.
impl<W: Scope> RqHandle<W> {
    /// Next index to reserve.
    #[inline(always)]
    pub(crate) fn reserved(&self) -> u64 {
        // SAFETY: `load`'s contract; a word of the handle.
        unsafe { W::load_relaxed::<RESERVED>(self.at) }
    }

    /// Reserves `count` receives from `index` if nobody has done so.
    #[inline(always)]
    pub(crate) fn reserve_at(&self, index: u64, count: u64) -> bool {
        // SAFETY: `load`'s contract; a word of the handle.
        unsafe { W::cas_relaxed::<RESERVED>(self.at, index, index.wrapping_add(count)) == index }
    }

    /// Whose turn it is to publish (rule O5). Relaxed: a fence follows.
    #[inline(always)]
    pub(crate) fn turn(&self) -> u64 {
        // SAFETY: `load`'s contract; a word of the handle.
        unsafe { W::load_relaxed::<TURN>(self.at) }
    }

    /// Hands the turn on (rule O5).
    #[inline(always)]
    pub(crate) fn hand_off(&self, next: u64) {
        // SAFETY: `load`'s contract; a word of the handle.
        unsafe { W::store_release::<TURN>(self.at, next) }
    }

    /// CQ consumer index. Acquire: the CQE there is not loaded as it was two laps ago, and slots that it frees may be written.
    #[inline(always)]
    pub(crate) fn consumer(&self) -> u64 {
        // SAFETY: `load`'s contract; a word of the handle.
        unsafe { W::load_acquire::<CONSUMER>(self.at) }
    }

    /// Takes the completion at `consumer` if nobody has done so. Relaxed: a fence stands before.
    #[inline(always)]
    pub(crate) fn take_at(&self, consumer: u64) -> bool {
        // SAFETY: `load`'s contract; a word of the handle.
        unsafe { W::cas_relaxed::<CONSUMER>(self.at, consumer, consumer + 1) == consumer }
    }

    /// CQEs that the CQ had written before that of RQ index 0. Never changes.
    #[inline(always)]
    pub(crate) fn carried(&self) -> u64 {
        // SAFETY: `load`'s contract; a word of the handle.
        unsafe { W::load_relaxed::<CARRIED>(self.at) }
    }

    /// Writes the indices back for the queue's next user; a kernel boundary publishes these relaxed stores.
    #[inline(always)]
    pub(crate) fn save(&self, reserved: u64, consumer: u64) {
        // SAFETY: `load`'s contract; a word of the handle.
        unsafe {
            W::store_relaxed::<RESERVED>(self.at, reserved);
            W::store_relaxed::<TURN>(self.at, reserved);
            W::store_relaxed::<CONSUMER>(self.at, consumer);
        }
    }

    /// As [`Watch::latch`].
    #[inline(always)]
    pub(crate) fn latch(&self, fault: State) -> State {
        self.watch.latch(fault)
    }
}

impl<W: Scope> Watched for RqHandle<W> {
    #[inline(always)]
    fn state(&self) -> State {
        self.watch.state()
    }

    #[inline(always)]
    fn look_for_stop(&self) -> bool {
        self.watch.look_for_stop()
    }
}
