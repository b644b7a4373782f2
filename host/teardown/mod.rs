//! Destruction: exactly once, children before parents, and nothing freed that a refusal leaves in use.
//!
//! Knows: that a node of the resource graph is created after its parents and undone by one driver call, that it may have
//! stages to go through before, and what happens when a call is refused. Must not know: what any node is.
//!
//! A [`Shared`] is a handle to a node. A node's fields hold its parents by [`Pin`]: as long as a parent is pinned, it is
//! not destroyed. A node goes with its last handle, when it is closed through any handle, or when its context is closed;
//! the other handles then fail with [`Error::Closed`]. When a driver refuses, the hardware may still use the node: it
//! stays, with all that it pins. If no handle is left, its [`Graph`] keeps it, to be inspected and tried again.

mod gate;
mod graph;
mod report;
mod stage;
mod sync;

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::debug;

use crate::error::{Error, Result};

use gate::{Claim, Gate};
pub(crate) use graph::{Entered, Found, Graph};
pub use report::{CloseReport, Retained};
pub(crate) use report::{attach, building, untold};
pub(crate) use stage::StageCell;
pub use stage::{Stage, StageEvent};

/// How long a drop, or a close without a deadline, waits for kernels and for work requests.
pub(crate) const GRACE: Duration = Duration::from_secs(5);

/// The stages before destruction.
const QUIESCE: [Stage; 4] = [
    Stage::Stopping,
    Stage::Synced,
    Stage::Drained,
    Stage::Unexported,
];

/// A node of the resource graph.
pub(crate) trait Node: Send + Sync + 'static {
    /// What it is, in messages.
    const NAME: &'static str;

    /// Brings it to a stage before destruction; nothing to do for most. Resumes after a refusal.
    fn advance(&self, _to: Stage, _deadline: Instant) -> Result<()> {
        Ok(())
    }

    /// The stage it is in, of those it has.
    fn stage(&self) -> Stage {
        Stage::Unexported
    }

    /// Undoes the driver call that created it. Called until it succeeds once, and never after that.
    fn destroy(&self) -> Result<()>;

    /// The graph that it is a node of.
    fn graph(&self) -> &Graph;

    /// What it pins.
    fn parents(&self) -> Vec<Arc<dyn Slot>>;
}

/// A node where it stands: what the graph knows of it.
pub(crate) trait Slot: Send + Sync {
    fn id(&self) -> u64;
    fn name(&self) -> &'static str;
    fn parents(&self) -> Vec<Arc<dyn Slot>>;
    fn stage(&self) -> Stage;
    fn advance(&self, to: Stage, deadline: Instant) -> Result<()>;
    /// Destroys the node; does nothing if that was done. Busy while it is pinned.
    fn close(&self) -> Result<()>;
}

/// Numbers of nodes rise: parents come before children.
static ISSUED: AtomicU64 = AtomicU64::new(0);

struct Held<N: Node> {
    id: u64,
    gate: Gate,
    node: Mutex<Option<Arc<N>>>,
}

impl<N: Node> Held<N> {
    fn node(&self) -> MutexGuard<'_, Option<Arc<N>>> {
        self.node.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn current(&self) -> Option<Arc<N>> {
        self.node().clone()
    }

    /// One look at the node, if it is open. Whoever destroys it waits.
    fn visit<T>(&self, look: impl FnOnce(&N) -> T) -> Option<T> {
        if !self.gate.visit() {
            return None;
        }
        let looked = self.current().map(|node| look(&node));
        self.gate.depart();
        looked
    }
}

impl<N: Node> Slot for Held<N> {
    fn id(&self) -> u64 {
        self.id
    }

    fn name(&self) -> &'static str {
        N::NAME
    }

    fn parents(&self) -> Vec<Arc<dyn Slot>> {
        self.current()
            .map(|node| node.parents())
            .unwrap_or_default()
    }

    fn stage(&self) -> Stage {
        self.current().map_or(Stage::Destroyed, |node| node.stage())
    }

    fn advance(&self, to: Stage, deadline: Instant) -> Result<()> {
        self.visit(|node| node.advance(to, deadline))
            .unwrap_or(Ok(()))
    }

    fn close(&self) -> Result<()> {
        match self.gate.claim() {
            Claim::Closed => return Ok(()),
            Claim::Busy(users) => {
                return Err(Error::Busy {
                    what: N::NAME,
                    users,
                });
            }
            Claim::Yours => {}
        }
        let Some(node) = self.current() else {
            self.gate.settle(true);
            return Ok(());
        };
        if let Err(refusal) = node.destroy() {
            self.gate.settle(false);
            return Err(refusal);
        }
        destroyed_now::<N>();
        let graph = node.graph().clone();
        // Unpins its parents, handles or not, before anyone is told. Taken first: the lock is not held while they go.
        let taken = self.node().take();
        drop((taken, node));
        graph.forget(self.id);
        self.gate.settle(true);
        Ok(())
    }
}

