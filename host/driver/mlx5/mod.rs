//! A real mlx5 NIC, through libibverbs and libmlx5's DevX.
//!
//! Knows: which call of rdma-core belongs to which method, and what a driver keeps by handle.
//! Must not know: what is built with it, or whether the kernel behind it is one.
//!
//! rdma-core is loaded when a NIC is opened; a machine without it gets an error then.

#[allow(unsafe_code)]
mod device;
mod error;
#[allow(unsafe_code)]
mod objects;

pub use device::Mlx5;
