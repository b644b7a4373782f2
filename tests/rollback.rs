//! Whatever driver call fails, everything is undone exactly once, and nothing leaks.

mod common;

use std::sync::Arc;

use common::{Options, PATIENCE, World, connected_pair, pattern};
use warpverbs::driver::fault::{Fault, Faults};
use warpverbs::driver::{Gpu, Nic};
use warpverbs::{
    Access, Bandwidth, Context, Error, ErrorKind, GpuContext, HostMemory, Module, Mr, Pd, QpStatus,
    QueuePair, Refused, Result, Stream,
};

struct Setup {
    world: World,
    faults: Faults,
}

impl Setup {
    fn new() -> Self {
        Self {
            world: Options::default().world(),
            faults: Faults::new(),
        }
    }

    fn nic(&self) -> Arc<dyn Nic> {
        self.faults.nic(self.world.nic())
    }

    fn gpu(&self) -> Arc<dyn Gpu> {
        self.faults.gpu(self.world.gpu())
    }

    /// `count` calls fail, from call number `first` on.
    fn fail(&self, first: u64, count: u64) {
        self.faults.clear();
        self.faults.plan(Fault::fail(first).calls(count));
    }

    /// The calls that failed.
    fn failed(&self) -> Vec<&'static str> {
        self.faults
            .injected()
            .iter()
            .map(|call| call.name)
            .collect()
    }
}

/// From an open NIC to a closed one, with a run in between.
fn everything(nic: &Context, gpu: &GpuContext) -> Result<()> {
    let pd = Pd::alloc(nic)?;
    let options = Options {
        iters: 4,
        ..Options::default()
    };
    let bandwidth = options.bandwidth();
    let len = bandwidth.region_len().unwrap() as usize;
    let source = gpu.alloc_copy(&pattern(1, len), "source")?;
    let source_mr = Mr::register(&pd, &source, Access::LOCAL_WRITE)?;
    let host = HostMemory::zeroed(len);
    let target_mr = Mr::register_host(&pd, &host, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let (qp, peer) = connected_pair(&pd, gpu, &options.qp_config())?;
    let qp = qp.export()?;
    let module = Module::load(gpu, "embedded", common::embedded_ptx())?;
    let stream = Stream::create(gpu)?;
    let mut run = bandwidth.launch(
        &module,
        &stream,
        std::slice::from_ref(&qp),
        &source_mr,
        &target_mr.remote(),
    )?;
    run.wait(PATIENCE)?.check()?;
    drop(run);
    qp.progress()?;
    qp.unexport()?.close()?;
    peer.close()?;
    stream.close()?;
    module.close()?;
    source_mr.close()?;
    target_mr.close()?;
    source.close()?;
    pd.close()?;
    Ok(())
}

/// Runs `everything` with `count` failures at each call in turn.
fn enumerate(count: u64) -> Vec<Vec<&'static str>> {
    let mut plans = Vec::new();
    for first in 0.. {
        let setup = Setup::new();
        setup.fail(first, count);
        let opened =
            Context::open(setup.nic()).and_then(|nic| Ok((nic, GpuContext::open(setup.gpu())?)));
        match opened {
            Err(error) => assert_planned(&error),
            Ok((nic, gpu)) => {
                let result = everything(&nic, &gpu);
                let failed = setup.failed();
                if failed.is_empty() {
                    result.unwrap();
                    assert_eq!(setup.world.live(), [""; 0]);
                    return plans;
                }
                // A failure that something stood in for (another kind of doorbell page, the stream
                // instead of an event) is no error; any other is reported as it was.
                if let Err(error) = &result {
                    assert_planned(error);
                }
                // What a refusal retained is destroyed once the driver does not refuse any more.
                setup.faults.clear();
                for context in [
                    nic.retry_retained(),
                    gpu.retry_retained(),
                    nic.retry_retained(),
                ] {
                    drop(context);
                }
                assert_eq!(nic.retained(), []);
                assert_eq!(gpu.retained(), []);
                plans.push(failed);
            }
        }
        assert_eq!(setup.world.live(), [""; 0], "after failure at call {first}");
    }
    plans
}

