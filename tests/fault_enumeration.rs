//! Every operation, with every kind of fault at every driver call that it makes.
//!
//! After each: no call was made that the devices refuse by themselves, each object was undone at most once and never
//! used after that; once everything is closed, what is live is what the reports name as retained; and closing again,
//! with a driver that works, leaves nothing.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{Options, PATIENCE, pattern};
use warpverbs::driver::fault::{Fault, Faults, Outcome, Role};
use warpverbs::driver::sim::World;
use warpverbs::{
    Access, CloseReport, Context, Error, ExportedQp, GpuContext, GpuMemory, HostMemory, Module, Mr,
    Pd, QpConfig, QueuePair, Refused, Result, Run, Stream,
};

/// Fault points on record: a change that makes the enumeration miss some is seen here.
const AT_LEAST: u64 = 3272;

/// Everything that an operation may have made.
#[derive(Default)]
struct State {
    nic: Option<Context>,
    gpu: Option<GpuContext>,
    pd: Option<Pd>,
    memories: Vec<GpuMemory>,
    mrs: Vec<Mr>,
    /// What peers offer: it stays when all else is dropped, since nothing here keeps it.
    target: Option<Mr>,
    qps: Vec<QueuePair>,
    exported: Vec<ExportedQp>,
    module: Option<Module>,
    stream: Option<Stream>,
    runs: Vec<Run>,
}

struct Rig {
    world: World,
    faults: Faults,
}

type Step = fn(&Rig, &mut State) -> Result<()>;

/// What is done before without faults, and what with.
struct Operation {
    name: &'static str,
    before: &'static [Step],
    step: Step,
}

const OPERATIONS: &[Operation] = &[
    Operation {
        name: "open",
        before: &[],
        step: open,
    },
    Operation {
        name: "register",
        before: &[open],
        step: register,
    },
    Operation {
        name: "build",
        before: &[open],
        step: build,
    },
    Operation {
        name: "connect",
        before: &[open, build],
        step: connect,
    },
    Operation {
        name: "export",
        before: &[open, build, connect],
        step: export,
    },
    Operation {
        name: "launch",
        before: &[open, register, build, connect, export],
        step: launch,
    },
    Operation {
        name: "unexport",
        before: &[open, register, build, connect, export, launch, finish],
        step: unexport,
    },
    Operation {
        name: "close a QP",
        before: &[open, build, connect, export],
        step: close_qps,
    },
    Operation {
        name: "close a QP with work outstanding",
        before: &[open, register, build, connect, export, fail_outstanding],
        step: close_qps,
    },
    Operation {
        name: "close a context with a kernel running",
        before: &[open, register, build, connect, export, launch],
        step: close_contexts,
    },
    Operation {
        name: "close a context with work outstanding",
        before: &[open, register, build, connect, export, fail_outstanding],
        step: close_contexts,
    },
    Operation {
        name: "drop",
        before: &[open, register, build, connect, export, launch],
        step: drop_all,
    },
    Operation {
        name: "reset",
        before: &[
            open,
            register,
            build,
            connect,
            export,
            fail_outstanding,
            unexport,
        ],
        step: reset,
    },
    Operation {
        name: "reconnect",
        before: &[
            open,
            register,
            build,
            connect,
            export,
            fail_outstanding,
            unexport,
            reset,
        ],
        step: reconnect,
    },
];

fn open(rig: &Rig, state: &mut State) -> Result<()> {
    state.nic = Some(Context::open(rig.faults.nic(rig.world.nic()))?);
    state.gpu = Some(GpuContext::open(rig.faults.gpu(rig.world.gpu()))?);
    Ok(())
}

fn pd(state: &mut State) -> Result<Pd> {
    if state.pd.is_none() {
        state.pd = Some(Pd::alloc(state.nic.as_ref().unwrap())?);
    }
    Ok(state.pd.clone().unwrap())
}

const ALL: Access = Access::LOCAL_WRITE;

