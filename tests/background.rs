//! NICs that run by themselves, and the host as a GPU: real threads, real memory, real time.
//!
//! `WARPVERBS_LAPS` says how often queues of 16 WQEBBs are gone around; the default suits every run of the tests.

mod common;

use std::time::Duration;

use common::{Options, PATIENCE, World};
use warpverbs::driver::{DmabufMapping, DriverErrorKind, GpuHandle, LaunchShape, Progress};
use warpverbs::wire::abi::BwParams;
use warpverbs::{CqForm, Direction, Doorbell, ErrorKind, Module, QpStatus, Sharing};

fn options() -> Options {
    Options {
        on_host: true,
        ..Options::default()
    }
}

fn laps() -> u64 {
    let laps = std::env::var("WARPVERBS_LAPS").ok();
    laps.map_or(25, |laps| laps.parse().expect("a number"))
}

/// Several producers, in every mode, for many laps: nothing is lost, doubled or torn.
#[test]
fn producers_that_share_or_own_queues_go_around_them_many_times() {
    for (sharing, threads, qps) in [
        (Sharing::Exclusive, 1, 1),
        (Sharing::Exclusive, 4, 4),
        (Sharing::Gpu, 4, 1),
        (Sharing::Gpu, 6, 2),
    ] {
        for cq in [CqForm::Collapsed, CqForm::Ring] {
            for doorbell in [Doorbell::Db, Doorbell::DbEarly] {
                for direction in [Direction::Write, Direction::Read] {
                    let options = Options {
                        sharing,
                        cq,
                        doorbell,
                        direction,
                        threads,
                        qps,
                        depth: 16,
                        size: 64,
                        slots: 8,
                        iters: laps() * 16 * qps as u64 / u64::from(threads),
                        // Past the 16 bits that the NIC sees.
                        first_index: (1 << 16) - 40,
                        ..options()
                    };
                    let outcome = options.run().unwrap();
                    let done = outcome.expect_success().completed();
                    assert_eq!(done, u64::from(threads) * options.iters);
                    assert_eq!(outcome.stats.executed_total(), done);
                    assert_eq!(outcome.stats.bytes_written, done * 64);
                }
            }
        }
    }
}

#[test]
fn more_threads_than_can_be_resident_run_in_turn() {
    let options = Options {
        sharing: Sharing::Gpu,
        threads: 4096,
        block: 512,
        qps: 8,
        iters: 2,
        size: 8,
        slots: 2,
        ..options()
    };
    let outcome = options.run().unwrap();
    assert_eq!(outcome.expect_success().completed(), 8192);
}

#[test]
fn messages_of_many_packets_arrive_whole() {
    // From one packet to several windows of them; odd ends, and data that two QPs' messages share no byte of.
    for size in [4095, 4097, 40_000, 1 << 20, (3 << 20) + 5] {
        for cq in [CqForm::Collapsed, CqForm::Ring] {
            let options = Options {
                size,
                cq,
                iters: 6,
                slots: 2,
                ..options()
            };
            let outcome = options.run().unwrap();
            outcome.expect_success();
            let packets = u64::from(size.div_ceil(4096)) * 6;
            let acknowledgements = outcome.stats.packets_sent - packets;
            assert!((6..=packets.max(6)).contains(&acknowledgements));
        }
    }
}

/// In a process of its own, where no other test's NICs run.
#[test]
fn a_nic_that_has_nothing_to_do_rests() {
    let alone = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "alone::an_idle_nic_rests"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&alone.stdout);
    assert!(
        alone.status.success() && said.contains("1 passed"),
        "{said}"
    );
}

mod alone {
    use super::*;

    #[test]
    #[ignore = "wants a process of its own: the test above runs it"]
    fn an_idle_nic_rests() {
        // Nanoseconds that the NICs' thread has run.
        let spent = || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap();
            let nics = tasks.filter_map(|task| {
                let task = task.ok()?.path();
                let name = std::fs::read_to_string(task.join("comm")).ok()?;
                let times = std::fs::read_to_string(task.join("schedstat")).ok()?;
                (name.trim() == "nic").then(|| times.split(' ').next()?.parse::<u64>().ok())?
            });
            nics.sum::<u64>()
        };
        let bench = options().bench().unwrap();
        bench.world.settle();
        let before = spent();
        std::thread::sleep(Duration::from_millis(500));
        let time = spent() - before;
        assert!(before > 0, "there is a thread, and it has run");
        assert!(time < 100_000_000, "{time} of 500,000,000 ns");
    }
}

