//! UMEM: memory that queues and doorbell records lie in.
//!
//! One of the files that call `unsafe` functions.

use std::sync::Arc;

use super::layout::MAX_PAGE;
use super::memory_path::{Purpose, register_gpu_memory};
use super::{Context, GpuMemory, MemoryNode};
use crate::driver::{Access, UmemInfo};
use crate::error::{Error, Result};
use crate::teardown::{Graph, Node, Pin, Shared, Slot};

/// Page sizes that a NIC may use for a UMEM: always passed, since without them a driver promises offset 0 only.
const PAGE_SIZES: u64 = (MAX_PAGE * 2 - 1) & !(4096 - 1);

/// A UMEM over GPU memory.
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
                    pin.take().map(|memory| Self {
                        info,
                        node: Shared::new(UmemNode {
                            context: context.clone(),
                            info,
                            memory,
                        }),
                    })
                })
            },
        )?;
        made.ok_or(Error::Closed {
            what: UmemNode::NAME,
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
