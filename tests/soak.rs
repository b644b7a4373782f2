//! A soak of whole lives: memory stays flat, and nothing is left. In a process of its own, which it measures.

mod common;

use std::time::Duration;

use common::{Options, PATIENCE, World, connected_pair};
use warpverbs::{Access, Context, GpuContext, Mr, Pd, QueuePair, Result};

/// Lives of the soak: `WARPVERBS_SOAK=10000` for the long one.
fn lives() -> u64 {
    let lives = std::env::var("WARPVERBS_SOAK").ok();
    lives.and_then(|lives| lives.parse().ok()).unwrap_or(2000)
}

/// Resident memory of the process in KiB, where the system tells.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[test]
fn soak_of_create_connect_transfer_error_reset_close() {
    let options = Options {
        iters: 4,
        depth: 8,
        size: 64,
        slots: 2,
        ..Options::default()
    };
    let world: World = options.world();
    let nic = Context::open(world.nic()).unwrap();
    let gpu = GpuContext::open(world.gpu()).unwrap();
    let pd = Pd::alloc(&nic).unwrap();
    let module = warpverbs::Module::embedded(&gpu).unwrap();
    let stream = warpverbs::Stream::create(&gpu).unwrap();
    let idle = world.live();
    let (lives, mut early) = (lives(), None);
    for life in 0..lives {
        one_life(&options, &pd, &gpu, &module, &stream)
            .unwrap_or_else(|error| panic!("life {life}: {error}"));
        assert_eq!(world.live(), idle, "life {life}");
        if life == lives / 4 {
            early = resident();
        }
    }
    assert_eq!(world.findings(), [""; 0]);
    assert_eq!((nic.retained(), gpu.retained()), (vec![], vec![]));
    if let (Some(early), Some(late)) = (early, resident()) {
        println!(
            "soak: {lives} lives; resident {early} KiB after a quarter, {late} KiB at the end"
        );
        assert!(
            late < early + early / 4 + 4096,
            "{early} KiB, then {late} KiB"
        );
    }
    drop((pd, module, stream));
    nic.close().unwrap();
    gpu.close().unwrap();
    assert_eq!(world.live(), [""; 0]);
}

fn one_life(
    options: &Options,
    pd: &Pd,
    gpu: &GpuContext,
    module: &warpverbs::Module,
    stream: &warpverbs::Stream,
) -> Result<()> {
    let (source, target) = (
        gpu.alloc_copy(&[7; 256], "source")?,
        gpu.alloc(256, "target")?,
    );
    let local = Mr::register(pd, &source, Access::LOCAL_WRITE)?;
    let remote = Mr::register(pd, &target, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let (qp, mut peer) = connected_pair(pd, gpu, &options.qp_config())?;
    let write = |qp: &warpverbs::ExportedQp, rkey: u32| {
        let target = warpverbs::RemoteMr {
            rkey,
            ..remote.remote()
        };
        let qps = std::slice::from_ref(qp);
        let mut run = options
            .bandwidth()
            .launch(module, stream, qps, &local, &target)?;
        run.wait(PATIENCE)
    };
    let qp = qp.export()?;
    write(&qp, remote.remote().rkey)?.check()?;
    assert!(write(&qp, 0xffff_ff00)?.fault().is_some());
    let mut qp: QueuePair = qp.unexport()?;
    qp.reset()?;
    peer.reset()?;
    qp.connect(&peer.local_info())?;
    peer.connect(&qp.local_info())?;
    let qp = qp.export()?;
    write(&qp, remote.remote().rkey)?.check()?;
    qp.close_within(Duration::from_secs(1))?;
    peer.close()?;
    local.close()?;
    remote.close()?;
    source.close()?;
    target.close()?;
    Ok(())
}
