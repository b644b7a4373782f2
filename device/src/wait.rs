//! Bounds of a wait (rule O9): a deadline, the host's stop, the QP's fault.
//!
//! Knows: when to look at what. Must not know: what is waited for.

use warpverbs_wire::abi::State;

use crate::{arch, error::Error};

/// Iterations between two looks at the state word, the stop word and the clock (rule O10).
#[cfg(not(loom))]
pub(crate) const LOOK_EVERY: u64 = 64;
/// Under loom each iteration costs states.
#[cfg(loom)]
pub(crate) const LOOK_EVERY: u64 = 2;

/// How long a wait may be, and what it does meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) deadline_ns: u64,
    /// Fruitless iterations.
    pub(crate) spins: u64,
    /// The longest sleep after each `LOOK_EVERY`th iteration.
    pub(crate) back_off_ns: u32,
}

impl Bounds {
    pub(crate) const DEFAULT: Self = Self {
        deadline_ns: crate::DEFAULT_DEADLINE_NS,
        spins: u64::MAX,
        back_off_ns: 0,
    };
}

/// The first sleep of a wait that backs off.
const FIRST_SLEEP_NS: u64 = 32;

/// What ends a wait besides its bounds.
pub(crate) trait Watched {
    /// The queue's state word.
    fn state(&self) -> State;
    /// Looks at the host's stop word, and copies it into the state word.
    fn look_for_stop(&self) -> bool;
}

/// One wait in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    spins: u64,
    start: u64,
}

impl Wait {
    /// Costs nothing: the clock is first read when the wait turns out to be one.
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self { spins: 0, start: 0 }
    }

    /// True before the first fruitless iteration.
    #[inline(always)]
    pub(crate) fn is_fresh(&self) -> bool {
        self.spins == 0
    }

    /// Counts one fruitless iteration; fails once the wait must end.
    ///
    /// The deadline counts from the first look, so a wait may last a little longer, never shorter:
    /// `%globaltimer` may tick in microseconds, and a tick more is allowed for.
    #[inline(always)]
    pub(crate) fn tick<H: Watched>(&mut self, handle: &H, bounds: Bounds) -> Result<(), Error> {
        arch::spin_hint();
        let looks = self.spins.is_multiple_of(LOOK_EVERY);
        self.spins += 1;
        if bounds.spins != u64::MAX && self.spins > bounds.spins {
            return Err(Error::Timeout);
        }
        if looks {
            self.look(handle, bounds)
        } else {
            Ok(())
        }
    }

    #[inline(always)]
    fn look<H: Watched>(&mut self, handle: &H, bounds: Bounds) -> Result<(), Error> {
        if bounds.back_off_ns != 0 && self.spins > LOOK_EVERY {
            // The first look is at spin 1, the next at 1 + LOOK_EVERY.
            let looks = self.spins / LOOK_EVERY;
            let doubled = FIRST_SLEEP_NS << if looks > 16 { 16 } else { looks - 1 };
            let most = u64::from(bounds.back_off_ns);
            arch::sleep_ns(if doubled < most { doubled } else { most } as u32);
        }
        let state = handle.state();
        if state.is_fault() {
            return Err(Error::Fault(state));
        }
        if state.is_stopped() || handle.look_for_stop() {
            return Err(Error::Stopped);
        }
        let now = arch::now_ns();
        if self.spins == 1 {
            self.start = now;
        }
        if has_passed(bounds.deadline_ns, self.start, now) {
            return Err(Error::Timeout);
        }
        Ok(())
    }
}

/// The coarsest tick of `%globaltimer` that was seen: about a microsecond (1.024 us on several GPUs).
const CLOCK_TICK_NS: u64 = 1_024;

/// True if a deadline that counts from `start` has surely passed at `now`. The longest never does.
#[inline(always)]
const fn has_passed(deadline_ns: u64, start: u64, now: u64) -> bool {
    now.wrapping_sub(start) > deadline_ns.saturating_add(CLOCK_TICK_NS)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_passes_late_rather_than_early() {
        assert!(!has_passed(0, 5000, 5000 + CLOCK_TICK_NS));
        assert!(has_passed(0, 5000, 5001 + CLOCK_TICK_NS));
        assert!(!has_passed(u64::MAX, 5000, 4999));
        assert!(!has_passed(u64::MAX - 1, 5000, 1 << 60));
    }
}
