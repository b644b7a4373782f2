//! Doorbell records that are looked at without a doorbell: what background mode needs beside a NIC's steps.
//!
//! Knows: which queues share a page, whose records are due.
//! Must not know: threads, or how a store to a page is found.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use warpverbs_sim_bus::{Device, Dma, DmaAccess, Purpose};
use warpverbs_wire::doorbell::{
    CqArm, DBR_CQ_ARM, DBR_SEND, REGISTER, REGISTER_CQ_ARM, REGISTER_NO_DBR, UAR_PAGE, dbr_producer,
};
use warpverbs_wire::prm::header::Request;
use warpverbs_wire::prm::qpc::QpState;
use warpverbs_wire::prm::{
    dealloc_uar, destroy_cq, destroy_qp, init2init_qp, init2rtr_qp, qp_2err, qp_2rst, query_cq,
    query_qp, rst2init_qp, rtr2rts_qp, rts2rts_qp, sqerr2rts_qp,
};
use warpverbs_wire::wqe::{Control, SEGMENT};

use crate::findings::FindingKind;
use crate::model::NicModel;
use crate::objects::{ObjectId, ObjectKind};
use crate::qp::{Qp, WQEBB_BYTES};

/// The second buffers of a page's two registers.
const SECOND: [usize; 2] = [REGISTER + 0x100, REGISTER + 0x300];

/// Which queues are rung on which page.
#[derive(Default)]
pub(crate) struct Records {
    qps: HashMap<u32, Vec<u32>>,
    cqs: HashMap<u32, Vec<u32>>,
    /// Pages whose QPs' records are to be looked at.
    due: Vec<u32>,
    /// Pages on which a CQ was armed.
    armed: Vec<u32>,
    /// Pages whose producers use the two buffers of a register in turn. Which of two values was stored first is not known.
    alternating: HashSet<u32>,
    /// Pages on which QPs without record may have overwritten each other's doorbells.
    doubtful: BTreeSet<u32>,
    /// WQEs of such QPs that no doorbell came for when that was last looked at: QP and index.
    waiting: BTreeMap<u32, u64>,
}

impl Records {
    /// A QP was made that is rung on `page`.
    pub(crate) fn add_qp(&mut self, page: u32, qpn: u32) {
        self.qps.entry(page).or_default().push(qpn);
    }

    pub(crate) fn remove_qp(&mut self, page: u32, qpn: u32) {
        remove(&mut self.qps, page, qpn);
    }

    /// A CQ was made that is armed on `page`.
    pub(crate) fn add_cq(&mut self, page: u32, cqn: u32) {
        self.cqs.entry(page).or_default().push(cqn);
    }

    pub(crate) fn remove_cq(&mut self, page: u32, cqn: u32) {
        remove(&mut self.cqs, page, cqn);
    }

    /// True if several QPs are rung on the page.
    fn is_shared(&self, page: u32) -> bool {
        self.qps.get(&page).is_some_and(|qps| qps.len() > 1)
    }
}

fn remove(pages: &mut HashMap<u32, Vec<u32>>, page: u32, number: u32) {
    if let Some(on_page) = pages.get_mut(&page) {
        on_page.retain(|known| *known != number);
        if on_page.is_empty() {
            pages.remove(&page);
        }
    }
}

impl NicModel {
    /// Real time has come to `now`, in ns; from now on time passes so, and no more by steps.
    pub fn set_time(&mut self, now: u64) {
        self.time.set_real(now);
        self.port.set_time(now);
    }

