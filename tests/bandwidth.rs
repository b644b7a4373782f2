//! End to end: GPU threads write and read over RDMA, and every byte is checked.

mod common;

use common::Options;
use warpverbs::driver::sim::Scheduler;
use warpverbs::driver::{Phase, WriteOrdering};
use warpverbs::{CqForm, Direction, Doorbell, Sharing};

const SCHEDULERS: [Scheduler; 2] = [Scheduler::Independent, Scheduler::Converge];

#[test]
fn one_thread_writes_with_a_ring_cq() {
    for scheduler in SCHEDULERS {
        for seed in 1..=3 {
            let options = Options {
                seed,
                scheduler,
                ..Options::default()
            };
            let outcome = options.run().unwrap();
            assert_eq!(outcome.expect_success().completed(), options.iters);
        }
    }
}

#[test]
fn one_thread_reads() {
    for cq in [CqForm::Ring, CqForm::Collapsed] {
        let options = Options {
            direction: Direction::Read,
            cq,
            ..Options::default()
        };
        options.run().unwrap().expect_success();
    }
}

#[test]
fn reads_end_with_a_dump_where_the_gpu_does_not_order_the_nics_writes() {
    const DUMP: u8 = 0x23;
    for sharing in [Sharing::Exclusive, Sharing::Gpu] {
        for (write_ordering, dumps) in
            [(WriteOrdering::Owner, None), (WriteOrdering::None, Some(2))]
        {
            let options = Options {
                direction: Direction::Read,
                sharing,
                threads: 2,
                qps: 2,
                write_ordering,
                ..Options::default()
            };
            let outcome = options.run().unwrap();
            outcome.expect_success();
            assert_eq!(outcome.stats.executed.get(&DUMP).copied(), dumps);
        }
    }
}

#[test]
fn many_threads_share_qps() {
    for scheduler in SCHEDULERS {
        for direction in [Direction::Write, Direction::Read] {
            for cq in [CqForm::Collapsed, CqForm::Ring] {
                for seed in 1..=3 {
                    let options = Options {
                        seed,
                        scheduler,
                        direction,
                        sharing: Sharing::Gpu,
                        cq,
                        threads: 64,
                        qps: 4,
                        iters: 12,
                        size: 64,
                        ..Options::default()
                    };
                    let outcome = options.run().unwrap();
                    assert_eq!(outcome.expect_success().completed(), 64 * options.iters);
                }
            }
        }
    }
}

#[test]
fn each_thread_has_a_qp_of_its_own() {
    let options = Options {
        threads: 8,
        qps: 8,
        ..Options::default()
    };
    options.run().unwrap().expect_success();
}

#[test]
fn the_early_doorbell_rings_twice() {
    let rings = |doorbell| {
        let options = Options {
            doorbell,
            ..Options::default()
        };
        let outcome = options.run().unwrap();
        let counters = outcome.expect_success().counters.unwrap();
        (
            counters.phases[Phase::Post as usize].mmio_stores,
            options.iters,
        )
    };
    let (once, iters) = rings(Doorbell::Db);
    assert_eq!(once, iters);
    let (twice, iters) = rings(Doorbell::DbEarly);
    assert_eq!(twice, 2 * iters);
}

#[test]
fn rings_wrap_many_times() {
    for (sharing, cq, threads, qps) in [
        (Sharing::Exclusive, CqForm::Ring, 1, 1),
        (Sharing::Exclusive, CqForm::Collapsed, 1, 1),
        (Sharing::Gpu, CqForm::Ring, 16, 1),
        (Sharing::Gpu, CqForm::Collapsed, 16, 1),
    ] {
        let options = Options {
            sharing,
            cq,
            threads,
            qps,
            depth: 8,
            // 25 times the depth.
            iters: 200 / u64::from(threads),
            size: 32,
            ..Options::default()
        };
        options.run().unwrap().expect_success();
    }
}

#[test]
fn indices_cross_every_width_that_is_stored() {
    // The NIC sees 16 bits of an SQ index and 24 of a CQ index; software that keeps 32 would show
    // at 2^32.
    for boundary in [1u64 << 16, 1 << 24, 1 << 32] {
        for (sharing, cq, threads) in [
            (Sharing::Exclusive, CqForm::Ring, 1),
            (Sharing::Exclusive, CqForm::Collapsed, 1),
            (Sharing::Gpu, CqForm::Ring, 16),
            (Sharing::Gpu, CqForm::Collapsed, 16),
        ] {
            let options = Options {
                sharing,
                cq,
                threads,
                depth: 16,
                iters: 320 / u64::from(threads),
                size: 16,
                first_index: boundary - 100,
                ..Options::default()
            };
            options.run().unwrap().expect_success();
        }
    }
}

#[test]
fn the_same_seed_replays_the_same_run() {
    let run = |seed| {
        let options = Options {
            seed,
            sharing: Sharing::Gpu,
            cq: CqForm::Collapsed,
            threads: 32,
            qps: 2,
            ..Options::default()
        };
        let outcome = options.run().unwrap();
        (outcome.expect_success().clone(), outcome.stats)
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5).0.counters, run(6).0.counters);
}

#[test]
fn sizes_from_one_byte_to_many_packets_arrive() {
    for size in [1, 3, 28, 4095, 4096, 4097, 70_000] {
        for direction in [Direction::Write, Direction::Read] {
            let options = Options {
                direction,
                size,
                iters: 4,
                ..Options::default()
            };
            options.run().unwrap().expect_success();
        }
    }
}

#[test]
fn an_exported_qp_goes_on_where_it_stopped() {
    let options = Options {
        depth: 16,
        iters: 50,
        ..Options::default()
    };
    let mut bench = options.bench().unwrap();
    for round in 1..=3 {
        let mut run = options
            .bandwidth()
            .launch(
                &bench.module,
                &bench.stream,
                &bench.qps,
                &bench.source_mr,
                &bench.target_mr.remote(),
            )
            .unwrap();
        run.wait(common::PATIENCE).unwrap().check().unwrap();
        drop(run);
        let progress = bench.qps[0].progress().unwrap();
        assert_eq!(progress.completed, round * options.iters);
        assert_eq!(progress.reserved, progress.completed);
        let handle = bench.qps[0].handle();
        let qp = bench.qps.remove(0).unexport().unwrap();
        // A kernel that kept the address would refuse the handle: version 0 is none.
        let mut version = [0xff; 4];
        let gpu = bench.world.gpu();
        gpu.copy_from_device(&mut version, handle).unwrap();
        assert_eq!(version, [0; 4]);
        bench.qps.push(qp.export().unwrap());
    }
    assert_eq!(bench.world.findings(), [""; 0]);
    assert_eq!(bench.target.to_vec().unwrap(), bench.bytes);
}
