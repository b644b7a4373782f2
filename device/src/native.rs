//! The same operations on a CPU, over std's atomics, or loom's with `--cfg loom`.
//!
//! Knows: how a CPU performs what `nvptx` does in PTX. Must not know: queues.
//!
//! Scopes that threads share are the same here. An address is a pointer whose provenance was exposed; under loom it is a key into
//! [`modelled`] memory, so that the code above runs unchanged on numbers that point nowhere.
#![allow(unsafe_code)]

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    sync::{Arc, Condvar, Mutex, PoisonError},
};

use crate::scope::{Cta, Gpu, Plain, Scope, Sys};

#[cfg(loom)]
pub(crate) use modelled::spin_hint;
#[cfg(not(loom))]
pub(crate) use real::spin_hint;

#[cfg(loom)]
use modelled as memory;
#[cfg(not(loom))]
use real as memory;

/// An address.
#[derive(Clone, Copy, Debug)]
pub struct Global(u64);

impl Global {
    /// The address of a pointer.
    pub(crate) fn new(address: u64) -> Self {
        Self(address)
    }

    /// The address `bytes` further.
    pub(crate) fn offset(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }

    /// True if it is a multiple of `BYTES`, a power of two.
    pub(crate) fn is_aligned<const BYTES: u64>(self) -> bool {
        self.0.is_multiple_of(BYTES)
    }
}

/// An atomic operation.
#[derive(Clone, Copy, Debug)]
enum Update {
    Add(u64),
    /// Stores `new` if `old` is there.
    Swap {
        old: u64,
        new: u64,
    },
    Max(u64),
    Or(u64),
}

macro_rules! scope {
    ($($scope:ident: $acquire:ident $release:ident $fence:ident;)*) => {$(
        impl Scope for $scope {
            unsafe fn load_relaxed<const OFFSET: usize>(at: Global) -> u64 {
                // SAFETY: the caller's (see `Scope`).
                unsafe { memory::load(at.0 + OFFSET as u64, memory::Ordering::Relaxed) }
            }
            unsafe fn load_acquire<const OFFSET: usize>(at: Global) -> u64 {
                // SAFETY: the caller's (see `Scope`).
                unsafe { memory::load(at.0 + OFFSET as u64, memory::Ordering::$acquire) }
            }
            unsafe fn store_relaxed<const OFFSET: usize>(at: Global, value: u64) {
                // SAFETY: the caller's (see `Scope`).
                unsafe { memory::store(at.0 + OFFSET as u64, value, memory::Ordering::Relaxed) }
            }
            unsafe fn store_release<const OFFSET: usize>(at: Global, value: u64) {
                // SAFETY: the caller's (see `Scope`).
                unsafe { memory::store(at.0 + OFFSET as u64, value, memory::Ordering::$release) }
            }
            unsafe fn add_relaxed<const OFFSET: usize>(at: Global, value: u64) -> u64 {
                // SAFETY: the caller's (see `Scope`).
                unsafe { memory::update(at.0 + OFFSET as u64, Update::Add(value)) }
            }
            unsafe fn cas_relaxed<const OFFSET: usize>(at: Global, old: u64, new: u64) -> u64 {
                // SAFETY: the caller's (see `Scope`).
                unsafe { memory::update(at.0 + OFFSET as u64, Update::Swap { old, new }) }
            }
            unsafe fn max_relaxed<const OFFSET: usize>(at: Global, value: u64) {
                // SAFETY: the caller's (see `Scope`).
                unsafe { memory::update(at.0 + OFFSET as u64, Update::Max(value)) };
            }
            unsafe fn or_relaxed<const OFFSET: usize>(at: Global, value: u64) {
                // SAFETY: the caller's (see `Scope`).
                unsafe { memory::update(at.0 + OFFSET as u64, Update::Or(value)) };
            }
            fn fence() {
                $fence();
            }
        }
    )*};
}
scope!(
    Plain: Relaxed Relaxed no_fence;
    Cta: Acquire Release fence_sys;
    Gpu: Acquire Release fence_sys;
    Sys: Acquire Release fence_sys;
);

