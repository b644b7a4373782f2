//! The scenarios of a teardown that meets a fault, each by name.

mod common;

use std::time::Duration;

use common::{Bench, Options, PATIENCE};
use warpverbs::driver::LaunchShape;
use warpverbs::driver::fault::{Fault, Outcome, Role};
use warpverbs::driver::sim::InjectedFault;
use warpverbs::{
    Access, CloseReport, Context, Error, ErrorKind, ExportedQp, GpuMemory, Launch, Module, Mr,
    NodeId, Pd, QpConfig, QueuePair, Refused, RemoteMr, Run, Stage, View,
};

/// Longer than a wait that ends, shorter than a test's patience.
const SOON: Duration = Duration::from_millis(50);

fn bench() -> Bench {
    options().bench().unwrap()
}

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

/// Runs the write kernel, against a key that does not exist if it is to fail.
fn launch(bench: &Bench, fails: bool) -> Run {
    let mut remote = bench.target_mr.remote();
    if fails {
        remote.rkey = 0xffff_ff00;
    }
    launch_to(bench, &bench.qps[0], &remote)
}

fn launch_to(bench: &Bench, qp: &ExportedQp, remote: &RemoteMr) -> Run {
    options()
        .bandwidth()
        .launch(
            &bench.module,
            &bench.stream,
            std::slice::from_ref(qp),
            &bench.source_mr,
            remote,
        )
        .unwrap()
}

/// Leaves work requests outstanding on the QP, which is in error.
fn fail_outstanding(bench: &Bench) {
    let report = launch(bench, true).wait(PATIENCE).unwrap();
    assert!(report.fault().is_some());
    let progress = bench.qps[0].progress().unwrap();
    assert!(progress.completed < progress.handed_off);
}

fn incomplete<T>(closed: Result<CloseReport, Refused<T>>) -> (CloseReport, T) {
    match closed {
        Err(Refused {
            error: Error::Incomplete(report),
            value,
        }) => (*report, value),
        Err(Refused { error, .. }) => panic!("{error}"),
        Ok(report) => panic!("complete: {report}"),
    }
}

/// Closes both contexts; nothing may be left.
fn close_all(bench: Bench) {
    let Bench {
        world, nic, gpu, ..
    } = bench;
    nic.close().unwrap();
    gpu.close().unwrap();
    assert_eq!(world.live(), [""; 0]);
}

fn kinds(nodes: &[NodeId]) -> Vec<&'static str> {
    nodes.iter().map(|node| node.kind).collect()
}

fn calls(bench: &Bench, name: &str, outcome: Outcome) -> usize {
    let trace = bench.faults.trace();
    trace
        .iter()
        .filter(|call| call.name == name && call.outcome == outcome)
        .count()
}

#[test]
fn scenario_06_doorbell_page_or_cq_creation_fails() {
    for (fault, retry) in [
        (Fault::refuse(0).of("alloc_uar"), 3),
        (Fault::fail(0).of("create"), 1),
    ] {
        let bench = bench();
        let before = bench.world.live();
        bench.faults.plan(fault);
        let error = QueuePair::create(&bench.pd, &bench.gpu, &QpConfig::default()).unwrap_err();
        assert!(error.to_string().contains("planned failure"), "{error}");
        assert_eq!(bench.faults.injected().len(), retry);
        assert_eq!(bench.world.live(), before);
        bench.faults.clear();
        close_all(bench);
    }
}

#[test]
fn scenario_07_export_fails_after_the_qp_was_created() {
    let mut bench = bench();
    // Its stop word is set, and an export clears it.
    bench.qps[0].stop().unwrap();
    let qp = bench.qps.remove(0).unexport().unwrap();
    let before = bench.world.live();
    bench.faults.plan(Fault::fail(0).of("store_release"));
    let Refused { error, value: qp } = qp.export().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert_eq!(bench.world.live(), before);
    qp.export().unwrap().close().unwrap();
    close_all(bench);
}

