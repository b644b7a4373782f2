//! One step of work for one QP: which part of the NIC it goes to, and what those parts share.
//!
//! Knows: QP state decides who works; how a doorbell record is read and a WQE is fetched.
//! Must not know: what a WQE does.

use std::sync::Arc;

use warpverbs_sim_bus::{Dma, DmaAccess, Fault, Purpose};
use warpverbs_wire::doorbell::{DBR_RECEIVE, DBR_SEND, dbr_producer};
use warpverbs_wire::eqe::{Event as Raised, EventType};
use warpverbs_wire::prm::qpc::{QpState, RqType};
use warpverbs_wire::wqe::{Control, MAX_DS, SEGMENT, wqebbs};

use crate::config::MAX_WQE_BYTES;
use crate::events::Events;
use crate::faults::Faults;
use crate::findings::{FindingKind, Findings, Told, one_line};
use crate::objects::{ObjectId, ObjectKind, Objects};
use crate::packet::Packet;
use crate::port::Port;
use crate::qp::{Action, Failure, Qp, Slot, WQEBB_BYTES};
use crate::schedule::Schedule;
use crate::sq::{Lag, Recorded};
use crate::stats::NicStats;
use crate::time::Clock;
use crate::trace::{Event, Trace};

/// All that a step may touch.
pub(crate) struct Work<'a> {
    pub(crate) qpn: u32,
    pub(crate) objects: &'a mut Objects,
    pub(crate) schedule: &'a mut Schedule,
    pub(crate) findings: &'a mut Findings,
    pub(crate) stats: &'a mut NicStats,
    pub(crate) faults: &'a mut Faults,
    pub(crate) port: &'a mut Port,
    pub(crate) time: &'a mut Clock,
    /// Payloads that are used again.
    pub(crate) buffers: &'a mut Vec<Vec<u8>>,
    /// Each WQE is read once more when it completes.
    pub(crate) checks_wqes: bool,
    pub(crate) ignores_unused_immediates: bool,
    /// Steps so far: the clock of CQE timestamps.
    pub(crate) clock: u64,
    pub(crate) events: &'a mut Events,
    pub(crate) trace: &'a Option<(Trace, Arc<str>)>,
    pub(crate) dma: &'a mut dyn Dma,
}

/// A fetched WQE.
pub(crate) struct Fetched {
    bytes: [u8; MAX_WQE_BYTES as usize],
    len: usize,
    pub(crate) slot: Slot,
}

impl Fetched {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// The control segment. A fetched WQE has at least one WQEBB.
    pub(crate) fn control(&self) -> Control {
        Control::parse(&self.bytes).unwrap_or_default()
    }
}

