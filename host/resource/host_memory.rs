//! Host memory that a NIC may read and write on its own.
//!
//! Knows: that its bytes are atomics, so that a NIC's writes race with no Rust reference.
//! Must not know: NICs.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::error::{Error, Result};

/// Host memory for a [`crate::Mr`]. Clones are the same memory.
#[derive(Clone)]
pub struct HostMemory(Arc<[AtomicU8]>);

impl HostMemory {
    /// `len` bytes of zeroes.
    pub fn zeroed(len: usize) -> Self {
        Self((0..len).map(|_| AtomicU8::new(0)).collect())
    }

    /// The address of the first byte.
    pub fn addr(&self) -> u64 {
        self.0.as_ptr() as usize as u64
    }

    /// Its size in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Copies bytes to it. Bytes that a NIC accesses meanwhile are each old or new.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        for (cell, byte) in self.at(offset, bytes.len())?.iter().zip(bytes) {
            cell.store(*byte, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Copies bytes from it.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        for (cell, byte) in self.at(offset, bytes.len())?.iter().zip(bytes) {
            *byte = cell.load(Ordering::Relaxed);
        }
        Ok(())
    }

    fn at(&self, offset: usize, len: usize) -> Result<&[AtomicU8]> {
        offset
            .checked_add(len)
            .and_then(|end| self.0.get(offset..end))
            .ok_or_else(|| Error::InvalidArgument {
                what: format!(
                    "{len} bytes at offset {offset} do not lie in host memory of {} bytes",
                    self.len()
                ),
                cure: "stay within the memory's size",
            })
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostMemory({:#x}, {} bytes)", self.addr(), self.len())
    }
}
