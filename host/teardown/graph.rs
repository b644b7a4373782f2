//! All live nodes of a context, in the order in which they were created.
//!
//! Knows: that the reverse order has children before parents, what a refusal freezes, and what was refused.
//! Must not know: what any node is.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use tracing::error;

use super::gate::Gate;
use super::report::{self, CloseReport, Notes, Retained, noting};
use super::{NAP, QUIESCE, Slot, Stage};
use crate::error::{Error, Result};

/// The nodes of a context.
///
/// A kept node leads to its context, and that to this list: the cycle is what keeps all of them when every handle is
/// gone.
#[derive(Clone)]
pub(crate) struct Graph(Arc<State>);

struct State {
    name: &'static str,
    gate: Gate,
    /// Held by whoever closes the context: a second one waits, and finds what the first has left.
    closing: Mutex<()>,
    entries: Mutex<BTreeMap<u64, Entry>>,
}

struct Entry {
    slot: Weak<dyn Slot>,
    /// The node itself, if no handle is left.
    _kept: Option<Arc<dyn Slot>>,
    refused: Option<Retained>,
}

/// A node by its number.
pub(crate) enum Found {
    /// Alive.
    Here(Arc<dyn Slot>),
    /// Being dropped: it goes, or is retained.
    Going,
    /// Destroyed.
    Gone,
}

/// A call that needs the context to be open, under way.
pub(crate) struct Entered(Graph);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.0.gate.leave();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Graph {
    /// No nodes. `name` is the context's.
    pub(crate) fn new(name: &'static str) -> Self {
        Self(Arc::new(State {
            name,
            gate: Gate::new(),
            closing: Mutex::default(),
            entries: Mutex::default(),
        }))
    }

    /// Begins a call that needs the context to be open. Closing waits until it has ended.
    pub(crate) fn enter(&self) -> Result<Entered> {
        if self.0.gate.enter() {
            Ok(Entered(self.clone()))
        } else {
            Err(Error::Closed { what: self.0.name })
        }
    }

    pub(super) fn add(&self, id: u64, slot: &Arc<dyn Slot>) {
        let entry = Entry {
            slot: Arc::downgrade(slot),
            _kept: None,
            refused: None,
        };
        lock(&self.0.entries).insert(id, entry);
    }

    pub(super) fn forget(&self, id: u64) {
        // Dropped after the lock is released: an entry may hold the last reference to a node.
        let gone = lock(&self.0.entries).remove(&id);
        drop(gone);
    }

    /// A node by its number.
    pub(crate) fn find(&self, id: u64) -> Found {
        match lock(&self.0.entries).get(&id) {
            None => Found::Gone,
            Some(entry) => entry.slot.upgrade().map_or(Found::Going, Found::Here),
        }
    }

    /// Keeps a node that could not be destroyed when its last handle was dropped.
    pub(super) fn keep(&self, slot: Arc<dyn Slot>, cause: &Error) {
        let retained = describe(&*slot, cause);
        error!(%retained, "not destroyed: retained with all that it depends on");
        report::note(|notes| notes.retained.push(retained.clone()));
        let entry = Entry {
            slot: Arc::downgrade(&slot),
            _kept: Some(slot.clone()),
            refused: Some(retained),
        };
        lock(&self.0.entries).insert(slot.id(), entry);
    }

    /// What could not be destroyed.
    pub(crate) fn retained(&self) -> Vec<Retained> {
        lock(&self.0.entries)
            .values()
            .filter_map(|entry| entry.refused.clone())
            .collect()
    }

    /// Tries again to destroy what could not be, and returns what still could not.
    pub(crate) fn retry(&self, deadline: Instant) -> Vec<Retained> {
        let _one = lock(&self.0.closing);
        let slots = self.slots(|entry| entry.refused.is_some());
        self.take_down(slots, deadline);
        self.retained()
    }

    /// Closes the context: lets no call begin, waits for those under way, and takes down all nodes in stages.
    pub(crate) fn close(&self, deadline: Instant) -> CloseReport {
        self.0.gate.shut();
        let _one = lock(&self.0.closing);
        self.settle(deadline);
        let slots = self.slots(|_| true);
        self.take_down(slots, deadline)
    }

    /// Takes some nodes down in stages. One such call at a time: a second finds what the first has left.
    pub(crate) fn sweep(&self, slots: Vec<Arc<dyn Slot>>, deadline: Instant) -> CloseReport {
        let _one = lock(&self.0.closing);
        sweep(slots, deadline).0
    }

