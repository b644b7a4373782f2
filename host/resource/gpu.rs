//! The GPU and its memory.
//!
//! Knows: allocations, host-mapped words, and copies within an allocation's bounds.
//! Must not know: what the bytes mean.

use std::fmt;
use std::sync::Arc;

use crate::driver::{DriverError, Gpu, WriteOrdering};
use crate::error::{Error, Refused, Result};
use crate::teardown::{Node, Owner, Registry, Retained, Shared, close_shared};

/// A GPU, opened. Clones are the same GPU.
#[derive(Clone, Debug)]
pub struct GpuContext(Arc<Opened>);

#[derive(Debug)]
struct Opened {
    gpu: Arc<dyn Gpu>,
    registry: Registry,
}

impl GpuContext {
    /// Uses a GPU that a driver opened.
    pub fn open(gpu: Arc<dyn Gpu>) -> Result<Self> {
        if !gpu.is_alive() {
            return Err(Error::InvalidArgument {
                what: format!("the context of GPU {} is dead", gpu.name()),
                cure: "open the GPU again",
            });
        }
        tracing::info!(
            gpu = gpu.name(),
            compute_capability = gpu.compute_capability(),
            "GPU opened"
        );
        Ok(Self(Arc::new(Opened {
            gpu,
            registry: Registry::default(),
        })))
    }

    /// The GPU's name.
    pub fn name(&self) -> String {
        self.0.gpu.name()
    }

    /// The driver behind this GPU.
    pub fn driver(&self) -> &dyn Gpu {
        &*self.0.gpu
    }

    /// True if the GPU's own threads see what a NIC has written once they see its completion (rule
    /// O14).
    pub fn orders_nic_writes(&self) -> bool {
        self.0.gpu.write_ordering() >= WriteOrdering::Owner
    }

    /// Allocates GPU memory. `label` names it in messages.
    pub fn alloc(&self, len: u64, label: &str) -> Result<GpuMemory> {
        if len == 0 {
            return Err(Error::InvalidArgument {
                what: format!("GPU memory of 0 bytes asked for ({label})"),
                cure: "ask for at least 1 byte",
            });
        }
        let addr = self
            .driver()
            .alloc(len, label)
            .map_err(Error::driver("allocate GPU memory"))?;
        Ok(GpuMemory {
            gpu: self.clone(),
            addr,
            len,
            node: Arc::new(Owner::new(MemoryNode {
                gpu: self.clone(),
                addr,
            })),
        })
    }

    /// Allocates GPU memory that holds a copy of `bytes`.
    pub fn alloc_copy(&self, bytes: &[u8], label: &str) -> Result<GpuMemory> {
        let memory = self.alloc(bytes.len() as u64, label)?;
        memory.write(0, bytes)?;
        Ok(memory)
    }

    /// What could not be destroyed when it was dropped.
    pub fn retained(&self) -> Vec<Retained> {
        self.0.registry.retained()
    }

    /// Tries to destroy what is retained, and returns what still is.
    pub fn retry_retained(&self) -> Vec<Retained> {
        self.0.registry.retry()
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.0.registry
    }

    /// Undoes a driver call. On a dead context a refusal means nothing: what the context had is
    /// gone with it.
    pub(crate) fn undo(
        &self,
        doing: &'static str,
        call: impl FnOnce(&dyn Gpu) -> Result<(), DriverError>,
    ) -> Result<()> {
        match call(&*self.0.gpu) {
            Err(refusal) if !self.0.gpu.is_alive() => {
                tracing::warn!(%refusal, "not undone on a GPU whose context is dead");
                Ok(())
            }
            done => done.map_err(Error::driver(doing)),
        }
    }

    /// True if both are the same GPU.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0.gpu, &other.0.gpu)
    }
}

/// GPU memory that this crate allocated. Clones are the same memory; it is freed with the last of
/// them and of what is built on it.
#[derive(Clone)]
pub struct GpuMemory {
    gpu: GpuContext,
    addr: u64,
    len: u64,
    node: Shared<MemoryNode>,
}

