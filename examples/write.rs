//! A GPU thread writes to remote memory over RDMA, on simulated devices: what a Rust user of this
//! crate writes.
//!
//! `cargo run --example write`

use std::time::Duration;

use warpverbs::driver::sim::World;
use warpverbs::{
    Access, Bandwidth, Context, GpuContext, Module, Mr, Pd, QpConfig, QueuePair, Stream,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The devices. On a machine that has them, a driver opens them; everything below stays the
    // same.
    let world = World::builder().seed(1).build();
    let nic = Context::open(world.nic())?;
    let gpu = GpuContext::open(world.gpu())?;
    let pd = Pd::alloc(&nic)?;

    // What moves: 64 buffers of 4,096 bytes.
    let write = Bandwidth {
        size: 4096,
        slots: 64,
        iters: 1000,
        ..Bandwidth::default()
    };
    let bytes: Vec<u8> = (0..write.size * write.slots)
        .map(|at| (at / 7) as u8)
        .collect();
    let source = gpu.alloc_copy(&bytes, "source")?;
    let target = gpu.alloc_copy(&vec![0; bytes.len()], "target")?;
    let local = Mr::register(&pd, &source, Access::LOCAL_READ)?;
    let remote = Mr::register(&pd, &target, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;

    // Two QPs, connected: each end gives the other its local_info(), here within one process.
    let mut sender = QueuePair::create(&pd, &gpu, &QpConfig::default())?;
    let mut receiver = QueuePair::create(&pd, &gpu, &QpConfig::default())?;
    sender.connect(&receiver.local_info())?;
    receiver.connect(&sender.local_info())?;

    // The sender goes to the GPU, where a kernel posts the writes, rings the doorbell and polls the
    // completions.
    let qps = [sender.export()?];
    let module = Module::embedded(&gpu)?;
    let stream = Stream::create(&gpu)?;
    let mut run = write.launch(&module, &stream, &qps, &local, &remote.remote())?;
    let report = run.wait(Duration::from_secs(60))?;
    report.check()?;
    drop(run);

    let arrived = target.to_vec()? == bytes;
    println!(
        "{} writes of {} bytes completed on {} by {}; data {}",
        report.completed(),
        write.size,
        nic.name(),
        gpu.name(),
        if arrived { "verified" } else { "WRONG" }
    );

    // Children before parents. Dropping them would do the same, but could only log a refusal.
    let [sender] = qps;
    sender.unexport()?.close()?;
    receiver.close()?;
    local.close()?;
    remote.close()?;
    if arrived {
        Ok(())
    } else {
        Err("the data did not arrive".into())
    }
}
