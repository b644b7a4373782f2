//! Streams: launches in order, each as CPU threads.
//!
//! Knows: blocks, how many threads run at a time, what is done.
//! Must not know: what a kernel does.
//!
//! One of the files with `unsafe`: it calls kernels.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use warpverbs_device::thread::{Place, Team};

use super::kernels::Native;

/// Threads that run at a time, as many as an SM holds.
pub(super) const RESIDENT: u32 = 2048;
/// Threads of a block at most, as on a GPU.
pub(super) const MOST_BLOCK: u32 = 1024;
/// Stack of a thread: kernels are loops over a few registers.
const STACK: usize = 256 << 10;

/// A launch: a one-dimensional grid.
pub(super) struct Launch {
    pub(super) kernel: &'static Native,
    pub(super) blocks: u32,
    pub(super) block_threads: u32,
    pub(super) params: Vec<u8>,
}

/// Streams by handle.
#[derive(Default)]
pub(super) struct Streams {
    live: BTreeMap<u64, Stream>,
    /// Destroyed, perhaps with work left.
    ending: Vec<JoinHandle<()>>,
    failure: Arc<Failure>,
}

struct Stream {
    work: Sender<Launch>,
    thread: JoinHandle<()>,
    given: u64,
    done: Arc<AtomicU64>,
}

/// A point in a stream: what was given to it before.
#[derive(Clone)]
pub(super) struct Mark {
    done: Arc<AtomicU64>,
    given: u64,
}

impl Mark {
    pub(super) fn is_reached(&self) -> bool {
        // Acquires what the launches did.
        self.done.load(Ordering::Acquire) >= self.given
    }
}

/// Why the GPU is dead, once it is.
#[derive(Default)]
pub(super) struct Failure {
    dead: AtomicBool,
    why: Mutex<String>,
}

impl Failure {
    fn note(&self, why: String) {
        let mut first = self.why.lock().unwrap_or_else(PoisonError::into_inner);
        if first.is_empty() {
            *first = why;
        }
        self.dead.store(true, Ordering::Release);
    }

    pub(super) fn why(&self) -> Option<String> {
        self.dead.load(Ordering::Acquire).then(|| {
            self.why
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone()
        })
    }
}

impl Streams {
    pub(super) fn failure(&self) -> Option<String> {
        self.failure.why()
    }

    /// Creates a stream with this handle.
    pub(super) fn create(&mut self, handle: u64) -> std::io::Result<()> {
        let (work, launches) = mpsc::channel::<Launch>();
        let done = Arc::new(AtomicU64::new(0));
        let (reached, failure) = (done.clone(), self.failure.clone());
        let thread = thread::Builder::new()
            .name(format!("stream {handle}"))
            .spawn(move || {
                for launch in launches {
                    if failure.why().is_none() {
                        run(&launch, &failure);
                    }
                    reached.fetch_add(1, Ordering::Release);
                }
            })?;
        let stream = Stream {
            work,
            thread,
            given: 0,
            done,
        };
        self.live.insert(handle, stream);
        Ok(())
    }

    /// Destroys a stream: it ends when its work is done. False if there is none.
    pub(super) fn destroy(&mut self, handle: u64) -> bool {
        self.ending.retain(|thread| !thread.is_finished());
        match self.live.remove(&handle) {
            Some(stream) => {
                drop(stream.work);
                self.ending.push(stream.thread);
                true
            }
            None => false,
        }
    }

    /// A point behind all that a stream was given.
    pub(super) fn mark(&self, handle: u64) -> Option<Mark> {
        let stream = self.live.get(&handle)?;
        Some(Mark {
            done: stream.done.clone(),
            given: stream.given,
        })
    }

    /// Gives a stream a launch. False if there is no such stream.
    ///
    /// # Safety
    ///
    /// As for [`crate::driver::Gpu::launch`].
    pub(super) unsafe fn give(&mut self, handle: u64, launch: Launch) -> bool {
        let Some(stream) = self.live.get_mut(&handle) else {
            return false;
        };
        let given = stream.work.send(launch).is_ok();
        stream.given += u64::from(given);
        given
    }

    pub(super) fn live(&self) -> impl Iterator<Item = String> + '_ {
        self.live
            .keys()
            .map(|handle| format!("GPU stream {handle:#x}"))
    }
}

impl Drop for Streams {
    /// Waits for every thread: kernels end, since each of their waits does (rule O9).
    fn drop(&mut self) {
        let live = std::mem::take(&mut self.live).into_values();
        let threads = live.map(|stream| {
            drop(stream.work);
            stream.thread
        });
        for thread in threads.chain(std::mem::take(&mut self.ending)) {
            // A kernel's panic was caught and noted; there is no other.
            let _ = thread.join();
        }
    }
}

/// Runs a launch: blocks begin in order, each when there is room for all of its threads.
fn run(launch: &Launch, failure: &Failure) {
    let running = Mutex::new(0);
    let freed = Condvar::new();
    thread::scope(|scope| {
        for block in 0..launch.blocks {
            let mut now = running.lock().unwrap_or_else(PoisonError::into_inner);
            while *now + launch.block_threads > RESIDENT && *now > 0 {
                now = freed.wait(now).unwrap_or_else(PoisonError::into_inner);
            }
            *now += launch.block_threads;
            drop(now);
            let left = Arc::new(AtomicU64::new(launch.block_threads.into()));
            let team = Team::default();
            for thread in 0..launch.block_threads {
                let (left, running, freed) = (left.clone(), &running, &freed);
                let team = team.clone();
                let place = Place {
                    thread,
                    block_threads: launch.block_threads,
                    block,
                    blocks: launch.blocks,
                };
                let ended = move || {
                    if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                        let mut now = running.lock().unwrap_or_else(PoisonError::into_inner);
                        *now -= place.block_threads;
                        freed.notify_all();
                    }
                };
                let spawned = thread::Builder::new()
                    .stack_size(STACK)
                    .spawn_scoped(scope, {
                        let ended = ended.clone();
                        move || {
                            place.take_in(&team);
                            // SAFETY: `Streams::give`'s caller promised it for this launch.
                            let call = || unsafe { launch.kernel.run(&launch.params) };
                            if catch_unwind(AssertUnwindSafe(call)).is_err() {
                                failure.note(format!(
                                    "thread {thread} of block {block} of {} panicked",
                                    launch.kernel.name
                                ));
                            }
                            ended();
                        }
                    });
                if let Err(error) = spawned {
                    failure.note(format!("no thread for {}: {error}", launch.kernel.name));
                    ended();
                }
            }
        }
    });
}
