//! The completion queue of a send queue, or of a receive queue.

use std::sync::Arc;

use warpverbs_wire::prm::cqc::Cqc;
use warpverbs_wire::prm::create_cq;

use super::slab::{Slab, Tenancy};
use super::uar::PagePin;
use super::umem::UmemNode;
use super::{Context, mailbox};
use crate::driver::NicHandle;
use crate::error::Result;
use crate::teardown::{Graph, Node, Pin, Shared, Slot};

/// A CQ in a UMEM.
#[derive(Clone, Debug)]
pub(crate) struct Cq {
    cqn: u32,
    node: Shared<CqNode>,
}

/// Where a CQ lies in a slab, and its size.
#[derive(Clone, Copy, Debug)]
pub(super) struct CqPlace {
    pub(super) ring: u64,
    pub(super) depth: u32,
    pub(super) collapsed: bool,
    pub(super) record: u64,
}

impl Cq {
    /// Creates a CQ.
    ///
    /// It ignores overrun: it has a CQE for every WQE that its queue can hold, so it cannot
    /// overrun, and GPU threads need not keep its doorbell record.
    pub(super) fn create(
        context: &Context,
        slab: &Slab,
        place: CqPlace,
        tenancy: Tenancy,
    ) -> Result<Self> {
        let (umem, page) = (slab.umem().pin()?, slab.pin_page()?);
        let input = create_cq::In {
            cq_context: Cqc {
                cc: place.collapsed,
                oi: true,
                log_cq_size: place.depth.ilog2() as u8,
                uar_page: slab.uar().page_id(),
                c_eqn: context.event_queue()?,
                dbr_umem_valid: true,
                dbr_umem_id: slab.umem().id(),
                dbr_addr: place.record,
                ..Cqc::default()
            },
            cq_umem_valid: true,
            cq_umem_id: slab.umem().id(),
            cq_umem_offset: place.ring,
        };
        let (handle, out) = mailbox::create(context.driver(), "create the CQ", &input)?;
        let node = Shared::new(CqNode {
            context: context.clone(),
            handle,
            cqn: out.as_ref().ok().map(|out| out.cqn),
            umem,
            page,
            _tenancy: tenancy,
        });
        Ok(Self {
            cqn: out?.cqn,
            node,
        })
    }

    /// CQ number.
    pub(crate) fn cqn(&self) -> u32 {
        self.cqn
    }

    pub(crate) fn pin(&self) -> Result<Pin<CqNode>> {
        self.node.pin()
    }

    pub(crate) fn slot(&self) -> Arc<dyn Slot> {
        self.node.slot()
    }
}

pub(crate) struct CqNode {
    context: Context,
    handle: NicHandle,
    cqn: Option<u32>,
    umem: Pin<UmemNode>,
    page: PagePin,
    /// Its ring and its record lie there.
    _tenancy: Tenancy,
}

impl Node for CqNode {
    const NAME: &'static str = "CQ";

    fn number(&self) -> Option<u64> {
        Some(self.cqn?.into())
    }

    fn destroy(&self) -> Result<()> {
        self.context
            .undo("destroy the CQ", |nic| nic.destroy(self.handle))
    }

    fn graph(&self) -> &Graph {
        self.context.graph()
    }

    fn parents(&self) -> Vec<Arc<dyn Slot>> {
        vec![self.umem.slot(), self.page.slot()]
    }
}
