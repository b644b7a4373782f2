//! Windows onto the process's own memory.
//!
//! Knows: address ranges that the host registered with a device, and how to copy bytes to and from them.
//! Must not know: who registered them.
//!
//! Other threads may use the memory meanwhile. Every access is atomic: aligned words of 8 bytes are single loads and stores,
//! and so are 4 aligned bytes alone; of the rest each byte is one. A read is followed by an acquire fence. A write follows a
//! release fence, and its last word (its last byte, if it does not end at a multiple of 8) follows another: who sees
//! the end of a write, with acquire order, sees all of it and all earlier ones. So writes of one device are seen in
//! order, as posted PCIe writes are.
//!
//! The one file of this crate with `unsafe`.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

use crate::{CopyFault, Fault, FaultKind};

/// From so many bytes on, a copy is one string instruction where the processor has fast ones.
const LONG: usize = 256;

/// The windows. A range may be registered several times; it stays open until each registration is closed.
#[derive(Default)]
pub struct HostWindows {
    /// Lengths of the registrations that begin at an address.
    open: BTreeMap<u64, Vec<u64>>,
    /// Their union, as ranges that do not overlap: from first address to end.
    union: BTreeMap<u64, u64>,
    /// The range that was reached last.
    last: Cell<(u64, u64)>,
}

impl HostWindows {
    /// Opens `len` bytes of process memory at `addr` to DMA.
    ///
    /// # Safety
    ///
    /// Until [`Self::close`] of the same range:
    /// - the range stays allocated, readable and writable;
    /// - nothing holds a Rust reference to its bytes while a device runs, unless the bytes are atomics or in an
    ///   `UnsafeCell`, and other threads access them atomically, or not while a device does.
    pub unsafe fn open(&mut self, addr: u64, len: u64) {
        self.open.entry(addr).or_default().push(len);
        self.join(addr, len);
    }

    /// Closes one registration of the range; false if there was none.
    pub fn close(&mut self, addr: u64, len: u64) -> bool {
        let Some(lens) = self.open.get_mut(&addr) else {
            return false;
        };
        let Some(at) = lens.iter().position(|l| *l == len) else {
            return false;
        };
        lens.swap_remove(at);
        if lens.is_empty() {
            self.open.remove(&addr);
        }
        self.last.set((0, 0));
        // What is left of the joined range around it.
        if let Some((start, end)) = self.around(addr) {
            self.union.remove(&start);
            let rest: Vec<(u64, u64)> = self
                .open
                .range(start..end)
                .flat_map(|(base, lens)| lens.iter().map(|len| (*base, *len)))
                .collect();
            for (base, len) in rest {
                self.join(base, len);
            }
        }
        true
    }

    /// True if any of `len` bytes at `addr` is open.
    pub fn overlaps(&self, addr: u64, len: u64) -> bool {
        let end = addr.saturating_add(len);
        self.union
            .range(..end)
            .next_back()
            .is_some_and(|(_, last)| *last > addr)
    }

    /// Adds a range to the union. Ranges that only touch stay apart, so that closing one looks at no other.
    fn join(&mut self, addr: u64, len: u64) {
        let (mut start, mut end) = (addr, addr.saturating_add(len));
        while let Some((base, last)) = self.union.range(..end).next_back().map(|(b, l)| (*b, *l))
            && last > start
        {
            self.union.remove(&base);
            (start, end) = (start.min(base), end.max(last));
        }
        self.union.insert(start, end);
    }

    /// The range of the union that an address is in.
    fn around(&self, addr: u64) -> Option<(u64, u64)> {
        let (start, end) = self.union.range(..=addr).next_back()?;
        (addr < *end).then_some((*start, *end))
    }

    fn check(&self, addr: u64, len: usize) -> Result<(), Fault> {
        let len = len as u64;
        let inside = |(start, last): (u64, u64)| {
            start <= addr && addr.checked_add(len).is_some_and(|end| end <= last)
        };
        if inside(self.last.get()) {
            return Ok(());
        }
        match self.around(addr) {
            Some(range) if inside(range) => {
                self.last.set(range);
                Ok(())
            }
            _ => Err(Fault::new(
                FaultKind::Unmapped,
                addr,
                len,
                "host memory that is not registered with the device",
            )),
        }
    }

    /// Copies bytes out of an open window.
    pub fn read(&self, addr: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        self.check(addr, bytes.len())?;
        copy_out(addr, bytes);
        fence(Ordering::Acquire);
        Ok(())
    }

