//! The crate's error: what failed, which kind of failure it is, and what to do about it.
//!
//! Knows: every way in which this crate refuses or fails.
//! Must not know: how a driver found out.

use std::fmt;
use std::time::Duration;

use warpverbs_wire::abi;

use crate::driver::{DriverError, DriverErrorKind};
use crate::export::QpFault;
use crate::stall::Stall;
use crate::teardown::{CloseReport, Retained};

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed. Messages are one line; [`Error::cure`] says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A driver refused a call.
    #[error("cannot {doing}: {source}")]
    Driver {
        /// What the crate was doing.
        doing: &'static str,
        /// What the driver said.
        source: DriverError,
    },
    /// An argument is out of range, or arguments contradict each other.
    #[error("{what}")]
    InvalidArgument {
        /// What is wrong.
        what: String,
        /// What to do.
        cure: &'static str,
    },
    /// The device does not offer what was asked for.
    #[error("{what}")]
    Unsupported {
        /// What is missing.
        what: String,
        /// What to do.
        cure: &'static str,
    },
    /// Something still uses the object: nothing was changed.
    #[error("{what} is in use by {users} other owner(s)")]
    Busy {
        /// The object.
        what: &'static str,
        /// How many owners hold it besides the caller.
        users: usize,
    },
    /// A launch was refused: a launch on another stream uses the QP, and one of the two has it for itself.
    #[error("QP {qpn:#x} is in use by a launch on another stream, and not shared by both")]
    QpLeased {
        /// The QP.
        qpn: u32,
    },
    /// The pool has no free place.
    #[error("all {places} place(s) of the pool are taken")]
    PoolFull {
        /// Places that it has.
        places: u32,
    },
    /// A kernel still runs: what it uses is kept.
    #[error("kernel {kernel} still runs")]
    Running {
        /// The kernel.
        kernel: String,
    },
    /// The object was closed before.
    #[error("{what} is closed")]
    Closed {
        /// The object.
        what: &'static str,
    },
    /// The QP is in a state that does not allow the call.
    #[error("cannot {doing}: the QP is {state}")]
    QpState {
        /// What was asked for.
        doing: &'static str,
        /// The QP's state.
        state: &'static str,
    },
    /// The bytes of a remote QP cannot be used.
    #[error("the remote QP's connection info cannot be used: {0}")]
    ConnectInfo(#[from] crate::connect::InfoError),
    /// The PTX module was built for another version of the device ABI.
    #[error("the module {module} has device ABI {}, this crate has {expected}", Found(.found))]
    ModuleAbi {
        /// The module's name.
        module: String,
        /// The version that the module states; `None` if it states none.
        found: Option<u32>,
        /// The version of this crate.
        expected: u32,
    },
    /// No embedded PTX runs on this GPU.
    #[error("no embedded PTX runs on compute capability {compute_capability}")]
    NoPtx {
        /// The GPU's compute capability, such as 90 for 9.0.
        compute_capability: u32,
    },
    /// Something did not finish in time. What it uses is kept.
    #[error("{what} did not finish within {waited:?}")]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// How long.
        waited: Duration,
    },
    /// A QP in error has not retired all that was posted to it. What it may access is kept.
    #[error("QP {qpn:#x} has {pending} WQEBB(s) outstanding after {waited:?}")]
    Undrained {
        /// The QP.
        qpn: u32,
        /// WQEBBs that have not retired.
        pending: u16,
        /// How long was waited.
        waited: Duration,
    },
    /// Closing is not complete: the report says what stays and why. Closing again goes on.
    #[error("closed as far as this: {0}")]
    Incomplete(Box<CloseReport>),
    /// A call failed, and not all that it had done could be undone.
    #[error("{first}; not undone: {}", Joined(.retained))]
    Rollback {
        /// Why the call failed.
        first: Box<Error>,
        /// What is left, and why.
        retained: Vec<Retained>,
    },
    /// What a GPU has told the host thread that rings for it is no producer of the QP: something else wrote there. No doorbell
    /// was made of it.
    #[error(
        "QP {qpn:#x} asks for the doorbell up to index {producer:#x}, which is not within its depth of {rung:#x}, the last one"
    )]
    ProxyRecord {
        /// The QP.
        qpn: u32,
        /// What was found.
        producer: u64,
        /// What was rung for.
        rung: u64,
    },
    /// The thread that rang for the QP has died in a driver's call.
    #[error("the thread that rang for QP {qpn:#x} has died")]
    ProxyDied {
        /// The QP.
        qpn: u32,
    },
    /// A kernel's thread did not complete its operations.
    #[error(
        "thread {thread} of {kernel}: {reason}; {completed} of {expected} operations completed{}",
        Why(.stall)
    )]
    Thread {
        /// The kernel.
        kernel: std::sync::Arc<str>,
        /// The first thread that failed.
        thread: usize,
        /// Why.
        reason: ThreadError,
        /// Operations whose completion the thread saw.
        completed: u64,
        /// Operations that it was to do.
        expected: u64,
        /// If its wait reached the deadline: a QP, by number, and why nothing completed on it.
        stall: Option<Box<(u32, Stall)>>,
    },
}

