//! Who may use a node, and who destroys it.
//!
//! Knows: that users and guests come in while it is open, that one destroyer at a time goes in when no user is left, that
//! it waits for guests, who stay for one call only, and that the gate closes once. Whoever waits has a deadline: a driver
//! call that does not return keeps a guest inside. Must not know: what is behind it.

use std::time::Instant;

use super::baton::wait_until;
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
    guests: usize,
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
    /// A guest, or another destroyer, did not leave before the deadline.
    Late,
    /// It was destroyed before.
    Closed,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self {
            life: Mutex::new(Life {
                users: 0,
                guests: 0,
                phase: Phase::Open,
            }),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Comes in to stay; false if it is not open.
    pub(crate) fn enter(&self) -> bool {
        self.let_in(|life| &mut life.users)
    }

    /// Goes out: once for each `enter` that was let in.
    pub(crate) fn leave(&self) {
        self.let_out(|life| &mut life.users);
    }

    /// Comes in for one call; false if it is not open.
    pub(crate) fn visit(&self) -> bool {
        self.let_in(|life| &mut life.guests)
    }

    /// Goes out: once for each `visit` that was let in.
    pub(crate) fn depart(&self) {
        self.let_out(|life| &mut life.guests);
    }

    fn let_in(&self, kind: impl Fn(&mut Life) -> &mut usize) -> bool {
        let mut life = self.lock();
        let open = life.phase == Phase::Open;
        if open {
            *kind(&mut life) += 1;
        }
        open
    }

    fn let_out(&self, kind: impl Fn(&mut Life) -> &mut usize) {
        let mut life = self.lock();
        let count = kind(&mut life);
        *count = count.saturating_sub(1);
        drop(life);
        self.changed.notify_all();
    }

    /// Lets nobody in any more, and waits until all are out; how many are in at the deadline.
    pub(crate) fn shut(&self, deadline: Instant) -> usize {
        let mut life = self.lock();
        if life.phase == Phase::Open {
            life.phase = Phase::Shut;
        }
        let outside = |life: &Life| life.users == 0;
        life = wait_until(&self.changed, life, deadline, outside);
        life.users
    }

    /// Asks to destroy what is behind it. Waits for another destroyer to finish, and for guests to leave.
    pub(crate) fn claim(&self, deadline: Instant) -> Claim {
        let unclaimed = |life: &Life| life.phase != Phase::Claimed;
        let mut life = wait_until(&self.changed, self.lock(), deadline, unclaimed);
        match life.phase {
            Phase::Claimed => return Claim::Late,
            Phase::Closed => return Claim::Closed,
            Phase::Open | Phase::Shut => {}
        }
        if life.users > 0 {
            return Claim::Busy(life.users);
        }
        let before = std::mem::replace(&mut life.phase, Phase::Claimed);
        let empty = |life: &Life| life.guests == 0;
        life = wait_until(&self.changed, life, deadline, empty);
        if empty(&life) {
            return Claim::Yours;
        }
        life.phase = before;
        drop(life);
        self.changed.notify_all();
        Claim::Late
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

    /// True if nobody is let in any more.
    pub(crate) fn is_shut(&self) -> bool {
        self.lock().phase != Phase::Open
    }

    /// True if it was destroyed.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().phase == Phase::Closed
    }
}
