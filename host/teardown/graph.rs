//! All live nodes of a context, in the order in which they were created.
//!
//! Knows: that the reverse order has children before parents, what a refusal freezes, and what was refused.
//! Must not know: what any node is.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tracing::error;

use super::baton::Baton;
use super::gate::Gate;
use super::report::{self, CloseReport, NodeId, Notes, Retained, noting};
use super::wait::{GRACE, NAP};
use super::{QUIESCE, Slot, Stage, Wait};
use crate::error::{Error, ErrorKind, Result};

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
    closing: Baton,
    entries: Mutex<BTreeMap<u64, Entry>>,
}

struct Entry {
    name: NodeId,
    slot: Weak<dyn Slot>,
    /// The node itself, if no handle is left.
    kept: Option<Arc<dyn Slot>>,
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
            closing: Baton::new(),
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

    /// How long a drop waits: not at all once the context is closed, since that close has waited.
    pub(super) fn grace(&self) -> Wait {
        Wait::within(if self.0.gate.is_shut() {
            Duration::ZERO
        } else {
            GRACE
        })
    }

    pub(super) fn add(&self, id: u64, slot: &Arc<dyn Slot>) {
        let entry = Entry {
            name: slot.name(),
            slot: Arc::downgrade(slot),
            kept: None,
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
            name: slot.name(),
            slot: Arc::downgrade(&slot),
            kept: Some(slot.clone()),
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
        let mut left = self.retained();
        if let Some(_one) = self.0.closing.take(deadline) {
            // What goes may have been the cause why another stays.
            loop {
                let before = left.len();
                let slots = self.slots(|entry| entry.refused.is_some());
                self.take_down(slots, deadline, true);
                left = self.retained();
                if left.is_empty() || left.len() >= before {
                    break;
                }
            }
        }
        left
    }

    /// Closes the context: lets no call begin, waits for those under way, and takes down all nodes in stages.
    ///
    /// A call that does not end in time keeps what it uses, and no more: whatever it makes after that is rolled back, or is
    /// found by the next close.
    pub(crate) fn close(&self, deadline: Instant) -> CloseReport {
        let wait = Wait::until(deadline);
        let calls = self.0.gate.shut(deadline);
        let Some(_one) = self.0.closing.take(deadline) else {
            return self.held(&wait, self.names());
        };
        let mut going = self.settle(&wait);
        if calls > 0 {
            going.push(self.late(format!("{calls} call(s) under way"), &wait, Vec::new()));
        }
        let slots = self.slots(|_| true);
        let mut report = self.take_down(slots, deadline, true);
        if !going.is_empty() {
            report.stage = report.stage.min(Stage::Stopping);
            report.retained.append(&mut going);
        }
        report
    }

    /// Takes some nodes down in stages. One such call at a time: a second finds what the first has left.
    pub(crate) fn sweep(&self, slots: Vec<Arc<dyn Slot>>, deadline: Instant) -> CloseReport {
        let wait = Wait::until(deadline);
        match self.0.closing.take(deadline) {
            Some(_one) => self.take_down(slots, deadline, false),
            None => self.held(&wait, slots.iter().map(|slot| slot.name()).collect()),
        }
    }

    /// The report of a close that another thread did not let in.
    fn held(&self, wait: &Wait, set: Vec<NodeId>) -> CloseReport {
        CloseReport {
            stage: Stage::Stopping,
            released: BTreeMap::new(),
            retained: vec![self.late("another thread's close".into(), wait, set)],
            untold: Vec::new(),
        }
    }

    fn late(&self, what: String, wait: &Wait, set: Vec<NodeId>) -> Retained {
        Retained {
            node: NodeId::unnumbered(self.0.name),
            cause: format!("{what} did not finish within {:?}", wait.elapsed()),
            kind: ErrorKind::Timeout,
            set,
        }
    }

    /// Waits until what other threads are dropping is gone, or retained; what is neither at the deadline.
    fn settle(&self, wait: &Wait) -> Vec<Retained> {
        loop {
            let going: Vec<NodeId> = lock(&self.0.entries)
                .values()
                .filter(|entry| entry.slot.strong_count() == 0)
                .map(|entry| entry.name)
                .collect();
            if going.is_empty() || wait.is_over() {
                let late = |node| Retained {
                    node,
                    ..self.late("another thread's drop of it".into(), wait, Vec::new())
                };
                return going.into_iter().map(late).collect();
            }
            std::thread::sleep(NAP);
        }
    }

    fn names(&self) -> Vec<NodeId> {
        let entries = lock(&self.0.entries);
        entries.values().rev().map(|entry| entry.name).collect()
    }

    /// All nodes, and what each depends on.
    #[cfg(all(test, feature = "sim"))]
    pub(crate) fn nodes(&self) -> Vec<(NodeId, Vec<NodeId>)> {
        let names = |slots: Vec<Arc<dyn Slot>>| slots.iter().map(|slot| slot.name()).collect();
        let slots = self.slots(|_| true);
        slots
            .iter()
            .map(|slot| (slot.name(), names(slot.parents())))
            .collect()
    }

    fn slots(&self, wanted: impl Fn(&Entry) -> bool) -> Vec<Arc<dyn Slot>> {
        lock(&self.0.entries)
            .values()
            .filter(|entry| wanted(entry))
            .filter_map(|entry| entry.slot.upgrade())
            .collect()
    }

    /// Takes nodes down in stages. What refuses, and all that it depends on, stays; the others go on. `for_good`: what
    /// refuses is to be tried again, whoever holds it; otherwise that is up to whoever does.
    fn take_down(
        &self,
        mut slots: Vec<Arc<dyn Slot>>,
        deadline: Instant,
        for_good: bool,
    ) -> CloseReport {
        slots.sort_unstable_by_key(|slot| slot.id());
        let (refused, notes) = noting(|| take_down(&slots, deadline));
        let Notes {
            released,
            retained: dropped,
            untold,
        } = notes;
        let stage = slots
            .iter()
            .filter(|slot| refused.contains_key(&slot.id()))
            .map(|slot| slot.stage())
            .chain((!dropped.is_empty()).then_some(Stage::Unexported))
            .min()
            .unwrap_or(Stage::Destroyed);
        self.note(slots, &refused, for_good);
        CloseReport {
            stage,
            released,
            retained: refused.into_values().chain(dropped).collect(),
            untold,
        }
    }

    /// Notes which nodes have refused, and keeps those of them that nobody else has: their children held them, and are
    /// gone.
    fn note(&self, slots: Vec<Arc<dyn Slot>>, refused: &BTreeMap<u64, Retained>, for_good: bool) {
        let mut entries = lock(&self.0.entries);
        for slot in &slots {
            let alone = Arc::strong_count(slot) == 1;
            if let (Some(entry), Some(retained)) =
                (entries.get_mut(&slot.id()), refused.get(&slot.id()))
                && (for_good || alone)
            {
                entry.refused = Some(retained.clone());
                if alone {
                    entry.kept = Some(slot.clone());
                }
            }
        }
        drop(entries);
        // The last reference to a node may be here all the same; its drop comes back to the list.
        drop(slots);
    }
}

fn take_down(slots: &[Arc<dyn Slot>], deadline: Instant) -> BTreeMap<u64, Retained> {
    let mut refused = quiesce(slots, deadline);
    destroy(slots, &mut refused, deadline);
    slots
        .iter()
        .filter_map(|slot| Some((slot.id(), describe(&**slot, refused.get(&slot.id())?))))
        .collect()
}

/// Brings nodes to the last stage before destruction, and says which refuse. Each goes on as soon as it can: what holds one
/// up takes its own turns, not the others' time.
fn quiesce(slots: &[Arc<dyn Slot>], deadline: Instant) -> BTreeMap<u64, Error> {
    let wait = Wait::until(deadline);
    let mut refused = BTreeMap::new();
    let mut under_way: Vec<_> = slots.iter().map(|slot| (slot, &QUIESCE[..])).collect();
    // All are told to stop before any is waited for.
    let mut stopping = true;
    while !under_way.is_empty() {
        let alone = under_way.len() == 1;
        under_way.retain_mut(|(slot, stages)| {
            let turn = if alone { wait } else { wait.next_turn() };
            while let [next, later @ ..] = *stages {
                match slot.advance(*next, turn) {
                    Ok(()) => *stages = later,
                    Err(cause) if is_late(&cause) && !turn.is_last() => return true,
                    Err(cause) => {
                        refused.insert(slot.id(), cause);
                        return false;
                    }
                }
                // Handles are cleared together: of all that are drained in one round, in the next.
                if stopping || matches!(later, [Stage::Unexported]) {
                    return true;
                }
            }
            false
        });
        stopping = false;
    }
    refused
}

/// Destroys nodes backwards, and adds those that refuse.
fn destroy(slots: &[Arc<dyn Slot>], refused: &mut BTreeMap<u64, Error>, deadline: Instant) {
    let wait = Wait::until(deadline);
    let mut late = true;
    while std::mem::take(&mut late) {
        let mut frozen = BTreeSet::new();
        // A QP in error keeps regions that are younger than it is.
        for slot in slots.iter().filter(|slot| refused.contains_key(&slot.id())) {
            frozen.extend(slot.parents().iter().map(|parent| parent.id()));
        }
        for slot in slots.iter().rev() {
            if !refused.contains_key(&slot.id()) && !frozen.contains(&slot.id()) {
                let turn = wait.next_turn();
                match slot.close(turn) {
                    Ok(()) => continue,
                    Err(cause) if is_late(&cause) && !turn.is_last() => late = true,
                    Err(cause) => {
                        refused.insert(slot.id(), cause);
                    }
                }
            }
            // What it depends on stays because of it, and not for a reason of its own.
            frozen.extend(slot.parents().iter().map(|parent| parent.id()));
        }
    }
}

fn is_late(cause: &Error) -> bool {
    cause.kind() == ErrorKind::Timeout
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
