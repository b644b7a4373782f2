//! What several QPs stand on together: one GPU allocation, one UMEM, one doorbell page with one mapping into the GPU, and
//! one allocation of stop words.
//!
//! Knows: that each QP has a place in it, that a place is free again when the QP and its CQ are destroyed, and that
//! neighbours' handles are written in one copy. Must not know: a QP's state.

use std::fmt;
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warpverbs_wire::abi::{Line, ProxyRecord, QpHandle, RqHandle};
use warpverbs_wire::cqe::{CQE, FRESH};
use warpverbs_wire::doorbell::{DBR_RECEIVE, DBR_SEND, cq_dbr_word, dbr_word};

use super::layout::{Layout, runs};
use super::uar::{PagePin, Uar, UarMap};
use super::umem::Umem;
use super::{Context, DoorbellPath, GpuContext, GpuMemory, HostWords};
use crate::error::{Error, Result};
use crate::teardown::{Baton, BatonHeld, Slot, Wait, attach};

/// A slab. Clones are the same; its parts are destroyed with the last of them, children before parents.
#[derive(Clone)]
pub(crate) struct Slab(Arc<Parts>);

struct Parts {
    layout: Layout,
    first_index: u64,
    read_needs_dump: bool,
    places: Mutex<Vec<Place>>,
    /// Held while handles are written: what was found out about neighbours stays true.
    writing: Baton,
    /// More QPs may be created in it.
    open: AtomicBool,
    // Children before parents: fields are dropped in order.
    /// `None` where the host alone rings.
    map: Option<UarMap>,
    uar: Uar,
    umem: Umem,
    /// Where the host alone rings: doorbell records lie in host memory.
    words_umem: Option<Umem>,
    words: HostWords,
    memory: GpuMemory,
}

/// One place.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    taken: bool,
    /// Something lay in it before.
    used: bool,
    handle: Handle,
    /// Its stop word is not 0.
    told: bool,
    /// No kernel uses it, nor will again in this life.
    quiet: bool,
}

/// What a place's handle holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Handle {
    /// One that every kernel refuses.
    #[default]
    Clear,
    /// Either: a copy failed, or is under way.
    Unknown,
    /// One that kernels take.
    Written,
}

/// A place, taken: held by every node that lies in it.
#[derive(Clone)]
pub(super) struct Tenancy(#[expect(dead_code, reason = "held, not read")] Arc<Taken>);

struct Taken {
    slab: Slab,
    place: u32,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.slab.change(self.place, |place| {
            // The stop word stays as it is until the place is taken again.
            *place = Place {
                used: true,
                told: place.told,
                ..Place::default()
            };
        });
    }
}

impl Slab {
    /// Builds one, with indices that start at `first_index`.
    pub(super) fn build(
        context: &Context,
        gpu: &GpuContext,
        layout: Layout,
        first_index: u64,
    ) -> Result<Self> {
        let memory = gpu.alloc(layout.len(), "QP queues")?;
        // Opcode 0xf (invalid) and owner bit 1 in every CQE: none is taken for a completion, whichever lap is awaited first.
        memory.fill(layout.cq(0), layout.cq_bytes(), FRESH)?;
        let controls = fresh_control(first_index, first_index).repeat(layout.places as usize);
        memory.write(layout.control(0), &controls)?;
        if layout.rq_depth != 0 {
            memory.fill(layout.receive_cq(0), layout.receive_cq_bytes(), FRESH)?;
            let control = fresh_receive_control(first_index, first_index);
            let controls = control.repeat(layout.places as usize);
            memory.write(layout.receive_control(0), &controls)?;
            // The NIC reads whole WQEs, of which a receive of few pieces writes no more than those and an end.
            memory.fill(0, layout.cq(0), 0)?;
        }
        let words = HostWords::alloc(gpu, layout.words(), "stop words")?;
        let proxied = layout.doorbell_path == DoorbellPath::Proxy;
        for place in (0..layout.places).filter(|_| proxied && first_index != 0) {
            write_host_records(&layout, &words, place, first_index)?;
        }
        let umem = Umem::register(context, &memory)?;
        let words_umem = proxied
            .then(|| Umem::register_words(context, &words))
            .transpose()?;
        let uar = Uar::alloc(context)?;
        let map = (!proxied).then(|| UarMap::map(gpu, &uar)).transpose()?;
        Ok(Self(Arc::new(Parts {
            layout,
            first_index,
            // A data-direct function is another PCIe function than the one that writes CQEs: nothing orders the two (rule O14).
            read_needs_dump: !gpu.orders_nic_writes() || context.capabilities().data_direct,
            places: Mutex::new(vec![Place::default(); layout.places as usize]),
            writing: Baton::new(),
            open: AtomicBool::new(true),
            map,
            uar,
            umem,
            words_umem,
            words,
            memory,
        })))
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.0.layout
    }

