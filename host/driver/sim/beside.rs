//! The simulated GPU beside NICs of the system: memory that is files, which a NIC imports as dmabufs, and doorbell pages that
//! are the system's.
//!
//! Knows: where an address of the GPU lies in this process. Must not know: PTX, or which NIC is beside it.
//!
//! The NICs run by themselves and in real time, and access the memory through mappings of their own. So every access here is
//! atomic (`HostWindows`), and what a seed replays is the GPU's choices alone. A simulated NIC takes a memory file for a
//! dmabuf; a real one does not.
//!
//! One of the files with `unsafe`: memory of files, and stores to the system's doorbell pages.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warpverbs_sim_bus::{
    Access, Agent, Device, Dma, Fault, FaultKind, FenceKind, HostWindows, Memory, RmwOp, Scope,
    Space, Step,
};
use warpverbs_sim_gpu::{FastMemory, POISON};

/// Pages of memory, as of a GPU.
const PAGE: u64 = 1 << 16;
/// Addresses between two allocations, so that an overrun hits none.
const GAP: u64 = PAGE;
/// Bytes of a doorbell page.
const DOORBELLS: u64 = 4096;
/// Records of freed allocations that are kept, beyond as many as live.
const TOMBSTONES: usize = 4096;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A mapped file, unmapped when it is dropped.
struct Mapped {
    file: OwnedFd,
    addr: u64,
    len: u64,
}

