//! Errors of the public calls.

use std::fmt;
use std::sync::Arc;

use warpverbs_sim_bus::Fault;

use crate::report::RunReport;

/// PTX that does not load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// Line of the text, from 1; 0 if the module as a whole is at fault.
    pub line: u32,
    /// The line, trimmed.
    pub text: String,
    /// What is wrong with it.
    pub message: String,
}

impl LoadError {
    pub(crate) fn new(line: u32, message: impl Into<String>) -> Self {
        Self {
            line,
            text: String::new(),
            message: message.into(),
        }
    }

    /// Adds the text of the line at fault.
    pub(crate) fn with_source(mut self, source: &str) -> Self {
        if let Some(index) = self.line.checked_sub(1) {
            let line = source.lines().nth(index as usize).unwrap_or_default();
            self.text = line.trim().chars().take(200).collect();
        }
        self
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            write!(f, "PTX module: {}", self.message)
        } else {
            write!(
                f,
                "PTX line {}: {}: `{}`",
                self.line, self.message, self.text
            )
        }
    }
}

impl std::error::Error for LoadError {}

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GpuError {
    /// No object of that name.
    NoSuch {
        /// The kind of object.
        what: &'static str,
        /// Its number.
        id: u64,
    },
    /// The launch cannot be made: shape or parameters.
    BadLaunch(String),
    /// A cooperative launch of more blocks than can be resident together.
    TooManyBlocks {
        /// Blocks asked for.
        blocks: u64,
        /// Blocks that can be resident.
        resident: u32,
    },
    /// Another argument is out of range.
    BadArgument(String),
    /// The object is in use.
    Busy(String),
    /// An allocation or access of simulated memory failed.
    Memory(Fault),
    /// A kernel failed and the context is dead. Every later call returns the same report.
    Dead(Arc<RunReport>),
}

impl fmt::Display for GpuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuch { what, id } => write!(f, "no {what} {id}"),
            Self::BadLaunch(why) => write!(f, "launch refused: {why}"),
            Self::TooManyBlocks { blocks, resident } => write!(
                f,
                "cooperative launch refused: {blocks} blocks, but only {resident} can be resident together"
            ),
            Self::BadArgument(why) => f.write_str(why),
            Self::Busy(what) => write!(f, "{what} is in use"),
            Self::Memory(fault) => write!(f, "simulated memory: {fault}"),
            Self::Dead(report) => write!(f, "the context is dead: {report}"),
        }
    }
}

impl std::error::Error for GpuError {}

impl From<Fault> for GpuError {
    fn from(fault: Fault) -> Self {
        Self::Memory(fault)
    }
}
