//! The memory region: GPU memory, host memory, or memory that another library owns.
//!
//! Knows: what keeps each kind of memory alive while the NIC may access it.
//! Must not know: who accesses it.
//!
//! One of the files that call `unsafe` functions.

use std::ops::Range;
use std::sync::Arc;

use super::memory_path::{MemoryPath, Purpose, register_gpu_memory};
use super::pd::PdNode;
use super::{Context, GpuContext, GpuMemory, HostMemory, MemoryNode, Pd};
use crate::driver::{Access, MemoryRegion, MrInfo};
use crate::error::{Error, Refused, Result};
use crate::teardown::{Graph, Node, Pin, Shared, Slot};

/// A memory region: memory that the NIC may access. Clones are the same region.
#[derive(Clone, Debug)]
pub struct Mr {
    context: Context,
    addr: u64,
    len: u64,
    info: MrInfo,
    gpu: Option<GpuContext>,
    path: Option<MemoryPath>,
    node: Shared<MrNode>,
}

/// What a peer needs to reach a region with RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteMr {
    /// Address of the first byte.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// Remote key.
    pub rkey: u32,
}

impl Mr {
    /// Registers GPU memory.
    pub fn register(pd: &Pd, memory: &GpuMemory, access: Access) -> Result<Self> {
        Self::register_range(pd, memory, 0..memory.len(), access)
    }

    /// Registers a range of GPU memory.
    pub fn register_range(
        pd: &Pd,
        memory: &GpuMemory,
        range: Range<u64>,
        access: Access,
    ) -> Result<Self> {
        if range.start >= range.end || range.end > memory.len() {
            return Err(Error::InvalidArgument {
                what: format!(
                    "the range {}..{} is not a part of GPU memory of {} bytes",
                    range.start,
                    range.end,
                    memory.len()
                ),
                cure: "register at least one byte, within the memory's size",
            });
        }
        let addr = memory.addr() + range.start;
        let keep = Keep::Gpu(memory.pin()?);
        Self::over_dmabuf(
            pd,
            memory.gpu(),
            addr,
            range.end - range.start,
            access,
            keep,
        )
    }

