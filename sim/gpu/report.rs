//! Why a run failed, and who waited for what.
//!
//! Knows: how to say it.
//! Must not know: how it was found.

use std::fmt;

use warpverbs_sim_bus::Fault;

use crate::ir::Program;

/// Threads that a report names one by one; the rest are counted.
const NAMED: usize = 32;

/// Kinds of failed run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureKind {
    /// A memory access that cannot be made.
    MemoryFault(Fault),
    /// `trap` or `brkpt`.
    Trap,
    /// No thread can go on.
    Deadlock,
    /// Threads ran for the whole step budget and nothing came of it.
    Livelock,
    /// Threads of one warp wait at different barrier instructions, or use a barrier in ways that exclude each other.
    BarrierDivergence,
    /// A warp operation with a mask that does not hold the thread itself.
    BadMask,
    /// Calls nested too deeply.
    StackOverflow,
    /// Control left a body without `ret`, or an indexed branch has no such target.
    BadBranch,
}

impl FailureKind {
    fn name(&self) -> &'static str {
        match self {
            Self::MemoryFault(_) => "memory fault",
            Self::Trap => "trap",
            Self::Deadlock => "deadlock",
            Self::Livelock => "livelock",
            Self::BarrierDivergence => "barrier divergence",
            Self::BadMask => "bad member mask",
            Self::StackOverflow => "stack overflow",
            Self::BadBranch => "bad branch",
        }
    }
}

/// Where in a grid and in the PTX.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// Line of the PTX, from 1.
    pub line: u32,
    /// Its text, trimmed.
    pub text: String,
    /// Function that holds the line.
    pub function: String,
    /// Block (x, y, z).
    pub block: [u32; 3],
    /// Thread (x, y, z).
    pub thread: [u32; 3],
}

impl Location {
    /// Of an instruction of a program.
    pub(crate) fn of(program: &Program, pc: u32, block: [u32; 3], thread: [u32; 3]) -> Self {
        let line = program.lines.get(pc as usize).copied().unwrap_or(0);
        let function = program.functions.iter().rev().find(|f| f.entry <= pc);
        Self {
            line,
            text: program.line_text(line).to_owned(),
            function: function.map(|f| f.name.clone()).unwrap_or_default(),
            block,
            thread,
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [bx, by, bz] = self.block;
        let [tx, ty, tz] = self.thread;
        write!(
            f,
            "block ({bx},{by},{bz}) thread ({tx},{ty},{tz}) in `{}`, PTX line {}: `{}`",
            self.function, self.line, self.text
        )
    }
}

/// A thread that had not ended when the run failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// The kernel.
    pub kernel: String,
    /// Where it stands.
    pub location: Location,
    /// What it waits for.
    pub waits_for: String,
}

/// A failed run. The context is dead after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunReport {
    /// What went wrong.
    pub kind: FailureKind,
    /// The kernel.
    pub kernel: String,
    /// The instruction at fault; `None` if no single one is.
    pub location: Option<Location>,
    /// What to know beyond that.
    pub detail: String,
    /// Threads that had not ended, for deadlocks and livelocks.
    pub waiters: Vec<Waiter>,
}

impl fmt::Display for RunReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in kernel `{}`", self.kind.name(), self.kernel)?;
        if let Some(location) = &self.location {
            write!(f, ", {location}")?;
        }
        if let FailureKind::MemoryFault(fault) = &self.kind {
            write!(f, ": {fault}")?;
        }
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        for waiter in self.waiters.iter().take(NAMED) {
            write!(
                f,
                "\n  `{}` {}: {}",
                waiter.kernel, waiter.location, waiter.waits_for
            )?;
        }
        if let Some(more) = self.waiters.len().checked_sub(NAMED).filter(|n| *n > 0) {
            write!(f, "\n  and {more} more threads")?;
        }
        Ok(())
    }
}
