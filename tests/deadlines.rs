//! Closing has a deadline, whatever another thread's driver call does: it ends as a timeout that names what stays.
//!
//! No test here looks at a clock: a call is held by the plan of faults until the close has returned.

mod common;

use std::thread::{self, JoinHandle};
use std::time::Duration;

use common::{Bench, Options, PATIENCE, connected_pair};
use warpverbs::driver::fault::Fault;
use warpverbs::driver::sim::InjectedFault;
use warpverbs::{
    Access, Bandwidth, CloseReport, Error, ErrorKind, Mr, Pd, QueuePair, Refused, RemoteMr, Result,
    Retained, Stage,
};

/// Longer than a wait that ends, shorter than a test's patience.
const SOON: Duration = Duration::from_millis(50);

fn options() -> Options {
    Options {
        depth: 8,
        size: 64,
        slots: 2,
        iters: 20,
        step_budget: Some(u64::MAX),
        ..Options::default()
    }
}

fn report<T>(closed: Result<CloseReport, Refused<T>>) -> CloseReport {
    match closed {
        Err(Refused {
            error: Error::Incomplete(report),
            ..
        }) => *report,
        Err(Refused { error, .. }) => panic!("{error}"),
        Ok(report) => panic!("complete: {report}"),
    }
}

fn named<'a>(report: &'a CloseReport, kind: &str) -> &'a Retained {
    let mut retained = report.retained.iter();
    retained
        .find(|retained| retained.node.kind == kind)
        .unwrap_or_else(|| panic!("no {kind} in {report}"))
}

/// Runs `work` in a thread whose first call of this name is held, and returns once it is.
fn held<T: Send + 'static>(
    bench: &Bench,
    call: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    bench.faults.plan(Fault::hold(0).of(call));
    let thread = thread::spawn(work);
    while bench.faults.held() == 0 {
        assert!(!thread.is_finished(), "{call} was not called");
        thread::yield_now();
    }
    thread
}

/// Lets the call go, and closes again: nothing is left.
fn release<T>(bench: Bench, thread: JoinHandle<T>) -> T {
    assert_eq!(bench.faults.held(), 1, "the close waited for the call");
    bench.faults.clear();
    let done = thread.join().unwrap();
    finish(bench);
    done
}

fn finish(bench: Bench) {
    let Bench {
        world, nic, gpu, ..
    } = bench;
    nic.close().unwrap();
    gpu.close().unwrap();
    assert_eq!(world.live(), [""; 0]);
    assert_eq!(world.findings(), [""; 0]);
}

#[test]
fn a_registration_that_does_not_return() {
    let bench = options().bench().unwrap();
    let (pd, memory) = (bench.pd.clone(), bench.gpu.alloc(64, "memory").unwrap());
    let call = held(&bench, "reg_mr", move || {
        Mr::register(&pd, &memory, Access::LOCAL_WRITE).map(drop)
    });
    let report = report(bench.nic.clone().close_within(SOON));
    let calls = named(&report, "NIC context");
    assert_eq!(calls.kind, ErrorKind::Timeout);
    assert!(
        calls.cause.starts_with("1 call(s) under way did not"),
        "{report}"
    );
    assert_eq!(report.stage, Stage::Stopping);
    // What the call uses stays, and nothing else.
    assert_eq!(named(&report, "PD").kind, ErrorKind::Busy);
    assert_eq!(report.retained.len(), 2, "{report}");
    assert_eq!((report.released["QP"], report.released["MR"]), (2, 2));
    // The region came into being on a NIC that is closed: it can be used by nobody, and went with its handle.
    release(bench, call).unwrap();
}

#[test]
fn a_connection_that_does_not_return() {
    let bench = options().bench().unwrap();
    let mut qp = QueuePair::create(&bench.pd, &bench.gpu, &options().qp_config()).unwrap();
    let call = held(&bench, "modify", move || {
        let info = qp.local_info();
        (qp.connect(&info), qp)
    });
    let report = report(bench.nic.clone().close_within(SOON));
    let retained = named(&report, "QP");
    assert_eq!(retained.kind, ErrorKind::Timeout);
    assert!(
        retained.set.iter().any(|node| node.kind == "CQ"),
        "{retained}"
    );
    assert_eq!(report.released["QP"], 2, "the others: {report}");
    let (connected, qp) = release(bench, call);
    connected.unwrap();
    assert_eq!(qp.stage(), Stage::Destroyed);
}

#[test]
fn a_copy_that_does_not_return() {
    let bench = options().bench().unwrap();
    bench.nic.clone().close().unwrap();
    let memory = bench.gpu.alloc(64, "memory").unwrap();
    let addr = memory.addr();
    let call = held(&bench, "copy_to_device", move || memory.write(0, &[1; 64]));
    let report = report(bench.gpu.clone().close_within(SOON));
    assert_eq!(report.retained.len(), 1, "{report}");
    let retained = named(&report, "GPU memory");
    assert_eq!(
        (retained.kind, retained.node.number),
        (ErrorKind::Timeout, Some(addr))
    );
    release(bench, call).unwrap();
}

