//! Every public call on an object that is in the wrong state: a typed error that names the state, and no panic.
//!
//! A row a call and a state. What a type rules out (a QP that is exported cannot be connected) is in `tests/ui`.

mod common;

use common::{Bench, Options, PATIENCE, connected_pair};
use warpverbs::driver::LaunchShape;
use warpverbs::driver::fault::Fault;
use warpverbs::{
    Access, Context, Error, ErrorKind, GpuContext, HostMemory, Kernel, Latency, LatencyEnd, Launch,
    Module, Mr, Pd, QueuePair, Result, Stream, View,
};

const ACCESS: Access = Access::LOCAL_WRITE;

fn options() -> Options {
    Options {
        depth: 8,
        size: 64,
        slots: 2,
        iters: 4,
        step_budget: Some(u64::MAX),
        ..Options::default()
    }
}

/// A bench, and what a call may want besides, made while all was open.
struct Objects {
    bench: Bench,
    fresh: QueuePair,
    connected: QueuePair,
    peer: QueuePair,
    kernel: Kernel,
    launch: Option<Launch>,
}

fn objects() -> Objects {
    let bench = options().bench().unwrap();
    let config = options().qp_config();
    let fresh = QueuePair::create(&bench.pd, &bench.gpu, &config).unwrap();
    let (connected, peer) = connected_pair(&bench.pd, &bench.gpu, &config).unwrap();
    let kernel = bench.module.kernel("wv_write_bw").unwrap();
    Objects {
        bench,
        fresh,
        connected,
        peer,
        kernel,
        launch: None,
    }
}

type State = fn(&mut Objects);
type Call = fn(Objects) -> Result<()>;

fn live(_: &mut Objects) {}

fn closed_nic(objects: &mut Objects) {
    objects.bench.nic.clone().close().unwrap();
}

fn closed_gpu(objects: &mut Objects) {
    closed_nic(objects);
    objects.bench.gpu.clone().close().unwrap();
}

/// The first QP is stopping, and cannot go on.
fn stopping(objects: &mut Objects) {
    objects.bench.faults.plan(Fault::fail(0).of("modify"));
    objects.bench.qps[0].clone().close().unwrap_err();
}

/// The QP that is no one's was to be reset, and the NIC refused to move it to RST.
fn refused_reset(objects: &mut Objects) {
    objects.bench.faults.plan(Fault::fail(1).of("modify"));
    objects.connected.reset().unwrap_err();
}

/// A kernel runs that uses everything.
fn launched(objects: &mut Objects) {
    let bench = &objects.bench;
    objects.launch = Some(launch(bench, &objects.kernel).unwrap());
}

/// Launches a kernel that ends at once: its parameters are of no version that it knows.
fn launch(bench: &Bench, kernel: &Kernel) -> Result<Launch> {
    let view = View::new()
        .qp(&bench.qps[0])
        .mr(&bench.source_mr)
        .memory(&bench.target);
    let shape = LaunchShape::linear(1, 1);
    // SAFETY: of parameters whose version it does not know, the kernel touches nothing.
    #[allow(unsafe_code)]
    unsafe {
        bench.stream.launch(kernel, shape, &[0; 80], view)
    }
}

fn closed<T: Clone>(value: &T, close: impl FnOnce(T) -> Result<()>) -> T {
    close(value.clone()).unwrap();
    value.clone()
}

const CLOSED_NIC: &str = "NIC context is closed";
const CLOSED_GPU: &str = "GPU context is closed";

