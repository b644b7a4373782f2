//! A dmabuf descriptor for the length of one registration.
//!
//! Knows: that a descriptor is closed exactly once right after import, on success and on failure.
//! Must not know: what is registered.

use super::GpuContext;
use crate::driver::{DriverErrorKind, MemoryRegion};
use crate::error::{Error, Result};
use crate::teardown::{attach, building};

/// Exports `len` bytes of GPU memory at `addr`, lets `import` register them, and closes the
/// descriptor. If only the close fails, the import is undone by dropping it. Memory of a GPU that exports none is registered
/// by its address, as peer-memory modules have it.
pub(super) fn with_dmabuf<T>(
    gpu: &GpuContext,
    addr: u64,
    len: u64,
    import: impl FnOnce(MemoryRegion) -> Result<T>,
) -> Result<T> {
    let driver = gpu.driver();
    let (fd, offset) = match driver.export_dmabuf(addr, len) {
        Err(error) if error.kind == DriverErrorKind::Unsupported => {
            return import(MemoryRegion::Address { addr, len });
        }
        exported => exported.map_err(Error::driver("export GPU memory as a dmabuf"))?,
    };
    let imported = import(MemoryRegion::Dmabuf {
        fd,
        offset,
        len,
        iova: addr,
    });
    let closed = driver
        .close_dmabuf(fd)
        .map_err(Error::driver("close a dmabuf descriptor"));
    match (imported, closed) {
        (Err(first), Err(later)) => Err(attach(first, "dmabuf descriptor", later)),
        (imported, Ok(())) => imported,
        (Ok(imported), Err(error)) => building(|| {
            drop(imported);
            Err(error)
        }),
    }
}
