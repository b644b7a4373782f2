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

use common::{Bench, Options, PATIENCE, test_ptx};
use warpverbs::driver::LaunchShape;
use warpverbs::driver::sim::{Check, Scheduler};
use warpverbs::wire::abi::{BwParams, DOORBELL_PROXY, Outcome, ThreadResult, VERSION};
use warpverbs::{CqForm, Doorbell, Result, Run, Sharing, View};

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
    for seed in seeds(2) {
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

/// The schedule is the seed's: the same run again, to the last instruction, and another with another seed.
#[test]
fn a_seed_replays_a_run_with_its_proxy() {
    let run = |seed, check| {
        let options = Options {
            seed,
            check,
            sharing: Sharing::Gpu,
            threads: 4,
            iters: 20,
            ..options()
        };
        let outcome = options.run().unwrap();
        let counters = outcome.expect_success().counters.unwrap();
        (counters, outcome.stats.doorbells)
    };
    for check in [Check::Fast, Check::Strict] {
        let runs: Vec<_> = (1..=5).map(|seed| run(seed, check)).collect();
        for (seed, first) in (1..).zip(&runs) {
            assert_eq!(run(seed, check), *first);
        }
        assert!(runs.windows(2).any(|two| two[0] != two[1]));
    }
}

/// A poster may leave the ring to a successor in this mode too; who waits for room tells the host of what others have left.
#[test]
fn lazy_posters_leave_the_hand_over_to_others() {
    for seed in seeds(5) {
        for scheduler in SCHEDULERS {
            for check in [Check::Fast, Check::Strict] {
                let options = Options {
                    seed,
                    scheduler,
                    check,
                    sharing: Sharing::Gpu,
                    threads: 12,
                    iters: 10,
                    first_index: (1 << 16) - 9,
                    ..options()
                };
                let bench = options.bench().unwrap();
                let gpu = &bench.gpu;
                let handles = bench.qps[0].handle().to_le_bytes();
                let handles = gpu.alloc_copy(&handles, "handles").unwrap();
                let results = gpu.alloc_copy(&[0; 12 * ThreadResult::LEN], "results");
                let results = results.unwrap();
                let (local, remote) = (&bench.source_mr, bench.target_mr.remote());
                let params = BwParams {
                    version: VERSION,
                    qps: 1,
                    handles: handles.addr(),
                    results: results.addr(),
                    local: local.addr(),
                    remote: remote.addr,
                    lkey: local.lkey(),
                    rkey: remote.rkey,
                    size: options.size,
                    slots: options.slots,
                    iters: options.iters,
                    deadline_ns: 50_000_000,
                    // The test kernel's own: as shared by the GPU, and lazy.
                    sharing: 0x100,
                    doorbell: DOORBELL_PROXY,
                };
                let kernel = bench.module.kernel("wv_write_bw").unwrap();
                let view = View::new()
                    .shared_qp(&bench.qps[0])
                    .mr(local)
                    .memory(&handles)
                    .memory(&results);
                let shape = LaunchShape::linear(1, 12);
                // SAFETY: the block is the kernel's, and the view keeps all that it names.
                let launched = unsafe {
                    bench
                        .stream
                        .launch(&kernel, shape, &params.to_bytes(), view)
                };
                launched.unwrap().wait(PATIENCE).unwrap();
                for result in results.to_vec().unwrap().chunks(ThreadResult::LEN) {
                    let result = ThreadResult::from_bytes(result).unwrap();
                    assert_eq!(Outcome::from_code(result.outcome), Outcome::Done);
                    assert_eq!(result.completed, 10);
                }
                assert_eq!(bench.target.to_vec().unwrap(), bench.bytes);
                close(bench);
            }
        }
    }
}
