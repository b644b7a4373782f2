//! Running something many times over: with many seeds, or with every sequence of a few choices.
//!
//! Knows: how a run that fails is named so that it can be run again.
//! Must not know: what is run.
//!
//! A run fails by a panic or by returning an error; the panic that ends the exploration names its seed or its choices.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use warpverbs_sim_bus::Script;

/// Runs `run` with seeds 1 to `count`; after a failure prints the seed.
///
/// # Panics
///
/// If a run panics or returns an error.
pub fn seeds<E: std::fmt::Display>(count: u64, mut run: impl FnMut(u64) -> Result<(), E>) {
    for seed in 1..=count {
        named(&|| format!("seed {seed}"), || run(seed));
    }
}

/// What [`systematic`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explored {
    /// Runs made.
    pub runs: u64,
    /// True if no sequence within the bound is left.
    pub complete: bool,
}

/// Runs `run` with every sequence of choices that departs at most `departures` times from the plain run: the running thread
/// goes on until it waits or ends, and loads return the newest value. A departure is a preemption before an access to memory,
/// or a value that is not the newest. Ends after `most` runs.
///
/// `run` gives its script to [`crate::GpuConfig::script`], and one run makes the same choices again if given the same script.
///
/// # Panics
///
/// If a run panics or returns an error.
pub fn systematic<E: std::fmt::Display>(
    departures: usize,
    most: u64,
    mut run: impl FnMut(Script) -> Result<(), E>,
) -> Explored {
    let mut next = Some(Script::default());
    let mut runs = 0;
    while let Some(script) = next {
        if runs == most {
            return Explored {
                runs,
                complete: false,
            };
        }
        runs += 1;
        named(&|| format!("choices {script}"), || run(script.clone()));
        next = script.next(departures);
    }
    Explored {
        runs,
        complete: true,
    }
}

/// Runs once; a failure is named on stderr, where a panic's own message goes.
fn named<E: std::fmt::Display>(name: &dyn Fn() -> String, run: impl FnOnce() -> Result<(), E>) {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => panic!("{}: {error}", name()),
        Err(panic) => {
            eprintln!("failed with {}", name());
            resume_unwind(panic);
        }
    }
}
