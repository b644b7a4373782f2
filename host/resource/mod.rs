//! Owners of what the NIC and the GPU allocate: one file an owner.
//!
//! Knows: which driver call creates each thing, which one undoes it, and what must outlive it.
//! Must not know: who implements the drivers.

mod context;
mod cq;
mod drain;
mod gpu;
mod host_memory;
mod layout;
mod mailbox;
mod memory_path;
#[allow(unsafe_code)]
mod mr;
mod path;
mod pd;
mod pool;
mod qp;
mod qp_config;
mod qp_connect;
mod qp_export;
mod qp_node;
mod queues;
mod service;
mod slab;
mod uar;
#[allow(unsafe_code)]
mod umem;

pub use context::{Capabilities, Context};
pub use gpu::{GpuContext, GpuMemory};
pub(crate) use gpu::{HostWords, MemoryNode};
pub use host_memory::HostMemory;
pub use memory_path::{MemoryPath, MemoryPaths};
pub use mr::{Mr, RemoteMr};
pub use pd::Pd;
pub use pool::QpPool;
pub use qp::QueuePair;
pub use qp_config::{CqForm, DoorbellPath, QpConfig};
pub(crate) use qp_export::hand_over;
pub(crate) use qp_node::{Attached, Kept};
pub use service::Served;
pub(crate) use service::Service;
