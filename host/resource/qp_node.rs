//! The QP as a node of the graph: what it takes down in stages, and its way back to a new life.
//!
//! Knows: the stages, and what each takes; that launches hold it. Must not know: addressing, or what a launch is.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warpverbs_wire::prm::{Command, qp_2err, qp_2rst};

use super::cq::CqNode;
use super::drain::{Drain, Marker};
use super::gpu::HostWordsNode;
use super::mr::MrNode;
use super::pd::PdNode;
use super::queues::{Produced, Queues};
use super::service::Service;
use super::slab::Tenancy;
use super::uar::PagePin;
use super::umem::UmemNode;
use super::{Context, DoorbellPath, GpuContext, Pd, mailbox};
use crate::driver::{NicHandle, PdInfo};
use crate::error::{Error, ErrorKind, Result};
use crate::teardown::{
    Baton, BatonHeld, Found, GRACE, Graph, Node, Pin, QUIESCE, Slot, Stage, StageCell, StageEvent,
    Wait, poll, untold,
};

/// A region that outstanding work may access.
pub(crate) type Kept = Arc<Pin<MrNode>>;

/// A QP.
pub(crate) struct QpNode {
    context: Context,
    gpu: GpuContext,
    handle: NicHandle,
    qpn: u32,
    stage: StageCell,
    /// Held by whoever moves the QP from state to state.
    exclusive: Baton,
    life: Mutex<Life>,
    parents: Parents,
    queues: Queues,
    /// Its ring, its record and its handle lie there.
    _tenancy: Tenancy,
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
    /// GPU threads were told to stop for good.
    told: bool,
    /// Launches that use it, by the order in which they came.
    uses: Vec<Use>,
    issued: u64,
    /// What launches have left: known while none uses it, since nothing else changes it.
    left: Option<Produced>,
    /// A launch has used it.
    touched: bool,
    /// What outstanding work may access although its launch is over.
    pins: Vec<Kept>,
    /// A host thread rings for it, or did.
    service: Option<Arc<Service>>,
    /// Its PD was told that it could not be stopped, or waited for, or drained.
    undrained: bool,
}

impl Life {
    fn new(first_index: u64) -> Self {
        Self {
            left: Some(Produced::fresh(first_index)),
            ..Self::default()
        }
    }
}

/// A launch's use of a QP.
#[derive(Clone)]
struct Use {
    number: u64,
    /// The stream, by its node's number: launches of one stream run one after the other.
    stream: u64,
    /// The launch expects others to use the QP at the same time.
    shared: bool,
    launch: Option<(Graph, u64)>,
}

impl Use {
    /// True if its kernel has finished. A launch that is on its way, in either direction, counts as running.
    fn is_over(&self) -> bool {
        let Some((graph, launch)) = &self.launch else {
            return false;
        };
        match graph.find(*launch) {
            Found::Gone => true,
            Found::Going => false,
            Found::Here(launch) => launch.stage() >= Stage::Unexported,
        }
    }
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
    number: u64,
}

impl Drop for Attached {
    fn drop(&mut self) {
        // Taken from the list before the pin goes: if the QP goes with it, it does not wait for this launch.
        let mut life = self.qp.life();
        life.uses.retain(|other| other.number != self.number);
    }
}

/// What a QP stands on.
pub(super) struct Parents {
    pub(super) pd: Pin<PdNode>,
    pub(super) cq: Pin<CqNode>,
    pub(super) receive_cq: Option<Pin<CqNode>>,
    pub(super) page: PagePin,
    pub(super) umem: Pin<UmemNode>,
    /// Of the doorbell record, where that lies in host memory.
    pub(super) words_umem: Option<Pin<UmemNode>>,
    pub(super) words: Pin<HostWordsNode>,
}

/// What a new QP is made of.
pub(super) struct Parts {
    pub(super) handle: NicHandle,
    pub(super) qpn: u32,
    pub(super) parents: Parents,
    pub(super) tenancy: Tenancy,
}

