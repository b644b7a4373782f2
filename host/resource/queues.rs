//! The queues of one QP: its place in a slab, and its CQ.
//!
//! Knows: what lies in the place, and how to read and write it. Must not know: the QP's state, or its neighbours'.

use std::mem::offset_of;

use warpverbs_wire::abi::{self, ProxyRecord, QpHandle, RqHandle, State};
use warpverbs_wire::cqe::{CQE, FRESH, Tail};
use warpverbs_wire::doorbell::{DBR_RECEIVE, DBR_SEND, dbr_producer, dbr_word};
use warpverbs_wire::wqe::WQEBB;

use super::cq::{Cq, CqPlace};
use super::layout::{LOG_RECEIVE, Layout, runs};
use super::slab::{Handle, Slab, Tenancy, fresh_handle, fresh_receive_handle};
use super::uar::UarMap;
use super::{DoorbellPath, GpuMemory, Pd};
use crate::driver::{DriverError, DriverErrorKind};
use crate::error::{Error, Result};

/// A place in a slab, with a CQ, and one of receives if there is a receive queue. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Queues {
    place: u32,
    cq: Cq,
    receive_cq: Option<Cq>,
    slab: Slab,
}

/// How far a QP has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Produced {
    /// The send doorbell record: what the NIC was told of. Without a record, an index that is not below that.
    pub(crate) dbr: u16,
    /// What GPU threads have asked for: where a host thread rings, that can be ahead.
    asked: u16,
    /// SQ index below which GPU threads have seen all completions.
    pub(crate) completed: u64,
}

impl Produced {
    /// That of a new life.
    pub(super) fn fresh(first_index: u64) -> Self {
        Self {
            dbr: first_index as u16,
            asked: first_index as u16,
            completed: first_index,
        }
    }

    /// True if nothing is outstanding.
    pub(super) fn is_idle(self) -> bool {
        (self.dbr, self.asked) == (self.completed as u16, self.completed as u16)
    }
}

impl Queues {
    /// Takes a place, and creates its CQ.
    pub(super) fn build(pd: &Pd, slab: &Slab) -> Result<(Self, Tenancy)> {
        let (place, tenancy) = slab.take()?;
        let layout = slab.layout();
        let at = CqPlace {
            ring: layout.cq(place),
            depth: layout.cq_depth,
            collapsed: layout.collapsed,
            record: layout.control(place),
        };
        let cq = Cq::create(pd.context(), slab, at, tenancy.clone())?;
        let at = CqPlace {
            ring: layout.receive_cq(place),
            depth: layout.receive_cq_depth(),
            collapsed: false,
            record: layout.receive_control(place),
        };
        let receive_cq = (layout.rq_depth != 0)
            .then(|| Cq::create(pd.context(), slab, at, tenancy.clone()))
            .transpose()?;
        let queues = Self {
            place,
            cq,
            receive_cq,
            slab: slab.clone(),
        };
        Ok((queues, tenancy))
    }

    pub(super) fn cq_owner(&self) -> &Cq {
        &self.cq
    }

    /// The CQ of receives, if there is a receive queue.
    pub(super) fn receive_cq(&self) -> Option<&Cq> {
        self.receive_cq.as_ref()
    }

    pub(super) fn slab(&self) -> &Slab {
        &self.slab
    }

    pub(super) fn place(&self) -> u32 {
        self.place
    }

    fn layout(&self) -> &Layout {
        self.slab.layout()
    }

    fn memory(&self) -> &GpuMemory {
        self.slab.memory()
    }

    /// Offset of the send ring.
    pub(super) fn sq(&self) -> u64 {
        self.layout().sq(self.place)
    }

    /// Offset of its rings: a receive queue, if there is one, and the send queue.
    pub(super) fn rings(&self) -> u64 {
        self.layout().rings(self.place)
    }

    /// WQEs of its receive queue.
    pub(super) fn rq_depth(&self) -> u32 {
        self.layout().rq_depth
    }

    /// Address of the receive queue's handle on the GPU, if there is one.
    pub(crate) fn receive_handle_addr(&self) -> Option<u64> {
        let at = self.layout().receive_handle(self.place);
        (self.rq_depth() != 0).then(|| self.memory().addr() + at)
    }

