//! Errors of calls that a driver makes without a mailbox.

use std::fmt;

use crate::objects::{ObjectId, ObjectKind};

/// Why a driver call was refused. Nothing changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NicError {
    /// No such object.
    NoObject(ObjectId),
    /// Other objects use it.
    Busy {
        /// The object.
        object: ObjectId,
        /// How many use it.
        users: u32,
    },
    /// A memory range is empty or leaves the address space.
    InvalidRange(&'static str),
    /// Access flags that do not exist, or that need another one.
    InvalidAccess {
        /// The flags (`IBV_ACCESS_*`).
        access: u32,
        /// What is wrong with them.
        reason: &'static str,
    },
    /// None of the page sizes can map the range.
    InvalidPageSizes(u64),
    /// No number is left for this kind of object.
    Exhausted(ObjectKind),
    /// The NIC has no such port.
    NoPort(u8),
    /// The GID table has no such entry.
    NoGid(u32),
    /// No completion vector of this number.
    NoVector(u32),
    /// The address resolves to no neighbour.
    Unreachable([u8; 16]),
}

impl fmt::Display for NicError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoObject(object) => write!(f, "{object} does not exist"),
            Self::Busy { object, users } => {
                write!(f, "{object} is used by {users} other object(s)")
            }
            Self::InvalidRange(reason) => write!(f, "memory range: {reason}"),
            Self::InvalidAccess { access, reason } => {
                write!(f, "access flags {access:#x}: {reason}")
            }
            Self::InvalidPageSizes(bitmap) => {
                write!(
                    f,
                    "no page size of {bitmap:#x} can map the range (4 KiB is the smallest)"
                )
            }
            Self::Exhausted(kind) => write!(f, "no {kind} is left"),
            Self::NoPort(port) => write!(f, "no port {port}"),
            Self::NoGid(index) => write!(f, "no GID {index}"),
            Self::NoVector(vector) => write!(f, "no completion vector {vector}"),
            Self::Unreachable(gid) => write!(f, "no neighbour has the GID {gid:02x?}"),
        }
    }
}

impl std::error::Error for NicError {}
