//! What a device is to the bus.
//!
//! Knows: steps, MMIO stores, and DMA with its purpose.
//! Must not know: which device it is.

use crate::{Access, Agent, Fault, Order, Party, RmwOp, Scope};

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
    /// The NIC reads what a doorbell that has just arrived guarantees of the doorbell record: the oldest value that it may
    /// find there.
    DbrAtDoorbell,
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
    /// The queue that the device works for. Queues of a device are independent: what one has seen, another has not.
    pub context: u32,
}

impl DmaAccess {
    /// A strictly ordered access.
    pub const fn new(purpose: Purpose, context: u32) -> Self {
        Self {
            purpose,
            relaxed_ordering: false,
            context,
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
            site: self.context,
        }
    }
}

/// DMA, as a device sees the bus while it takes a step.
pub trait Dma {
    /// Reads bytes.
    fn read(&mut self, access: DmaAccess, addr: u64, bytes: &mut [u8]) -> Result<(), Fault>;
    /// Writes bytes.
    fn write(&mut self, access: DmaAccess, addr: u64, bytes: &[u8]) -> Result<(), Fault>;
    /// Copies `len` bytes from one address to another, in ascending order.
    fn copy(
        &mut self,
        from: (DmaAccess, u64),
        to: (DmaAccess, u64),
        len: u64,
    ) -> Result<(), CopyFault> {
        by_parts(self, from, to, len)
    }
    /// Reads and writes a word at once: of the devices' and threads' operations of this kind on it, one comes after the other.
    fn atomic(
        &mut self,
        access: DmaAccess,
        addr: u64,
        size: u32,
        op: RmwOp,
        operand: u64,
    ) -> Result<u64, Fault> {
        by_two(self, (access, addr), size, (op, operand))
    }
    /// A queue has heard from its peer: a queue of this device, or of the one with that [`Device::address`].
    fn follow(&mut self, _context: u32, _peer: u32, _address: Option<u64>) {}
    /// Who made the MMIO store for a queue that arrived last, if the memory model knows: for reports.
    fn doorbell_by(&self, _context: u32) -> Option<Party> {
        None
    }
    /// Who wrote the newest byte at an address, likewise.
    fn written_by(&mut self, _addr: u64) -> Option<Party> {
        None
    }
}

/// A read-modify-write by a read and a write.
pub(crate) fn by_two(
    dma: &mut (impl Dma + ?Sized),
    (access, addr): (DmaAccess, u64),
    size: u32,
    (op, operand): (RmwOp, u64),
) -> Result<u64, Fault> {
    let mut bytes = [0; 8];
    dma.read(access, addr, word_of(&mut bytes, size))?;
    let old = u64::from_le_bytes(bytes);
    bytes = op.apply(size, old, operand, 0).to_le_bytes();
    dma.write(access, addr, word_of(&mut bytes, size))?;
    Ok(old)
}

fn word_of(bytes: &mut [u8; 8], size: u32) -> &mut [u8] {
    bytes.get_mut(..size as usize).unwrap_or_default()
}

/// Why a copy was not made, or only in part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyFault {
    /// Where it reads.
    From(Fault),
    /// Where it writes.
    To(Fault),
}

/// A copy through a buffer.
pub(crate) fn by_parts(
    dma: &mut (impl Dma + ?Sized),
    from: (DmaAccess, u64),
    to: (DmaAccess, u64),
    len: u64,
) -> Result<(), CopyFault> {
    let mut part = [0; 4096];
    let mut done = 0;
    while done < len {
        let bytes = part.len().min((len - done) as usize);
        let part = part.get_mut(..bytes).unwrap_or_default();
        dma.read(from.0, from.1.wrapping_add(done), part)
            .map_err(CopyFault::From)?;
        dma.write(to.0, to.1.wrapping_add(done), part)
            .map_err(CopyFault::To)?;
        done += bytes as u64;
    }
    Ok(())
}

/// An agent beside the GPU threads.
pub trait Device: Send {
    /// Its name in messages.
    fn name(&self) -> &str;
    /// Where other devices reach it, if they do. Asked once, when it is attached.
    fn address(&self) -> Option<u64> {
        None
    }
    /// Takes one small deterministic step. Called often: an idle device must answer quickly.
    fn step(&mut self, dma: &mut dyn Dma) -> Step;
    /// Takes an MMIO store at `offset` of its BAR. A register that does not exist is a fault.
    fn mmio_write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Fault>;
    /// The queue that an MMIO store is for; a store that the device would refuse now is a fault.
    fn context_of(&self, _offset: u64, _bytes: &[u8]) -> Result<u32, Fault> {
        Ok(0)
    }
    /// Takes an MMIO store that was under way for a while.
    fn mmio_arrives(&mut self, offset: u64, bytes: &[u8], _: &mut dyn Dma) -> Result<(), Fault> {
        self.mmio_write(offset, bytes)
    }
}
