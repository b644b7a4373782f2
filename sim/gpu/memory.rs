//! Simulated memory as flat bytes: every access sees the latest store.
//!
//! Knows: objects with bounds, liveness and labels.
//! Must not know: instructions, threads, or memory orders (it is sequentially consistent).
//!
//! Addresses are handed out upwards and never again, so an access through a stale address always finds the freed
//! object's record, or nothing. A gap follows each object. Fresh bytes hold [`POISON`].

use warpverbs_sim_bus::{Access, Agent, Fault, FaultKind, FenceKind, Memory, RmwOp, Scope, Space};

/// What uninitialised bytes hold.
pub const POISON: u8 = 0xa5;
/// Addresses between an object's end and the next one, so that a small overrun hits no other object.
const GAP: u64 = 256;
/// Distance of two spaces.
const SPACE_SIZE: u64 = Space::HostMapped.base() - Space::Device.base();
/// Spaces in the address map, in order of their bases.
const SPACES: usize = 5;
/// Bytes that may be allocated at a time, of the process's memory: an unreasonable request fails here and not there.
const CAPACITY: u64 = 8 << 30;
/// Freed objects whose record is kept, beyond as many as are live.
const TOMBSTONES: usize = 4096;
/// Entries of the lookup cache.
const CACHE: usize = 4096;
/// Addresses that share a cache entry.
const CACHE_GRAIN: u32 = 12;

struct Object {
    base: u64,
    len: u64,
    live: bool,
    bytes: Vec<u8>,
    label: String,
}

impl Object {
    fn contains(&self, addr: u64) -> bool {
        addr.wrapping_sub(self.base) < self.len
    }
}

#[derive(Default)]
struct SpaceState {
    /// Sorted by base.
    objects: Vec<Object>,
    next: u64,
    dead: usize,
}

/// Flat simulated memory.
pub struct FastMemory {
    spaces: [SpaceState; SPACES],
    /// Index of the object last found for an address, by space and low bits of its grain.
    cache: Box<[u32; CACHE]>,
    allocated: u64,
}

impl Default for FastMemory {
    fn default() -> Self {
        Self::new()
    }
}

impl FastMemory {
    /// Empty memory.
    pub fn new() -> Self {
        Self {
            spaces: Default::default(),
            cache: Box::new([0; CACHE]),
            allocated: 0,
        }
    }

    #[inline]
    fn cache_slot(space: usize, addr: u64) -> usize {
        ((addr >> CACHE_GRAIN) as usize ^ (space << 9)) % CACHE
    }

    /// The bytes of `[addr, addr + len)`, all of one live object.
    #[inline]
    fn bytes(&mut self, addr: u64, len: u64) -> Result<&mut [u8], Fault> {
        let space = (addr.wrapping_sub(Space::Device.base()) / SPACE_SIZE) as usize;
        if space >= SPACES {
            return Err(Fault::new(
                FaultKind::Unmapped,
                addr,
                len,
                "outside simulated memory",
            ));
        }
        let slot = Self::cache_slot(space, addr);
        let mut index = self.cache[slot] as usize;
        let hit = self.spaces[space]
            .objects
            .get(index)
            .is_some_and(|o| o.contains(addr));
        if !hit {
            index = self.spaces[space].find(addr);
            self.cache[slot] = index as u32;
        }
        let from = match self.spaces[space].objects.get(index) {
            Some(object)
                if object.contains(addr)
                    && object.live
                    && len <= object.len - (addr - object.base) =>
            {
                (addr - object.base) as usize
            }
            _ => return Err(self.explain(addr, len)),
        };
        // A live object's bytes are as many as its length says, and the range was checked against that.
        Ok(&mut self.spaces[space].objects[index].bytes[from..from + len as usize])
    }

    /// Fails as an access to these bytes would.
    pub(crate) fn check(&mut self, addr: u64, len: u64) -> Result<(), Fault> {
        self.bytes(addr, len).map(|_| ())
    }

