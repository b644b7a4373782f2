//! The NIC: driver calls, doorbells, and steps.
//!
//! Knows: what belongs to one NIC, and who does what.
//! Must not know: mailboxes (`command`), WQEs (`requester`), or who calls.

use std::collections::BTreeMap;
use std::sync::Arc;

use warpverbs_sim_bus::{Device, Dma, Fault, FaultKind, Party, Step};
use warpverbs_wire::doorbell::{CqArm, Doorbell};
use warpverbs_wire::eqe::{self, EventType, PortChange};
use warpverbs_wire::prm::qpc::QpState;

use crate::config::{
    FindingPolicy, GidEntry, LinkLayer, MAX_FIRST_INDEX, NicConfig, PORTS, PortInfo,
};
use crate::error::NicError;
use crate::events::Events;
use crate::faults::{Faults, InjectedFault};
use crate::findings::{Finding, FindingKind, Findings, Told};
use crate::gids::Gids;
use crate::keys::{MKey, MrKeys, Rights};
use crate::link::Link;
use crate::objects::{ObjectId, ObjectKind, Objects};
use crate::packet::mac_number;
use crate::port::Port;
use crate::qp::Qp;
use crate::records::Records;
use crate::schedule::{Schedule, Turn};
use crate::sq::Rung;
use crate::stats::NicStats;
use crate::stores::Store;
use crate::time::Clock;
use crate::trace::{Event, Trace};
use crate::uar::{self, Register, Uar, UarKind};
use crate::umem::{DmaRange, Umem};
use crate::work::Work;

/// A simulated NIC.
pub struct NicModel {
    config: NicConfig,
    pub(crate) objects: Objects,
    pub(crate) gids: Gids,
    schedule: Schedule,
    findings: Findings,
    pub(crate) stats: NicStats,
    pub(crate) faults: Faults,
    pub(crate) port: Port,
    events: Events,
    link_up: bool,
    pub(crate) time: Clock,
    /// Who is rung where: of use where doorbells may be missed.
    pub(crate) records: Records,
    /// Payloads that are used again.
    buffers: Vec<Vec<u8>>,
    clock: u64,
    /// The last step took a packet.
    took_packet: bool,
    trace: Option<(Trace, Arc<str>)>,
    /// Low byte of the next MR's key.
    next_variant: u8,
}

impl NicModel {
    /// A NIC with no objects.
    pub fn new(mut config: NicConfig) -> Self {
        config.first_index = config.first_index.min(MAX_FIRST_INDEX);
        Self {
            schedule: Schedule::new(config.seed),
            objects: Objects::new(config.log_max_objects()),
            gids: Gids::new(&config),
            faults: Faults::new(config.faults),
            config,
            findings: Findings::default(),
            stats: NicStats::default(),
            port: Port::default(),
            events: Events::default(),
            link_up: true,
            time: Clock::default(),
            records: Records::default(),
            buffers: Vec::new(),
            clock: 0,
            took_packet: false,
            trace: None,
            next_variant: 0,
        }
    }

    /// How it was made.
    pub fn config(&self) -> &NicConfig {
        &self.config
    }

    /// Allocates a protection domain and returns its number.
    pub fn alloc_pd(&mut self) -> Result<u32, NicError> {
        self.objects.pds.insert(|_| 0)
    }

    /// Frees a protection domain that nothing uses.
    pub fn dealloc_pd(&mut self, pdn: u32) -> Result<(), NicError> {
        self.objects.pds.remove(pdn).map(|_| ())
    }

    /// Registers memory. `access` has `IBV_ACCESS_*` bits ([`crate::access`]).
    pub fn reg_mr(&mut self, pdn: u32, range: DmaRange, access: u32) -> Result<MrKeys, NicError> {
        let pd = ObjectId::new(ObjectKind::Pd, pdn);
        if self.objects.pds.get(pdn).is_none() {
            return Err(NicError::NoObject(pd));
        }
        range.validate()?;
        let rights = Rights::of_mr(access)?;
        let variant = self.next_variant;
        let index = self.objects.mkeys.insert(|_| MKey {
            uid: 0,
            variant,
            pd: pdn,
            range,
            rights,
            invalidated: false,
            uses: vec![pd],
        })?;
        self.next_variant = variant.wrapping_add(1);
        self.objects.retain(&[pd]);
        let key = (index << 8) | u32::from(variant);
        Ok(MrKeys {
            lkey: key,
            rkey: key,
        })
    }

