//! The QP as a node of the graph: what it takes down in stages, and its way back to a new life.
//!
//! Knows: the stages, and what each takes; that launches hold it. Must not know: addressing, or what a launch is.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use warpverbs_wire::prm::{Command, qp_2err, qp_2rst};

use super::cq::CqNode;
use super::drain::{Drain, Marker};
use super::gpu::HostWordNode;
use super::mr::MrNode;
use super::pd::PdNode;
use super::queues::Queues;
use super::uar::UarMapNode;
use super::umem::UmemNode;
use super::{Context, GpuContext, HostWord, Pd, mailbox};
use crate::driver::{NicHandle, PdInfo};
use crate::error::{Error, ErrorKind, Result};
use crate::teardown::{
    Baton, BatonHeld, Found, GRACE, Graph, Node, Pin, Slot, Stage, StageCell, StageEvent, Wait,
    poll, untold,
};

/// A region that outstanding work may access.
pub(crate) type Kept = Arc<Pin<MrNode>>;

/// A QP.
pub(crate) struct QpNode {
    context: Context,
    gpu: GpuContext,
    handle: NicHandle,
    qpn: u32,
    first_index: u64,
    stage: StageCell,
    /// Held by whoever moves the QP from state to state.
    exclusive: Baton,
    life: Mutex<Life>,
    pd: Pin<PdNode>,
    cq: Pin<CqNode>,
    map: Pin<UarMapNode>,
    umem: Pin<UmemNode>,
    queues: Queues,
}

#[derive(Default)]
struct Life {
    link: Link,
    /// 2ERR was done.
    flushed: bool,
    /// The marker, once posted.
    marker: Option<Marker>,
    /// 2RST was done, and the queues are yet to follow.
    cleared: bool,
    /// The stop word, while exported. Pinned while kernels may look at it.
    stop: Option<HostWord>,
    stop_pin: Option<Pin<HostWordNode>>,
    /// GPU threads were told to stop for good.
    told: bool,
    /// Launches that use it.
    launches: Vec<(Graph, u64)>,
    attached: usize,
    /// What outstanding work may access although its launch is over.
    pins: Vec<Kept>,
    /// Its PD was told that it could not be drained.
    undrained: bool,
}

/// What the QP was last told about its peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Link {
    #[default]
    Down,
    Up,
    /// A transition failed, and so did the way back. Nothing was posted.
    Unknown,
}

/// A launch that uses a QP. While it exists, the QP is not taken from the GPU.
pub(crate) struct Attached {
    qp: Pin<QpNode>,
    launch: OnceLock<u64>,
}

impl Drop for Attached {
    fn drop(&mut self) {
        let mut life = self.qp.life();
        life.attached = life.attached.saturating_sub(1);
        // Taken from the list before the pin goes: if the QP goes with it, it does not wait for this launch.
        if let Some(launch) = self.launch.get() {
            life.launches.retain(|(_, id)| id != launch);
        }
    }
}

/// What a new QP is made of.
pub(super) struct Parts {
    pub(super) handle: NicHandle,
    pub(super) qpn: u32,
    pub(super) first_index: u64,
    pub(super) pins: (Pin<PdNode>, Pin<CqNode>, Pin<UarMapNode>, Pin<UmemNode>),
}

impl QpNode {
    pub(super) fn new(pd: &Pd, gpu: &GpuContext, queues: &Queues, parts: Parts) -> Self {
        let (pd_pin, cq, map, umem) = parts.pins;
        Self {
            context: pd.context().clone(),
            gpu: gpu.clone(),
            handle: parts.handle,
            qpn: parts.qpn,
            first_index: parts.first_index,
            stage: StageCell::live(),
            exclusive: Baton::new(),
            life: Mutex::default(),
            pd: pd_pin,
            cq,
            map,
            umem,
            queues: queues.clone(),
        }
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps others from moving the QP from state to state.
    pub(super) fn exclusive(&self, wait: Wait) -> Result<BatonHeld<'_>> {
        self.exclusive
            .take(wait.turn())
            .ok_or_else(|| wait.timeout("another thread's call on the QP"))
    }

    pub(super) fn pd_info(&self) -> PdInfo {
        self.pd.info()
    }

    pub(super) fn link(&self) -> Link {
        self.life().link
    }

    pub(super) fn set_link(&self, link: Link) {
        self.life().link = link;
    }

    /// Fails unless it is live.
    pub(super) fn require_live(&self, doing: &'static str) -> Result<()> {
        match self.stage.get() {
            Stage::Live => Ok(()),
            stage => Err(Error::QpState {
                doing,
                state: stage.name(),
            }),
        }
    }