    /// Waits until what other threads are dropping is gone, or retained.
    fn settle(&self, deadline: Instant) {
        let going = || {
            lock(&self.0.entries)
                .values()
                .any(|entry| entry.slot.strong_count() == 0)
        };
        while going() && Instant::now() < deadline {
            std::thread::sleep(NAP);
        }
    }

    fn slots(&self, wanted: impl Fn(&Entry) -> bool) -> Vec<Arc<dyn Slot>> {
        lock(&self.0.entries)
            .values()
            .filter(|entry| wanted(entry))
            .filter_map(|entry| entry.slot.upgrade())
            .collect()
    }

    fn take_down(&self, slots: Vec<Arc<dyn Slot>>, deadline: Instant) -> CloseReport {
        let (report, refused) = sweep(slots, deadline);
        let mut entries = lock(&self.0.entries);
        let mut gone = Vec::new();
        for entry in entries.values_mut() {
            entry.refused = entry.slot.upgrade().and_then(|slot| {
                let found = refused.get(&slot.id()).cloned();
                gone.push(slot);
                found.or_else(|| entry.refused.take())
            });
        }
        drop(entries);
        // The last reference to a node may be here; its drop comes back to the list.
        drop(gone);
        report
    }
}

/// Takes nodes down in stages. What refuses, and all that it depends on, stays; the others go on.
fn sweep(
    mut slots: Vec<Arc<dyn Slot>>,
    deadline: Instant,
) -> (CloseReport, BTreeMap<u64, Retained>) {
    slots.sort_unstable_by_key(|slot| slot.id());
    let mut left = Vec::new();
    let (mut refused, notes) = noting(|| {
        let refused = take_down(&slots, deadline);
        left = slots
            .iter()
            .filter(|slot| refused.contains_key(&slot.id()))
            .map(|slot| (slot.id(), Arc::downgrade(slot)))
            .collect();
        // The last handle to a node may be here: what held it was closed meanwhile. It goes now, or is retained anew.
        drop(slots);
        refused
    });
    let Notes {
        released,
        retained: dropped,
        untold,
    } = notes;
    let mut stage = (!dropped.is_empty()).then_some(Stage::Unexported);
    for (id, slot) in left {
        match slot.upgrade() {
            Some(slot) => stage = Some(stage.map_or(slot.stage(), |known| known.min(slot.stage()))),
            None => drop(refused.remove(&id)),
        }
    }
    let stage = stage.unwrap_or(Stage::Destroyed);
    let report = CloseReport {
        stage,
        released,
        retained: refused.values().cloned().chain(dropped).collect(),
        untold,
    };
    (report, refused)
}

fn take_down(slots: &[Arc<dyn Slot>], deadline: Instant) -> BTreeMap<u64, Retained> {
    let mut refused: BTreeMap<u64, Error> = BTreeMap::new();
    for stage in QUIESCE {
        for slot in slots {
            if !refused.contains_key(&slot.id())
                && let Err(cause) = slot.advance(stage, deadline)
            {
                refused.insert(slot.id(), cause);
            }
        }
    }
    let mut frozen = BTreeSet::new();
    for slot in slots.iter().rev() {
        if !refused.contains_key(&slot.id()) && !frozen.contains(&slot.id()) {
            match slot.close() {
                Ok(()) => continue,
                Err(cause) => {
                    refused.insert(slot.id(), cause);
                }
            }
        }
        // What it depends on stays because of it, and not for a reason of its own.
        frozen.extend(slot.parents().iter().map(|parent| parent.id()));
    }
    slots
        .iter()
        .filter_map(|slot| Some((slot.id(), describe(&**slot, refused.get(&slot.id())?))))
        .collect()
}

fn describe(slot: &dyn Slot, cause: &Error) -> Retained {
    let mut set = BTreeMap::new();
    let mut queue = slot.parents();
    while let Some(parent) = queue.pop() {
        if set.insert(parent.id(), parent.name()).is_none() {
            queue.extend(parent.parents());
        }
    }
    Retained {
        node: slot.name(),
        cause: cause.to_string(),
        kind: cause.kind(),
        // Children before parents.
        set: set.into_values().rev().collect(),
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.retained()).finish()
    }
}
