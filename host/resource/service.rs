//! A QP's service: what a host thread does for a QP whose doorbell GPU threads leave to it.
//!
//! Knows: the hand-over record, the QP's own doorbell record and page, and the order of what is done with them. Must not know:
//! which thread does it, or when.
//!
//! A GPU thread stores the producer behind a release at system scope. Each look acquires it (so that what is stored next comes
//! behind the WQEs, for the NIC too: rule O2), stores it to the QP's send doorbell record, and rings, behind a barrier (O3).
//! One look at a time, so neither moves backwards (O5).

use std::mem::offset_of;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use warpverbs_wire::abi::ProxyRecord;
use warpverbs_wire::doorbell::{DBR_SEND, dbr_word, doorbell};

use super::qp_node::QpNode;
use super::queues::Queues;
use super::{Context, GpuContext};
use crate::driver::NicHandle;
use crate::error::{Error, Result};
use crate::teardown::{Baton, Pin, Wait};

/// How a QP stands with a [`Proxy`](crate::Proxy).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Served {
    /// The QP.
    pub qpn: u32,
    /// SQ index below which GPU threads have asked for the doorbell, as last seen.
    pub producer: u64,
    /// SQ index below which the NIC was told of all WQEs.
    pub rung: u64,
    /// Why it is served no more: GPU threads were told to stop. [`QueuePair::reset`](crate::QueuePair::reset) the QP and add it
    /// again.
    pub failure: Option<Arc<Error>>,
}

impl Served {
    /// True if all that was asked for was rung for.
    pub fn is_all_rung(&self) -> bool {
        self.producer == self.rung
    }
}

/// The service of one QP.
pub(crate) struct Service {
    qpn: u32,
    depth: u32,
    /// Addresses of the hand-over record and of the send doorbell record.
    record: u64,
    dbr: u64,
    page: NicHandle,
    gpu: GpuContext,
    context: Context,
    /// Held by whoever looks: a driver call that does not return holds up this QP, and no other.
    looking: Baton,
    progress: Mutex<Progress>,
}

struct Progress {
    served: Served,
    /// Keeps the QP, with the memory and the page, until the service ends.
    qp: Option<Arc<Pin<QpNode>>>,
}

impl Service {
    /// One that begins where the host has left off in the QP's life, once it is started.
    pub(super) fn new(
        qpn: u32,
        queues: &Queues,
        context: &Context,
        gpu: &GpuContext,
    ) -> Result<Arc<Self>> {
        let layout = queues.slab().layout();
        let words = queues.slab().words();
        let record = layout.proxy_record(queues.place());
        let word = |offset: usize| record + (offset / 8) as u32;
        words.store(word(offset_of!(ProxyRecord, qpn)), qpn.into())?;
        let rung = words.load(word(offset_of!(ProxyRecord, rung)))?;
        Ok(Arc::new(Self {
            qpn,
            depth: layout.sq_depth,
            record: words.addr(record),
            dbr: words.addr(layout.host_dbr(queues.place())) + DBR_SEND as u64,
            page: queues.slab().uar().handle(),
            gpu: gpu.clone(),
            context: context.clone(),
            looking: Baton::new(),
            progress: Mutex::new(Progress {
                served: Served {
                    qpn,
                    producer: rung,
                    rung,
                    failure: None,
                },
                qp: None,
            }),
        }))
    }

    pub(super) fn start(&self, qp: Pin<QpNode>) {
        self.progress().qp = Some(Arc::new(qp));
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn served(&self) -> Served {
        self.progress().served.clone()
    }

    /// True once nobody looks any more.
    pub(crate) fn is_over(&self) -> bool {
        self.progress().qp.is_none()
    }

    /// Looks once, unless another thread does; true if there was something to ring for.
    pub(crate) fn look(&self) -> bool {
        match self.looking.take(Instant::now()) {
            Some(_looking) => self.look_alone(),
            None => false,
        }
    }

    /// Looks a last time, and ends: nothing is touched from here on, and the QP is not kept. If it is over, waits until whoever
    /// has ended it is done.
    pub(crate) fn end(&self, wait: Wait) -> Result<Served> {
        let looking = self.looking.take(wait.turn());
        let Some(looking) = looking else {
            return Err(wait.timeout("a driver call of the proxy's thread"));
        };
        self.look_alone();
        let (qp, served) = {
            let mut progress = self.progress();
            (progress.qp.take(), progress.served.clone())
        };
        // Whoever fails it holds the baton, and so no other reference.
        let handle = qp.and_then(Arc::into_inner).map(Pin::unpin);
        drop(looking);
        // The QP may go with it, and look here again.
        drop(handle);
        Ok(served)
    }

    /// The thread that looked has died.
    pub(crate) fn abandon(&self) {
        if let Some(_looking) = self.looking.take(Instant::now())
            && self.rung_so_far().is_some()
        {
            self.fail(Error::ProxyDied { qpn: self.qpn });
        }
    }

    /// By whoever has the baton.
    fn fail(&self, failure: Error) {
        tracing::error!(qpn = self.qpn, %failure, "no doorbell is rung for the QP any more");
        let qp = {
            let mut progress = self.progress();
            progress.served.failure = Some(Arc::new(failure));
            progress.qp.clone()
        };
        // So that who waits for what was not rung for ends before the deadline. Not under the lock: it asks the driver.
        if let Some(Err(error)) = qp.map(|qp| qp.tell_stop()) {
            tracing::error!(qpn = self.qpn, %error, "its GPU threads cannot be told to stop");
        }
    }

    /// By whoever has the baton.
    fn look_alone(&self) -> bool {
        let Some(rung) = self.rung_so_far() else {
            return false;
        };
        match self.serve(rung) {
            Ok(rang) => rang,
            Err(failure) => {
                self.fail(failure);
                false
            }
        }
    }

    /// `None`: it has failed, or is over.
    fn rung_so_far(&self) -> Option<u64> {
        let progress = self.progress();
        let serves = progress.qp.is_some() && progress.served.failure.is_none();
        serves.then_some(progress.served.rung)
    }

    fn serve(&self, rung: u64) -> Result<bool> {
        let (gpu, nic) = (self.gpu.driver(), self.context.driver());
        let at = |offset: usize| self.record + offset as u64;
        let producer = gpu
            .load_acquire(at(offset_of!(ProxyRecord, producer)))
            .map_err(Error::driver("load what the GPU asks to ring for"))?;
        if producer == rung {
            return Ok(false);
        }
        self.progress().served.producer = producer;
        // A wild store must not become a doorbell.
        if producer.wrapping_sub(rung) > self.depth.into() {
            return Err(Error::ProxyRecord {
                qpn: self.qpn,
                producer,
                rung,
            });
        }
        gpu.store_release_u32(self.dbr, dbr_word(producer))
            .map_err(Error::driver("store to the doorbell record"))?;
        nic.ring_doorbell(self.page, doorbell(producer, self.qpn).to_le_bytes())
            .map_err(Error::driver("ring the doorbell for the GPU"))?;
        self.progress().served.rung = producer;
        // Where another service goes on.
        gpu.store_release(at(offset_of!(ProxyRecord, rung)), producer)
            .map_err(Error::driver("store how far was rung"))?;
        Ok(true)
    }
}
