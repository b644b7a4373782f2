//! Time, and who waits for it.
//!
//! Knows: nanoseconds, which pass only while the NIC has nothing else to do, or as someone outside says; and one deadline a
//! QP.
//! Must not know: what a QP waits for.

use std::collections::BTreeSet;

/// Most time that one idle step passes: 64 of them are the usual ACK timeout (code 14, 67 ms), so that software which runs
/// beside the NIC has a chance to act before a timeout.
pub(crate) const IDLE_STEP_NS: u64 = 1 << 20;

/// The clock and its deadlines.
#[derive(Default)]
pub(crate) struct Clock {
    now: u64,
    /// Time is real: it passes by [`Self::set_real`] alone.
    real: bool,
    /// Deadlines, some of which no longer hold: they are sorted out when they come first.
    waiting: BTreeSet<(u64, u32)>,
}

impl Clock {
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// Real time has come to `now`; from now on it passes so and by no step.
    pub(crate) fn set_real(&mut self, now: u64) {
        self.real = true;
        self.now = self.now.max(now);
    }

    pub(crate) fn is_real(&self) -> bool {
        self.real
    }

    /// A QP wants to be woken at a time.
    pub(crate) fn wait(&mut self, qpn: u32, deadline: u64) {
        self.waiting.insert((deadline, qpn));
    }

    /// The first deadline.
    pub(crate) fn next(&self) -> Option<u64> {
        self.first().map(|(deadline, _)| deadline)
    }

    /// The first deadline, and whose it is.
    pub(crate) fn first(&self) -> Option<(u64, u32)> {
        self.waiting.first().copied()
    }

    /// Forgets the first deadline.
    pub(crate) fn drop_first(&mut self) {
        self.waiting.pop_first();
    }

    /// Lets time pass towards `target`; true if it did.
    pub(crate) fn pass(&mut self, target: u64) -> bool {
        self.jump(target.min(self.now.saturating_add(IDLE_STEP_NS)))
    }

    /// Lets time pass to `target`; true if it did.
    pub(crate) fn jump(&mut self, target: u64) -> bool {
        let passes = target > self.now;
        self.now = self.now.max(target);
        passes
    }

    /// A QP whose deadline has come.
    pub(crate) fn due(&mut self) -> Option<u32> {
        let (deadline, qpn) = self.first()?;
        if deadline > self.now {
            return None;
        }
        self.drop_first();
        Some(qpn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_come_in_order_and_time_passes_in_small_steps() {
        let mut clock = Clock::default();
        clock.wait(7, 500);
        clock.wait(8, 100);
        clock.wait(9, IDLE_STEP_NS * 3);
        assert_eq!((clock.next(), clock.due()), (Some(100), None));
        clock.pass(100);
        assert_eq!(
            (clock.now(), clock.due(), clock.due()),
            (100, Some(8), None)
        );
        clock.pass(IDLE_STEP_NS * 3);
        assert_eq!(clock.now(), 100 + IDLE_STEP_NS);
        assert_eq!((clock.due(), clock.due()), (Some(7), None));
        assert!(!clock.is_real());
        clock.pass(5);
        assert_eq!(clock.now(), 100 + IDLE_STEP_NS, "never back");
        clock.set_real(7);
        assert_eq!(clock.now(), 100 + IDLE_STEP_NS, "never back");
        clock.set_real(IDLE_STEP_NS * 3);
        assert_eq!(clock.due(), Some(9));
    }
}
