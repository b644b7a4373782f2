//! Memory order of the provided kernels: nothing is reported of them as they are, and each fence that is taken away is.

mod common;

use common::{Options, embedded_ptx};
use warpverbs::driver::sim::{Check, Scheduler};
use warpverbs::{CqForm, Direction, Doorbell, Sharing};

/// Runs under so many seeds unless the environment says otherwise.
const SEEDS: u64 = 6;

fn seeds() -> u64 {
    let wanted = std::env::var("WARPVERBS_ORDER_SEEDS");
    wanted.ok().and_then(|n| n.parse().ok()).unwrap_or(SEEDS)
}

/// All modes of the bandwidth kernels; queues so short that slots are reused often.
fn modes() -> Vec<Options> {
    let mut modes = Vec::new();
    for direction in [Direction::Write, Direction::Read] {
        for (sharing, threads, qps) in [(Sharing::Exclusive, 2, 2), (Sharing::Gpu, 6, 2)] {
            for doorbell in [Doorbell::Db, Doorbell::DbEarly] {
                for cq in [CqForm::Ring, CqForm::Collapsed] {
                    modes.push(Options {
                        direction,
                        sharing,
                        threads,
                        qps,
                        doorbell,
                        cq,
                        depth: 8,
                        size: 64,
                        iters: 40,
                        check: Check::Strict,
                        step_budget: Some(3_000_000),
                        ..Options::default()
                    });
                }
            }
        }
    }
    modes
}

fn name(options: &Options) -> String {
    format!(
        "{:?} {:?} {:?} {:?} {:?} {:?} seed {}",
        options.check,
        options.scheduler,
        options.direction,
        options.sharing,
        options.doorbell,
        options.cq,
        options.seed
    )
}

#[test]
fn nothing_is_reported_of_the_kernels_as_they_are() {
    for check in [Check::Strict, Check::Gpu] {
        for scheduler in [Scheduler::Independent, Scheduler::Converge] {
            for mode in modes() {
                for seed in 1..=seeds() {
                    let options = Options {
                        seed,
                        check,
                        scheduler,
                        ..mode.clone()
                    };
                    let outcome = options.run().unwrap();
                    assert_eq!(outcome.complaint(), "", "{}", name(&options));
                    outcome.expect_success();
                }
            }
        }
    }
}

#[test]
fn the_same_seed_finds_the_same() {
    let broken = without(fences().nth(1).unwrap());
    let run = || {
        let options = Options {
            ptx: Some(broken.clone()),
            ..modes()[0].clone()
        };
        options.run().unwrap().findings
    };
    assert_eq!(run(), run());
}

/// Lines of the embedded module that are fences.
fn fences() -> impl Iterator<Item = usize> {
    embedded_ptx()
        .lines()
        .enumerate()
        .filter(|(_, line)| line.trim_start().starts_with("fence."))
        .map(|(at, _)| at)
}

/// The embedded module with another line in the place of one.
fn with(at: usize, line: &str) -> String {
    let mut lines: Vec<&str> = embedded_ptx().lines().collect();
    lines[at] = line;
    lines.join("\n") + "\n"
}

fn without(at: usize) -> String {
    with(at, "")
}

/// Takes each fence away that a mode executes. One survives in each exclusive mode, the fence behind the completion that
/// a post waits for, as this kernel does not need it: a queue takes one WQEBB less than it has, so the slot that a post
/// writes was free one post earlier, and the fences of that post came behind the load that saw it free.
#[test]
fn each_fence_that_is_taken_away_is_reported() {
    for mode in modes()
        .into_iter()
        .filter(|mode| mode.direction == Direction::Write)
    {
        let mut survivors = Vec::new();
        let mut caught = 0;
        for at in fences() {
            let executes = Options {
                ptx: Some(with(at, "trap;")),
                ..mode.clone()
            };
            if !executes.run().unwrap().complaint().contains("trap") {
                continue;
            }
            let first = (1..=20).find(|seed| {
                let options = Options {
                    seed: *seed,
                    ptx: Some(without(at)),
                    ..mode.clone()
                };
                options.run().is_ok_and(|outcome| {
                    let text = outcome.findings.join("\n");
                    text.contains("memory order: ") || text.contains("dbr-unordered")
                })
            });
            match first {
                Some(_) => caught += 1,
                None => survivors.push(at + 1),
            }
        }
        let expected = usize::from(mode.sharing == Sharing::Exclusive);
        assert_eq!(
            survivors.len(),
            expected,
            "{}: lines {survivors:?}",
            name(&mode)
        );
        assert!(caught >= 3, "{}: {caught}", name(&mode));
    }
}

/// Orders and scopes that are too weak, everywhere at once: two blocks share a queue.
#[test]
fn each_order_and_scope_that_is_weakened_is_reported() {
    for (from, to) in [
        ("fence.acq_rel.sys", "fence.acq_rel.gpu"),
        ("fence.acq_rel.sys", "fence.acq_rel.cta"),
        ("st.release.gpu", "st.relaxed.gpu"),
        ("st.release.gpu", "st.release.cta"),
        ("ld.acquire.gpu", "ld.relaxed.gpu"),
        ("ld.acquire.gpu", "ld.acquire.cta"),
        ("atom.relaxed.gpu.global.add", "atom.relaxed.cta.global.add"),
        ("red.relaxed.gpu.global.max", "red.relaxed.cta.global.max"),
        // The doorbell record.
        ("st.relaxed.sys.global.u32", "st.relaxed.gpu.global.u32"),
        ("st.relaxed.sys.global.u32", "st.global.u32"),
        // The completion.
        ("ld.relaxed.sys.global.u64", "ld.relaxed.gpu.global.u64"),
        ("ld.relaxed.sys.global.u64", "ld.global.u64"),
    ] {
        let reported = (1..=20).any(|seed| {
            let options = Options {
                seed,
                sharing: Sharing::Gpu,
                cq: CqForm::Collapsed,
                threads: 64,
                depth: 16,
                size: 64,
                slots: 1,
                iters: 3,
                check: Check::Strict,
                step_budget: Some(3_000_000),
                ptx: Some(embedded_ptx().replace(from, to)),
                ..Options::default()
            };
            let outcome = options.run().unwrap();
            let findings = outcome.findings.join("\n");
            findings.contains("memory order: ") || findings.contains("doorbell-regression")
        });
        assert!(reported, "{from} -> {to}");
    }
}
