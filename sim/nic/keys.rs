//! Memory keys: what a (key, address, length) of a work request may touch.
//!
//! Knows: key layout (index and variant), protection domain, access rights, bounds.
//! Must not know: who accesses, or what an error looks like to the requester.

use std::fmt;

use crate::error::NicError;
use crate::objects::{ObjectId, ObjectKind, Table};
use crate::umem::DmaRange;

/// Access flags of an MR (`IBV_ACCESS_*`).
pub mod access {
    /// `IBV_ACCESS_LOCAL_WRITE`
    pub const LOCAL_WRITE: u32 = 1;
    /// `IBV_ACCESS_REMOTE_WRITE`; needs local write.
    pub const REMOTE_WRITE: u32 = 1 << 1;
    /// `IBV_ACCESS_REMOTE_READ`
    pub const REMOTE_READ: u32 = 1 << 2;
    /// `IBV_ACCESS_REMOTE_ATOMIC`; needs local write.
    pub const REMOTE_ATOMIC: u32 = 1 << 3;
    /// `IBV_ACCESS_RELAXED_ORDERING`
    pub const RELAXED_ORDERING: u32 = 1 << 20;
    /// All that this NIC knows.
    pub(crate) const KNOWN: u32 =
        LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC | RELAXED_ORDERING;
}

/// Keys of a registered memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrKeys {
    /// Local key.
    pub lkey: u32,
    /// Remote key. The same number on this NIC, as on mlx5 (rdma-core: `lkey` and `rkey` of one mkey).
    pub rkey: u32,
}

/// The key by which a DUMP reads nothing (`dump_fill_mkey`): no memory stands behind it.
pub(crate) const DUMP_FILL_MKEY: u32 = 0x0000_1100;
/// `null_mkey`: as a local key its reads give zeroes and its writes go nowhere.
pub(crate) const NULL_MKEY: u32 = 0x0000_1200;
/// `resd_lkey`: privileged; a queue of a user may not use it.
pub(crate) const RESERVED_LKEY: u32 = 0x0000_1300;

/// A memory key.
#[derive(Clone, Debug)]
pub(crate) struct MKey {
    pub(crate) uid: u16,
    /// `mkey_7_0`: low byte of the key.
    pub(crate) variant: u8,
    pub(crate) pd: u32,
    pub(crate) range: DmaRange,
    pub(crate) rights: Rights,
    /// A send of the peer invalidated it.
    pub(crate) invalidated: bool,
    pub(crate) uses: Vec<ObjectId>,
}

/// Access rights (`mkc.lr`, `lw`, `rr`, `rw`, `a`, and relaxed ordering).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rights {
    pub(crate) local_read: bool,
    pub(crate) local_write: bool,
    pub(crate) remote_read: bool,
    pub(crate) remote_write: bool,
    pub(crate) remote_atomic: bool,
    pub(crate) relaxed_ordering: bool,
}

impl Rights {
    /// Rights of an MR. Local read is always allowed (`ibv_reg_mr`).
    pub(crate) fn of_mr(access: u32) -> Result<Self, NicError> {
        if access & !access::KNOWN != 0 {
            return Err(NicError::InvalidAccess {
                access,
                reason: "a flag this NIC does not know",
            });
        }
        if access & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0
            && access & access::LOCAL_WRITE == 0
        {
            return Err(NicError::InvalidAccess {
                access,
                reason: "remote write and remote atomic need local write",
            });
        }
        Ok(Self {
            local_read: true,
            local_write: access & access::LOCAL_WRITE != 0,
            remote_read: access & access::REMOTE_READ != 0,
            remote_write: access & access::REMOTE_WRITE != 0,
            remote_atomic: access & access::REMOTE_ATOMIC != 0,
            relaxed_ordering: access & access::RELAXED_ORDERING != 0,
        })
    }

    fn allow(self, right: Right) -> bool {
        match right {
            Right::LocalRead => self.local_read,
            Right::LocalWrite => self.local_write,
            Right::RemoteRead => self.remote_read,
            Right::RemoteWrite => self.remote_write,
            Right::RemoteAtomic => self.remote_atomic,
        }
    }
}

/// The right an access needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    LocalRead,
    LocalWrite,
    RemoteRead,
    RemoteWrite,
    RemoteAtomic,
}

/// Where an allowed access goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) bus_addr: u64,
    pub(crate) relaxed_ordering: bool,
}

/// Why a key refuses an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyFault {
    Unknown,
    Deregistered,
    Invalidated,
    Variant { key: u8 },
    Pd { key: u32, queue: u32 },
    Right(Right),
    Bounds,
}

impl fmt::Display for KeyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("no such key"),
            Self::Deregistered => f.write_str("the key was deregistered"),
            Self::Invalidated => f.write_str("the key was invalidated by a send"),
            Self::Variant { key } => write!(f, "the key's low byte is {key:#x}"),
            Self::Pd { key, queue } => {
                write!(f, "the key is of PD {key:#x}, the QP of PD {queue:#x}")
            }
            Self::Right(right) => write!(f, "the key does not allow {right:?}"),
            Self::Bounds => f.write_str("the range leaves the key's"),
        }
    }
}

/// An access that a work request asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) key: u32,
    pub(crate) pd: u32,
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) right: Right,
}

/// The object that a key names.
pub(crate) fn object_of(key: u32) -> ObjectId {
    ObjectId::new(ObjectKind::MKey, key >> 8)
}

/// Checks a request in the order of IBA 10.6: key, PD, rights, bounds.
pub(crate) fn translate(keys: &Table<MKey>, request: Request) -> Result<Target, KeyFault> {
    let index = request.key >> 8;
    let Some(key) = keys.get(index) else {
        return Err(if keys.is_destroyed(index) {
            KeyFault::Deregistered
        } else {
            KeyFault::Unknown
        });
    };
    if key.variant != request.key as u8 {
        return Err(KeyFault::Variant { key: key.variant });
    }
    if key.invalidated {
        return Err(KeyFault::Invalidated);
    }
    if key.pd != request.pd {
        return Err(KeyFault::Pd {
            key: key.pd,
            queue: request.pd,
        });
    }
    if !key.rights.allow(request.right) {
        return Err(KeyFault::Right(request.right));
    }
    let bus_addr = key
        .range
        .at_iova(request.addr, request.len)
        .ok_or(KeyFault::Bounds)?;
    Ok(Target {
        bus_addr,
        relaxed_ordering: key.rights.relaxed_ordering,
    })
}