impl Work<'_> {
    /// Takes one step for the QP.
    pub(crate) fn step(&mut self) {
        let Some(qp) = self.objects.qps.get(self.qpn) else {
            return self.schedule.rest(self.qpn);
        };
        match qp.next_action() {
            Some(Action::ReadDbr) => self.read_dbr(),
            Some(Action::Respond) => self.respond(),
            Some(Action::Retire) => self.retire(),
            Some(Action::Local) => self.local_work(),
            Some(Action::Send) => self.send(),
            Some(Action::Fetch) => self.fetch_next(),
            Some(Action::Flush) => self.flush(),
            None => {}
        }
        self.settle();
    }

    pub(crate) fn note(&self, event: Event) {
        if let Some((trace, name)) = self.trace {
            trace.add(self.time.now(), name, event);
        }
    }

    /// Raises an event of the QP.
    pub(crate) fn raise(&mut self, event: EventType) {
        let number = self.qpn;
        self.events.raise(Raised::Queue { event, number });
    }

    /// To ERR.
    pub(crate) fn enter_error(&mut self, cause: Option<Failure>) {
        self.note(Event::Error { qpn: self.qpn });
        if let Some(cause) = &cause {
            self.count_failure(cause.failed);
        }
        if let Some(qp) = self.qp() {
            qp.enter_error(cause);
            // Its receives stay in the shared queue; software waits for this event before it destroys the QP.
            if qp.context.rq_type == RqType::Shared {
                self.raise(EventType::SrqLastWqe);
            }
        }
    }

    /// Reads the doorbell record of a QP that has nothing else to do. True if it has now.
    pub(crate) fn look_after(&mut self) -> bool {
        let Some(qp) = self.objects.qps.get(self.qpn).filter(|qp| qp.is_watched()) else {
            self.schedule.unwatch(self.qpn);
            return false;
        };
        if qp.next_action().is_none() {
            let (state, has_record) = (qp.state, !qp.has_no_dbr());
            if has_record {
                self.read_dbr();
            }
            // Receives that are posted in ERR are flushed too (IBA 10.3); there is no doorbell that would tell of them.
            if state == QpState::Err && self.qp().is_some_and(|qp| qp.receives.is_some()) {
                self.read_receive_dbr();
            }
        }
        self.settle()
    }

    /// Puts the QP on the lists where it belongs; true if it has work.
    pub(crate) fn settle(&mut self) -> bool {
        let Some(qp) = self.objects.qps.get_mut(self.qpn) else {
            return false;
        };
        // The clock keeps deadlines that no longer hold: an earlier one is enough to look again.
        if let Some(alarm) = qp.wake_at()
            && qp.alarm.is_none_or(|known| alarm < known)
        {
            qp.alarm = Some(alarm);
            self.time.wait(self.qpn, alarm);
        }
        let busy = qp.next_action().is_some();
        if qp.is_watched() {
            self.schedule.watch(self.qpn);
        } else {
            self.schedule.unwatch(self.qpn);
        }
        if busy {
            self.schedule.wake(self.qpn);
        } else {
            self.schedule.rest(self.qpn);
        }
        busy
    }

    pub(crate) fn qp(&mut self) -> Option<&mut Qp> {
        self.objects.qps.get_mut(self.qpn)
    }

    pub(crate) fn id(&self) -> ObjectId {
        ObjectId::new(ObjectKind::Qp, self.qpn)
    }

    /// Sends a packet of the QP.
    pub(crate) fn emit_packet(&mut self, packet: Packet) {
        let Some(path) = self.qp().map(|qp| qp.path) else {
            return;
        };
        self.note(Event::Sent {
            qpn: self.qpn,
            opcode: packet.opcode,
            psn: packet.psn.get(),
            bytes: packet.len() as u32,
        });
        self.stats.packets_sent += u64::from(packet.packets());
        if !self.port.send(self.time.now(), &path, packet) {
            self.stats.packets_lost += 1;
        }
    }

    /// Notes a DMA access that the bus refused.
    pub(crate) fn note_fault(&mut self, object: ObjectId, fault: &Fault) {
        let kind = FindingKind::DmaFault { addr: fault.addr };
        self.findings.add(object, None, kind, || fault.to_string());
    }

    pub(crate) fn read_word(&mut self, purpose: Purpose, addr: u64) -> Option<[u8; 4]> {
        let mut word = [0; 4];
        let access = DmaAccess::new(purpose, self.qpn);
        match self.dma.read(access, addr, &mut word) {
            Ok(()) => Some(word),
            Err(fault) => {
                self.note_fault(self.id(), &fault);
                None
            }
        }
    }

    /// Reads the send doorbell record. In RTS the producer becomes the later of doorbell and record, in ERR it is the
    /// record's.
    fn read_dbr(&mut self) {
        let Some(qp) = self.qp() else { return };
        qp.dbr_due = false;
        self.take_record();
    }

    /// Looks whether a doorbell that has just arrived makes sure that its record is there too (rule O3): a NIC in
    /// recovery takes the record for the whole truth when the doorbell comes.
    pub(crate) fn confirm_doorbell(&mut self) {
        let recorded = self.qp().filter(|qp| !qp.has_no_dbr());
        let Some(record) = recorded.map(|qp| qp.memory.dbr) else {
            return;
        };
        let told = self.told(record);
        if let Some(word) = self.read_word(Purpose::DbrAtDoorbell, record + DBR_SEND as u64)
            && let Some(qp) = self.qp()
        {
            qp.indices.confirm(dbr_producer(word));
            qp.told = told;
        }
    }

    /// Who has stored the last doorbell and the record.
    fn told(&mut self, record: u64) -> Told {
        Told {
            record: self.dma.written_by(record + DBR_SEND as u64),
            doorbell: self.dma.doorbell_by(self.qpn),
        }
    }

    /// Reads the send doorbell record whenever it likes.
    pub(crate) fn take_record(&mut self) {
        let Some(record) = self.qp().map(|qp| qp.memory.dbr) else {
            return;
        };
        let Some(word) = self.read_word(Purpose::Dbr, record + DBR_SEND as u64) else {
            return;
        };
        self.stats.dbr_reads += 1;
        let hidden = self.faults.hides_dbr(self.qpn);
        let id = self.id();
        let Some(qp) = self.objects.qps.get_mut(self.qpn) else {
            return;
        };
        let value = dbr_producer(word);
        let consumer = Some(qp.indices.consumer);
        let recorded = if hidden {
            Recorded::Same
        } else {
            qp.indices.record(value)
        };
        if let Some((doorbell, record)) = qp.indices.take_unordered() {
            let kind = FindingKind::DbrUnordered { doorbell, record };
            let told = qp.unordered_told;
            self.findings
                .add_told(id, Some(doorbell), kind, told, String::new);
        }
        if recorded != Recorded::Same {
            let told = self.told(record);
            if let Some(qp) = self.objects.qps.get_mut(self.qpn) {
                qp.told.record = told.record;
            }
            match recorded {
                Recorded::Same | Recorded::Advanced => {}
                Recorded::Regressed { last, now } => {
                    let kind = FindingKind::DbrRegression { last, now };
                    self.findings
                        .add_told(id, consumer, kind, told, String::new);
                }
                Recorded::Beyond => {
                    let kind = FindingKind::DbrBeyondQueue { value };
                    self.findings
                        .add_told(id, consumer, kind, told, String::new);
                }
            }
        }
        let Some(qp) = self.objects.qps.get_mut(self.qpn) else {
            return;
        };
        if let Some(lag) = qp.indices.judge() {
            let receive = self.read_word(Purpose::Dbr, record + DBR_RECEIVE as u64);
            self.report_lag(lag, receive);
        }
    }

    fn report_lag(&mut self, lag: Lag, receive: Option<[u8; 4]>) {
        let doorbell = lag.doorbell;
        let kind = match receive {
            // Zero says nothing: it is what an unused word holds.
            Some(word) if word != [0; 4] && dbr_producer(word) >= doorbell as u16 => {
                FindingKind::DbrWrongWord { doorbell }
            }
            _ => FindingKind::DbrBehind {
                doorbell,
                dbr: lag.dbr,
            },
        };
        self.findings
            .add(self.id(), Some(doorbell), kind, String::new);
    }

    /// Fetches the WQE at a WQEBB index.
    pub(crate) fn fetch(&mut self, index: u64) -> Result<Fetched, Fault> {
        let mut fetched = Fetched {
            bytes: [0; MAX_WQE_BYTES as usize],
            len: 0,
            slot: Slot {
                wqebbs: 1,
                ..Slot::default()
            },
        };
        let Some((ring, depth)) = self.qp().map(|qp| (qp.memory.ring, qp.indices.depth())) else {
            return Ok(fetched);
        };
        let mut wanted = 1;
        let mut done = 0;
        // Declared segments that are still to be read.
        let mut segments = 0;
        for block in fetched.bytes.chunks_exact_mut(WQEBB_BYTES as usize) {
            if done == wanted {
                break;
            }
            // A WQE wraps around the end of the ring by whole WQEBBs.
            let at = ring + ((index + done) & (depth - 1)) * WQEBB_BYTES;
            let access = DmaAccess::new(Purpose::Wqe, self.qpn);
            // Only bytes that the WQE declares are read: those behind may be anything, even under way.
            let (head, rest) = block.split_at_mut(SEGMENT);
            let mut left = segments;
            if done == 0 {
                self.dma.read(access, at, head)?;
                self.faults.on_wqe(self.qpn, index, head);
                left = usize::from(head.get(7).copied().unwrap_or(0) & MAX_DS).saturating_sub(1);
            } else if left > 0 {
                self.dma.read(access, at, head)?;
                left -= 1;
            }
            let declared = (left * SEGMENT).min(rest.len());
            if let Some(declared) = rest.get_mut(..declared).filter(|d| !d.is_empty()) {
                self.dma.read(access, at + SEGMENT as u64, declared)?;
            }
            segments = left - declared / SEGMENT;
            if done == 0 {
                self.faults.on_wqe(self.qpn, index, block);
                let ds = block.get(7).copied().unwrap_or(0) & MAX_DS;
                wanted = u64::from(wqebbs(u32::from(ds))).clamp(1, depth);
            }
            done += 1;
        }
        fetched.len = (done * WQEBB_BYTES) as usize;
        let control = fetched.control();
        let ds = usize::from(control.ds & MAX_DS);
        fetched.len = fetched.len.min((ds * SEGMENT).max(SEGMENT));
        fetched.slot = Slot {
            index,
            wqebbs: done,
            opcode: control.opcode,
            mode: control.completion_mode(),
        };
        self.stats.wqes_fetched += 1;
        self.note(Event::Fetch {
            qpn: self.qpn,
            index,
            opcode: control.opcode,
            opmod: control.opmod,
            flags: control.flags,
        });
        Ok(fetched)
    }

    /// Checks that a fetched WQE is the one that is due here. False after a finding.
    pub(crate) fn is_due(&mut self, fetched: &Fetched) -> bool {
        let control = fetched.control();
        let expected = fetched.slot.index as u16;
        let kind = if control.index != expected {
            FindingKind::WqeIndex {
                expected,
                found: control.index,
            }
        } else if control.qpn != self.qpn {
            FindingKind::WqeQpn { found: control.qpn }
        } else {
            return true;
        };
        self.findings
            .add(self.id(), Some(fetched.slot.index), kind, || {
                one_line(control)
            });
        false
    }
}
