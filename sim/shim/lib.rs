//! The simulated NIC behind the kernel's uverbs ABI, in one library: unmodified libibverbs and libmlx5 find a device
//! `mlx5_0`, open it, and talk to a `NicModel` instead of a kernel and a NIC.
//!
//! Knows: the uverbs ABI, and what the kernel's mlx5 driver makes of it.
//! Must not know: who calls. Host code is not used here, nor are its bindings: both sides have the ABI from the headers.
//!
//! As `libwarpverbs_sim.so` it is loaded with `LD_PRELOAD` (`warpverbs sim-env -- CMD` does that). Linked into a test binary,
//! its names come before libc's there too.
//!
//! Environment: `WARPVERBS_SIM_NICS` (how many devices, 1 by default), `WARPVERBS_SIM_WIRE` (a folder that joins the NICs of
//! several processes), `WARPVERBS_SIM_LINK` (`ethernet` or `infiniband`), `WARPVERBS_SIM_FOLDER` (where to put files while
//! the process runs), `WARPVERBS_SIM_DOORBELLS` (`fast` or `conformance`), `WARPVERBS_SIM_REFUSE` and `WARPVERBS_SIM_MEMLOCK` (what is not to be had; docs/sim-env.md).
//!
//! The NICs run on a thread of their own. In the fast mode they find doorbells in memory, so a register that is written twice in
//! a row is seen once: with each doorbell they look at the doorbell records of its page. In the conformance mode
//! (`WARPVERBS_SIM_DOORBELLS`) no memory is behind a doorbell page, and every store to it is an event of its own.
#![deny(unsafe_code)]

pub mod abi;
mod context;
mod counters;
mod device;
mod devx;
mod dispatch;
mod errno;
mod events;
mod fds;
#[allow(unsafe_code)]
mod interpose;
mod lent;
mod memory;
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
mod operand;
mod queues;
mod request;
mod resources;
#[allow(unsafe_code)]
mod sys;
mod sysfs;
mod transition;
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
#[allow(unsafe_code)]
mod traps;
#[allow(unsafe_code)]
mod windows;
mod wire;
mod world;
mod write;

pub use lent::{Lent, Loan};

/// What the NICs of this process have found wrong so far, one line each, and forgets it. What is left is said on standard error
/// when the process exits.
pub fn take_findings() -> Vec<String> {
    world::existing().map_or_else(Vec::new, |world| world.take_findings())
}

/// How many findings of this kind there were ([`warpverbs_sim_nic::FindingKind::NAMES`]), those that are forgotten included.
pub fn findings_of(kind: &str) -> u64 {
    world::existing().map_or(0, |world| world.findings_of(kind))
}

/// Lets a test at NIC number `index` of this process, to plant faults in it. `None` if no device has been opened yet, or there is
/// no such NIC.
pub fn with_nic<R>(
    index: usize,
    with: impl FnOnce(&mut warpverbs_sim_nic::NicModel) -> R,
) -> Option<R> {
    let nic = world::existing()?.nic(index).ok()?;
    Some(with(&mut nic.lock()))
}
