//! The protection domain.

use std::sync::Arc;

use super::Context;
use crate::driver::PdInfo;
use crate::error::{Error, Refused, Result};
use crate::teardown::{Node, Owner, Registry, Shared, close_shared};

/// A protection domain: QPs reach the MRs of their own PD only. Clones are the same PD.
#[derive(Clone, Debug)]
pub struct Pd {
    context: Context,
    info: PdInfo,
    node: Shared<PdNode>,
}

impl Pd {
    /// Allocates one.
    pub fn alloc(context: &Context) -> Result<Self> {
        let info = context
            .driver()
            .alloc_pd()
            .map_err(Error::driver("allocate a protection domain"))?;
        let node = PdNode {
            context: context.clone(),
            info,
        };
        Ok(Self {
            context: context.clone(),
            info,
            node: Arc::new(Owner::new(node)),
        })
    }

    /// The NIC that it is of.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Its number, 24 bits.
    pub fn pdn(&self) -> u32 {
        self.info.pdn
    }

    pub(crate) fn info(&self) -> PdInfo {
        self.info
    }

    /// Frees it. Busy while an MR or a QP uses it.
    pub fn close(mut self) -> Result<(), Refused<Self>> {
        close_shared(&mut self.node).map_err(|error| Refused { error, value: self })
    }
}

#[derive(Debug)]
struct PdNode {
    context: Context,
    info: PdInfo,
}

impl Node for PdNode {
    const NAME: &'static str = "PD";

    fn destroy(&mut self) -> Result<()> {
        self.context
            .driver()
            .dealloc_pd(self.info.handle)
            .map_err(Error::driver("free the protection domain"))
    }

    fn registry(&self) -> &Registry {
        self.context.registry()
    }
}
