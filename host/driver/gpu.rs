//! The GPU boundary: what the CUDA driver gives, and nothing more.

use std::fmt;

use super::DriverError;

/// A driver's name for one of its objects. Meaningless to anyone else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GpuHandle(pub u64);

/// Grid and block of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks of the grid (x, y, z).
    pub grid: [u32; 3],
    /// Threads of a block (x, y, z).
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// True if blocks wait for each other: all must be resident together.
    pub cooperative: bool,
}

impl LaunchShape {
    /// A one-dimensional launch.
    pub const fn linear(blocks: u32, threads: u32) -> Self {
        Self {
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            shared_bytes: 0,
            cooperative: false,
        }
    }

    /// The same launch, cooperative.
    pub const fn cooperative(mut self) -> Self {
        self.cooperative = true;
        self
    }
}

/// How a stream or an event stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All work before it is done.
    Done,
    /// Some is not.
    Pending,
}

/// How a dmabuf is to be mapped by whoever imports it (`CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmabufMapping {
    /// As the GPU driver chooses.
    Default,
    /// Over PCIe, which data-direct access needs.
    Pcie,
}

/// How far the GPU orders writes of a NIC for its own threads
/// (`CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WriteOrdering {
    /// Not at all: a flush is needed.
    None,
    /// For threads of the GPU that owns the memory.
    Owner,
    /// For all GPUs.
    AllDevices,
}

/// Part of a run that a counter belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Phase {
    /// Everything else: prologue, epilogue, the loop around posts.
    Other = 0,
    /// A post, from reserve to hand-off, doorbell included.
    Post = 1,
    /// Looking at the CQ.
    Poll = 2,
    /// Repeated iterations of a wait.
    Spin = 3,
}

/// What GPU threads executed in one phase. Counts are per thread, summed over threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseCounters {
    /// Instructions, those below included; predicated-off ones count.
    pub instructions: u64,
    /// Load instructions from global or shared memory.
    pub loads: u64,
    /// Store instructions to global or shared memory, MMIO stores included.
    pub stores: u64,
    /// Atomic read-modify-writes.
    pub atomics: u64,
    /// Fence instructions.
    pub fences: u64,
    /// Loads, stores and atomics with an acquire or release qualifier.
    pub ordered: u64,
    /// MMIO stores.
    pub mmio_stores: u64,
}

/// Counters of a finished launch, by [`Phase`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchCounters {
    /// Indexed by `Phase as usize`.
    pub phases: [PhaseCounters; 4],
    /// Simulated time the launch took, in ns; not a measurement.
    pub simulated_ns: u64,
}

/// A GPU, opened. Shared by all owners of its objects.
///
/// Launches, events and copies on a stream are asynchronous; a query never blocks. A simulated GPU
/// makes its progress inside queries, copies and accesses to host-mapped words. Addresses are those
/// that the same trait returned, or lie within such an allocation: an implementation refuses
/// others, and never dereferences one that it does not know.
pub trait Gpu: Send + Sync + fmt::Debug {
    /// The device's name.
    fn name(&self) -> String;
    /// Compute capability, such as 90 for 9.0: decides which embedded PTX is loaded.
    fn compute_capability(&self) -> u32;
    /// False once the context is dead: no call but this one is of use any more.
    fn is_alive(&self) -> bool;

    /// Allocates GPU memory, aligned to at least 64 KiB pages so that it can be exported; returns
    /// its device address.
    fn alloc(&self, len: u64, label: &str) -> Result<u64, DriverError>;
    /// Frees it.
    fn free(&self, addr: u64) -> Result<(), DriverError>;
    /// Copies to GPU memory and waits.
    fn copy_to_device(&self, addr: u64, bytes: &[u8]) -> Result<(), DriverError>;
    /// Copies rows of `width` bytes, which follow each other in `bytes`, to GPU memory, where they lie `pitch` bytes apart,
    /// and waits (`cuMemcpy2D`).
    fn copy_rows_to_device(
        &self,
        addr: u64,
        pitch: u64,
        width: u64,
        bytes: &[u8],
    ) -> Result<(), DriverError>;
    /// Fills GPU memory with a byte and waits (`cuMemsetD8`).
    fn fill(&self, addr: u64, len: u64, byte: u8) -> Result<(), DriverError>;
    /// Copies from GPU memory and waits.
    fn copy_from_device(&self, bytes: &mut [u8], addr: u64) -> Result<(), DriverError>;

