//! Destruction: exactly once, children before parents, and nothing freed that a refusal leaves in use.
//!
//! Knows: that a node of the resource graph is created after its parents and undone by one driver call, that it may have
//! stages to go through before, and what happens when a call is refused. Must not know: what any node is.
//!
//! A [`Shared`] is a handle to a node. A node's fields hold its parents by [`Pin`]: as long as a parent is pinned, it is
//! not destroyed. A node goes with its last handle, when it is closed through any handle, or when its context is closed;
//! the other handles then fail with [`Error::Closed`]. When a driver refuses, the hardware may still use the node: it
//! stays, with all that it pins. If no handle is left, its [`Graph`] keeps it, to be inspected and tried again.

mod baton;
mod gate;
mod graph;
mod report;
mod stage;
mod sync;
mod wait;

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::debug;

use crate::error::{Error, Result};

pub(crate) use baton::{Baton, Held as BatonHeld};
use gate::{Claim, Gate};
pub(crate) use graph::{Entered, Found, Graph};
pub use report::{CloseReport, NodeId, Retained};
pub(crate) use report::{attach, building, untold};
pub(crate) use stage::StageCell;
pub use stage::{Stage, StageEvent};
pub(crate) use wait::{GRACE, Wait, deadline_after, poll};

/// The stages before destruction.
pub(crate) const QUIESCE: [Stage; 4] = [
    Stage::Stopping,
    Stage::Synced,
    Stage::Drained,
    Stage::Unexported,
];

/// A node of the resource graph.
pub(crate) trait Node: Send + Sync + 'static {
    /// What it is, in messages.
    const NAME: &'static str;

    /// The number by which its device names it, or its address, if it is an object of a device.
    fn number(&self) -> Option<u64> {
        None
    }

    /// Brings it to a stage before destruction; nothing to do for most. Resumes after a refusal, and after a turn that was
    /// too short.
    fn advance(&self, _to: Stage, _wait: Wait) -> Result<()> {
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
    fn name(&self) -> NodeId;
    fn parents(&self) -> Vec<Arc<dyn Slot>>;
    fn stage(&self) -> Stage;
    fn advance(&self, to: Stage, wait: Wait) -> Result<()>;
    /// Destroys the node; does nothing if that was done. Busy while it is pinned. Waits for calls under way, at most until
    /// the turn is over.
    fn close(&self, wait: Wait) -> Result<()>;
}

/// Numbers of nodes rise: parents come before children.
static ISSUED: AtomicU64 = AtomicU64::new(0);

struct Held<N: Node> {
    id: u64,
    name: NodeId,
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

    fn name(&self) -> NodeId {
        self.name
    }

    fn parents(&self) -> Vec<Arc<dyn Slot>> {
        self.current()
            .map(|node| node.parents())
            .unwrap_or_default()
    }

    fn stage(&self) -> Stage {
        self.current().map_or(Stage::Destroyed, |node| node.stage())
    }

    fn advance(&self, to: Stage, wait: Wait) -> Result<()> {
        self.visit(|node| node.advance(to, wait)).unwrap_or(Ok(()))
    }

    fn close(&self, wait: Wait) -> Result<()> {
        match self.gate.claim(wait.turn()) {
            Claim::Closed => return Ok(()),
            Claim::Late => return Err(wait.timeout("another thread's call")),
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
        // A second reference keeps the list alive while the node that leads to it moves into it.
        let graph = node.graph().clone();
        let wait = graph.grace();
        let destroyed = QUIESCE
            .into_iter()
            .try_for_each(|stage| node.advance(stage, wait))
            .and_then(|()| node.destroy());
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
                    name: self.name,
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
        let name = NodeId {
            kind: N::NAME,
            number: node.number(),
        };
        debug!(node = %name, "created");
        let graph = node.graph().clone();
        let id = ISSUED.fetch_add(1, Ordering::Relaxed);
        let held = Arc::new(Held {
            id,
            name,
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
        let wait = Wait::within(GRACE);
        for stage in QUIESCE {
            self.0.advance(stage, wait)?;
        }
        self.0.close(wait)
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
    /// Keeps it no more. What is returned is a handle like any other, with which the node may go.
    pub(crate) fn unpin(self) -> Shared<N> {
        self.of.clone()
    }

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

#[cfg(test)]
mod tests;