    /// Copies bytes into an open window.
    pub fn write(&self, addr: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.check(addr, bytes.len())?;
        let ends_aligned = (addr + bytes.len() as u64).is_multiple_of(8);
        let end = if ends_aligned && bytes.len() >= 8 {
            8
        } else {
            1
        };
        let (body, last) = bytes.split_at(bytes.len().saturating_sub(end));
        fence(Ordering::Release);
        copy_in(addr, body);
        fence(Ordering::Release);
        copy_in(addr + body.len() as u64, last);
        Ok(())
    }

    /// Copies from one open window to another, or within one.
    pub fn copy(&self, from: u64, to: u64, len: u64) -> Result<(), CopyFault> {
        let outside = |addr| {
            let detail = "host memory that is not registered with the device";
            Fault::new(FaultKind::Unmapped, addr, len, detail)
        };
        let whole = usize::try_from(len).map_err(|_| CopyFault::From(outside(from)))?;
        self.check(from, whole).map_err(CopyFault::From)?;
        self.check(to, whole).map_err(CopyFault::To)?;
        let mut done = 0;
        if has_fast_strings() {
            // The last word follows, as of every write.
            let body = whole.saturating_sub(64);
            fence(Ordering::Release);
            let (source, target) = (from as usize as *const u8, to as usize as *mut u8);
            // SAFETY: `copy_string` demands that the source is readable and the target writable: both windows are open, so
            // `HostWindows::open`'s caller vouches for them.
            unsafe { copy_string(source, target, body) };
            done = body as u64;
        }
        let mut part = [0; 4096];
        while done < len {
            let bytes = part.len().min((len - done) as usize);
            let part = part.get_mut(..bytes).unwrap_or_default();
            self.read(from + done, part).map_err(CopyFault::From)?;
            self.write(to + done, part).map_err(CopyFault::To)?;
            done += bytes as u64;
        }
        Ok(())
    }

    /// Loads the 8-byte word at an address of an open window that is a multiple of 8.
    pub fn load(&self, addr: u64, order: Ordering) -> Result<u64, Fault> {
        self.check_word(addr)?;
        Ok(word_at(addr).load(order))
    }

    /// Stores to such a word.
    pub fn store(&self, addr: u64, value: u64, order: Ordering) -> Result<(), Fault> {
        self.check_word(addr)?;
        word_at(addr).store(value, order);
        Ok(())
    }

    /// Stores to the 4-byte word at an address of an open window that is a multiple of 4.
    pub fn store_u32(&self, addr: u64, value: u32, order: Ordering) -> Result<(), Fault> {
        self.check_aligned(addr, 4)?;
        half_at(addr).store(value, order);
        Ok(())
    }

    fn check_word(&self, addr: u64) -> Result<(), Fault> {
        self.check_aligned(addr, 8)
    }

    fn check_aligned(&self, addr: u64, len: u64) -> Result<(), Fault> {
        self.check(addr, len as usize)?;
        if addr.is_multiple_of(len) {
            return Ok(());
        }
        let detail = "a word must lie at a multiple of its size";
        Err(Fault::new(FaultKind::Misaligned, addr, len, detail))
    }
}

/// Copies out of an open window, as [`HostWindows::check`] has found.
fn copy_out(addr: u64, bytes: &mut [u8]) {
    if bytes.len() >= LONG && has_fast_strings() {
        let (from, to) = (addr as usize as *const u8, bytes.as_mut_ptr());
        // SAFETY: `copy_string` demands
        // - that the source is readable: the window is open, so `HostWindows::open`'s caller vouches for it;
        // - that the destination is writable: it is `bytes`, which nobody else has.
        return unsafe { copy_string(from, to, bytes.len()) };
    }
    if let Ok(four) = <&mut [u8; 4]>::try_from(&mut *bytes)
        && addr.is_multiple_of(4)
    {
        *four = half_at(addr).load(Ordering::Relaxed).to_ne_bytes();
        return;
    }
    let head = to_boundary(addr, bytes.len());
    let (first, rest) = bytes.split_at_mut(head);
    let (words, last) = rest.as_chunks_mut::<8>();
    let mut at = addr;
    for byte in first {
        *byte = byte_at(at).load(Ordering::Relaxed);
        at += 1;
    }
    for word in words {
        *word = word_at(at).load(Ordering::Relaxed).to_ne_bytes();
        at += 8;
    }
    for byte in last {
        *byte = byte_at(at).load(Ordering::Relaxed);
        at += 1;
    }
}