    pub(super) fn first_index(&self) -> u64 {
        self.0.first_index
    }

    pub(super) fn read_needs_dump(&self) -> bool {
        self.0.read_needs_dump
    }

    pub(super) fn memory(&self) -> &GpuMemory {
        &self.0.memory
    }

    pub(super) fn umem(&self) -> &Umem {
        &self.0.umem
    }

    pub(super) fn uar(&self) -> &Uar {
        &self.0.uar
    }

    /// The page's mapping, unless the host alone rings.
    pub(super) fn map(&self) -> Option<&UarMap> {
        self.0.map.as_ref()
    }

    /// Keeps the doorbell page, as its queues need it.
    pub(super) fn pin_page(&self) -> Result<PagePin> {
        match &self.0.map {
            Some(map) => map.pin().map(PagePin::Mapped),
            None => self.0.uar.pin().map(PagePin::Own),
        }
    }

    /// The UMEM of the host memory that doorbell records lie in, where the host alone rings.
    pub(super) fn words_umem(&self) -> Option<&Umem> {
        self.0.words_umem.as_ref()
    }

    pub(super) fn words(&self) -> &HostWords {
        &self.0.words
    }

    /// Its nodes, parents first.
    pub(super) fn slots(&self) -> Vec<Arc<dyn Slot>> {
        let always = [
            self.0.memory.slot(),
            self.0.words.slot(),
            self.0.umem.slot(),
            self.0.uar.slot(),
        ];
        let words_umem = self.0.words_umem.iter().map(Umem::slot);
        let map = self.0.map.iter().map(UarMap::slot);
        always.into_iter().chain(words_umem).chain(map).collect()
    }

    /// No QP is created in it from here on: it goes with its last one.
    pub(super) fn shut(&self) {
        self.0.open.store(false, Ordering::Relaxed);
    }

    /// True if nothing is in it but what is in one place, and nothing will be.
    pub(super) fn is_of_one(&self) -> bool {
        !self.0.open.load(Ordering::Relaxed) && self.taken() <= 1
    }

    /// Places that are taken.
    pub(super) fn taken(&self) -> usize {
        self.places().iter().filter(|place| place.taken).count()
    }

    /// Takes a place, and makes it as new.
    pub(super) fn take(&self) -> Result<(u32, Tenancy)> {
        let (place, was) = {
            let mut places = self.places();
            let free = places.iter().position(|place| !place.taken);
            let Some(place) = free.and_then(|at| Some((at, places.get_mut(at)?))) else {
                let places = self.0.layout.places;
                return Err(Error::PoolFull { places });
            };
            let (at, place) = place;
            let was = *place;
            place.taken = true;
            (at as u32, was)
        };
        let tenancy = Tenancy(Arc::new(Taken {
            slab: self.clone(),
            place,
        }));
        if was.used {
            let (layout, memory) = (&self.0.layout, &self.0.memory);
            let cq_bytes = u64::from(layout.cq_depth) * CQE as u64;
            memory.fill(layout.cq(place), cq_bytes, FRESH)?;
            self.write_control(place, self.0.first_index)?;
            if layout.rq_depth != 0 {
                let cq_bytes = u64::from(layout.receive_cq_depth()) * CQE as u64;
                memory.fill(layout.receive_cq(place), cq_bytes, FRESH)?;
                self.write_receive_control(place, self.0.first_index)?;
            }
        }
        Ok((place, tenancy))
    }

    /// Makes records and handle those of a new life. The handle comes last in the copy; if the copy fails, the next attempt
    /// is given the same index.
    pub(super) fn write_control(&self, place: u32, consumer: u64) -> Result<()> {
        let control = fresh_control(self.0.first_index, consumer);
        if self.0.layout.doorbell_path == DoorbellPath::Proxy {
            write_host_records(&self.0.layout, &self.0.words, place, self.0.first_index)?;
        }
        self.0.memory.write(self.0.layout.control(place), &control)
    }

    /// As [`Self::write_control`], of the receive queue.
    pub(super) fn write_receive_control(&self, place: u32, consumer: u64) -> Result<()> {
        let control = fresh_receive_control(self.0.first_index, consumer);
        let at = self.0.layout.receive_control(place);
        self.0.memory.write(at, &control)
    }