    /// Eight bytes at a multiple of eight; bytes outside an object are 0.
    pub(crate) fn word(&mut self, addr: u64) -> u64 {
        if let Ok(bytes) = self.bytes(addr, 8) {
            return get(bytes);
        }
        (0..8).fold(0, |word, n| match self.bytes(addr + n, 1) {
            Ok(byte) => word | get(byte) << (8 * n),
            Err(_) => word,
        })
    }

    /// Changes those of eight bytes that the mask names.
    pub(crate) fn put_word(&mut self, addr: u64, value: u64, mask: u8) {
        if mask == 0xff
            && let Ok(bytes) = self.bytes(addr, 8)
        {
            put(bytes, value);
            return;
        }
        for n in (0..8).filter(|n| mask >> n & 1 == 1) {
            if let Ok(byte) = self.bytes(addr + n, 1) {
                put(byte, value >> (8 * n));
            }
        }
    }

    /// Says what is wrong with an access that cannot be made.
    #[cold]
    fn explain(&self, addr: u64, len: u64) -> Fault {
        let kind = match self.object(addr) {
            Some(object) if object.contains(addr) && !object.live => FaultKind::Freed,
            Some(object) if object.contains(addr) => FaultKind::OutOfBounds,
            // Just behind an object: an overrun of it.
            Some(object) if object.live && addr - object.base - object.len < GAP => {
                FaultKind::OutOfBounds
            }
            _ => FaultKind::Unmapped,
        };
        Fault::new(kind, addr, len, self.describe(addr))
    }

    /// The object at `addr`, or the last one before it in its space.
    fn object(&self, addr: u64) -> Option<&Object> {
        let space = addr.checked_sub(Space::Device.base())? / SPACE_SIZE;
        let space = self.spaces.get(space as usize)?;
        space
            .objects
            .get(space.find(addr))
            .filter(|o| o.base <= addr)
    }

    #[inline]
    fn scalar(&mut self, addr: u64, size: u32) -> Result<&mut [u8], Fault> {
        if !matches!(size, 1 | 2 | 4 | 8) || addr & u64::from(size - 1) != 0 {
            let detail = self.describe(addr);
            return Err(Fault::new(FaultKind::Misaligned, addr, size.into(), detail));
        }
        self.bytes(addr, size.into())
    }
}

impl SpaceState {
    /// Index of the last object that begins at or below `addr`.
    fn find(&self, addr: u64) -> usize {
        self.objects
            .partition_point(|o| o.base <= addr)
            .saturating_sub(1)
    }
}

#[inline]
fn get(bytes: &[u8]) -> u64 {
    // One fixed-size copy a width: the compiler turns each into one load.
    if let Ok(b) = <[u8; 8]>::try_from(bytes) {
        u64::from_le_bytes(b)
    } else if let Ok(b) = <[u8; 4]>::try_from(bytes) {
        u64::from(u32::from_le_bytes(b))
    } else if let Ok(b) = <[u8; 2]>::try_from(bytes) {
        u64::from(u16::from_le_bytes(b))
    } else {
        bytes.first().copied().map_or(0, u64::from)
    }
}

#[inline]
fn put(bytes: &mut [u8], value: u64) {
    match bytes.len() {
        8 => bytes.copy_from_slice(&value.to_le_bytes()),
        4 => bytes.copy_from_slice(&(value as u32).to_le_bytes()),
        2 => bytes.copy_from_slice(&(value as u16).to_le_bytes()),
        _ => bytes.fill(value as u8),
    }
}

impl Memory for FastMemory {
    fn alloc(&mut self, space: Space, len: u64, align: u64, label: &str) -> Result<u64, Fault> {
        let full = |detail: &str| Fault::new(FaultKind::OutOfMemory, space.base(), len, detail);
        if !align.is_power_of_two() {
            return Err(full("alignment is not a power of two"));
        }
        if len == 0 {
            return Err(full("an object of no bytes"));
        }
        let index = ((space.base() - Space::Device.base()) / SPACE_SIZE) as usize;
        let Some(state) = self.spaces.get_mut(index) else {
            return Err(full("no such space"));
        };
        let base = space
            .base()
            .checked_add(state.next)
            .and_then(|a| a.checked_next_multiple_of(align));
        let end = base.and_then(|b| b.checked_add(len));
        let (Some(base), Some(end)) = (base, end) else {
            return Err(full("address space is used up"));
        };
        if end > space.base() + SPACE_SIZE - GAP {
            return Err(full("address space is used up"));
        }
        let mut bytes = Vec::new();
        if self.allocated.saturating_add(len) > CAPACITY {
            return Err(full("device memory is used up"));
        }
        if usize::try_from(len).map_or(true, |n| bytes.try_reserve_exact(n).is_err()) {
            return Err(full("the process has no such memory"));
        }
        bytes.resize(len as usize, POISON);
        self.allocated += len;
        state.next = end.next_multiple_of(GAP) + GAP - space.base();
        state.objects.push(Object {
            base,
            len,
            live: true,
            bytes,
            label: label.to_owned(),
        });
        Ok(base)
    }