#[test]
fn scenario_08_the_copy_of_the_device_handle_fails() {
    let mut bench = bench();
    let qp = bench.qps.remove(0).unexport().unwrap();
    let before = bench.world.live();
    let copies = calls(&bench, "copy_to_device", Outcome::Done);
    bench.faults.plan(Fault::fail(0).of("copy_to_device"));
    let Refused { error, value: qp } = qp.export().unwrap_err();
    assert!(!matches!(error, Error::Rollback { .. }));
    assert_eq!(bench.world.live(), before);
    // What the copy may have left is cleared.
    let now = calls(&bench, "copy_to_device", Outcome::Done);
    assert_eq!(now - copies, 1);
    qp.close().unwrap();
    close_all(bench);
}

#[test]
fn scenario_09_the_rollback_of_an_export_is_refused() {
    let mut bench = bench();
    let peer = bench.peers.remove(0);
    let qp = bench.qps.remove(0).unexport().unwrap();
    // Neither written nor cleared.
    bench.faults.plan(Fault::refuse(0).of("copy_to_device"));
    let Refused { error, value: qp } = qp.export().unwrap_err();
    // The first error, with what could not be undone.
    let Error::Rollback { first, retained } = &error else {
        panic!("{error}")
    };
    assert!(
        first.to_string().starts_with("cannot copy to GPU memory"),
        "{first}"
    );
    assert_eq!(retained[0].node.kind, "exported handle");
    // Kernels may still take the handle: the QP stays, and what it depends on; its peer goes.
    let (report, qp) = incomplete(qp.close());
    let retained = &report.retained[0];
    assert_eq!((retained.node.kind, report.retained.len()), ("QP", 1));
    let kinds: Vec<_> = retained.set.iter().map(|node| node.kind).collect();
    for kind in ["doorbell page", "UMEM", "GPU memory", "host-mapped memory"] {
        assert!(kinds.contains(&kind), "{kind}: {retained}");
    }
    assert!(report.released.is_empty(), "{report}");
    peer.close().unwrap();
    bench.faults.clear();
    assert_eq!(qp.close().unwrap().released["QP"], 1);
    close_all(bench);
}

#[test]
fn scenario_09_unexport_is_refused_during_a_rollback() {
    let bench = bench();
    let before = bench.world.live();
    let mut qpn = 0;
    let mut build = || -> warpverbs::Result<(ExportedQp, QueuePair, Mr)> {
        let (one, two) = common::connected_pair(&bench.pd, &bench.gpu, &options().qp_config())?;
        let one = one.export()?;
        qpn = one.qpn();
        let memory = bench.gpu.alloc(64, "memory")?;
        // The next copy is the one that clears the handle.
        bench.faults.plan(Fault::fail(0).of("reg_mr"));
        bench.faults.plan(Fault::refuse(0).of("copy_to_device"));
        let mr = Mr::register(&bench.pd, &memory, Access::LOCAL_WRITE)?;
        Ok((one, two, mr))
    };
    let error = build().unwrap_err();
    assert!(error.to_string().contains("reg_mr"), "the first: {error}");
    // The QP with all that it stands on, and nothing of its sibling.
    let retained = bench.nic.retained();
    assert_eq!(retained.len(), 1, "{retained:?}");
    assert_eq!(
        (retained[0].node.kind, retained[0].node.number),
        ("QP", Some(u64::from(qpn)))
    );
    for kind in [
        "CQ",
        "doorbell page",
        "doorbell page mapping",
        "UMEM",
        "GPU memory",
    ] {
        assert!(kinds(&retained[0].set).contains(&kind), "{}", retained[0]);
    }
    let live = |word: &str| {
        let count = |live: &[String]| live.iter().filter(|object| object.contains(word)).count();
        count(&bench.world.live()) - count(&before)
    };
    assert_eq!((live(" QP "), live(" CQ "), live(" MKey ")), (1, 1, 0));
    bench.faults.clear();
    assert_eq!(bench.nic.retry_retained(), []);
    assert_eq!(bench.world.live(), before);
    close_all(bench);
}

