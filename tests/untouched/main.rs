//! The kernels as they are give no report: every kernel in every mode, under both checks and both schedulers, with many seeds.
//!
//! `WARPVERBS_UNTOUCHED_SEEDS` says how many; `WARPVERBS_FULL=1` means 2,000. One run in ten ends in each other way, too: its
//! operations are refused, it is stopped, its completions stay away, or packets get lost.

#[path = "../common/mod.rs"]
mod common;
#[allow(dead_code, reason = "the mutations' runs, of which only some are made")]
#[path = "../mutants/modes.rs"]
mod modes;
#[allow(dead_code, reason = "only what cuts a module down to one kernel")]
#[path = "../mutants/places.rs"]
mod places;

use warpverbs::driver::sim::{Check, Scheduler};

use modes::{Effort, Ending, Mode};

/// Seeds unless the environment says otherwise, and in the full form.
const SEEDS: u64 = 200;
const FULL: u64 = 2_000;
/// Operations of a thread: more than a queue of eight has room for.
const ITERS: u64 = 10;

fn seeds() -> u64 {
    let wanted = std::env::var("WARPVERBS_UNTOUCHED_SEEDS");
    let default = match std::env::var_os("WARPVERBS_FULL") {
        Some(_) => FULL,
        None => SEEDS,
    };
    wanted.ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

fn nothing_is_reported(check: Check, scheduler: Scheduler) {
    let (mut runs, mut wrong) = (0, Vec::new());
    for mode in Mode::all() {
        let text = places::kernel_alone(common::embedded_ptx(), mode.kernel);
        for seed in 1..=seeds() {
            for ending in mode.endings() {
                if ending != Ending::Done && !seed.is_multiple_of(10) {
                    continue;
                }
                let effort = Effort {
                    iters: ITERS,
                    check,
                    scheduler,
                    seed,
                    ending,
                };
                runs += 1;
                if let Some(found) = mode.run(&|_| Ok(text.clone()), effort) {
                    wrong.push(format!("{mode}, {effort:?}: {found}"));
                }
            }
        }
    }
    println!(
        "{check:?} {scheduler:?}: {runs} runs under {} seeds, {} reported",
        seeds(),
        wrong.len()
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn strict_independent() {
    nothing_is_reported(Check::Strict, Scheduler::Independent);
}

#[test]
fn strict_converge() {
    nothing_is_reported(Check::Strict, Scheduler::Converge);
}

#[test]
fn gpu_independent() {
    nothing_is_reported(Check::Gpu, Scheduler::Independent);
}

#[test]
fn gpu_converge() {
    nothing_is_reported(Check::Gpu, Scheduler::Converge);
}
