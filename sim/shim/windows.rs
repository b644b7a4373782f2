//! Process memory that a registration opens to the NICs' DMA.
//!
//! Knows: when a range is opened and closed. Must not know: what for.
//!
//! One of the files of this crate with `unsafe`.

use std::sync::atomic::{AtomicU64, Ordering};

use warpverbs_sim_bus::Bus;
use warpverbs_sim_nic::{DmaRange, access};

use crate::errno::{Errno, Result};
use crate::sys;
use crate::world::{self, Missing};

/// Bytes that are pinned.
static PINNED: AtomicU64 = AtomicU64::new(0);

/// A range that is open. To be closed once nothing of the NIC uses it.
#[derive(Debug)]
pub(crate) struct Window {
    addr: u64,
    len: u64,
    /// The mapping that was made for it, of a dmabuf.
    mapping: Option<(u64, u64)>,
}

/// The rights that a UMEM of queues needs.
pub(crate) const QUEUES: u32 = access::LOCAL_WRITE;

impl Window {
    /// Opens `len` bytes of the program's memory at `addr`, as pinning does.
    pub(crate) fn open(bus: &Bus, addr: u64, len: u64, writable: bool) -> Result<Self> {
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let pinned = PINNED.load(Ordering::Relaxed);
        if pinned
            .checked_add(len)
            .is_none_or(|all| all > world::memlock())
        {
            return Err(Errno::NOMEM);
        }
        sys::populate(addr, len, writable)?;
        PINNED.fetch_add(len, Ordering::Relaxed);
        Ok(Self::over(bus, addr, len, None))
    }

    /// Opens `len` bytes of a dmabuf from byte `offset` on. A dmabuf is a memory file here.
    pub(crate) fn of_dmabuf(bus: &Bus, fd: i32, offset: u64, len: u64) -> Result<Self> {
        if world::lacks(Missing::Dmabuf) {
            return Err(Errno::OPNOTSUPP);
        }
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let size = sys::size_of_memory_file(fd)?;
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(Errno::INVAL);
        }
        let first = offset & !(sys::PAGE - 1);
        let room = offset - first + len;
        let base = sys::map_shared(fd, first, room)?;
        Ok(Self::over(
            bus,
            base + (offset - first),
            len,
            Some((base, room)),
        ))
    }

    fn over(bus: &Bus, addr: u64, len: u64, mapping: Option<(u64, u64)>) -> Self {
        // SAFETY: `HostWindows::open` demands that until it is closed
        // - the range stays allocated, readable and writable: it was mapped just now, or is the program's, which promises by
        //   registering it that it keeps the memory until it deregisters it, as to any RDMA device; pages that may
        //   only be read are opened without the right to write, and the NIC checks rights before it writes;
        // - nothing holds a Rust reference to its bytes, unless they are atomics or in an `UnsafeCell`: likewise.
        unsafe { bus.lock().host.open(addr, len) };
        Self { addr, len, mapping }
    }

    /// Closes it.
    pub(crate) fn close(self, bus: &Bus) {
        bus.lock().host.close(self.addr, self.len);
        match self.mapping {
            // Nobody else knows of the mapping.
            Some((base, len)) => sys::unmap(base, len),
            None => {
                PINNED.fetch_sub(self.len, Ordering::Relaxed);
            }
        }
    }

    /// The range as the NIC knows it; its first byte is named `iova`.
    pub(crate) fn range(&self, iova: u64) -> DmaRange {
        DmaRange {
            bus_addr: self.addr,
            len: self.len,
            iova,
        }
    }
}