fn assert_planned(error: &Error) {
    assert!(error.to_string().contains("planned failure"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Exhausted);
}

#[test]
fn one_failure_at_any_call_leaves_nothing() {
    let plans = enumerate(1);
    let mut calls: Vec<_> = plans.into_iter().flatten().collect();
    calls.sort_unstable();
    calls.dedup();
    // The calls that a run makes, from both drivers: if one is missing, the enumeration missed it.
    for call in [
        "alloc",
        "alloc_pd",
        "close_dmabuf",
        "create",
        "create_event",
        "destroy",
        "dereg_umem",
        "launch",
        "map_uar",
        "modify",
        "record_event",
        "reg_mr",
        "reg_umem",
        "unmap_uar",
    ] {
        assert!(calls.contains(&call), "{call} never failed: {calls:?}");
    }
}

#[test]
fn two_failures_in_a_row_leave_nothing() {
    enumerate(2);
}

#[test]
fn a_driver_that_fails_for_good_leaves_what_it_retains_and_no_more() {
    for first in (0..).step_by(5) {
        let setup = Setup::new();
        let nic = Context::open(setup.nic()).unwrap();
        let gpu = GpuContext::open(setup.gpu()).unwrap();
        setup.fail(first, u64::MAX);
        let result = everything(&nic, &gpu);
        let failed = !setup.failed().is_empty();
        setup.faults.clear();
        for _ in 0..20 {
            nic.retry_retained();
            gpu.retry_retained();
        }
        assert_eq!(setup.world.live(), [""; 0], "from call {first} on");
        if !failed {
            return result.unwrap();
        }
        result.unwrap_err();
    }
}

#[test]
fn every_kind_of_doorbell_page_is_tried() {
    let setup = Setup::new();
    let nic = Context::open(setup.nic()).unwrap();
    let gpu = GpuContext::open(setup.gpu()).unwrap();
    let pd = Pd::alloc(&nic).unwrap();
    let create = |first, count| {
        let before = setup.failed().len();
        setup.fail(first, count);
        let result = QueuePair::create(&pd, &gpu, &Options::default().qp_config());
        (setup.failed().split_off(before), result)
    };
    // The call by which the first page is asked for.
    let first = (0..)
        .find(|first| create(*first, 1).0 == ["alloc_uar"])
        .unwrap();
    create(first, 2).1.unwrap().close().unwrap();
    let (failed, result) = create(first, 3);
    assert_eq!(failed, ["alloc_uar"; 3]);
    assert_planned(&result.unwrap_err());
    setup.faults.clear();
    pd.close().unwrap();
    assert_eq!(setup.world.live(), [""; 0]);
}

#[test]
fn a_refused_close_hands_the_qp_back_and_resumes() {
    // QP, CQ, mapping, doorbell page, UMEM, stop words, memory: in this order.
    let calls = [
        "destroy",
        "destroy",
        "unmap_uar",
        "free_uar",
        "dereg_umem",
        "free_host_mapped",
        "free",
    ];
    for (part, call) in calls.into_iter().enumerate() {
        let setup = Setup::new();
        let nic = Context::open(setup.nic()).unwrap();
        let gpu = GpuContext::open(setup.gpu()).unwrap();
        let pd = Pd::alloc(&nic).unwrap();
        let qp = QueuePair::create(&pd, &gpu, &Options::default().qp_config()).unwrap();
        setup.fail(part as u64, 1);
        let Refused { error, value: qp } = qp.close().unwrap_err();
        assert_planned(&error);
        assert_eq!(setup.failed(), [call]);
        // The rest is closed by exactly one call each: one more would fail.
        setup.fail((calls.len() - part) as u64, u64::MAX);
        qp.close().unwrap();
        setup.faults.clear();
        assert_eq!(nic.retained(), []);
        pd.close().unwrap();
        assert_eq!(setup.world.live(), [""; 0]);
    }
}

#[test]
fn a_dropped_qp_whose_destruction_is_refused_keeps_its_memory() {
    let setup = Setup::new();
    let nic = Context::open(setup.nic()).unwrap();
    let gpu = GpuContext::open(setup.gpu()).unwrap();
    let pd = Pd::alloc(&nic).unwrap();
    let qp = QueuePair::create(&pd, &gpu, &Options::default().qp_config()).unwrap();
    let before = setup.world.live();
    setup.fail(0, 1);
    drop(qp);
    assert_eq!(setup.failed(), ["destroy"]);
    assert_eq!(nic.retained()[0].node.kind, "QP");
    // The NIC may still fetch from the ring: nothing under the QP has gone.
    assert_eq!(setup.world.live(), before);
    // The PD is in use, by what is retained.
    let Refused { error, value: pd } = pd.close().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert_eq!(nic.retry_retained(), []);
    pd.close().unwrap();
    assert_eq!(setup.world.live(), [""; 0]);
}

#[test]
fn a_launch_that_runs_keeps_what_it_uses() {
    let options = Options {
        iters: 100_000,
        ..Options::default()
    };
    let bench = options.bench().unwrap();
    let mut run = Bandwidth {
        iters: options.iters,
        ..options.bandwidth()
    }
    .launch(
        &bench.module,
        &bench.stream,
        &bench.qps,
        &bench.source_mr,
        &bench.target_mr.remote(),
    )
    .unwrap();
    let error = run.wait(std::time::Duration::ZERO).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    let qp = bench.qps[0].clone();
    let Refused { error, value: qp } = qp.unexport().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    run.stop().unwrap();
    let report = run.wait(PATIENCE).unwrap();
    assert!(report.completed() < options.iters);
    assert!(matches!(
        report.check(),
        Err(Error::Thread {
            reason: warpverbs::ThreadError::Stopped,
            ..
        })
    ));
    let world = bench.world.clone();
    drop((run, qp, bench));
    assert_eq!(world.live(), [""; 0]);
}

#[test]
fn a_launch_that_is_dropped_while_it_runs_is_stopped() {
    let options = Options {
        iters: 1 << 40,
        ..Options::default()
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
    drop(run);
    assert_eq!(bench.gpu.retained(), []);
    let status = bench.qps[0].progress().unwrap().status;
    assert_eq!(status, QpStatus::Stopped);
    let world = bench.world.clone();
    drop(bench);
    assert_eq!(world.live(), [""; 0]);
}