    fn free(&mut self, addr: u64) -> Result<(), Fault> {
        let space = (addr.wrapping_sub(Space::Device.base()) / SPACE_SIZE) as usize;
        let Some(state) = self.spaces.get_mut(space) else {
            return Err(Fault::new(
                FaultKind::Unmapped,
                addr,
                0,
                "outside simulated memory",
            ));
        };
        let index = state.find(addr);
        match state.objects.get_mut(index) {
            Some(object) if object.base == addr && object.live => {
                object.live = false;
                self.allocated -= object.len;
                object.bytes = Vec::new();
                state.dead += 1;
            }
            Some(object) if object.base == addr => {
                return Err(Fault::new(
                    FaultKind::Freed,
                    addr,
                    0,
                    format!("{} was freed before", object.label),
                ));
            }
            _ => {
                let detail = format!(
                    "free of an address that no allocation begins at: {}",
                    self.describe(addr)
                );
                return Err(Fault::new(FaultKind::Unmapped, addr, 0, detail));
            }
        }
        let live = state.objects.len() - state.dead;
        if state.dead > live + 2 * TOMBSTONES {
            // Forget the oldest records; the cache holds indices that shift, so it starts anew.
            let mut drop = state.dead - TOMBSTONES;
            state.dead -= drop;
            state.objects.retain(|object| {
                let keep = object.live || drop == 0;
                drop -= usize::from(!keep);
                keep
            });
            self.cache.fill(0);
        }
        Ok(())
    }

    #[inline]
    fn load(&mut self, _: Access, addr: u64, size: u32) -> Result<u64, Fault> {
        Ok(get(self.scalar(addr, size)?))
    }

    #[inline]
    fn store(&mut self, _: Access, addr: u64, size: u32, value: u64) -> Result<(), Fault> {
        put(self.scalar(addr, size)?, value);
        Ok(())
    }

    fn rmw(
        &mut self,
        _: Access,
        addr: u64,
        size: u32,
        op: RmwOp,
        a: u64,
        b: u64,
    ) -> Result<u64, Fault> {
        let bytes = self.scalar(addr, size)?;
        let old = get(bytes);
        put(bytes, op.apply(size, old, a, b));
        Ok(old)
    }

    fn fence(&mut self, _: Agent, _: FenceKind, _: Scope) {}

    fn read(&mut self, _: Access, addr: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        if bytes.is_empty() {
            return Ok(());
        }
        bytes.copy_from_slice(self.bytes(addr, bytes.len() as u64)?);
        Ok(())
    }