fn no_fence() {}

/// Acquire-release fence.
pub(crate) fn fence_sys() {
    memory::fence_here();
}

fn perform(word: &memory::AtomicU64, update: Update) -> u64 {
    use memory::Ordering::Relaxed;
    match update {
        Update::Add(value) => word.fetch_add(value, Relaxed),
        Update::Swap { old, new } => match word.compare_exchange(old, new, Relaxed, Relaxed) {
            Ok(found) | Err(found) => found,
        },
        Update::Max(value) => word.fetch_max(value, Relaxed),
        Update::Or(value) => word.fetch_or(value, Relaxed),
    }
}

/// Loads a word that is never written meanwhile.
///
/// # Safety
///
/// As `nvptx`'s.
pub(crate) unsafe fn load_immutable<const OFFSET: usize>(at: Global) -> u64 {
    // SAFETY: the caller's.
    unsafe { memory::load_immutable(at.0 + OFFSET as u64) }
}

/// Stores one WQE segment (rule O1).
///
/// # Safety
///
/// As `nvptx`'s.
pub(crate) unsafe fn store_segment<const OFFSET: usize>(at: Global, segment: [u64; 2]) {
    // SAFETY: the caller's.
    unsafe { memory::store_segment(at.0 + OFFSET as u64, segment) }
}

/// Relaxed 32-bit store: the doorbell record (rule O3).
///
/// # Safety
///
/// As `nvptx`'s.
pub(crate) unsafe fn store_relaxed_sys_u32(at: Global, value: u32) {
    // SAFETY: the caller's.
    unsafe { memory::store_u32(at.0, value) }
}

/// The doorbell (rule O4).
///
/// # Safety
///
/// As `nvptx`'s.
pub(crate) unsafe fn store_mmio<const OFFSET: usize>(at: Global, value: u64) {
    // SAFETY: the caller's.
    unsafe { memory::store(at.0 + OFFSET as u64, value, memory::Ordering::Relaxed) }
}

/// Relaxed 32-bit load.
///
/// # Safety
///
/// As `nvptx`'s.
pub(crate) unsafe fn load_relaxed_sys_u32(at: Global) -> u32 {
    // SAFETY: the caller's.
    unsafe { memory::load_u32(at.0) }
}

/// Load of a word.
///
/// # Safety
///
/// As `nvptx`'s.
pub(crate) unsafe fn load_weak_u32(at: Global) -> u32 {
    // SAFETY: the caller's.
    unsafe { memory::load_u32(at.0) }
}

/// Load of one byte.
///
/// # Safety
///
/// As `nvptx`'s.
pub(crate) unsafe fn load_weak_u8(at: Global) -> u8 {
    // SAFETY: the caller's.
    unsafe { memory::load_u8(at.0) }
}

/// Load of one segment.
///
/// # Safety
///
/// As `nvptx`'s.
pub(crate) unsafe fn load_segment<const OFFSET: usize>(at: Global) -> [u64; 2] {
    // SAFETY: the caller's.
    unsafe { memory::load_segment(at.0 + OFFSET as u64) }
}

/// Relaxed load of one byte.
///
/// # Safety
///
/// As `nvptx`'s.
pub(crate) unsafe fn load_relaxed_sys_u8(at: Global) -> u8 {
    // SAFETY: the caller's.
    unsafe { memory::load_u8(at.0) }
}

/// Store of one byte.
///
/// # Safety
///
/// As `nvptx`'s.
pub(crate) unsafe fn store_u8(at: Global, value: u8) {
    // SAFETY: the caller's.
    unsafe { memory::store_u8(at.0, value) }
}

/// Nothing: layout of native code is not tuned.
pub(crate) fn cold() {}

/// See `nvptx`.
#[inline(always)]
pub(crate) fn keep_apart() {}

