//! Waiting: always with a deadline, and by turns where several wait.
//!
//! Knows: that what is waited for makes progress while it is looked at. Must not know: what is waited for.

use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// How long a drop, or a close without a deadline, waits for kernels and for work requests.
pub(crate) const GRACE: Duration = Duration::from_secs(5);

/// How long a turn is.
const TURN: Duration = Duration::from_millis(1);
/// Looks in a row before a waiting thread sleeps between them; the last turn has as many, whatever the time.
const EAGER_LOOKS: u32 = 64;
/// How long it sleeps.
pub(super) const NAP: Duration = Duration::from_micros(50);

/// The moment when `time` has passed. A time too long for the clock is as good as a century.
pub(crate) fn deadline_after(time: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    Instant::now() + time.min(CENTURY)
}

/// The time that a wait has. Several that share a deadline wait in turns, so that one that waits in vain leaves the
/// others theirs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    began: Instant,
    /// When whoever waits lets the next have a turn.
    turn: Instant,
    deadline: Instant,
}

impl Wait {
    /// Until a deadline, in one turn.
    pub(crate) fn until(deadline: Instant) -> Self {
        Self {
            began: Instant::now(),
            turn: deadline,
            deadline,
        }
    }

    /// At most this long, in one turn.
    pub(crate) fn within(time: Duration) -> Self {
        Self::until(deadline_after(time))
    }

    /// The next turn of a wait that is shared.
    pub(super) fn next_turn(self) -> Self {
        let turn = self.deadline.min(Instant::now() + TURN);
        Self { turn, ..self }
    }

    /// When the first turn began.
    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    /// When this turn is over.
    pub(crate) fn turn(&self) -> Instant {
        self.turn
    }

    /// True if no turn follows.
    pub(crate) fn is_last(&self) -> bool {
        self.turn >= self.deadline
    }

    /// True once the deadline has passed.
    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// How long it has been.
    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// The error of a wait that was in vain.
    pub(crate) fn timeout(&self, what: &'static str) -> Error {
        Error::Timeout {
            what,
            waited: self.elapsed(),
        }
    }
}

/// Calls `look` until it says that it is done, at most until the turn is over. The last turn has at least a few looks, so
/// that what needs no time is done however late it is.
pub(crate) fn poll(
    what: &'static str,
    wait: Wait,
    mut look: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let mut looks = 0u32;
    while !look()? {
        looks = looks.saturating_add(1);
        let enough = looks >= EAGER_LOOKS || !wait.is_last();
        if enough && Instant::now() >= wait.turn {
            return Err(wait.timeout(what));
        }
        if looks >= EAGER_LOOKS {
            std::thread::sleep(NAP);
        }
    }
    Ok(())
}
