//! Closing a device in stages after a signal, and the report of it.
//!
//! Knows: that a close resumes, so that it can be made in slices. Must not know: what is closed.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use serde::Serialize;
use warpverbs::{CloseReport, Error, ErrorKind, NodeId, Refused, Result, Retained, Stage};

use crate::interrupt::Interrupt;

/// How long kernels and outstanding work may take in all.
pub(super) const GRACE: Duration = Duration::from_secs(10);
/// How long until the next look at what signals ask for.
const SLICE: Duration = Duration::from_millis(100);

/// How far a device was closed.
#[derive(Debug, Serialize)]
pub(crate) struct Closed {
    device: String,
    stage: String,
    /// How many of what.
    released: BTreeMap<&'static str, usize>,
    retained: Vec<Left>,
    /// What a device that is gone could not be told.
    untold: Vec<String>,
}

/// What was not destroyed.
#[derive(Debug, Serialize)]
struct Left {
    node: String,
    cause: String,
    /// What stays with it.
    set: Vec<String>,
}

impl Closed {
    pub(super) fn new(device: String) -> Self {
        Self {
            device,
            stage: Stage::Live.to_string(),
            released: BTreeMap::new(),
            retained: Vec::new(),
            untold: Vec::new(),
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.stage == Stage::Destroyed.to_string()
    }

    /// Closes in slices: until all is closed, or waiting is of no use, or the time is over, or a second signal comes.
    pub(super) fn go_on<T>(
        &mut self,
        interrupt: &Interrupt,
        until: Instant,
        close_within: impl Fn(Duration) -> Result<CloseReport, Refused<T>>,
    ) {
        loop {
            let urgent = interrupt.is_urgent() || Instant::now() >= until;
            let slice = if urgent { Duration::ZERO } else { SLICE };
            let report = match close_within(slice).map_err(|refused| refused.error) {
                Ok(report) => report,
                Err(Error::Incomplete(report)) => *report,
                Err(other) => {
                    self.retained = vec![Left {
                        node: self.device.clone(),
                        cause: other.to_string(),
                        set: Vec::new(),
                    }];
                    return;
                }
            };
            for (kind, count) in report.released {
                *self.released.entry(kind).or_insert(0) += count;
            }
            self.untold.extend(report.untold);
            self.stage = report.stage.to_string();
            self.retained = report.retained.iter().map(Left::of).collect();
            let waits = |left: &Retained| left.kind == ErrorKind::Timeout;
            if urgent || !report.retained.iter().any(waits) {
                return;
            }
        }
    }

    /// What was not destroyed, a line each.
    pub(super) fn retained(&self) -> impl Iterator<Item = String> {
        self.retained
            .iter()
            .map(|left| format!("retained: {}: {}", left.node, left.cause))
    }
}

impl Left {
    fn of(retained: &Retained) -> Self {
        Self {
            node: retained.node.to_string(),
            cause: retained.cause.clone(),
            set: retained.set.iter().map(NodeId::to_string).collect(),
        }
    }
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let released: Vec<_> = self
            .released
            .iter()
            .map(|(kind, count)| format!("{count} {kind}"))
            .collect();
        let released = match released.len() {
            0 => "nothing".into(),
            _ => released.join(", "),
        };
        writeln!(f, "{}: {}; released: {released}", self.device, self.stage)?;
        for left in &self.retained {
            writeln!(f, "  retained: {}: {}", left.node, left.cause)?;
            if !left.set.is_empty() {
                writeln!(f, "    with it stay: {}", left.set.join(", "))?;
            }
        }
        for what in &self.untold {
            writeln!(f, "  not told: {what}")?;
        }
        Ok(())
    }
}
