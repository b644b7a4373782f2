//! Standard output and standard error, either of which may be a pipe that nobody reads any more, or a full disk.
//!
//! Knows: that such an output is a failure, never a panic. Must not know: what is written.

use std::io::{self, Write};

use crate::failure::Failure;

/// Writes results to standard output.
pub(crate) fn result(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Failure::Run(format!("cannot write to standard output: {error}")))
}

/// Says what went wrong on standard error. Where that cannot be written to either, the exit code must do.
pub(crate) fn complaint(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}