impl QpNode {
    pub(super) fn new(pd: &Pd, gpu: &GpuContext, queues: &Queues, parts: Parts) -> Self {
        Self {
            context: pd.context().clone(),
            gpu: gpu.clone(),
            handle: parts.handle,
            qpn: parts.qpn,
            stage: StageCell::live(),
            exclusive: Baton::new(),
            life: Mutex::new(Life::new(queues.slab().first_index())),
            parents: parts.parents,
            queues: queues.clone(),
            _tenancy: parts.tenancy,
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
        self.parents.pd.info()
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

    /// Makes ready what a kernel will find: nobody told to stop, unless the QP is at fault.
    pub(super) fn welcome(&self) -> Result<()> {
        let state = if self.queues.is_exported() {
            Some("exported")
        } else {
            (self.link() != Link::Up).then_some("not connected")
        };
        if let Some(state) = state {
            return Err(Error::QpState {
                doing: "export it",
                state,
            });
        }
        self.queues.slab().set_stop(self.queues.place(), false)?;
        // Kernels alone write the state word.
        if self.life().touched {
            self.queues.clear_stop()?;
        }
        self.life().told = false;
        Ok(())
    }

    /// Takes a live QP from the GPU. Busy while a launch uses it.
    pub(super) fn take_back(&self) -> Result<()> {
        self.reap(Wait::within(GRACE))?;
        let users = self.life().uses.len();
        if users > 0 {
            return Err(Error::Busy {
                what: "exported QP",
                users,
            });
        }
        self.revoke(Wait::within(GRACE))
    }

    /// Registers a launch on a stream. Refused from the moment on when the QP stops, and while a launch on another stream
    /// runs, unless both share the QP.
    pub(crate) fn attach(pin: Pin<Self>, stream: u64, shared: bool) -> Result<Attached> {
        const DOING: &str = "launch with it";
        let mut over = BTreeSet::new();
        loop {
            let mut life = pin.life();
            pin.require_live(DOING)?;
            if !pin.queues.is_exported() {
                return Err(Error::QpState {
                    doing: DOING,
                    state: "not exported",
                });
            }
            let rival = life.uses.iter().find(|other| {
                other.stream != stream && !(other.shared && shared) && !over.contains(&other.number)
            });
            let Some(rival) = rival.cloned() else {
                life.issued += 1;
                let number = life.issued;
                life.uses.push(Use {
                    number,
                    stream,
                    shared,
                    launch: None,
                });
                (life.left, life.touched) = (None, true);
                drop(life);
                return Ok(Attached { qp: pin, number });
            };
            // Not under the lock: it asks the driver.
            drop(life);
            if !rival.is_over() {
                return Err(Error::QpLeased { qpn: pin.qpn });
            }
            over.insert(rival.number);
        }
    }

    /// Begins its service by a host thread: one at a time. Refused from the moment on when the QP stops. `pin`: pins it.
    pub(super) fn serve(&self, pin: impl FnOnce() -> Result<Pin<Self>>) -> Result<Arc<Service>> {
        const DOING: &str = "serve it by a proxy";
        if self.queues.slab().layout().doorbell_path != DoorbellPath::Proxy {
            return Err(Error::InvalidArgument {
                what: format!("QP {:#x} was made to be rung by the GPU", self.qpn),
                cure: "create the QP with DoorbellPath::Proxy",
            });
        }
        // Not under the lock: it asks the driver.
        let service = Service::new(self.qpn, &self.queues, &self.context, &self.gpu)?;
        let mut life = self.life();
        self.require_live(DOING)?;
        if life.service.as_ref().is_some_and(|own| !own.is_over()) {
            return Err(Error::QpState {
                doing: DOING,
                state: "served already",
            });
        }
        service.start(pin()?);
        life.service = Some(service.clone());
        Ok(service)
    }

    pub(super) fn is_served_by(&self, service: &Arc<Service>) -> bool {
        let life = self.life();
        let own = life.service.as_ref();
        own.is_some_and(|own| Arc::ptr_eq(own, service)) && !service.is_over()
    }

    /// Ends its service, behind a last look: no kernel asks any more.
    fn end_service(&self, wait: Wait) -> Result<()> {
        let service = self.life().service.clone();
        if let Some(service) = service {
            let served = service.end(wait)?;
            if !served.is_all_rung() {
                tracing::error!(?served, "not all that the GPU asked for was rung for");
            }
        }
        Ok(())
    }

    /// Tells GPU threads to stop.
    pub(super) fn tell_stop(&self) -> Result<()> {
        match self.queues.slab().set_stop(self.queues.place(), true) {
            Err(_) if !self.gpu.is_alive() => {
                untold(format!("GPU: stop QP {:#x}", self.qpn));
                Ok(())
            }
            told => told,
        }
    }

    fn stop(&self) -> Result<()> {
        let told = {
            // Under the lock that a launch registers under: none comes after.
            let life = self.life();
            self.take(StageEvent::Stop, "stop it")?;
            life.told || life.uses.is_empty()
        };
        if !told {
            self.tell_stop()?;
            self.life().told = true;
        }
        Ok(())
    }

    /// Closes the launches that are over, whoever holds them: one of them may have been retained.
    fn reap(&self, wait: Wait) -> Result<()> {
        let uses = self.life().uses.clone();
        for used in uses {
            let Some((graph, id)) = used.launch else {
                continue;
            };
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
                let mut life = self.life();
                life.uses.retain(|other| other.number != used.number);
            }
        }
        Ok(())
    }

    fn sync(&self, wait: Wait) -> Result<()> {
        if self.stage.get() < Stage::Synced {
            poll("a kernel that uses the QP", wait, || {
                self.reap(wait)?;
                Ok(self.life().uses.is_empty())
            })?;
        }
        self.take(StageEvent::Sync, "go on")
    }

    fn drain(&self, wait: Wait) -> Result<()> {
        if self.stage.get() < Stage::Drained {
            self.end_service(wait)?;
            match self.link() {
                Link::Up => self.flush(wait)?,
                // Nothing was ever posted.
                Link::Down | Link::Unknown => {}
            }
            let pins = std::mem::take(&mut self.life().pins);
            drop(pins);
        }
        self.take(StageEvent::Drain, "drain it")?;
        self.queues.slab().set_quiet(self.queues.place(), true);
        Ok(())
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
        let (left, marker) = {
            let life = self.life();
            (life.left, life.marker)
        };
        if marker.is_none() && left.is_some_and(Produced::is_idle) {
            return Ok(());
        }
        let drain = Drain {
            context: &self.context,
            gpu: &self.gpu,
            queues: &self.queues,
            qp: self.handle,
            qpn: self.qpn,
        };
        let mut marker = marker;
        let drained = drain.run(&mut marker, wait);
        self.life().marker = marker;
        match drained {
            // The NIC went away: it accesses nothing any more.
            Err(error) if error.kind() == ErrorKind::DeviceLost && self.gpu.is_alive() => Ok(()),
            drained => drained,
        }
    }

    /// Makes kernels refuse the handle.
    fn revoke(&self, wait: Wait) -> Result<()> {
        let (slab, place) = (self.queues.slab(), self.queues.place());
        match slab.clear_handle(place, wait) {
            Err(_) if !self.gpu.is_alive() => {
                untold(format!("GPU: clear the handle of QP {:#x}", self.qpn));
                slab.forget_handle(place);
                Ok(())
            }
            cleared => cleared,
        }
    }

    fn unexport(&self, wait: Wait) -> Result<()> {
        if self.stage.get() < Stage::Unexported {
            self.revoke(wait)?;
        }
        self.take(StageEvent::Unexport, "take it from the GPU")
    }

    /// Brings it to a stage. If that fails before it is drained, its work may go on: no region of its PD goes until it is.
    fn step(&self, to: Stage, wait: Wait) -> Result<()> {
        let done = match to {
            Stage::Live | Stage::Destroyed => Ok(()),
            Stage::Stopping => self.stop(),
            Stage::Synced => self.sync(wait),
            Stage::Drained => self.drain(wait),
            Stage::Unexported => self.unexport(wait),
        };
        let goes_on = |error: &Error| error.kind() == ErrorKind::Timeout && !wait.is_last();
        // Regions learn of it before the caller does.
        let mut life = self.life();
        match &done {
            Err(error) if goes_on(error) => {}
            Err(_) if self.stage.get() < Stage::Drained => {
                if life.link == Link::Up && !std::mem::replace(&mut life.undrained, true) {
                    self.parents.pd.hold();
                }
            }
            _ => {
                if self.stage.get() >= Stage::Drained && std::mem::take(&mut life.undrained) {
                    self.parents.pd.release();
                }
            }
        }
        drop(life);
        done
    }

    /// Brings it to RST and to a new life, from any state. Resumes after a refusal.
    pub(super) fn reset(&self, wait: Wait) -> Result<()> {
        let _one = self.exclusive(wait)?;
        if self.queues.is_exported() {
            return Err(Error::QpState {
                doing: "reset it",
                state: "exported",
            });
        }
        let cleared = self.life().cleared;
        if !cleared {
            for stage in QUIESCE {
                self.step(stage, wait)?;
            }
            self.reset_state()?;
            self.life().cleared = true;
        }
        self.queues.renew()?;
        let mut life = self.life();
        self.queues.slab().set_quiet(self.queues.place(), false);
        self.take(StageEvent::Revive, "reset it")?;
        *life = Life::new(self.queues.slab().first_index());
        Ok(())
    }
}

impl Attached {
    /// Enters the launch in the QP's list.
    pub(crate) fn name(&self, graph: &Graph, launch: u64) {
        let mut life = self.qp.life();
        let own = life.uses.iter_mut().find(|own| own.number == self.number);
        if let Some(own) = own {
            own.launch = Some((graph.clone(), launch));
        }
    }

