//! Faults of memory accesses.

use std::fmt;

/// What was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// No object at the address.
    Unmapped,
    /// The object was freed.
    Freed,
    /// The access begins in an object and ends outside it.
    OutOfBounds,
    /// The address is not a multiple of the access size.
    Misaligned,
    /// No room for an allocation.
    OutOfMemory,
    /// The target refuses this kind of access.
    Refused,
}

/// A memory access that could not be made. Nothing was read or written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What was wrong.
    pub kind: FaultKind,
    /// The address.
    pub addr: u64,
    /// Bytes accessed.
    pub len: u64,
    /// The object, and what to know of it.
    pub detail: String,
}

impl Fault {
    /// A fault.
    pub fn new(kind: FaultKind, addr: u64, len: u64, detail: impl Into<String>) -> Self {
        Self {
            kind,
            addr,
            len,
            detail: detail.into(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            FaultKind::Unmapped => "unmapped address",
            FaultKind::Freed => "use after free",
            FaultKind::OutOfBounds => "out of bounds",
            FaultKind::Misaligned => "misaligned access",
            FaultKind::OutOfMemory => "out of memory",
            FaultKind::Refused => "refused",
        };
        write!(
            f,
            "{kind}: {} bytes at {:#x}: {}",
            self.len, self.addr, self.detail
        )
    }
}

impl std::error::Error for Fault {}