#[test]
fn scenario_10_unexport_is_refused_at_close() {
    let mut bench = bench();
    let peer = bench.peers.remove(0);
    let qp = bench.qps.remove(0);
    // The handle cannot be cleared.
    bench.faults.plan(Fault::refuse(0).of("copy_to_device"));
    let (report, qp) = incomplete(qp.close());
    assert_eq!(report.stage, Stage::Drained);
    assert_eq!(qp.qp().stage(), Stage::Drained);
    let retained = &report.retained[0];
    assert_eq!((retained.node.kind, report.retained.len()), ("QP", 1));
    for node in [
        "CQ",
        "doorbell page",
        "doorbell page mapping",
        "UMEM",
        "GPU memory",
        "PD",
        "host-mapped memory",
    ] {
        let kinds = retained.set.iter().map(|node| node.kind);
        assert!(kinds.clone().any(|kind| kind == node), "{node}: {retained}");
    }
    assert!(report.released.is_empty());
    peer.close().unwrap();
    bench.faults.clear();
    let report = qp.close().unwrap();
    assert_eq!(report.stage, Stage::Destroyed);
    assert_eq!(report.released["QP"], 1);
    close_all(bench);
}

#[test]
fn scenario_11_the_transition_to_error_is_refused() {
    let mut bench = bench();
    fail_outstanding(&bench);
    bench.faults.plan(Fault::refuse(0).of("modify"));
    let before = bench.world.live();
    let (report, qp) = incomplete(bench.qps.remove(0).close());
    assert_eq!(report.stage, Stage::Synced);
    assert!(
        report
            .released
            .keys()
            .all(|node| matches!(*node, "launch" | "event")),
        "{report}"
    );
    assert_eq!(bench.world.live(), before, "no MR and no buffer went");
    // What its work requests name is kept, and so is every MR of the PD.
    let Refused { error, value: mr } = bench.source_mr.close().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    bench.source_mr = mr;
    let Refused { error, value: mr } = bench.target_mr.close().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    bench.target_mr = mr;
    bench.faults.clear();
    qp.close().unwrap();
    bench.source_mr.clone().close().unwrap();
    close_all(bench);
}

#[test]
fn scenario_12_the_drain_times_out() {
    let mut bench = bench();
    fail_outstanding(&bench);
    let qp = bench.qps.remove(0);
    // The NIC does not see the record any more: the marker is never reached.
    let qpn = qp.qpn();
    bench
        .world
        .with_nic(|nic| nic.inject(InjectedFault::DropDbr { qpn }));
    let (report, qp) = incomplete(qp.close_within(SOON));
    assert_eq!(report.stage, Stage::Synced);
    assert_eq!(report.retained[0].kind, ErrorKind::Timeout);
    // The marker itself is outstanding.
    assert!(
        report.retained[0]
            .cause
            .contains("has 1 WQEBB(s) outstanding"),
        "{report}"
    );
    let Refused { error, value: mr } = bench.target_mr.close().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    bench.target_mr = mr;
    bench.world.with_nic(|nic| nic.heal());
    // The marker is not posted twice; its doorbell is rung again, for a NIC that has missed it.
    let count =
        || ["ring_doorbell", "copy_to_device"].map(|call| calls(&bench, call, Outcome::Done));
    let [rung, written] = count();
    qp.close().unwrap();
    assert_eq!(count(), [rung + 1, written + 1], "the handle was cleared");
    close_all(bench);
}

/// PTX whose kernel `wait` spins until a word is not zero, and looks at nothing else, and whose kernel `fall` traps.
fn own_kernels() -> String {
    format!(
        ".version 7.0\n.target sm_70\n.address_size 64\n\
         .visible .global .align 4 .u32 {} = {};\n\
         .visible .entry wait(.param .u64 word) {{\n\
         .reg .b64 %rd<3>;\n.reg .pred %p<2>;\n\
         ld.param.u64 %rd1, [word];\n\
         AGAIN:\n ld.relaxed.sys.global.u64 %rd2, [%rd1];\n\
         setp.eq.s64 %p1, %rd2, 0;\n @%p1 bra AGAIN;\n ret;\n}}\n\
         .visible .entry fall(.param .u64 word) {{\n trap;\n ret;\n}}\n",
        warpverbs_wire::abi::VERSION_SYMBOL,
        warpverbs_wire::abi::VERSION,
    )
}

