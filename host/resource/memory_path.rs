//! How a NIC reaches memory of a GPU: which ways there are, in which order they are tried, and what was found out.
//!
//! Knows: that a dmabuf's descriptor is closed exactly once right after import, on success and on failure.
//! Must not know: what is registered.

use std::fmt::Write as _;

use super::umem::Umem;
use super::{Context, GpuContext, Mr, Pd};
use crate::driver::{Access, DmabufMapping, DriverError, DriverErrorKind, MemoryRegion};
use crate::error::{Error, Result};
use crate::teardown::{attach, building};

/// A way from a NIC to memory of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryPath {
    /// A dmabuf that is mapped over PCIe, and the NIC's data-direct function.
    DataDirect,
    /// A dmabuf.
    Dmabuf,
    /// The address, which a peer-memory module of the kernel knows.
    PeerMemory,
}

impl MemoryPath {
    /// All of them, in the order in which they are tried.
    pub const ALL: [Self; 3] = [Self::DataDirect, Self::Dmabuf, Self::PeerMemory];

    /// A short name that does not change.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DataDirect => "data-direct",
            Self::Dmabuf => "dmabuf",
            Self::PeerMemory => "peer-memory",
        }
    }

    /// What it takes.
    pub const fn cure(self) -> &'static str {
        match self {
            Self::DataDirect => {
                "use a NIC with a data-direct function, Linux 6.12, rdma-core 54 and a GPU driver that maps dmabufs over PCIe"
            }
            Self::Dmabuf => {
                "use Linux 5.12 with CONFIG_DMABUF_MOVE_NOTIFY, rdma-core 34 and the GPU's open kernel modules"
            }
            Self::PeerMemory => "load the peer-memory module (`modprobe nvidia-peermem`)",
        }
    }
}

/// How a NIC reaches memory of a GPU, as far as registrations have found out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPaths {
    /// The way of memory regions.
    pub data: Option<MemoryPath>,
    /// The way of queues and doorbell records.
    pub queues: Option<MemoryPath>,
    /// Ways that were refused, each with its reason; [`MemoryPath::cure`] says what it takes.
    pub refused: Vec<(MemoryPath, DriverError)>,
}

impl Context {
    /// Finds out how this NIC reaches memory of a GPU: registers some, and takes it back. Where no way is offered the error says
    /// what each takes.
    pub fn probe_memory(&self, gpu: &GpuContext) -> Result<MemoryPaths> {
        building(|| {
            let pd = Pd::alloc(self)?;
            let memory = gpu.alloc(64 * 1024, "probe")?;
            let _umem = Umem::register(self, &memory)?;
            let _mr = Mr::register(&pd, &memory, Access::LOCAL_WRITE)?;
            Ok(self.memory_paths(gpu))
        })
    }
}

/// What memory is registered for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Messages.
    Data,
    /// Queues: never over the data-direct function, for which UMEMs have no flag.
    Queues,
}

/// Lets `import` register `len` bytes of GPU memory at `addr`, by the first way that is not refused, beginning with the one that
/// worked before. A descriptor is closed right after its import; if only that fails, the import is undone by dropping it.
pub(super) fn register_gpu_memory<T>(
    (context, gpu): (&Context, &GpuContext),
    purpose: Purpose,
    (addr, len): (u64, u64),
    doing: &'static str,
    mut import: impl FnMut(MemoryRegion) -> Result<T, DriverError>,
) -> Result<(T, MemoryPath)> {
    let known = context.memory_paths(gpu);
    let first = match purpose {
        Purpose::Data => known.data,
        Purpose::Queues => known.queues,
    };
    let mut refused: Vec<(MemoryPath, DriverError)> = Vec::new();
    let tried = MemoryPath::ALL
        .into_iter()
        .filter(|path| first.is_none_or(|first| *path >= first))
        .filter(|path| purpose == Purpose::Data || *path != MemoryPath::DataDirect);
    for path in tried {
        let attempt = if path == MemoryPath::DataDirect && !context.capabilities().data_direct {
            let text = "the NIC has no data-direct function, or rdma-core does not know of it";
            Err(Stop::Refused(DriverError::new(
                "data_direct",
                DriverErrorKind::Unsupported,
                text,
            )))
        } else {
            by(path, gpu, addr, len, doing, &mut import)
        };
        match attempt {
            Ok(made) => {
                if first != Some(path) {
                    tracing::info!(
                        nic = context.name(),
                        gpu = gpu.name(),
                        ?purpose,
                        path = path.name(),
                        "way to GPU memory"
                    );
                    context.note_memory(gpu, |paths| match purpose {
                        Purpose::Data => {
                            paths.data.get_or_insert(path);
                            paths.refused = refused;
                        }
                        Purpose::Queues => {
                            paths.queues.get_or_insert(path);
                        }
                    });
                }
                return Ok((made, path));
            }
            Err(Stop::Refused(refusal)) => {
                tracing::debug!(path = path.name(), %refusal, "way to GPU memory refused");
                refused.push((path, refusal));
            }
            Err(Stop::Failed(error)) => return Err(error),
        }
    }
    Err(Error::driver(doing)(all_refused(&refused)))
}