    pub(crate) fn slot(&self) -> Arc<dyn Slot> {
        self.qp.slot()
    }

    /// Tells GPU threads to leave the QP.
    pub(crate) fn stop(&self) -> Result<()> {
        self.qp.tell_stop()
    }

    /// The launch of all of them is over. What its work requests may access stays until they have retired.
    pub(crate) fn settle(all: &[Self], kept: &[Kept]) {
        let Some(first) = all.first() else { return };
        let queues: Vec<&Queues> = all.iter().map(|one| &one.qp.queues).collect();
        let issued: Vec<u64> = all.iter().map(|one| one.qp.life().issued).collect();
        let left = if first.qp.gpu.is_alive() {
            Queues::produced_of(&queues)
        } else {
            Vec::new()
        };
        let mut left = left.into_iter();
        for (one, issued) in all.iter().zip(issued) {
            one.settle_one(left.next().and_then(Result::ok), issued, kept);
        }
    }

    /// `issued`: uses of the QP so far when it was looked at.
    fn settle_one(&self, left: Option<Produced>, issued: u64, kept: &[Kept]) {
        let mut life = self.qp.life();
        // Another launch may change it still, or has.
        let alone = life.issued == issued && life.uses.iter().all(|own| own.number == self.number);
        life.left = left.filter(|_| alone);
        let old = if left.is_some_and(Produced::is_idle) {
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
        self.step(to, wait)
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
        let regions: Vec<_> = life.pins.iter().map(|region| region.slot()).collect();
        drop(life);
        [
            self.parents.pd.slot(),
            self.parents.cq.slot(),
            self.parents.page.slot(),
            self.parents.umem.slot(),
            self.parents.words.slot(),
        ]
        .into_iter()
        .chain(self.parents.receive_cq.iter().map(Pin::slot))
        .chain(self.parents.words_umem.iter().map(Pin::slot))
        .chain(regions)
        .collect()
    }
}
