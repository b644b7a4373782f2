//! How a thread without news rests.
//!
//! Knows: for how long there has been none. Must not know: of what.

use std::time::Duration;

/// For so long it only yields: a GPU that has just posted is likely to post again.
const EAGER: Duration = Duration::from_micros(100);
/// Then it sleeps for half as long as it has been without news, at least and at most so long: a late doorbell is late by half at most,
/// and an idle thread takes a thousand looks a second.
const SHORTEST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// Lets others run.
    Yield,
    /// Sleeps, at most so long.
    Sleep(Duration),
    /// Sleeps until there is something to look at.
    UntilWoken,
}

/// What to do after a look without news; `serves`: there is something to look at.
pub(super) fn pause(serves: bool, without_news: Duration) -> Pause {
    if !serves {
        Pause::UntilWoken
    } else if without_news < EAGER {
        Pause::Yield
    } else {
        Pause::Sleep((without_news / 2).clamp(SHORTEST, LONGEST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_without_news_yields_then_sleeps_longer_and_longer() {
        let after = |micros| pause(true, Duration::from_micros(micros));
        assert_eq!(after(0), Pause::Yield);
        assert_eq!(after(99), Pause::Yield);
        assert_eq!(after(100), Pause::Sleep(Duration::from_micros(50)));
        assert_eq!(after(400), Pause::Sleep(Duration::from_micros(200)));
        assert_eq!(after(2_000), Pause::Sleep(Duration::from_millis(1)));
        assert_eq!(after(u64::MAX), Pause::Sleep(Duration::from_millis(1)));
        for micros in [0, 100, u64::MAX] {
            assert_eq!(
                pause(false, Duration::from_micros(micros)),
                Pause::UntilWoken
            );
        }
    }
}
