//! The doorbell page, and its mapping into the GPU.
//!
//! Knows: the order in which kinds of page are tried, and that the mapping goes before the page.
//! Must not know: what is rung.

use std::sync::Arc;

use warpverbs_wire::doorbell::REGISTER_NO_DBR;

use super::{Context, GpuContext};
use crate::driver::{NicHandle, UarInfo, UarKind};
use crate::error::{Error, Result};
use crate::teardown::{Graph, Node, Pin, Shared, Slot};

/// Kinds in the order of preference: a page of its own keeps doorbells of other QPs off its
/// registers; a BlueFlame page takes doorbells too, although write-combined.
const KINDS: [UarKind; 3] = [
    UarKind::NonCachedDedicated,
    UarKind::NonCached,
    UarKind::BlueFlame,
];

/// A doorbell page.
#[derive(Clone, Debug)]
pub(crate) struct Uar {
    context: Context,
    info: UarInfo,
    node: Shared<UarNode>,
}

impl Uar {
    /// Allocates a page of the first kind that the NIC grants.
    pub(crate) fn alloc(context: &Context) -> Result<Self> {
        let mut first = None;
        for kind in KINDS {
            match context.driver().alloc_uar(kind) {
                Ok(info) => {
                    tracing::debug!(?kind, page_id = info.page_id, "doorbell page");
                    let node = UarNode {
                        context: context.clone(),
                        info,
                    };
                    return Ok(Self {
                        context: context.clone(),
                        info,
                        node: Shared::new(node),
                    });
                }
                Err(refusal) => {
                    tracing::debug!(?kind, %refusal, "doorbell page refused");
                    first.get_or_insert(refusal);
                }
            }
        }
        // Every kind was refused, so there is a first refusal.
        Err(first.map_or(
            Error::Closed {
                what: UarNode::NAME,
            },
            Error::driver("allocate a doorbell page"),
        ))
    }

    /// The id by which mailboxes name it.
    pub(crate) fn page_id(&self) -> u32 {
        self.info.page_id
    }

    /// The driver's handle, to ring it from the CPU.
    pub(crate) fn handle(&self) -> NicHandle {
        self.info.handle
    }

    pub(crate) fn slot(&self) -> Arc<dyn Slot> {
        self.node.slot()
    }

    pub(crate) fn pin(&self) -> Result<Pin<UarNode>> {
        self.node.pin()
    }
}

pub(crate) struct UarNode {
    context: Context,
    info: UarInfo,
}

impl Node for UarNode {
    const NAME: &'static str = "doorbell page";

    fn number(&self) -> Option<u64> {
        Some(self.info.page_id.into())
    }

    fn destroy(&self) -> Result<()> {
        self.context.undo("free the doorbell page", |nic| {
            nic.free_uar(self.info.handle)
        })
    }

    fn graph(&self) -> &Graph {
        self.context.graph()
    }

    fn parents(&self) -> Vec<Arc<dyn Slot>> {
        Vec::new()
    }
}

/// A doorbell page as a GPU sees it.
#[derive(Clone, Debug)]
pub(crate) struct UarMap {
    addr: u64,
    doorbell_offset: u32,
    node: Shared<UarMapNode>,
}

impl UarMap {
    /// Maps a page into a GPU.
    pub(crate) fn map(gpu: &GpuContext, uar: &Uar) -> Result<Self> {
        let (info, pin) = (uar.info, uar.node.pin()?);
        let addr = gpu
            .driver()
            .map_uar(info.page, info.page_len)
            .map_err(Error::driver("map the doorbell page into the GPU"))?;
        let node = UarMapNode {
            context: uar.context.clone(),
            gpu: gpu.clone(),
            page: info.page,
            uar: pin,
        };
        Ok(Self {
            addr,
            doorbell_offset: info.doorbell_offset,
            node: Shared::new(node),
        })
    }

    /// Address of the doorbell register on the GPU.
    pub(crate) fn doorbell(&self) -> u64 {
        self.addr + u64::from(self.doorbell_offset)
    }

    /// Address of that of QPs without doorbell record.
    pub(crate) fn doorbell_without_record(&self) -> u64 {
        self.addr + REGISTER_NO_DBR as u64
    }

    pub(crate) fn pin(&self) -> Result<Pin<UarMapNode>> {
        self.node.pin()
    }

    pub(crate) fn slot(&self) -> Arc<dyn Slot> {
        self.node.slot()
    }
}

/// What a queue keeps of its doorbell page: the mapping that GPU threads ring through, or, where the host alone rings, the page.
pub(crate) enum PagePin {
    Mapped(Pin<UarMapNode>),
    Own(Pin<UarNode>),
}

impl PagePin {
    pub(crate) fn slot(&self) -> Arc<dyn Slot> {
        match self {
            Self::Mapped(map) => map.slot(),
            Self::Own(page) => page.slot(),
        }
    }
}

pub(crate) struct UarMapNode {
    context: Context,
    gpu: GpuContext,
    page: u64,
    uar: Pin<UarNode>,
}

impl Node for UarMapNode {
    const NAME: &'static str = "doorbell page mapping";

    fn number(&self) -> Option<u64> {
        Some(self.page)
    }

    fn destroy(&self) -> Result<()> {
        self.gpu
            .undo("unmap the doorbell page from the GPU", |gpu| {
                gpu.unmap_uar(self.page)
            })
    }

    /// The NIC's graph: closing the NIC takes its pages from the GPU.
    fn graph(&self) -> &Graph {
        self.context.graph()
    }

    fn parents(&self) -> Vec<Arc<dyn Slot>> {
        vec![self.uar.slot()]
    }
}