/// A kernel that has the bench's QP and looks at no stop word.
fn deaf(bench: &Bench, kernel: &str) -> (Module, GpuMemory, Launch) {
    let module = Module::load(&bench.gpu, "own", &own_kernels()).unwrap();
    let word = bench.gpu.alloc_copy(&[0; 8], "word").unwrap();
    let view = View::new()
        .qp(&bench.qps[0])
        .mr(&bench.source_mr)
        .memory(&word);
    let kernel = module.kernel(kernel).unwrap();
    let params = word.addr().to_le_bytes();
    // SAFETY: the kernels' parameter is the address of a word; `wait` loads it alone, and the view keeps it.
    #[allow(unsafe_code)]
    let launch = unsafe {
        bench
            .stream
            .launch(&kernel, LaunchShape::linear(1, 1), &params, view)
    };
    (module, word, launch.unwrap())
}

#[test]
fn scenario_13_a_kernel_ignores_stop() {
    let mut bench = bench();
    let (_module, word, launch) = deaf(&bench, "wait");
    let copies = calls(&bench, "copy_to_device", Outcome::Done);
    let (report, qp) = incomplete(bench.qps.remove(0).close_within(SOON));
    assert_eq!(report.stage, Stage::Stopping);
    assert_eq!(report.retained[0].kind, ErrorKind::Timeout);
    assert!(report.released.is_empty());
    assert_eq!(
        calls(&bench, "copy_to_device", Outcome::Done),
        copies,
        "not unexported"
    );
    // Ring and view memory stay, and the QP takes no more launches.
    for closed in [
        bench.source_mr.clone().close().map_err(Error::from),
        word.clone().close().map_err(Error::from),
    ] {
        assert_eq!(closed.unwrap_err().kind(), ErrorKind::Busy);
    }
    let error = options()
        .bandwidth()
        .launch(
            &bench.module,
            &bench.stream,
            std::slice::from_ref(&qp),
            &bench.source_mr,
            &bench.target_mr.remote(),
        )
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot launch with it: the QP is stopping"
    );
    // The whole NIC is no different, and its siblings go.
    let (report, nic) = incomplete(bench.nic.clone().close_within(SOON));
    assert!(
        report
            .retained
            .iter()
            .any(|retained| retained.node.kind == "QP")
    );
    assert_eq!(report.released["QP"], 1, "the peer's: {report}");
    word.write(0, &[1; 8]).unwrap();
    qp.close().unwrap();
    nic.close().unwrap();
    drop(launch);
    close_all(bench);
}

#[test]
fn scenario_13_a_stream_errs_while_its_context_is_alive() {
    let mut bench = bench();
    let run = launch(&bench, false);
    bench.faults.plan(Fault::refuse(0).of("query_event"));
    let (report, qp) = incomplete(bench.qps.remove(0).close());
    assert_eq!(report.stage, Stage::Stopping);
    assert_eq!(
        calls(&bench, "modify", Outcome::Done),
        6,
        "connected, and no more"
    );
    bench.faults.clear();
    qp.close().unwrap();
    drop(run);
    close_all(bench);
}

#[test]
fn scenario_13_a_dead_gpu_context_leaves_the_nic_to_be_released_once() {
    let bench = bench();
    let (module, word, mut fall) = deaf(&bench, "fall");
    assert_eq!(fall.wait(PATIENCE).unwrap_err().kind(), ErrorKind::Run);
    assert!(!bench.gpu.is_alive());
    let before = bench.faults.trace().len();
    let report = bench.nic.clone().close().unwrap();
    assert_eq!(report.stage, Stage::Destroyed);
    let told = |what: &str| report.untold.iter().any(|line| line.contains(what));
    assert!(
        told("clear the handle of QP") && told("unmap the doorbell page"),
        "{report}"
    );
    let report = bench.gpu.clone().close().unwrap();
    assert!(
        report
            .untold
            .iter()
            .any(|line| line.contains("free GPU memory")),
        "{report}"
    );
    let undoing = [
        "free",
        "unmap_uar",
        "free_host_mapped",
        "destroy_stream",
        "destroy_event",
        "unload_module",
    ];
    for call in &bench.faults.trace()[before..] {
        assert!(!undoing.contains(&call.name), "{call:?}");
    }
    drop((module, word, fall));
    close_all(bench);
}