/// Copies into an open window, as [`HostWindows::check`] has found.
fn copy_in(addr: u64, bytes: &[u8]) {
    if bytes.len() >= LONG && has_fast_strings() {
        let (from, to) = (bytes.as_ptr(), addr as usize as *mut u8);
        // SAFETY: as in `copy_out`, with source and destination exchanged.
        return unsafe { copy_string(from, to, bytes.len()) };
    }
    if let Ok(four) = <[u8; 4]>::try_from(bytes)
        && addr.is_multiple_of(4)
    {
        return half_at(addr).store(u32::from_ne_bytes(four), Ordering::Relaxed);
    }
    let head = to_boundary(addr, bytes.len());
    let (first, rest) = bytes.split_at(head);
    let (words, last) = rest.as_chunks::<8>();
    let mut at = addr;
    for byte in first {
        byte_at(at).store(*byte, Ordering::Relaxed);
        at += 1;
    }
    for word in words {
        word_at(at).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        at += 8;
    }
    for byte in last {
        byte_at(at).store(*byte, Ordering::Relaxed);
        at += 1;
    }
}

/// Bytes before the first multiple of 8, of `len` at most.
fn to_boundary(addr: u64, len: usize) -> usize {
    (addr.wrapping_neg() as usize % 8).min(len)
}

fn has_fast_strings() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("ermsb");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// Copies `len` bytes with one instruction. Only where [`has_fast_strings`].
///
/// # Safety
///
/// `from` is readable and `to` writable for `len` bytes. If they overlap, bytes are copied in ascending order. Other threads
/// may access bytes of a window meanwhile: the machine loads and stores each byte once and undivided, as relaxed atomic accesses would, and what an
/// `asm` block does to memory is what the machine does.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_string(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: `rep movsb` with the direction flag clear (Rust's ABI: it is, on entry of any `asm` block) reads and writes
    // exactly these ranges, which the caller vouches for, and changes these three registers alone.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Never called: there are no fast strings.
///
/// # Safety
///
/// None.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_string(_: *const u8, _: *mut u8, _: usize) {}

/// The byte at `addr`, which `HostWindows::check` has found inside an open window.
fn byte_at<'a>(addr: u64) -> &'a AtomicU8 {
    // SAFETY: `AtomicU8::from_ptr` demands
    // - alignment: a byte has none;
    // - validity for reads and writes for the reference's life, which ends within the caller's statement: the window is
    //   open, so `HostWindows::open`'s caller vouches for it;
    // - no conflicting non-atomic access: likewise vouched for.
    unsafe { AtomicU8::from_ptr(addr as usize as *mut u8) }
}

/// The 4 bytes at `addr`, likewise; `addr` is a multiple of 4.
fn half_at<'a>(addr: u64) -> &'a AtomicU32 {
    // SAFETY: as in `byte_at`; aligned, as the caller has found.
    unsafe { AtomicU32::from_ptr(addr as usize as *mut u32) }
}

/// The 8 bytes at `addr`, likewise; `addr` is a multiple of 8.
fn word_at<'a>(addr: u64) -> &'a AtomicU64 {
    // SAFETY: as in `byte_at`; aligned, as the caller has found.
    unsafe { AtomicU64::from_ptr(addr as usize as *mut u64) }
}

#[cfg(test)]
mod tests {
    use std::cell::UnsafeCell;

    use super::*;

    #[test]
    fn only_open_windows_are_reached() {
        let memory = Box::new(UnsafeCell::new([0u8; 32]));
        let addr = memory.get() as usize as u64;
        let mut windows = HostWindows::default();
        assert!(windows.write(addr, &[1]).is_err());
        // SAFETY: `memory` outlives the window, and no reference to its bytes exists while it is open.
        unsafe { windows.open(addr, 16) };
        windows.write(addr + 8, &[7; 8]).unwrap();
        let mut back = [0; 4];
        windows.read(addr + 10, &mut back).unwrap();
        assert_eq!(back, [7; 4]);
        assert!(windows.write(addr + 9, &[1; 8]).is_err());
        assert!(windows.read(u64::MAX, &mut back).is_err());
        assert!(!windows.close(addr, 8));
        assert!(windows.close(addr, 16));
        assert!(windows.read(addr, &mut back).is_err());
        assert_eq!(memory.into_inner()[..16], [[0; 8], [7; 8]].concat());
    }

