//! QPs that come and go while a proxy runs, proxies that stop, and what becomes of work that is under way.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use super::common::{Bench, Options, PATIENCE, connected_pair, serve};
use super::weak::{Left, drivers};
use super::{close, launch, options};
use warpverbs::driver::DriverErrorKind;
use warpverbs::driver::fault::Fault;
use warpverbs::driver::sim::Check;
use warpverbs::wire::abi::{ProxyRecord, QpHandle};
use warpverbs::wire::doorbell::{DBR_SEND, dbr_producer};
use warpverbs::{
    Doorbell, DoorbellPath, Error, ErrorKind, Proxy, QpConfig, QpPool, QpStatus, QueuePair,
    Sharing, Stage, Stall, ThreadError,
};

/// Never ends by itself.
fn endless(seed: u64) -> Options {
    Options {
        seed,
        iters: u64::MAX,
        // The first under the memory model.
        check: if seed == 1 {
            Check::Strict
        } else {
            Check::Fast
        },
        step_budget: Some(u64::MAX),
        wait_deadline: Duration::from_secs(3600),
        ..options()
    }
}

fn handle(bench: &Bench, qp: usize) -> QpHandle {
    let mut bytes = [0; QpHandle::LEN];
    let at = bench.qps[qp].handle();
    bench.world.gpu().copy_from_device(&mut bytes, at).unwrap();
    QpHandle::from_bytes(&bytes).unwrap()
}

/// The record, and the producer that the doorbell record holds.
fn records(bench: &Bench, at: u64) -> (u64, u64, u16) {
    let word = |offset: u64| bench.world.gpu().load_acquire(at + offset).unwrap();
    let dbr = word(ProxyRecord::LEN as u64).to_le_bytes();
    let send = dbr[DBR_SEND..].try_into().unwrap();
    (word(0), word(16), dbr_producer(send))
}

/// Lets a run go on until so many WQEs are executed.
fn until_executed(bench: &Bench, run: &mut warpverbs::Run, count: u64) {
    while bench.world.nic_stats().executed_total() < count {
        assert!(!run.is_finished().unwrap());
    }
}

#[test]
fn a_qp_is_removed_and_added_again_while_the_gpu_posts() {
    for seed in 2..=4 {
        let options = Options {
            // Longer than all the looks at it take.
            iters: 30_000,
            ..endless(seed)
        };
        let bench = options.bench().unwrap();
        let proxy = bench.proxy.clone().unwrap();
        let mut run = launch(&bench, &options).unwrap();
        until_executed(&bench, &mut run, 50);
        for _ in 0..4 {
            let served = proxy.remove(bench.qps[0].qp()).unwrap();
            assert!(served.is_all_rung() && served.failure.is_none());
            assert!(proxy.served().is_empty());
            // The GPU fills the queue and waits; nobody rings for it.
            for _ in 0..3 {
                assert!(!run.is_finished().unwrap());
            }
            let at = handle(&bench, 0).proxy;
            let (producer, rung, dbr) = records(&bench, at);
            assert_eq!((rung, dbr), (served.rung, served.rung as u16));
            assert_eq!(producer, rung + 7, "a queue of 8 is full");
            // It goes on where it left off.
            proxy.add(bench.qps[0].qp()).unwrap();
            let more = bench.world.nic_stats().executed_total() + 50;
            until_executed(&bench, &mut run, more);
        }
        let report = run.wait(PATIENCE).unwrap();
        report.check().unwrap();
        assert_eq!(bench.target.to_vec().unwrap(), bench.bytes);
        drop(run);
        close(bench);
    }
}

#[test]
fn a_second_qp_comes_and_goes_beside_one_that_is_served() {
    let options = Options {
        qps: 2,
        threads: 2,
        iters: 300,
        ..endless(1)
    };
    let bench = options.bench().unwrap();
    let proxy = bench.proxy.clone().unwrap();
    let mut run = launch(&bench, &options).unwrap();
    let mut rounds = 0;
    while !run.is_finished().unwrap() {
        let qp = bench.qps[rounds % 2].qp();
        let served = proxy.remove(qp).unwrap();
        assert!(served.is_all_rung());
        assert_eq!(proxy.served().len(), 1);
        proxy.add(qp).unwrap();
        rounds += 1;
    }
    run.wait(PATIENCE).unwrap().check().unwrap();
    assert_eq!(bench.target.to_vec().unwrap(), bench.bytes);
    assert!(proxy.served().iter().all(|served| served.rung == 300));
    drop(run);
    close(bench);
}