    /// The receive queue's handle that kernels take, if there is one. What changes goes on from where GPU threads left it.
    pub(super) fn receive_handle(&self, qpn: u32) -> Option<RqHandle> {
        self.receive_cq.as_ref()?;
        let layout = self.layout();
        let at = |offset: u64| self.memory().addr() + offset;
        Some(RqHandle {
            version: abi::VERSION,
            rq: at(self.rings()),
            dbr: self.receive_record(),
            rq_depth: layout.rq_depth,
            log_stride: LOG_RECEIVE.into(),
            cq: at(layout.receive_cq(self.place)),
            cq_depth: layout.receive_cq_depth(),
            qpn,
            stop: self.slab.words().addr(layout.stop(self.place)),
            ..fresh_receive_handle(0, 0)
        })
    }

    /// Address of the receive counter: threads post receives themselves, also where a host thread rings for sends.
    fn receive_record(&self) -> u64 {
        let layout = self.layout();
        let record = match layout.doorbell_path {
            DoorbellPath::Proxy => self.slab.words().addr(layout.host_dbr(self.place)),
            DoorbellPath::Gpu | DoorbellPath::GpuWithoutRecord => {
                self.memory().addr() + self.qp_dbr()
            }
        };
        record + DBR_RECEIVE as u64
    }

    /// Offset of the QP's doorbell record.
    pub(super) fn qp_dbr(&self) -> u64 {
        self.layout().qp_dbr(self.place)
    }

    /// Offset of the QP's doorbell record in the UMEM that it lies in.
    pub(super) fn qp_dbr_in_umem(&self) -> u64 {
        match self.layout().doorbell_path {
            DoorbellPath::Proxy => u64::from(self.layout().host_dbr(self.place)) * 8,
            DoorbellPath::Gpu | DoorbellPath::GpuWithoutRecord => self.qp_dbr(),
        }
    }

    /// Address of the handle on the GPU.
    pub(crate) fn handle_addr(&self) -> u64 {
        self.memory().addr() + self.layout().handle(self.place)
    }

    /// The handle that kernels take. What changes while the QP is exported goes on from where GPU threads left it.
    pub(super) fn handle(&self, qpn: u32, log_max_message: u8) -> QpHandle {
        let layout = self.layout();
        let at = |offset: u64| self.memory().addr() + offset;
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        let (map, words) = (self.slab.map(), self.slab.words());
        let in_gpu = at(self.qp_dbr() + DBR_SEND as u64);
        // What GPU threads do not touch, they are not told of.
        let (dbr, doorbell, proxy) = match layout.doorbell_path {
            DoorbellPath::Gpu => (in_gpu, map.map_or(0, UarMap::doorbell), 0),
            DoorbellPath::GpuWithoutRecord => {
                (0, map.map_or(0, UarMap::doorbell_without_record), 0)
            }
            DoorbellPath::Proxy => (0, 0, words.addr(layout.proxy_record(self.place))),
        };
        let without_record = layout.doorbell_path == DoorbellPath::GpuWithoutRecord;
        QpHandle {
            version: abi::VERSION,
            flags: flag(layout.collapsed, abi::FLAG_CQ_COLLAPSED)
                | flag(self.slab.read_needs_dump(), abi::FLAG_READ_NEEDS_DUMP)
                | flag(without_record, abi::FLAG_NO_DBR),
            sq: at(self.sq()),
            dbr,
            doorbell,
            sq_depth: layout.sq_depth,
            qpn,
            cq: at(layout.cq(self.place)),
            cq_depth: layout.cq_depth,
            log_max_message: log_max_message.into(),
            stop: words.addr(layout.stop(self.place)),
            cqn: self.cq.cqn(),
            rq: self.receive_handle_addr().unwrap_or(0),
            proxy,
            ..fresh_handle(0, 0)
        }
    }

    /// True if kernels take its handle.
    pub(super) fn is_exported(&self) -> bool {
        self.slab.handle(self.place) == Handle::Written
    }

    /// CQEs of the CQ; 1 if it is collapsed.
    pub(crate) fn cq_depth(&self) -> u32 {
        self.layout().cq_depth
    }

    /// Reads the CQE of a CQ index.
    pub(crate) fn read_cqe(&self, index: u64, bytes: &mut [u8; CQE]) -> Result<()> {
        let at = index % u64::from(self.cq_depth()) * CQE as u64;
        self.memory().read(self.layout().cq(self.place) + at, bytes)
    }