/// A monotonic clock, in ns. Stands still under loom, which has no time: no deadline passes there.
pub(crate) fn now_ns() -> u64 {
    #[cfg(loom)]
    return 0;
    #[cfg(not(loom))]
    {
        static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        u64::try_from(
            START
                .get_or_init(std::time::Instant::now)
                .elapsed()
                .as_nanos(),
        )
        .unwrap_or(u64::MAX)
    }
}

/// Gives the processor away; loom has no time.
pub(crate) fn sleep_ns(_ns: u32) {
    spin_hint();
}

std::thread_local! {
    static PLACE: Cell<Place> = const { Cell::new(Place::ALONE) };
}

/// Where a thread stands in its launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Thread in its block.
    pub thread: u32,
    /// Threads of a block.
    pub block_threads: u32,
    /// Block in the grid.
    pub block: u32,
    /// Blocks of the grid.
    pub blocks: u32,
}

impl Place {
    /// The only thread of the only block: where a thread stands that nobody has placed.
    pub const ALONE: Self = Self {
        thread: 0,
        block_threads: 1,
        block: 0,
        blocks: 1,
    };

    /// Places the calling thread, from now on.
    pub fn take(self) {
        PLACE.with(|place| place.set(self));
    }

    /// The same, as one of the threads of `team`, which groups of this block meet in.
    pub fn take_in(self, team: &Team) {
        self.take();
        TEAM.with(|own| *own.borrow_mut() = Some(team.clone()));
    }
}

/// What the threads of one block meet in: each of them is placed in it ([`Place::take_in`]). Without it a thread is alone in its
/// groups.
#[derive(Clone, Debug, Default)]
pub struct Team(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    meetings: Mutex<HashMap<Members, Arc<Meeting>>>,
    words: Words,
}

/// Who meets: lanes of a warp, or all threads of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Members {
    Lanes { warp: u32, mask: u32 },
    Block,
}

/// A meeting of the same threads, time and again: each brings a value and gets those of all.
#[derive(Debug, Default)]
struct Meeting {
    now: Mutex<Round>,
    over: Condvar,
}

#[derive(Debug, Default)]
struct Round {
    number: u64,
    brought: Vec<(u32, u64)>,
    last: Arc<Vec<(u32, u64)>>,
}

std::thread_local! {
    static TEAM: RefCell<Option<Team>> = const { RefCell::new(None) };
}

/// The values of all members, by thread in the block.
fn exchange(members: Members, value: u64) -> Arc<Vec<(u32, u64)>> {
    let thread = thread_in_block();
    let count = match members {
        Members::Lanes { mask, .. } => mask.count_ones() as usize,
        Members::Block => block_threads() as usize,
    };
    let team = TEAM.with(|team| team.borrow().clone());
    let Some(team) = team.filter(|_| count > 1) else {
        return Arc::new(vec![(thread, value)]);
    };
    let meeting = team
        .0
        .meetings
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .entry(members)
        .or_default()
        .clone();
    let mut round = meeting.now.lock().unwrap_or_else(PoisonError::into_inner);
    round.brought.push((thread, value));
    if round.brought.len() == count {
        round.number += 1;
        round.last = Arc::new(std::mem::take(&mut round.brought));
        meeting.over.notify_all();
        return round.last.clone();
    }
    let number = round.number;
    while round.number == number {
        round = meeting
            .over
            .wait(round)
            .unwrap_or_else(PoisonError::into_inner);
    }
    round.last.clone()
}

fn lanes(mask: u32) -> Members {
    Members::Lanes {
        warp: thread_in_block() / WARP,
        mask,
    }
}

/// Lanes of a warp.
const WARP: u32 = 32;

/// Lane in its warp.
pub(crate) fn lane() -> u32 {
    thread_in_block() % WARP
}

/// Lanes that are here together: on a CPU nobody knows but the caller, so it is the lane alone.
pub(crate) fn active_mask() -> u32 {
    1 << lane()
}

/// A lane's value.
pub(crate) fn lane_value(mask: u32, value: u32, lane: u32) -> u32 {
    exchange(lanes(mask), u64::from(value))
        .iter()
        .find(|(thread, _)| thread % WARP == lane)
        .map_or(value, |(_, value)| *value as u32)
}

