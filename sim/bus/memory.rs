//! The memory trait: what GPU threads, devices and the host do to simulated memory.
//!
//! Knows: agents, scopes, orders, spaces, and the shape of an access.
//! Must not know: how values are kept (flat bytes or message histories) or which instruction made the access.

use crate::addr::space_base;
use crate::{Event, Fault, MemoryFinding, Party, Posted, Purpose};

/// Who makes an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Agent {
    /// The CPU.
    Host,
    /// A device of the bus, by its number.
    Device(u16),
    /// A GPU thread, by its number in the running grid.
    Thread(u32),
}

/// Memory order of an access (PTX ISA, "Memory Consistency Model", operation types).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// `ld`/`st` with no qualifier, or `.weak`.
    Weak,
    /// `ld.global.nc`: the non-coherent path, for data that does not change while the kernel runs.
    NonCoherent,
    /// `.volatile`: relaxed at system scope, may be repeated or merged.
    Volatile,
    /// `.relaxed`
    Relaxed,
    /// `.acquire`
    Acquire,
    /// `.release`
    Release,
    /// `.acq_rel`
    AcqRel,
    /// `.mmio.relaxed`: exactly once, never merged.
    Mmio,
}

/// Scope of a strong access or of a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// The block.
    Cta,
    /// The cluster.
    Cluster,
    /// The GPU.
    Gpu,
    /// All agents of the system.
    Sys,
}

/// One access, but for address and value.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Who makes it.
    pub agent: Agent,
    /// Its order.
    pub order: Order,
    /// Its scope; ignored when weak.
    pub scope: Scope,
    /// What it is for, in messages.
    pub purpose: Purpose,
    /// Where it comes from: a thread's instruction by its number in the module, or the queue that a device works for.
    pub site: u32,
}

impl Access {
    /// A copy that the host makes while nothing runs.
    pub const HOST_COPY: Self = Self {
        agent: Agent::Host,
        order: Order::Weak,
        scope: Scope::Sys,
        purpose: Purpose::Copy,
        site: 0,
    };
}

/// Fence instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceKind {
    /// `fence.sc`, and `membar` (PTX ISA: `membar.level` is `fence.sc.scope`).
    Sc,
    /// `fence.acq_rel`
    AcqRel,
    /// `fence.acquire`
    Acquire,
    /// `fence.release`
    Release,
}

/// An atomic read-modify-write. `a` is the first operand; `b` the second, used by `Cas` (compare `a`, swap in `b`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as in the PTX ISA")]
pub enum RmwOp {
    Add,
    And,
    Or,
    Xor,
    Exch,
    Cas,
    MinU,
    MaxU,
    MinS,
    MaxS,
    Inc,
    Dec,
}

impl RmwOp {
    /// The new value of a `size`-byte word that holds `old`.
    pub fn apply(self, size: u32, old: u64, a: u64, b: u64) -> u64 {
        let bits = size.min(8) * 8;
        let mask = if bits == 64 {
            u64::MAX
        } else {
            (1 << bits) - 1
        };
        let signed = |v: u64| ((v << (64 - bits)) as i64) >> (64 - bits);
        let (old, a, b) = (old & mask, a & mask, b & mask);
        let new = match self {
            Self::Add => old.wrapping_add(a),
            Self::And => old & a,
            Self::Or => old | a,
            Self::Xor => old ^ a,
            Self::Exch => a,
            Self::Cas => {
                if old == a {
                    b
                } else {
                    old
                }
            }
            Self::MinU => old.min(a),
            Self::MaxU => old.max(a),
            Self::MinS => signed(old).min(signed(a)) as u64,
            Self::MaxS => signed(old).max(signed(a)) as u64,
            Self::Inc => {
                if old >= a {
                    0
                } else {
                    old + 1
                }
            }
            Self::Dec => {
                if old == 0 || old > a {
                    a
                } else {
                    old - 1
                }
            }
        };
        new & mask
    }
}

/// Where an allocation lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// GPU memory.
    Device,
    /// Host memory mapped into the GPU.
    HostMapped,
    /// `.shared` memory of one running block.
    Shared,
    /// `.local` memory of one running thread.
    Local,
}

impl Space {
    /// First address of the space; spaces are 2 TiB apart.
    pub const fn base(self) -> u64 {
        space_base(match self {
            Self::Device => 0,
            Self::HostMapped => 1,
            Self::Shared => 3,
            Self::Local => 4,
        })
    }

    /// First address of the window through which a GPU sees mapped device registers. No [`Memory`] allocates here:
    /// the GPU translates it to the device's own address.
    pub const MAPPED_REGISTERS: u64 = space_base(2);
}

