//! Errors as the kernel returns them.

use warpverbs_sim_nic::NicError;
use warpverbs_wire::prm::Status;

/// An error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

pub(crate) type Result<T> = std::result::Result<T, Errno>;

impl Errno {
    pub(crate) const INVAL: Self = Self(libc::EINVAL);
    pub(crate) const FAULT: Self = Self(libc::EFAULT);
    pub(crate) const NOENT: Self = Self(libc::ENOENT);
    pub(crate) const BADF: Self = Self(libc::EBADF);
    pub(crate) const BUSY: Self = Self(libc::EBUSY);
    pub(crate) const NOSPC: Self = Self(libc::ENOSPC);
    pub(crate) const NOMEM: Self = Self(libc::ENOMEM);
    pub(crate) const NOTTY: Self = Self(libc::ENOTTY);
    pub(crate) const NODATA: Self = Self(libc::ENODATA);
    pub(crate) const OPNOTSUPP: Self = Self(libc::EOPNOTSUPP);
    pub(crate) const PROTONOSUPPORT: Self = Self(libc::EPROTONOSUPPORT);
    /// The firmware refused; its output mailbox says why.
    pub(crate) const REMOTEIO: Self = Self(libc::EREMOTEIO);
}

impl From<NicError> for Errno {
    fn from(error: NicError) -> Self {
        match error {
            NicError::NoObject(_) => Self::NOENT,
            NicError::Busy { .. } => Self::BUSY,
            NicError::Exhausted(_) => Self::NOMEM,
            // A neighbour that does not answer (drivers/infiniband/core/addr.c).
            NicError::Unreachable(_) => Self(libc::ETIMEDOUT),
            _ => Self::INVAL,
        }
    }
}

/// The error of a command that the driver sends for itself (Linux mlx5 `cmd_status_to_err`).
pub(crate) fn of_status(status: Status) -> Errno {
    Errno(match status {
        Status::InternalError
        | Status::BadSystemState
        | Status::BadInputLength
        | Status::BadOutputLength => libc::EIO,
        Status::ResourceBusy => libc::EBUSY,
        Status::LimitExceeded => libc::ENOMEM,
        Status::NoResources => libc::EAGAIN,
        _ => libc::EINVAL,
    })
}
