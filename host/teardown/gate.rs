//! Who may use a node, and who destroys it.
//!
//! Knows: that users come in while it is open, that one destroyer at a time goes in when no user is left, and that it
//! closes once. Must not know: what is behind it.

use super::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A gate.
#[derive(Debug)]
pub(crate) struct Gate {
    life: Mutex<Life>,
    changed: Condvar,
}

#[derive(Debug)]
struct Life {
    users: usize,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// No new users.
    Shut,
    /// Someone destroys what is behind it.
    Claimed,
    Closed,
}

/// What a would-be destroyer finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The caller destroys it, and says how that went.
    Yours,
    /// So many users are left.
    Busy(usize),
    /// It was destroyed before.
    Closed,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self {
            life: Mutex::new(Life {
                users: 0,
                phase: Phase::Open,
            }),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, life: MutexGuard<'a, Life>) -> MutexGuard<'a, Life> {
        self.changed
            .wait(life)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Comes in; false if it is not open.
    pub(crate) fn enter(&self) -> bool {
        let mut life = self.lock();
        let open = life.phase == Phase::Open;
        if open {
            life.users += 1;
        }
        open
    }

    /// Goes out: once for each `enter` that was let in.
    pub(crate) fn leave(&self) {
        let mut life = self.lock();
        life.users = life.users.saturating_sub(1);
        drop(life);
        self.changed.notify_all();
    }

    /// Lets nobody in any more, and waits until all are out.
    pub(crate) fn shut(&self) {
        let mut life = self.lock();
        if life.phase == Phase::Open {
            life.phase = Phase::Shut;
        }
        while life.users > 0 {
            life = self.wait(life);
        }
    }

    /// Asks to destroy what is behind it. Waits for another destroyer to finish.
    pub(crate) fn claim(&self) -> Claim {
        let mut life = self.lock();
        while life.phase == Phase::Claimed {
            life = self.wait(life);
        }
        if life.phase == Phase::Closed {
            Claim::Closed
        } else if life.users > 0 {
            Claim::Busy(life.users)
        } else {
            life.phase = Phase::Claimed;
            Claim::Yours
        }
    }

    /// Ends a claim: closed for good, or, after a refusal, open to the next attempt.
    pub(crate) fn settle(&self, destroyed: bool) {
        self.lock().phase = if destroyed {
            Phase::Closed
        } else {
            Phase::Open
        };
        self.changed.notify_all();
    }

    /// True if it was destroyed.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().phase == Phase::Closed
    }
}