    fn take(&self, event: StageEvent, doing: &'static str) -> Result<()> {
        self.stage
            .take(event)
            .map(drop)
            .map_err(|stage| Error::QpState {
                doing,
                state: stage.name(),
            })
    }

    pub(super) fn modify<C: Command>(&self, doing: &'static str, input: &C) -> Result<C::Out> {
        mailbox::modify(self.context.driver(), self.handle, doing, input)
    }

    pub(super) fn reset_state(&self) -> Result<()> {
        self.modify("reset the QP", &qp_2rst::In { qpn: self.qpn })
            .map(drop)
    }

    /// GPU threads may use it from here on, and look at this word.
    pub(super) fn set_exported(&self, stop: HostWord) -> Result<()> {
        let pin = stop.pin()?;
        let mut life = self.life();
        life.told = false;
        life.stop = Some(stop);
        life.stop_pin = Some(pin);
        Ok(())
    }

    /// Takes a live QP from the GPU. Busy while a launch uses it.
    pub(super) fn take_back(&self) -> Result<()> {
        self.reap(Wait::within(GRACE))?;
        let users = self.life().attached;
        if users > 0 {
            return Err(Error::Busy {
                what: "exported QP",
                users,
            });
        }
        self.revoke()
    }

    /// Registers a launch. Refused from the moment on when the QP stops.
    pub(crate) fn attach(pin: Pin<Self>) -> Result<Attached> {
        let mut life = pin.life();
        pin.require_live("launch with it")?;
        if life.stop.is_none() {
            return Err(Error::QpState {
                doing: "launch with it",
                state: "not exported",
            });
        }
        life.attached += 1;
        drop(life);
        Ok(Attached {
            qp: pin,
            launch: OnceLock::new(),
        })
    }

    fn tell_stop(&self) -> Result<()> {
        let stop = self.life().stop.clone();
        match stop {
            Some(stop) => match stop.store(1) {
                Err(_) if !self.gpu.is_alive() => {
                    untold(format!("GPU: stop QP {:#x}", self.qpn));
                    Ok(())
                }
                told => told,
            },
            None => Ok(()),
        }
    }

    fn stop(&self) -> Result<()> {
        {
            // Under the lock that a launch registers under.
            let _life = self.life();
            self.take(StageEvent::Stop, "stop it")?;
        }
        if !self.life().told {
            self.tell_stop()?;
            self.life().told = true;
        }
        Ok(())
    }

    /// Closes the launches that are over, whoever holds them: one of them may have been retained.
    fn reap(&self, wait: Wait) -> Result<()> {
        let launches = self.life().launches.clone();
        for (graph, id) in launches {
            let over = match graph.find(id) {
                Found::Gone => true,
                Found::Going => false,
                Found::Here(launch) => match launch.close(wait) {
                    Ok(()) => true,
                    Err(Error::Running { .. } | Error::Timeout { .. }) => false,
                    Err(error) => return Err(error),
                },
            };
            if over {
                self.life().launches.retain(|(_, other)| *other != id);
            }
        }
        Ok(())
    }

    fn sync(&self, wait: Wait) -> Result<()> {
        if self.stage.get() < Stage::Synced {
            poll("a kernel that uses the QP", wait, || {
                self.reap(wait)?;
                Ok(self.life().attached == 0)
            })?;
        }
        self.take(StageEvent::Sync, "go on")
    }

    fn drain(&self, wait: Wait) -> Result<()> {
        if self.stage.get() < Stage::Drained {
            let drained = match self.link() {
                Link::Up => self.flush(wait),
                // Nothing was ever posted.
                Link::Down | Link::Unknown => Ok(()),
            };
            // MRs learn of it before the caller does.
            let undrained = drained.is_err();
            let was = std::mem::replace(&mut self.life().undrained, undrained);
            match (was, undrained) {
                (false, true) => self.pd.hold(),
                (true, false) => self.pd.release(),
                _ => {}
            }
            drained?;
            let pins = std::mem::take(&mut self.life().pins);
            drop(pins);
        }
        self.take(StageEvent::Drain, "drain it")
    }

    fn flush(&self, wait: Wait) -> Result<()> {
        if !self.life().flushed {
            match self.modify("move the QP to ERR", &qp_2err::In { qpn: self.qpn }) {
                Err(error) if error.kind() == ErrorKind::DeviceLost => {
                    untold(format!("NIC: move QP {:#x} to ERR", self.qpn));
                    return Ok(());
                }
                done => done?,
            };
            self.life().flushed = true;
        }
        let drain = Drain {
            context: &self.context,
            gpu: &self.gpu,
            queues: &self.queues,
            qp: self.handle,
            qpn: self.qpn,
        };
        let mut marker = self.life().marker;
        let drained = drain.run(&mut marker, wait);
        self.life().marker = marker;
        match drained {
            // The NIC went away: it accesses nothing any more.
            Err(error) if error.kind() == ErrorKind::DeviceLost && self.gpu.is_alive() => Ok(()),
            drained => drained,
        }
    }

