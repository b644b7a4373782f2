//! The RC queue pair.
//!
//! Knows: how it is created, reset and closed, and what must outlive it.
//! Must not know: GPU threads.

use std::sync::Arc;
use std::time::Duration;

use warpverbs_wire::prm::create_qp;
use warpverbs_wire::prm::qpc::{
    PathMigration, Qpc, RqType, SendDbrMode, ServiceType, TimestampFormat,
};

use super::cq::Cq;
use super::layout::LOG_RECEIVE;
use super::path::Gid;
use super::qp_node::{Attached, Parents, Parts, QpNode};
use super::queues::Queues;
use super::service::Service;
use super::slab::Slab;
use super::umem::Umem;
use super::{Context, DoorbellPath, GpuContext, Pd, QpConfig, QpPool, mailbox};
use crate::driver::PortInfo;
use crate::error::{Refused, Result};
use crate::teardown::{
    CloseReport, GRACE, Node, Pin, Shared, Slot, Stage, Wait, building, deadline_after,
};

/// An RC queue pair whose send queue lies in GPU memory, and its CQ.
#[derive(Debug)]
pub struct QueuePair {
    pub(super) config: QpConfig,
    pub(super) port: PortInfo,
    pub(super) gid: Gid,
    pub(super) qpn: u32,
    /// Lives so far: each has a PSN of its own.
    pub(super) generation: u32,
    // Children before parents: fields are dropped in order.
    pub(super) node: Shared<QpNode>,
    queues: Queues,
    pub(super) pd: Pd,
    gpu: GpuContext,
}

impl QueuePair {
    /// Creates a QP with its queues in GPU memory. Connect it, then export it. For many QPs, see [`QpPool`].
    pub fn create(pd: &Pd, gpu: &GpuContext, config: &QpConfig) -> Result<Self> {
        building(|| {
            let pool = QpPool::create(pd, gpu, config, 1)?;
            pool.qp()
        })
    }

    /// Creates a QP in a slab.
    pub(super) fn build(
        pd: &Pd,
        gpu: &GpuContext,
        slab: &Slab,
        config: &QpConfig,
        (port, gid): (PortInfo, Gid),
    ) -> Result<Self> {
        let (context, layout) = (pd.context(), slab.layout());
        let (queues, tenancy) = Queues::build(pd, slab)?;
        let umem_id = slab.umem().id();
        let rq_depth = queues.rq_depth();
        let input = create_qp::In {
            qpc: Qpc {
                st: ServiceType::Rc,
                pm_state: PathMigration::Migrated,
                pd: pd.pdn(),
                uar_page: slab.uar().page_id(),
                rq_type: match rq_depth {
                    0 => RqType::ZeroSize,
                    _ => RqType::Regular,
                },
                log_rq_size: rq_depth.checked_ilog2().unwrap_or(0) as u8,
                // In units of 16 bytes.
                log_rq_stride: if rq_depth == 0 { 0 } else { LOG_RECEIVE - 4 },
                log_sq_size: layout.sq_depth.ilog2() as u8,
                cqn_snd: queues.cq_owner().cqn(),
                cqn_rcv: queues.receive_cq().unwrap_or(queues.cq_owner()).cqn(),
                ts_format: if context.capabilities().default_timestamps {
                    TimestampFormat::DefaultFormat
                } else {
                    TimestampFormat::FreeRunning
                },
                dbr_umem_valid: true,
                dbr_umem_id: slab.words_umem().map_or(umem_id, Umem::id),
                dbr_addr: queues.qp_dbr_in_umem(),
                send_dbr_mode: match layout.doorbell_path {
                    DoorbellPath::GpuWithoutRecord => SendDbrMode::NoDbr,
                    DoorbellPath::Gpu | DoorbellPath::Proxy => SendDbrMode::Dbr,
                },
                ..Qpc::default()
            },
            wq_umem_valid: true,
            wq_umem_id: umem_id,
            wq_umem_offset: queues.rings(),
            ..create_qp::In::default()
        };
        let parents = Parents {
            pd: pd.pin()?,
            cq: queues.cq_owner().pin()?,
            receive_cq: queues.receive_cq().map(Cq::pin).transpose()?,
            page: slab.pin_page()?,
            umem: slab.umem().pin()?,
            words_umem: slab.words_umem().map(Umem::pin).transpose()?,
            words: slab.words().pin()?,
        };
        let (handle, out) = mailbox::create(context.driver(), "create the QP", &input)?;
        let qpn = out.as_ref().map_or(0, |out| out.qpn);
        let parts = Parts {
            handle,
            qpn,
            parents,
            tenancy,
        };
        let node = Shared::new(QpNode::new(pd, gpu, &queues, parts));
        out?;
        tracing::debug!(qpn, depth = config.depth, form = ?config.cq_form, "QP created");
        Ok(Self {
            config: config.clone(),
            port,
            gid,
            qpn,
            generation: 0,
            node,
            queues,
            pd: pd.clone(),
            gpu: gpu.clone(),
        })
    }