    /// Reads the handle.
    pub(crate) fn read_handle(&self) -> Result<QpHandle> {
        let mut bytes = [0; QpHandle::LEN];
        self.memory()
            .read(self.layout().handle(self.place), &mut bytes)?;
        parse_handle(&bytes)
    }

    /// Makes a queue that was stopped, and has no fault, live again.
    pub(super) fn clear_stop(&self) -> Result<()> {
        let state = State(self.read_handle()?.state.word);
        if state.is_stopped() && !state.is_fault() {
            let at = self.layout().handle(self.place) + offset_of!(QpHandle, state) as u64;
            let live = State(state.0 & !State::STOP);
            self.memory().write(at, &live.0.to_le_bytes())?;
        }
        Ok(())
    }

    /// What the NIC was told of, and what is known to have completed.
    pub(super) fn produced(&self) -> Result<Produced> {
        let mut control = vec![0; Layout::CONTROL as usize];
        self.memory()
            .read(self.layout().control(self.place), &mut control)?;
        self.parse_produced(&control)
    }

    /// As [`Self::produced`], of several. A run of neighbours takes one copy.
    pub(super) fn produced_of(all: &[&Self]) -> Vec<Result<Produced>> {
        let mut found: Vec<Option<Result<Produced>>> = all.iter().map(|_| None).collect();
        for (at, one) in all.iter().enumerate() {
            if found.get(at).is_some_and(Option::is_some) {
                continue;
            }
            // All of the same slab, in the order of their places.
            let mut together: Vec<(u32, usize)> = (at..)
                .zip(all.iter().skip(at))
                .filter(|(_, other)| other.slab.is(&one.slab))
                .map(|(number, other)| (other.place, number))
                .collect();
            together.sort_unstable();
            let places: Vec<u32> = together.iter().map(|(place, _)| *place).collect();
            let mut numbers = together.iter().map(|(_, number)| *number);
            for (first, count) in runs(&places) {
                let mut controls = vec![0; count as usize * Layout::CONTROL as usize];
                let read = one
                    .memory()
                    .read(one.layout().control(first), &mut controls);
                let mut control = controls.chunks_exact(Layout::CONTROL as usize);
                for number in numbers.by_ref().take(count as usize) {
                    let produced = match (&read, control.next()) {
                        (Ok(()), Some(control)) => {
                            all.get(number).unwrap_or(one).parse_produced(control)
                        }
                        // Each by itself: neighbours do not suffer for each other.
                        _ => all.get(number).unwrap_or(one).produced(),
                    };
                    if let Some(place) = found.get_mut(number) {
                        *place = Some(produced);
                    }
                }
            }
        }
        found
            .into_iter()
            .zip(all)
            .map(|(found, one)| found.unwrap_or_else(|| one.produced()))
            .collect()
    }

    fn parse_produced(&self, control: &[u8]) -> Result<Produced> {
        let handle = parse_handle(control.get(Layout::HANDLE as usize..).unwrap_or_default())?;
        let words = self.slab.words();
        let (told, asked) = match self.layout().doorbell_path {
            DoorbellPath::Gpu => {
                let record = control.get(Layout::QP_DBR as usize + DBR_SEND..);
                let word = record.and_then(|rest| rest.first_chunk()).copied();
                let told = dbr_producer(word.unwrap_or_default());
                (told, told)
            }
            DoorbellPath::Proxy => {
                let record = words.load(self.layout().host_dbr(self.place))?;
                let [_, _, _, _, word @ ..] = record.to_le_bytes();
                let asked = words.load(self.layout().proxy_record(self.place))?;
                (dbr_producer(word), asked as u16)
            }
            // At most what was reserved.
            DoorbellPath::GpuWithoutRecord => {
                let most = handle.reserved.word as u16;
                (most, most)
            }
        };
        Ok(Produced {
            dbr: told,
            asked,
            completed: handle.completed.word,
        })
    }

    /// Writes one WQEBB of the send queue.
    pub(super) fn write_wqebb(&self, index: u16, bytes: &[u8; WQEBB]) -> Result<()> {
        let slot = u64::from(u32::from(index) & (self.layout().sq_depth - 1));
        self.memory().write(self.sq() + slot * WQEBB as u64, bytes)
    }

