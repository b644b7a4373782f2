//! Who posts to a queue.
//!
//! Knows: at which scope sharers synchronise. Must not know: how.

use super::sealed::{Sealed, Words};
use crate::scope;

/// Who posts to a queue.
pub trait Sharing: Sealed + Words {
    /// True if more than one thread, or group of threads that calls together, does.
    const SHARED: bool;
}

/// One thread owns the queue, or one group of threads that makes every call together: indices live in registers.
#[derive(Clone, Copy, Debug)]
pub struct Exclusive;

/// Any thread of one warp may use the queue. The narrowest scope of PTX is the block, so this costs what [`Cta`] does.
#[derive(Clone, Copy, Debug)]
pub struct Warp;

/// Any thread of one block may use the queue: tickets decide who rings.
#[derive(Clone, Copy, Debug)]
pub struct Cta;

/// Any thread of the GPU may use the queue: tickets decide who rings.
#[derive(Clone, Copy, Debug)]
pub struct Gpu;

macro_rules! sharing {
    ($($ty:ident: $shared:literal, $scope:ident;)*) => {$(
        impl Sealed for $ty {}
        impl Words for $ty {
            type Scope = scope::$scope;
        }
        impl Sharing for $ty {
            const SHARED: bool = $shared;
        }
    )*};
}
sharing! {
    // The words are its owner's until the kernel ends, and launches order them for the QP's next user.
    Exclusive: false, Plain;
    Warp: true, Cta;
    Cta: true, Cta;
    Gpu: true, Gpu;
}