#[test]
fn a_world_that_is_dropped_while_a_kernel_runs_ends_it_and_joins_its_threads() {
    let options = Options {
        threads: 2,
        qps: 2,
        iters: u64::MAX,
        ..options()
    };
    let bench = options.bench().unwrap();
    let run = options
        .bandwidth()
        .launch(
            &bench.module,
            &bench.stream,
            &bench.qps,
            &bench.source_mr,
            &bench.target_mr.remote(),
        )
        .unwrap();
    let world = bench.world.clone();
    while world.nic_stats().cqes < 1000 {
        std::thread::yield_now();
    }
    drop((run, bench));
    assert_eq!(world.live(), [""; 0]);
    assert_eq!(world.findings(), [""; 0]);
}

#[test]
fn faults_that_are_planted_act_while_the_nic_runs() {
    let options = Options {
        iters: 5000,
        ..options()
    };
    let bench = options.bench().unwrap();
    let qpn = bench.qps[0].qpn();
    bench.world.with_nic(|nic| {
        nic.inject(warpverbs::driver::sim::InjectedFault::Fail {
            qpn,
            index: 3000,
            syndrome: 0x15,
            vendor: 0x81,
        });
    });
    let outcome = bench.run(&options).unwrap();
    let fault = outcome.report.unwrap().fault().unwrap();
    assert_eq!((fault.syndrome.code(), fault.index), (0x15, 3000));
    assert!(matches!(outcome.statuses[..], [QpStatus::Fault(_)]));
    assert_eq!(outcome.live, [""; 0]);
}

#[test]
fn two_nics_and_a_cable_that_loses_frames_deliver_all_the_same() {
    let world = |plan| {
        World::builder()
            .nics(2)
            .cable(plan)
            .build_on_host()
            .unwrap()
    };
    let plan = warpverbs::driver::sim::CablePlan {
        loss_ppm: 10_000,
        duplicate_ppm: 10_000,
        reorder_ppm: 10_000,
        reorder_ns: 50_000,
        ..Default::default()
    };
    let world = world(plan);
    let trace = warpverbs::driver::sim::Trace::new();
    world.trace(&trace);
    let near = warpverbs::Context::open(world.nic()).unwrap();
    let far = warpverbs::Context::open(world.nic_at(1).unwrap()).unwrap();
    let gpu = warpverbs::GpuContext::open(world.gpu()).unwrap();
    let (pd, far_pd) = (
        warpverbs::Pd::alloc(&near).unwrap(),
        warpverbs::Pd::alloc(&far).unwrap(),
    );
    let config = warpverbs::QpConfig::default();
    let mut a = warpverbs::QueuePair::create(&pd, &gpu, &config).unwrap();
    let mut b = warpverbs::QueuePair::create(&far_pd, &gpu, &config).unwrap();
    a.connect(&b.local_info()).unwrap();
    b.connect(&a.local_info()).unwrap();
    let bytes = common::pattern(3, 1 << 20);
    let from = gpu.alloc_copy(&bytes, "source").unwrap();
    let to = gpu.alloc_copy(&vec![0; bytes.len()], "target").unwrap();
    let local = warpverbs::Mr::register(&pd, &from, warpverbs::Access::LOCAL_READ).unwrap();
    let access = warpverbs::Access::LOCAL_WRITE | warpverbs::Access::REMOTE_WRITE;
    let remote = warpverbs::Mr::register(&far_pd, &to, access).unwrap();
    let run = warpverbs::Bandwidth {
        size: 16 << 10,
        slots: 64,
        iters: 64,
        ..Default::default()
    };
    let (module, stream) = (
        Module::embedded(&gpu).unwrap(),
        warpverbs::Stream::create(&gpu).unwrap(),
    );
    let qps = [a.export().unwrap()];
    let mut run = run
        .launch(&module, &stream, &qps, &local, &remote.remote())
        .unwrap();
    run.wait(PATIENCE).unwrap().check().unwrap();
    assert!(to.to_vec().unwrap() == bytes);
    assert!(world.cable().unwrap().stats().lost > 0);
    assert_eq!(world.findings(), [""; 0]);
    let times: Vec<u64> = trace.take().iter().map(|record| record.time).collect();
    assert!(!times.is_empty() && times.is_sorted());
}