/// The calls that undo something, by name and object, from a place in the trace on.
fn undone(bench: &Bench, from: usize) -> Vec<(&'static str, Option<u64>)> {
    let trace = bench.faults.trace();
    let undone = trace[from..]
        .iter()
        .filter(|call| call.role == Role::Undoes);
    undone.map(|call| (call.name, call.object)).collect()
}

#[test]
fn rule_13_a_nic_that_went_away_leaves_the_host_to_be_released_once() {
    let bench = bench();
    fail_outstanding(&bench);
    let before = bench.faults.trace().len();
    // It is gone when the first QP is to go to ERR.
    bench.faults.plan(Fault::die(0).of("modify"));
    let report = bench.nic.clone().close().unwrap();
    assert_eq!(report.stage, Stage::Destroyed);
    assert_eq!((report.released["QP"], report.released["MR"]), (2, 2));
    for what in [
        format!("move QP {:#x} to ERR", bench.qps[0].qpn()),
        "destroy the QP".into(),
        "destroy the CQ".into(),
        "deregister the memory region".into(),
        "free the protection domain".into(),
    ] {
        let told = report.untold.iter().any(|line| line.contains(&what));
        assert!(told, "{what}: {report}");
    }
    // The GPU is there: all of it is freed, its doorbell mappings included.
    bench.gpu.clone().close().unwrap();
    let gpu: Vec<_> = bench
        .world
        .live()
        .into_iter()
        .filter(|object| object.starts_with("GPU"))
        .collect();
    assert_eq!(gpu, [""; 0]);
    // Each once, and not again when the handles go.
    let calls = undone(&bench, before);
    let mut once = calls.clone();
    // A driver may give one doorbell page to several owners, each of whom maps it.
    once.retain(|(call, _)| *call != "unmap_uar");
    let others = once.len();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), others, "{calls:?}");
    let faults = bench.faults.clone();
    let mapped = |name| {
        faults
            .trace()
            .iter()
            .filter(|call| call.name == name)
            .count()
    };
    assert_eq!(mapped("unmap_uar"), mapped("map_uar"));
    let made = faults.trace().len();
    drop(bench);
    assert_eq!(faults.trace().len(), made);
}

#[test]
fn rule_13_contexts_that_the_application_destroyed_are_released_once() {
    // Both: no call reaches a device, and nothing waits.
    let bench = bench();
    let run = launch(&bench, false);
    bench.faults.plan(Fault::die(0).of("query_port"));
    bench.faults.plan(Fault::die(0).of("flush_writes"));
    bench.nic.driver().query_port(1).unwrap_err();
    bench.gpu.driver().flush_writes().unwrap_err();
    assert!(!bench.gpu.is_alive());
    let nic = bench.nic.clone().close().unwrap();
    let gpu = bench.gpu.clone().close().unwrap();
    assert_eq!((nic.stage, gpu.stage), (Stage::Destroyed, Stage::Destroyed));
    assert_eq!((nic.released["QP"], nic.released["launch"]), (2, 1));
    assert!(!nic.untold.is_empty() && !gpu.untold.is_empty());
    for call in bench.faults.trace() {
        assert_ne!(call.outcome, Outcome::Failed, "{call:?}");
    }
    let faults = bench.faults.clone();
    let made = faults.trace().len();
    drop((run, bench));
    assert_eq!(faults.trace().len(), made, "not again");
}

#[test]
fn scenario_15_the_second_of_two_regions_fails() {
    let bench = bench();
    let before = bench.world.live();
    bench.faults.plan(Fault::fail(1).of("reg_mr"));
    let both = || -> warpverbs::Result<(Mr, Mr)> {
        let (one, two) = (bench.gpu.alloc(64, "one")?, bench.gpu.alloc(64, "two")?);
        let access = Access::LOCAL_WRITE;
        Ok((
            Mr::register(&bench.pd, &one, access)?,
            Mr::register(&bench.pd, &two, access)?,
        ))
    };
    both().unwrap_err();
    assert_eq!(bench.world.live(), before);
    close_all(bench);
}