fn destroyed_now<N: Node>() {
    debug!(node = N::NAME, "destroyed");
    report::note(|notes| *notes.released.entry(N::NAME).or_default() += 1);
}

impl<N: Node> Drop for Held<N> {
    fn drop(&mut self) {
        // Whoever pins the node holds the slot, so nobody does any more.
        let Some(node) = self.node().take() else {
            return;
        };
        let deadline = Instant::now() + GRACE;
        let destroyed = QUIESCE
            .into_iter()
            .try_for_each(|stage| node.advance(stage, deadline))
            .and_then(|()| node.destroy());
        // A second reference keeps the list alive while the node that leads to it moves into it.
        let graph = node.graph().clone();
        match destroyed {
            Ok(()) => {
                destroyed_now::<N>();
                // Unpins its parents before anyone is told.
                drop(node);
                graph.forget(self.id);
            }
            Err(cause) => graph.keep(
                Arc::new(Self {
                    id: self.id,
                    gate: Gate::new(),
                    node: Mutex::new(Some(node)),
                }),
                &cause,
            ),
        }
    }
}

/// A handle to a node. Clones are the same node.
pub(crate) struct Shared<N: Node>(Arc<Held<N>>);

impl<N: Node> Clone for Shared<N> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<N: Node> Shared<N> {
    /// A node that a driver call has just created.
    pub(crate) fn new(node: N) -> Self {
        debug!(node = N::NAME, "created");
        let graph = node.graph().clone();
        let id = ISSUED.fetch_add(1, Ordering::Relaxed);
        let held = Arc::new(Held {
            id,
            gate: Gate::new(),
            node: Mutex::new(Some(Arc::new(node))),
        });
        let slot: Arc<dyn Slot> = held.clone();
        graph.add(id, &slot);
        Self(held)
    }

    /// Keeps the node from being destroyed, if it is not closed.
    pub(crate) fn pin(&self) -> Result<Pin<N>> {
        if !self.0.gate.enter() {
            return Err(Error::Closed { what: N::NAME });
        }
        match self.0.current() {
            Some(node) => Ok(Pin {
                node: Some(node),
                of: self.clone(),
            }),
            None => {
                self.0.gate.leave();
                Err(Error::Closed { what: N::NAME })
            }
        }
    }

    /// Uses the node for one call, if it is not closed.
    pub(crate) fn visit<T>(&self, look: impl FnOnce(&N) -> T) -> Result<T> {
        self.0.visit(look).ok_or(Error::Closed { what: N::NAME })
    }

    /// Destroys the node; does nothing if that was done. Busy while it is pinned.
    pub(crate) fn close(&self) -> Result<()> {
        let deadline = Instant::now() + GRACE;
        for stage in QUIESCE {
            self.0.advance(stage, deadline)?;
        }
        self.0.close()
    }

    pub(crate) fn slot(&self) -> Arc<dyn Slot> {
        self.0.clone()
    }

    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }
}

impl<N: Node> fmt::Debug for Shared<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(N::NAME)?;
        if self.0.gate.is_closed() {
            f.write_str(" (closed)")?;
        }
        Ok(())
    }
}

/// Keeps a node from being destroyed.
pub(crate) struct Pin<N: Node> {
    node: Option<Arc<N>>,
    of: Shared<N>,
}

impl<N: Node> Pin<N> {
    pub(crate) fn slot(&self) -> Arc<dyn Slot> {
        self.of.slot()
    }
}

impl<N: Node> Deref for Pin<N> {
    type Target = N;
    fn deref(&self) -> &N {
        match &self.node {
            Some(node) => node,
            // Taken in `drop` only.
            None => unreachable!("a pin without a node"),
        }
    }
}

impl<N: Node> Drop for Pin<N> {
    fn drop(&mut self) {
        self.node = None;
        self.of.0.gate.leave();
    }
}

impl<N: Node> fmt::Debug for Pin<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(N::NAME)
    }
}

/// Queries in a row before a waiting thread sleeps between them.
const EAGER_QUERIES: u32 = 64;
/// How long it sleeps.
const NAP: Duration = Duration::from_micros(50);

/// The moment when `time` has passed. A time too long for the clock is as good as a century.
pub(crate) fn deadline_after(time: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    Instant::now() + time.min(CENTURY)
}

/// Calls `look` until it says that it is done, at least a few times, and at most until the deadline.
pub(crate) fn poll(
    what: &'static str,
    deadline: Instant,
    mut look: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let started = Instant::now();
    let mut looks = 0u32;
    while !look()? {
        looks = looks.saturating_add(1);
        let now = Instant::now();
        if looks > EAGER_QUERIES || now >= deadline {
            if now >= deadline {
                return Err(Error::Timeout {
                    what,
                    waited: now - started,
                });
            }
            std::thread::sleep(NAP);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
