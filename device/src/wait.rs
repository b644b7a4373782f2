//! Bounds of a wait (rule O9): a deadline, the host's stop, the QP's fault.
//!
//! Knows: when to look at what. Must not know: what is waited for.

use crate::{arch, error::Error, handle::Handle, scope::Scope};

/// Iterations between two looks at the state word, the stop word and the clock (rule O10).
#[cfg(not(loom))]
pub(crate) const LOOK_EVERY: u64 = 64;
/// Under loom each iteration costs states.
#[cfg(loom)]
pub(crate) const LOOK_EVERY: u64 = 2;

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
    pub(crate) fn tick<W: Scope>(
        &mut self,
        handle: &Handle<W>,
        deadline_ns: u64,
    ) -> Result<(), Error> {
        arch::spin_hint();
        let looks = self.spins.is_multiple_of(LOOK_EVERY);
        self.spins += 1;
        if looks {
            self.look(handle, deadline_ns)
        } else {
            Ok(())
        }
    }

    #[inline(always)]
    fn look<W: Scope>(&mut self, handle: &Handle<W>, deadline_ns: u64) -> Result<(), Error> {
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
        if has_passed(deadline_ns, self.start, now) {
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