    /// Deregisters memory. Never refused for work in flight: what uses the key later fails.
    pub fn dereg_mr(&mut self, lkey: u32) -> Result<(), NicError> {
        let index = lkey >> 8;
        let object = ObjectId::new(ObjectKind::MKey, index);
        match self.objects.mkeys.get(index) {
            Some(key) if key.variant == lkey as u8 => {}
            _ => return Err(NicError::NoObject(object)),
        }
        let key = self.objects.mkeys.remove(index)?;
        self.objects.release(&key.uses);
        Ok(())
    }

    /// Registers memory for queues and doorbell records. `page_sizes` is a bitmap of page sizes; without it queues may
    /// start at offset 0 only. Memory of a CQ needs local write in `access`.
    pub fn reg_umem(
        &mut self,
        range: DmaRange,
        page_sizes: u64,
        access: u32,
    ) -> Result<u32, NicError> {
        self.reg_umem_of(0, range, page_sizes, access)
    }

    /// As [`Self::reg_umem`], for a user context: commands of others cannot name it.
    pub fn reg_umem_of(
        &mut self,
        uid: u16,
        range: DmaRange,
        page_sizes: u64,
        access: u32,
    ) -> Result<u32, NicError> {
        let rights = Rights::of_mr(access)?;
        let umem = Umem::new(uid, range, page_sizes, rights.local_write)?;
        self.objects.umems.insert(|_| umem)
    }

    /// Deregisters a UMEM that no queue, record or key uses.
    pub fn dereg_umem(&mut self, id: u32) -> Result<(), NicError> {
        self.objects.umems.remove(id).map(|_| ())
    }

    /// Allocates a doorbell page. Page `p` lies at byte `p * 4096` of the BAR.
    pub fn alloc_uar(&mut self, kind: UarKind) -> Result<u32, NicError> {
        self.alloc_uar_of(0, kind)
    }

    /// As [`Self::alloc_uar`], for a user context: commands of others cannot name it.
    pub fn alloc_uar_of(&mut self, uid: u16, kind: UarKind) -> Result<u32, NicError> {
        self.objects.uars.insert(|_| Uar { uid, kind })
    }

    /// Frees a doorbell page that no queue uses.
    pub fn free_uar(&mut self, page: u32) -> Result<(), NicError> {
        self.objects.uars.remove(page).map(|_| ())
    }

    /// Event queue number of a completion vector. No events are raised yet.
    pub fn query_eqn(&self, vector: u32) -> Result<u32, NicError> {
        NicConfig::event_queue(vector)
    }

    /// Queries a port; ports count from 1.
    pub fn query_port(&self, port: u8) -> Result<PortInfo, NicError> {
        let info = self.config.port(port)?;
        Ok(PortInfo {
            active: self.link_up,
            ..info
        })
    }

    /// Reads one entry of a port's GID table; `None` if it is empty.
    pub fn query_gid(&self, port: u8, index: u32) -> Result<Option<GidEntry>, NicError> {
        self.config.port(port)?;
        self.gids.get(index).ok_or(NicError::NoGid(index))
    }

    /// Joins the port to a link. Packets to this NIC's own addresses never leave it.
    pub fn connect(&mut self, link: impl Link + 'static) {
        self.port.connect(Box::new(link), self.config.link_layer);
    }

