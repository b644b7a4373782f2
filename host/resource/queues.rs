//! The memory, doorbell and CQ that one QP stands on.
//!
//! Knows: where ring, CQ, doorbell records and handle lie in one GPU allocation, and the order in
//! which the parts are closed. Must not know: the QP's state.

use std::mem::offset_of;
use std::sync::Arc;

use warpverbs_wire::abi::{self, Line, QpHandle, State};
use warpverbs_wire::cqe::{CQE, FRESH, Tail};
use warpverbs_wire::doorbell::{DBR_SEND, cq_dbr_word, dbr_producer, dbr_word};
use warpverbs_wire::wqe::WQEBB;

use super::cq::Cq;
use super::uar::{Uar, UarMap};
use super::umem::{PART_ALIGN, Umem};
use super::{CqForm, GpuContext, GpuMemory, Pd};
use crate::driver::{DriverError, DriverErrorKind};
use crate::error::{Error, Result};
use crate::teardown::Slot;

/// Byte offsets in the allocation.
///
/// | part | registered |
/// |---|---|
/// | send queue | yes |
/// | CQ | yes |
/// | doorbell records: the CQ's, and on another 64-byte line the QP's | yes |
/// | handle | no: the NIC does not read it |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) sq_depth: u32,
    pub(crate) cq_depth: u32,
    pub(crate) collapsed: bool,
    pub(crate) sq: u64,
    pub(crate) cq: u64,
    pub(crate) cq_dbr: u64,
    pub(crate) qp_dbr: u64,
    pub(crate) handle: u64,
    pub(crate) len: u64,
}

impl Layout {
    /// The layout for a send queue of `sq_depth` WQEBBs, a power of two.
    pub(crate) fn new(sq_depth: u32, form: CqForm) -> Self {
        // A CQE for each WQE and one for the error that ends them all, so that no completion
        // overwrites another.
        let cq_depth = match form {
            CqForm::Ring => sq_depth.saturating_add(1).next_power_of_two(),
            CqForm::Collapsed => 1,
        };
        let cq = align(u64::from(sq_depth) * WQEBB as u64);
        let cq_dbr = align(cq + u64::from(cq_depth) * CQE as u64);
        let handle = cq_dbr + PART_ALIGN;
        Self {
            sq_depth,
            cq_depth,
            collapsed: form == CqForm::Collapsed,
            sq: 0,
            cq,
            cq_dbr,
            qp_dbr: cq_dbr + 64,
            handle,
            len: handle + QpHandle::LEN as u64,
        }
    }

    /// Bytes that the NIC registers.
    fn registered(&self) -> u64 {
        self.handle
    }
}

fn align(offset: u64) -> u64 {
    offset.next_multiple_of(PART_ALIGN)
}

/// What one QP stands on. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Queues {
    layout: Layout,
    cq: Cq,
    map: UarMap,
    uar: Uar,
    umem: Umem,
    memory: GpuMemory,
    read_needs_dump: bool,
}

/// What the marker of a drain needs to know of the queues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Produced {
    /// The send doorbell record: what the NIC was told of.
    pub(crate) dbr: u16,
    /// SQ index below which GPU threads have seen all completions.
    pub(crate) completed: u64,
}

impl Queues {
    /// Builds them, with indices that start at `first_index`.
    pub(crate) fn build(
        pd: &Pd,
        gpu: &GpuContext,
        layout: Layout,
        first_index: u64,
    ) -> Result<Self> {
        let context = pd.context();
        let memory = gpu.alloc(layout.len, "QP queues")?;
        write_fresh(&memory, &layout, first_index)?;
        let umem = Umem::register(context, &memory, layout.registered())?;
        let uar = Uar::alloc(context)?;
        let map = UarMap::map(gpu, &uar)?;
        let cq = Cq::create(context, &layout, &umem, uar.page_id(), &map)?;
        Ok(Self {
            layout,
            cq,
            map,
            uar,
            umem,
            memory,
            read_needs_dump: !gpu.orders_nic_writes(),
        })
    }

    /// Their nodes, parents first.
    pub(crate) fn slots(&self) -> Vec<Arc<dyn Slot>> {
        vec![
            self.memory.slot(),
            self.umem.slot(),
            self.uar.slot(),
            self.map.slot(),
            self.cq.slot(),
        ]
    }

    pub(crate) fn cq_owner(&self) -> &Cq {
        &self.cq
    }

