//! GPU-initiated RDMA: GPU threads write mlx5 work requests, ring the NIC's doorbell and poll its
//! completions; no CPU is in the data path. This crate owns every resource behind that, from open
//! to close.
//!
//! 1. Open a NIC ([`Context`]) and a GPU ([`GpuContext`]) through their drivers ([`driver`]).
//! 2. Register memory ([`Mr`]), and create queue pairs whose queues lie in GPU memory
//!    ([`QueuePair`]; many of them: [`QpPool`]).
//! 3. Connect them: each end is given the other's [`QueuePair::local_info`], by whatever way the
//!    application has.
//! 4. Export them to the GPU ([`QueuePair::export`]) and launch a kernel: a provided one
//!    ([`Bandwidth`], [`Latency`]), or your own, built on `warpverbs-device` ([`Stream::launch`]).
//! 5. Unexport and close, children before parents, or drop.
//!
//! ```
//! # #[cfg(feature = "sim")]
//! # fn main() -> warpverbs::Result<()> {
//! use std::time::Duration;
//! use warpverbs::driver::sim::World;
//! use warpverbs::*;
//!
//! let world = World::builder().seed(1).build();
//! let (nic, gpu) = (Context::open(world.nic())?, GpuContext::open(world.gpu())?);
//! let pd = Pd::alloc(&nic)?;
//! let source = gpu.alloc_copy(&[42; 4096], "source")?;
//! let target = gpu.alloc_copy(&[0; 4096], "target")?;
//! let local = Mr::register(&pd, &source, Access::LOCAL_READ)?;
//! let remote = Mr::register(&pd, &target, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
//!
//! // Connected to itself; two ends exchange their infos.
//! let mut qp = QueuePair::create(&pd, &gpu, &QpConfig::default())?;
//! let info = qp.local_info();
//! qp.connect(&info)?;
//! let qps = [qp.export()?];
//!
//! let write = Bandwidth { iters: 10, ..Bandwidth::default() };
//! let (module, stream) = (Module::embedded(&gpu)?, Stream::create(&gpu)?);
//! let mut run = write.launch(&module, &stream, &qps, &local, &remote.remote())?;
//! run.wait(Duration::from_secs(60))?.check()?;
//! assert_eq!(target.to_vec()?, [42; 4096]);
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "sim"))]
//! # fn main() {}
//! ```
//!
//! # Ownership
//!
//! Every object keeps what it depends on, so no order of drops is wrong. Memory and QPs change type when they change
//! hands: a [`QueuePair`] that is exported is an [`ExportedQp`] until it is taken back.
//!
//! `close` does what a drop does, and can tell. A QP, a NIC and a GPU are closed in stages ([`Stage`]) and give a
//! [`CloseReport`]; other objects are closed at once, or are busy. A refusal hands the object back ([`Refused`]), and
//! closing it again goes on where it stopped. Closing a NIC ([`Context::close`]) takes down all that was built on it,
//! whoever holds it: handles that are left fail with [`Error::Closed`].
//!
//! What is refused keeps all that it depends on, because the hardware may still use it. If the last handle is dropped,
//! the context keeps it ([`Context::retained`], [`Context::retry_retained`]).
//!
//! # Features
//!
//! `sim`: simulated devices, `driver::sim`.
#![deny(unsafe_code)]

mod connect;
pub mod driver;
mod error;
mod export;
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
mod ffi;
mod kernels;
#[allow(unsafe_code)]
mod launch;
mod module;
mod node_kinds;
mod proxy;
pub mod ptx;
mod resource;
mod stall;
mod teardown;

pub use connect::InfoError;
pub use driver::Access;
pub use error::{Error, ErrorKind, Refused, Result, ThreadError};
pub use export::{ExportedQp, QpFault, QpProgress, QpStatus};
pub use kernels::{
    Bandwidth, Completions, Direction, Doorbell, Landed, LandedLog, Latency, LatencyEnd, Operation,
    Order, Rate, Run, RunReport, SeededData, Sends, Sharing, Task, TaskLaunch, ThreadReport,
};
pub use launch::{Launch, Stream, View};
pub use module::{Kernel, Module};
pub use node_kinds::{Dependency, NODE_KINDS, NodeKind};
pub use proxy::Proxy;
pub use resource::{
    Capabilities, Context, CqForm, DoorbellPath, GpuContext, GpuMemory, HostMemory, MemoryPath,
    MemoryPaths, Mr, Pd, QpConfig, QpPool, QueuePair, RemoteMr, Served,
};
pub use stall::Stall;
pub use teardown::{CloseReport, NodeId, Retained, Stage, StageEvent};
/// The byte layouts that this crate shares with kernels and NICs.
pub use warpverbs_wire as wire;

/// README's example, compiled and run with the documentation's.
#[cfg(all(doctest, feature = "sim"))]
#[doc = include_str!("../README.md")]
struct Readme;
