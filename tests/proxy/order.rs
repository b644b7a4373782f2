//! What the memory model and the NIC say when an order of the hand-over is left out, on either side.

use std::sync::Arc;
use std::time::Duration;

use super::common::{Options, test_ptx};
use super::options;
use super::weak::{Left, drivers};
use warpverbs::Sharing;
use warpverbs::driver::sim::{Check, Scheduler};

/// Seeds within which each must be found.
const SEEDS: u64 = 20;

fn strict(seed: u64, sharing: Sharing) -> Options {
    Options {
        seed,
        sharing,
        check: Check::Strict,
        scheduler: if seed.is_multiple_of(2) {
            Scheduler::Converge
        } else {
            Scheduler::Independent
        },
        threads: match sharing {
            Sharing::Exclusive => 1,
            _ => 3,
        },
        iters: 20,
        wait_deadline: Duration::from_micros(500),
        // A NIC that is told wrongly may get nowhere.
        step_budget: Some(u64::MAX),
        ..options()
    }
}

/// The first seed with a complaint that names what was looked for.
fn found(sharing: Sharing, wanted: &[&str], change: impl Fn(&mut Options)) {
    let mut heard = Vec::new();
    for seed in 1..=SEEDS {
        let mut options = strict(seed, sharing);
        change(&mut options);
        let outcome = options.run().unwrap();
        assert_eq!(outcome.live, [""; 0]);
        if outcome
            .findings
            .iter()
            .any(|finding| wanted.iter().any(|wanted| finding.contains(wanted)))
        {
            return;
        }
        heard.push(outcome.complaint());
    }
    panic!("{SEEDS} seeds without {wanted:?}: {heard:#?}");
}

#[test]
fn an_order_or_a_place_that_the_host_leaves_out_is_found() {
    for sharing in [Sharing::Exclusive, Sharing::Gpu] {
        for (left, wanted) in [
            (Left::Acquire, &["memory order"][..]),
            (Left::Release, &["memory order", "dbr-unordered"]),
            (Left::Barrier, &["dbr-unordered"]),
            (Left::RecordFirst, &["dbr-unordered", "dbr-behind"]),
            (Left::Record, &["dbr-behind", "dbr-unordered"]),
            (Left::SendWord, &["dbr-wrong-word"]),
        ] {
            found(sharing, wanted, |options| {
                options.wrap = Some(Arc::new(move |world| {
                    let (nic, gpu, _) = drivers(world, left);
                    (nic, gpu)
                }));
            });
        }
    }
    // Of two QPs, each with a page of its own.
    found(Sharing::Exclusive, &["doorbell-wrong-page"], |options| {
        (options.threads, options.qps) = (2, 2);
        options.wrap = Some(Arc::new(|world| {
            let (nic, gpu, _) = drivers(world, Left::OwnPage);
            (nic, gpu)
        }));
    });
}

/// The test that finds must not find what is not there.
#[test]
fn with_nothing_left_out_the_same_drivers_are_clean() {
    for sharing in [Sharing::Exclusive, Sharing::Gpu] {
        for seed in 1..=SEEDS {
            let options = Options {
                wrap: Some(Arc::new(|world| {
                    let (nic, gpu, _) = drivers(world, Left::Nothing);
                    (nic, gpu)
                })),
                ..strict(seed, sharing)
            };
            options.run().unwrap().expect_success();
        }
    }
}

/// The module without, or with another, fence before what a post tells the host thread.
fn without_release(other: Option<&str>) -> String {
    let ptx = test_ptx().unwrap();
    let mut lines: Vec<String> = ptx.lines().map(str::to_owned).collect();
    let mut changed = 0;
    for at in 0..lines.len() {
        if !lines[at].contains("st.relaxed.sys.global.u64") {
            continue;
        }
        let fence = (at.saturating_sub(12)..at)
            .rev()
            .find(|before| lines[*before].contains("fence.acq_rel.sys;"))
            .expect("a fence stands before the store");
        lines[fence] = other.unwrap_or_default().to_owned();
        changed += 1;
    }
    assert!(changed >= 6, "{changed} stores to a record");
    lines.join("\n")
}

#[test]
fn a_release_that_the_gpu_leaves_out_or_makes_at_a_smaller_scope_is_found() {
    for sharing in [Sharing::Exclusive, Sharing::Gpu] {
        for other in [None, Some("fence.acq_rel.gpu;"), Some("fence.acq_rel.cta;")] {
            let ptx = without_release(other);
            found(sharing, &["memory order"], |options| {
                options.ptx = Some(ptx.clone());
            });
        }
    }
}
