//! Memory operations of threads: which address stands for what.
//!
//! Knows: state spaces and windows, and rule O4 (device registers take `st.mmio` only).
//! Must not know: how memory keeps its bytes.

use warpverbs_sim_bus::{Access, Agent, Fault, FaultKind, Order, Purpose, RmwOp, Space};

use super::Env;
use crate::ir::{Mem, MemSpace, Window};
use crate::run::state::Read;

/// Distance of two windows of the address map.
const WINDOW: u64 = Space::HostMapped.base() - Space::Device.base();
/// First address of kernel parameters as generic pointers see them.
pub(super) const PARAM_WINDOW: u64 = Space::Local.base() + WINDOW;

/// Where accesses come from.
#[derive(Clone, Copy)]
pub(super) struct Site {
    pub(super) agent: Agent,
    /// The instruction, by its number in the module.
    pub(super) pc: u32,
    /// The block's shared memory: address and bytes.
    pub(super) shared: (u64, u32),
    /// The thread's local memory: address and bytes.
    pub(super) local: (u64, u32),
}

/// What an address stands for.
enum Target {
    /// An address of `Memory`, and whether accesses to it count.
    Memory(u64, bool),
    /// Mapped device registers.
    Registers,
    /// Kernel parameters, by offset.
    Param(u64),
}

impl Site {
    /// The window that a generic address is in.
    pub(super) fn window_of(&self, addr: u64) -> Window {
        if addr >= PARAM_WINDOW && addr - PARAM_WINDOW < WINDOW {
            Window::Param
        } else if addr >= Space::Local.base() && addr < PARAM_WINDOW {
            Window::Local
        } else if addr >= Space::Shared.base() && addr < Space::Local.base() {
            Window::Shared
        } else {
            Window::Global
        }
    }

    #[inline]
    fn resolve(&self, space: MemSpace, addr: u64, len: u64) -> Result<Target, Fault> {
        match space {
            MemSpace::Generic | MemSpace::Global if addr < Space::MAPPED_REGISTERS => {
                Ok(Target::Memory(addr, true))
            }
            MemSpace::Generic => self.windows(addr, len),
            MemSpace::Global => match self.window_of(addr) {
                Window::Global => self.windows(addr, len),
                _ => Err(Fault::new(
                    FaultKind::Unmapped,
                    addr,
                    len,
                    "a global access to an address of shared, local or parameter memory",
                )),
            },
            MemSpace::Shared => part(self.shared, addr, len, "shared memory of the block")
                .map(|a| Target::Memory(a, true)),
            MemSpace::Local => part(self.local, addr, len, "local memory of the thread")
                .map(|a| Target::Memory(a, false)),
            MemSpace::Param => Ok(Target::Param(addr)),
        }
    }

    /// Generic addresses beyond global memory. Shared memory of another block and local memory of another thread exist
    /// in `Memory`, but a generic pointer does not reach them (PTX ISA, "Generic Addressing").
    #[cold]
    fn windows(&self, addr: u64, len: u64) -> Result<Target, Fault> {
        match self.window_of(addr) {
            Window::Shared => {
                let what = "shared memory of the block";
                part(self.shared, addr.wrapping_sub(self.shared.0), len, what)
                    .map(|a| Target::Memory(a, true))
            }
            Window::Local => {
                let what = "local memory of the thread";
                part(self.local, addr.wrapping_sub(self.local.0), len, what)
                    .map(|a| Target::Memory(a, false))
            }
            Window::Param => Ok(Target::Param(addr - PARAM_WINDOW)),
            Window::Global if addr < Space::Shared.base() => Ok(Target::Registers),
            Window::Global => Err(Fault::new(FaultKind::Unmapped, addr, len, "no object")),
        }
    }
}

/// The address of `len` bytes at `offset` of a range that belongs to the accessing thread.
fn part((start, size): (u64, u32), offset: u64, len: u64, what: &str) -> Result<u64, Fault> {
    if offset
        .checked_add(len)
        .is_some_and(|end| end <= u64::from(size))
    {
        return Ok(start + offset);
    }
    let detail = format!("offset {offset:#x} of {what}, which has {size} bytes");
    Err(Fault::new(
        FaultKind::OutOfBounds,
        start.wrapping_add(offset),
        len,
        detail,
    ))
}

#[inline]
fn access(site: &Site, m: Mem) -> Access {
    Access {
        agent: site.agent,
        order: m.order,
        scope: m.scope,
        purpose: Purpose::Instruction,
        site: site.pc,
    }
}

/// Loads one element; also tells whether it counts as a load.
#[inline]
pub(super) fn load(
    env: &mut Env<'_>,
    site: &Site,
    params: &[u8],
    addr: u64,
    m: Mem,
) -> Result<(u64, bool), Fault> {
    match site.resolve(m.space, addr, m.size.into())? {
        Target::Memory(addr, counts) => {
            let value = env.bus.memory.load(access(site, m), addr, m.size.into())?;
            Ok((value, counts))
        }
        Target::Param(offset) => {
            let len = u64::from(m.size);
            let inside = offset.is_multiple_of(len)
                && offset
                    .checked_add(len)
                    .is_some_and(|end| end <= params.len() as u64);
            if inside {
                Ok((param(params, offset as usize, m.size), false))
            } else {
                let detail = format!(
                    "offset {offset:#x} of {} bytes of kernel parameters",
                    params.len()
                );
                Err(Fault::new(FaultKind::OutOfBounds, addr, len, detail))
            }
        }
        Target::Registers => Err(register_fault(
            env,
            addr,
            m,
            "device registers cannot be loaded from",
        )),
    }
}

