//! Real NICs, by name.
//!
//! Knows: how one is opened, and what to say where there is none. Must not know: what it is used for.

use std::sync::Arc;

use warpverbs::driver::Nic;

use crate::failure::Failure;

/// Opens the RDMA device of that name.
#[cfg(target_os = "linux")]
pub(crate) fn open(name: &str) -> Result<Arc<dyn Nic>, Failure> {
    match warpverbs::driver::mlx5::Mlx5::open(name) {
        Ok(nic) => Ok(Arc::new(nic)),
        Err(error) => Err(Failure::Run(format!(
            "no NIC named {name:?}: {error}; use --nic sim"
        ))),
    }
}

/// There are none.
#[cfg(not(target_os = "linux"))]
pub(crate) fn open(name: &str) -> Result<Arc<dyn Nic>, Failure> {
    Err(Failure::Run(format!(
        "no NIC named {name:?}: RDMA devices need Linux; use --nic sim"
    )))
}
