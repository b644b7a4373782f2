//! A run of a provided kernel, and what its threads report.
//!
//! Knows: the results' layout and meaning.
//! Must not know: what the threads were told to do.

use std::sync::Arc;
use std::time::Duration;

use warpverbs_wire::abi::{self, FaultCause, Outcome, ThreadResult};

use crate::driver::LaunchCounters;
use crate::error::{Error, Result, ThreadError};
use crate::export::{QpFault, QpStatus};
use crate::launch::Launch;
use crate::resource::{GpuContext, GpuMemory};
use crate::stall::{self, Stall};

/// A run of a provided kernel.
#[derive(Debug)]
pub struct Run {
    pub(super) kernel: Arc<str>,
    pub(super) expected: u64,
    pub(super) launch: Launch,
    pub(super) results: Results,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunReport {
    /// The kernel.
    pub kernel: Arc<str>,
    /// Operations that each thread was to do.
    pub expected: u64,
    /// What each thread reported.
    pub threads: Vec<ThreadReport>,
    /// What the threads executed, where the GPU can count.
    pub counters: Option<LaunchCounters>,
    /// If a thread's wait reached its deadline: the QPs, by number, on which something is outstanding, and why.
    pub stalls: Vec<(u32, Stall)>,
}

/// What one thread reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadReport {
    /// Operations posted.
    pub posted: u64,
    /// Operations whose completion was seen.
    pub completed: u64,
    /// Why it ended early, if it did.
    pub error: Option<ThreadError>,
    /// The GPU's clock at the first post, in ns.
    pub start_ns: u64,
    /// The GPU's clock after the last completion, in ns.
    pub end_ns: u64,
}

impl Run {
    /// Waits until the kernel has finished, at most `deadline`. On a timeout the kernel still runs:
    /// wait again, or [`Self::stop`] it first.
    pub fn wait(&mut self, deadline: Duration) -> Result<RunReport> {
        let counters = self.launch.wait(deadline)?;
        let threads = self.results.read()?;
        let stalls = if threads.iter().any(ThreadReport::waited_in_vain) {
            self.stalls()?
        } else {
            Vec::new()
        };
        Ok(RunReport {
            kernel: self.kernel.clone(),
            expected: self.expected,
            threads,
            counters,
            stalls,
        })
    }

    fn stalls(&self) -> Result<Vec<(u32, Stall)>> {
        let mut stalls = Vec::new();
        for qp in self.launch.qps() {
            match stall::diagnose(qp)? {
                Stall::None => {}
                stall => stalls.push((qp.qpn(), stall)),
            }
        }
        Ok(stalls)
    }

    /// True if the kernel has finished. Never blocks.
    pub fn is_finished(&mut self) -> Result<bool> {
        self.launch.is_finished()
    }

    /// Tells the run's QPs to stop; its threads end early.
    pub fn stop(&self) -> Result<()> {
        self.launch.stop()
    }
}

impl RunReport {
    /// The first thread's error, if any thread did not complete its operations.
    pub fn check(&self) -> Result<()> {
        match self
            .threads
            .iter()
            .enumerate()
            .find_map(|(at, thread)| Some((at, thread, thread.error?)))
        {
            None => Ok(()),
            Some((thread, report, reason)) => Err(Error::Thread {
                kernel: self.kernel.clone(),
                thread,
                reason,
                completed: report.completed,
                expected: self.expected,
                stall: self.stalls.first().copied().map(Box::new),
            }),
        }
    }

    /// Operations that all threads completed.
    pub fn completed(&self) -> u64 {
        self.threads.iter().map(|thread| thread.completed).sum()
    }

    /// Threads that did not complete their operations.
    pub fn errors(&self) -> u64 {
        self.threads
            .iter()
            .filter(|thread| thread.error.is_some())
            .count() as u64
    }

    /// The fault that the first failed thread's QP recorded.
    pub fn fault(&self) -> Option<QpFault> {
        self.threads.iter().find_map(|thread| match thread.error {
            Some(ThreadError::Fault(fault)) => Some(fault),
            _ => None,
        })
    }
}

impl ThreadReport {
    fn waited_in_vain(&self) -> bool {
        match self.error {
            Some(ThreadError::Timeout) => true,
            Some(ThreadError::Fault(fault)) => fault.cause == FaultCause::Abandoned,
            _ => false,
        }
    }
}

/// The memory that threads report to.
#[derive(Debug)]
pub(super) struct Results {
    pub(super) memory: GpuMemory,
}

impl Results {
    const LINE: usize = ThreadResult::LEN;

    pub(super) fn alloc(gpu: &GpuContext, threads: u32) -> Result<Self> {
        // Zeroes: every thread begins as `Outcome::NotRun`.
        let memory = gpu.alloc_copy(&vec![0; threads as usize * Self::LINE], "thread results")?;
        Ok(Self { memory })
    }

    fn read(&self) -> Result<Vec<ThreadReport>> {
        let bytes = self.memory.to_vec()?;
        Ok(bytes
            .chunks_exact(Self::LINE)
            .filter_map(|line| ThreadResult::from_bytes(line).ok())
            .map(|result| report(&result))
            .collect())
    }
}

fn report(result: &ThreadResult) -> ThreadReport {
    let error = match Outcome::from_code(result.outcome) {
        Outcome::Done => None,
        Outcome::NotRun => Some(ThreadError::NotRun),
        Outcome::Timeout => Some(ThreadError::Timeout),
        Outcome::Stopped => Some(ThreadError::Stopped),
        Outcome::Fault => Some(match QpStatus::of(abi::State(result.state)) {
            QpStatus::Fault(fault) => ThreadError::Fault(fault),
            // A fault that the state word does not hold is no fault that this version knows.
            QpStatus::Live | QpStatus::Stopped => ThreadError::Unknown(result.outcome),
        }),
        Outcome::BadVersion => Some(ThreadError::BadVersion {
            seen: result.seen_version,
        }),
        Outcome::InvalidArgument => Some(ThreadError::InvalidArgument),
        // No kernel ends so: they wait.
        other @ (Outcome::Pending | Outcome::NoResource | Outcome::Unknown(_)) => {
            Some(ThreadError::Unknown(other.code()))
        }
    };
    ThreadReport {
        posted: result.posted,
        completed: result.completed,
        error,
        start_ns: result.start_ns,
        end_ns: result.end_ns,
    }
}