fn register(_: &Rig, state: &mut State) -> Result<()> {
    let pd = pd(state)?;
    let gpu = state.gpu.clone().unwrap();
    for access in [ALL, ALL | Access::REMOTE_WRITE] {
        let memory = gpu.alloc_copy(&pattern(1, 1024), "buffer")?;
        let mr = Mr::register(&pd, &memory, access)?;
        state.memories.push(memory);
        if access == ALL {
            state.mrs.push(mr);
        } else {
            state.target = Some(mr);
        }
    }
    let memory = state.memories[0].clone();
    state
        .mrs
        .push(Mr::register_range(&pd, &memory, 64..128, ALL)?);
    let host = HostMemory::zeroed(256);
    state.mrs.push(Mr::register_host(&pd, &host, ALL)?);
    Ok(())
}

fn config() -> QpConfig {
    QpConfig::default().depth(8)
}

fn build(_: &Rig, state: &mut State) -> Result<()> {
    let pd = pd(state)?;
    let gpu = state.gpu.clone().unwrap();
    for _ in 0..3 {
        state.qps.push(QueuePair::create(&pd, &gpu, &config())?);
    }
    Ok(())
}

fn connect(_: &Rig, state: &mut State) -> Result<()> {
    let infos: Vec<_> = state.qps.iter().map(QueuePair::local_info).collect();
    for (qp, info) in state.qps.iter_mut().zip(infos.iter().rev()) {
        qp.connect(info)?;
    }
    Ok(())
}

fn export(_: &Rig, state: &mut State) -> Result<()> {
    while let Some(qp) = state.qps.pop() {
        match qp.export() {
            Ok(exported) => state.exported.push(exported),
            Err(Refused { error, value }) => {
                state.qps.push(value);
                return Err(error);
            }
        }
    }
    Ok(())
}

fn launch_with(state: &mut State, remote: &warpverbs::RemoteMr) -> Result<()> {
    let gpu = state.gpu.clone().unwrap();
    let options = Options {
        size: 64,
        slots: 2,
        iters: 20,
        ..Options::default()
    };
    if state.module.is_none() {
        state.module = Some(Module::load(&gpu, "small", small_ptx())?);
    }
    if state.stream.is_none() {
        state.stream = Some(Stream::create(&gpu)?);
    }
    state.runs.push(options.bandwidth().launch(
        state.module.as_ref().unwrap(),
        state.stream.as_ref().unwrap(),
        &state.exported[..1],
        &state.mrs[0],
        remote,
    )?);
    Ok(())
}

/// The embedded module, with one kernel.
fn small_ptx() -> &'static str {
    common::embedded_ptx()
}

fn launch(_: &Rig, state: &mut State) -> Result<()> {
    let remote = state.target.as_ref().unwrap().remote();
    launch_with(state, &remote)
}

fn finish(_: &Rig, state: &mut State) -> Result<()> {
    for mut run in state.runs.drain(..) {
        run.wait(PATIENCE)?.check()?;
    }
    Ok(())
}

/// A kernel whose posts the peer refuses: the QP goes to error with work outstanding.
fn fail_outstanding(rig: &Rig, state: &mut State) -> Result<()> {
    let remote = warpverbs::RemoteMr {
        rkey: 0xffff_ff00,
        ..state.target.as_ref().unwrap().remote()
    };
    launch_with(state, &remote)?;
    for mut run in state.runs.drain(..) {
        assert!(run.wait(PATIENCE)?.fault().is_some());
    }
    assert_eq!(rig.faults.injected(), []);
    Ok(())
}

fn unexport(_: &Rig, state: &mut State) -> Result<()> {
    while let Some(qp) = state.exported.pop() {
        match qp.unexport() {
            Ok(qp) => state.qps.push(qp),
            Err(Refused { error, value }) => {
                state.exported.push(value);
                return Err(error);
            }
        }
    }
    Ok(())
}

fn close_qps(_: &Rig, state: &mut State) -> Result<()> {
    let mut first = Ok(());
    for qp in std::mem::take(&mut state.exported) {
        if let Err(Refused { error, value }) = qp.close() {
            state.exported.push(value);
            first = first.and(Err(error));
        }
    }
    first
}

fn close_contexts(_: &Rig, state: &mut State) -> Result<()> {
    let (nic, gpu) = (state.nic.clone().unwrap(), state.gpu.clone().unwrap());
    nic.close()?;
    gpu.close()?;
    Ok(())
}

fn drop_all(_: &Rig, state: &mut State) -> Result<()> {
    let (nic, gpu, target) = (state.nic.take(), state.gpu.take(), state.target.take());
    *state = State {
        nic,
        gpu,
        target,
        ..State::default()
    };
    Ok(())
}

