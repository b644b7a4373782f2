//! The data path on the GPU: post RDMA work requests to an mlx5 NIC and poll their completions, from GPU threads.
//!
//! The host crate exports a QP as a handle in GPU memory. A thread opens it as an [`Sq`], in the modes that it chooses by
//! type; its receive queue, if it has one, as an [`Rq`]. Modes leave no residue in the PTX, and what never changes is read once.
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
//! # Modes
//!
//! | type parameter | values |
//! |---|---|
//! | sharing | [`Exclusive`], [`Warp`], [`Cta`], [`Gpu`] |
//! | doorbell | [`Db`], [`DbEarly`], [`BlueFlame`], [`Proxy`], [`NoDbr`]; [`Lazy`] or [`InGpu`] around one of them |
//! | form of the CQ | [`Ring`], [`Collapsed`], [`OnError`]; [`Checked`] around one of them |
//!
//! What the handle does not have is refused when it is opened: [`Flags`] says what it has.
//!
//! # Operations
//!
//! | call | what it does |
//! |---|---|
//! | [`Sq::post_write`], [`Sq::post_read`], [`Sq::post_write_imm`], [`Sq::post_send`], [`Sq::post_send_imm`], [`Sq::post_write_inline`], [`Sq::post_send_inline`], [`Sq::post_nop`] | one message |
//! | [`Sq::put`], [`Sq::get`] | any size; what a get fetched is visible when it is done (rule O14) |
//! | [`Sq::fetch_add`], [`Sq::compare_swap`] | atomics of 8 bytes, with their result visible |
//! | [`Sq::put_signal`], [`Sq::signal`], [`Sq::wait_signal`] | notification behind data |
//! | [`Sq::put_counter`] | the NIC counts completions in memory, by a companion QP |
//! | [`Sq::strided`], [`Sq::list`], [`Sq::stream_by`] | many pieces in one call |
//! | [`Sq::fence`], [`Sq::flush`], [`Sq::settle_reads`] | order, completion, visibility |
//! | [`Sq::post`], [`Sq::try_post`], [`Sq::post_quiet`] | any operation of [`op`]: waiting for room, not waiting, without ringing |
//! | [`Sq::post_visible`] | any operation that writes local memory |
//! | [`ring_all`] | one doorbell pass for several queues |
//! | [`Sq::try_reserve`], [`Sq::slot`], [`Sq::publish`], [`Sq::submit`] | the steps of a post |
//! | [`Sq::poll`], [`Sq::poll_many`], [`Sq::wait`], [`Sq::test`] | completion |
//!
//! # Groups
//!
//! A call whose name ends in `_by` is made by all members of a [`group`]: lanes of a warp ([`group::Lanes`]), the threads of a block
//! ([`group::Block`]), or one thread ([`group::Thread`]). Each member brings an operation of its own, or none; there is one reserve, one
//! publication and one ring, and all get the same answer.
//!
//! ```
//! use warpverbs_device::{
//!     Db, Error, Gpu, Local, Remote, Ring, Sq,
//!     group::{Group, Lanes},
//!     op::Write,
//!     thread,
//! };
//!
//! /// Each lane writes 64 bytes: one doorbell for all. The lanes of a warp make this call together.
//! ///
//! /// # Safety
//! ///
//! /// As `Sq::open_by`'s.
//! unsafe fn write_by_warp(handle: u64, local: Local, remote: Remote) -> Result<(), Error> {
//!     let lanes = Lanes::all();
//!     let mut sq = unsafe { Sq::<Gpu, Db, Ring>::open_by(lanes, handle) }?;
//!     let offset = u64::from(thread::lane()) * 64;
//!     let len = sq.length(64)?;
//!     let write = Write::new(local.offset(offset), remote.offset(offset), len);
//!     let last = sq.post_by(lanes, write)?;
//!     sq.wait_by(lanes, last)
//! }
//! ```
//!
//! # Outcomes
//!
//! `Ok`, or an [`Error`]: a full queue, a wait that ended, a stop, a fault with its cause. Waits end by a deadline
//! ([`Sq::set_deadline`]), by a number of looks ([`Sq::set_spins`]), by the host's stop, by the QP's fault.
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
mod rq;
mod rq_handle;
mod rq_ring;
mod scope;
mod several;
mod signal;
mod sq;
pub mod thread;
mod transfer;
mod wait;
mod watch;

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
    Gpu, InGpu, Lazy, NoDbr, OnError, Proxy, Ring, Sharing, Tell, Warp,
};
pub use op::{Filled, Inline, Length, Local, LocalView, Remote, RemoteView, Slot};
pub use poll::Progress;
pub use post::Reservation;
pub use rq::{Received, ReceivedKind, Rq};
pub use several::{Choice, choose, ring_all};
pub use signal::Signal;
pub use sq::{DEFAULT_DEADLINE_NS, Sq, Ticket, state_of};
pub use warpverbs_wire::abi;