/// Simulated memory. Scalars are little-endian and zero-extended to 64 bits; `size` is 1, 2, 4 or 8 bytes and `addr`
/// must be a multiple of it (PTX ISA, "Addresses as Operands": a misaligned access is undefined, so it is a fault).
pub trait Memory: Send {
    /// Allocates `len` bytes aligned to `align` (a power of two). `label` names the object in messages. The bytes are
    /// uninitialised: a model may report their use.
    fn alloc(&mut self, space: Space, len: u64, align: u64, label: &str) -> Result<u64, Fault>;
    /// Frees an allocation by its first address. Its addresses are not handed out again soon, so that late
    /// accesses are found.
    fn free(&mut self, addr: u64) -> Result<(), Fault>;
    /// Loads a scalar.
    fn load(&mut self, access: Access, addr: u64, size: u32) -> Result<u64, Fault>;
    /// Stores the low `size` bytes of `value`.
    fn store(&mut self, access: Access, addr: u64, size: u32, value: u64) -> Result<(), Fault>;
    /// Performs an atomic read-modify-write and returns the old value.
    fn rmw(
        &mut self,
        access: Access,
        addr: u64,
        size: u32,
        op: RmwOp,
        a: u64,
        b: u64,
    ) -> Result<u64, Fault>;
    /// Performs a fence.
    fn fence(&mut self, agent: Agent, kind: FenceKind, scope: Scope);
    /// Reads bytes at any alignment: DMA, or a copy of the host.
    fn read(&mut self, access: Access, addr: u64, bytes: &mut [u8]) -> Result<(), Fault>;
    /// Writes bytes at any alignment: DMA, or a copy of the host.
    fn write(&mut self, access: Access, addr: u64, bytes: &[u8]) -> Result<(), Fault>;
    /// Names the object at `addr`: label, offset and liveness.
    fn describe(&self, addr: u64) -> String;

    // What a memory model needs beside; memory without one ignores it.

    /// Takes notice of what orders agents.
    fn event(&mut self, _: Event<'_>) {}
    /// Takes a posted MMIO store that is to arrive later; false if it is to arrive at once.
    fn post(&mut self, _: Access, _: Posted) -> bool {
        false
    }
    /// True if MMIO stores are under way to the device.
    fn has_posted(&self, _device: u16) -> bool {
        false
    }
    /// Hands out a posted store that arrives at the device now.
    fn arrive(&mut self, _device: u16) -> Option<Posted> {
        None
    }
    /// A device's queue has heard from its peer, a queue of the same device or of another: each by device and queue.
    fn follow(&mut self, _queue: (u16, u32), _peer: (u16, u32)) {}
    /// A posted store was refused when it arrived.
    fn refused(&mut self, _: Posted, _: &Fault) {}
    /// Who made the MMIO store for a device's queue that arrived last, if the model knows.
    fn doorbell_by(&self, _device: u16, _context: u32) -> Option<Party> {
        None
    }
    /// Who wrote the newest byte at an address, if the model knows.
    fn written_by(&mut self, _addr: u64) -> Option<Party> {
        None
    }
    /// Hands out what the model found wrong.
    fn take_findings(&mut self) -> Vec<MemoryFinding> {
        Vec::new()
    }
    /// How many it found beyond those that it kept.
    fn findings_left_out(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::RmwOp;

    #[test]
    fn read_modify_writes_follow_the_ptx_tables() {
        for (op, size, old, a, b, new) in [
            (RmwOp::Add, 4, 0xffff_ffff, 1, 0, 0),
            (RmwOp::Cas, 8, 5, 5, 9, 9),
            (RmwOp::Cas, 8, 4, 5, 9, 4),
            (RmwOp::MinS, 4, 0xffff_ffff, 1, 0, 0xffff_ffff),
            (RmwOp::MinU, 4, 0xffff_ffff, 1, 0, 1),
            (RmwOp::MaxS, 8, u64::MAX, 0, 0, 0),
            (RmwOp::Inc, 4, 7, 7, 0, 0),
            (RmwOp::Inc, 4, 6, 7, 0, 7),
            (RmwOp::Dec, 4, 0, 7, 0, 7),
            (RmwOp::Dec, 4, 9, 7, 0, 7),
            (RmwOp::Dec, 4, 3, 7, 0, 2),
            (RmwOp::Exch, 2, 1, 0x1_0002, 0, 2),
        ] {
            assert_eq!(
                op.apply(size, old, a, b),
                new,
                "{op:?} {size} {old:#x} {a:#x}"
            );
        }
    }
}