    #[test]
    fn copies_of_every_alignment_and_length_move_these_bytes_and_no_other() {
        const ROOM: usize = 1200;
        let memory = Box::new(UnsafeCell::new([0u64; ROOM / 8]));
        let base = memory.get() as usize as u64;
        let mut windows = HostWindows::default();
        // SAFETY: `memory` outlives the window, and no reference to its bytes exists while it is open.
        unsafe { windows.open(base, ROOM as u64) };
        let lens = (0..40).chain([255, 256, 257, 300, 1024, 1031]);
        for len in lens {
            for offset in 0..16 {
                windows.write(base, &[0xee; ROOM]).unwrap();
                let bytes: Vec<u8> = (0..len).map(|n| n as u8 ^ 0x5a).collect();
                windows.write(base + offset, &bytes).unwrap();
                let mut back = vec![0; len];
                windows.read(base + offset, &mut back).unwrap();
                assert_eq!(back, bytes, "{len} at {offset}");
                let mut all = [0; ROOM];
                windows.read(base, &mut all).unwrap();
                let around =
                    (0..ROOM).filter(|n| !(offset as usize..offset as usize + len).contains(n));
                assert!(around.map(|n| all[n]).all(|byte| byte == 0xee));
            }
        }
        for (from, to, len) in [
            (0, 600, 500),
            (3, 700, 77),
            (8, 640, 8),
            (5, 900, 0),
            (1, 601, 300),
        ] {
            let bytes: Vec<u8> = (0..600).map(|n| (n as u8).wrapping_mul(7)).collect();
            windows.write(base, &bytes).unwrap();
            windows.write(base + 600, &[0; 600]).unwrap();
            windows.copy(base + from, base + to, len).unwrap();
            let mut all = [0; ROOM];
            windows.read(base, &mut all).unwrap();
            let (at, end) = (to as usize, (to + len) as usize);
            assert_eq!(all[at..end], bytes[from as usize..(from + len) as usize]);
            let around = all[600..at].iter().chain(&all[end..]);
            assert!(around.clone().all(|byte| *byte == 0));
        }
        let end = base + ROOM as u64;
        assert!(matches!(
            windows.copy(end, base, 1),
            Err(CopyFault::From(_))
        ));
        assert!(matches!(
            windows.copy(base, end - 4, 8),
            Err(CopyFault::To(_))
        ));
        windows
            .store(base + 8, 0x0102_0304, Ordering::Release)
            .unwrap();
        assert_eq!(windows.load(base + 8, Ordering::Acquire), Ok(0x0102_0304));
        assert!(
            windows.load(base + 4, Ordering::Acquire).is_err(),
            "not aligned"
        );
        assert!(windows.load(base + ROOM as u64, Ordering::Acquire).is_err());
    }

    #[test]
    fn windows_that_overlap_close_one_by_one() {
        let memory = Box::new(UnsafeCell::new([0u8; 64]));
        let base = memory.get() as usize as u64;
        let mut windows = HostWindows::default();
        // SAFETY: `memory` outlives the windows, and no reference to its bytes exists while they are open.
        unsafe {
            windows.open(base, 32);
            windows.open(base + 16, 32);
            windows.open(base + 8, 8);
            windows.open(base, 32);
            windows.open(base + 48, 16);
        }
        let reaches = |windows: &HostWindows, from: u64, len: usize| {
            windows.read(base + from, &mut vec![0; len]).is_ok()
        };
        assert!(reaches(&windows, 0, 48), "two that overlap are one");
        assert!(!reaches(&windows, 40, 16), "two that touch are two");
        assert!(windows.close(base, 32));
        assert!(reaches(&windows, 0, 48), "registered twice");
        assert!(windows.close(base, 32));
        assert!(!reaches(&windows, 0, 8) && !reaches(&windows, 8, 16));
        assert!(reaches(&windows, 8, 8) && reaches(&windows, 16, 32));
        assert!(windows.overlaps(base, 9) && !windows.overlaps(base, 8));
        assert!(windows.close(base + 16, 32) && windows.close(base + 48, 16));
        assert!(windows.overlaps(base + 15, 100) && !windows.overlaps(base + 16, 100));
        assert!(windows.close(base + 8, 8));
        assert!(!windows.overlaps(base, 64));
    }
}
