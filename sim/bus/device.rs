//! What a device is to the bus.
//!
//! Knows: steps, MMIO stores, and DMA with its purpose.
//! Must not know: which device it is.

use crate::{Access, Agent, Fault, Order, Scope};

/// Whether a step did anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Something changed; call again.
    Progress,
    /// Nothing to do until memory changes or an MMIO store arrives.
    Idle,
}

/// What an access is for: a memory model judges it and a message names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// An instruction of a GPU thread.
    Instruction,
    /// A copy made by the host.
    Copy,
    /// The NIC reads a doorbell record.
    Dbr,
    /// The NIC fetches a work queue element.
    Wqe,
    /// The NIC reads or writes message data.
    Payload,
    /// The NIC writes a completion queue element.
    Cqe,
}

/// A DMA access, as the device states it.
#[derive(Clone, Copy, Debug)]
pub struct DmaAccess {
    /// What for.
    pub purpose: Purpose,
    /// True if the PCIe relaxed-ordering bit is set on it.
    pub relaxed_ordering: bool,
}

impl DmaAccess {
    /// A strictly ordered access.
    pub const fn new(purpose: Purpose) -> Self {
        Self {
            purpose,
            relaxed_ordering: false,
        }
    }

    /// The access as memory sees it. A device is an observer at system scope; That a device is one is assumed (ARCHITECTURE.md, ordering rules).
    pub(crate) fn by(self, agent: Agent) -> Access {
        Access {
            agent,
            order: if self.relaxed_ordering {
                Order::Weak
            } else {
                Order::Relaxed
            },
            scope: Scope::Sys,
            purpose: self.purpose,
        }
    }
}

/// DMA, as a device sees the bus while it takes a step.
pub trait Dma {
    /// Reads bytes.
    fn read(&mut self, access: DmaAccess, addr: u64, bytes: &mut [u8]) -> Result<(), Fault>;
    /// Writes bytes.
    fn write(&mut self, access: DmaAccess, addr: u64, bytes: &[u8]) -> Result<(), Fault>;
}

/// An agent beside the GPU threads.
pub trait Device: Send {
    /// Its name in messages.
    fn name(&self) -> &str;
    /// Takes one small deterministic step. Called often: an idle device must answer quickly.
    fn step(&mut self, dma: &mut dyn Dma) -> Step;
    /// Takes an MMIO store at `offset` of its BAR. A register that does not exist is a fault.
    fn mmio_write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Fault>;
}