/// The lanes whose value is true.
pub(crate) fn ballot(mask: u32, value: bool) -> u32 {
    exchange(lanes(mask), u64::from(value))
        .iter()
        .filter(|(_, value)| *value != 0)
        .fold(0, |mask, (thread, _)| mask | 1 << (thread % WARP))
}

/// Waits for `mask`'s lanes.
pub(crate) fn sync_lanes(mask: u32) {
    exchange(lanes(mask), 0);
}

/// Waits for the threads of the block.
pub(crate) fn sync_block() {
    exchange(Members::Block, 0);
}

/// Words that a block shares.
pub(crate) const BLOCK_WORDS: u32 = 34;

/// Words of a block without a team.
#[derive(Debug)]
struct Words([std::sync::atomic::AtomicU64; BLOCK_WORDS as usize]);

impl Default for Words {
    fn default() -> Self {
        Self(std::array::from_fn(|_| {
            std::sync::atomic::AtomicU64::new(0)
        }))
    }
}

std::thread_local! {
    /// Of a thread that nobody has placed in a team.
    static OWN_WORDS: Words = Words::default();
}

fn with_words<T>(f: impl FnOnce(&Words) -> T) -> T {
    match TEAM.with(|team| team.borrow().clone()) {
        Some(team) => f(&team.0.words),
        None => OWN_WORDS.with(f),
    }
}

/// Stores a word of the block. One thread does so between two meetings, which order it.
pub(crate) fn store_block_word(index: u32, value: u64) {
    with_words(|words| {
        if let Some(word) = words.0.get(index as usize) {
            word.store(value, std::sync::atomic::Ordering::Relaxed);
        }
    });
}

/// Loads a word of the block.
pub(crate) fn load_block_word(index: u32) -> u64 {
    with_words(|words| {
        words
            .0
            .get(index as usize)
            .map_or(0, |word| word.load(std::sync::atomic::Ordering::Relaxed))
    })
}

/// Thread in its block.
pub(crate) fn thread_in_block() -> u32 {
    PLACE.with(|place| place.get().thread)
}
/// Threads of a block.
pub(crate) fn block_threads() -> u32 {
    PLACE.with(|place| place.get().block_threads)
}
/// Block in the grid.
pub(crate) fn block() -> u32 {
    PLACE.with(|place| place.get().block)
}
/// Blocks of the grid.
pub(crate) fn blocks() -> u32 {
    PLACE.with(|place| place.get().blocks)
}

/// Counting is the simulated GPU's.
pub(crate) fn phase_post() {}
/// Counting is the simulated GPU's.
pub(crate) fn phase_poll() {}
/// Counting is the simulated GPU's.
pub(crate) fn phase_spin() {}
/// Counting is the simulated GPU's.
pub(crate) fn phase_other() {}

/// Memory that is there.
#[cfg(not(loom))]
mod real {
    use super::Update;
    use core::ptr::with_exposed_provenance_mut;
    use core::sync::atomic::{AtomicU8, AtomicU32, fence};
    pub(crate) use core::sync::atomic::{AtomicU64, Ordering};

    pub(crate) fn fence_acq_rel() {
        fence(Ordering::AcqRel);
    }

    pub(crate) fn fence_here() {
        fence_acq_rel();
    }

    pub(crate) fn spin_hint() {
        std::thread::yield_now();
    }

    /// # Safety
    ///
    /// As [`word`]'s.
    pub(crate) unsafe fn load(address: u64, order: Ordering) -> u64 {
        // SAFETY: the caller's.
        unsafe { word(address) }.load(order)
    }

    /// # Safety
    ///
    /// As [`word`]'s.
    pub(crate) unsafe fn store(address: u64, value: u64, order: Ordering) {
        // SAFETY: the caller's.
        unsafe { word(address) }.store(value, order);
    }

