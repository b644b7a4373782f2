//! The errors by which a WQE ends.
//!
//! Knows: syndrome and vendor syndrome of each, as seen or assumed (docs/hardware-facts.md).
//! Must not know: when each happens.

use warpverbs_wire::cqe::{Syndrome, vendor_syndrome};

/// Vendor syndrome of a local protection error: seen in a public report (93005204).
const VENDOR_LOCAL_PROTECTION: u8 = 0x52;
/// Vendor syndrome of a local QP operation error: assumed.
const VENDOR_LOCAL_QP_OPERATION: u8 = 0x68;
/// Vendor syndrome of the errors that no public report shows: assumed.
const VENDOR_UNKNOWN: u8 = 0;

/// An error that ends a WQE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failed {
    pub(crate) syndrome: Syndrome,
    pub(crate) vendor: u8,
}

pub(crate) const LOCAL_QP_OPERATION: Failed = Failed {
    syndrome: Syndrome::LocalQpOperation,
    vendor: VENDOR_LOCAL_QP_OPERATION,
};
pub(crate) const LOCAL_LENGTH: Failed = Failed {
    syndrome: Syndrome::LocalLength,
    vendor: VENDOR_UNKNOWN,
};
pub(crate) const LOCAL_PROTECTION: Failed = Failed {
    syndrome: Syndrome::LocalProtection,
    vendor: VENDOR_LOCAL_PROTECTION,
};
pub(crate) const REMOTE_INVALID_REQUEST: Failed = Failed {
    syndrome: Syndrome::RemoteInvalidRequest,
    vendor: vendor_syndrome::REMOTE_INVALID_REQUEST,
};
pub(crate) const REMOTE_ACCESS: Failed = Failed {
    syndrome: Syndrome::RemoteAccess,
    vendor: vendor_syndrome::REMOTE_ACCESS,
};
pub(crate) const REMOTE_OPERATION: Failed = Failed {
    syndrome: Syndrome::RemoteOperation,
    vendor: VENDOR_UNKNOWN,
};
pub(crate) const RETRY_EXCEEDED: Failed = Failed {
    syndrome: Syndrome::TransportRetryExceeded,
    vendor: vendor_syndrome::RETRY_EXCEEDED,
};
pub(crate) const RNR_RETRY_EXCEEDED: Failed = Failed {
    syndrome: Syndrome::RnrRetryExceeded,
    vendor: VENDOR_UNKNOWN,
};
pub(crate) const BAD_RESPONSE: Failed = Failed {
    syndrome: Syndrome::BadResponse,
    vendor: VENDOR_UNKNOWN,
};