fn reset(_: &Rig, state: &mut State) -> Result<()> {
    state.qps.iter_mut().try_for_each(QueuePair::reset)
}

/// One to a new peer, and a run between them.
fn reconnect(_: &Rig, state: &mut State) -> Result<()> {
    let (pd, gpu) = (pd(state)?, state.gpu.clone().unwrap());
    let mut peer = QueuePair::create(&pd, &gpu, &config())?;
    let mut qp = state.qps.pop().unwrap();
    let done = qp
        .connect(&peer.local_info())
        .and_then(|()| peer.connect(&qp.local_info()));
    state.qps.push(peer);
    match done.and_then(|()| Ok(qp.export()?)) {
        Ok(qp) => state.exported.push(qp),
        Err(error) => return Err(error),
    }
    let remote = state.target.as_ref().unwrap().remote();
    launch_with(state, &remote)
}

/// A kind of fault at a call.
type Kind = (&'static str, fn(u64) -> Fault);
const KINDS: &[Kind] = &[
    ("fails once", Fault::fail),
    ("is refused for good", Fault::refuse),
    ("is refused twice", |n| Fault::refuse_times(n, 2)),
    ("finds the device gone", Fault::die),
];

/// What a device lists, in the reports' words.
fn node_of(live: &str) -> &'static str {
    const WORDS: [(&str, &str); 14] = [
        ("GPU Memory", "GPU memory"),
        ("GPU HostMapped", "host-mapped memory"),
        ("GPU Uar", "doorbell page mapping"),
        ("GPU Module", "module"),
        ("GPU Stream", "stream"),
        ("GPU Event", "event"),
        (" QP ", "QP"),
        (" CQ ", "CQ"),
        (" MR ", "MR"),
        (" MKey ", "MR"),
        (" mkey ", "MR"),
        (" PD ", "PD"),
        (" UMEM ", "UMEM"),
        (" UAR ", "doorbell page"),
    ];
    WORDS
        .iter()
        .find(|(word, _)| live.contains(word))
        .unwrap_or_else(|| panic!("{live} is no kind of object"))
        .1
}

/// How often reports mention each node.
fn mentioned(reports: &[CloseReport]) -> BTreeMap<&'static str, usize> {
    let mut mentioned = BTreeMap::new();
    for retained in reports.iter().flat_map(|report| &report.retained) {
        for node in std::iter::once(&retained.node).chain(&retained.set) {
            *mentioned.entry(node.kind).or_default() += 1;
        }
    }
    // Neither is an object of a device.
    mentioned.remove("launch");
    mentioned
}

fn close(state: &mut State) -> Vec<CloseReport> {
    let mut reports = Vec::new();
    let mut note = |closed: std::result::Result<CloseReport, Error>| match closed {
        Ok(report) => reports.push(report),
        Err(Error::Incomplete(report)) => reports.push(*report),
        Err(other) => panic!("{other}"),
    };
    if let Some(nic) = state.nic.clone() {
        note(nic.close().map_err(Error::from));
    }
    if let Some(gpu) = state.gpu.clone() {
        note(gpu.close().map_err(Error::from));
    }
    reports
}

/// No object is undone twice or used after that, and no device had a reason of its own to refuse a call.
fn check_trace(faults: &Faults, context: &str) {
    let mut gone = BTreeSet::new();
    for call in faults.trace() {
        assert_ne!(call.outcome, Outcome::Failed, "{context}: {call:?}");
        let kind = kind_of(call.name);
        let Some(object) = call.object else { continue };
        match (call.role, call.outcome) {
            (Role::Makes, Outcome::Done) => {
                gone.remove(&(kind, object));
            }
            (Role::Undoes, Outcome::Done) => {
                assert!(
                    gone.insert((kind, object)),
                    "{context}: undone twice: {call:?}"
                );
            }
            (Role::Undoes | Role::Uses, _) => {
                assert!(
                    !gone.contains(&(kind, object)),
                    "{context}: used after: {call:?}"
                );
            }
            _ => {}
        }
    }
}