    /// Writes a receive queue's handle: the part that does not change while the QP is exported. It is cleared with the QP's.
    pub(super) fn write_receive_handle(&self, place: u32, handle: &RqHandle) -> Result<()> {
        let bytes = handle.to_bytes();
        let fixed = bytes.get(..FIXED_RECEIVE).unwrap_or(&bytes);
        self.0
            .memory
            .write(self.0.layout.receive_handle(place), fixed)
    }

    /// What a place's handle holds.
    pub(super) fn handle(&self, place: u32) -> Handle {
        self.look(place).handle
    }

    /// No kernel uses the place from here on, or kernels may again.
    pub(super) fn set_quiet(&self, place: u32, quiet: bool) {
        self.change(place, |place| place.quiet = quiet);
    }

    /// Tells GPU threads to leave the place, or makes them welcome again.
    pub(super) fn set_stop(&self, place: u32, stop: bool) -> Result<()> {
        if !stop && !self.look(place).told {
            return Ok(());
        }
        // Before the store: after one that failed, the word may be either.
        self.change(place, |place| place.told = true);
        self.0.words.store(self.0.layout.stop(place), stop.into())?;
        self.change(place, |place| place.told = stop);
        Ok(())
    }

    /// Writes the handles of some places, sorted: the part that does not change while a QP is exported. A run of
    /// neighbours takes one copy.
    pub(super) fn write_handles(&self, handles: &[(u32, QpHandle)], wait: Wait) -> Result<()> {
        let _one = self.writing(wait)?;
        let places: Vec<u32> = handles.iter().map(|(place, _)| *place).collect();
        let mark = |handle| {
            for place in &places {
                self.change(*place, |place| place.handle = handle);
            }
        };
        mark(Handle::Unknown);
        let mut rest = handles;
        for (first, count) in runs(&places) {
            let (run, later) = rest.split_at_checked(count as usize).unwrap_or((rest, &[]));
            rest = later;
            let rows: Vec<u8> = run
                .iter()
                .flat_map(|(_, handle)| handle.to_bytes().into_iter().take(FIXED))
                .collect();
            self.write_rows(first, FIXED, &rows)?;
        }
        mark(Handle::Written);
        Ok(())
    }

    /// Makes the handles of some places ones that every kernel refuses: version 0 is none. All are tried; the first error
    /// is told.
    pub(super) fn clear_handles(&self, places: &[u32], wait: Wait) -> Result<()> {
        let _one = self.writing(wait)?;
        let mut cleared = Ok(());
        for (first, count) in runs(places) {
            if let Err(error) = self.clear_run(first, count) {
                cleared = Err(match cleared {
                    Ok(()) => error,
                    Err(earlier) => attach(earlier, "handle", error),
                });
            }
        }
        cleared
    }

    /// Clears a place's handle, and in the same copy those of its neighbours whose turn is next. What one copy cannot do, a
    /// copy of its own may: neighbours do not suffer for each other.
    pub(super) fn clear_handle(&self, place: u32, wait: Wait) -> Result<()> {
        let _one = self.writing(wait)?;
        let (first, count) = {
            let places = self.places();
            let found = |at: u32| places.get(at as usize).copied().unwrap_or_default();
            let own = found(place);
            if own.handle == Handle::Clear {
                return Ok(());
            }
            let waits = |at: &u32| {
                let other = found(*at);
                own.quiet && other.quiet && other.handle != Handle::Clear
            };
            let before = (0..place).rev().take_while(waits).count() as u32;
            let after = (place + 1..self.0.layout.places).take_while(waits).count() as u32;
            (place - before, before + 1 + after)
        };
        match self.clear_run(first, count) {
            Err(_) if count > 1 => self.clear_run(place, 1),
            cleared => cleared,
        }
    }

    /// On a GPU that is gone there is no handle.
    pub(super) fn forget_handle(&self, place: u32) {
        self.change(place, |place| place.handle = Handle::Clear);
    }

    fn clear_run(&self, first: u32, count: u32) -> Result<()> {
        let rows = vec![0; count as usize * VERSION];
        self.write_rows(first, VERSION, &rows)?;
        if self.0.layout.rq_depth != 0 {
            let at = self.0.layout.receive_handle(first);
            let pitch = Layout::RECEIVE_CONTROL;
            self.0.memory.write_rows(at, pitch, VERSION, &rows)?;
        }
        for place in first..first + count {
            self.forget_handle(place);
        }
        Ok(())
    }

    /// Writes the first `width` bytes of neighbours' handles.
    fn write_rows(&self, first: u32, width: usize, rows: &[u8]) -> Result<()> {
        let at = self.0.layout.handle(first);
        self.0.memory.write_rows(at, Layout::CONTROL, width, rows)
    }

