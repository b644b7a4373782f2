//! Process memory that a registration opens to the NICs' DMA.
//!
//! Knows: when a range is opened and closed. Must not know: what for.
//!
//! One of the files of this crate with `unsafe`.

use std::sync::atomic::{AtomicU64, Ordering};

use warpverbs_sim_bus::{Bus, BusState, Region, region_of};
use warpverbs_sim_nic::{DmaRange, access};

use crate::errno::{Errno, Result};
use crate::sys;
use crate::world::{self, Missing, Nic};

/// Bytes that are pinned.
static PINNED: AtomicU64 = AtomicU64::new(0);

/// A range that is open. To be closed once nothing of the NIC uses it.
#[derive(Debug)]
pub(crate) struct Window {
    addr: u64,
    len: u64,
    of: Of,
}

/// Whose memory a window is onto.
#[derive(Debug)]
enum Of {
    /// The program's, pinned.
    Program,
    /// A dmabuf's, in a mapping that was made for it.
    Mapping { base: u64, len: u64 },
    /// A simulated GPU's on the NIC's bus: it needs no window.
    Bus,
    /// Memory of this process that is exported as a GPU's on the NIC's bus.
    Exported,
}

/// The rights that a UMEM of queues needs.
pub(crate) const QUEUES: u32 = access::LOCAL_WRITE;

impl Window {
    /// Opens `len` bytes of the program's memory at `addr`, as pinning does. To a lent NIC's program the host's memory of a
    /// simulated GPU on its bus is its own too.
    pub(crate) fn open(nic: &Nic<'_>, addr: u64, len: u64, writable: bool) -> Result<Self> {
        if len == 0 {
            return Err(Errno::INVAL);
        }
        if matches!(nic, Nic::Lent(_)) && region_of(addr) == Region::Simulated {
            let of = Of::Bus;
            return Ok(Self { addr, len, of });
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
        Ok(Self::over(&mut nic.bus().lock(), addr, len, Of::Program))
    }

    /// Opens `len` bytes of a dmabuf from byte `offset` on: one that a GPU on the NIC's bus has exported, or any memory file.
    pub(crate) fn of_dmabuf(nics: &Bus, fd: i32, offset: u64, len: u64) -> Result<Self> {
        if world::lacks(Missing::Dmabuf) {
            return Err(Errno::OPNOTSUPP);
        }
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let mut bus = nics.lock();
        if let Some((base, size)) = bus.dmabufs.resolve(fd) {
            if offset.checked_add(len).is_none_or(|end| end > size) {
                return Err(Errno::INVAL);
            }
            let addr = base + offset;
            return Ok(match region_of(addr) {
                Region::Host => Self::over(&mut bus, addr, len, Of::Exported),
                _ => Self {
                    addr,
                    len,
                    of: Of::Bus,
                },
            });
        }
        drop(bus);
        let size = sys::size_of_memory_file(fd)?;
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(Errno::INVAL);
        }
        let first = offset & !(sys::PAGE - 1);
        let room = offset - first + len;
        let base = sys::map_shared(fd, first, room)?;
        Ok(Self::over(
            &mut nics.lock(),
            base + (offset - first),
            len,
            Of::Mapping { base, len: room },
        ))
    }

    fn over(bus: &mut BusState, addr: u64, len: u64, of: Of) -> Self {
        // SAFETY: `HostWindows::open` demands that until it is closed
        // - the range stays allocated, readable and writable: it was mapped just now, or is the program's, which promises by
        //   registering it that it keeps the memory until it deregisters it, as to any RDMA device, or is exported as a GPU's
        //   and stays allocated while a dmabuf or a window covers it (the bus is locked while the dmabuf is known to be open); pages that may
        //   only be read are opened without the right to write, and the NIC checks rights before it writes;
        // - nothing holds a Rust reference to its bytes, unless they are atomics or in an `UnsafeCell`: likewise.
        unsafe { bus.host.open(addr, len) };
        Self { addr, len, of }
    }

    /// Closes it.
    pub(crate) fn close(self, bus: &Bus) {
        if !matches!(self.of, Of::Bus) {
            bus.lock().host.close(self.addr, self.len);
        }
        match self.of {
            // Nobody else knows of the mapping.
            Of::Mapping { base, len } => sys::unmap(base, len),
            Of::Program => {
                PINNED.fetch_sub(self.len, Ordering::Relaxed);
            }
            Of::Bus | Of::Exported => {}
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
