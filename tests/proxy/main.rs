//! QPs whose doorbells a host thread rings: on the simulated GPU, in the seeded schedule, under every check.
//!
//! `WARPVERBS_FULL=1` takes ten times the seeds.

mod bytes;
#[path = "../common/mod.rs"]
mod common;
mod lifecycle;
mod no_dbr;
mod on_host;
mod order;
mod weak;

use common::{Bench, Options, test_ptx};
use warpverbs::driver::sim::{Check, Scheduler};
use warpverbs::{CqForm, Doorbell, Result, Run, Sharing};

fn options() -> Options {
    Options {
        doorbell: Doorbell::Proxy,
        ptx: test_ptx(),
        depth: 8,
        size: 64,
        slots: 2,
        on_host: false,
        ..Options::default()
    }
}

fn launch(bench: &Bench, options: &Options) -> Result<Run> {
    options.bandwidth().launch(
        &bench.module,
        &bench.stream,
        &bench.qps,
        &bench.source_mr,
        &bench.target_mr.remote(),
    )
}

/// Closes all, and looks for what is left.
fn close(bench: Bench) {
    assert_eq!(bench.world.findings(), [""; 0]);
    let world = bench.world.clone();
    bench.nic.clone().close().unwrap();
    bench.gpu.clone().close().unwrap();
    assert_eq!(world.live(), [""; 0]);
    // Handles that are left hold nothing.
    drop(bench);
}

fn seeds(few: u64) -> std::ops::RangeInclusive<u64> {
    let full = std::env::var_os("WARPVERBS_FULL").is_some_and(|on| on == "1");
    1..=if full { 10 * few } else { few }
}

const SCHEDULERS: [Scheduler; 2] = [Scheduler::Independent, Scheduler::Converge];

/// Every sharing, form and check, both schedulers, past 2^16 and 2^32: the data arrives, and nobody complains.
#[test]
fn a_proxy_in_the_schedule_rings_for_all_that_is_posted() {
    for seed in seeds(3) {
        for scheduler in SCHEDULERS {
            for check in [Check::Fast, Check::Strict, Check::Gpu] {
                for (sharing, threads, qps) in [
                    (Sharing::Exclusive, 1, 1),
                    (Sharing::Exclusive, 3, 3),
                    (Sharing::Gpu, 5, 1),
                    (Sharing::Gpu, 6, 2),
                ] {
                    for cq in [CqForm::Ring, CqForm::Collapsed] {
                        for first_index in [0, (1 << 16) - 9, (1 << 32) - 9] {
                            let options = Options {
                                seed,
                                scheduler,
                                check,
                                sharing,
                                threads,
                                qps,
                                cq,
                                first_index,
                                iters: 20,
                                ..options()
                            };
                            let outcome = options.run().unwrap();
                            let done = outcome.expect_success().completed();
                            assert_eq!(done, u64::from(threads) * 20);
                            assert_eq!(outcome.stats.executed_total(), done);
                        }
                    }
                }
            }
        }
    }
}
