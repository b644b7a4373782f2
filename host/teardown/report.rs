//! What a teardown did, what it left, and why.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

use super::Stage;
use crate::error::{Error, ErrorKind, Result};

/// A node of the graph of what was built: one object, or one launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct NodeId {
    /// What it is: one of [`crate::NODE_KINDS`].
    pub kind: &'static str,
    /// The number by which its device names it, or its address. `None` if no device knows it, such as a launch.
    pub number: Option<u64>,
}

impl NodeId {
    /// A node that no device knows.
    pub(crate) fn unnumbered(kind: &'static str) -> Self {
        Self { kind, number: None }
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind)?;
        match self.number {
            Some(number) => write!(f, " {number:#x}"),
            None => Ok(()),
        }
    }
}

/// Something that was not destroyed, because a driver refused or because something still uses it. It and all that it
/// depends on stay: the hardware may still access them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retained {
    /// What it is.
    pub node: NodeId,
    /// Why it stays.
    pub cause: String,
    /// Which kind of failure that is.
    pub kind: ErrorKind,
    /// What it depends on, which stays with it.
    pub set: Vec<NodeId>,
}

impl fmt::Display for Retained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.node, self.cause)?;
        if !self.set.is_empty() {
            let set: Vec<_> = self.set.iter().map(NodeId::to_string).collect();
            write!(f, " (with it stay: {})", set.join(", "))?;
        }
        Ok(())
    }
}

/// What closing did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CloseReport {
    /// The stage that everything has reached: [`Stage::Destroyed`] if nothing is left.
    pub stage: Stage,
    /// How many of what were destroyed.
    pub released: BTreeMap<&'static str, usize>,
    /// What was not, and why.
    pub retained: Vec<Retained>,
    /// What could not be told to a device that is gone. Nothing is left of it on this side.
    pub untold: Vec<String>,
}

impl CloseReport {
    /// True if nothing is left.
    pub fn is_complete(&self) -> bool {
        self.retained.is_empty()
    }

    /// The report, or an error that carries it if something is left.
    pub(crate) fn into_result(self) -> Result<Self> {
        if self.is_complete() {
            Ok(self)
        } else {
            Err(Error::Incomplete(Box::new(self)))
        }
    }
}

impl fmt::Display for CloseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.stage)?;
        let mut list = |title: &str, items: Vec<String>| {
            if items.is_empty() {
                return Ok(());
            }
            write!(f, "; {title}: {}", items.join("; "))
        };
        list(
            "released",
            self.released
                .iter()
                .map(|(node, count)| format!("{count} {node}"))
                .collect(),
        )?;
        list(
            "retained",
            self.retained.iter().map(Retained::to_string).collect(),
        )?;
        list("not told", self.untold.clone())
    }
}

/// What is noted on this thread while something is built or closed. Drops note here what they did.
#[derive(Default)]
pub(super) struct Notes {
    pub(super) released: BTreeMap<&'static str, usize>,
    pub(super) retained: Vec<Retained>,
    pub(super) untold: Vec<String>,
}

thread_local! {
    static NOTES: RefCell<Vec<Notes>> = const { RefCell::new(Vec::new()) };
}

/// Runs `work` and returns what was noted meanwhile. Scopes nest; each note goes to the innermost.
pub(super) fn noting<T>(work: impl FnOnce() -> T) -> (T, Notes) {
    NOTES.with_borrow_mut(|stack| stack.push(Notes::default()));
    let done = work();
    let notes = NOTES.with_borrow_mut(Vec::pop).unwrap_or_default();
    (done, notes)
}

pub(super) fn note(change: impl FnOnce(&mut Notes)) {
    // A drop while the thread ends finds no list any more, and nobody who would read it.
    let _ = NOTES.try_with(|stack| {
        if let Some(notes) = stack.borrow_mut().last_mut() {
            change(notes);
        }
    });
}

/// Notes what a device that is gone could not be told.
pub(crate) fn untold(what: String) {
    tracing::warn!(what, "not told to a device that is gone");
    note(|notes| notes.untold.push(what));
}

/// Builds something that undoes its parts by dropping them when it fails. What could not be undone is attached to the
/// error, which stays the first.
pub(crate) fn building<T>(build: impl FnOnce() -> Result<T>) -> Result<T> {
    let (built, notes) = noting(build);
    match built {
        Err(first) if !notes.retained.is_empty() => Err(Error::Rollback {
            first: Box::new(first),
            retained: notes.retained,
        }),
        built => built,
    }
}

/// Attaches to the error of a call what could not be undone after it.
pub(crate) fn attach(first: Error, node: &'static str, later: Error) -> Error {
    let left = Retained {
        node: NodeId::unnumbered(node),
        cause: later.to_string(),
        kind: later.kind(),
        set: Vec::new(),
    };
    match first {
        Error::Rollback {
            first,
            mut retained,
        } => {
            retained.push(left);
            Error::Rollback { first, retained }
        }
        first => Error::Rollback {
            first: Box::new(first),
            retained: vec![left],
        },
    }
}
