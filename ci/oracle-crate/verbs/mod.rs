//! A program of verbs: a device, queues that libmlx5 makes, and a view of what lies in them.
//!
//! Knows: libibverbs' and libmlx5's calls. Must not know: what is compared.
//!
//! The folder with `unsafe`: each call of a C library is. All objects here are of one context and used by one thread; those that are
//! not destroyed live until the process ends.

mod cq;
mod device;
mod header;
mod peer;
mod qp;
mod receive;
mod send;

pub use cq::{Cq, Told};
pub use device::{Caps, Device};
pub use header::{bytes_of, header_control, header_cqe, header_data};
pub use peer::{GID, Peer};
pub use qp::Qp;
pub use receive::Srq;
