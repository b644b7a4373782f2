//! How an operation on a queue can fail.

use warpverbs_wire::abi::{Outcome, State};

/// Why an operation on a queue did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The queue is full; nothing was changed.
    NoResource,
    /// The deadline passed; nothing was changed.
    Timeout,
    /// The host asked to stop; nothing was changed.
    Stopped,
    /// The QP is at fault; the state word says why. Every later post fails with the same.
    Fault(State),
    /// An argument is out of range: more WQEs than the queue can hold, a message longer than the port's largest, more
    /// inline data than a WQE takes, a mode that the handle does not have.
    InvalidArgument,
    /// The handle is of this other version.
    BadVersion(u32),
}

impl Error {
    /// What a kernel reports to the host.
    #[inline(always)]
    pub const fn outcome(self) -> Outcome {
        match self {
            Self::NoResource => Outcome::NoResource,
            Self::Timeout => Outcome::Timeout,
            Self::Stopped => Outcome::Stopped,
            Self::Fault(_) => Outcome::Fault,
            Self::InvalidArgument => Outcome::InvalidArgument,
            Self::BadVersion(_) => Outcome::BadVersion,
        }
    }
}