    /// Allocates zeroed host memory that the GPU can address; returns its device address, which is the host's too
    /// (unified addressing), so that a NIC can be given it.
    fn alloc_host_mapped(&self, len: u64, label: &str) -> Result<u64, DriverError>;
    /// Frees it.
    fn free_host_mapped(&self, addr: u64) -> Result<(), DriverError>;
    /// Loads the 8-byte word at a device address of host-mapped memory, with acquire order at
    /// system scope.
    fn load_acquire(&self, addr: u64) -> Result<u64, DriverError>;
    /// Stores to such a word, with release order at system scope.
    fn store_release(&self, addr: u64, value: u64) -> Result<(), DriverError>;
    /// Stores to the 4-byte word at a device address of host-mapped memory, likewise: one half of a doorbell record.
    fn store_release_u32(&self, addr: u64, value: u32) -> Result<(), DriverError>;

    /// Opens a dmabuf for a range of GPU memory and returns its descriptor and the range's offset
    /// in it.
    fn export_dmabuf(
        &self,
        addr: u64,
        len: u64,
        mapping: DmabufMapping,
    ) -> Result<(i32, u64), DriverError>;
    /// Closes a dmabuf descriptor.
    fn close_dmabuf(&self, fd: i32) -> Result<(), DriverError>;

    /// Maps a doorbell page, given by its CPU address, into the GPU; returns its device address. A page may be given several
    /// times, as a NIC's driver may hand out one page several times (rdma-core's that are not dedicated are one for all):
    /// CUDA registers no page twice (`cuMemHostRegister`), so an implementation maps it once and counts.
    fn map_uar(&self, page: u64, len: u64) -> Result<u64, DriverError>;
    /// Ends one mapping, by the page's CPU address; the last one takes it out of the GPU.
    fn unmap_uar(&self, page: u64) -> Result<(), DriverError>;

    /// How the GPU orders a NIC's writes.
    fn write_ordering(&self) -> WriteOrdering;
    /// Makes all writes that a NIC has made so far visible to the GPU
    /// (`cuFlushGPUDirectRDMAWrites`).
    fn flush_writes(&self) -> Result<(), DriverError>;

    /// Loads a PTX module and all its kernels.
    fn load_module(&self, ptx: &str) -> Result<GpuHandle, DriverError>;
    /// Unloads it.
    fn unload_module(&self, module: GpuHandle) -> Result<(), DriverError>;
    /// Address and size of a module's global; `None` if the module has no such global.
    fn module_global(
        &self,
        module: GpuHandle,
        name: &str,
    ) -> Result<Option<(u64, u64)>, DriverError>;
    /// Finds a kernel of a module by name.
    fn kernel(&self, module: GpuHandle, name: &str) -> Result<GpuHandle, DriverError>;
    /// How many blocks of this shape can be resident together.
    fn max_resident_blocks(
        &self,
        kernel: GpuHandle,
        shape: LaunchShape,
    ) -> Result<u32, DriverError>;

    /// Creates a stream.
    fn create_stream(&self) -> Result<GpuHandle, DriverError>;
    /// Destroys it.
    fn destroy_stream(&self, stream: GpuHandle) -> Result<(), DriverError>;
    /// Queries a stream.
    fn query_stream(&self, stream: GpuHandle) -> Result<Progress, DriverError>;
    /// Creates an event.
    fn create_event(&self) -> Result<GpuHandle, DriverError>;
    /// Destroys it.
    fn destroy_event(&self, event: GpuHandle) -> Result<(), DriverError>;
    /// Records an event after all work that the stream holds now.
    fn record_event(&self, event: GpuHandle, stream: GpuHandle) -> Result<(), DriverError>;
    /// Queries an event; one never recorded is done.
    fn query_event(&self, event: GpuHandle) -> Result<Progress, DriverError>;

    /// Launches a kernel. `params` is its parameter buffer, laid out as the kernel declares it.
    ///
    /// # Safety
    ///
    /// The kernel, given these parameters, accesses only memory that stays allocated until it has
    /// finished, and no memory that a Rust reference covers.
    #[allow(unsafe_code, reason = "a kernel can write wherever the GPU can")]
    unsafe fn launch(
        &self,
        kernel: GpuHandle,
        shape: LaunchShape,
        stream: GpuHandle,
        params: &[u8],
    ) -> Result<(), DriverError>;
    /// Counters of the launch that an event was recorded behind, once the event is done; `None` where the GPU cannot count.
    fn counters(&self, event: GpuHandle) -> Option<LaunchCounters>;
}
