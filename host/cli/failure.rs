//! How a command fails: one line, and an exit code.

use std::fmt;
use std::process::ExitCode;

use warpverbs::ErrorKind;

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
}

impl Failure {
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Usage(_) => USAGE,
            Self::Run(_) => FAILED,
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text) | Self::Run(text) => f.write_str(text),
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
