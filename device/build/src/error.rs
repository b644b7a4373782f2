//! What can go wrong, and what to do about it.

use std::{fmt, io, path::PathBuf};

use crate::text::Finding;

/// Why there is no PTX.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The architecture is none that this crate knows.
    BadArch {
        /// What was asked for.
        arch: String,
    },
    /// There is no crate where one was named.
    NoCrate {
        /// Its manifest, as looked for.
        manifest: PathBuf,
        /// Why it cannot be read.
        source: io::Error,
    },
    /// No compiler on this machine can emit PTX.
    NoToolchain {
        /// Those that were looked at.
        rejected: Vec<Rejected>,
    },
    /// cargo cannot be started.
    Cargo {
        /// Why.
        source: io::Error,
    },
    /// The device crate does not compile.
    Compile {
        /// What cargo said.
        output: String,
    },
    /// The PTX has what it must not have.
    Refused {
        /// Where it lies.
        path: PathBuf,
        /// What was found.
        findings: Vec<Finding>,
    },
    /// A file cannot be read or written.
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A compiler that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// How it was found.
    pub candidate: String,
    /// Why not.
    pub reason: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadArch { arch } => {
                write!(f, "unknown GPU architecture `{arch}`: use sm_70 to sm_121")
            }
            Self::NoCrate { manifest, source } => {
                write!(
                    f,
                    "no device crate: cannot read {}: {source}",
                    manifest.display()
                )
            }
            Self::NoToolchain { rejected } => {
                write!(
                    f,
                    "no Rust compiler that can emit PTX: run `rustup toolchain install nightly -c rust-src`, or on Debian \
                     `apt install rustc-web rust-web-src`, or set {} to a rustc (1.95 or newer) that has the library sources",
                    crate::RUSTC_VARIABLE
                )?;
                for (i, Rejected { candidate, reason }) in rejected.iter().enumerate() {
                    f.write_str(if i == 0 { "; looked at: " } else { ", " })?;
                    write!(f, "{candidate} ({reason})")?;
                }
                Ok(())
            }
            Self::Cargo { source } => write!(f, "cannot run cargo: {source}"),
            Self::Compile { output } => write!(
                f,
                "the device crate does not compile:\n{}",
                output.trim_end()
            ),
            Self::Refused { path, findings } => {
                write!(f, "{}: the PTX is refused", path.display())?;
                for finding in findings {
                    write!(f, "\n  {finding}")?;
                }
                Ok(())
            }
            Self::File { path, source } => write!(f, "{}: {source}", path.display()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NoCrate { source, .. } | Self::Cargo { source } | Self::File { source, .. } => {
                Some(source)
            }
            Self::BadArch { .. }
            | Self::NoToolchain { .. }
            | Self::Compile { .. }
            | Self::Refused { .. } => None,
        }
    }
}
