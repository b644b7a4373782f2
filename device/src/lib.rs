//! The data path on the GPU: post RDMA work requests to an mlx5 NIC and poll their completions, from GPU threads.
//!
//! The host crate exports a QP as a handle in GPU memory. A thread opens it as an [`Sq`], in the modes that it chooses by
//! type: who shares the queue ([`Exclusive`], [`Gpu`]), how the NIC is told ([`Db`], [`DbEarly`]), and the form of its CQ
//! ([`Ring`], [`Collapsed`]). Modes leave no residue in the PTX, and what never changes is read once.
//!
//! ```
//! use warpverbs_device::{Collapsed, Db, Error, Exclusive, Local, Remote, Sq};
//!
//! /// # Safety
//! ///
//! /// As `Sq::open`'s.
//! unsafe fn write_twice(handle: u64, local: Local, remote: Remote) -> Result<(), Error> {
//!     let mut sq = unsafe { Sq::<Exclusive, Db, Collapsed>::open(handle) }?;
//!     sq.post_write(local, remote, 4096)?;
//!     let second = sq.post_write(local, remote, 4096)?;
//!     sq.wait(second)
//! }
//! ```
//!
//! The same source compiles for a CPU, where tests and models run it. Rules O1 to O14, which comments name where they
//! bind, are those of ARCHITECTURE.md.
//!
//! Knows: `wire`'s formats, and the order in which queue memory and registers are accessed.
//! Must not know: how a QP came to be, or what is done with the data.
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(asm_experimental_arch, link_llvm_intrinsics)
)]
#![cfg_attr(target_arch = "nvptx64", allow(internal_features))]
#![deny(unsafe_code)]

mod bell;
mod error;
pub mod group;
mod handle;
mod list;
#[cfg(all(test, loom))]
mod loom_tests;
pub mod message;
mod mode;
mod one;
pub mod op;
mod poll;
mod post;
mod post_by;
mod ring;
mod scope;
mod signal;
mod sq;
pub mod thread;
mod transfer;
mod wait;

#[cfg(not(target_arch = "nvptx64"))]
#[path = "native.rs"]
mod arch;
#[cfg(target_arch = "nvptx64")]
#[path = "nvptx.rs"]
mod arch;

pub use error::Error;
pub use handle::Flags;
pub use mode::{
    BlueFlame, Checked, Collapsed, CqForm, Cta, Db, DbEarly, Doorbell, EverySignalled, Exclusive,
    Gpu, Lazy, NoDbr, OnError, Proxy, Ring, Sharing, Tell, Warp,
};
pub use op::{Filled, Inline, Length, Local, LocalView, Remote, RemoteView, Slot};
pub use poll::Progress;
pub use post::Reservation;
pub use signal::Signal;
pub use sq::{DEFAULT_DEADLINE_NS, Sq, Ticket};
pub use warpverbs_wire::abi;
