//! Choices made one by one instead of by chance, so that all can be tried.
//!
//! Knows: a sequence of choices, and the next one in depth-first order.
//! Must not know: what is chosen.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Choices of one run: those given, then 0, the choice that departs from nothing.
///
/// Clones share the sequence.
#[derive(Clone, Debug, Default)]
pub struct Script(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    given: Vec<u32>,
    /// Choices made, each with the number of those there were.
    made: Vec<(u32, u32)>,
}

impl Script {
    /// A run that begins with these choices.
    pub fn new(given: Vec<u32>) -> Self {
        Self(Arc::new(Mutex::new(State {
            given,
            made: Vec::new(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A choice below `bound`.
    pub fn choose(&self, bound: u32) -> u32 {
        if bound < 2 {
            return 0;
        }
        let mut state = self.state();
        let given = state.given.get(state.made.len()).copied().unwrap_or(0);
        let choice = given.min(bound - 1);
        state.made.push((choice, bound));
        choice
    }

    /// The next run in depth-first order among those with at most so many choices that are not 0; `None` after the last.
    #[must_use]
    pub fn next(&self, departures: usize) -> Option<Self> {
        let made = &self.state().made;
        let mut before: Vec<usize> = Vec::with_capacity(made.len());
        let mut count = 0;
        for (choice, _) in made {
            before.push(count);
            count += usize::from(*choice != 0);
        }
        let can_go_on = |at: &usize| {
            let (choice, bound) = made[*at];
            choice + 1 < bound && before[*at] < departures
        };
        let at = (0..made.len()).rev().find(can_go_on)?;
        let mut given: Vec<u32> = made[..at].iter().map(|(choice, _)| *choice).collect();
        given.push(made[at].0 + 1);
        Some(Self::new(given))
    }
}

impl fmt::Display for Script {
    /// The choices up to the last that is not 0: as [`Script::new`] takes them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        let end = state
            .made
            .iter()
            .rposition(|(choice, _)| *choice != 0)
            .map_or(0, |at| at + 1);
        let choices: Vec<u32> = state
            .made
            .iter()
            .take(end)
            .map(|(choice, _)| *choice)
            .collect();
        write!(f, "{choices:?}")
    }
}

#[cfg(test)]
mod tests {
    use super::Script;

    /// All sequences of three choices of three, with at most so many departures.
    fn sequences(departures: usize) -> Vec<[u32; 3]> {
        let mut all = Vec::new();
        let mut next = Some(Script::default());
        while let Some(script) = next {
            all.push([script.choose(3), script.choose(3), script.choose(3)]);
            next = script.next(departures);
        }
        all
    }

    #[test]
    fn every_sequence_comes_once() {
        let mut all = sequences(3);
        assert_eq!(all.len(), 27);
        all.dedup();
        assert_eq!(all.len(), 27);
        assert_eq!(sequences(0), [[0, 0, 0]]);
        // None, one of three places, two values.
        assert_eq!(sequences(1).len(), 1 + 3 * 2);
    }

    #[test]
    fn a_printed_sequence_replays() {
        let script = Script::new(vec![0, 2, 1]);
        let made = [
            script.choose(3),
            script.choose(3),
            script.choose(2),
            script.choose(5),
        ];
        assert_eq!(made, [0, 2, 1, 0]);
        assert_eq!(script.to_string(), "[0, 2, 1]");
    }
}
