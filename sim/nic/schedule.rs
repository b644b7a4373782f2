//! Which QP the NIC works on next.
//!
//! Knows: QP numbers with work, QP numbers to look after while idle, and a seed.
//! Must not know: what the work is.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use warpverbs_sim_bus::Rng;

/// While there is work, every so many steps go to the QPs that are only watched.
const WATCH_EVERY: u64 = 16;

/// What the next step is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nothing is to be done.
    Idle,
    /// One step for this QP.
    Work(u32),
    /// A look at the watched QPs.
    Watch,
}

/// The lists.
pub(crate) struct Schedule {
    ready: Vec<u32>,
    /// Where each QP with work stands in `ready`.
    places: HashMap<u32, usize>,
    watched: Vec<u32>,
    rng: Rng,
    turns: u64,
}

impl Schedule {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            ready: Vec::new(),
            places: HashMap::new(),
            watched: Vec::new(),
            rng: Rng::new(seed),
            turns: 0,
        }
    }

    /// Chooses: a random QP with work, now and then the watched ones, and those alone when there is no work.
    pub(crate) fn next(&mut self) -> Turn {
        if self.ready.is_empty() {
            return if self.watched.is_empty() {
                Turn::Idle
            } else {
                Turn::Watch
            };
        }
        self.turns += 1;
        if !self.watched.is_empty() && self.turns.is_multiple_of(WATCH_EVERY) {
            return Turn::Watch;
        }
        let at = match self.ready.len() {
            1 => 0,
            len => self.rng.below(len as u32) as usize,
        };
        self.ready
            .get(at)
            .map_or(Turn::Idle, |qpn| Turn::Work(*qpn))
    }

    /// The QP has work.
    pub(crate) fn wake(&mut self, qpn: u32) {
        if let Entry::Vacant(place) = self.places.entry(qpn) {
            place.insert(self.ready.len());
            self.ready.push(qpn);
        }
    }

    /// The QP has no work.
    pub(crate) fn rest(&mut self, qpn: u32) {
        let Some(place) = self.places.remove(&qpn) else {
            return;
        };
        self.ready.swap_remove(place);
        if let Some(moved) = self.ready.get(place) {
            self.places.insert(*moved, place);
        }
    }

    /// The QP is to be looked after.
    pub(crate) fn watch(&mut self, qpn: u32) {
        if !self.watched.contains(&qpn) {
            self.watched.push(qpn);
        }
    }

    pub(crate) fn unwatch(&mut self, qpn: u32) {
        self.watched.retain(|other| *other != qpn);
    }

    pub(crate) fn watched(&self) -> Vec<u32> {
        self.watched.clone()
    }

    /// Every other time true.
    pub(crate) fn whim(&mut self) -> bool {
        self.rng.below(2) == 0
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        self.rng.below(bound)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.ready.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ready_qp_and_the_watched_ones_get_turns_and_a_seed_replays_them() {
        let run = |seed| {
            let mut schedule = Schedule::new(seed);
            assert_eq!(schedule.next(), Turn::Idle);
            schedule.watch(9);
            assert_eq!(schedule.next(), Turn::Watch);
            for qpn in [1, 2, 3, 3] {
                schedule.wake(qpn);
            }
            (0..64).map(|_| schedule.next()).collect::<Vec<_>>()
        };
        let turns = run(5);
        for turn in [Turn::Work(1), Turn::Work(2), Turn::Work(3), Turn::Watch] {
            assert!(turns.contains(&turn), "{turn:?}");
        }
        assert_eq!(turns, run(5));
        assert_ne!(turns, run(6));
    }
}