    fn write(&mut self, _: Access, addr: u64, bytes: &[u8]) -> Result<(), Fault> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.bytes(addr, bytes.len() as u64)?.copy_from_slice(bytes);
        Ok(())
    }

    fn describe(&self, addr: u64) -> String {
        let Some(object) = self.object(addr) else {
            return "no object".into();
        };
        let offset = addr - object.base;
        let state = if object.live { "" } else { ", freed" };
        if object.contains(addr) {
            format!("{}+{offset:#x} ({} bytes{state})", object.label, object.len)
        } else {
            format!(
                "no object; {:#x} bytes after the end of {} ({} bytes{state})",
                offset - object.len,
                object.label,
                object.len
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: Access = Access::HOST_COPY;

    fn kind<T: std::fmt::Debug>(result: Result<T, Fault>) -> FaultKind {
        result.unwrap_err().kind
    }

    #[test]
    fn scalars_are_little_endian_and_fresh_memory_is_poisoned() {
        let mut memory = FastMemory::new();
        let a = memory.alloc(Space::Device, 16, 16, "a").unwrap();
        assert_eq!(a % 16, 0);
        assert_eq!(memory.load(HOST, a, 8).unwrap(), 0xa5a5_a5a5_a5a5_a5a5);
        memory.store(HOST, a, 8, 0x1122_3344_5566_7788).unwrap();
        memory.store(HOST, a + 2, 2, 0xffff_aaaa).unwrap();
        assert_eq!(memory.load(HOST, a, 4).unwrap(), 0xaaaa_7788);
        assert_eq!(memory.load(HOST, a + 7, 1).unwrap(), 0x11);
        assert_eq!(
            memory.rmw(HOST, a + 8, 4, RmwOp::Exch, 7, 0).unwrap(),
            0xa5a5_a5a5
        );
        let mut bytes = [0; 5];
        memory.read(HOST, a + 7, &mut bytes).unwrap();
        assert_eq!(bytes, [0x11, 7, 0, 0, 0]);
    }

    #[test]
    fn bounds_liveness_and_alignment_are_checked() {
        let mut memory = FastMemory::new();
        let a = memory.alloc(Space::Device, 10, 4, "a").unwrap();
        let b = memory.alloc(Space::HostMapped, 8, 8, "b").unwrap();
        assert_eq!(kind(memory.load(HOST, a + 8, 4)), FaultKind::OutOfBounds);
        assert_eq!(kind(memory.load(HOST, a + 12, 4)), FaultKind::OutOfBounds);
        assert_eq!(kind(memory.load(HOST, a + 2, 4)), FaultKind::Misaligned);
        assert_eq!(kind(memory.load(HOST, a - 4, 4)), FaultKind::Unmapped);
        assert_eq!(kind(memory.load(HOST, 0, 4)), FaultKind::Unmapped);
        assert_eq!(
            kind(memory.load(HOST, u64::MAX - 7, 8)),
            FaultKind::Unmapped
        );
        assert_eq!(
            kind(memory.write(HOST, a + 9, &[0, 0])),
            FaultKind::OutOfBounds
        );
        assert_eq!(kind(memory.free(a + 4)), FaultKind::Unmapped);
        memory.free(a).unwrap();
        let fault = memory.load(HOST, a + 4, 4).unwrap_err();
        assert_eq!(fault.kind, FaultKind::Freed);
        assert_eq!(fault.detail, "a+0x4 (10 bytes, freed)");
        assert_eq!(kind(memory.free(a)), FaultKind::Freed);
        memory.store(HOST, b, 8, 1).unwrap();
        assert_eq!(
            kind(memory.alloc(Space::Device, 0, 1, "")),
            FaultKind::OutOfMemory
        );
        assert_eq!(
            kind(memory.alloc(Space::Device, 1, 3, "")),
            FaultKind::OutOfMemory
        );
        assert_eq!(
            kind(memory.alloc(Space::Device, 1 << 42, 1, "")),
            FaultKind::OutOfMemory
        );
    }

    #[test]
    fn freed_addresses_do_not_come_back_even_when_records_are_forgotten() {
        let mut memory = FastMemory::new();
        let keep = memory.alloc(Space::Local, 8, 8, "keep").unwrap();
        let first = memory.alloc(Space::Local, 8, 8, "first").unwrap();
        memory.free(first).unwrap();
        let mut last = first;
        for _ in 0..3 * TOMBSTONES {
            let next = memory.alloc(Space::Local, 8, 8, "x").unwrap();
            assert!(next > last);
            last = next;
            memory.free(next).unwrap();
        }
        assert!(memory.spaces[4].objects.len() <= 2 * TOMBSTONES + 2);
        assert!(memory.load(HOST, first, 8).is_err());
        memory.store(HOST, keep, 8, 3).unwrap();
        assert_eq!(memory.load(HOST, keep, 8).unwrap(), 3);
        assert_eq!(kind(memory.load(HOST, last, 8)), FaultKind::Freed);
    }
}
