//! Vector clocks.
//!
//! Knows: epochs of agents, joins, and snapshots that messages carry.
//! Must not know: memory.
//!
//! An agent's entry in its own clock is its current epoch; a release ends the epoch. So an event of agent `a` in epoch
//! `e` happens before whoever has at least `e` in its clock for `a` (the epochs of FastTrack, Flanagan and Freund 2009).

use std::sync::Arc;

/// What an agent knows of every other: the last epoch that happens before it. Epochs begin at 1; 0 knows nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Clock(Vec<u32>);

impl Clock {
    #[inline]
    pub(super) fn get(&self, slot: u32) -> u32 {
        self.0.get(slot as usize).copied().unwrap_or(0)
    }

    pub(super) fn set(&mut self, slot: u32, epoch: u32) {
        let at = slot as usize;
        if at >= self.0.len() {
            self.0.resize(at + 1, 0);
        }
        if let Some(entry) = self.0.get_mut(at) {
            *entry = epoch;
        }
    }

    pub(super) fn join(&mut self, other: &Self) {
        if other.0.len() > self.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (own, theirs) in self.0.iter_mut().zip(&other.0) {
            *own = (*own).max(*theirs);
        }
    }

    /// True if an event of `slot` in `epoch` happens before the clock's owner.
    #[inline]
    pub(super) fn covers(&self, slot: u32, epoch: u32) -> bool {
        self.get(slot) >= epoch
    }

    /// True if any of the epochs, by slot and 0 for none, is covered.
    pub(super) fn covers_any(&self, epochs: &[u32]) -> bool {
        epochs
            .iter()
            .zip(&self.0)
            .any(|(epoch, known)| *epoch != 0 && known >= epoch)
    }
}

/// A released clock: a base, which many may share, and later epochs of a few slots.
#[derive(Debug)]
pub(super) struct Snapshot {
    base: Arc<Clock>,
    later: Vec<(u32, u32)>,
    /// Who released it, and the epoch that it ended; whoever covers that has all of it. `None` if it is a join of several.
    of: Option<(u32, u32)>,
}

impl Snapshot {
    pub(super) fn new(base: Arc<Clock>, later: Vec<(u32, u32)>, of: Option<(u32, u32)>) -> Self {
        Self { base, later, of }
    }

    /// True if a clock has all of it for certain.
    pub(super) fn is_known_to(&self, clock: &Clock) -> bool {
        self.of
            .is_some_and(|(slot, epoch)| clock.covers(slot, epoch))
    }

    fn is_known_to_snapshot(&self, other: &Self) -> bool {
        self.of.is_some_and(|(slot, epoch)| {
            other.base.covers(slot, epoch)
                || other
                    .later
                    .iter()
                    .any(|(own, known)| *own == slot && *known >= epoch)
        })
    }

    /// Joins it into a clock.
    pub(super) fn join_into(&self, clock: &mut Clock) {
        clock.join(&self.base);
        for (slot, epoch) in &self.later {
            clock.set(*slot, clock.get(*slot).max(*epoch));
        }
    }

    /// As a clock of its own.
    pub(super) fn to_clock(&self) -> Clock {
        let mut clock = Clock::clone(&self.base);
        self.join_into(&mut clock);
        clock
    }
}

/// The join of two snapshots.
pub(super) fn merged(a: &Arc<Snapshot>, b: &Arc<Snapshot>) -> Arc<Snapshot> {
    if Arc::ptr_eq(a, b) || b.is_known_to_snapshot(a) {
        return a.clone();
    }
    if a.is_known_to_snapshot(b) {
        return b.clone();
    }
    let mut clock = a.to_clock();
    b.join_into(&mut clock);
    Arc::new(Snapshot::new(Arc::new(clock), Vec::new(), None))
}

/// Distances of two agents, which are also scopes: same block, same GPU, same system.
pub(super) const DISTANCES: usize = 3;

/// What a write releases to readers at each distance (PTX ISA, "Release and Acquire Patterns": a release counts only
/// for those whom its scope includes).
pub(super) type Releases = [Option<Arc<Snapshot>>; DISTANCES];

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(entries: &[u32]) -> Clock {
        Clock(entries.to_vec())
    }

    #[test]
    fn joins_take_the_later_epoch_of_each() {
        let mut a = clock(&[1, 5]);
        a.join(&clock(&[3, 2, 7]));
        assert_eq!(a, clock(&[3, 5, 7]));
        assert!(a.covers(2, 7) && !a.covers(2, 8) && a.covers(9, 0) && !a.covers(9, 1));
        assert!(a.covers_any(&[0, 5]) && !a.covers_any(&[0, 0, 8]));
    }

    #[test]
    fn a_merge_keeps_both_sides() {
        let snapshot = |entries: &[u32], later: &[(u32, u32)], of| {
            Arc::new(Snapshot::new(Arc::new(clock(entries)), later.to_vec(), of))
        };
        let one = snapshot(&[4, 1], &[], Some((0, 4)));
        let two = snapshot(&[], &[(1, 6)], Some((1, 6)));
        let both = merged(&one, &two);
        assert_eq!(both.to_clock(), clock(&[4, 6]));
        assert!(both.of.is_none());
        let later = snapshot(&[9, 6], &[], Some((0, 9)));
        assert!(Arc::ptr_eq(&merged(&later, &two), &later));
        assert!(Arc::ptr_eq(&merged(&two, &later), &later));
    }
}
