//! The exported handle of a QP, and the words in it that threads share.
//!
//! Knows: where each field stands (`wire::abi`) and at which scope it is accessed.
//! Must not know: when.
#![allow(unsafe_code)]

use core::mem::{offset_of, size_of};

use warpverbs_wire::abi::{self, LongWqe, QpHandle, State};

use crate::{
    arch::{self, Global},
    error::Error,
    scope::Scope,
    wait::Watched,
    watch::Watch,
};

const RESERVED: usize = offset_of!(QpHandle, reserved);
const GAP: usize = RESERVED + offset_of!(abi::Line, second);
const TURN: usize = offset_of!(QpHandle, turn);
/// The last four words of the line.
const READY: usize = TURN + size_of::<abi::Line>() - 32;
const COMPLETED: usize = offset_of!(QpHandle, completed);
const CONSUMER: usize = COMPLETED + offset_of!(abi::Line, second);
const STATE: usize = offset_of!(QpHandle, state);
const LONG: usize = STATE + offset_of!(abi::Line, second);

/// Address of a [`QpHandle`] of this version, and of its host-mapped stop word.
///
/// The words are accessed at the scope `W` of the queue's users, who are threads of this GPU while a kernel runs; the host
/// does so before launch and after synchronisation. The stop word alone is the host's at any time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handle<W> {
    at: Global,
    watch: Watch<W, STATE>,
}

/// The immutable fields, as they stand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields {
    pub(crate) flags: Flags,
    pub(crate) sq: u64,
    pub(crate) dbr: u64,
    pub(crate) doorbell: u64,
    pub(crate) sq_depth: u32,
    pub(crate) qpn: u32,
    pub(crate) cq: u64,
    pub(crate) cq_depth: u32,
    pub(crate) log_max_message: u32,
}

/// Flags of a handle: what a kernel needs to choose the queue's modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags(u32);

impl Flags {
    /// Reads the flags of the handle at `address`.
    ///
    /// # Errors
    ///
    /// [`Error::BadVersion`] if it is of another version, [`Error::InvalidArgument`] for an address that no handle has.
    ///
    /// # Safety
    ///
    /// `address` is that of an exported handle of any version: each begins with its number.
    #[inline(always)]
    pub unsafe fn load(address: u64) -> Result<Self, Error> {
        if !address.is_multiple_of(abi::HANDLE_ALIGN) {
            return Err(Error::InvalidArgument);
        }
        // SAFETY: the caller's: the first line is live and immutable.
        let first = unsafe { arch::load_immutable::<0>(Global::new(address)) };
        match first as u32 {
            abi::VERSION => Ok(Self((first >> 32) as u32)),
            seen => Err(Error::BadVersion(seen)),
        }
    }

    /// The CQ has one CQE, which each completion overwrites.
    #[inline(always)]
    pub const fn collapsed(self) -> bool {
        self.0 & abi::FLAG_CQ_COLLAPSED != 0
    }

    /// READ data may become visible after the completion (rule O14).
    #[inline(always)]
    pub const fn reads_need_dump(self) -> bool {
        self.0 & abi::FLAG_READ_NEEDS_DUMP != 0
    }

    /// The QP has a host thread that rings for it: [`Proxy`](crate::Proxy).
    ///
    /// # Safety
    ///
    /// `address` is that of the exported handle of this version that these flags are of.
    #[inline(always)]
    pub unsafe fn has_proxy(address: u64) -> bool {
        // SAFETY: the caller's: an immutable field.
        unsafe {
            arch::load_immutable::<{ offset_of!(QpHandle, proxy) }>(Global::new(address)) != 0
        }
    }

    /// The QP has no send doorbell record: [`NoDbr`](crate::NoDbr).
    #[inline(always)]
    pub const fn no_dbr(self) -> bool {
        self.0 & abi::FLAG_NO_DBR != 0
    }

    /// The CQ does not ignore overrun: [`Checked`](crate::Checked).
    #[inline(always)]
    pub const fn overrun_checked(self) -> bool {
        self.0 & abi::FLAG_CQ_OVERRUN_CHECKED != 0
    }
}