#[rustfmt::skip]
const TABLE: &[(&str, State, Call, ErrorKind, &str)] = &[
    // A NIC that is closed, and what was built on it.
    ("Pd::alloc", closed_nic, |o| Pd::alloc(&o.bench.nic).map(drop), ErrorKind::State, CLOSED_NIC),
    ("Mr::register", closed_nic, |o| Mr::register(&o.bench.pd, &o.bench.source, ACCESS).map(drop), ErrorKind::State, "closed"),
    ("Mr::register_range", closed_nic, |o| Mr::register_range(&o.bench.pd, &o.bench.source, 0..8, ACCESS).map(drop), ErrorKind::State, "closed"),
    ("Mr::register_host", closed_nic, |o| Mr::register_host(&o.bench.pd, &HostMemory::zeroed(8), ACCESS).map(drop), ErrorKind::State, "closed"),
    ("QueuePair::create", closed_nic, |o| QueuePair::create(&o.bench.pd, &o.bench.gpu, &options().qp_config()).map(drop), ErrorKind::State, CLOSED_NIC),
    ("QueuePair::connect", closed_nic, |mut o| { let info = o.fresh.local_info(); o.fresh.connect(&info) }, ErrorKind::State, "closed"),
    ("QueuePair::reset", closed_nic, |mut o| o.connected.reset(), ErrorKind::State, "closed"),
    ("QueuePair::export", closed_nic, |o| o.connected.export().map(drop).map_err(Error::from), ErrorKind::State, "closed"),
    ("ExportedQp::stop", closed_nic, |o| o.bench.qps[0].stop(), ErrorKind::State, "closed"),
    ("ExportedQp::progress", closed_nic, |o| o.bench.qps[0].progress().map(drop), ErrorKind::State, "QP is closed"),
    ("ExportedQp::unexport", closed_nic, |mut o| o.bench.qps.remove(0).unexport().map(drop).map_err(Error::from), ErrorKind::State, "QP is closed"),
    ("Stream::launch", closed_nic, |o| launch(&o.bench, &o.kernel).map(drop), ErrorKind::State, "closed"),
    ("Bandwidth::launch", closed_nic, |o| write(&o.bench), ErrorKind::State, "closed"),
    ("Latency::launch", closed_nic, |o| latency(&o.bench), ErrorKind::State, "closed"),
    // A GPU that is closed, and what was built on it.
    ("GpuContext::alloc", closed_gpu, |o| o.bench.gpu.alloc(8, "x").map(drop), ErrorKind::State, CLOSED_GPU),
    ("GpuContext::alloc_copy", closed_gpu, |o| o.bench.gpu.alloc_copy(&[1], "x").map(drop), ErrorKind::State, CLOSED_GPU),
    ("GpuMemory::write", closed_gpu, |o| o.bench.source.write(0, &[1]), ErrorKind::State, "GPU memory is closed"),
    ("GpuMemory::read", closed_gpu, |o| o.bench.source.read(0, &mut [0]), ErrorKind::State, "GPU memory is closed"),
    ("GpuMemory::to_vec", closed_gpu, |o| o.bench.source.to_vec().map(drop), ErrorKind::State, "GPU memory is closed"),
    ("Module::load", closed_gpu, |o| Module::load(&o.bench.gpu, "x", "").map(drop), ErrorKind::State, CLOSED_GPU),
    ("Module::embedded", closed_gpu, |o| Module::embedded(&o.bench.gpu).map(drop), ErrorKind::State, CLOSED_GPU),
    ("Module::kernel", closed_gpu, |o| o.bench.module.kernel("wv_write_bw").map(drop), ErrorKind::State, "module is closed"),
    ("Kernel::max_resident_blocks", closed_gpu, |o| o.kernel.max_resident_blocks(LaunchShape::linear(1, 1)).map(drop), ErrorKind::State, "module is closed"),
    ("Stream::create", closed_gpu, |o| Stream::create(&o.bench.gpu).map(drop), ErrorKind::State, CLOSED_GPU),
    ("Stream::launch", closed_gpu, |o| launch(&o.bench, &o.kernel).map(drop), ErrorKind::State, "closed"),
    ("QueuePair::create", closed_gpu, |o| QueuePair::create(&o.bench.pd, &o.bench.gpu, &options().qp_config()).map(drop), ErrorKind::State, "closed"),
    // One object that is closed, through another handle of it.
    ("Mr::register", live, |o| { let pd = Pd::alloc(&o.bench.nic)?; Mr::register(&closed(&pd, |pd| Ok(pd.close()?)), &o.bench.source, ACCESS).map(drop) }, ErrorKind::State, "PD is closed"),
    ("QueuePair::create", live, |o| { let pd = Pd::alloc(&o.bench.nic)?; QueuePair::create(&closed(&pd, |pd| Ok(pd.close()?)), &o.bench.gpu, &options().qp_config()).map(drop) }, ErrorKind::State, "PD is closed"),
    ("Mr::register", live, |o| { let memory = o.bench.gpu.alloc(8, "x")?; Mr::register(&o.bench.pd, &closed(&memory, |memory| Ok(memory.close()?)), ACCESS).map(drop) }, ErrorKind::State, "GPU memory is closed"),
    ("Stream::launch", live, |mut o| { o.bench.stream = closed(&o.bench.stream, |stream| Ok(stream.close()?)); launch(&o.bench, &o.kernel).map(drop) }, ErrorKind::State, "stream is closed"),
    ("Stream::launch", live, |o| { closed(&o.bench.module, |module| Ok(module.close()?)); launch(&o.bench, &o.kernel).map(drop) }, ErrorKind::State, "module is closed"),
    ("Stream::launch", live, |o| { closed(&o.bench.source_mr, |mr| Ok(mr.close()?)); launch(&o.bench, &o.kernel).map(drop) }, ErrorKind::State, "MR is closed"),
    ("Bandwidth::launch", live, |o| { closed(&o.bench.source_mr, |mr| Ok(mr.close()?)); write(&o.bench) }, ErrorKind::State, "MR is closed"),
    // A QP that is not where the call needs it.
    ("QueuePair::export", live, |o| o.fresh.export().map(drop).map_err(Error::from), ErrorKind::State, "cannot export it: the QP is not connected"),
    ("QueuePair::connect", live, |mut o| { let info = o.peer.local_info(); o.connected.connect(&info) }, ErrorKind::State, "cannot connect it: the QP is connected"),
    ("QueuePair::connect", refused_reset, |mut o| { let info = o.peer.local_info(); o.connected.connect(&info) }, ErrorKind::State, "cannot connect it: the QP is unexported"),
    ("QueuePair::export", refused_reset, |o| o.connected.export().map(drop).map_err(Error::from), ErrorKind::State, "cannot export it: the QP is unexported"),
    ("Stream::launch", stopping, |o| launch(&o.bench, &o.kernel).map(drop), ErrorKind::State, "cannot launch with it: the QP is synced"),
    ("Bandwidth::launch", stopping, |o| write(&o.bench), ErrorKind::State, "cannot launch with it: the QP is synced"),
    // Something uses it.
    ("ExportedQp::unexport", live, |o| o.bench.qps[0].clone().unexport().map(drop).map_err(Error::from), ErrorKind::Busy, "in use by 1 other owner(s)"),
    ("Pd::close", live, |o| o.bench.pd.close().map_err(Error::from), ErrorKind::Busy, "PD is in use by"),
    ("GpuMemory::close", live, |o| o.bench.source.close().map_err(Error::from), ErrorKind::Busy, "GPU memory is in use by"),
    ("Mr::close", launched, |o| o.bench.source_mr.clone().close().map_err(Error::from), ErrorKind::Busy, "MR is in use by"),
    ("Stream::close", launched, |o| o.bench.stream.clone().close().map_err(Error::from), ErrorKind::Busy, "stream is in use by"),
    ("Module::close", launched, |o| o.bench.module.clone().close().map_err(Error::from), ErrorKind::Busy, "module is in use by"),
    ("Mr::close", stopping, |o| o.bench.source_mr.clone().close().map_err(Error::from), ErrorKind::Busy, "MR is in use by"),
    // A context that is dead.
    ("GpuContext::open", live, |o| { let gpu = o.bench.faults.gpu(o.bench.world.gpu()); o.bench.faults.plan(Fault::die(0).of("flush_writes")); let _ = gpu.flush_writes(); GpuContext::open(gpu).map(drop) }, ErrorKind::InvalidArgument, "is dead"),
    ("Context::open", live, |o| { let nic = o.bench.faults.nic(o.bench.world.nic()); o.bench.faults.plan(Fault::die(0)); Context::open(nic).map(drop) }, ErrorKind::DeviceLost, "cannot query the NIC's capabilities"),
];