/// Stores one element; tells whether it counts as a store.
#[inline]
pub(super) fn store(
    env: &mut Env<'_>,
    site: &Site,
    addr: u64,
    m: Mem,
    value: u64,
) -> Result<bool, Fault> {
    match site.resolve(m.space, addr, m.size.into())? {
        Target::Memory(addr, counts) => {
            writable(env, addr, m)?;
            env.bus
                .memory
                .store(access(site, m), addr, m.size.into(), value)?;
            // Local memory is nobody else's: spilling a register is no progress.
            env.wrote |= counts;
            Ok(counts)
        }
        Target::Param(_) => Err(read_only(addr, m, "kernel parameters")),
        Target::Registers if m.order != Order::Mmio => Err(register_fault(
            env,
            addr,
            m,
            "a store to device registers must be `st.mmio.relaxed.sys` (rule O4; PTX ISA, \"st\": only `.mmio` keeps number and size of accesses)",
        )),
        Target::Registers => {
            let size = usize::from(m.size);
            if !addr.is_multiple_of(u64::from(m.size)) {
                return Err(Fault::new(
                    FaultKind::Misaligned,
                    addr,
                    m.size.into(),
                    env.registers.describe(addr),
                ));
            }
            let bus_addr = env.registers.translate(addr, m.size.into())?;
            let bytes = value.to_le_bytes();
            env.bus.mmio_store(
                access(site, m),
                bus_addr,
                bytes.get(..size).unwrap_or(&bytes),
            )?;
            env.wrote = true;
            env.rang = true;
            Ok(true)
        }
    }
}

/// Performs an atomic and returns the old value.
pub(super) fn rmw(
    env: &mut Env<'_>,
    site: &Site,
    addr: u64,
    m: Mem,
    op: RmwOp,
    a: u64,
    b: u64,
) -> Result<u64, Fault> {
    match site.resolve(m.space, addr, m.size.into())? {
        Target::Memory(addr, _) => {
            writable(env, addr, m)?;
            let old = env
                .bus
                .memory
                .rmw(access(site, m), addr, m.size.into(), op, a, b)?;
            // A failed compare-and-swap is a poll.
            env.wrote |= op != RmwOp::Cas || old == a;
            Ok(old)
        }
        Target::Param(_) => Err(read_only(addr, m, "kernel parameters")),
        Target::Registers => Err(register_fault(
            env,
            addr,
            m,
            "device registers take no atomics",
        )),
    }
}

/// Checks the alignment of a whole vector (PTX ISA, "Vectors as Operands").
#[inline]
pub(super) fn aligned(env: &Env<'_>, addr: u64, size: u8, len: usize) -> Result<(), Fault> {
    let bytes = u64::from(size) * len as u64;
    if addr.is_multiple_of(bytes) {
        Ok(())
    } else {
        let detail = env.bus.memory.describe(addr);
        Err(Fault::new(FaultKind::Misaligned, addr, bytes, detail))
    }
}

#[inline]
fn writable(env: &Env<'_>, addr: u64, m: Mem) -> Result<(), Fault> {
    if env.read_only.is_empty() {
        return Ok(());
    }
    let after = env.read_only.partition_point(|(start, _)| *start <= addr);
    match after.checked_sub(1).and_then(|i| env.read_only.get(i)) {
        Some((_, end)) if addr < *end => Err(read_only(addr, m, &env.bus.memory.describe(addr))),
        _ => Ok(()),
    }
}

#[cold]
fn read_only(addr: u64, m: Mem, what: &str) -> Fault {
    let detail = format!("{what} is read-only");
    Fault::new(FaultKind::Refused, addr, m.size.into(), detail)
}

#[cold]
fn register_fault(env: &Env<'_>, addr: u64, m: Mem, why: &str) -> Fault {
    // A mapping that ended says more than the kind of access.
    match env.registers.translate(addr, m.size.into()) {
        Err(fault) => fault,
        Ok(_) => {
            let detail = format!("{}: {why}", env.registers.describe(addr));
            Fault::new(FaultKind::Refused, addr, m.size.into(), detail)
        }
    }
}

/// A loaded value as its register holds it: sign-extended from `size` bytes to `extend` bits if that is not 0.
#[inline]
pub(super) fn extend(value: u64, size: u8, extend: u8) -> u64 {
    if extend == 0 {
        return value;
    }
    let (from, to) = (64 - 8 * u32::from(size), 64 - u32::from(extend));
    (((value << from) as i64 >> from) as u64) << to >> to
}

/// Remembers what a thread polls. A strong load is never forgotten for a weak one: a wait that is right polls strongly.
#[inline]
pub(super) fn note(last: &mut Option<Read>, pc: u32, addr: u64, value: u64, order: Order) {
    let strong = !matches!(order, Order::Weak | Order::NonCoherent);
    if strong || last.is_none_or(|read| !read.strong) {
        *last = Some(Read {
            pc,
            addr,
            value,
            strong,
        });
    }
}

/// Bytes of a parameter buffer as a scalar. Offsets were checked when the module was decoded.
pub(super) fn param(params: &[u8], at: usize, size: u8) -> u64 {
    let mut value = [0; 8];
    let size = usize::from(size).min(8);
    if let (Some(from), Some(to)) = (params.get(at..at + size), value.get_mut(..size)) {
        to.copy_from_slice(from);
    }
    u64::from_le_bytes(value)
}

pub(super) fn set_param(params: &mut [u8], at: usize, size: u8, value: u64) {
    let size = usize::from(size).min(8);
    let bytes = value.to_le_bytes();
    if let (Some(to), Some(from)) = (params.get_mut(at..at + size), bytes.get(..size)) {
        to.copy_from_slice(from);
    }
}