#[test]
fn what_cannot_be_added_or_removed_is_refused_and_nothing_changes() {
    let bench = options().bench().unwrap();
    let proxy = bench.proxy.clone().unwrap();
    let qp = bench.qps[0].qp();
    let state = |error: &Error| error.kind() == ErrorKind::State;
    assert!(state(&proxy.add(qp).unwrap_err()), "served already");
    let other = Proxy::start().unwrap();
    assert!(state(&other.add(qp).unwrap_err()), "served by another");
    assert!(state(&other.remove(qp).unwrap_err()), "not served by it");
    assert_eq!(proxy.served().len(), 1);
    // One that the GPU rings for.
    let own = QueuePair::create(&bench.pd, &bench.gpu, &QpConfig::default()).unwrap();
    let error = other.add(&own).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.cure().contains("DoorbellPath::Proxy"));
    other.stop().unwrap();
    assert!(!other.is_running());
    let served = proxy.remove(qp).unwrap();
    assert_eq!((served.qpn, served.producer, served.rung), (qp.qpn(), 0, 0));
    assert!(state(&other.add(qp).unwrap_err()), "the proxy is stopped");
    assert!(state(&proxy.remove(qp).unwrap_err()), "removed before");
    proxy.add(qp).unwrap();
    close(bench);
    assert!(proxy.served().is_empty(), "closing ended its service");
}