fn write(bench: &Bench) -> Result<()> {
    let (local, remote) = (&bench.source_mr, bench.target_mr.remote());
    let (module, stream) = (&bench.module, &bench.stream);
    options()
        .bandwidth()
        .launch(module, stream, &bench.qps, local, &remote)
        .map(drop)
}

fn latency(bench: &Bench) -> Result<()> {
    let end = |qp| LatencyEnd {
        qp,
        outbox: &bench.source_mr,
        inbox: &bench.target_mr,
    };
    let ends = [end(&bench.qps[0]), end(&bench.qps[1])];
    Latency::default()
        .launch(&bench.module, &bench.stream, ends)
        .map(drop)
}

#[test]
fn every_call_in_a_wrong_state_names_it() {
    for (call, state, run, kind, words) in TABLE {
        let mut objects = objects();
        if *call == "Latency::launch" {
            let (one, _) = (&objects.bench.qps[0], ());
            let pair = connected_pair(&objects.bench.pd, one.qp().gpu(), &options().qp_config());
            let (one, two) = pair.unwrap();
            objects.bench.qps.push(one.export().unwrap());
            objects.bench.peers.push(two);
        }
        let world = objects.bench.world.clone();
        state(&mut objects);
        let error = match run(objects) {
            Ok(()) => panic!("{call}: no error, where {words:?} was due"),
            Err(error) => error,
        };
        assert_eq!(error.kind(), *kind, "{call}: {error}");
        assert!(error.to_string().contains(words), "{call}: {error}");
        assert!(!error.cure().is_empty(), "{call}");
        assert!(!error.to_string().contains('\n'), "{call}: {error}");
        drop(world);
    }
}

#[test]
fn closing_again_is_no_error() {
    let objects = objects();
    let Objects { bench, .. } = objects;
    let pd = Pd::alloc(&bench.nic).unwrap();
    for _ in 0..2 {
        pd.clone().close().unwrap();
        bench.source_mr.clone().close().unwrap();
        bench.module.clone().close().unwrap();
        bench.stream.clone().close().unwrap();
        bench.qps[0].clone().close().unwrap();
        bench.nic.clone().close().unwrap();
        bench.source.clone().close().unwrap();
        bench.gpu.clone().close().unwrap();
    }
    assert_eq!(bench.world.live(), [""; 0]);
}

#[test]
fn a_run_whose_qp_was_closed_ends() {
    let bench = options().bench().unwrap();
    let (local, remote) = (&bench.source_mr, bench.target_mr.remote());
    let mut run = options()
        .bandwidth()
        .launch(&bench.module, &bench.stream, &bench.qps, local, &remote)
        .unwrap();
    bench.nic.clone().close().unwrap();
    // Its results are the GPU's, which is open.
    run.wait(PATIENCE).unwrap();
    bench.gpu.clone().close().unwrap();
    let error = run.wait(PATIENCE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::State, "{error}");
    assert!(
        error.to_string().contains("GPU memory is closed"),
        "{error}"
    );
    let closed: Result<()> = run.stop();
    assert!(closed.is_err_and(|error| error.kind() == ErrorKind::State));
}
