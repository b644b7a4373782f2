//! Waiting until a QP in ERR has retired everything that it was told of.
//!
//! Knows: the marker, and the counters that stand in where it cannot be had (docs/hardware-facts.md).
//! Must not know: how the QP came to be in ERR, or what follows.
//!
//! On entering ERR the NIC takes its producer from the doorbell record and flushes up to there; slots that were reserved
//! but never rung never flush. So the host adds one signalled NOP, the marker, in the WQEBB at the record's index, which
//! devices never use (rule O11): when its CQE appears, whatever its status, everything before it has retired.

use std::time::Instant;

use warpverbs_wire::prm::query_qp;
use warpverbs_wire::wqe::{Opcode, SIGNALLED, WQEBB, control, control_head, qpn_ds};

use super::queues::Queues;
use super::{Context, GpuContext, mailbox};
use crate::driver::NicHandle;
use crate::error::{Error, Result};
use crate::teardown::{Wait, poll};

/// The marker, posted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marker {
    index: u16,
    /// When the doorbell was last rung for it.
    rung: Instant,
}

/// The QP to drain.
pub(super) struct Drain<'a> {
    pub(super) context: &'a Context,
    pub(super) gpu: &'a GpuContext,
    pub(super) queues: &'a Queues,
    pub(super) qp: NicHandle,
    pub(super) qpn: u32,
}

impl Drain<'_> {
    /// Waits. `marker` is set once it is posted: a later attempt goes on with it.
    pub(super) fn run(&self, marker: &mut Option<Marker>, wait: Wait) -> Result<()> {
        if !self.gpu.is_alive() {
            // Neither can be written, nor the record read: the NIC's own counters are all there is.
            return self.by_counters(None, wait);
        }
        if !self.queues.has_record() {
            // Assumed: in ERR such a QP's producer is what was rung for last, which no record can move
            // (docs/hardware-facts.md).
            return self.by_counters(None, wait);
        }
        match self.by_marker(marker, wait) {
            Err(_) if !self.gpu.is_alive() => self.by_counters(None, wait),
            // The marker's CQE may be lost; the counters know. Asked last: a CQE that is on its way is better waited for.
            Err(Error::Timeout { .. }) if wait.is_last() => {
                let dbr = self.queues.produced()?.dbr;
                self.by_counters(Some(dbr), wait)
            }
            done => done,
        }
    }

    fn by_marker(&self, marker: &mut Option<Marker>, wait: Wait) -> Result<()> {
        let index = match marker {
            Some(posted) => {
                if posted.rung < wait.began() {
                    // An earlier attempt was in vain: the NIC may have missed the doorbell.
                    self.ring(posted.index)?;
                    posted.rung = Instant::now();
                }
                posted.index
            }
            None => {
                let produced = self.queues.produced()?;
                if produced.is_idle() {
                    // Nothing was outstanding.
                    return Ok(());
                }
                let (hw, _) = self.counters()?;
                if (produced.dbr.wrapping_sub(hw) as i16) < 0 {
                    // The record is behind what was rung and executed: a marker there would not be looked at.
                    return self.by_counters(Some(produced.dbr), wait);
                }
                let index = produced.dbr;
                self.post(index)?;
                let rung = Instant::now();
                *marker = Some(Marker { index, rung });
                index
            }
        };
        poll("the drain of a QP", wait, || {
            let tails = self.queues.cqe_tails()?;
            Ok(tails
                .iter()
                .any(|tail| !tail.is_invalid() && tail.wqe_counter() == index))
        })
    }

    /// Posts the marker. An attempt that fails half-way can be made again: the record is written last but for the
    /// doorbell, which in ERR only makes the NIC look at it.
    fn post(&self, index: u16) -> Result<()> {
        // A counter has 16 bits: a CQE of an earlier lap may look like the marker's.
        for (slot, tail) in self.queues.cqe_tails()?.iter().enumerate() {
            if !tail.is_invalid() && tail.wqe_counter() == index {
                self.queues.clear_cqe(slot)?;
            }
        }
        let mut wqebb = [0; WQEBB];
        for (to, from) in wqebb.iter_mut().zip(
            control(self.head(index), SIGNALLED, 0)
                .iter()
                .flat_map(|word| word.to_le_bytes()),
        ) {
            *to = from;
        }
        self.queues.write_wqebb(index, &wqebb)?;
        self.queues.write_record(index.wrapping_add(1))?;
        let rung = self.ring(index);
        if rung.is_err() {
            // The next attempt posts the marker again, at the same index.
            self.queues.write_record(index)?;
        }
        rung
    }

    fn ring(&self, index: u16) -> Result<()> {
        let head = self.head(index).to_le_bytes();
        self.context
            .driver()
            .ring_doorbell(self.queues.slab().uar().handle(), head)
            .map_err(Error::driver("ring the doorbell for the drain"))
    }

    /// The first 8 bytes of the marker: what a doorbell carries.
    fn head(&self, index: u16) -> u64 {
        control_head(index.into(), Opcode::Nop, qpn_ds(self.qpn, 1))
    }

    /// Waits until the NIC's consumer has reached its producer, and the record if that is known.
    fn by_counters(&self, dbr: Option<u16>, wait: Wait) -> Result<()> {
        let mut pending = 0;
        let drained = poll("the drain of a QP", wait, || {
            let (hw, sw) = self.counters()?;
            pending = sw.wrapping_sub(hw);
            // A record behind the consumer: what was rung without it has been executed.
            let ahead = dbr.map_or(0, |dbr| dbr.wrapping_sub(hw) as i16);
            pending = pending.max(ahead.max(0) as u16);
            Ok(pending == 0)
        });
        match drained {
            Err(Error::Timeout { .. }) => Err(Error::Undrained {
                qpn: self.qpn,
                pending,
                waited: wait.elapsed(),
            }),
            done => done,
        }
    }

    /// The NIC's consumer and producer.
    fn counters(&self) -> Result<(u16, u16)> {
        let out = mailbox::query(
            self.context.driver(),
            self.qp,
            "query the QP's counters",
            &query_qp::In {
                qpn: self.qpn,
                qpc_ext: false,
            },
        )?;
        Ok((out.qpc.hw_sq_wqebb_counter, out.qpc.sw_sq_wqebb_counter))
    }
}