    /// When the first timer runs out, if any runs.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.time.next()
    }

    /// The page on which the object of a command is rung: what was stored there before the command comes before it. `None`:
    /// no command about a queue or a page, so stores and it are in no order that shows.
    pub(crate) fn page_of(&self, command: &[u8]) -> Option<u32> {
        let opcode = Request::parse(command).ok()?.opcode;
        // These commands have the object's number in the same place (mlx5_ifc `qpn`, `cqn`, `uar`).
        let number = command.get(8..12)?.first_chunk::<4>()?;
        let number = u32::from_be_bytes(*number) & 0xff_ffff;
        match opcode {
            destroy_qp::In::OPCODE
            | query_qp::In::OPCODE
            | rst2init_qp::In::OPCODE
            | init2init_qp::In::OPCODE
            | init2rtr_qp::In::OPCODE
            | rtr2rts_qp::In::OPCODE
            | rts2rts_qp::In::OPCODE
            | sqerr2rts_qp::In::OPCODE
            | qp_2err::In::OPCODE
            | qp_2rst::In::OPCODE => Some(self.objects.qps.get(number)?.context.uar_page),
            destroy_cq::In::OPCODE | query_cq::In::OPCODE => {
                Some(self.objects.cqs.get(number)?.context.uar_page)
            }
            dealloc_uar::In::OPCODE => Some(number),
            _ => None,
        }
    }

    pub(crate) fn has_qps(&self) -> bool {
        self.objects.qps.iter().next().is_some()
    }

    /// Takes a value that was found in a register. It may have overwritten another QP's.
    pub(crate) fn take_doorbell(&mut self, page: u32, offset: usize, value: [u8; 8]) {
        if SECOND.contains(&offset) {
            self.records.alternating.insert(page);
        }
        let at = u64::from(page) * UAR_PAGE as u64 + offset as u64;
        // A page that is gone takes no doorbells, as on a bus: the store vanishes.
        let _ = self.mmio_write(at, &value);
        if offset == REGISTER_CQ_ARM {
            self.records.armed.push(page);
        } else if offset == REGISTER_NO_DBR {
            if self.records.is_shared(page) {
                self.records.doubtful.insert(page);
            }
        } else if self.records.is_shared(page) {
            self.records.due.push(page);
        }
    }

    /// Takes the arm commands of all CQs on pages where one was armed: the register held one, and others may have been
    /// overwritten. A command that was taken before is void or changes nothing. A record that is still zero counts as a first
    /// command, which it may be: a CQ that was never armed can so raise one event too many.
    fn look_at_arms(&mut self, dma: &mut dyn Dma) {
        for page in std::mem::take(&mut self.records.armed) {
            let on_page = self.records.cqs.get(&page).map_or(&[][..], Vec::as_slice);
            if on_page.len() < 2 {
                continue;
            }
            let records = on_page.iter().filter_map(|cqn| {
                let cq = self.objects.cqs.get(*cqn)?;
                Some((*cqn, cq.dbr))
            });
            let cqs: Vec<(u32, u64)> = records.collect();
            for (cqn, dbr) in cqs {
                let mut word = [0; 4];
                let access = DmaAccess::new(Purpose::Dbr, cqn);
                if dma.read(access, dbr + DBR_CQ_ARM as u64, &mut word).is_ok() {
                    self.arm_cq(cqn, CqArm::parse_word(word));
                }
            }
        }
    }

    /// Looks whether QPs without record wait for doorbells that were overwritten. Software may write a WQE long before it rings,
    /// so this is no news; [`Self::judge_waiting`] tells when software has come to its end.
    fn look_for_overwritten(&mut self, dma: &mut dyn Dma) {
        self.records.waiting.clear();
        let Records {
            qps,
            doubtful,
            waiting,
            ..
        } = &mut self.records;
        doubtful.retain(|page| qps.contains_key(page));
        for qpn in doubtful.iter().filter_map(|page| qps.get(page)).flatten() {
            if let Some(qp) = self.objects.qps.get(*qpn)
                && has_unrung(*qpn, qp, dma)
            {
                waiting.insert(*qpn, qp.indices.producer);
            }
        }
    }

    /// Software has come to its end: notes WQEs whose doorbells were overwritten.
    pub(crate) fn judge_waiting(&mut self) {
        for (qpn, index) in std::mem::take(&mut self.records.waiting) {
            let qp = self.objects.qps.get(qpn);
            if qp.is_some_and(|qp| qp.indices.producer == index) {
                let id = ObjectId::new(ObjectKind::Qp, qpn);
                self.find(id, index, FindingKind::DoorbellOverwritten);
            }
        }
    }

    /// Looks at the records of pages that were rung, or of all QPs; true if there was news.
    pub(crate) fn look_at_records(&mut self, all: bool, dma: &mut dyn Dma) -> bool {
        self.look_at_arms(dma);
        let mut due = std::mem::take(&mut self.records.due);
        due.sort_unstable();
        due.dedup();
        if due.is_empty() && !all {
            return false;
        }
        let mut news = Vec::new();
        if all {
            self.look_for_overwritten(dma);
            let ids = self.objects.qps.iter();
            news.extend(
                ids.filter(|(qpn, qp)| has_news(*qpn, qp, dma))
                    .map(|(qpn, _)| qpn),
            );
        } else {
            for qpn in due
                .iter()
                .filter_map(|page| self.records.qps.get(page))
                .flatten()
            {
                if let Some(qp) = self.objects.qps.get(*qpn)
                    && has_news(*qpn, qp, dma)
                {
                    news.push(*qpn);
                }
            }
        }
        news.retain(|qpn| !self.faults.hides_dbr(*qpn));
        for qpn in &news {
            if let Some(qp) = self.objects.qps.get_mut(*qpn) {
                qp.dbr_due = true;
            }
            self.wake(*qpn);
        }
        !news.is_empty()
    }

    /// True if doorbells of a page may be seen in another order than they were rung in.
    pub(crate) fn reorders_doorbells(&self, page: u32) -> bool {
        self.records.alternating.contains(&page)
    }

    /// True if doorbells of a page may have been overwritten before they were seen.
    pub(crate) fn misses_doorbells(&self, page: u32) -> bool {
        self.time.is_real() && self.records.is_shared(page)
    }
}

/// True if a QP's record is not what it was when it was last read, and counts.
fn has_news(qpn: u32, qp: &Qp, dma: &mut dyn Dma) -> bool {
    if !matches!(qp.state, QpState::Rts | QpState::Err) || qp.has_no_dbr() || qp.dbr_due || qp.stuck
    {
        return false;
    }
    let mut word = [0; 4];
    let access = DmaAccess::new(Purpose::Dbr, qpn);
    // A record that cannot be read is reported when a doorbell has it read.
    dma.read(access, qp.memory.dbr + DBR_SEND as u64, &mut word)
        .is_ok_and(|()| qp.indices.is_news(dbr_producer(word)))
}

/// True if the WQE at a QP's producer index is there although no doorbell came for it. WQEs of the lap before have other indices;
/// those of a life before do not, so in the first lap after a reset nothing is known.
fn has_unrung(qpn: u32, qp: &Qp, dma: &mut dyn Dma) -> bool {
    if qp.state != QpState::Rts
        || !qp.has_no_dbr()
        || qp.stuck
        || qp.was_reset && qp.indices.is_first_lap()
    {
        return false;
    }
    let index = qp.indices.producer;
    let at = qp.memory.ring + (index & (qp.indices.depth() - 1)) * WQEBB_BYTES;
    let mut head = [0; SEGMENT];
    let read = dma.read(DmaAccess::new(Purpose::Wqe, qpn), at, &mut head);
    let control = Control::parse(&head).unwrap_or_default();
    read.is_ok() && control.index == index as u16 && control.qpn == qpn
}