    /// Makes kernels refuse the handle, and frees the stop word.
    fn revoke(&self) -> Result<()> {
        let Some(stop) = self.life().stop.clone() else {
            return Ok(());
        };
        match self.queues.clear_handle() {
            Err(_) if !self.gpu.is_alive() => {
                untold(format!("GPU: clear the handle of QP {:#x}", self.qpn));
            }
            cleared => cleared?,
        }
        let pin = self.life().stop_pin.take();
        drop(pin);
        stop.close()?;
        // Only now: after a refusal it is done again.
        self.life().stop = None;
        Ok(())
    }

    fn unexport(&self) -> Result<()> {
        if self.stage.get() < Stage::Unexported {
            self.revoke()?;
        }
        self.take(StageEvent::Unexport, "take it from the GPU")
    }

    /// Brings it to RST and to a new life, from any state. Resumes after a refusal.
    pub(super) fn reset(&self, wait: Wait) -> Result<()> {
        let _one = self.exclusive(wait)?;
        if self.life().stop.is_some() {
            return Err(Error::QpState {
                doing: "reset it",
                state: "exported",
            });
        }
        let cleared = self.life().cleared;
        if !cleared {
            self.stop()?;
            self.sync(wait)?;
            self.drain(wait)?;
            self.unexport()?;
            self.reset_state()?;
            self.life().cleared = true;
        }
        self.queues.renew(self.first_index)?;
        let mut life = self.life();
        self.take(StageEvent::Revive, "reset it")?;
        *life = Life::default();
        Ok(())
    }
}

impl Attached {
    /// Enters the launch in the QP's list.
    pub(crate) fn name(&self, graph: &Graph, launch: u64) {
        let launch = *self.launch.get_or_init(|| launch);
        self.qp.life().launches.push((graph.clone(), launch));
    }

    pub(crate) fn slot(&self) -> Arc<dyn Slot> {
        self.qp.slot()
    }

    /// Tells GPU threads to leave the QP.
    pub(crate) fn stop(&self) -> Result<()> {
        self.qp.tell_stop()
    }

    /// The launch is over. What its work requests may access stays until they have retired.
    pub(crate) fn settle(&self, kept: &[Kept]) {
        if kept.is_empty() {
            return;
        }
        let idle = self.qp.gpu.is_alive()
            && self
                .qp
                .queues
                .produced()
                .is_ok_and(|produced| produced.dbr == produced.completed as u16);
        let mut life = self.qp.life();
        let old = if idle {
            std::mem::take(&mut life.pins)
        } else {
            life.pins.extend(kept.iter().cloned());
            Vec::new()
        };
        // Not under the lock: a region may go with its last pin.
        drop(life);
        drop(old);
    }
}

impl Node for QpNode {
    const NAME: &'static str = "QP";

    fn number(&self) -> Option<u64> {
        (self.qpn != 0).then_some(self.qpn.into())
    }

    fn advance(&self, to: Stage, wait: Wait) -> Result<()> {
        let _one = self.exclusive(wait)?;
        match to {
            Stage::Live | Stage::Destroyed => Ok(()),
            Stage::Stopping => self.stop(),
            Stage::Synced => self.sync(wait),
            Stage::Drained => self.drain(wait),
            Stage::Unexported => self.unexport(),
        }
    }

    fn stage(&self) -> Stage {
        self.stage.get()
    }

    /// Nobody else is at it: whoever destroys a node has it alone.
    fn destroy(&self) -> Result<()> {
        // A QP that was reset meanwhile is live again, and must not be destroyed from there.
        if self.stage.get() < Stage::Unexported {
            return Err(Error::QpState {
                doing: "destroy it",
                state: self.stage.get().name(),
            });
        }
        self.context
            .undo("destroy the QP", |nic| nic.destroy(self.handle))?;
        self.take(StageEvent::Destroy, "destroy it")
    }

    fn graph(&self) -> &Graph {
        self.context.graph()
    }

    fn parents(&self) -> Vec<Arc<dyn Slot>> {
        let life = self.life();
        let stop = life.stop_pin.as_ref().map(Pin::slot);
        let regions: Vec<_> = life.pins.iter().map(|region| region.slot()).collect();
        drop(life);
        [
            self.pd.slot(),
            self.cq.slot(),
            self.map.slot(),
            self.umem.slot(),
        ]
        .into_iter()
        .chain(stop)
        .chain(regions)
        .collect()
    }
}