#[test]
fn scenario_18_a_descriptor_is_closed_once_when_its_import_fails() {
    let bench = bench();
    bench.faults.plan(Fault::fail(0).of("reg_umem"));
    QueuePair::create(&bench.pd, &bench.gpu, &QpConfig::default()).unwrap_err();
    let (opened, closed) = (
        calls(&bench, "export_dmabuf", Outcome::Done),
        calls(&bench, "close_dmabuf", Outcome::Done),
    );
    assert_eq!(opened, closed);
    close_all(bench);
}

#[test]
fn scenario_19_a_region_with_a_live_view_is_busy() {
    let bench = bench();
    let (_module, word, mut launch) = deaf(&bench, "wait");
    let before = bench.world.live();
    let Refused { error, value: mr } = bench.source_mr.clone().close().unwrap_err();
    assert!(matches!(error, Error::Busy { what: "MR", .. }));
    assert_eq!(bench.world.live(), before);
    word.write(0, &[1; 8]).unwrap();
    launch.wait(PATIENCE).unwrap();
    drop(launch);
    mr.close().unwrap();
    // The other handles of it say so.
    assert!(matches!(bench.source_mr.clone().close(), Ok(())));
    let error = options()
        .bandwidth()
        .launch(
            &bench.module,
            &bench.stream,
            &bench.qps,
            &bench.source_mr,
            &bench.target_mr.remote(),
        )
        .unwrap_err();
    assert!(matches!(error, Error::Closed { what: "MR" }), "{error}");
    close_all(bench);
}

#[test]
fn scenario_19_adopted_memory_is_pinned_like_owned() {
    let mut bench = bench();
    let memory = bench.gpu.alloc(128, "someone else's").unwrap();
    // SAFETY: the memory outlives the region, and host code never references GPU memory.
    #[allow(unsafe_code)]
    let adopted = unsafe {
        Mr::adopt_gpu(
            &bench.pd,
            &bench.gpu,
            memory.addr(),
            128,
            Access::LOCAL_WRITE,
        )
    }
    .unwrap();
    bench.source_mr = adopted;
    let (_module, word, mut launch) = deaf(&bench, "wait");
    let Refused { error, value: mr } = bench.source_mr.clone().close().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    word.write(0, &[1; 8]).unwrap();
    launch.wait(PATIENCE).unwrap();
    drop(launch);
    let live = bench.world.live().len();
    mr.close().unwrap();
    assert_eq!(
        bench.world.live().len(),
        live - 1,
        "deregistered, not freed"
    );
    close_all(bench);
}

#[test]
fn scenario_21_the_cq_is_refused_after_the_qp_was_destroyed() {
    let mut bench = bench();
    // The QP is the first object that is destroyed, its CQ the second.
    bench.faults.plan(Fault::refuse(1).of("destroy"));
    let (report, qp) = incomplete(bench.qps.remove(0).close());
    assert_eq!(report.released["QP"], 1);
    let retained = &report.retained[0];
    assert_eq!((retained.node.kind, report.retained.len()), ("CQ", 1));
    assert_eq!(
        kinds(&retained.set),
        [
            "doorbell page mapping",
            "doorbell page",
            "UMEM",
            "GPU memory"
        ]
    );
    assert_eq!(qp.qp().stage(), Stage::Destroyed);
    bench.faults.clear();
    let report = qp.close().unwrap();
    assert!(!report.released.contains_key("QP"), "not twice: {report}");
    assert_eq!(report.released["CQ"], 1);
    close_all(bench);
}