    /// The MAC address behind a GID: this NIC's own, or the one that a link-local GID is made from.
    pub fn resolve_mac(
        &self,
        port: u8,
        gid_index: u32,
        remote: [u8; 16],
    ) -> Result<[u8; 6], NicError> {
        if self.query_gid(port, gid_index)?.is_none() {
            return Err(NicError::NoGid(gid_index));
        }
        if let Some(mac) = self.gids.mac_of(remote) {
            Ok(mac)
        } else if let Some(mac) = self
            .config
            .neighbour(remote)
            .filter(|_| self.port.is_connected())
        {
            Ok(mac)
        } else {
            Err(NicError::Unreachable(remote))
        }
    }

    /// What was noticed so far. Of one kind on one object only the first few are kept.
    pub fn findings(&self) -> &[Finding] {
        self.findings.kept()
    }

    /// How many findings there were, those not kept included.
    pub fn findings_total(&self) -> u64 {
        self.findings.total()
    }

    /// How many findings of each kind there were, by [`FindingKind::name`].
    pub fn findings_by_kind(&self) -> &BTreeMap<&'static str, u64> {
        self.findings.by_kind()
    }

    /// Takes the findings away.
    pub fn take_findings(&mut self) -> Vec<Finding> {
        self.findings.take()
    }

    /// Judges what only the end of a run shows: doorbell records that never reached their last doorbell. To be called when no
    /// kernel runs and the NIC is idle.
    pub fn end_of_run(&mut self) {
        self.judge_waiting();
        let at_the_end = || "at the end of the run".to_owned();
        for (qpn, qp) in self.objects.qps.iter() {
            if !matches!(qp.state, QpState::Rts | QpState::Err) || qp.has_no_dbr() {
                continue;
            }
            if let Some((doorbell, record)) = qp.indices.uncertain() {
                let kind = FindingKind::DbrUnordered { doorbell, record };
                let id = ObjectId::new(ObjectKind::Qp, qpn);
                self.findings
                    .add_told(id, Some(doorbell), kind, qp.told, at_the_end);
            }
            // A QP in error takes no doorbells.
            if qp.state == QpState::Rts
                && !self.misses_doorbells(qp.context.uar_page)
                && let Some((doorbell, record)) = qp.indices.unrung()
            {
                let kind = FindingKind::DbrUnrung { doorbell, record };
                let id = ObjectId::new(ObjectKind::Qp, qpn);
                self.findings
                    .add_told(id, Some(doorbell), kind, qp.told, at_the_end);
            }
            if let Some(lag) = qp.indices.judge_last() {
                let kind = FindingKind::DbrBehind {
                    doorbell: lag.doorbell,
                    dbr: lag.dbr,
                };
                let id = ObjectId::new(ObjectKind::Qp, qpn);
                self.findings
                    .add_told(id, Some(lag.doorbell), kind, qp.told, at_the_end);
            }
        }
    }

    pub(crate) fn find(&mut self, object: ObjectId, index: u64, kind: FindingKind) {
        self.findings.add(object, Some(index), kind, String::new);
    }

    /// Counters.
    pub fn stats(&self) -> &NicStats {
        &self.stats
    }

    /// All live objects. Empty after a teardown that leaked nothing.
    pub fn live_objects(&self) -> Vec<ObjectId> {
        self.objects.live()
    }

    /// Raises an event of a QP.
    pub(crate) fn raise(&mut self, number: u32, event: EventType) {
        self.events.raise(eqe::Event::Queue { event, number });
    }

    /// Takes the events away that were raised.
    pub fn take_events(&mut self) -> Vec<eqe::Event> {
        self.events.take()
    }

    /// How many events of each type were raised, by the type's code.
    pub fn events_by_type(&self) -> &BTreeMap<u8, u64> {
        self.events.by_type()
    }

    /// Events that were raised while too many waited.
    pub fn events_lost(&self) -> u64 {
        self.events.lost()
    }

    pub(crate) fn is_link_up(&self) -> bool {
        self.link_up
    }

    /// Takes the port's link up or down. While it is down nothing leaves the port or reaches it.
    pub fn set_link_up(&mut self, up: bool) {
        if std::mem::replace(&mut self.link_up, up) != up {
            let change = if up {
                PortChange::Active
            } else {
                PortChange::Down
            };
            self.events.raise(eqe::Event::Port {
                port: PORTS,
                change,
            });
            self.port.set_up(up);
        }
    }

    /// Arms a CQ for an event. A CQ of another page or none is noted.
    fn arm(&mut self, page: u32, bytes: [u8; 8]) {
        self.stats.cq_arms += 1;
        let (command, cqn) = CqArm::parse(bytes);
        let id = ObjectId::new(ObjectKind::Cq, cqn);
        let detail = || format!("arm of CQ {cqn:#x} on UAR {page:#x}");
        match self.objects.cqs.get_mut(cqn) {
            Some(cq) if cq.context.uar_page == page => self.arm_cq(cqn, command),
            Some(cq) => {
                let kind = FindingKind::DoorbellWrongPage {
                    rung: page,
                    expected: cq.context.uar_page,
                };
                self.findings.add(id, None, kind, detail);
            }
            None => self
                .findings
                .add(id, None, FindingKind::DoorbellUnknownQp, detail),
        }
    }

    /// Takes an arm command of a CQ.
    pub(crate) fn arm_cq(&mut self, cqn: u32, command: CqArm) {
        if let Some(cq) = self.objects.cqs.get_mut(cqn)
            && cq.arming.arm(command, cq.producer)
        {
            self.events.raise(eqe::Event::Completion { cqn });
        }
    }

    /// Plants a fault.
    pub fn inject(&mut self, fault: InjectedFault) {
        self.note(Event::Fault { name: fault.name() });
        if fault == InjectedFault::Removed {
            self.events
                .raise(eqe::Event::Other(EventType::InternalError));
        }
        match fault {
            InjectedFault::StuckQp { qpn } => {
                if let Some(qp) = self.objects.qps.get_mut(qpn) {
                    qp.stuck = true;
                }
            }
            fault => self.faults.plant(fault),
        }
    }

    /// Takes planted faults away; a NIC that is gone stays so.
    pub fn heal(&mut self) {
        self.faults.clear();
        let ids: Vec<u32> = self.objects.qps.iter().map(|(id, _)| id).collect();
        for qpn in ids {
            if let Some(qp) = self.objects.qps.get_mut(qpn) {
                qp.stuck = false;
                self.schedule.wake(qpn);
            }
        }
    }

    /// True if neither doorbells nor packets reach it.
    fn is_silent(&self) -> bool {
        self.faults.has(InjectedFault::Silent) || self.is_removed()
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.faults.has(InjectedFault::Removed)
    }

    pub(crate) fn planted_refusal(&mut self, opcode: u16) -> Option<(u8, u32)> {
        self.faults.on_command(opcode)
    }

    pub(crate) fn planted_silence(&mut self, opcode: u16) -> Option<bool> {
        self.faults.on_answer(opcode)
    }

    /// Adds what it does from now on to a trace.
    pub fn trace(&mut self, trace: &Trace) {
        self.trace = Some((trace.clone(), self.config.name.as_str().into()));
    }

    pub(crate) fn note(&self, event: Event) {
        if let Some((trace, name)) = &self.trace {
            trace.add(self.time.now(), name, event);
        }
    }

    /// The QP may have work.
    pub(crate) fn wake(&mut self, qpn: u32) {
        self.schedule.wake(qpn);
    }

    /// The CQ that a QP waits for has news.
    pub(crate) fn release_wait(&mut self, qpn: u32) {
        if let Some(qp) = self.objects.qps.get_mut(qpn) {
            qp.requester.release();
            self.schedule.wake(qpn);
        }
    }

    /// The QP is gone or reset: it has no work.
    pub(crate) fn forget(&mut self, qpn: u32) {
        self.schedule.rest(qpn);
        self.schedule.unwatch(qpn);
    }

    /// With [`FindingPolicy::Fail`]: what has findings fails.
    fn fail_on_findings(&mut self, dma: &mut dyn Dma) {
        for object in self.findings.take_fresh() {
            let concerns = |(qpn, qp): (u32, &Qp)| {
                let concerned = match object.kind {
                    ObjectKind::Qp => qpn == object.id,
                    ObjectKind::Cq => qp.uses.contains(&object),
                    _ => true,
                };
                let works = matches!(qp.state, QpState::Rtr | QpState::Rts);
                (concerned && works).then_some(qpn)
            };
            let failing: Vec<u32> = self.objects.qps.iter().filter_map(concerns).collect();
            for qpn in failing {
                let mut work = self.work(qpn, dma);
                work.enter_error(None);
                work.raise(EventType::WqCatastrophicError);
                work.settle();
            }
        }
    }

    fn work<'a>(&'a mut self, qpn: u32, dma: &'a mut dyn Dma) -> Work<'a> {
        Work {
            qpn,
            objects: &mut self.objects,
            schedule: &mut self.schedule,
            findings: &mut self.findings,
            stats: &mut self.stats,
            faults: &mut self.faults,
            port: &mut self.port,
            events: &mut self.events,
            time: &mut self.time,
            buffers: &mut self.buffers,
            checks_wqes: self.config.checks_wqes,
            ignores_unused_immediates: self.config.ignores_unused_immediates,
            clock: self.clock,
            trace: &self.trace,
            dma,
        }
    }

    /// Refuses a store to a register that takes no such store.
    fn check_store(&self, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        let refuse =
            |kind, detail: String| Err(Fault::new(kind, offset, bytes.len() as u64, detail));
        let (page, register) = uar::locate(offset);
        let uar = ObjectId::new(ObjectKind::Uar, page);
        if self.objects.uars.get(page).is_none() {
            return if self.objects.uars.is_destroyed(page) {
                refuse(FaultKind::Freed, format!("{uar} was freed"))
            } else {
                refuse(FaultKind::Unmapped, format!("{uar} was never allocated"))
            };
        }
        match register {
            Register::None => refuse(FaultKind::Unmapped, format!("{uar} has no such register")),
            _ if bytes.len() == 8 => Ok(()),
            _ => refuse(
                FaultKind::Refused,
                format!("a doorbell of {uar} is stores of 8 bytes"),
            ),
        }
    }

    /// The QP that a store rings, if it is to a doorbell with a record.
    fn rung_qp(&self, offset: u64, bytes: &[u8]) -> Option<u32> {
        let (_, register) = uar::locate(offset);
        let bytes = <[u8; 8]>::try_from(bytes).ok()?;
        match register {
            Register::Send | Register::SendNoDbr => Some(Doorbell::parse(bytes).ok()?.qpn()),
            _ => None,
        }
    }

    /// With [`NicConfig::reads_records_early`]: reads the doorbell record of some QP that can send.
    fn read_some_record(&mut self, dma: &mut dyn Dma) {
        let rts =
            |(qpn, qp): (u32, &Qp)| (qp.state == QpState::Rts && !qp.has_no_dbr()).then_some(qpn);
        let schedule = &mut self.schedule;
        let mut all = self.objects.qps.iter_from(|span| schedule.below(span));
        let sending = all.find_map(rts);
        drop(all);
        if let Some(qpn) = sending {
            let mut work = self.work(qpn, dma);
            work.take_record();
            work.settle();
        }
    }

    /// Takes an MMIO store, `by` whom the memory model says.
    fn take_store(&mut self, offset: u64, bytes: &[u8], by: Option<Party>) -> Result<(), Fault> {
        // Stores to a device that is gone are posted, and vanish.
        if self.is_silent() {
            return Ok(());
        }
        self.check_store(offset, bytes)?;
        let (page, register) = uar::locate(offset);
        match (register, <[u8; 8]>::try_from(bytes)) {
            (Register::Send | Register::SendNoDbr, Ok(bytes)) => {
                self.ring(page, register, bytes, by);
            }
            (Register::CqArm, Ok(bytes)) => self.arm(page, bytes),
            // The rest of a WQE that is pushed: this NIC fetches WQEs all the same, as hardware may.
            _ => {}
        }
        Ok(())
    }

    /// Takes a store to a doorbell page, whatever its width and place. What no register takes vanishes, and is noted. A wide
    /// store to a page for BlueFlame reaches the NIC as part of a combined burst: word by word here.
    pub(crate) fn take_any_store(&mut self, store: &Store) {
        let first = (u64::from(store.page) << uar::LOG_PAGE) + u64::from(store.offset);
        let bytes = store.bytes();
        let combined = self
            .objects
            .uars
            .get(store.page)
            .is_some_and(|uar| uar.kind == UarKind::BlueFlame)
            && bytes.len() > 8
            && bytes.len().is_multiple_of(8);
        let width = if combined { 8 } else { bytes.len().max(1) };
        let mut refused = match bytes {
            [] => Some("a load".to_owned()),
            _ => None,
        };
        for (at, part) in bytes.chunks(width).enumerate() {
            if let Err(fault) = self.take_store(first + (at * width) as u64, part, None) {
                refused.get_or_insert(fault.to_string());
            }
        }
        if let Some(why) = refused {
            let kind = FindingKind::DoorbellRefused {
                offset: store.offset,
                width: bytes.len() as u8,
            };
            let uar = ObjectId::new(ObjectKind::Uar, store.page);
            self.findings.add(uar, None, kind, || why);
        }
    }

    /// Takes a send doorbell on an allocated page. What hardware ignores is ignored, and noted.
    fn ring(&mut self, page: u32, register: Register, bytes: [u8; 8], by: Option<Party>) {
        let uar = ObjectId::new(ObjectKind::Uar, page);
        let doorbell = match Doorbell::parse(bytes) {
            Ok(doorbell) => doorbell,
            Err(error) => {
                return self
                    .findings
                    .add(uar, None, FindingKind::DoorbellMalformed, || {
                        error.to_string()
                    });
            }
        };
        let qpn = doorbell.qpn();
        let id = ObjectId::new(ObjectKind::Qp, qpn);
        let detail = || format!("{doorbell:?} on UAR {page:#x}");
        let destroyed = self.objects.qps.is_destroyed(qpn);
        let reorders = self.reorders_doorbells(page);
        let Some(qp) = self.objects.qps.get_mut(qpn) else {
            let kind = if destroyed {
                FindingKind::DoorbellAfterDestroy
            } else {
                FindingKind::DoorbellUnknownQp
            };
            return self.findings.add(id, None, kind, detail);
        };
        let consumer = Some(qp.indices.consumer);
        let expected = qp.context.uar_page;
        if page != expected {
            let kind = FindingKind::DoorbellWrongPage {
                rung: page,
                expected,
            };
            return self.findings.add(id, consumer, kind, detail);
        }
        let told = Told {
            doorbell: by,
            ..qp.told
        };
        let no_dbr = qp.has_no_dbr();
        if no_dbr != (register == Register::SendNoDbr) {
            return self
                .findings
                .add(id, consumer, FindingKind::DoorbellWrongRegister, detail);
        }
        self.stats.doorbells += 1;
        if let Some((trace, name)) = &self.trace {
            let producer = doorbell.producer();
            trace.add(self.time.now(), name, Event::Doorbell { qpn, producer });
        }
        match qp.state {
            QpState::Rts => match qp.indices.ring(doorbell.producer()) {
                Rung::Accepted => {
                    if qp.indices.has_unordered() {
                        qp.unordered_told = qp.told;
                    }
                    qp.indices.follow_doorbell();
                }
                Rung::Regressed { .. } if reorders => {}
                Rung::Regressed { last, rung } => {
                    let kind = FindingKind::DoorbellRegression { last, rung };
                    self.findings.add_told(id, consumer, kind, told, detail);
                }
                Rung::Beyond => {
                    let kind = FindingKind::DoorbellBeyondQueue;
                    self.findings.add_told(id, consumer, kind, told, detail);
                }
            },
            // Without a record the doorbell is all there is.
            QpState::Err if no_dbr => {
                if qp.indices.ring(doorbell.producer()) == Rung::Accepted {
                    qp.indices.follow_doorbell();
                }
            }
            // Only the doorbell record counts in ERR (docs/hardware-facts.md); the doorbell makes the NIC look at it.
            QpState::Err => {}
            state => {
                return self
                    .findings
                    .add(id, consumer, FindingKind::DoorbellLost, || {
                        format!("the QP is in {state:?}; {}", detail())
                    });
            }
        }
        qp.dbr_due = !no_dbr;
        self.schedule.wake(qpn);
    }
}

