//! What a memory model finds wrong.
//!
//! Knows: two accesses and the order that is missing between them.
//! Must not know: how it was found, or names of kernels and instructions: who has them resolves [`Party`].

use std::fmt;

/// Who made an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Actor {
    /// The CPU.
    Host,
    /// A device.
    Device {
        /// Its number on the bus.
        device: u16,
        /// For which of its queues.
        context: u32,
    },
    /// A GPU thread.
    Thread {
        /// Its launch.
        launch: u64,
        /// Its block in the grid.
        block: u64,
        /// Its number in the block.
        index: u32,
    },
}

/// One side of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Party {
    /// Who.
    pub actor: Actor,
    /// A thread's instruction: its number in the module.
    pub site: u32,
    /// The access, such as "weak store".
    pub does: &'static str,
}

/// Kinds of finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum OrderFault {
    /// Two accesses, one of them a write and one of them weak, that nothing orders.
    Race,
    /// Two strong accesses that nothing orders, one of which has a scope without the other's agent.
    Scope,
    /// Two strong accesses that nothing orders and that overlap in part only.
    MixedSize,
    /// `ld.global.nc` of what is written while the kernel runs.
    NonCoherent,
    /// A device fetches a work request whose bytes are not ordered before the fetch.
    WorkRequest,
    /// A device reads data that is not ordered before its read.
    DeviceRead,
    /// Memory is written again though nothing orders the write after a device's read of what was there.
    Reuse,
    /// Data that a device wrote is accessed though nothing orders the access after the write.
    DeviceWrite,
    /// A device reads bytes that nobody has written.
    Uninitialised,
    /// An MMIO store that the device refused when it arrived.
    RefusedStore,
}

impl OrderFault {
    /// A short name that does not change.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Race => "race",
            Self::Scope => "scope-too-narrow",
            Self::MixedSize => "mixed-size-race",
            Self::NonCoherent => "non-coherent-load",
            Self::WorkRequest => "work-request-unordered",
            Self::DeviceRead => "device-read-unordered",
            Self::Reuse => "reuse-unordered",
            Self::DeviceWrite => "device-write-unordered",
            Self::Uninitialised => "uninitialised",
            Self::RefusedStore => "refused-store",
        }
    }
}

impl fmt::Display for OrderFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Two accesses that memory order leaves open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryFinding {
    /// What is wrong.
    pub kind: OrderFault,
    /// First address that both touch.
    pub addr: u64,
    /// The object, with the offset.
    pub object: String,
    /// The access that came first in this run; `None` if there is only one.
    pub earlier: Option<Party>,
    /// The access at which it was found.
    pub later: Party,
    /// Of data that a device wrote: the load of a completion by which a thread learned of it and did not acquire it.
    pub learned: Option<Party>,
    /// The edge that is missing, and what would supply it.
    pub missing: String,
}