impl GpuMemory {
    /// Its address on the GPU.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Its size in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Never: memory of 0 bytes cannot be allocated.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The GPU that it is memory of.
    pub fn gpu(&self) -> &GpuContext {
        &self.gpu
    }

    /// Copies bytes to it and waits.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let addr = self.at(offset, bytes.len() as u64)?;
        self.gpu
            .driver()
            .copy_to_device(addr, bytes)
            .map_err(Error::driver("copy to GPU memory"))
    }

    /// Copies bytes from it and waits.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let addr = self.at(offset, bytes.len() as u64)?;
        self.gpu
            .driver()
            .copy_from_device(bytes, addr)
            .map_err(Error::driver("copy from GPU memory"))
    }

    /// A copy of all its bytes.
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let len = usize::try_from(self.len).map_err(|_| self.outside(0, self.len))?;
        let mut bytes = vec![0; len];
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Frees it.
    pub fn close(mut self) -> Result<(), Refused<Self>> {
        close_shared(&mut self.node).map_err(|error| Refused { error, value: self })
    }

    /// Frees it in place, for an owner that closes its parts in turn.
    pub(crate) fn close_part(&mut self) -> Result<()> {
        close_shared(&mut self.node)
    }

    /// The node, to be kept by what is built on the memory.
    pub(crate) fn node(&self) -> Shared<MemoryNode> {
        self.node.clone()
    }

    fn at(&self, offset: u64, len: u64) -> Result<u64> {
        self.node.get()?;
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.addr + offset),
            _ => Err(self.outside(offset, len)),
        }
    }

    fn outside(&self, offset: u64, len: u64) -> Error {
        Error::InvalidArgument {
            what: format!(
                "{len} bytes at offset {offset} do not lie in GPU memory of {} bytes",
                self.len
            ),
            cure: "stay within the memory's size",
        }
    }
}

impl fmt::Debug for GpuMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GpuMemory({:#x}, {} bytes)", self.addr, self.len)
    }
}

/// An allocation of GPU memory.
pub(crate) struct MemoryNode {
    gpu: GpuContext,
    addr: u64,
}

impl Node for MemoryNode {
    const NAME: &'static str = "GPU memory";

    fn destroy(&mut self) -> Result<()> {
        self.gpu.undo("free GPU memory", |gpu| gpu.free(self.addr))
    }

    fn registry(&self) -> &Registry {
        &self.gpu.0.registry
    }
}

/// A word of host memory that the GPU reads too, such as a stop word.
#[derive(Clone, Debug)]
pub(crate) struct HostWord {
    gpu: GpuContext,
    addr: u64,
    node: Shared<HostWordNode>,
}

impl HostWord {
    pub(crate) fn alloc(gpu: &GpuContext, label: &str) -> Result<Self> {
        let addr = gpu
            .driver()
            .alloc_host_mapped(8, label)
            .map_err(Error::driver("allocate host-mapped memory"))?;
        Ok(Self {
            gpu: gpu.clone(),
            addr,
            node: Arc::new(Owner::new(HostWordNode {
                gpu: gpu.clone(),
                addr,
            })),
        })
    }

    /// Its address on the GPU.
    pub(crate) fn addr(&self) -> u64 {
        self.addr
    }

    pub(crate) fn store(&self, value: u64) -> Result<()> {
        self.node.get()?;
        self.gpu
            .driver()
            .store_release(self.addr, value)
            .map_err(Error::driver("store to host-mapped memory"))
    }

    pub(crate) fn close_part(&mut self) -> Result<()> {
        close_shared(&mut self.node)
    }
}

struct HostWordNode {
    gpu: GpuContext,
    addr: u64,
}

impl Node for HostWordNode {
    const NAME: &'static str = "host-mapped memory";

    fn destroy(&mut self) -> Result<()> {
        self.gpu.undo("free host-mapped memory", |gpu| {
            gpu.free_host_mapped(self.addr)
        })
    }

    fn registry(&self) -> &Registry {
        &self.gpu.0.registry
    }
}
