//! Errors of rdma-core, as the driver's.
//!
//! Knows: error numbers, output mailboxes, and what to do about each.
//! Must not know: which object it is about.

use warpverbs_wire::prm::Status;
use warpverbs_wire::prm::header::Reply;

use crate::driver::{DriverError, DriverErrorKind};
use crate::ffi::NotLoaded;

/// The error number of the last call on this thread.
pub(super) fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// What a call's error number says. Calls that return one return it, or its negation.
pub(super) fn of_errno(call: &'static str, number: i32) -> DriverError {
    let number = number.abs();
    let kind = match number {
        libc::EBUSY => DriverErrorKind::Busy,
        libc::ENOMEM | libc::ENOSPC | libc::EMFILE | libc::EAGAIN => DriverErrorKind::Exhausted,
        libc::EOPNOTSUPP | libc::ENOSYS | libc::EPROTONOSUPPORT | libc::ENOTTY => {
            DriverErrorKind::Unsupported
        }
        libc::EINVAL | libc::EFAULT | libc::E2BIG => DriverErrorKind::InvalidArgument,
        libc::ENOENT => DriverErrorKind::NotFound,
        libc::EIO | libc::ENODEV => DriverErrorKind::DeviceLost,
        _ => DriverErrorKind::Os(number),
    };
    let text = std::io::Error::from_raw_os_error(number);
    DriverError::new(call, kind, text.to_string())
}

/// As [`of_errno`], of a registration of memory: what the numbers mean there.
pub(super) fn of_registration(call: &'static str, number: i32) -> DriverError {
    let error = of_errno(call, number);
    let why = match number.abs() {
        libc::ENOMEM => {
            "no memory can be pinned, or RLIMIT_MEMLOCK is too low: raise it (`ulimit -l unlimited`)"
        }
        libc::EFAULT => "the range is not all memory of this process, or may not be written",
        libc::EOPNOTSUPP | libc::EPROTONOSUPPORT => {
            "the kernel or rdma-core cannot register this: dmabufs need Linux 5.12 and rdma-core 34, with \
             CONFIG_DMABUF_MOVE_NOTIFY"
        }
        _ => return error,
    };
    DriverError::new(call, error.kind, format!("{why} ({})", error.text))
}

/// The error of a command: what the firmware answered, if it was the firmware that refused. Newer versions of libmlx5 put
/// another error number in the place of EREMOTEIO, so the mailbox is looked at whatever the number is.
pub(super) fn of_command(call: &'static str, number: i32, output: &[u8]) -> DriverError {
    match Reply::parse(output) {
        Ok(reply) if reply.status != Status::Ok => {
            let (status, syndrome) = (reply.status.code(), reply.syndrome);
            DriverError::new(
                call,
                DriverErrorKind::Command { status, syndrome },
                format!(
                    "the firmware refused: status {status:#04x} ({:?}), syndrome {syndrome:#x}",
                    reply.status
                ),
            )
        }
        _ => of_errno(call, number),
    }
}

/// rdma-core is not there.
pub(super) fn of_loading(call: &'static str, error: &NotLoaded) -> DriverError {
    DriverError::new(call, DriverErrorKind::Unsupported, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_the_firmware_is_told_with_its_numbers() {
        let mut output = [0; 16];
        output[0] = 0x03;
        output[4..8].copy_from_slice(&0x00ab_cdefu32.to_be_bytes());
        for number in [libc::EREMOTEIO, -libc::EREMOTEIO, libc::EINVAL, libc::EBUSY] {
            let error = of_command("obj_create", number, &output);
            assert_eq!(
                error.kind,
                DriverErrorKind::Command {
                    status: 3,
                    syndrome: 0x00ab_cdef
                }
            );
            assert!(error.text.contains("BadParameter") && error.text.contains("0xabcdef"));
        }
        let error = of_command("obj_create", libc::EINVAL, &[0; 16]);
        assert_eq!(error.kind, DriverErrorKind::InvalidArgument);
        assert_eq!(
            of_command("obj_create", libc::EBUSY, &[]).kind,
            DriverErrorKind::Busy
        );
    }

    #[test]
    fn a_limit_that_is_too_low_is_named_with_its_cure() {
        let error = of_registration("reg_mr", libc::ENOMEM);
        assert_eq!(error.kind, DriverErrorKind::Exhausted);
        assert!(error.text.contains("ulimit -l"), "{error}");
        assert_eq!(
            of_registration("reg_mr", libc::EPERM).kind,
            DriverErrorKind::Os(libc::EPERM)
        );
    }
}