    /// Registers GPU memory that another library owns. It is borrowed: closing the region does not
    /// free it.
    ///
    /// # Safety
    ///
    /// Until the region is closed, the memory stays allocated, and no Rust reference to its bytes
    /// exists.
    pub unsafe fn adopt_gpu(
        pd: &Pd,
        gpu: &GpuContext,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Self> {
        Self::over_dmabuf(pd, gpu, addr, len, access, Keep::Nothing)
    }

    /// Registers host memory.
    pub fn register_host(pd: &Pd, memory: &HostMemory, access: Access) -> Result<Self> {
        let (addr, len) = (memory.addr(), memory.len() as u64);
        // SAFETY: `adopt_host` demands
        // - that the memory stays allocated until the region is closed: the node holds it;
        // - that no Rust reference to its bytes exists unless they are atomics: they are.
        unsafe { Self::over_address(pd, addr, len, access, Keep::Host(memory.clone())) }
    }

    /// Registers host memory that the caller owns. It is borrowed: closing the region does not free
    /// it.
    ///
    /// # Safety
    ///
    /// Until the region is closed, the memory stays allocated, and no Rust reference to its bytes
    /// exists, unless they are atomics or in an `UnsafeCell`. A region whose deregistration is
    /// refused stays open ([`crate::Context::retained`]).
    pub unsafe fn adopt_host(pd: &Pd, addr: *mut u8, len: u64, access: Access) -> Result<Self> {
        // SAFETY: the caller promises what `over_address` demands.
        unsafe { Self::over_address(pd, addr as usize as u64, len, access, Keep::Nothing) }
    }

    /// Address of the first byte, as work requests name it.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Its size in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Never: a region of 0 bytes cannot be registered.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The key for local use.
    pub fn lkey(&self) -> u32 {
        self.info.lkey
    }

    /// What a peer needs to reach it.
    pub fn remote(&self) -> RemoteMr {
        RemoteMr {
            addr: self.addr,
            len: self.len,
            rkey: self.info.rkey,
        }
    }

    /// How the NIC reaches it; `None` of host memory.
    pub fn memory_path(&self) -> Option<MemoryPath> {
        self.path
    }

    /// True if it is memory of this GPU.
    pub(crate) fn is_on(&self, gpu: &GpuContext) -> bool {
        self.gpu.as_ref().is_some_and(|own| own.is(gpu))
    }

    /// Deregisters it. Busy while a launch uses it, or work requests that a launch has left outstanding, or a QP of its PD
    /// that could not be drained.
    #[allow(clippy::result_large_err, reason = "a refusal hands the region back")]
    pub fn close(self) -> Result<(), Refused<Self>> {
        self.node
            .close()
            .map_err(|error| Refused { error, value: self })
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn pin(&self) -> Result<Pin<MrNode>> {
        self.node.pin()
    }

    fn over_dmabuf(
        pd: &Pd,
        gpu: &GpuContext,
        addr: u64,
        len: u64,
        access: Access,
        keep: Keep,
    ) -> Result<Self> {
        check_len(len)?;
        let (_entered, pin) = (pd.context().enter()?, pd.pin()?);
        let handle = pin.info().handle;
        let mut parts = Some((pin, keep));
        let (made, path) = register_gpu_memory(
            (pd.context(), gpu),
            Purpose::Data,
            (addr, len),
            "register GPU memory",
            |region| {
                // SAFETY: `Nic::reg_mr` demands
                // - that memory given by address stays allocated until deregistered: the node keeps the
                //   memory, or `adopt_gpu`'s caller does;
                // - that nothing holds a Rust reference to the bytes: GPU memory that this crate owns
                //   is never referenced by host code, and `adopt_gpu`'s caller promises it for the
                //   rest.
                let registered = unsafe { pd.context().driver().reg_mr(handle, region, access) };
                registered.map(|info| {
                    // Of all attempts one succeeds.
                    parts.take().map(|(pin, keep)| {
                        Self::new(pd, pin, addr, len, info, Some(gpu.clone()), keep)
                    })
                })
            },
        )?;
        let mut made = made.ok_or(Error::Closed { what: MrNode::NAME })?;
        made.path = Some(path);
        Ok(made)
    }

    /// # Safety
    ///
    /// As for [`Self::adopt_host`], unless `keep` sees to it.
    unsafe fn over_address(
        pd: &Pd,
        addr: u64,
        len: u64,
        access: Access,
        keep: Keep,
    ) -> Result<Self> {
        check_len(len)?;
        let (_entered, pin) = (pd.context().enter()?, pd.pin()?);
        let region = MemoryRegion::Address { addr, len };
        // SAFETY: the caller promises what `Nic::reg_mr` demands.
        let registered = unsafe {
            pd.context()
                .driver()
                .reg_mr(pin.info().handle, region, access)
        };
        let info = registered.map_err(Error::driver("register host memory"))?;
        Ok(Self::new(pd, pin, addr, len, info, None, keep))
    }

    fn new(
        pd: &Pd,
        pin: Pin<PdNode>,
        addr: u64,
        len: u64,
        info: MrInfo,
        gpu: Option<GpuContext>,
        keep: Keep,
    ) -> Self {
        let node = MrNode {
            context: pd.context().clone(),
            info,
            pd: pin,
            memory: keep,
        };
        Self {
            context: pd.context().clone(),
            addr,
            len,
            info,
            gpu,
            path: None,
            node: Shared::new(node),
        }
    }
}

/// What must stay as long as the region does.
enum Keep {
    /// The caller sees to it.
    Nothing,
    Gpu(Pin<MemoryNode>),
    Host(#[expect(dead_code, reason = "held, not read")] HostMemory),
}

fn check_len(len: u64) -> Result<()> {
    if len == 0 {
        return Err(Error::InvalidArgument {
            what: "a memory region of 0 bytes asked for".into(),
            cure: "register at least 1 byte",
        });
    }
    Ok(())
}

pub(crate) struct MrNode {
    context: Context,
    info: MrInfo,
    pd: Pin<PdNode>,
    memory: Keep,
}

impl Node for MrNode {
    const NAME: &'static str = "MR";

    fn number(&self) -> Option<u64> {
        Some(self.info.lkey.into())
    }

    fn destroy(&self) -> Result<()> {
        // A QP that may still have work outstanding may access any MR of its PD.
        let users = self.pd.undrained();
        if users > 0 {
            return Err(Error::Busy {
                what: Self::NAME,
                users,
            });
        }
        self.context.undo("deregister the memory region", |nic| {
            nic.dereg_mr(self.info.handle)
        })
    }

    fn graph(&self) -> &Graph {
        self.context.graph()
    }

    fn parents(&self) -> Vec<Arc<dyn Slot>> {
        let memory = match &self.memory {
            Keep::Gpu(memory) => Some(memory.slot()),
            Keep::Nothing | Keep::Host(_) => None,
        };
        std::iter::once(self.pd.slot()).chain(memory).collect()
    }
}
