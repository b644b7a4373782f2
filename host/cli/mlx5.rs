//! Real NICs, by name.
//!
//! Knows: how one is opened, and what to say where there is none. Must not know: what it is used for.

use std::sync::Arc;

#[cfg(target_os = "linux")]
pub(crate) use warpverbs::driver::mlx5::Mlx5;

use warpverbs::driver::{Gpu, Nic};

use crate::failure::Failure;

/// A NIC, and what runs kernels beside it.
pub(crate) type NicAndGpu = (Arc<dyn Nic>, Arc<dyn Gpu>);

/// Opens the RDMA device of that name.
#[cfg(target_os = "linux")]
pub(crate) fn open(name: &str) -> Result<Arc<Mlx5>, Failure> {
    match Mlx5::open(name) {
        Ok(nic) => Ok(Arc::new(nic)),
        Err(error) => Err(Failure::Run(format!(
            "no NIC named {name:?}: {error}; use --nic sim"
        ))),
    }
}

/// As [`open`], with the host's CPUs as a GPU beside it.
#[cfg(target_os = "linux")]
pub(crate) fn open_with_host(name: &str) -> Result<NicAndGpu, Failure> {
    let nic = open(name)?;
    let gpu = warpverbs::driver::mlx5::host_gpu(std::slice::from_ref(&nic));
    Ok((nic, gpu))
}

/// True if the device is `sim-env`'s, which the driver cannot know.
pub(crate) fn is_simulated(name: &str) -> bool {
    std::env::var_os("SYSFS_PATH").is_some_and(|root| {
        let board = std::path::Path::new(&root).join(format!("class/infiniband/{name}/board_id"));
        std::fs::read_to_string(board).is_ok_and(|board| board.starts_with("SIM"))
    })
}

/// The name for a report: it says so if the device is `sim-env`'s.
pub(crate) fn shown(name: &str) -> String {
    if is_simulated(name) {
        format!("{name} (sim)")
    } else {
        name.to_owned()
    }
}

/// There are none.
#[cfg(not(target_os = "linux"))]
pub(crate) fn open_with_host(name: &str) -> Result<NicAndGpu, Failure> {
    Err(match open(name) {
        Ok(_) => Failure::Run(format!("NIC {name:?} cannot be used")),
        Err(failure) => failure,
    })
}

/// There are none.
#[cfg(not(target_os = "linux"))]
pub(crate) fn open(name: &str) -> Result<Arc<dyn Nic>, Failure> {
    Err(Failure::Run(format!(
        "no NIC named {name:?}: RDMA devices need Linux; use --nic sim"
    )))
}
