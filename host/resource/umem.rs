//! UMEM: memory that queues and doorbell records lie in.
//!
//! One of the files that call `unsafe` functions.

use std::sync::Arc;

use super::gpu::HostWordsNode;
use super::layout::MAX_PAGE;
use super::memory_path::{Purpose, register_gpu_memory};
use super::{Context, GpuMemory, HostWords, MemoryNode};
use crate::driver::{Access, MemoryRegion, UmemInfo};
use crate::error::{Error, Result};
use crate::teardown::{Graph, Node, Pin, Shared, Slot};

/// Page sizes that a NIC may use for a UMEM: always passed, since without them a driver promises offset 0 only.
const PAGE_SIZES: u64 = (MAX_PAGE * 2 - 1) & !(4096 - 1);

/// A UMEM over GPU memory, or over host memory that the GPU has mapped.
#[derive(Clone, Debug)]
pub(crate) struct Umem {
    info: UmemInfo,
    node: Shared<UmemNode>,
}

impl Umem {
    /// Registers `memory`.
    pub(crate) fn register(context: &Context, memory: &GpuMemory) -> Result<Self> {
        let pin = memory.pin()?;
        let mut pin = Some(pin);
        let (made, _) = register_gpu_memory(
            (context, memory.gpu()),
            Purpose::Queues,
            (memory.addr(), memory.len()),
            "register a UMEM",
            |region| {
                // SAFETY: `Nic::reg_umem` demands
                // - that memory given by address stays allocated until deregistered: the node holds it;
                // - that nothing holds a Rust reference to the bytes: GPU memory is never referenced by
                //   host code.
                let registered = unsafe {
                    context
                        .driver()
                        .reg_umem(region, Access::LOCAL_WRITE, PAGE_SIZES)
                };
                registered.map(|info| {
                    // Of all attempts one succeeds.
                    pin.take()
                        .map(|memory| Self::new(context, info, Memory::Gpu(memory)))
                })
            },
        )?;
        made.ok_or(Error::Closed {
            what: UmemNode::NAME,
        })
    }

    /// Registers all of `words`.
    pub(crate) fn register_words(context: &Context, words: &HostWords) -> Result<Self> {
        let pin = words.pin()?;
        let region = MemoryRegion::Address {
            addr: words.addr(0),
            len: words.len(),
        };
        // SAFETY: `Nic::reg_umem` demands
        // - that memory given by address stays allocated until deregistered: the node holds it;
        // - that nothing holds a Rust reference to the bytes: they are accessed through `Gpu::load_acquire` and its like alone.
        let registered = unsafe {
            context
                .driver()
                .reg_umem(region, Access::LOCAL_WRITE, PAGE_SIZES)
        };
        let info = registered.map_err(Error::driver("register a UMEM"))?;
        Ok(Self::new(context, info, Memory::Host(pin)))
    }

    fn new(context: &Context, info: UmemInfo, memory: Memory) -> Self {
        let node = UmemNode {
            context: context.clone(),
            info,
            memory,
        };
        Self {
            info,
            node: Shared::new(node),
        }
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
    memory: Memory,
}

/// What it is over.
enum Memory {
    Gpu(Pin<MemoryNode>),
    Host(Pin<HostWordsNode>),
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
        vec![match &self.memory {
            Memory::Gpu(memory) => memory.slot(),
            Memory::Host(words) => words.slot(),
        }]
    }
}
