//! Doorbell records that are looked at without a doorbell: what background mode needs beside a NIC's steps.
//!
//! Knows: which queues share a page, whose records are due.
//! Must not know: threads, or how a store to a page is found.

use std::collections::{HashMap, HashSet};

use warpverbs_sim_bus::{Device, Dma, DmaAccess, Purpose};
use warpverbs_wire::doorbell::{
    CqArm, DBR_CQ_ARM, DBR_SEND, REGISTER, REGISTER_CQ_ARM, UAR_PAGE, dbr_producer,
};
use warpverbs_wire::prm::qpc::QpState;

use crate::model::NicModel;
use crate::objects::Objects;
use crate::qp::Qp;

/// The second buffers of a page's two registers.
const SECOND: [usize; 2] = [REGISTER + 0x100, REGISTER + 0x300];

/// Which QPs are rung on which page.
#[derive(Default)]
pub(crate) struct Records {
    pages: HashMap<u32, Vec<u32>>,
    /// State of the table of QPs that `pages` was made from.
    of: Option<u64>,
    /// Pages whose QPs' records are to be looked at.
    due: Vec<u32>,
    /// Pages on which a CQ was armed.
    armed: Vec<u32>,
    /// Pages whose producers use the two buffers of a register in turn. Which of two values was stored first is not known.
    alternating: HashSet<u32>,
}

impl Records {
    fn refresh(&mut self, objects: &Objects) {
        let changes = objects.qps.changes();
        if self.of.replace(changes) == Some(changes) {
            return;
        }
        self.pages.clear();
        for (qpn, qp) in objects.qps.iter() {
            self.pages.entry(qp.context.uar_page).or_default().push(qpn);
        }
    }

    /// True if several QPs are rung on the page.
    fn is_shared(&self, page: u32) -> bool {
        self.pages.get(&page).is_some_and(|qps| qps.len() > 1)
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
        self.records.refresh(&self.objects);
        if offset == REGISTER_CQ_ARM {
            self.records.armed.push(page);
        } else if self.records.is_shared(page) {
            self.records.due.push(page);
        }
    }

    /// Takes the arm commands of all CQs on pages where one was armed: the register held one, and others may have been
    /// overwritten. A command that was taken before is void or changes nothing. A record that is still zero counts as a first
    /// command, which it may be: a CQ that was never armed can so raise one event too many.
    fn look_at_arms(&mut self, dma: &mut dyn Dma) {
        for page in std::mem::take(&mut self.records.armed) {
            let on_page = self.objects.cqs.iter();
            let cqs: Vec<(u32, u64)> = on_page
                .filter(|(_, cq)| cq.context.uar_page == page)
                .map(|(cqn, cq)| (cqn, cq.dbr))
                .collect();
            if cqs.len() < 2 {
                continue;
            }
            for (cqn, dbr) in cqs {
                let mut word = [0; 4];
                let access = DmaAccess::new(Purpose::Dbr, cqn);
                if dma.read(access, dbr + DBR_CQ_ARM as u64, &mut word).is_ok() {
                    self.arm_cq(cqn, CqArm::parse_word(word));
                }
            }
        }
    }

    /// Looks at the records of pages that were rung, or of all QPs; true if there was news.
    pub(crate) fn look_at_records(&mut self, all: bool, dma: &mut dyn Dma) -> bool {
        self.look_at_arms(dma);
        let due = std::mem::take(&mut self.records.due);
        if due.is_empty() && !all {
            return false;
        }
        self.records.refresh(&self.objects);
        let mut news = Vec::new();
        if all {
            let ids = self.objects.qps.iter();
            news.extend(
                ids.filter(|(qpn, qp)| has_news(*qpn, qp, dma))
                    .map(|(qpn, _)| qpn),
            );
        } else {
            for qpn in due
                .iter()
                .filter_map(|page| self.records.pages.get(page))
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