    /// Writes the send doorbell record.
    pub(super) fn write_record(&self, producer: u16) -> Result<()> {
        let word = dbr_word(producer.into());
        match self.layout().doorbell_path {
            DoorbellPath::Proxy => {
                let index = self.layout().host_dbr(self.place);
                self.slab.words().store_u32(index, DBR_SEND, word)
            }
            DoorbellPath::Gpu | DoorbellPath::GpuWithoutRecord => self
                .memory()
                .write(self.qp_dbr() + DBR_SEND as u64, &word.to_le_bytes()),
        }
    }

    /// The SQ index up to which a host thread has rung, where one does.
    pub(crate) fn rung_by_host(&self) -> Result<Option<u64>> {
        if self.layout().doorbell_path != DoorbellPath::Proxy {
            return Ok(None);
        }
        let word = (offset_of!(ProxyRecord, rung) / 8) as u32;
        let record = self.layout().proxy_record(self.place);
        self.slab.words().load(record + word).map(Some)
    }

    /// True if the QP has a send doorbell record.
    pub(super) fn has_record(&self) -> bool {
        self.layout().doorbell_path != DoorbellPath::GpuWithoutRecord
    }

    /// The tails of all CQEs, by slot.
    pub(super) fn cqe_tails(&self) -> Result<Vec<Tail>> {
        let mut bytes = vec![0; self.cq_depth() as usize * CQE];
        self.memory()
            .read(self.layout().cq(self.place), &mut bytes)?;
        let (tails, _) = bytes.as_chunks::<8>();
        Ok(tails
            .iter()
            .skip(Tail::OFFSET / 8)
            .step_by(CQE / 8)
            .map(|tail| Tail(u64::from_le_bytes(*tail)))
            .collect())
    }

    /// Makes the CQE in a slot one that is none.
    pub(super) fn clear_cqe(&self, slot: usize) -> Result<()> {
        let at = self.layout().cq(self.place) + (slot * CQE) as u64;
        self.memory().write(at, &[FRESH; CQE])
    }

    /// Makes the queues those of a QP that was just reset: SQ indices start over, while the CQ goes on from the last CQE
    /// that the NIC has written.
    pub(super) fn renew(&self) -> Result<()> {
        let mut consumer = self.read_handle()?.completed.second;
        if self.layout().collapsed {
            // Its one CQE would be taken for a completion of the new life.
            self.clear_cqe(0)?;
        } else {
            let tails = self.cqe_tails()?;
            let depth = self.cq_depth();
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
        self.slab.write_control(self.place, consumer)?;
        self.renew_receives()
    }

    fn renew_receives(&self) -> Result<()> {
        if self.receive_cq.is_none() {
            return Ok(());
        }
        let layout = self.layout();
        let mut bytes = [0; RqHandle::LEN];
        let at = layout.receive_handle(self.place);
        self.memory().read(at, &mut bytes)?;
        let first = RqHandle::from_bytes(&bytes).map_err(|error| {
            let kind = DriverErrorKind::InvalidArgument;
            Error::driver("read the receive queue's handle")(DriverError::new(
                "copy",
                kind,
                error.to_string(),
            ))
        })?;
        let depth = layout.receive_cq_depth();
        let mut cqes = vec![0; depth as usize * CQE];
        self.memory()
            .read(layout.receive_cq(self.place), &mut cqes)?;
        let tail = |index: u64| {
            let slot = (index & u64::from(depth - 1)) as usize;
            let bytes = cqes.get(slot * CQE + Tail::OFFSET..)?.first_chunk()?;
            Some(Tail(u64::from_le_bytes(*bytes)))
        };
        let mut consumer = first.consumer.word;
        let limit = consumer + u64::from(depth);
        while consumer < limit && tail(consumer).is_some_and(|tail| tail.is_new(consumer, depth)) {
            consumer += 1;
        }
        self.slab.write_receive_control(self.place, consumer)
    }
}

fn parse_handle(bytes: &[u8]) -> Result<QpHandle> {
    QpHandle::from_bytes(bytes).map_err(|error| {
        let kind = DriverErrorKind::InvalidArgument;
        Error::driver("read the QP handle")(DriverError::new("copy", kind, error.to_string()))
    })
}