#[test]
fn a_launch_that_does_not_return() {
    let bench = options().bench().unwrap();
    let (module, stream) = (bench.module.clone(), bench.stream.clone());
    let (qps, local) = (bench.qps.clone(), bench.source_mr.clone());
    let remote = bench.target_mr.remote();
    let call = held(&bench, "launch", move || {
        let mut run = options()
            .bandwidth()
            .launch(&module, &stream, &qps, &local, &remote)?;
        run.wait(PATIENCE)
    });
    let nic = report(bench.nic.clone().close_within(SOON));
    // The QP waits for the launch, and what its kernel may still name stays; its peer is gone.
    assert_eq!(named(&nic, "QP").kind, ErrorKind::Timeout);
    assert_eq!(nic.released["QP"], 1, "{nic}");
    assert!(!nic.released.contains_key("MR"), "{nic}");
    let gpu = report(bench.gpu.clone().close_within(SOON));
    assert_eq!(named(&gpu, "launch").kind, ErrorKind::Timeout);
    // It was launched all the same: its threads were told to stop before they began.
    let ran = release(bench, call);
    assert!(ran.is_err() || ran.is_ok_and(|report| report.check().is_err()));
}

#[test]
fn another_threads_close_that_does_not_return() {
    let mut bench = options().bench().unwrap();
    let other = bench.nic.clone();
    let call = held(&bench, "destroy", move || other.close().map(drop));
    let nic = report(bench.nic.clone().close_within(SOON));
    let retained = named(&nic, "NIC context");
    assert!(
        retained.cause.starts_with("another thread's close did not"),
        "{nic}"
    );
    let kinds = |kind: &str| {
        let set = retained.set.iter();
        set.filter(|node| node.kind == kind).count()
    };
    assert_eq!((kinds("QP"), kinds("MR"), kinds("PD")), (2, 2, 1));
    // Of one QP too.
    let qp = report(bench.qps.remove(0).close_within(SOON));
    assert_eq!(named(&qp, "NIC context").kind, ErrorKind::Timeout);
    assert_eq!(bench.nic.retained(), [], "nothing was refused");
    release(bench, call).unwrap();
}

#[test]
fn another_threads_drop_that_does_not_return() {
    let bench = options().bench().unwrap();
    let pd = Pd::alloc(&bench.nic).unwrap();
    let pdn = u64::from(pd.pdn());
    let call = held(&bench, "dealloc_pd", move || drop(pd));
    let report = report(bench.nic.clone().close_within(SOON));
    assert_eq!(report.retained.len(), 1, "{report}");
    let retained = named(&report, "PD");
    assert_eq!(
        (retained.kind, retained.node.number),
        (ErrorKind::Timeout, Some(pdn))
    );
    release(bench, call);
}

/// Leaves work requests outstanding on all QPs, which are in error.
fn fail_all(bench: &Bench) {
    for qp in &bench.qps {
        let remote = RemoteMr {
            rkey: 0xffff_ff00,
            ..bench.target_mr.remote()
        };
        let qps = std::slice::from_ref(qp);
        let mut run = options()
            .bandwidth()
            .launch(&bench.module, &bench.stream, qps, &bench.source_mr, &remote)
            .unwrap();
        assert!(run.wait(PATIENCE).unwrap().fault().is_some());
    }
}

#[test]
fn one_stuck_drain_leaves_its_siblings_their_turns() {
    for (stuck, time) in [
        (0, Duration::ZERO),
        (3, Duration::ZERO),
        (0, SOON),
        (7, SOON),
    ] {
        let bench = Options {
            qps: 8,
            ..options()
        }
        .bench()
        .unwrap();
        fail_all(&bench);
        let qpn = bench.qps[stuck].qpn();
        bench
            .world
            .with_nic(|nic| nic.inject(InjectedFault::DropDbr { qpn }));
        let report = report(bench.nic.clone().close_within(time));
        let qps: Vec<_> = report
            .retained
            .iter()
            .filter(|retained| retained.node.kind == "QP")
            .map(|retained| retained.node.number)
            .collect();
        assert_eq!(qps, [Some(u64::from(qpn))], "{time:?}: {report}");
        assert_eq!(report.released["QP"], 15, "{time:?}: {report}");
        assert_eq!(named(&report, "QP").kind, ErrorKind::Timeout);
        bench.world.with_nic(|nic| nic.heal());
        finish(bench);
    }
}

#[test]
fn one_deaf_kernel_leaves_its_siblings_their_turns() {
    let bench = Options {
        qps: 3,
        ..options()
    }
    .bench()
    .unwrap();
    fail_all(&bench);
    let (one, _peer) = connected_pair(&bench.pd, &bench.gpu, &options().qp_config()).unwrap();
    let one = one.export().unwrap();
    let qpn = u64::from(one.qpn());
    // Its event stays pending: the kernel does not end.
    bench
        .faults
        .plan(Fault::delay(0, Duration::from_secs(1 << 20)).of("query_event"));
    let mut run = Bandwidth {
        iters: 1,
        ..options().bandwidth()
    }
    .launch(
        &bench.module,
        &bench.stream,
        std::slice::from_ref(&one),
        &bench.source_mr,
        &bench.target_mr.remote(),
    )
    .unwrap();
    let report = report(bench.nic.clone().close_within(SOON));
    let retained = named(&report, "QP");
    assert_eq!(
        (retained.kind, retained.node.number),
        (ErrorKind::Timeout, Some(qpn))
    );
    assert_eq!(report.released["QP"], 3 + 3 + 1, "{report}");
    assert_eq!(report.stage, Stage::Stopping);
    bench.faults.clear();
    run.wait(PATIENCE).unwrap();
    drop(run);
    finish(bench);
}