#[test]
fn a_launch_takes_qps_of_its_doorbells_path_only() {
    let bench = options().bench().unwrap();
    for doorbell in [Doorbell::Db, Doorbell::DbEarly, Doorbell::NoDbr] {
        let options = Options {
            doorbell,
            ..options()
        };
        let error = launch(&bench, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    close(bench);
}

#[test]
fn a_proxy_stops_while_idle_and_while_queues_are_full_and_the_last_index_is_served() {
    // Idle: with and without QPs, twice, and again by drop.
    let idle = Proxy::start().unwrap();
    assert!(idle.is_running() && idle.stop().unwrap().is_empty());
    assert!(idle.stop().unwrap().is_empty() && !idle.is_running());
    let bench = options().bench().unwrap();
    assert_eq!(bench.proxy.as_ref().unwrap().stop().unwrap().len(), 1);
    close(bench);

    for seed in 1..=6 {
        let options = endless(seed);
        let mut bench = options.bench().unwrap();
        let proxy = bench.proxy.clone().unwrap();
        let mut run = launch(&bench, &options).unwrap();
        until_executed(&bench, &mut run, 20);
        // Nobody looks any more: the queue fills.
        bench.beside = None;
        let at = handle(&bench, 0).proxy;
        let full = loop {
            assert!(!run.is_finished().unwrap());
            let (producer, rung, _) = records(&bench, at);
            if producer == rung + 7 {
                break producer;
            }
        };
        let stood = proxy.stop().unwrap();
        assert_eq!((stood[0].producer, stood[0].rung), (full, full));
        let (_, rung, dbr) = records(&bench, at);
        assert_eq!((rung, dbr), (full, full as u16));
        // The kernel waits for a proxy that is not there; it is stopped, and all closes.
        run.stop().unwrap();
        let report = run.wait(PATIENCE).unwrap();
        assert_eq!(report.threads[0].error, Some(ThreadError::Stopped));
        drop(run);
        close(bench);
    }
}

/// What was asked for and not rung for is outstanding: the last look may ring for it yet.
#[test]
fn regions_stay_while_work_waits_for_the_proxy() {
    let options = endless(2);
    let mut bench = options.bench().unwrap();
    let mut run = launch(&bench, &options).unwrap();
    until_executed(&bench, &mut run, 20);
    bench.beside = None;
    let at = handle(&bench, 0).proxy;
    while {
        let (producer, rung, _) = records(&bench, at);
        producer != rung + 7
    } {
        assert!(!run.is_finished().unwrap());
    }
    run.stop().unwrap();
    run.wait(PATIENCE).unwrap();
    drop(run);
    let refused = bench.source_mr.clone().close().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::Busy);
    bench.qps[0].clone().close().unwrap();
    refused.value.close().unwrap();
    close(bench);
}

#[test]
fn who_waits_for_a_proxy_that_is_not_there_is_told_why() {
    let options = Options {
        wait_deadline: Duration::from_micros(200),
        ..options()
    };
    let mut bench = options.bench().unwrap();
    bench.beside = None;
    bench.proxy.take().unwrap().stop().unwrap();
    let report = launch(&bench, &options).unwrap().wait(PATIENCE).unwrap();
    let qpn = bench.qps[0].qpn();
    assert_eq!(report.stalls, [(qpn, Stall::NotServed { index: 0 })]);
    close(bench);
}

/// Each with a QP that is served, while a kernel runs, and with work that is never rung for.
#[test]
fn closing_ends_the_service_behind_a_last_look() {
    type Closing = fn(Bench);
    let closings: [Closing; 3] = [
        |bench| {
            let qp = bench.qps[0].clone();
            let report = qp.close().unwrap();
            assert_eq!((report.stage, report.retained.len()), (Stage::Destroyed, 0));
            close(bench);
        },
        |bench| {
            bench.nic.clone().close().unwrap();
            close(bench);
        },
        |bench| {
            let world = bench.world.clone();
            drop(bench);
            assert_eq!(world.live(), [""; 0]);
        },
    ];
    for closing in closings {
        for (served, seed) in [(true, 1), (false, 2)] {
            let options = endless(seed);
            let mut bench = options.bench().unwrap();
            let mut run = launch(&bench, &options).unwrap();
            until_executed(&bench, &mut run, 20);
            if !served {
                bench.beside = None;
            }
            for _ in 0..2 {
                assert!(!run.is_finished().unwrap());
            }
            drop(run);
            closing(bench);
        }
    }
}

#[test]
fn a_reset_ends_the_service_and_a_new_life_begins_at_its_first_index() {
    let first = (1 << 32) - 5;
    let options = Options {
        first_index: first,
        iters: 30,
        sharing: Sharing::Gpu,
        threads: 3,
        check: Check::Strict,
        ..options()
    };
    let mut bench = options.bench().unwrap();
    let proxy = bench.proxy.clone().unwrap();
    let at = handle(&bench, 0).proxy;
    for _ in 0..3 {
        let run = launch(&bench, &options).unwrap().wait(PATIENCE);
        run.unwrap().check().unwrap();
        let end = first + 90;
        assert_eq!(records(&bench, at), (end, end, end as u16));
        let mut qp = bench.qps.remove(0).unexport().unwrap();
        qp.reset().unwrap();
        assert_eq!(records(&bench, at), (first, first, first as u16));
        assert!(proxy.served().is_empty());
        let mut peer = bench.peers.remove(0);
        peer.reset().unwrap();
        qp.connect(&peer.local_info()).unwrap();
        peer.connect(&qp.local_info()).unwrap();
        proxy.add(&qp).unwrap();
        bench.qps.push(qp.export().unwrap());
        bench.peers.push(peer);
    }
    assert_eq!(bench.target.to_vec().unwrap(), bench.bytes);
    close(bench);
}

#[test]
fn a_doorbell_that_fails_stops_the_qp_is_reported_and_is_over_after_a_reset() {
    for (call, kind) in [
        ("ring_doorbell", DriverErrorKind::Os(5)),
        ("store_release_u32", DriverErrorKind::Os(5)),
        ("load_acquire", DriverErrorKind::Os(5)),
    ] {
        let options = Options {
            qps: 2,
            threads: 2,
            iters: 100,
            // The model does not know that a reset orders a NIC's reads before a new life's stores.
            check: Check::Fast,
            ..endless(1)
        };
        let mut bench = options.bench().unwrap();
        let proxy = bench.proxy.clone().unwrap();
        bench.faults.plan(Fault::fail(3).of(call).error(kind));
        let mut run = launch(&bench, &options).unwrap();
        let report = run.wait(PATIENCE).unwrap();
        drop(run);
        let stood = proxy.served();
        let failed = stood.iter().position(|served| served.failure.is_some());
        let failed = failed.unwrap_or_else(|| panic!("{call}: {stood:?}"));
        // The other is served all the same.
        assert_eq!(stood[1 - failed].rung, 100);
        assert!(report.threads[1 - failed].error.is_none(), "{call}");
        // A load that fails strikes before anything is known; the GPU learns of it by the stop word.
        assert_eq!(report.threads[failed].error, Some(ThreadError::Stopped));
        let served = proxy.remove(bench.qps[failed].qp()).unwrap();
        assert!(served.failure.is_some(), "{call}: {served:?}");

        let mut qp = bench.qps.remove(failed).unexport().unwrap();
        qp.reset().unwrap();
        let mut peer = bench.peers.remove(failed);
        peer.reset().unwrap();
        qp.connect(&peer.local_info()).unwrap();
        peer.connect(&qp.local_info()).unwrap();
        proxy.add(&qp).unwrap();
        bench.qps.insert(failed, qp.export().unwrap());
        bench.peers.push(peer);
        let report = launch(&bench, &options).unwrap().wait(PATIENCE).unwrap();
        report.check().unwrap();
        // What failed half-way left a record ahead of the doorbells, or none: nothing else is found.
        let found = bench.world.findings();
        assert!(
            found.iter().all(|found| found.contains("dbr-unrung")),
            "{found:?}"
        );
        let world = bench.world.clone();
        drop((bench, proxy));
        assert_eq!(world.live(), [""; 0]);
    }
}

#[test]
fn a_wild_producer_becomes_no_doorbell() {
    for wild in [8 + 1, 1 << 16, 1 << 40, u64::MAX] {
        let bench = options().bench().unwrap();
        let proxy = bench.proxy.clone().unwrap();
        let at = handle(&bench, 0).proxy;
        bench.world.gpu().store_release(at, wild).unwrap();
        // The memory model may show it late.
        let looks = (0..1_000).take_while(|_| proxy.step() == 0);
        looks
            .take_while(|_| proxy.served()[0].failure.is_none())
            .for_each(drop);
        let served = proxy.remove(bench.qps[0].qp()).unwrap();
        let failure = served.failure.clone().unwrap();
        assert!(
            matches!(*failure, Error::ProxyRecord { producer, rung: 0, .. } if producer == wild)
        );
        assert_eq!((served.producer, served.rung), (wild, 0));
        assert_eq!(records(&bench, at), (wild, 0, 0));
        assert_eq!(bench.world.nic_stats().doorbells, 0);
        // The stop word is the host's; the state word a kernel would have to look.
        assert_eq!(bench.qps[0].progress().unwrap().status, QpStatus::Live);
        close(bench);
    }
}

/// A driver call that does not return holds up its QP, and no other.
#[test]
fn a_call_that_hangs_keeps_its_qp_and_its_siblings_go() {
    let bench = Options {
        qps: 2,
        ..options()
    }
    .bench()
    .unwrap();
    let stepped = bench.proxy.clone().unwrap();
    for qp in &bench.qps {
        stepped.remove(qp.qp()).unwrap();
    }
    let proxy = Proxy::start().unwrap();
    proxy.add(bench.qps[0].qp()).unwrap();
    bench.faults.plan(Fault::hold(0).of("load_acquire"));
    while bench.faults.held() == 0 {
        std::thread::yield_now();
    }
    let short = Duration::from_millis(20);
    // Added, removed and closed while the thread is held.
    proxy.add(bench.qps[1].qp()).unwrap();
    proxy.remove_within(bench.qps[1].qp(), short).unwrap();
    let error = proxy.remove_within(bench.qps[0].qp(), short).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(
        proxy.stop_within(short).unwrap_err().kind(),
        ErrorKind::Timeout
    );
    let refused = bench.qps[0].clone().close_within(short).unwrap_err();
    assert_eq!(
        bench.qps[0].qp().stage(),
        Stage::Synced,
        "{}",
        refused.error
    );
    bench.qps[1].clone().close_within(short).unwrap();
    // The call returns: everything goes on where it stopped.
    bench.faults.clear();
    refused.value.close().unwrap();
    assert!(proxy.stop().unwrap().is_empty());
    close(bench);
}

#[test]
fn a_thread_that_dies_in_a_drivers_call_leaves_qps_that_can_be_removed_and_closed() {
    let bench = Options {
        wrap: Some(Arc::new(|world| {
            let (nic, gpu, _) = drivers(world, Left::Life);
            (nic, gpu)
        })),
        qps: 2,
        ..options()
    }
    .bench()
    .unwrap();
    bench.proxy.as_ref().unwrap().stop().unwrap();
    let proxy = Proxy::start().unwrap();
    for qp in &bench.qps {
        // The thread may be dead already, by the first.
        proxy.add(qp.qp()).unwrap();
    }
    while proxy.is_running() {
        std::thread::yield_now();
    }
    let first = proxy.remove(bench.qps[0].qp()).unwrap();
    let failure = first.failure.unwrap();
    assert!(matches!(*failure, Error::ProxyDied { qpn } if qpn == bench.qps[0].qpn()));
    // Looks are anyone's: the last one of the other is made here.
    let stood = proxy.stop().unwrap();
    assert_eq!(stood.len(), 1);
    assert!(stood[0].is_all_rung());
    close(bench);
}

/// All that threads may do to QPs and proxies at the same time: each gets an answer that fits, and nothing is left.
#[test]
fn threads_add_remove_close_and_stop_at_the_same_time() {
    for round in 0..10 {
        let bench = Options {
            qps: 4,
            ..options()
        }
        .bench()
        .unwrap();
        bench.proxy.as_ref().unwrap().stop().unwrap();
        let proxies = [Proxy::start().unwrap(), Proxy::start().unwrap()];
        let (start, fits) = (Barrier::new(6), |kind| {
            matches!(kind, ErrorKind::State | ErrorKind::Busy)
        });
        std::thread::scope(|scope| {
            for at in 0..4 {
                let (bench, proxies, start) = (&bench, &proxies, &start);
                scope.spawn(move || {
                    start.wait();
                    for i in 0..50 {
                        let proxy = &proxies[(at + i) % 2];
                        let qp = bench.qps[(at + i) % 4].qp();
                        if let Err(error) = proxy.add(qp) {
                            assert!(fits(error.kind()), "{error}");
                        }
                        proxy.step();
                        match proxy.remove(qp) {
                            Ok(served) => assert!(served.is_all_rung()),
                            Err(error) => assert!(fits(error.kind()), "{error}"),
                        }
                    }
                });
            }
            let (bench, proxies, start) = (&bench, &proxies, &start);
            scope.spawn(move || {
                start.wait();
                std::thread::sleep(Duration::from_micros(100 * round));
                bench.qps[1].clone().close().unwrap();
                bench.nic.clone().close().unwrap();
            });
            scope.spawn(move || {
                start.wait();
                std::thread::sleep(Duration::from_micros(50 * round));
                proxies[0].stop().unwrap();
            });
        });
        assert!(proxies[1].stop().unwrap().is_empty());
        close(bench);
    }
}

#[test]
fn a_nic_or_gpu_that_goes_away_ends_the_service_and_all_is_released_once() {
    for call in ["ring_doorbell", "load_acquire"] {
        for seed in 1..=4 {
            let options = endless(seed);
            let bench = options.bench().unwrap();
            let proxy = bench.proxy.clone().unwrap();
            bench.faults.plan(Fault::die(5 + seed).of(call));
            let mut run = launch(&bench, &options).unwrap();
            // A kernel of a GPU that is gone reports nothing.
            while proxy.served()[0].failure.is_none() && !run.is_finished().unwrap_or(true) {}
            drop(run);
            let failure = proxy.served()[0].failure.clone();
            assert!(failure.is_some_and(|why| why.kind() == ErrorKind::DeviceLost));
            bench.nic.clone().close().unwrap();
            bench.gpu.clone().close().unwrap();
            assert!(proxy.served().is_empty());
            assert!(proxy.stop().unwrap().is_empty());
        }
    }
}

/// One page for many QPs, and one for each: the record and the page are the QP's own in either case.
#[test]
fn qps_of_a_pool_share_a_page_and_are_served_each_by_its_own_record() {
    let bench = options().bench().unwrap();
    let config = QpConfig::default()
        .depth(8)
        .doorbell_path(DoorbellPath::Proxy);
    let pool = QpPool::create(&bench.pd, &bench.gpu, &config, 6).unwrap();
    for round in 0..2 {
        let mut qps = pool.qps(6).unwrap();
        let infos: Vec<_> = qps.iter().map(QueuePair::local_info).collect();
        QueuePair::connect_all(&mut qps, &infos).unwrap();
        let exported = QueuePair::export_all(qps).unwrap();
        let (proxy, beside) = serve(&bench.world, exported.iter().map(|qp| qp.qp())).unwrap();
        let run = Options {
            threads: 6,
            size: 8,
            iters: 40,
            ..options()
        };
        let run = run.bandwidth().launch(
            &bench.module,
            &bench.stream,
            &exported,
            &bench.source_mr,
            &bench.target_mr.remote(),
        );
        run.unwrap().wait(PATIENCE).unwrap().check().unwrap();
        assert!(
            proxy.served().iter().all(|served| served.rung == 40),
            "{round}"
        );
        assert!(pool.free() == 0);
        // Dropped while served: they go with the proxy.
        drop(exported);
        assert_eq!(pool.free(), 0);
        assert_eq!(proxy.stop().unwrap().len(), 6);
        assert_eq!(pool.free(), 6);
        drop(beside);
    }
    pool.close().unwrap();
    close(bench);
}

/// Where the GPU cannot map a doorbell page, the host can ring all the same.
#[test]
fn a_gpu_that_cannot_map_the_page_needs_a_proxy() {
    let bench = options().bench().unwrap();
    bench.faults.plan(Fault::refuse(0).of("map_uar"));
    let gpus = QpConfig::default();
    QueuePair::create(&bench.pd, &bench.gpu, &gpus).unwrap_err();
    let hosts = QpConfig::default().doorbell_path(DoorbellPath::Proxy);
    let pair = connected_pair(&bench.pd, &bench.gpu, &hosts).unwrap();
    drop(pair);
    close(bench);
}