    pub(crate) fn umem(&self) -> &Umem {
        &self.umem
    }

    pub(crate) fn uar(&self) -> &Uar {
        &self.uar
    }

    pub(crate) fn map(&self) -> &UarMap {
        &self.map
    }

    /// Address of the handle on the GPU.
    pub(crate) fn handle_addr(&self) -> u64 {
        self.memory.addr() + self.layout.handle
    }

    /// Writes the part of the handle that does not change while the QP is exported. The rest goes
    /// on from where GPU threads left it.
    pub(crate) fn write_handle(&self, qpn: u32, log_max_message: u8, stop: u64) -> Result<()> {
        let at = |offset: u64| self.memory.addr() + offset;
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        let handle = QpHandle {
            version: abi::VERSION,
            flags: flag(self.layout.collapsed, abi::FLAG_CQ_COLLAPSED)
                | flag(self.read_needs_dump, abi::FLAG_READ_NEEDS_DUMP),
            sq: at(self.layout.sq),
            dbr: at(self.layout.qp_dbr + DBR_SEND as u64),
            doorbell: self.map.doorbell(),
            sq_depth: self.layout.sq_depth,
            qpn,
            cq: at(self.layout.cq),
            cq_depth: self.layout.cq_depth,
            log_max_message: log_max_message.into(),
            stop,
            ..fresh_handle(0, 0)
        };
        let bytes = handle.to_bytes();
        let (fixed, _) = bytes.split_at(FIXED);
        self.memory.write(self.layout.handle, fixed)
    }

    /// CQEs of the CQ; 1 if it is collapsed.
    pub(crate) fn cq_depth(&self) -> u32 {
        self.layout.cq_depth
    }

    /// Reads the CQE of a CQ index.
    pub(crate) fn read_cqe(&self, index: u64, bytes: &mut [u8; CQE]) -> Result<()> {
        let at = index % u64::from(self.layout.cq_depth) * CQE as u64;
        self.memory.read(self.layout.cq + at, bytes)
    }

    /// Reads the handle.
    pub(crate) fn read_handle(&self) -> Result<QpHandle> {
        let mut bytes = [0; QpHandle::LEN];
        self.memory.read(self.layout.handle, &mut bytes)?;
        QpHandle::from_bytes(&bytes).map_err(|error| {
            let kind = DriverErrorKind::InvalidArgument;
            Error::driver("read the QP handle")(DriverError::new("copy", kind, error.to_string()))
        })
    }

    /// Makes a queue that was stopped, and has no fault, live again.
    pub(crate) fn clear_stop(&self) -> Result<()> {
        let state = State(self.read_handle()?.state.word);
        if state.is_stopped() && !state.is_fault() {
            let word = self.layout.handle + offset_of!(QpHandle, state) as u64;
            let live = State(state.0 & !State::STOP);
            self.memory.write(word, &live.0.to_le_bytes())?;
        }
        Ok(())
    }

    /// What the NIC was told of, and what is known to have completed.
    pub(crate) fn produced(&self) -> Result<Produced> {
        let mut record = [0; 4];
        self.memory
            .read(self.layout.qp_dbr + DBR_SEND as u64, &mut record)?;
        Ok(Produced {
            dbr: dbr_producer(record),
            completed: self.read_handle()?.completed.word,
        })
    }

    /// Writes one WQEBB of the send queue.
    pub(crate) fn write_wqebb(&self, index: u16, bytes: &[u8; WQEBB]) -> Result<()> {
        let slot = u64::from(u32::from(index) & (self.layout.sq_depth - 1));
        self.memory
            .write(self.layout.sq + slot * WQEBB as u64, bytes)
    }

    /// Writes the send doorbell record.
    pub(crate) fn write_record(&self, producer: u16) -> Result<()> {
        let word = dbr_word(producer.into()).to_le_bytes();
        self.memory
            .write(self.layout.qp_dbr + DBR_SEND as u64, &word)
    }

    /// The tails of all CQEs, by slot.
    pub(crate) fn cqe_tails(&self) -> Result<Vec<Tail>> {
        let mut bytes = vec![0; self.layout.cq_depth as usize * CQE];
        self.memory.read(self.layout.cq, &mut bytes)?;
        let (tails, _) = bytes.as_chunks::<8>();
        Ok(tails
            .iter()
            .skip(Tail::OFFSET / 8)
            .step_by(CQE / 8)
            .map(|tail| Tail(u64::from_le_bytes(*tail)))
            .collect())
    }