impl<W: Scope> Handle<W> {
    /// Reads the immutable line: each field once, by the non-coherent path (rule O8).
    ///
    /// # Safety
    ///
    /// `address` is that of a live [`QpHandle`], aligned to 64 bytes, which stays exported while the value is used; no
    /// one accesses its words but through this type, and no other thread at all if `W` is `Plain`.
    #[inline(always)]
    pub(crate) unsafe fn load(address: u64) -> Result<(Self, Fields), Error> {
        // SAFETY: the caller's.
        let flags = unsafe { Flags::load(address) }?;
        let at = Global::new(address);
        // SAFETY: the caller's; offsets of fields of `QpHandle`, in its immutable line.
        let (depth_qpn, cq_line, sq, dbr, doorbell, cq, stop) = unsafe {
            (
                arch::load_immutable::<{ offset_of!(QpHandle, sq_depth) }>(at),
                arch::load_immutable::<{ offset_of!(QpHandle, cq_depth) }>(at),
                arch::load_immutable::<{ offset_of!(QpHandle, sq) }>(at),
                arch::load_immutable::<{ offset_of!(QpHandle, dbr) }>(at),
                arch::load_immutable::<{ offset_of!(QpHandle, doorbell) }>(at),
                arch::load_immutable::<{ offset_of!(QpHandle, cq) }>(at),
                arch::load_immutable::<{ offset_of!(QpHandle, stop) }>(at),
            )
        };
        let handle = Self {
            at,
            // SAFETY: the caller's.
            watch: unsafe { Watch::new(at, Global::new(stop)) },
        };
        let fields = Fields {
            flags,
            sq,
            dbr,
            doorbell,
            sq_depth: depth_qpn as u32,
            qpn: (depth_qpn >> 32) as u32,
            cq,
            cq_depth: cq_line as u32,
            log_max_message: (cq_line >> 32) as u32,
        };
        Ok((handle, fields))
    }
}

impl<W: Scope> Handle<W> {
    /// The handle for its state word alone: the host's stop word is not known.
    ///
    /// # Safety
    ///
    /// As [`Self::load`]'s.
    #[inline(always)]
    pub(crate) unsafe fn at(address: u64) -> Self {
        let at = Global::new(address);
        // SAFETY: the caller's.
        let watch = unsafe { Watch::new(at, at) };
        Self { at, watch }
    }
}

// As above: fields of the second line, read where they are used.
impl<W: Scope> Handle<W> {
    /// Number of the send CQ.
    #[inline(always)]
    pub(crate) fn cqn(&self) -> u32 {
        // SAFETY: `load`'s contract; an immutable field.
        unsafe { arch::load_immutable::<{ offset_of!(QpHandle, cqn) }>(self.at) as u32 }
    }

    /// Address of the send CQ's consumer word, or zero.
    #[inline(always)]
    pub(crate) fn cq_dbr(&self) -> u64 {
        // SAFETY: `load`'s contract; an immutable field.
        unsafe { arch::load_immutable::<{ offset_of!(QpHandle, cq_dbr) }>(self.at) }
    }

    /// Address of the QP's `ProxyRecord`, or zero.
    #[inline(always)]
    pub(crate) fn proxy(&self) -> u64 {
        // SAFETY: `load`'s contract; an immutable field.
        unsafe { arch::load_immutable::<{ offset_of!(QpHandle, proxy) }>(self.at) }
    }
}

// Each method's `unsafe` rests on what `load` demands: a live handle, of which no one accesses the words otherwise. Their
// offsets are those of aligned words of `QpHandle`; `stop` is the address of the host's word.
impl<W: Scope> Handle<W> {
    /// Next index to reserve.
    #[inline(always)]
    pub(crate) fn reserved(&self) -> u64 {
        // SAFETY: `load`'s contract; a word of the handle.
        unsafe { W::load_relaxed::<RESERVED>(self.at) }
    }

    /// Reserves `count` WQEBBs, whoever else does; returns the first. Relaxed: the index alone is taken; what it may
    /// overwrite is decided by `completed`, and what is published by `turn`.
    #[inline(always)]
    pub(crate) fn reserve(&self, count: u64) -> u64 {
        // SAFETY: `load`'s contract; a word of the handle.
        unsafe { W::add_relaxed::<RESERVED>(self.at, count) }
    }

    /// Reserves `count` WQEBBs from `index` if nobody has done so.
    #[inline(always)]
    pub(crate) fn reserve_at(&self, index: u64, count: u64) -> bool {
        // SAFETY: `load`'s contract; a word of the handle.
        unsafe { W::cas_relaxed::<RESERVED>(self.at, index, index.wrapping_add(count)) == index }
    }

    /// Whose turn it is to ring (rule O5). Relaxed: whoever has the turn fences before it rings, and a
    /// relaxed load followed by an acquire-release fence acquires; so all that the writer before did happens
    /// before the ring.
    #[inline(always)]
    pub(crate) fn turn(&self) -> u64 {
        // SAFETY: `load`'s contract; a word of the handle.
        unsafe { W::load_relaxed::<TURN>(self.at) }
    }

    /// Hands the turn on (rule O5): all that was done happens before the next writer's ring.
    #[inline(always)]
    pub(crate) fn hand_off(&self, next: u64) {
        // SAFETY: `load`'s contract; a word of the handle.
        unsafe { W::store_release::<TURN>(self.at, next) }
    }

