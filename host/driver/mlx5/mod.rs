//! A real mlx5 NIC, through libibverbs and libmlx5's DevX.
//!
//! Knows: which call of rdma-core belongs to which method, and what a driver keeps by handle.
//! Must not know: what is built with it, or whether the kernel behind it is one.
//!
//! rdma-core is loaded when a NIC is opened; a machine without it gets an error then.

#[allow(unsafe_code)]
mod counters;
#[allow(unsafe_code)]
mod device;
mod error;
#[allow(unsafe_code)]
mod objects;

pub use device::Mlx5;

/// A simulated GPU beside simulated NICs that the system's libraries drive (`sim-env`): its memory is files, which such a NIC takes
/// for dmabufs. A real NIC does not.
#[cfg(feature = "sim")]
pub fn sim_gpu(nics: &[std::sync::Arc<Mlx5>], seed: u64) -> std::sync::Arc<dyn super::Gpu> {
    let nics = nics.to_vec();
    super::sim::gpu_beside_nics(seed, move |addr| {
        nics.iter().any(|nic| nic.has_doorbell_page(addr))
    })
}

/// The host's CPUs as a GPU, beside NICs of the system: they run the native build of the embedded kernels over the process's own
/// memory. What the simulated GPU checks of a kernel's accesses, nobody checks there.
#[cfg(feature = "sim")]
pub fn host_gpu(nics: &[std::sync::Arc<Mlx5>]) -> std::sync::Arc<dyn super::Gpu> {
    let nics = nics.to_vec();
    std::sync::Arc::new(super::host_gpu::HostGpu::beside_real_nics(move |addr| {
        nics.iter().any(|nic| nic.has_doorbell_page(addr))
    }))
}
