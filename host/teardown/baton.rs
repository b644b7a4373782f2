//! A lock that is waited for with a deadline.
//!
//! Knows: that whoever has it may be in a driver call that does not return. Must not know: what it is for.

use std::time::Instant;

use super::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// One holder at a time.
#[derive(Debug)]
pub(crate) struct Baton {
    held: Mutex<bool>,
    passed: Condvar,
}

/// The baton, in hand.
#[derive(Debug)]
pub(crate) struct Held<'a>(&'a Baton);

impl Baton {
    pub(crate) fn new() -> Self {
        Self {
            held: Mutex::new(false),
            passed: Condvar::new(),
        }
    }

    /// Takes it; `None` if another has it until the deadline.
    pub(crate) fn take(&self, deadline: Instant) -> Option<Held<'_>> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let mut held = wait_until(&self.passed, held, deadline, |held| !held);
        if *held {
            return None;
        }
        *held = true;
        drop(held);
        Some(Held(self))
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        *self.0.held.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.passed.notify_one();
    }
}

/// Waits until `ready`, at most until the deadline. What is behind the lock says which it was.
pub(crate) fn wait_until<'a, T>(
    changed: &Condvar,
    mut guarded: MutexGuard<'a, T>,
    deadline: Instant,
    ready: impl Fn(&T) -> bool,
) -> MutexGuard<'a, T> {
    while !ready(&guarded) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        guarded = changed
            .wait_timeout(guarded, left)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
    }
    guarded
}
