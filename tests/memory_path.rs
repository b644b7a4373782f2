//! How a NIC reaches memory of a GPU: each way is tried in turn, the first that is not refused is remembered and told, and what
//! is refused says what it takes.

mod common;

use std::sync::Arc;

use common::World;
use warpverbs::driver::fault::{Fault, Faults, Outcome};
use warpverbs::driver::{DriverErrorKind, Gpu};
use warpverbs::wire::abi::{FLAG_READ_NEEDS_DUMP, QpHandle};
use warpverbs::{
    Access, Context, Error, ErrorKind, GpuContext, MemoryPath, Mr, Pd, QpConfig, QueuePair, Result,
};

struct Bench {
    world: World,
    faults: Faults,
    context: Context,
    gpu: GpuContext,
    pd: Pd,
}

impl Bench {
    fn new(data_direct: bool) -> Self {
        let world = World::builder()
            .nic_config(|nic| nic.data_direct = data_direct)
            .build();
        let faults = Faults::new();
        let context = Context::open(faults.nic(world.nic())).unwrap();
        let gpu: Arc<dyn Gpu> = faults.gpu(world.gpu());
        let gpu = GpuContext::open(gpu).unwrap();
        let pd = Pd::alloc(&context).unwrap();
        Self {
            world,
            faults,
            context,
            gpu,
            pd,
        }
    }

    fn register(&self) -> Result<Mr> {
        let memory = self.gpu.alloc(4096, "memory")?;
        Mr::register(&self.pd, &memory, Access::LOCAL_WRITE)
    }

    /// How often a call was made.
    fn calls(&self, name: &str) -> usize {
        let trace = self.faults.trace();
        trace.iter().filter(|call| call.name == name).count()
    }

    /// Refuses every further call of that name as not offered.
    fn lacks(&self, name: &'static str) {
        let kind = DriverErrorKind::Unsupported;
        self.faults
            .plan(Fault::fail(0).calls(u64::MAX).of(name).error(kind));
    }

    /// The flags of an exported QP's handle.
    fn flags(&self) -> u32 {
        let mut qp = QueuePair::create(&self.pd, &self.gpu, &QpConfig::default()).unwrap();
        let info = qp.local_info();
        qp.connect(&info).unwrap();
        let exported = qp.export().unwrap();
        let mut bytes = vec![0; size_of::<QpHandle>()];
        let addr = exported.handle();
        self.gpu
            .driver()
            .copy_from_device(&mut bytes, addr)
            .unwrap();
        let handle = QpHandle::from_bytes(&bytes).unwrap();
        drop(exported);
        handle.flags
    }
}

fn source(error: &Error) -> (DriverErrorKind, String) {
    match error {
        Error::Driver { source, .. } => (source.kind, source.text.clone()),
        other => panic!("{other}"),
    }
}

#[test]
fn the_first_way_that_is_offered_is_taken_and_remembered() {
    use MemoryPath::{DataDirect, Dmabuf, PeerMemory};
    let bench = Bench::new(true);
    assert_eq!(bench.context.memory_paths(&bench.gpu).data, None);
    let mr = bench.register().unwrap();
    assert_eq!(mr.memory_path(), Some(DataDirect));
    let paths = bench.context.memory_paths(&bench.gpu);
    assert_eq!(
        (paths.data, paths.queues, paths.refused),
        (Some(DataDirect), None, vec![])
    );
    mr.close().unwrap();

    let bench = Bench::new(false);
    let mr = bench.register().unwrap();
    assert_eq!(mr.memory_path(), Some(Dmabuf));
    let paths = bench.context.memory_paths(&bench.gpu);
    assert_eq!((paths.data, paths.refused.len()), (Some(Dmabuf), 1));
    let (path, refusal) = &paths.refused[0];
    assert_eq!(
        (*path, refusal.kind),
        (DataDirect, DriverErrorKind::Unsupported)
    );
    mr.close().unwrap();
    // Another NIC's or GPU's way is its own.
    let other = GpuContext::open(bench.world.gpu()).unwrap();
    assert_eq!(bench.context.memory_paths(&other).data, None);

    // A GPU that exports nothing: asked once.
    let bench = Bench::new(true);
    bench.lacks("export_dmabuf");
    // The simulated GPU's memory has no address that a peer-memory module would know.
    let error = bench.register().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let (_, text) = source(&error);
    for path in [DataDirect, Dmabuf, PeerMemory] {
        assert!(
            text.contains(path.name()) && text.contains(path.cure()),
            "{text}"
        );
    }
    assert!(text.contains("modprobe nvidia-peermem"), "{text}");
    assert_eq!(bench.calls("export_dmabuf"), 2);
}

#[test]
fn a_way_that_fails_is_an_error_and_no_other_is_tried() {
    for kind in [
        DriverErrorKind::Exhausted,
        DriverErrorKind::Busy,
        DriverErrorKind::Os(5),
    ] {
        for call in ["export_dmabuf", "reg_mr"] {
            let bench = Bench::new(false);
            bench.faults.plan(Fault::fail(0).of(call).error(kind));
            let before = bench.calls("reg_mr");
            let error = bench.register().unwrap_err();
            assert_eq!(source(&error).0, kind);
            let made = bench.calls("reg_mr") - before;
            assert_eq!(made, usize::from(call == "reg_mr"));
            assert_eq!(bench.context.memory_paths(&bench.gpu), Default::default());
            // Descriptors are closed whatever happens.
            let done = |name: &str| {
                let trace = bench.faults.trace();
                let done = |call: &&warpverbs::driver::fault::Call| {
                    call.name == name && call.outcome == Outcome::Done
                };
                trace.iter().filter(done).count()
            };
            assert_eq!(done("export_dmabuf"), done("close_dmabuf"));
            bench.register().unwrap().close().unwrap();
        }
    }
}

#[test]
fn a_registration_that_is_refused_goes_the_next_way() {
    // The kernel says so where a NIC has a data-direct function that this registration cannot use.
    for kind in [
        DriverErrorKind::Unsupported,
        DriverErrorKind::InvalidArgument,
    ] {
        let bench = Bench::new(true);
        bench.faults.plan(Fault::fail(0).of("reg_mr").error(kind));
        let mr = bench.register().unwrap();
        assert_eq!(mr.memory_path(), Some(MemoryPath::Dmabuf));
        let refused = bench.context.memory_paths(&bench.gpu).refused;
        assert_eq!(refused[0].0, MemoryPath::DataDirect);
        // Remembered: the next one goes that way at once.
        let before = bench.calls("reg_mr");
        let again = bench.register().unwrap();
        assert_eq!(bench.calls("reg_mr"), before + 1);
        assert_eq!(bench.calls("export_dmabuf"), bench.calls("close_dmabuf"));
        again.close().unwrap();
        mr.close().unwrap();
    }
}

#[test]
fn queues_never_lie_behind_the_data_direct_function_and_reads_over_it_need_a_dump() {
    for data_direct in [false, true] {
        let bench = Bench::new(data_direct);
        assert_eq!(bench.context.capabilities().data_direct, data_direct);
        let flags = bench.flags();
        assert_eq!(flags & FLAG_READ_NEEDS_DUMP != 0, data_direct, "rule O14");
        let paths = bench.context.memory_paths(&bench.gpu);
        assert_eq!((paths.data, paths.queues), (None, Some(MemoryPath::Dmabuf)));
        assert_eq!(bench.world.findings(), [""; 0]);
    }
}