    fn places(&self) -> MutexGuard<'_, Vec<Place>> {
        self.0.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writing(&self, wait: Wait) -> Result<BatonHeld<'_>> {
        self.0
            .writing
            .take(wait.turn())
            .ok_or_else(|| wait.timeout("another thread's copy of handles"))
    }

    fn look(&self, place: u32) -> Place {
        self.places()
            .get(place as usize)
            .copied()
            .unwrap_or_default()
    }

    fn change(&self, place: u32, change: impl FnOnce(&mut Place)) {
        if let Some(place) = self.places().get_mut(place as usize) {
            change(place);
        }
    }

    /// True if both are the same slab.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slab({} of {})", self.taken(), self.0.layout.places)
    }
}

/// Makes the records of a place that lie in host memory those of a new life.
fn write_host_records(
    layout: &Layout,
    words: &HostWords,
    place: u32,
    first_index: u64,
) -> Result<()> {
    let record = layout.proxy_record(place);
    let word = |offset: usize| record + (offset / 8) as u32;
    let counter = u64::from(dbr_word(first_index));
    const _: () = assert!(DBR_RECEIVE == 0 && DBR_SEND == 4);
    words.store(layout.host_dbr(place), counter << 32 | counter)?;
    words.store(word(offset_of!(ProxyRecord, rung)), first_index)?;
    words.store(word(offset_of!(ProxyRecord, producer)), first_index)
}

/// Bytes of a handle that do not change while the QP is exported.
const FIXED: usize = offset_of!(QpHandle, reserved);
/// The same of a receive queue's handle.
const FIXED_RECEIVE: usize = offset_of!(RqHandle, reserved);
/// Bytes of a version.
const VERSION: usize = 4;

/// A handle that every kernel refuses, with SQ indices that start at `first_index` and CQ indices at `consumer`.
pub(super) fn fresh_handle(first_index: u64, consumer: u64) -> QpHandle {
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
        cqn: 0,
        user_index: 0,
        cq_dbr: 0,
        proxy: 0,
        rq: 0,
        rest: [0; 4],
        reserved: Line {
            second: first_index.wrapping_sub(consumer),
            ..Line::new(first_index)
        },
        turn: Line::new(first_index),
        completed: Line {
            second: consumer,
            ..Line::new(first_index)
        },
        state: Line::default(),
    }
}

/// The control block of a new life. A doorbell record is 8 bytes: the CQ's consumer and arm words, the QP's receive and send
/// counters. They start where the indices start: a send counter that differs is work to a NIC in ERR.
fn fresh_control(first_index: u64, consumer: u64) -> Vec<u8> {
    let mut control = vec![0; Layout::CONTROL as usize];
    let mut put = |at: u64, bytes: &[u8]| {
        let places = control.iter_mut().skip(at as usize);
        places.zip(bytes).for_each(|(place, byte)| *place = *byte);
    };
    put(0, &cq_dbr_word(consumer).to_le_bytes());
    put(
        Layout::QP_DBR + DBR_RECEIVE as u64,
        &dbr_word(first_index).to_le_bytes(),
    );
    put(
        Layout::QP_DBR + DBR_SEND as u64,
        &dbr_word(first_index).to_le_bytes(),
    );
    put(
        Layout::HANDLE,
        &fresh_handle(first_index, consumer).to_bytes(),
    );
    control
}

/// As [`fresh_handle`], of a receive queue whose CQ goes on at `consumer`.
pub(super) fn fresh_receive_handle(first_index: u64, consumer: u64) -> RqHandle {
    RqHandle {
        version: 0,
        flags: 0,
        rq: 0,
        dbr: 0,
        rq_depth: 0,
        log_stride: 0,
        cq: 0,
        cq_depth: 0,
        qpn: 0,
        stop: 0,
        cq_dbr: 0,
        reserved: Line::new(first_index),
        turn: Line::new(first_index),
        consumer: Line {
            // CQEs before that of RQ index 0.
            second: consumer.wrapping_sub(first_index),
            ..Line::new(consumer)
        },
        state: Line::default(),
    }
}

/// As [`fresh_control`], of a receive queue.
fn fresh_receive_control(first_index: u64, consumer: u64) -> Vec<u8> {
    let mut control = vec![0; Layout::RECEIVE_CONTROL as usize];
    let record = cq_dbr_word(consumer).to_le_bytes();
    let handle = fresh_receive_handle(first_index, consumer).to_bytes();
    let line = Layout::RECEIVE_CONTROL as usize - handle.len();
    let places = control.iter_mut();
    places.zip(record).for_each(|(place, byte)| *place = byte);
    let places = control.iter_mut().skip(line);
    places.zip(handle).for_each(|(place, byte)| *place = byte);
    control
}