#[test]
fn scenario_22_a_context_is_closed_twice_or_never() {
    let bench = bench();
    let run = launch(&bench, false);
    let (nic, again) = (bench.nic.clone(), bench.nic.clone());
    let report = nic.close().unwrap();
    assert_eq!(report.released["QP"], 2);
    let report = again.close().unwrap();
    assert!(report.released.is_empty(), "{report}");
    // Whoever still holds something is told.
    let closed = |error: Error| matches!(error, Error::Closed { .. });
    assert!(closed(Pd::alloc(&bench.nic).unwrap_err()));
    assert!(closed(
        Mr::register(&bench.pd, &bench.source, Access::LOCAL_WRITE).unwrap_err()
    ));
    assert!(closed(
        QueuePair::create(&bench.pd, &bench.gpu, &QpConfig::default()).unwrap_err()
    ));
    assert!(closed(bench.qps[0].stop().unwrap_err()));
    assert!(closed(bench.qps[0].progress().unwrap_err()));
    drop(run);
    let mut bench = bench;
    assert!(closed(bench.qps.remove(0).unexport().unwrap_err().error));
    let mut peer = bench.peers.remove(0);
    assert!(closed(peer.reset().unwrap_err()));
    assert_eq!(peer.stage(), Stage::Destroyed);
    close_all(bench);

    // Never: dropping everything does the same.
    let bench = self::bench();
    let run = launch(&bench, false);
    let world = bench.world.clone();
    drop(bench);
    drop(run);
    assert_eq!(world.live(), [""; 0]);
}

#[test]
fn a_drop_that_is_refused_retains_and_the_registry_finishes_it() {
    let bench = bench();
    fail_outstanding(&bench);
    let (world, faults) = (bench.world.clone(), bench.faults.clone());
    let (nic, gpu): (Context, _) = (bench.nic.clone(), bench.gpu.clone());
    faults.plan(Fault::refuse(0).of("modify"));
    drop(bench);
    let retained = nic.retained();
    let nodes: Vec<_> = retained.iter().map(|retained| retained.node.kind).collect();
    assert!(nodes.contains(&"QP") && nodes.contains(&"MR"), "{nodes:?}");
    assert_eq!(nic.retry_retained().len(), retained.len(), "still refused");
    faults.clear();
    // QPs first; the regions of their PD follow.
    assert_eq!(nic.retry_retained(), []);
    assert_eq!(gpu.retry_retained(), []);
    assert_eq!(world.live(), [""; 0]);
}

/// Runs the write kernel over a fresh pair of ends, and sees that the data arrived.
fn verify(bench: &Bench, qp: &ExportedQp, iters: u64) {
    bench
        .target
        .write(0, &vec![common::POISON; bench.bytes.len()])
        .unwrap();
    let mut run = warpverbs::Bandwidth {
        iters,
        ..options().bandwidth()
    }
    .launch(
        &bench.module,
        &bench.stream,
        std::slice::from_ref(qp),
        &bench.source_mr,
        &bench.target_mr.remote(),
    )
    .unwrap();
    run.wait(PATIENCE).unwrap().check().unwrap();
    let written = bench.target.to_vec().unwrap();
    let len = 64 * iters.min(2) as usize;
    assert_eq!(written[..len], bench.bytes[..len]);
}

fn connect(one: &mut QueuePair, two: &mut QueuePair) {
    one.connect(&two.local_info()).unwrap();
    two.connect(&one.local_info()).unwrap();
}

#[test]
fn a_qp_is_reset_and_used_again_over_several_laps_and_odd_counts() {
    use warpverbs::CqForm;
    for cq in [CqForm::Ring, CqForm::Collapsed] {
        for first_index in [0, (1 << 16) - 3, (1u64 << 32) - 3] {
            let options = Options {
                cq,
                first_index,
                ..options()
            };
            let mut bench = options.bench().unwrap();
            let mut peer = bench.peers.remove(0);
            let mut other = QueuePair::create(&bench.pd, &bench.gpu, &options.qp_config()).unwrap();
            for (round, iters) in [1, 7, 8, 9, 33, 64, 131].into_iter().enumerate() {
                verify(&bench, &bench.qps[0], iters);
                if round % 2 == 0 {
                    fail_outstanding(&bench);
                }
                let mut qp = bench.qps.remove(0).unexport().unwrap();
                let before = qp.local_info();
                qp.reset().unwrap();
                peer.reset().unwrap();
                assert_ne!(qp.local_info(), before, "a PSN of its own");
                assert_eq!(qp.stage(), Stage::Live);
                // To the same peer, and to another.
                if round % 3 == 2 {
                    std::mem::swap(&mut peer, &mut other);
                }
                connect(&mut qp, &mut peer);
                let qp = qp.export().unwrap();
                let progress = qp.progress().unwrap();
                assert_eq!(progress.reserved, first_index);
                assert_eq!(progress.status, warpverbs::QpStatus::Live);
                bench.qps.push(qp);
            }
            verify(&bench, &bench.qps[0], 50);
            assert_eq!(bench.world.findings(), [""; 0]);
            drop((peer, other));
            close_all(bench);
        }
    }
}

