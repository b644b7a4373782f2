//! The primitives under the gate, the baton and the stage; `tests/loom_teardown.rs` puts loom's in their place.

pub(crate) use std::sync::{
    Condvar, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU8, Ordering},
};
