//! The GPU and its memory.
//!
//! Knows: allocations, host-mapped words, and copies within an allocation's bounds.
//! Must not know: what the bytes mean.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::driver::{DriverError, Gpu, WriteOrdering};
use crate::error::{Error, Refused, Result};
use crate::teardown::{
    CloseReport, Entered, GRACE, Graph, Node, Pin, Retained, Shared, Slot, building,
    deadline_after, untold,
};

/// A GPU, opened. Clones are the same GPU.
#[derive(Clone, Debug)]
pub struct GpuContext(Arc<Opened>);

/// A GPU that may have been closed.
#[derive(Clone, Debug)]
pub(super) struct WeakGpu(Weak<Opened>);

impl WeakGpu {
    pub(super) fn is(&self, gpu: &GpuContext) -> bool {
        std::ptr::eq(self.0.as_ptr(), Arc::as_ptr(&gpu.0))
    }

    pub(super) fn is_open(&self) -> bool {
        self.0.strong_count() > 0
    }
}

#[derive(Debug)]
struct Opened {
    gpu: Arc<dyn Gpu>,
    graph: Graph,
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
            graph: Graph::new(crate::node_kinds::GPU),
        })))
    }

    /// A handle that does not keep it open.
    pub(super) fn downgrade(&self) -> WeakGpu {
        WeakGpu(Arc::downgrade(&self.0))
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
        let _entered = self.enter()?;
        let addr = self
            .driver()
            .alloc(len, label)
            .map_err(Error::driver("allocate GPU memory"))?;
        Ok(GpuMemory {
            gpu: self.clone(),
            addr,
            len,
            node: Shared::new(MemoryNode {
                gpu: self.clone(),
                addr,
            }),
        })
    }

    /// Allocates GPU memory that holds a copy of `bytes`.
    pub fn alloc_copy(&self, bytes: &[u8], label: &str) -> Result<GpuMemory> {
        building(|| {
            let memory = self.alloc(bytes.len() as u64, label)?;
            memory.write(0, bytes)?;
            Ok(memory)
        })
    }

    /// Closes the GPU for all who hold it: calls under way end and later ones fail, running kernels are told to stop and
    /// waited for, and everything that was built on the GPU is destroyed, whoever still holds it; but not what a NIC still
    /// uses: close that first. After a refusal the rest goes on; closing again resumes with what is left.
    pub fn close(self) -> Result<CloseReport, Refused<Self>> {
        self.close_within(GRACE)
    }

    /// As [`Self::close`], with the time that kernels may take.
    pub fn close_within(self, time: Duration) -> Result<CloseReport, Refused<Self>> {
        let report = self.0.graph.close(deadline_after(time));
        report
            .into_result()
            .map_err(|error| Refused { error, value: self })
    }

    /// What could not be destroyed when it was dropped, or when the GPU was closed.
    pub fn retained(&self) -> Vec<Retained> {
        self.0.graph.retained()
    }

    /// Tries to destroy what is retained, and returns what still is.
    pub fn retry_retained(&self) -> Vec<Retained> {
        self.0.graph.retry(deadline_after(GRACE))
    }

    pub(crate) fn graph(&self) -> &Graph {
        &self.0.graph
    }

    /// Begins a call; fails if the GPU is closed.
    pub(crate) fn enter(&self) -> Result<Entered> {
        self.0.graph.enter()
    }

    /// False once its context is dead: no kernel runs any more, and no call is of use.
    pub fn is_alive(&self) -> bool {
        self.0.gpu.is_alive()
    }

    /// Undoes a driver call. On a dead context there is nothing to undo: what it had is gone with it.
    pub(crate) fn undo(
        &self,
        doing: &'static str,
        call: impl FnOnce(&dyn Gpu) -> Result<(), DriverError>,
    ) -> Result<()> {
        if !self.is_alive() {
            untold(format!("GPU {}: {doing}", self.name()));
            return Ok(());
        }
        match call(&*self.0.gpu) {
            // It died meanwhile.
            Err(_) if !self.is_alive() => {
                untold(format!("GPU {}: {doing}", self.name()));
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
        self.node
            .visit(|_| self.gpu.driver().copy_to_device(addr, bytes))?
            .map_err(Error::driver("copy to GPU memory"))
    }

    /// Copies rows of `width` bytes to it, `pitch` bytes apart, and waits.
    pub(crate) fn write_rows(
        &self,
        offset: u64,
        pitch: u64,
        width: usize,
        rows: &[u8],
    ) -> Result<()> {
        if rows.len() <= width {
            return self.write(offset, rows);
        }
        let pitches = (rows.len() / width - 1) as u64;
        let len = pitches.saturating_mul(pitch).saturating_add(width as u64);
        let addr = self.at(offset, len)?;
        self.node
            .visit(|_| {
                self.gpu
                    .driver()
                    .copy_rows_to_device(addr, pitch, width as u64, rows)
            })?
            .map_err(Error::driver("copy to GPU memory"))
    }

    /// Fills a part of it with a byte and waits.
    pub(crate) fn fill(&self, offset: u64, len: u64, byte: u8) -> Result<()> {
        let addr = self.at(offset, len)?;
        self.node
            .visit(|_| self.gpu.driver().fill(addr, len, byte))?
            .map_err(Error::driver("fill GPU memory"))
    }

    /// Copies bytes from it and waits.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let addr = self.at(offset, bytes.len() as u64)?;
        self.node
            .visit(|_| self.gpu.driver().copy_from_device(bytes, addr))?
            .map_err(Error::driver("copy from GPU memory"))
    }

    /// A copy of all its bytes.
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let len = usize::try_from(self.len).map_err(|_| self.outside(0, self.len))?;
        let mut bytes = vec![0; len];
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Frees it. Busy while something is built on it, or a launch uses it.
    pub fn close(self) -> Result<(), Refused<Self>> {
        self.node
            .close()
            .map_err(|error| Refused { error, value: self })
    }

    /// Keeps the memory, for what is built on it.
    pub(crate) fn pin(&self) -> Result<Pin<MemoryNode>> {
        self.node.pin()
    }

    pub(crate) fn slot(&self) -> Arc<dyn Slot> {
        self.node.slot()
    }

    fn at(&self, offset: u64, len: u64) -> Result<u64> {
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

    fn number(&self) -> Option<u64> {
        Some(self.addr)
    }

    fn destroy(&self) -> Result<()> {
        self.gpu.undo("free GPU memory", |gpu| gpu.free(self.addr))
    }

    fn graph(&self) -> &Graph {
        self.gpu.graph()
    }

    fn parents(&self) -> Vec<Arc<dyn Slot>> {
        Vec::new()
    }
}

/// Words of host memory that the GPU reads too, such as stop words.
#[derive(Clone, Debug)]
pub(crate) struct HostWords {
    gpu: GpuContext,
    addr: u64,
    count: u32,
    node: Shared<HostWordsNode>,
}

impl HostWords {
    /// Allocates `count` words of zero.
    pub(crate) fn alloc(gpu: &GpuContext, count: u32, label: &str) -> Result<Self> {
        let _entered = gpu.enter()?;
        let addr = gpu
            .driver()
            .alloc_host_mapped(u64::from(count) * 8, label)
            .map_err(Error::driver("allocate host-mapped memory"))?;
        Ok(Self {
            gpu: gpu.clone(),
            addr,
            count,
            node: Shared::new(HostWordsNode {
                gpu: gpu.clone(),
                addr,
            }),
        })
    }

    /// Address of a word on the GPU.
    pub(crate) fn addr(&self, index: u32) -> u64 {
        self.addr + u64::from(index) * 8
    }

    /// Bytes of all.
    pub(crate) fn len(&self) -> u64 {
        u64::from(self.count) * 8
    }

    pub(crate) fn store(&self, index: u32, value: u64) -> Result<()> {
        let addr = self.addr(index);
        self.node
            .visit(|_| self.gpu.driver().store_release(addr, value))?
            .map_err(Error::driver("store to host-mapped memory"))
    }

    /// Stores 4 bytes at a byte of a word.
    pub(crate) fn store_u32(&self, index: u32, byte: usize, value: u32) -> Result<()> {
        let addr = self.addr(index) + byte as u64;
        self.node
            .visit(|_| self.gpu.driver().store_release_u32(addr, value))?
            .map_err(Error::driver("store to host-mapped memory"))
    }

    pub(crate) fn load(&self, index: u32) -> Result<u64> {
        let addr = self.addr(index);
        self.node
            .visit(|_| self.gpu.driver().load_acquire(addr))?
            .map_err(Error::driver("load from host-mapped memory"))
    }

    pub(crate) fn pin(&self) -> Result<Pin<HostWordsNode>> {
        self.node.pin()
    }

    pub(crate) fn slot(&self) -> Arc<dyn Slot> {
        self.node.slot()
    }
}

pub(crate) struct HostWordsNode {
    gpu: GpuContext,
    addr: u64,
}

impl Node for HostWordsNode {
    const NAME: &'static str = "host-mapped memory";

    fn number(&self) -> Option<u64> {
        Some(self.addr)
    }

    fn destroy(&self) -> Result<()> {
        self.gpu.undo("free host-mapped memory", |gpu| {
            gpu.free_host_mapped(self.addr)
        })
    }

    fn graph(&self) -> &Graph {
        self.gpu.graph()
    }

    fn parents(&self) -> Vec<Arc<dyn Slot>> {
        Vec::new()
    }
}