    /// # Safety
    ///
    /// `address` is that of a live, aligned word which outlives the borrow's use and is accessed atomically only.
    pub(crate) unsafe fn word<'a>(address: u64) -> &'a AtomicU64 {
        // SAFETY: the caller's; the pointer's provenance was exposed by whoever made the address.
        unsafe { AtomicU64::from_ptr(with_exposed_provenance_mut(address as usize)) }
    }

    /// A relaxed atomic operation; returns the old value.
    ///
    /// # Safety
    ///
    /// As [`word`]'s.
    pub(super) unsafe fn update(address: u64, update: Update) -> u64 {
        // SAFETY: the caller's.
        super::perform(unsafe { word(address) }, update)
    }

    /// # Safety
    ///
    /// As [`word`]'s.
    pub(crate) unsafe fn load_immutable(address: u64) -> u64 {
        // SAFETY: the caller's.
        unsafe { word(address) }.load(Ordering::Relaxed)
    }

    /// # Safety
    ///
    /// As [`word`]'s, for two words. Atomic, so that a NIC model in another thread may look at any time.
    pub(crate) unsafe fn store_segment(address: u64, segment: [u64; 2]) {
        // SAFETY: the caller's.
        unsafe {
            word(address).store(segment[0], Ordering::Relaxed);
            word(address + 8).store(segment[1], Ordering::Relaxed);
        }
    }

    /// # Safety
    ///
    /// As [`word`]'s, for 32 bits.
    pub(crate) unsafe fn store_u32(address: u64, value: u32) {
        // SAFETY: the caller's.
        unsafe { AtomicU32::from_ptr(with_exposed_provenance_mut(address as usize)) }
            .store(value, Ordering::Relaxed);
    }

    /// # Safety
    ///
    /// As [`word`]'s, for 32 bits.
    pub(crate) unsafe fn load_u32(address: u64) -> u32 {
        // SAFETY: the caller's.
        unsafe { AtomicU32::from_ptr(with_exposed_provenance_mut(address as usize)) }
            .load(Ordering::Relaxed)
    }

    /// # Safety
    ///
    /// As [`word`]'s, for two words.
    pub(crate) unsafe fn load_segment(address: u64) -> [u64; 2] {
        // SAFETY: the caller's.
        unsafe {
            [
                word(address).load(Ordering::Relaxed),
                word(address + 8).load(Ordering::Relaxed),
            ]
        }
    }

    /// # Safety
    ///
    /// As [`word`]'s, for 8 bits.
    pub(crate) unsafe fn load_u8(address: u64) -> u8 {
        // SAFETY: the caller's.
        unsafe { AtomicU8::from_ptr(with_exposed_provenance_mut(address as usize)) }
            .load(Ordering::Relaxed)
    }

    /// # Safety
    ///
    /// As [`word`]'s, for 8 bits.
    pub(crate) unsafe fn store_u8(address: u64, value: u8) {
        // SAFETY: the caller's.
        unsafe { AtomicU8::from_ptr(with_exposed_provenance_mut(address as usize)) }
            .store(value, Ordering::Relaxed);
    }
}

/// Memory of a loom execution: addresses are keys. Words are loom atomics; WQE segments are loom cells, so that a
/// segment which the NIC's side reads without the fences of rule O2 is reported as a race.
#[cfg(loom)]
pub(crate) mod modelled {
    use super::Update;
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
    use loom::{cell::UnsafeCell, sync::atomic::fence};
    use std::{
        cell::{Cell, RefCell},
        collections::HashMap,
        sync::{Arc, Mutex, PoisonError},
    };

    #[derive(Default)]
    struct Space {
        words: HashMap<u64, (u64, Arc<AtomicU64>)>,
        segments: HashMap<u64, Arc<Segment>>,
    }

    struct Segment(UnsafeCell<[u64; 2]>);
    // SAFETY: loom's cell checks each access and fails the model on a race.
    unsafe impl Sync for Segment {}
    // SAFETY: as above.
    unsafe impl Send for Segment {}

    loom::lazy_static! {
        static ref SPACE: Mutex<Space> = Mutex::new(Space::default());
    }

