//! Modes of a send queue: types without residue in the PTX.
//!
//! Knows: which modes exist and what each means. Must not know: how the queue acts on them.

mod sealed {
    use crate::scope::Scope;

    pub trait Sealed {}
    pub trait Words {
        /// How threads access the words of the handle that change.
        type Scope: Scope + Copy;
    }
}
use crate::scope;
use sealed::{Sealed, Words};

/// Who posts to a queue.
pub trait Sharing: Sealed + Words {
    /// True if more than one thread does.
    const SHARED: bool;
}

/// One thread owns the queue: its indices live in that thread's registers.
#[derive(Clone, Copy, Debug)]
pub struct Exclusive;

/// Any thread of the GPU may use the queue: tickets decide who rings.
#[derive(Clone, Copy, Debug)]
pub struct Gpu;

impl Sealed for Exclusive {}
impl Words for Exclusive {
    // The words are this thread's until the kernel ends, and launches order them for the QP's next user.
    type Scope = scope::Plain;
}
impl Sharing for Exclusive {
    const SHARED: bool = false;
}
impl Sealed for Gpu {}
impl Words for Gpu {
    type Scope = scope::Gpu;
}
impl Sharing for Gpu {
    const SHARED: bool = true;
}

/// How the NIC is told of new WQEs.
pub trait Doorbell: Sealed {
    /// True if the doorbell is also rung before the doorbell record is written.
    const EARLY: bool;
}

/// Fence, doorbell record, fence, one ring.
#[derive(Clone, Copy, Debug)]
pub struct Db;

/// Fence, ring, doorbell record, fence, ring: the NIC starts to fetch a fence earlier.
#[derive(Clone, Copy, Debug)]
pub struct DbEarly;

impl Sealed for Db {}
impl Doorbell for Db {
    const EARLY: bool = false;
}
impl Sealed for DbEarly {}
impl Doorbell for DbEarly {
    const EARLY: bool = true;
}

/// The form of the completion queue.
pub trait CqForm: Sealed {
    /// True if every completion overwrites CQE 0.
    const COLLAPSED: bool;
}

/// A ring of CQEs, which keeps the cause of an error.
#[derive(Clone, Copy, Debug)]
pub struct Ring;

/// One CQE, overwritten by every completion: no consumer index, but a late reader may lose the cause of an error.
#[derive(Clone, Copy, Debug)]
pub struct Collapsed;

impl Sealed for Ring {}
impl CqForm for Ring {
    const COLLAPSED: bool = false;
}
impl Sealed for Collapsed {}
impl CqForm for Collapsed {
    const COLLAPSED: bool = true;
}