impl NicModel {
    /// Nothing is to be done now: timers that are due act, then simulated time passes.
    fn pass_time(&mut self, dma: &mut dyn Dma) -> Step {
        // Deadlines that no longer hold, such as those of packets that were answered, must not let time pass.
        while let Some((deadline, qpn)) = self.time.first() {
            let Some(qp) = self.objects.qps.get_mut(qpn) else {
                self.time.drop_first();
                continue;
            };
            let alarm = qp.wake_at();
            if alarm == Some(deadline) {
                break;
            }
            self.time.drop_first();
            qp.alarm = alarm;
            if let Some(alarm) = alarm {
                self.time.wait(qpn, alarm);
            }
        }
        if let Some(qpn) = self.time.due() {
            self.port.work();
            self.work(qpn, dma).on_time();
            return Step::Progress;
        }
        if self.time.is_real() {
            return Step::Idle;
        }
        if self.port.pass_time(&mut self.time) {
            Step::Progress
        } else {
            Step::Idle
        }
    }
}

impl Device for NicModel {
    fn name(&self) -> &str {
        &self.config.name
    }

    fn address(&self) -> Option<u64> {
        // What frames name it by.
        Some(match self.config.link_layer {
            LinkLayer::Ethernet => mac_number(self.config.mac),
            LinkLayer::InfiniBand => self.config.lid.into(),
        })
    }