/// Handles of a NIC are unique, those of a GPU within their kind.
fn kind_of(call: &str) -> &'static str {
    match call {
        "alloc" | "free" | "copy_to_device" | "copy_from_device" | "load_acquire"
        | "store_release" | "alloc_host_mapped" | "free_host_mapped" => "address",
        "map_uar" | "unmap_uar" => "mapping",
        "export_dmabuf" | "close_dmabuf" => "dmabuf",
        "flush_writes" | "max_resident_blocks" => "GPU",
        "load_module" | "unload_module" | "module_global" | "kernel" => "module",
        "create_stream" | "destroy_stream" | "query_stream" | "launch" => "stream",
        "create_event" | "destroy_event" | "record_event" | "query_event" => "event",
        _ => "NIC",
    }
}

/// Which device is gone.
#[derive(Clone, Copy, PartialEq)]
enum Gone {
    Neither,
    Nic,
    Gpu,
}

impl Gone {
    fn after(faults: &Faults, kind: &Kind) -> Self {
        let died = kind.0 == "finds the device gone";
        match faults.injected().first().filter(|_| died) {
            None => Self::Neither,
            Some(call) => match kind_of(call.name) {
                "NIC" => Self::Nic,
                _ => Self::Gpu,
            },
        }
    }

    /// What is live on a device that is there.
    fn others(self, live: Vec<String>) -> Vec<String> {
        live.into_iter()
            .filter(|object| match self {
                Self::Neither => true,
                Self::Nic => object.starts_with("GPU"),
                Self::Gpu => !object.starts_with("GPU"),
            })
            .collect()
    }
}

/// Runs one operation with one fault. False if the fault was beyond its last call.
fn strike(operation: &Operation, kind: &Kind, number: u64, handles: bool) -> bool {
    let context = format!(
        "{}: call {number} {} (handles {handles})",
        operation.name, kind.0
    );
    let rig = Rig {
        world: Options::default().world(),
        faults: Faults::new(),
    };
    let mut state = State::default();
    for step in operation.before {
        step(&rig, &mut state).unwrap_or_else(|error| panic!("{context}: before: {error}"));
    }
    rig.faults.plan((kind.1)(number));
    let result = (operation.step)(&rig, &mut state);
    let struck = !rig.faults.injected().is_empty();
    // A fault may leave no error: something stood in for what failed, or a drop could not tell.
    if let Err(error) = &result {
        assert!(
            error.to_string().contains("planned failure"),
            "{context}: {error}"
        );
    }
    if !struck {
        result.unwrap_or_else(|error| panic!("{context}: {error}"));
    }
    if !handles {
        drop_all(&rig, &mut state).unwrap();
    }
    let reports = close(&mut state);
    let gone = Gone::after(&rig.faults, kind);
    let live = gone.others(rig.world.live());
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for object in &live {
        *counts.entry(node_of(object)).or_default() += 1;
    }
    if state.nic.is_some() && state.gpu.is_some() {
        let mentioned = mentioned(&reports);
        for (node, count) in &counts {
            let named = mentioned.get(node).copied().unwrap_or(0);
            assert!(
                *count <= named,
                "{context}: {count} {node} live, {named} named: {live:?} {reports:#?}"
            );
        }
        // What the NIC's report retains may go while the GPU is closed: a launch that held it is over by then.
        let late = reports.last().map(|report| &report.released);
        for node in mentioned.keys() {
            assert!(
                counts.contains_key(node) || late.is_some_and(|late| late.contains_key(node)),
                "{context}: {node} is named, not live: {live:?} {reports:#?}"
            );
        }
    }
    rig.faults.clear();
    for report in close(&mut state) {
        assert!(report.is_complete(), "{context}: second close: {report}");
    }
    assert_eq!(gone.others(rig.world.live()), [""; 0], "{context}");
    check_trace(&rig.faults, &context);
    if gone != Gone::Nic {
        assert_eq!(rig.world.findings(), [""; 0], "{context}");
    }
    struck
}

#[test]
fn every_fault_at_every_call_of_every_operation() {
    let mut points = 0;
    for operation in OPERATIONS {
        let mut own = 0;
        for kind in KINDS {
            for handles in [true, false] {
                own += (0..)
                    .take_while(|number| strike(operation, kind, *number, handles))
                    .count() as u64;
            }
        }
        println!("{own:6} {}", operation.name);
        points += own;
    }
    println!("fault points: {points}");
    assert!(
        points >= AT_LEAST,
        "{points} fault points, {AT_LEAST} on record"
    );
}
