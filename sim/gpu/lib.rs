//! A GPU in software: loads PTX text, runs grids of threads, and checks what they do.
//!
//! Knows: PTX, its execution model, and the bus.
//! Must not know: RDMA, work requests, or anything of the host crate: it is an independent oracle.
//!
//! - [`GpuModel`] is what a driver sees: modules, streams, launches, mapped registers.
//! - [`StrictMemory`] is memory with the PTX memory model: what order leaves open is reported ([`OrderReport`]).
//! - [`FastMemory`] is memory without a memory model: flat bytes with bounds, liveness and labels.
//! - [`coverage`] prints which PTX is supported; anything else is refused when a module is loaded.
//!
//! Threads, and all devices of the bus, are interleaved by one seeded scheduler in one thread: a seed replays a run.
#![forbid(unsafe_code)]

mod cache;
mod config;
mod counters;
mod decode;
mod error;
mod exec;
pub mod explore;
mod ir;
mod memory;
mod model;
mod module;
mod order;
mod parse;
mod report;
mod run;
mod stream;
mod strict;
mod window;

pub use config::{Check, GpuConfig, Scheduler};
pub use counters::{LaunchCounters, Phase, PhaseCounters};
pub use decode::coverage;
pub use error::{GpuError, LoadError};
pub use memory::{FastMemory, POISON};
pub use model::{Advance, EventId, GpuModel, KernelId, ModuleId, StreamId, memory_of};
pub use module::kernels;
pub use order::{AccessReport, OrderReport};
pub use report::{FailureKind, Location, RunReport, Waiter};
pub use run::state::LaunchShape;
pub use strict::StrictMemory;
pub use warpverbs_sim_bus::{OrderFault, Script};
