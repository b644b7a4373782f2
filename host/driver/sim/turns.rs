//! Work of host threads, run in the seeded schedule.
//!
//! Knows: that it takes turns with what GPU threads and NICs do, by seed, and that a call of a driver that it makes lets them
//! get a little further, as calls take time. Must not know: what the work is.
//!
//! A thread of the operating system that works beside a simulation is where the system puts it; work that is run here is where
//! the seed puts it, so that a run can be replayed and what the memory model finds is found again.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use warpverbs_sim_bus::Rng;

/// Most steps of the simulation between two looks at the work.
const SLICE: u32 = 64;
/// Most steps, and one, of the simulation during one call that the work makes.
const CALL: u32 = 9;

thread_local! {
    /// True while this thread runs such work.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

type Work = Box<dyn FnMut() -> bool + Send>;

/// The work of one world.
pub(super) struct Schedule {
    works: Mutex<Vec<(u64, Work)>>,
    /// How many there are.
    count: AtomicUsize,
    issued: AtomicU64,
    rng: Mutex<Rng>,
}

impl Schedule {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            works: Mutex::default(),
            count: AtomicUsize::new(0),
            issued: AtomicU64::new(0),
            // A sequence of its own, so that other choices do not depend on those made here.
            rng: Mutex::new(Rng::new(seed ^ 0x6865_7369_6465_2121)),
        }
    }

    fn works(&self) -> MutexGuard<'_, Vec<(u64, Work)>> {
        self.works.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn below(&self, bound: u32) -> u32 {
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        rng.below(bound)
    }

    pub(super) fn add(self: &Arc<Self>, work: Work) -> Beside {
        let number = self.issued.fetch_add(1, Ordering::Relaxed);
        let mut works = self.works();
        works.push((number, work));
        self.count.store(works.len(), Ordering::Relaxed);
        drop(works);
        Beside {
            schedule: self.clone(),
            number,
        }
    }

    /// How far the simulation goes, of `steps`, before the work is looked at.
    pub(super) fn slice(&self, steps: u64) -> u64 {
        if self.count.load(Ordering::Relaxed) == 0 {
            return steps;
        }
        steps.min(1 + u64::from(self.below(SLICE)))
    }

    /// Runs some of the work, by seed, or all of it; true if any of it did something.
    pub(super) fn run(&self, all: bool) -> bool {
        if self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut works = match self.works.try_lock() {
            Ok(works) => works,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread is at it.
            Err(TryLockError::WouldBlock) => return false,
        };
        let _inside = Inside::enter();
        let mut any = false;
        for (_, work) in works.iter_mut() {
            if all || self.below(2) == 0 {
                any |= work();
            }
        }
        any
    }

    /// How far the simulation goes during a call; `None`: it is no call of such work.
    pub(super) fn during_call(&self) -> Option<u64> {
        is_inside().then(|| u64::from(self.below(CALL)))
    }
}

/// True if the calling thread runs such work.
pub(super) fn is_inside() -> bool {
    INSIDE.get()
}

struct Inside;

impl Inside {
    fn enter() -> Self {
        INSIDE.set(true);
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

/// Work in a schedule, until this is dropped.
#[must_use = "the work ends when this is dropped"]
pub struct Beside {
    schedule: Arc<Schedule>,
    number: u64,
}

impl Drop for Beside {
    fn drop(&mut self) {
        let mut works = self.schedule.works();
        let gone: Vec<_> = works
            .extract_if(.., |(number, _)| *number == self.number)
            .collect();
        self.schedule.count.store(works.len(), Ordering::Relaxed);
        // What the work holds may end with it, in calls that come back to this lock.
        drop(works);
        drop(gone);
    }
}

impl fmt::Debug for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Beside({})", self.number)
    }
}
