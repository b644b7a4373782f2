//! The protection domain.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Context;
use crate::driver::PdInfo;
use crate::error::{Error, Refused, Result};
use crate::teardown::{Graph, Node, Pin, Shared, Slot};

/// A protection domain: QPs reach the MRs of their own PD only. Clones are the same PD.
#[derive(Clone, Debug)]
pub struct Pd {
    context: Context,
    pdn: u32,
    node: Shared<PdNode>,
}

impl Pd {
    /// Allocates one.
    pub fn alloc(context: &Context) -> Result<Self> {
        let _entered = context.enter()?;
        let info = context
            .driver()
            .alloc_pd()
            .map_err(Error::driver("allocate a protection domain"))?;
        let node = PdNode {
            context: context.clone(),
            info,
            undrained: AtomicUsize::new(0),
        };
        Ok(Self {
            context: context.clone(),
            pdn: info.pdn,
            node: Shared::new(node),
        })
    }

    /// The NIC that it is of.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Its number, 24 bits.
    pub fn pdn(&self) -> u32 {
        self.pdn
    }

    pub(crate) fn pin(&self) -> Result<Pin<PdNode>> {
        self.node.pin()
    }

    /// Frees it. Busy while an MR or a QP uses it.
    pub fn close(self) -> Result<(), Refused<Self>> {
        self.node
            .close()
            .map_err(|error| Refused { error, value: self })
    }
}

#[derive(Debug)]
pub(crate) struct PdNode {
    context: Context,
    info: PdInfo,
    /// QPs that could not be taken down as far as drained: they may still reach every MR of the PD.
    undrained: AtomicUsize,
}

impl PdNode {
    pub(super) fn info(&self) -> PdInfo {
        self.info
    }

    /// QPs that could not be drained. Relaxed: whoever closes an MR after a QP's close returned sees what that counted.
    pub(super) fn undrained(&self) -> usize {
        self.undrained.load(Ordering::Relaxed)
    }

    /// A QP could not be drained.
    pub(super) fn hold(&self) {
        self.undrained.fetch_add(1, Ordering::Relaxed);
    }

    /// It was, at last.
    pub(super) fn release(&self) {
        self.undrained.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Node for PdNode {
    const NAME: &'static str = "PD";

    fn number(&self) -> Option<u64> {
        Some(self.info.pdn.into())
    }

    fn destroy(&self) -> Result<()> {
        self.context.undo("free the protection domain", |nic| {
            nic.dealloc_pd(self.info.handle)
        })
    }

    fn graph(&self) -> &Graph {
        self.context.graph()
    }

    fn parents(&self) -> Vec<Arc<dyn Slot>> {
        Vec::new()
    }
}