/// Display of a stall, behind the sentence that it explains.
struct Why<'a>(&'a Option<Box<(u32, Stall)>>);

impl fmt::Display for Why<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(stalled) => write!(f, "; on QP {:#x} {}", stalled.0, stalled.1),
            None => Ok(()),
        }
    }
}

/// Why a thread of a provided kernel ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ThreadError {
    /// The thread never ran, or never reported.
    #[error("it reported nothing")]
    NotRun,
    /// A wait's deadline passed.
    #[error("a wait reached its deadline")]
    Timeout,
    /// The host asked to stop.
    #[error("it was stopped")]
    Stopped,
    /// The QP is at fault.
    #[error("{0}")]
    Fault(QpFault),
    /// A handle or parameter block of another version.
    #[error("it was given version {seen}, the kernel has version {}", abi::VERSION)]
    BadVersion {
        /// The version that it saw.
        seen: u32,
    },
    /// A parameter is out of range.
    #[error("it refused a parameter")]
    InvalidArgument,
    /// An outcome that this version does not name.
    #[error("it reported the unknown outcome {0}")]
    Unknown(u32),
}

/// Kinds of [`Error`]: what a caller can do about one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Call it differently.
    InvalidArgument,
    /// The device or driver cannot do it.
    Unsupported,
    /// Out of memory, or of a resource of the NIC or GPU.
    Exhausted,
    /// Something still uses the object; try again later.
    Busy,
    /// The object is in a state that does not allow it.
    State,
    /// Two sides are of different versions.
    Incompatible,
    /// It did not finish in time.
    Timeout,
    /// The driver or firmware refused.
    Refused,
    /// Work on the GPU failed.
    Run,
    /// The device is gone.
    DeviceLost,
}