fn kind<T: std::fmt::Debug>(result: Result<T, warpverbs::driver::DriverError>) -> DriverErrorKind {
    result.unwrap_err().kind
}

#[test]
fn the_host_refuses_what_it_cannot_run_and_what_it_does_not_know() {
    let world = World::builder().build_on_host().unwrap();
    let gpu = world.gpu();
    let embedded = common::embedded_ptx();
    assert_eq!(
        kind(gpu.load_module(".version 8.2")),
        DriverErrorKind::Unsupported
    );
    let module = gpu.load_module(embedded).unwrap();
    assert_eq!(kind(gpu.kernel(module, "k")), DriverErrorKind::NotFound);
    let kernel = gpu.kernel(module, "wv_write_bw").unwrap();
    let stream = gpu.create_stream().unwrap();
    let launch = |kernel, shape, stream, params: &[u8]| {
        // SAFETY: none of these launches is accepted.
        kind(unsafe { gpu.launch(kernel, shape, stream, params) })
    };
    let params = [0; BwParams::LEN];
    let one = LaunchShape::linear(1, 1);
    for (shape, expected) in [
        (LaunchShape::linear(0, 1), DriverErrorKind::InvalidArgument),
        (LaunchShape::linear(1, 0), DriverErrorKind::InvalidArgument),
        (
            LaunchShape::linear(1, 1025),
            DriverErrorKind::InvalidArgument,
        ),
        (
            LaunchShape::linear(3, 1024).cooperative(),
            DriverErrorKind::Exhausted,
        ),
        (
            LaunchShape {
                block: [1, 2, 1],
                ..one
            },
            DriverErrorKind::Unsupported,
        ),
    ] {
        assert_eq!(
            launch(kernel, shape, stream, &params),
            expected,
            "{shape:?}"
        );
    }
    assert_eq!(
        launch(kernel, one, stream, &params[1..]),
        DriverErrorKind::InvalidArgument
    );
    let nobody = GpuHandle(999);
    assert_eq!(
        launch(nobody, one, stream, &params),
        DriverErrorKind::NotFound
    );
    assert_eq!(
        launch(kernel, one, nobody, &params),
        DriverErrorKind::NotFound
    );
    assert_eq!(kind(gpu.free(0x1000)), DriverErrorKind::NotFound);
    assert_eq!(kind(gpu.alloc(0, "none")), DriverErrorKind::InvalidArgument);
    assert_eq!(kind(gpu.alloc(1 << 60, "all")), DriverErrorKind::Exhausted);
    assert_eq!(
        kind(gpu.map_uar(0x1000, 4096)),
        DriverErrorKind::InvalidArgument
    );
    assert_eq!(kind(gpu.query_event(nobody)), DriverErrorKind::NotFound);
    let memory = gpu.alloc(100, "memory").unwrap();
    assert_eq!(
        kind(gpu.copy_to_device(memory + (1 << 16) - 4, &[0; 8])),
        DriverErrorKind::InvalidArgument
    );
    assert_eq!(
        kind(gpu.export_dmabuf(memory, 101, DmabufMapping::Default)),
        DriverErrorKind::InvalidArgument
    );
    assert_eq!(
        kind(gpu.load_acquire(memory + 4)),
        DriverErrorKind::InvalidArgument
    );
    assert_eq!(gpu.query_stream(stream), Ok(Progress::Done));
    assert_eq!(gpu.counters(stream), None);
    gpu.free(memory).unwrap();
    gpu.destroy_stream(stream).unwrap();
    gpu.unload_module(module).unwrap();
    assert_eq!(world.live(), [""; 0]);
}

#[test]
fn another_module_than_the_embedded_one_is_a_clear_error() {
    let world = World::builder().build_on_host().unwrap();
    let gpu = warpverbs::GpuContext::open(world.gpu()).unwrap();
    let error = Module::load(&gpu, "own", ".version 8.2").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("native build"), "{error}");
}
