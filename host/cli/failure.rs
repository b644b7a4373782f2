//! How a command fails: one line, and an exit code.

use std::fmt;
use std::process::ExitCode;

use warpverbs::ErrorKind;

use crate::interrupt::Signal;

/// Exit code of a run that failed, a finding, an unknown device.
const FAILED: u8 = 1;
/// Exit code of bad usage.
pub(crate) const USAGE: u8 = 2;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Options that make no sense.
    Usage(String),
    /// A run that failed. The report was printed, if there was anything to report.
    Run(String),
    /// A run that a signal ended. The report was printed.
    Interrupted(Signal, String),
}

impl Failure {
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => ExitCode::from(USAGE),
            Self::Run(_) => ExitCode::from(FAILED),
            Self::Interrupted(signal, _) => signal.exit_code(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text) | Self::Run(text) | Self::Interrupted(_, text) => f.write_str(text),
        }
    }
}

impl From<warpverbs::Error> for Failure {
    fn from(error: warpverbs::Error) -> Self {
        let text = one_line(&error);
        match error.kind() {
            ErrorKind::InvalidArgument => Self::Usage(text),
            _ => Self::Run(text),
        }
    }
}

/// The error, and what to do about it.
pub(crate) fn one_line(error: &warpverbs::Error) -> String {
    format!("{error}; {}", error.cure())
}