impl Error {
    /// Wraps a driver's error: `map_err(Error::driver("allocate GPU memory"))`.
    pub(crate) fn driver(doing: &'static str) -> impl FnOnce(DriverError) -> Self {
        move |source| Self::Driver { doing, source }
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Driver { source, .. } => match source.kind {
                DriverErrorKind::InvalidArgument | DriverErrorKind::InvalidPtx => {
                    ErrorKind::InvalidArgument
                }
                DriverErrorKind::Busy => ErrorKind::Busy,
                DriverErrorKind::Exhausted => ErrorKind::Exhausted,
                DriverErrorKind::Unsupported => ErrorKind::Unsupported,
                DriverErrorKind::KernelFault => ErrorKind::Run,
                DriverErrorKind::DeviceLost => ErrorKind::DeviceLost,
                // Linux's ETIMEDOUT: the firmware did not answer.
                DriverErrorKind::Os(110) => ErrorKind::Timeout,
                DriverErrorKind::Command { .. }
                | DriverErrorKind::NotFound
                | DriverErrorKind::Os(_) => ErrorKind::Refused,
            },
            Self::InvalidArgument { .. } => ErrorKind::InvalidArgument,
            Self::Unsupported { .. } | Self::NoPtx { .. } => ErrorKind::Unsupported,
            Self::Busy { .. } | Self::Running { .. } | Self::QpLeased { .. } => ErrorKind::Busy,
            Self::PoolFull { .. } => ErrorKind::Exhausted,
            Self::Closed { .. } | Self::QpState { .. } => ErrorKind::State,
            Self::ConnectInfo(_) | Self::ModuleAbi { .. } => ErrorKind::Incompatible,
            Self::Timeout { .. } | Self::Undrained { .. } => ErrorKind::Timeout,
            Self::ProxyRecord { .. } | Self::ProxyDied { .. } => ErrorKind::Run,
            Self::Rollback { first, .. } => first.kind(),
            // What is busy is so because of something else: of which kind that is matters more.
            Self::Incomplete(report) => report
                .retained
                .iter()
                .map(|retained| retained.kind)
                .find(|kind| *kind != ErrorKind::Busy)
                .unwrap_or(ErrorKind::Busy),
            Self::Thread { reason, .. } => match reason {
                ThreadError::Timeout => ErrorKind::Timeout,
                ThreadError::BadVersion { .. } => ErrorKind::Incompatible,
                ThreadError::InvalidArgument => ErrorKind::InvalidArgument,
                _ => ErrorKind::Run,
            },
        }
    }

    /// What to do about it, in one line.
    pub fn cure(&self) -> &'static str {
        match self {
            Self::InvalidArgument { cure, .. } | Self::Unsupported { cure, .. } => cure,
            Self::Driver { source, .. } => driver_cure(source.kind),
            Self::Busy { .. } => "drop or close what uses it first",
            Self::QpLeased { .. } => {
                "launch on the other launch's stream, wait for it to finish, or share the QP in both"
            }
            Self::PoolFull { .. } => "close a QP of the pool first, or create a larger one",
            Self::Running { .. } => "stop its QPs, wait for it, and try again",
            Self::Closed { .. } => "create it again",
            Self::QpState { .. } => {
                "connect the QP before it is exported; unexport and reset it after an error"
            }
            Self::ConnectInfo(_) => {
                "exchange the bytes of local_info() unchanged, with the same crate version on both sides"
            }
            Self::ModuleAbi { .. } => {
                "rebuild the PTX with the warpverbs-device of this crate's version"
            }
            Self::NoPtx { .. } => {
                "build the kernels for this GPU with warpverbs-build and load them with Module::load"
            }
            Self::Undrained { .. } => "look at the NIC; close again, with more time",
            Self::ProxyRecord { .. } => {
                "look for what writes to the QP's record; then reset the QP, and add it again"
            }
            Self::ProxyDied { .. } => {
                "look at the driver; then reset the QP, and add it to another proxy"
            }
            Self::Rollback { first, .. } => first.cure(),
            Self::Incomplete(_) => {
                "remove what the report names as cause, and close again: it goes on where it stopped"
            }
            Self::Timeout { .. } => "call stop() on the QPs and wait again, or wait longer",
            Self::Thread { reason, .. } => match reason {
                ThreadError::Fault(fault) => fault.cure(),
                ThreadError::Timeout => {
                    "allow a longer deadline than the QP's retry time, and look at the port"
                }
                ThreadError::Stopped => "nothing: stop() was called",
                ThreadError::BadVersion { .. } => {
                    "rebuild the PTX with the warpverbs-device of this crate's version"
                }
                ThreadError::InvalidArgument => "check the parameters against warpverbs_wire::abi",
                ThreadError::NotRun | ThreadError::Unknown(_) => {
                    "check that the module is built from this crate's kernels"
                }
            },
        }
    }
}

fn driver_cure(kind: DriverErrorKind) -> &'static str {
    match kind {
        DriverErrorKind::Command { .. } => "look the firmware's syndrome up in the NIC's log",
        DriverErrorKind::InvalidArgument => "correct the argument that the message names",
        DriverErrorKind::NotFound => "check the name, and that the object was not closed",
        DriverErrorKind::Busy => "close what uses it first",
        DriverErrorKind::Exhausted => "free what is no longer used, or ask for less",
        DriverErrorKind::Unsupported => "use a device or driver that offers it",
        DriverErrorKind::InvalidPtx => "correct the PTX at the line that the message names",
        DriverErrorKind::KernelFault => {
            "correct the kernel; open the GPU again, its context is dead"
        }
        DriverErrorKind::DeviceLost => "open the device again",
        DriverErrorKind::Os(_) => "see the operating system's error",
    }
}

/// A call that took an object and failed, with the object handed back. Convert it with `?` to drop
/// the object.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Refused<T> {
    /// Why.
    pub error: Error,
    /// The object, unchanged or with the part of the work done that succeeded; calling again
    /// resumes.
    pub value: T,
}

impl<T> From<Refused<T>> for Error {
    fn from(refused: Refused<T>) -> Self {
        refused.error
    }
}

struct Joined<'a>(&'a [Retained]);

impl std::fmt::Display for Joined<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, retained) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "; " };
            write!(f, "{comma}{retained}")?;
        }
        Ok(())
    }
}

struct Found<'a>(&'a Option<u32>);

impl std::fmt::Display for Found<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(version) => write!(f, "{version}"),
            None => f.write_str("none"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_cross_threads() {
        fn check<T: Send + Sync + std::error::Error + 'static>() {}
        check::<Error>();
        check::<DriverError>();
    }
}
