//! The primitives under the gate and the stage: `std`'s, or loom's in its model.

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Condvar, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU8, Ordering},
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicU8, Ordering},
};
#[cfg(loom)]
pub(crate) use std::sync::PoisonError;
