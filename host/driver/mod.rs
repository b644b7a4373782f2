//! The two boundaries below which hardware or simulators plug in.
//!
//! Knows: what libmlx5's DevX and the CUDA driver offer, as two narrow traits.
//! Must not know: who implements them, or what the layers above build from them.

pub mod fault;
mod gpu;
#[cfg(feature = "sim")]
mod host_gpu;
#[cfg(target_os = "linux")]
pub mod mlx5;
mod nic;
#[cfg(feature = "sim")]
mod rows;
#[cfg(feature = "sim")]
pub mod sim;

pub use gpu::*;
pub use nic::*;

/// An error that a driver returned.
///
/// `kind` decides what a caller can do; `text` is the driver's own message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[error("{call}: {text}")]
pub struct DriverError {
    /// The call that failed.
    pub call: &'static str,
    /// What kind of failure it was.
    pub kind: DriverErrorKind,
    /// The driver's message.
    pub text: String,
}

/// Kinds of driver failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriverErrorKind {
    /// The firmware refused a command: status and syndrome of its output mailbox.
    Command {
        /// `status` of the output mailbox.
        status: u8,
        /// `syndrome` of the output mailbox.
        syndrome: u32,
    },
    /// An argument is out of range.
    InvalidArgument,
    /// No such object.
    NotFound,
    /// The object is in use.
    Busy,
    /// Out of memory, or of a NIC or GPU resource.
    Exhausted,
    /// The device or driver does not offer this.
    Unsupported,
    /// PTX that does not load.
    InvalidPtx,
    /// A kernel failed: an illegal access, a trap, no progress. The context is dead.
    KernelFault,
    /// The device is gone, or the context is dead.
    DeviceLost,
    /// A call of the operating system failed.
    Os(i32),
}

impl DriverError {
    /// An error.
    pub fn new(call: &'static str, kind: DriverErrorKind, text: impl Into<String>) -> Self {
        Self {
            call,
            kind,
            text: text.into(),
        }
    }
}
