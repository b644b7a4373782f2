//! Signals that ask the command to end.
//!
//! Knows: that the first asks for an orderly end, and any other for one that waits for nothing more. Must not know: what
//! there is to end.

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::output;

/// A signal, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signal(i32);

impl Signal {
    pub(crate) fn name(self) -> &'static str {
        match self.0 {
            SIGINT => "SIGINT",
            _ => "SIGTERM",
        }
    }

    /// As shells have it: 128 and the signal's number.
    pub(crate) fn exit_code(self) -> ExitCode {
        ExitCode::from(128 + self.0 as u8)
    }
}

/// What signals have asked for. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<Asked>);

#[derive(Debug, Default)]
struct Asked {
    first: AtomicI32,
    count: AtomicUsize,
}

impl Interrupt {
    /// Takes SIGINT and SIGTERM from here on: neither ends the process by itself any more.
    pub(crate) fn listen() -> io::Result<Self> {
        let interrupt = Self::default();
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let asked = interrupt.clone();
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                for number in signals.forever() {
                    asked.note(Signal(number));
                }
            })?;
        Ok(interrupt)
    }

    fn note(&self, signal: Signal) {
        let before = self.0.count.load(Ordering::Relaxed);
        let what = if before == 0 {
            self.0.first.store(signal.0, Ordering::Relaxed);
            "stopping the run and closing in stages; the report follows"
        } else {
            "closing without waiting any longer; the report says what is retained"
        };
        // Said before it is done: what follows may be the end of the process.
        output::complaint(&format!("warpverbs: {}: {what}\n", signal.name()));
        self.0.count.store(before + 1, Ordering::Release);
    }

    /// The first signal, once there was one.
    pub(crate) fn signal(&self) -> Option<Signal> {
        (self.0.count.load(Ordering::Acquire) > 0)
            .then(|| Signal(self.0.first.load(Ordering::Relaxed)))
    }

    /// True once a second signal has come.
    pub(crate) fn is_urgent(&self) -> bool {
        self.0.count.load(Ordering::Acquire) > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_signal_is_the_one_that_counts_and_the_second_is_urgent() {
        let interrupt = Interrupt::default();
        assert_eq!(interrupt.signal(), None);
        interrupt.note(Signal(SIGTERM));
        assert_eq!(interrupt.signal(), Some(Signal(SIGTERM)));
        assert!(!interrupt.is_urgent());
        interrupt.note(Signal(SIGINT));
        assert_eq!(interrupt.signal(), Some(Signal(SIGTERM)));
        assert!(interrupt.is_urgent());
        assert_eq!(Signal(SIGINT).exit_code(), ExitCode::from(130));
        assert_eq!(Signal(SIGTERM).exit_code(), ExitCode::from(143));
    }
}