    fn with<T>(f: impl FnOnce(&mut Space) -> T) -> T {
        // A std mutex, held for no scheduling point of loom.
        f(&mut SPACE.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn fence_acq_rel() {
        fence(Ordering::AcqRel);
    }

    /// The fence of the code under test. It is known by the access of its thread before it.
    pub(crate) fn fence_here() {
        let last = LAST.with(|last| last.get());
        match change() {
            Some(Change::NoFence { after }) if last == after => {}
            Some(Change::NoFences { after, every })
                if last >= after && (last - after) % every == 0 => {}
            _ => fence_acq_rel(),
        }
    }

    pub(crate) fn spin_hint() {
        loom::thread::yield_now();
    }

    /// # Safety
    ///
    /// As [`word`]'s.
    pub(crate) unsafe fn load(address: u64, order: Ordering) -> u64 {
        let before = LAST.with(|last| last.get());
        let value = match change() {
            Some(Change::NoReload { at, after }) if at == address && before == after => {
                SEEN.with(|seen| seen.borrow().get(&at).copied().unwrap_or(0))
            }
            // Still a step of this thread, so that others go on.
            Some(Change::Blind { at }) if at == address => 0,
            // SAFETY: the caller's.
            change => unsafe { word(address) }.load(weakened(change, address, order)),
        };
        note(address);
        SEEN.with(|seen| seen.borrow_mut().insert(address, value));
        value
    }

    /// # Safety
    ///
    /// As [`word`]'s.
    pub(crate) unsafe fn store(address: u64, value: u64, order: Ordering) {
        match change() {
            Some(Change::NoStore { at }) if at == address => {}
            Some(Change::Late { at, .. }) if at == address => {
                HELD.with(|held| held.set(Some(value)));
            }
            change => {
                // SAFETY: the caller's.
                unsafe { word(address) }.store(value, weakened(change, address, order));
                if let Some(Change::Late { at, behind }) = change
                    && behind == address
                    && let Some(value) = HELD.with(Cell::take)
                {
                    // SAFETY: the caller's.
                    unsafe { word(at) }.store(value, Ordering::Relaxed);
                }
            }
        }
        note(address);
    }

    /// # Safety
    ///
    /// As [`word`]'s.
    pub(super) unsafe fn update(address: u64, update: Update) -> u64 {
        // SAFETY: the caller's.
        let word = unsafe { word(address) };
        let old = match change() {
            Some(Change::NoStore { at }) if at == address => word.load(Ordering::Relaxed),
            Some(Change::Split { at }) if at == address => {
                let old = word.load(Ordering::Relaxed);
                match update {
                    Update::Add(value) => word.store(old + value, Ordering::Relaxed),
                    Update::Swap { old: wanted, new } if old == wanted => {
                        word.store(new, Ordering::Relaxed);
                    }
                    Update::Swap { .. } => {}
                    // Without the comparison.
                    Update::Max(value) => word.store(value, Ordering::Relaxed),
                    Update::Or(value) => word.store(old | value, Ordering::Relaxed),
                }
                old
            }
            _ => super::perform(&word, update),
        };
        note(address);
        old
    }

    fn weakened(change: Option<Change>, address: u64, order: Ordering) -> Ordering {
        match change {
            Some(Change::Relaxed { at }) if at == address => Ordering::Relaxed,
            _ => order,
        }
    }

    /// A change to the code under test: tests show that each is found.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[cfg_attr(not(test), allow(dead_code))]
    pub(crate) enum Change {
        /// No fence behind an access to this address.
        NoFence { after: u64 },
        /// Nor behind one to an address that is a multiple of `every` further.
        NoFences { after: u64, every: u64 },
        /// Acquires and releases at this address are relaxed.
        Relaxed { at: u64 },
        /// A load of this address, behind an access to another, gives what the thread's last load of it gave.
        NoReload { at: u64, after: u64 },
        /// Loads of this address give 0.
        Blind { at: u64 },
        /// Stores to this address, and what atomic operations store there, are gone.
        NoStore { at: u64 },
        /// A store to this address comes behind the one to another.
        Late { at: u64, behind: u64 },
        /// Atomic operations on this word are a load and a store.
        Split { at: u64 },
    }

    std::thread_local! {
        /// Of the thread that runs the model; loom's threads are its coroutines.
        static CHANGE: Cell<Option<Change>> = const { Cell::new(None) };
    }

    loom::thread_local! {
        /// The address that this thread accessed last.
        static LAST: Cell<u64> = Cell::new(0);
        /// What it has not stored yet.
        static HELD: Cell<Option<u64>> = Cell::new(None);
        /// What it loaded last, by address.
        static SEEN: RefCell<HashMap<u64, u64>> = RefCell::default();
    }

    fn change() -> Option<Change> {
        CHANGE.with(Cell::get)
    }

    /// Changes the code under test, for all that this thread models from now on.
    #[cfg(test)]
    pub(crate) fn make(change: Change) {
        CHANGE.with(|now| now.set(Some(change)));
    }

    fn note(address: u64) {
        LAST.with(|last| last.set(address));
    }

    /// Creates the word at `address`. Tests do so before they start threads.
    #[cfg(test)]
    pub(crate) fn init(address: u64, value: u64) {
        let word = Arc::new(AtomicU64::new(value));
        with(|space| space.words.insert(address, (value, word)));
    }

    /// # Safety
    ///
    /// None here; the signature is the real memory's. A word that nobody created holds 0.
    pub(crate) unsafe fn word(address: u64) -> Arc<AtomicU64> {
        with(|space| {
            space
                .words
                .entry(address)
                .or_insert_with(|| (0, Arc::new(AtomicU64::new(0))))
                .1
                .clone()
        })
    }

    /// # Safety
    ///
    /// As [`word`]'s. The value that [`init`] gave: no scheduling point.
    pub(crate) unsafe fn load_immutable(address: u64) -> u64 {
        with(|space| space.words.get(&address).map_or(0, |(initial, _)| *initial))
    }

    fn segment(address: u64) -> Arc<Segment> {
        with(|space| {
            space
                .segments
                .entry(address)
                .or_insert_with(|| Arc::new(Segment(UnsafeCell::new([0; 2]))))
                .clone()
        })
    }

    /// # Safety
    ///
    /// As [`word`]'s.
    pub(crate) unsafe fn store_segment(address: u64, value: [u64; 2]) {
        // SAFETY: loom fails the model if another thread accesses the cell now.
        segment(address).0.with_mut(|cell| unsafe { *cell = value });
        note(address);
    }

    /// What the NIC's side of a test reads too.
    ///
    /// # Safety
    ///
    /// None here; the signature is the real memory's.
    pub(crate) unsafe fn load_segment(address: u64) -> [u64; 2] {
        // SAFETY: loom fails the model if another thread writes the cell now.
        segment(address).0.with(|cell| unsafe { *cell })
    }

    /// # Safety
    ///
    /// As [`word`]'s. Modelled as a word of its own.
    pub(crate) unsafe fn load_u32(address: u64) -> u32 {
        // SAFETY: the caller's.
        unsafe { load(address, Ordering::Relaxed) as u32 }
    }

    /// # Safety
    ///
    /// As [`word`]'s. Modelled as a word of its own.
    pub(crate) unsafe fn store_u32(address: u64, value: u32) {
        // SAFETY: the caller's.
        unsafe { store(address, u64::from(value), Ordering::Relaxed) }
    }

    /// # Safety
    ///
    /// As [`word`]'s. Modelled as a word of its own.
    pub(crate) unsafe fn load_u8(address: u64) -> u8 {
        // SAFETY: the caller's.
        unsafe { word(address) }.load(Ordering::Relaxed) as u8
    }

    /// # Safety
    ///
    /// As [`word`]'s. Modelled as a word of its own.
    pub(crate) unsafe fn store_u8(address: u64, value: u8) {
        // SAFETY: the caller's.
        unsafe { word(address) }.store(u64::from(value), Ordering::Relaxed);
    }
}
