//! UMEM: memory that queues and doorbell records lie in.
//!
//! One of the files that call `unsafe` functions.

use std::sync::Arc;

use super::dmabuf::with_dmabuf;
use super::{Context, GpuMemory, MemoryNode};
use crate::driver::{Access, UmemInfo};
use crate::error::{Error, Result};
use crate::teardown::{Graph, Node, Pin, Shared, Slot};

/// Alignment of the parts of a UMEM.
pub(super) const PART_ALIGN: u64 = 4096;

/// Page sizes that a NIC may use for a UMEM: 4 KiB to 64 KiB. mlx5 gives a queue's offset in a page
/// 6 bits (`qpc.page_offset`, `cqc.page_offset`), so a page is at most 64 times the smallest
/// alignment of a part; and GPU memory comes in pages of 64 KiB.
const PAGE_SIZES: u64 = (64 * 1024 * 2 - 1) & !(PART_ALIGN - 1);
const _: () = assert!(64 * PART_ALIGN >= 64 * 1024);

/// A UMEM over GPU memory.
#[derive(Clone, Debug)]
pub(crate) struct Umem {
    info: UmemInfo,
    node: Shared<UmemNode>,
}

impl Umem {
    /// Registers the first `len` bytes of `memory`.
    pub(crate) fn register(context: &Context, memory: &GpuMemory, len: u64) -> Result<Self> {
        debug_assert!(len <= memory.len());
        let pin = memory.pin()?;
        with_dmabuf(memory.gpu(), memory.addr(), len, |region| {
            // SAFETY: `Nic::reg_umem` demands
            // - that memory given by address stays allocated until deregistered: it is given by
            //   dmabuf, and the node holds the memory besides;
            // - that nothing holds a Rust reference to the bytes: GPU memory is never referenced by
            //   host code.
            let registered = unsafe {
                context
                    .driver()
                    .reg_umem(region, Access::LOCAL_WRITE, PAGE_SIZES)
            };
            let info = registered.map_err(Error::driver("register a UMEM"))?;
            let node = UmemNode {
                context: context.clone(),
                info,
                memory: pin,
            };
            Ok(Self {
                info,
                node: Shared::new(node),
            })
        })
    }

    /// The id by which mailboxes name it.
    pub(crate) fn id(&self) -> u32 {
        self.info.id
    }

    pub(crate) fn pin(&self) -> Result<Pin<UmemNode>> {
        self.node.pin()
    }

    pub(crate) fn slot(&self) -> Arc<dyn Slot> {
        self.node.slot()
    }
}

pub(crate) struct UmemNode {
    context: Context,
    info: UmemInfo,
    memory: Pin<MemoryNode>,
}

impl Node for UmemNode {
    const NAME: &'static str = "UMEM";

    fn number(&self) -> Option<u64> {
        Some(self.info.id.into())
    }

    fn destroy(&self) -> Result<()> {
        self.context.undo("deregister the UMEM", |nic| {
            nic.dereg_umem(self.info.handle)
        })
    }

    fn graph(&self) -> &Graph {
        self.context.graph()
    }

    fn parents(&self) -> Vec<Arc<dyn Slot>> {
        vec![self.memory.slot()]
    }
}