#[test]
fn a_reset_that_is_refused_resumes() {
    let mut bench = bench();
    fail_outstanding(&bench);
    let mut qp = bench.qps.remove(0).unexport().unwrap();
    // To ERR, to RST: each is refused once.
    bench.faults.plan(Fault::fail(0).of("modify"));
    bench.faults.plan(Fault::fail(2).of("modify"));
    assert!(qp.reset().is_err());
    assert_eq!(qp.stage(), Stage::Synced);
    let info = bench.peers[0].local_info();
    assert_eq!(
        qp.connect(&info).unwrap_err().to_string(),
        "cannot connect it: the QP is synced"
    );
    assert!(qp.reset().is_err());
    assert_eq!(qp.stage(), Stage::Unexported);
    bench.faults.plan(Fault::fail(0).of("copy_from_device"));
    assert!(qp.reset().is_err());
    qp.reset().unwrap();
    let mut peer = bench.peers.remove(0);
    peer.reset().unwrap();
    connect(&mut qp, &mut peer);
    bench.qps.push(qp.export().unwrap());
    verify(&bench, &bench.qps[0], 21);
    drop(peer);
    close_all(bench);
}

#[test]
fn a_reset_leaves_no_completion_of_the_life_before() {
    use warpverbs::CqForm;
    for cq in [CqForm::Ring, CqForm::Collapsed] {
        let options = Options { cq, ..options() };
        let mut bench = options.bench().unwrap();
        let mut peer = bench.peers.remove(0);
        for _ in 0..5 {
            // One work request fails: the last completion is one of the first indices, which the next life uses too.
            let remote = RemoteMr {
                rkey: 0xffff_ff00,
                ..bench.target_mr.remote()
            };
            let mut run = warpverbs::Bandwidth {
                iters: 1,
                ..options.bandwidth()
            }
            .launch(
                &bench.module,
                &bench.stream,
                &bench.qps,
                &bench.source_mr,
                &remote,
            )
            .unwrap();
            assert!(run.wait(PATIENCE).unwrap().fault().is_some());
            drop(run);
            let mut qp = bench.qps.remove(0).unexport().unwrap();
            qp.reset().unwrap();
            peer.reset().unwrap();
            connect(&mut qp, &mut peer);
            bench.qps.push(qp.export().unwrap());
            verify(&bench, &bench.qps[0], 5);
            let mut qp = bench.qps.remove(0).unexport().unwrap();
            qp.reset().unwrap();
            peer.reset().unwrap();
            connect(&mut qp, &mut peer);
            bench.qps.push(qp.export().unwrap());
        }
        drop(peer);
        close_all(bench);
    }
}

#[test]
fn closing_stops_a_kernel_that_looks_at_its_stop_word() {
    let mut bench = bench();
    let endless = warpverbs::Bandwidth {
        iters: u64::MAX,
        ..options().bandwidth()
    };
    let mut run = endless
        .launch(
            &bench.module,
            &bench.stream,
            &bench.qps,
            &bench.source_mr,
            &bench.target_mr.remote(),
        )
        .unwrap();
    let report = bench.qps.remove(0).close().unwrap();
    assert_eq!(report.released["launch"], 1);
    let report = run.wait(PATIENCE).unwrap();
    assert_eq!(
        report.threads[0].error,
        Some(warpverbs::ThreadError::Stopped)
    );
    drop(run);
    close_all(bench);
}

#[test]
fn no_time_is_too_long_to_wait() {
    let mut bench = bench();
    let mut run = launch(&bench, false);
    run.wait(Duration::MAX).unwrap().check().unwrap();
    drop(run);
    bench.qps.remove(0).close_within(Duration::MAX).unwrap();
    bench.nic.clone().close_within(Duration::MAX).unwrap();
    bench.gpu.clone().close_within(Duration::MAX).unwrap();
}