    fn step(&mut self, dma: &mut dyn Dma) -> Step {
        if self.is_silent() {
            self.port.sleep(self.time.now());
            return Step::Idle;
        }
        if self.config.findings == FindingPolicy::Fail {
            self.fail_on_findings(dma);
        }
        if self.config.reads_records_early && self.schedule.whim() {
            self.read_some_record(dma);
        }
        // Packets and queues take turns, so that neither keeps the other waiting.
        let turn = self.took_packet && !self.schedule.is_idle();
        self.took_packet = false;
        if !turn && let Some(packet) = self.port.receive(&self.config, &self.gids) {
            self.took_packet = true;
            self.port.work();
            self.clock += 1;
            self.work(packet.destination_qp, dma).take_packet(packet);
            return Step::Progress;
        }
        match self.schedule.next() {
            Turn::Idle => self.pass_time(dma),
            Turn::Work(qpn) => {
                self.port.work();
                self.clock += 1;
                self.work(qpn, dma).step();
                Step::Progress
            }
            Turn::Watch => {
                // All of them: "idle" must mean that none has news.
                let was_idle = self.schedule.is_idle();
                let mut news = false;
                for qpn in self.schedule.watched() {
                    news |= self.work(qpn, dma).look_after();
                }
                if was_idle && !news {
                    self.pass_time(dma)
                } else {
                    Step::Progress
                }
            }
        }
    }

    fn context_of(&self, offset: u64, bytes: &[u8]) -> Result<u32, Fault> {
        if self.is_silent() {
            return Ok(0);
        }
        self.check_store(offset, bytes)?;
        Ok(self.rung_qp(offset, bytes).unwrap_or(0))
    }

    fn mmio_arrives(&mut self, offset: u64, bytes: &[u8], dma: &mut dyn Dma) -> Result<(), Fault> {
        let rung = self.rung_qp(offset, bytes);
        let by = rung.and_then(|qpn| dma.doorbell_by(qpn));
        self.take_store(offset, bytes, by)?;
        if let Some(qpn) = rung
            && !self.is_silent()
        {
            self.work(qpn, dma).confirm_doorbell();
        }
        Ok(())
    }

    fn mmio_write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.take_store(offset, bytes, None)
    }
}
