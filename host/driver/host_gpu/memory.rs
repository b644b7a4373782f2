//! Memory of a GPU that is this process: its allocations, and copies to and from them.
//!
//! Knows: what is allocated, and what a NIC still reaches.
//! Must not know: kernels.
//!
//! One of the files with `unsafe`: it allocates, and opens what it allocated to copies.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use warpverbs_sim_bus::{Bus, Fault, HostWindows};

use crate::driver::{DriverError, DriverErrorKind};

type Result<T> = std::result::Result<T, DriverError>;

/// Granularity of memory that can be exported: pages of 64 KiB.
pub(super) const PAGE: usize = 1 << 16;
/// Granularity of host-mapped memory: a line of its own.
const LINE: usize = 64;

/// Kinds of allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// GPU memory.
    Device,
    /// Host memory that the GPU addresses.
    HostMapped,
}

struct Allocation {
    kind: Kind,
    /// Bytes that were asked for.
    len: u64,
    block: Block,
}

/// A mapping of its own: pages of it that nobody touches take no memory, which no allocator promises of memory that is used
/// again. There is room in it to align its beginning.
#[derive(Clone, Copy)]
struct Block {
    start: usize,
    len: usize,
    /// Bytes in use, from the first aligned one on.
    used: u64,
}

/// The allocations, by address.
pub(super) struct Memory {
    bus: Arc<Bus>,
    live: BTreeMap<u64, Allocation>,
    /// Freed, but still open to a NIC's DMA or in a dmabuf when that was last looked at.
    kept: Vec<(u64, Block)>,
    /// Windows onto what is live: every copy goes through them.
    windows: HostWindows,
}

impl Memory {
    pub(super) fn new(bus: Arc<Bus>) -> Self {
        Self {
            bus,
            live: BTreeMap::new(),
            kept: Vec::new(),
            windows: HostWindows::default(),
        }
    }

    /// Allocates zeroes, and returns their address.
    pub(super) fn alloc(&mut self, call: &'static str, kind: Kind, len: u64) -> Result<u64> {
        let align = match kind {
            Kind::Device => PAGE,
            Kind::HostMapped => LINE,
        };
        let exhausted = || {
            let text = format!("no room for {len} bytes");
            DriverError::new(call, DriverErrorKind::Exhausted, text)
        };
        if len == 0 {
            let text = "an allocation of 0 bytes";
            return Err(DriverError::new(
                call,
                DriverErrorKind::InvalidArgument,
                text,
            ));
        }
        let (used, size) = usize::try_from(len)
            .ok()
            .and_then(|len| len.checked_next_multiple_of(align))
            .and_then(|used| Some((used, used.checked_add(align)?)))
            .ok_or_else(exhausted)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: `mmap` demands nothing of an anonymous mapping at an address of its own choice: it replaces no other, and
        // refuses a length that does not fit.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), size, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(exhausted());
        }
        let start = start.expose_provenance();
        let block = Block {
            start,
            len: size,
            used: used as u64,
        };
        // The mapping has room for it.
        let addr = start.next_multiple_of(align) as u64;
        // SAFETY: `HostWindows::open` demands that until it is closed
        // - the range stays allocated, readable and writable: `free` closes the window first;
        // - nothing holds a Rust reference to its bytes, and other threads access them atomically or not while a copy is
        //   made: addresses are all that leaves this file, kernels are the callers' (`Gpu::launch`), NICs' DMA is atomic.
        unsafe { self.windows.open(addr, block.used) };
        self.live.insert(addr, Allocation { kind, len, block });
        Ok(addr)
    }

    /// Frees an allocation.
    pub(super) fn free(&mut self, call: &'static str, kind: Kind, addr: u64) -> Result<()> {
        let block = match self.live.get(&addr) {
            Some(found) if found.kind == kind => found.block,
            _ => {
                let text = format!("{addr:#x} is no {kind:?} memory of this GPU");
                return Err(DriverError::new(call, DriverErrorKind::NotFound, text));
            }
        };
        self.live.remove(&addr);
        self.windows.close(addr, block.used);
        self.kept.push((addr, block));
        self.give_back();
        Ok(())
    }

    /// Returns what was freed to the process, as far as no NIC reaches it: as a dmabuf does, a registration keeps memory.
    fn give_back(&mut self) {
        let bus = self.bus.lock();
        self.kept.retain(|(addr, block)| {
            if bus.host.overlaps(*addr, block.used) || bus.dmabufs.overlaps(*addr, block.used) {
                return true;
            }
            // SAFETY: `munmap` demands that nothing uses the pages any more and that they are ours: `alloc` mapped them; `free`
            // and `drop` took them from what is live, each once; no window or dmabuf leads there. Kernels that use freed memory
            // break what `Gpu::launch` demands.
            let unmapped = unsafe {
                let start = std::ptr::with_exposed_provenance_mut(block.start);
                libc::munmap(start, block.len)
            };
            // Refused where a process may have no more mappings than it has (a hole makes one of two): kept, and tried again.
            unmapped != 0
        });
    }

    /// The allocation of GPU memory that a range lies in: its address.
    pub(super) fn holds(&self, addr: u64, len: u64) -> bool {
        self.live
            .range(..=addr)
            .next_back()
            .is_some_and(|(base, found)| {
                found.kind == Kind::Device
                    && len > 0
                    && addr
                        .checked_add(len)
                        .is_some_and(|end| end - base <= found.len)
            })
    }

    pub(super) fn read(&self, call: &'static str, addr: u64, bytes: &mut [u8]) -> Result<()> {
        self.windows
            .read(addr, bytes)
            .map_err(|fault| refused(call, &fault))
    }

    pub(super) fn write(&self, call: &'static str, addr: u64, bytes: &[u8]) -> Result<()> {
        self.windows
            .write(addr, bytes)
            .map_err(|fault| refused(call, &fault))
    }

    pub(super) fn load(&self, call: &'static str, addr: u64) -> Result<u64> {
        self.windows
            .load(addr, Ordering::Acquire)
            .map_err(|fault| refused(call, &fault))
    }

    pub(super) fn store(&self, call: &'static str, addr: u64, value: u64) -> Result<()> {
        self.windows
            .store(addr, value, Ordering::Release)
            .map_err(|fault| refused(call, &fault))
    }

    pub(super) fn store_u32(&self, call: &'static str, addr: u64, value: u32) -> Result<()> {
        self.windows
            .store_u32(addr, value, Ordering::Release)
            .map_err(|fault| refused(call, &fault))
    }

    /// What is allocated, one line each.
    pub(super) fn live(&self) -> impl Iterator<Item = String> + '_ {
        self.live
            .iter()
            .map(|(addr, found)| format!("GPU {:?} memory {addr:#x}", found.kind))
    }
}

impl Drop for Memory {
    /// What is still allocated goes too, unless a NIC reaches it: that is never given back.
    fn drop(&mut self) {
        for (addr, found) in std::mem::take(&mut self.live) {
            self.windows.close(addr, found.block.used);
            self.kept.push((addr, found.block));
        }
        self.give_back();
        if !self.kept.is_empty() {
            tracing::error!(
                allocations = self.kept.len(),
                "memory of the GPU stays allocated: it is registered with a NIC"
            );
        }
    }
}

fn refused(call: &'static str, fault: &Fault) -> DriverError {
    DriverError::new(call, DriverErrorKind::InvalidArgument, fault.to_string())
}
