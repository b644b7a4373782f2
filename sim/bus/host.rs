//! Windows onto the process's own memory.
//!
//! Knows: address ranges that the host registered with a device, and how to copy bytes to and from them.
//! Must not know: who registered them.
//!
//! The one file of this crate with `unsafe`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::{Fault, FaultKind};

/// The windows. A range may be registered several times; it stays open until each registration is closed.
#[derive(Default)]
pub struct HostWindows {
    open: BTreeMap<u64, Vec<u64>>,
}

impl HostWindows {
    /// Opens `len` bytes of process memory at `addr` to DMA.
    ///
    /// # Safety
    ///
    /// Until [`Self::close`] of the same range:
    /// - the range stays allocated, readable and writable;
    /// - nothing holds a Rust reference to its bytes while a device runs, unless the bytes are atomics or in an
    ///   `UnsafeCell` (bytes are copied as relaxed atomics, so a concurrent reader of atomics sees no data race).
    pub unsafe fn open(&mut self, addr: u64, len: u64) {
        self.open.entry(addr).or_default().push(len);
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
        true
    }

    fn check(&self, addr: u64, len: usize) -> Result<(), Fault> {
        let len = len as u64;
        let inside = addr.checked_add(len).is_some_and(|end| {
            self.open
                .range(..=addr)
                .any(|(base, lens)| lens.iter().any(|l| end - base <= *l))
        });
        if inside {
            Ok(())
        } else {
            Err(Fault::new(
                FaultKind::Unmapped,
                addr,
                len,
                "host memory that is not registered with the device",
            ))
        }
    }

    /// Copies bytes out of an open window.
    pub fn read(&self, addr: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        self.check(addr, bytes.len())?;
        for (offset, byte) in bytes.iter_mut().enumerate() {
            *byte = byte_at(addr + offset as u64).load(Ordering::Relaxed);
        }
        Ok(())
    }

    /// Copies bytes into an open window.
    pub fn write(&self, addr: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.check(addr, bytes.len())?;
        for (offset, byte) in bytes.iter().enumerate() {
            byte_at(addr + offset as u64).store(*byte, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// The byte at `addr`, which `HostWindows::check` has found inside an open window.
fn byte_at<'a>(addr: u64) -> &'a AtomicU8 {
    // SAFETY: `AtomicU8::from_ptr` demands
    // - alignment: a byte has none;
    // - validity for reads and writes for the reference's life, which ends within the caller's statement: the window is
    //   open, so `HostWindows::open`'s caller vouches for it;
    // - no conflicting non-atomic access: likewise vouched for.
    unsafe { AtomicU8::from_ptr(addr as usize as *mut u8) }
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
}