/// Why a way is not taken.
enum Stop {
    /// It is not offered: the next one may be.
    Refused(DriverError),
    /// It is offered, and failed.
    Failed(Error),
}

fn by<T>(
    path: MemoryPath,
    gpu: &GpuContext,
    addr: u64,
    len: u64,
    doing: &'static str,
    import: &mut impl FnMut(MemoryRegion) -> Result<T, DriverError>,
) -> Result<T, Stop> {
    let driver = gpu.driver();
    let not_offered = |error: &DriverError| match (path, error.kind) {
        (_, DriverErrorKind::Unsupported) => true,
        // mlx5_ib's answer for what a data-direct registration cannot have, such as atomics; and of an address that no module
        // takes for a peer's.
        (MemoryPath::DataDirect | MemoryPath::PeerMemory, DriverErrorKind::InvalidArgument) => true,
        _ => false,
    };
    let stop = |doing: &'static str, error: DriverError| {
        if not_offered(&error) {
            Stop::Refused(error)
        } else {
            Stop::Failed(Error::driver(doing)(error))
        }
    };
    let (mapping, data_direct) = match path {
        MemoryPath::DataDirect => (DmabufMapping::Pcie, true),
        MemoryPath::Dmabuf => (DmabufMapping::Default, false),
        MemoryPath::PeerMemory => {
            return import(MemoryRegion::Address { addr, len }).map_err(|error| stop(doing, error));
        }
    };
    let (fd, offset) =
        driver
            .export_dmabuf(addr, len, mapping)
            .map_err(|error| match error.kind {
                DriverErrorKind::Unsupported => Stop::Refused(error),
                _ => Stop::Failed(Error::driver("export GPU memory as a dmabuf")(error)),
            })?;
    let imported = import(MemoryRegion::Dmabuf {
        fd,
        offset,
        len,
        iova: addr,
        data_direct,
    });
    let closed = driver
        .close_dmabuf(fd)
        .map_err(Error::driver("close a dmabuf descriptor"));
    match (imported, closed) {
        (imported, Ok(())) => imported.map_err(|error| stop(doing, error)),
        (Err(first), Err(later)) => Err(Stop::Failed(attach(
            Error::driver(doing)(first),
            "dmabuf descriptor",
            later,
        ))),
        (Ok(imported), Err(error)) => Err(Stop::Failed(
            building::<T>(|| {
                drop(imported);
                Err(error)
            })
            .err()
            .unwrap_or(Error::Closed {
                what: "dmabuf descriptor",
            }),
        )),
    }
}

/// One error of all refusals, with the cure of each.
fn all_refused(refused: &[(MemoryPath, DriverError)]) -> DriverError {
    let mut text = String::from("no way to memory of this GPU");
    for (path, refusal) in refused {
        // Writing to a string does not fail.
        let _ = write!(text, "; {}: {refusal}: {}", path.name(), path.cure());
    }
    DriverError::new("reg_mr", DriverErrorKind::Unsupported, text)
}