    /// Makes the CQE in a slot one that is none.
    pub(crate) fn clear_cqe(&self, slot: usize) -> Result<()> {
        self.memory
            .write(self.layout.cq + (slot * CQE) as u64, &[FRESH; CQE])
    }

    /// Makes the queues those of a QP that was just reset: SQ indices start over, while the CQ goes on from the last CQE
    /// that the NIC has written.
    pub(crate) fn renew(&self, first_index: u64) -> Result<()> {
        let mut consumer = self.read_handle()?.completed.second;
        if self.layout.collapsed {
            // Its one CQE would be taken for a completion of the new life.
            self.clear_cqe(0)?;
        } else {
            let tails = self.cqe_tails()?;
            let depth = self.layout.cq_depth;
            let slot = |index: u64| (index & u64::from(depth - 1)) as usize;
            let limit = consumer + u64::from(depth);
            while consumer < limit
                && tails
                    .get(slot(consumer))
                    .is_some_and(|tail| tail.is_new(consumer, depth))
            {
                consumer += 1;
            }
        }
        // The handle last: if a write fails, the next attempt starts from the same consumer index.
        write_records(&self.memory, &self.layout, first_index, consumer)?;
        let handle = fresh_handle(first_index, consumer);
        self.memory.write(self.layout.handle, &handle.to_bytes())
    }

    /// Makes the handle one that every kernel refuses: version 0 is none.
    pub(crate) fn clear_handle(&self) -> Result<()> {
        self.memory.write(self.layout.handle, &0u32.to_le_bytes())
    }
}

/// Bytes of a handle that do not change while the QP is exported.
const FIXED: usize = offset_of!(QpHandle, reserved);

/// A handle that every kernel refuses, with SQ indices that start at `first_index` and CQ indices at `consumer`.
fn fresh_handle(first_index: u64, consumer: u64) -> QpHandle {
    QpHandle {
        version: 0,
        flags: 0,
        sq: 0,
        dbr: 0,
        doorbell: 0,
        sq_depth: 0,
        qpn: 0,
        cq: 0,
        cq_depth: 0,
        log_max_message: 0,
        stop: 0,
        reserved: Line::new(first_index),
        turn: Line::new(first_index),
        completed: Line {
            second: consumer,
            ..Line::new(first_index)
        },
        state: Line::default(),
    }
}

fn write_fresh(memory: &GpuMemory, layout: &Layout, first_index: u64) -> Result<()> {
    // Opcode 0xf (invalid) and owner bit 1 in every CQE: none is taken for a completion, whichever
    // lap is awaited first.
    memory.write(layout.cq, &vec![FRESH; layout.cq_depth as usize * CQE])?;
    write_records(memory, layout, first_index, first_index)?;
    let handle = fresh_handle(first_index, first_index);
    memory.write(layout.handle, &handle.to_bytes())
}

fn write_records(
    memory: &GpuMemory,
    layout: &Layout,
    first_index: u64,
    consumer: u64,
) -> Result<()> {
    // A record is 8 bytes: the CQ's consumer and arm words, the QP's receive and send counters.
    // They start where the indices start: a send counter that differs is work to a NIC in ERR.
    let consumer = cq_dbr_word(consumer).to_le_bytes();
    memory.write(layout.cq_dbr, &[consumer, [0; 4]].concat())?;
    let send = dbr_word(first_index).to_le_bytes();
    memory.write(layout.qp_dbr, &[[0; 4], send].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_on_their_own_pages() {
        for (depth, form, cq_depth) in [
            (2, CqForm::Ring, 4),
            (64, CqForm::Ring, 128),
            (32_768, CqForm::Ring, 65_536),
            (64, CqForm::Collapsed, 1),
        ] {
            let layout = Layout::new(depth, form);
            assert_eq!(layout.cq_depth, cq_depth);
            assert!(layout.cq >= u64::from(depth) * 64);
            assert!(layout.cq_dbr >= layout.cq + u64::from(cq_depth) * CQE as u64);
            assert!(layout.handle > layout.qp_dbr + 8);
            assert!(layout.len >= layout.handle + 320);
            for part in [layout.sq, layout.cq, layout.cq_dbr, layout.handle] {
                assert_eq!(part % PART_ALIGN, 0);
            }
        }
    }
}
