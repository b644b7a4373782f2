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
use crate::teardown::poll;

/// The QP to drain.
pub(super) struct Drain<'a> {
    pub(super) context: &'a Context,
    pub(super) gpu: &'a GpuContext,
    pub(super) queues: &'a Queues,
    pub(super) qp: NicHandle,
    pub(super) qpn: u32,
}

impl Drain<'_> {
    /// Waits. `marker` is the index of the marker once it is posted: a later attempt goes on with it.
    pub(super) fn run(&self, marker: &mut Option<u16>, deadline: Instant) -> Result<()> {
        if !self.gpu.is_alive() {
            // Neither can be written, nor the record read: the NIC's own counters are all there is.
            return self.by_counters(None, deadline);
        }
        match self.by_marker(marker, deadline) {
            Err(_) if !self.gpu.is_alive() => self.by_counters(None, deadline),
            // The marker's CQE may be lost; the counters know.
            Err(Error::Timeout { .. }) => {
                let dbr = self.queues.produced()?.dbr;
                self.by_counters(Some(dbr), deadline)
            }
            done => done,
        }
    }

    fn by_marker(&self, marker: &mut Option<u16>, deadline: Instant) -> Result<()> {
        let index = match *marker {
            Some(index) => index,
            None => {
                let produced = self.queues.produced()?;
                if produced.is_idle() {
                    // Nothing was outstanding.
                    return Ok(());
                }
                let (hw, _) = self.counters()?;
                if (produced.dbr.wrapping_sub(hw) as i16) < 0 {
                    // The record is behind what was rung and executed: a marker there would not be looked at.
                    return self.by_counters(Some(produced.dbr), deadline);
                }
                produced.dbr
            }
        };
        if marker.is_none() {
            self.post(index)?;
            *marker = Some(index);
        }
        poll("the drain of a QP", deadline, || {
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
        let head = control_head(index.into(), Opcode::Nop, qpn_ds(self.qpn, 1));
        let mut wqebb = [0; WQEBB];
        for (to, from) in wqebb.iter_mut().zip(
            control(head, SIGNALLED, 0)
                .iter()
                .flat_map(|word| word.to_le_bytes()),
        ) {
            *to = from;
        }
        self.queues.write_wqebb(index, &wqebb)?;
        self.ring(index, head)
    }

    fn ring(&self, index: u16, head: u64) -> Result<()> {
        self.queues.write_record(index.wrapping_add(1))?;
        let rung = self
            .context
            .driver()
            .ring_doorbell(self.queues.slab().uar().handle(), head.to_le_bytes())
            .map_err(Error::driver("ring the doorbell for the drain"));
        if rung.is_err() {
            // The next attempt posts the marker again, at the same index.
            self.queues.write_record(index)?;
        }
        rung
    }

    /// Waits until the NIC's consumer has reached its producer, and the record if that is known.
    fn by_counters(&self, dbr: Option<u16>, deadline: Instant) -> Result<()> {
        let mut pending = 0;
        let started = Instant::now();
        let drained = poll("the drain of a QP", deadline, || {
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
                waited: started.elapsed(),
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