impl Mapped {
    /// `len` bytes, whole pages, that hold [`POISON`].
    fn new(len: u64) -> io::Result<Self> {
        // SAFETY: it reads a string and returns a new descriptor, or an error.
        let fd = unsafe { libc::memfd_create(c"simulated GPU memory".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `from_raw_fd` demands a descriptor that is nobody else's: it was made just now.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        let size = usize::try_from(len).map_err(io::Error::other)?;
        let bytes = i64::try_from(len).map_err(io::Error::other)?;
        // SAFETY: it takes numbers.
        if unsafe { libc::ftruncate(fd, bytes) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let addr =
            unsafe { libc::mmap(std::ptr::null_mut(), size, rights, libc::MAP_SHARED, fd, 0) };
        if addr == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping has `size` bytes, and nobody else knows of it yet.
        unsafe { std::ptr::write_bytes(addr.cast::<u8>(), POISON, size) };
        Ok(Self {
            file,
            addr: addr as usize as u64,
            len,
        })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's; no window is open on it any more, and NICs have mappings of their own.
        unsafe { libc::munmap(self.addr as usize as *mut libc::c_void, self.len as usize) };
    }
}

/// An allocation of GPU memory; without a mapping it was freed.
struct Object {
    len: u64,
    label: String,
    mapped: Option<Mapped>,
}

/// GPU memory in files.
#[derive(Default)]
pub(super) struct Arena {
    objects: BTreeMap<u64, Object>,
    /// Bytes of addresses that were handed out.
    next: u64,
    dead: usize,
    windows: HostWindows,
}

impl Arena {
    fn alloc(&mut self, len: u64, align: u64, label: &str) -> Result<u64, Fault> {
        let full = |detail: String| Err(Fault::new(FaultKind::OutOfMemory, 0, len, detail));
        let room = Space::HostMapped.base() - Space::Device.base();
        let place = (|| {
            let size = len.checked_next_multiple_of(PAGE)?;
            let start = self.next.checked_next_multiple_of(align.max(PAGE))?;
            let end = start.checked_add(size)?.checked_add(GAP)?;
            (len > 0 && align.is_power_of_two() && end <= room).then_some((start, size, end))
        })();
        let Some((start, size, end)) = place else {
            return full("no such room in the address space".into());
        };
        let mapped = match Mapped::new(size) {
            Ok(mapped) => mapped,
            Err(error) => return full(format!("no file of that size: {error}")),
        };
        // SAFETY: `HostWindows::open` demands that until it is closed
        // - the range stays allocated, readable and writable: it is mapped until the object is freed, which closes it before;
        // - nothing holds a Rust reference to its bytes: this file makes none, and NICs access it through mappings of
        //   their own, atomically.
        unsafe { self.windows.open(mapped.addr, mapped.len) };
        self.next = end;
        let base = Space::Device.base() + start;
        let object = Object {
            len,
            label: label.to_owned(),
            mapped: Some(mapped),
        };
        self.objects.insert(base, object);
        Ok(base)
    }

    fn free(&mut self, addr: u64) -> Result<(), Fault> {
        let freed = self
            .objects
            .get_mut(&addr)
            .and_then(|object| object.mapped.take());
        let Some(mapped) = freed else {
            let detail = format!("no allocation begins there: {}", self.describe(addr));
            return Err(Fault::new(FaultKind::Freed, addr, 0, detail));
        };
        self.windows.close(mapped.addr, mapped.len);
        self.dead += 1;
        // The oldest records are forgotten.
        if self.dead > self.objects.len() / 2 + TOMBSTONES {
            self.objects.retain(|_, object| object.mapped.is_some());
            self.dead = 0;
        }
        Ok(())
    }

    fn object(&self, addr: u64) -> Option<(u64, &Object)> {
        let (base, object) = self.objects.range(..=addr).next_back()?;
        Some((*base, object))
    }

    /// Where `len` bytes lie in this process.
    fn host(&self, addr: u64, len: u64) -> Result<u64, Fault> {
        let fault = |kind| Err(Fault::new(kind, addr, len, self.describe(addr)));
        let Some((base, object)) = self.object(addr) else {
            return fault(FaultKind::Unmapped);
        };
        let offset = addr - base;
        let inside = offset.checked_add(len).is_some_and(|end| end <= object.len);
        match &object.mapped {
            Some(mapped) if inside => Ok(mapped.addr + offset),
            Some(_) if offset < object.len + GAP => fault(FaultKind::OutOfBounds),
            None if offset < object.len => fault(FaultKind::Freed),
            _ => fault(FaultKind::Unmapped),
        }
    }

    fn scalar(&self, addr: u64, size: u32) -> Result<u64, Fault> {
        if !matches!(size, 1 | 2 | 4 | 8) || addr & u64::from(size - 1) != 0 {
            let detail = self.describe(addr);
            return Err(Fault::new(FaultKind::Misaligned, addr, size.into(), detail));
        }
        self.host(addr, size.into())
    }

    fn describe(&self, addr: u64) -> String {
        match self.object(addr) {
            Some((base, object)) => format!(
                "byte {:#x} of {} ({} bytes{})",
                addr - base,
                object.label,
                object.len,
                if object.mapped.is_some() {
                    ""
                } else {
                    ", freed"
                }
            ),
            None => "no GPU memory".into(),
        }
    }

    /// A descriptor of the file behind `len` bytes, which the caller closes, and where they begin in it.
    pub(super) fn export(&self, addr: u64, len: u64) -> Result<(i32, u64), Fault> {
        let host = self.host(addr, len)?;
        let mapped = self
            .object(addr)
            .and_then(|(_, object)| object.mapped.as_ref());
        let Some(mapped) = mapped.filter(|_| len > 0) else {
            let detail = self.describe(addr);
            return Err(Fault::new(FaultKind::OutOfBounds, addr, len, detail));
        };
        // SAFETY: it takes numbers and returns a new descriptor, or an error.
        let fd = unsafe { libc::fcntl(mapped.file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 0) };
        if fd < 0 {
            let detail = io::Error::last_os_error().to_string();
            return Err(Fault::new(FaultKind::OutOfMemory, addr, len, detail));
        }
        Ok((fd, host - mapped.addr))
    }
}

/// Closes a descriptor of [`Arena::export`].
pub(super) fn close(fd: i32) -> io::Result<()> {
    // SAFETY: it takes a number; the caller has it from `export`, once.
    if unsafe { libc::close(fd) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The bus's memory: the GPU's in files, all other as always.
pub(super) struct SharedMemory {
    pub(super) arena: Arc<Mutex<Arena>>,
    other: FastMemory,
}

impl SharedMemory {
    pub(super) fn new() -> Self {
        Self {
            arena: Arc::default(),
            other: FastMemory::new(),
        }
    }
}

/// True of addresses of GPU memory.
fn is_device(addr: u64) -> bool {
    (Space::Device.base()..Space::HostMapped.base()).contains(&addr)
}

impl Memory for SharedMemory {
    fn alloc(&mut self, space: Space, len: u64, align: u64, label: &str) -> Result<u64, Fault> {
        match space {
            Space::Device => locked(&self.arena).alloc(len, align, label),
            other => self.other.alloc(other, len, align, label),
        }
    }

    fn free(&mut self, addr: u64) -> Result<(), Fault> {
        if is_device(addr) {
            locked(&self.arena).free(addr)
        } else {
            self.other.free(addr)
        }
    }

    fn load(&mut self, access: Access, addr: u64, size: u32) -> Result<u64, Fault> {
        if !is_device(addr) {
            return self.other.load(access, addr, size);
        }
        let arena = locked(&self.arena);
        let host = arena.scalar(addr, size)?;
        let mut bytes = [0; 8];
        if let Some(bytes) = bytes.get_mut(..size as usize) {
            arena.windows.read(host, bytes)?;
        }
        Ok(u64::from_le_bytes(bytes))
    }

    fn store(&mut self, access: Access, addr: u64, size: u32, value: u64) -> Result<(), Fault> {
        if !is_device(addr) {
            return self.other.store(access, addr, size, value);
        }
        let arena = locked(&self.arena);
        let host = arena.scalar(addr, size)?;
        let bytes = value.to_le_bytes();
        let bytes = bytes.get(..size as usize).unwrap_or_default();
        arena.windows.write(host, bytes)
    }

    fn rmw(
        &mut self,
        access: Access,
        addr: u64,
        size: u32,
        op: RmwOp,
        a: u64,
        b: u64,
    ) -> Result<u64, Fault> {
        if !is_device(addr) {
            return self.other.rmw(access, addr, size, op, a, b);
        }
        let arena = locked(&self.arena);
        let host = arena.scalar(addr, size)? as usize;
        let apply = |old: u64| Some(op.apply(size, old, a, b));
        let (set, get) = (Ordering::AcqRel, Ordering::Acquire);
        // SAFETY: each `from_ptr` demands memory that is aligned, mapped and accessed atomically while the reference lives: it was
        // found in a live object, `scalar` has seen that it is aligned, and the arena is locked.
        let old = unsafe {
            match size {
                8 => AtomicU64::from_ptr(host as *mut u64)
                    .fetch_update(set, get, apply)
                    .ok(),
                4 => AtomicU32::from_ptr(host as *mut u32)
                    .fetch_update(set, get, |old| apply(old.into()).map(|new| new as u32))
                    .map(u64::from)
                    .ok(),
                2 => AtomicU16::from_ptr(host as *mut u16)
                    .fetch_update(set, get, |old| apply(old.into()).map(|new| new as u16))
                    .map(u64::from)
                    .ok(),
                _ => AtomicU8::from_ptr(host as *mut u8)
                    .fetch_update(set, get, |old| apply(old.into()).map(|new| new as u8))
                    .map(u64::from)
                    .ok(),
            }
        };
        // An update is never refused.
        Ok(old.unwrap_or(0))
    }

    fn fence(&mut self, agent: Agent, kind: FenceKind, scope: Scope) {
        // GPU threads' fences order their accesses for NICs, which are other threads.
        fence(Ordering::SeqCst);
        self.other.fence(agent, kind, scope);
    }

    fn read(&mut self, access: Access, addr: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        if !is_device(addr) {
            return self.other.read(access, addr, bytes);
        }
        let arena = locked(&self.arena);
        let host = arena.host(addr, bytes.len() as u64)?;
        arena.windows.read(host, bytes)
    }

    fn write(&mut self, access: Access, addr: u64, bytes: &[u8]) -> Result<(), Fault> {
        if !is_device(addr) {
            return self.other.write(access, addr, bytes);
        }
        let arena = locked(&self.arena);
        let host = arena.host(addr, bytes.len() as u64)?;
        arena.windows.write(host, bytes)
    }

    fn describe(&self, addr: u64) -> String {
        if is_device(addr) {
            locked(&self.arena).describe(addr)
        } else {
            self.other.describe(addr)
        }
    }
}

/// The system's doorbell pages as a device of the GPU's bus: a store goes on to the page.
#[derive(Default)]
pub(super) struct Doorbells {
    /// CPU addresses, by place in the BAR.
    pages: Vec<u64>,
}

impl Doorbells {
    /// The place of a page, as its byte offset in the BAR. Places of pages that are none any more, as `is_page` says, are used
    /// again: no GPU has them mapped.
    pub(super) fn place(&mut self, page: u64, is_page: impl Fn(u64) -> bool) -> u64 {
        let known = self.pages.iter().position(|used| *used == page);
        let place = known.or_else(|| self.pages.iter().position(|used| !is_page(*used)));
        let place = place.unwrap_or_else(|| {
            self.pages.push(page);
            self.pages.len() - 1
        });
        if let Some(used) = self.pages.get_mut(place) {
            *used = page;
        }
        place as u64 * DOORBELLS
    }
}

impl Device for Doorbells {
    fn name(&self) -> &str {
        "doorbell pages"
    }

    fn step(&mut self, _: &mut dyn Dma) -> Step {
        Step::Idle
    }

    fn mmio_write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        let len = bytes.len() as u64;
        let page = self.pages.get((offset / DOORBELLS) as usize).copied();
        let Some(page) = page else {
            let detail = "no doorbell page";
            return Err(Fault::new(FaultKind::Unmapped, offset, len, detail));
        };
        if len == 0 || !offset.is_multiple_of(len) {
            let detail = "a store to a doorbell page";
            return Err(Fault::new(FaultKind::Misaligned, offset, len, detail));
        }
        let to = (page + offset % DOORBELLS) as usize;
        // Before the doorbell comes what it is about (rule O3's fence was the GPU thread's own).
        fence(Ordering::SeqCst);
        // SAFETY: each store demands an address that is aligned and mapped: the page is a NIC's, which its owner keeps while it is
        // mapped into the GPU, and an aligned store of a power of two ends within it. Others that store to it store atomically.
        unsafe {
            if let Ok(bytes) = <[u8; 8]>::try_from(bytes) {
                let value = u64::from_ne_bytes(bytes);
                AtomicU64::from_ptr(to as *mut u64).store(value, Ordering::Release);
            } else if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
                let value = u32::from_ne_bytes(bytes);
                AtomicU32::from_ptr(to as *mut u32).store(value, Ordering::Release);
            } else if let Ok(bytes) = <[u8; 2]>::try_from(bytes) {
                let value = u16::from_ne_bytes(bytes);
                AtomicU16::from_ptr(to as *mut u16).store(value, Ordering::Release);
            } else if let [byte] = bytes {
                AtomicU8::from_ptr(to as *mut u8).store(*byte, Ordering::Release);
            } else {
                let detail = "a store of a width that no instruction has";
                return Err(Fault::new(FaultKind::Refused, offset, len, detail));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COPY: Access = Access::HOST_COPY;

    #[test]
    fn memory_is_what_the_file_holds_and_bounds_are_kept() {
        let mut memory = SharedMemory::new();
        let a = memory.alloc(Space::Device, 100, 8, "a").unwrap();
        let b = memory.alloc(Space::Device, 1 << 17, 8, "b").unwrap();
        assert!(a.is_multiple_of(PAGE) && b >= a + PAGE + GAP);
        assert_eq!(memory.load(COPY, a, 1).unwrap(), u64::from(POISON));
        for size in [1, 2, 4, 8] {
            memory
                .store(COPY, a + 8, size, 0x1122_3344_5566_7788)
                .unwrap();
            let mask = u64::MAX >> (64 - 8 * size);
            let found = memory.load(COPY, a + 8, size).unwrap();
            assert_eq!(found, 0x1122_3344_5566_7788 & mask);
            let old = memory.rmw(COPY, a + 8, size, RmwOp::Add, 1, 0).unwrap();
            assert_eq!(old, found);
            let now = memory.load(COPY, a + 8, size).unwrap();
            assert_eq!(now, found.wrapping_add(1) & mask);
        }
        memory.write(COPY, b + 70_000, &[9; 1000]).unwrap();
        let (fd, offset) = locked(&memory.arena).export(b + 70_000, 1000).unwrap();
        let mut bytes = [0u8; 1000];
        // SAFETY: it writes into the buffer, not beyond its length.
        let read =
            unsafe { libc::pread(fd, bytes.as_mut_ptr().cast(), bytes.len(), offset as i64) };
        assert_eq!((read, bytes), (1000, [9; 1000]));
        close(fd).unwrap();
        let kind = |result: Result<u64, Fault>| result.unwrap_err().kind;
        assert_eq!(kind(memory.load(COPY, a + 100, 1)), FaultKind::OutOfBounds);
        assert_eq!(kind(memory.load(COPY, a + 96, 8)), FaultKind::OutOfBounds);
        assert_eq!(kind(memory.load(COPY, a + 4, 8)), FaultKind::Misaligned);
        assert_eq!(
            kind(memory.load(COPY, b + (1 << 40), 8)),
            FaultKind::Unmapped
        );
        memory.free(a).unwrap();
        assert_eq!(kind(memory.load(COPY, a, 8)), FaultKind::Freed);
        assert!(memory.free(a).is_err() && locked(&memory.arena).export(a, 8).is_err());
        let c = memory.alloc(Space::Device, 8, 8, "c").unwrap();
        assert!(c > b, "addresses are not used again");
        // Other spaces are as always.
        let word = memory.alloc(Space::HostMapped, 8, 8, "word").unwrap();
        memory.store(COPY, word, 8, 5).unwrap();
        assert_eq!(memory.load(COPY, word, 8).unwrap(), 5);
        memory.free(word).unwrap();
    }

    #[test]
    fn a_store_reaches_the_page_with_its_width() {
        let page = Mapped::new(PAGE).unwrap();
        let mut doorbells = Doorbells::default();
        let (first, second) = (page.addr, page.addr + DOORBELLS);
        assert_eq!(doorbells.place(first, |_| true), 0);
        assert_eq!(doorbells.place(second, |_| true), DOORBELLS);
        assert_eq!(doorbells.place(first, |_| false), 0);
        let second = DOORBELLS;
        doorbells
            .mmio_write(second + 0x800, &7u64.to_ne_bytes())
            .unwrap();
        doorbells.mmio_write(second + 0x20, &[1, 2, 3, 4]).unwrap();
        let word = |offset: u64| {
            // SAFETY: the page is mapped, and accessed atomically.
            unsafe { AtomicU64::from_ptr((page.addr + offset) as usize as *mut u64) }
                .load(Ordering::Relaxed)
                .to_le_bytes()
        };
        assert_eq!(word(DOORBELLS + 0x800), 7u64.to_ne_bytes());
        let rest = POISON;
        assert_eq!(word(DOORBELLS + 0x20), [1, 2, 3, 4, rest, rest, rest, rest]);
        for (offset, bytes) in [
            (second + 4, &[0; 8][..]),
            (2 * DOORBELLS, &[0; 8]),
            (8, &[0; 3]),
        ] {
            assert!(doorbells.mmio_write(offset, bytes).is_err());
        }
        // The first is gone: its place is another's.
        assert_eq!(doorbells.place(7, |used| used != first), 0);
    }
}