    /// True if the post from `first` is filled and waits for its turn. Relaxed: its poster promises to ring, and nothing else.
    #[inline(always)]
    pub(crate) fn is_ready(&self, first: u64) -> bool {
        // SAFETY: `load`'s contract; a word of the handle.
        unsafe { W::load_relaxed::<READY>(self.at.offset(first % 4 * 8)) == first }
    }

    /// Notes that the post from `first` is filled, if its turn is near: those before it that do so have other words.
    #[inline(always)]
    pub(crate) fn mark_ready(&self, first: u64, turn: u64) -> bool {
        let is_near = first.wrapping_sub(turn) < 4;
        if is_near {
            // SAFETY: `load`'s contract; a word of the handle.
            unsafe { W::store_relaxed::<READY>(self.at.offset(first % 4 * 8), first) }
        }
        is_near
    }

    /// By how much SQ indices are above the numbers of their CQEs. Relaxed: only who has the turn accesses it, behind the fence
    /// that acquires the turn, and before the hand-off that releases it.
    #[inline(always)]
    pub(crate) fn gap(&self) -> u64 {
        // SAFETY: `load`'s contract; a word of the handle.
        unsafe { W::load_relaxed::<GAP>(self.at) }
    }

    /// As [`Self::gap`].
    #[inline(always)]
    pub(crate) fn set_gap(&self, gap: u64) {
        // SAFETY: `load`'s contract; a word of the handle.
        unsafe { W::store_relaxed::<GAP>(self.at, gap) }
    }

    /// The last WQE of several WQEBBs. Relaxed: who waits for room behind it sees it in time, and before that waits longer.
    #[inline(always)]
    pub(crate) fn long(&self) -> LongWqe {
        // SAFETY: `load`'s contract; a word of the handle.
        LongWqe(unsafe { W::load_relaxed::<LONG>(self.at) })
    }

    /// Notes the last WQE of several WQEBBs, by who has the turn.
    #[inline(always)]
    pub(crate) fn set_long(&self, long: LongWqe) {
        // SAFETY: `load`'s contract; a word of the handle.
        unsafe { W::store_relaxed::<LONG>(self.at, long.0) }
    }

    /// Index below which all WQEs have completed. Acquire: what the NIC and the poller did before happens before what
    /// follows, the reuse of those slots in particular.
    #[inline(always)]
    pub(crate) fn completed(&self) -> u64 {
        // SAFETY: `load`'s contract; a word of the handle.
        unsafe { W::load_acquire::<COMPLETED>(self.at) }
    }

    /// The same, where a fence stands before.
    #[inline(always)]
    pub(crate) fn completed_relaxed(&self) -> u64 {
        // SAFETY: `load`'s contract; a word of the handle.
        unsafe { W::load_relaxed::<COMPLETED>(self.at) }
    }

    /// Publishes a completed index. Relaxed: the poller's acquire fence stands before it, and an acquire-release fence
    /// followed by a relaxed write releases.
    #[inline(always)]
    pub(crate) fn publish_completed(&self, completed: u64) {
        // SAFETY: `load`'s contract; a word of the handle.
        unsafe { W::max_relaxed::<COMPLETED>(self.at, completed) }
    }

    /// CQ consumer index. Acquire: the CQE that is there is not loaded as it was two laps ago, when its owner bit was the same.
    #[inline(always)]
    pub(crate) fn consumer(&self) -> u64 {
        // SAFETY: `load`'s contract; a word of the handle.
        unsafe { W::load_acquire::<CONSUMER>(self.at) }
    }

    /// Advances the CQ consumer index. Relaxed, as [`Self::publish_completed`] is, behind the same fence.
    #[inline(always)]
    pub(crate) fn publish_consumer(&self, consumer: u64) {
        // SAFETY: `load`'s contract; a word of the handle.
        unsafe { W::max_relaxed::<CONSUMER>(self.at, consumer) }
    }

    /// Writes the indices back for the QP's next user; a kernel boundary publishes these relaxed stores.
    #[inline(always)]
    pub(crate) fn save(&self, reserved: u64, completed: u64, consumer: u64) {
        // SAFETY: `load`'s contract; a word of the handle.
        unsafe {
            W::store_relaxed::<RESERVED>(self.at, reserved);
            W::store_relaxed::<TURN>(self.at, reserved);
            W::store_relaxed::<COMPLETED>(self.at, completed);
            W::store_relaxed::<CONSUMER>(self.at, consumer);
        }
    }
}

impl<W: Scope> Handle<W> {
    /// As [`Watch::latch`].
    #[inline(always)]
    pub(crate) fn latch(&self, fault: State) -> State {
        self.watch.latch(fault)
    }
}

impl<W: Scope> Watched for Handle<W> {
    #[inline(always)]
    fn state(&self) -> State {
        self.watch.state()
    }

    #[inline(always)]
    fn look_for_stop(&self) -> bool {
        self.watch.look_for_stop()
    }
}