    /// QP number, 24 bits.
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// Its options.
    pub fn config(&self) -> &QpConfig {
        &self.config
    }

    /// WQEBBs of its send queue.
    pub fn depth(&self) -> u32 {
        self.config.depth
    }

    /// The GPU that its queues are in.
    pub fn gpu(&self) -> &GpuContext {
        &self.gpu
    }

    pub(crate) fn context(&self) -> &Context {
        self.pd.context()
    }

    /// log2 of the largest message in bytes that its port carries.
    pub fn log_max_message(&self) -> u8 {
        self.port.log_max_message
    }

    /// Brings the QP back to where it was created, whatever has happened to it: an error completion, a stop, a failed
    /// connection. What is outstanding is flushed; indices start over, faults are forgotten, and its
    /// [`Self::local_info`] is a new one. Connect it again, to the same peer or to another. After a refusal, resetting
    /// again goes on where it stopped.
    pub fn reset(&mut self) -> Result<()> {
        let _entered = self.pd.context().enter()?;
        self.node.visit(|qp| qp.reset(Wait::within(GRACE)))??;
        self.generation = self.generation.wrapping_add(1);
        tracing::debug!(qpn = self.qpn, "QP reset");
        Ok(())
    }

    /// How far its teardown has come.
    pub fn stage(&self) -> Stage {
        self.node.visit(QpNode::stage).unwrap_or(Stage::Destroyed)
    }

    /// Takes the QP down in stages, and destroys it with its CQ, doorbell page and memory. After a refusal, the parts
    /// that do not depend on what refused are gone; closing again goes on with the rest.
    #[allow(clippy::result_large_err, reason = "a refusal hands the QP back")]
    pub fn close(self) -> Result<CloseReport, Refused<Self>> {
        self.close_within(GRACE)
    }

    /// As [`Self::close`], with the time that outstanding work may take.
    #[allow(clippy::result_large_err, reason = "a refusal hands the QP back")]
    pub fn close_within(self, time: Duration) -> Result<CloseReport, Refused<Self>> {
        self.take_down(time)
            .map_err(|error| Refused { error, value: self })
    }

    /// Takes it down, whoever holds it.
    pub(crate) fn take_down(&self, time: Duration) -> Result<CloseReport> {
        let mut slots = self.slots();
        // The last one out takes what all stood on with it.
        if self.queues.slab().is_of_one() {
            slots.extend(self.queues.slab().slots());
        }
        let graph = self.pd.context().graph();
        graph.sweep(slots, deadline_after(time)).into_result()
    }

    /// The nodes that are its own.
    pub(super) fn slots(&self) -> Vec<Arc<dyn Slot>> {
        let mut slots = vec![self.queues.cq_owner().slot()];
        slots.extend(self.queues.receive_cq().map(Cq::slot));
        slots.push(self.node.slot());
        slots
    }

    /// Tells GPU threads to leave it.
    pub(crate) fn tell_stop(&self) -> Result<()> {
        self.node.visit(QpNode::tell_stop)?
    }

    /// Takes it from the GPU, live.
    pub(crate) fn take_back(&self) -> Result<()> {
        self.node.visit(|qp| {
            let _one = qp.exclusive(Wait::within(GRACE))?;
            qp.take_back()
        })?
    }

    /// Looks at what the queues hold, if the QP is not closed.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Queues) -> Result<T>) -> Result<T> {
        self.node.visit(|_| look(&self.queues))?
    }

    pub(crate) fn attach(&self, stream: u64, shared: bool) -> Result<Attached> {
        QpNode::attach(self.node.pin()?, stream, shared)
    }

    /// Begins its service by a host thread.
    pub(crate) fn serve(&self) -> Result<Arc<Service>> {
        self.node.visit(|qp| qp.serve(|| self.node.pin()))?
    }

    /// True if that is its service.
    pub(crate) fn is_served_by(&self, service: &Arc<Service>) -> bool {
        let looked = self.node.visit(|qp| qp.is_served_by(service));
        looked.unwrap_or(false)
    }

    /// Keeps it from being closed.
    pub(super) fn pin(&self) -> Result<Pin<QpNode>> {
        self.node.pin()
    }

    pub(crate) fn queues(&self) -> &Queues {
        &self.queues
    }
}
