//! Background mode: NICs that run by themselves, on a thread of their own, over the process's memory and in real time.
//!
//! Knows: doorbell pages as memory, when to look at them, when to rest.
//! Must not know: what a NIC does in a step.
//!
//! Nobody calls a NIC when a doorbell is rung: its thread finds the value in the register. Several queues may share a
//! register and overwrite each other's values, so with each doorbell it looks at the records of all queues of that page, and
//! now and then at the records of all queues: a producer is the later of doorbell and record. Of many pages it looks each time
//! at those that were rung lately and at a part of the others (`registers`).
//!
//! With [`Background::start_with_stores`] a page is no memory: each store to it is delivered by itself, with its width and
//! offset, as to a device; then records are looked at when the NIC would, and not otherwise.
//!
//! When there is nothing to do, the thread looks again and again for a while, yielding to others; then it sleeps between
//! looks, longer and longer up to [`MOST_REST`]. Calls of the host wake it.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use warpverbs_sim_bus::{Bus, Device, Step};
use warpverbs_wire::doorbell::UAR_PAGE;
use warpverbs_wire::eqe::Event;

use crate::model::NicModel;
use crate::registers::{Look, Registers};
use crate::stores::{Store, Stores};

/// Steps that a NIC takes in a row; host calls and other NICs wait so long at most.
const STEPS: u32 = 128;
/// How long a thread without work keeps looking before it rests.
const EAGER: Duration = Duration::from_micros(100);
/// The first rest.
const FIRST_REST: Duration = Duration::from_micros(50);
/// The longest rest while a queue may be rung: what a doorbell waits at most, scheduling aside, where pages are few.
const MOST_REST: Duration = Duration::from_millis(1);
/// The longest rest of NICs that no doorbell can reach.
const IDLE_REST: Duration = Duration::from_secs(1);
/// So often all records and registers are looked at.
const SCAN_EVERY: Duration = Duration::from_micros(500);
/// Looks in which every page is looked at once, while there is work and after a rest. Few pages are looked at each time.
const PARTS: usize = 32;
const PARTS_AFTER_REST: usize = 4;

/// NICs of one bus that run by themselves. Dropping it stops them, and waits for their thread.
pub struct Background {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    wake: Thread,
}

/// Who is told of the events that NICs raise: the NIC's number in the order of [`Background::start`], and the events. Called
/// on the NICs' thread, which holds no lock then.
pub type EventSink = Box<dyn Fn(usize, Vec<Event>) + Send + Sync>;

struct Shared {
    bus: Arc<Bus>,
    nics: Vec<Nic>,
    events: Option<EventSink>,
    stop: AtomicBool,
    /// Host calls that wait for a lock, or hold one.
    callers: AtomicU32,
    /// Host calls so far.
    calls: AtomicU64,
    /// `calls` when a round that found nothing to do began.
    idle_after: AtomicU64,
    resting: AtomicBool,
}

struct Nic {
    number: usize,
    model: Arc<Mutex<NicModel>>,
    registers: Registers,
    /// Where each store is delivered by itself.
    stores: Option<Stores>,
}

/// What a host call is about: the doorbells that were rung there before it come before it, as posted writes come before a later
/// command. Doorbells of other queues are in no order with it.
#[derive(Clone, Copy, Debug)]
pub enum About<'a> {
    /// All that the NIC has.
    Everything,
    /// What this mailbox names: a queue's page, if it names a queue.
    Command(&'a [u8]),
    /// A doorbell page.
    Page(u32),
    /// Neither queue nor page.
    NoQueue,
}

/// A host call under way: the NICs make room for it, and look for work after it.
pub struct HostCall<'a>(&'a Background);

impl Background {
    /// Starts NICs, each given with its number on the bus. From now on no one else steps the bus's devices.
    pub fn start(bus: &Arc<Bus>, nics: Vec<(usize, Arc<Mutex<NicModel>>)>) -> io::Result<Self> {
        Self::launch(bus, nics, None, false)
    }

    /// As [`Self::start`], with someone who is told of events. Otherwise they wait in the models.
    pub fn start_with_events(
        bus: &Arc<Bus>,
        nics: Vec<(usize, Arc<Mutex<NicModel>>)>,
        events: EventSink,
    ) -> io::Result<Self> {
        Self::launch(bus, nics, Some(events), false)
    }

    /// As [`Self::start_with_events`], where whoever sees a store to a doorbell page delivers it ([`Self::store`]).
    pub fn start_with_stores(
        bus: &Arc<Bus>,
        nics: Vec<(usize, Arc<Mutex<NicModel>>)>,
        events: EventSink,
    ) -> io::Result<Self> {
        Self::launch(bus, nics, Some(events), true)
    }

    fn launch(
        bus: &Arc<Bus>,
        nics: Vec<(usize, Arc<Mutex<NicModel>>)>,
        events: Option<EventSink>,
        every_store: bool,
    ) -> io::Result<Self> {
        let nic = |(number, model)| Nic {
            number,
            model,
            registers: Registers::default(),
            stores: every_store.then(Stores::new),
        };
        let shared = Arc::new(Shared {
            bus: bus.clone(),
            nics: nics.into_iter().map(nic).collect(),
            events,
            stop: AtomicBool::new(false),
            callers: AtomicU32::new(0),
            calls: AtomicU64::new(1),
            idle_after: AtomicU64::new(0),
            resting: AtomicBool::new(false),
        });
        let running = shared.clone();
        let thread = thread::Builder::new()
            .name("nic".into())
            .spawn(move || running.run())?;
        Ok(Self {
            shared,
            wake: thread.thread().clone(),
            thread: Some(thread),
        })
    }

    /// Gives a doorbell page of NIC `nic` (in the order of [`Self::start`]) memory, and returns its address. Producers store
    /// to it with 8-byte atomics.
    pub fn map(&self, nic: usize, page: u32) -> Option<u64> {
        Some(self.shared.nics.get(nic)?.registers.map(page))
    }

    /// As [`Self::map`], in memory that is given: others may have mapped it too. False if there is no such NIC.
    pub fn map_given(
        &self,
        nic: usize,
        page: u32,
        words: &'static [AtomicU64; UAR_PAGE / 8],
    ) -> bool {
        let Some(nic) = self.shared.nics.get(nic) else {
            return false;
        };
        nic.registers.map_given(page, words);
        true
    }

    /// Takes the memory of a doorbell page back. It stays allocated as long as the NICs run.
    pub fn unmap(&self, nic: usize, page: u32) {
        if let Some(nic) = self.shared.nics.get(nic) {
            nic.registers.unmap(page);
        }
    }

    /// Delivers a store to a doorbell page of NIC `nic`: `bytes`, 64 at most, at byte `offset` of the page; without bytes it was a
    /// load. False: there is no room now, or no such NIC, or the NICs were not started to take stores. Takes no lock and
    /// allocates nothing: a signal handler may call it.
    pub fn store(&self, nic: usize, page: u32, offset: u16, bytes: &[u8]) -> bool {
        let stores = self
            .shared
            .nics
            .get(nic)
            .and_then(|nic| nic.stores.as_ref());
        match (stores, Store::new(page, offset, bytes)) {
            (Some(stores), Some(store)) => stores.push(&store),
            _ => false,
        }
    }

    /// True if a doorbell page begins at `addr`.
    pub fn is_page(&self, addr: u64) -> bool {
        self.shared.nics.iter().any(|nic| nic.registers.has(addr))
    }

    /// Begins a host call. Hold it while holding the bus or a NIC: without it, a busy NIC may keep the caller waiting.
    pub fn call(&self) -> HostCall<'_> {
        self.shared.callers.fetch_add(1, Ordering::SeqCst);
        HostCall(self)
    }

    /// Locks a NIC for a host call. Doorbells that were rung before the call are taken before it, of what it is about.
    pub fn lock<'a>(
        &'a self,
        nic: usize,
        model: &'a Mutex<NicModel>,
        about: About<'_>,
    ) -> MutexGuard<'a, NicModel> {
        let mut model = locked(model);
        let look = match about {
            About::Everything => Some(Look::All),
            About::Command(mailbox) => model.page_of(mailbox).map(Look::Page),
            About::Page(page) => Some(Look::Page(page)),
            About::NoQueue => None,
        };
        if let Some(nic) = self.shared.nics.get(nic)
            // Stores that are delivered are in one order for all pages.
            && let Some(look) = look.or(nic.stores.is_some().then_some(Look::All))
        {
            nic.take_doorbells(&mut model, look);
        }
        model
    }

    /// As [`Self::lock`], but does not wait for whoever holds the NIC.
    pub fn try_lock<'a>(
        &'a self,
        nic: usize,
        model: &'a Mutex<NicModel>,
    ) -> Option<MutexGuard<'a, NicModel>> {
        let mut model = match model.try_lock() {
            Ok(model) => model,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        if let Some(nic) = self.shared.nics.get(nic) {
            nic.take_doorbells(&mut model, Look::All);
        }
        Some(model)
    }

    /// Waits until the NICs have nothing to do now, timers aside; false if that takes longer.
    pub fn quiesce(&self, within: Duration) -> bool {
        let calls = {
            let _call = self.call();
            self.shared.calls.load(Ordering::SeqCst) + 1
        };
        let begun = Instant::now();
        while self.shared.idle_after.load(Ordering::Acquire) < calls {
            if begun.elapsed() > within || !self.is_running() {
                return false;
            }
            thread::yield_now();
        }
        true
    }

    /// False if the NICs' thread has ended, which it does by itself only where a model panicked.
    pub fn is_running(&self) -> bool {
        self.thread
            .as_ref()
            .is_some_and(|thread| !thread.is_finished())
    }

    fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.wake.unpark();
        if let Some(thread) = self.thread.take() {
            // Of a panic its message is all there is to tell, and that was printed.
            let _ = thread.join();
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Drop for HostCall<'_> {
    fn drop(&mut self) {
        let shared = &self.0.shared;
        shared.calls.fetch_add(1, Ordering::SeqCst);
        shared.callers.fetch_sub(1, Ordering::SeqCst);
        // The thread says that it rests before it looks at `calls` for the last time: one of the two sees the other.
        if shared.resting.load(Ordering::SeqCst) {
            self.0.wake.unpark();
        }
    }
}

fn locked(model: &Mutex<NicModel>) -> MutexGuard<'_, NicModel> {
    model.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a round found.
struct Round {
    busy: bool,
    /// Something may ring.
    reachable: bool,
    /// When the first timer runs out.
    deadline: Option<u64>,
}

impl Nic {
    fn take_doorbells(&self, model: &mut NicModel, look: Look) -> bool {
        let mut any = false;
        if let Some(stores) = &self.stores {
            while let Some(store) = stores.pop() {
                any = true;
                model.take_any_store(&store);
            }
            return any;
        }
        self.registers.take(look, |page, offset, value| {
            any = true;
            model.take_doorbell(page, offset, value);
        });
        any
    }
}

impl Shared {
    fn run(&self) {
        let begun = Instant::now();
        let mut worked = begun;
        let mut scanned = begun;
        // How long a scan of all records took.
        let mut scan_takes = Duration::ZERO;
        let mut rest = FIRST_REST;
        let mut parts = PARTS;
        while !self.stop.load(Ordering::SeqCst) {
            let calls = self.calls.load(Ordering::SeqCst);
            let started = Instant::now();
            // Records of many queues take long to look at: not more than a tenth of the time.
            let scan = started - scanned >= SCAN_EVERY.max(scan_takes * 10);
            let look = if scan { Look::All } else { Look::Part(parts) };
            parts = PARTS;
            let round = self.round(nanos(started - begun), look);
            self.tell();
            if scan {
                scanned = Instant::now();
                scan_takes = if round.busy {
                    scan_takes
                } else {
                    scanned - started
                };
            }
            if round.busy {
                worked = started;
                rest = FIRST_REST;
                self.make_room();
                continue;
            }
            // Only a scan proves that no record has news.
            if scan {
                self.idle_after.store(calls, Ordering::Release);
            }
            if started - worked < EAGER || !scan && self.idle_after.load(Ordering::Relaxed) < calls
            {
                thread::yield_now();
                continue;
            }
            let most = if round.reachable {
                MOST_REST
            } else {
                IDLE_REST
            };
            let wanted = match round.deadline {
                Some(deadline) => {
                    Duration::from_nanos(deadline.saturating_sub(nanos(begun.elapsed()))).min(rest)
                }
                None => rest,
            };
            self.resting.store(true, Ordering::SeqCst);
            if self.calls.load(Ordering::SeqCst) == calls && !self.stop.load(Ordering::SeqCst) {
                thread::park_timeout(wanted.min(most));
            }
            self.resting.store(false, Ordering::SeqCst);
            parts = PARTS_AFTER_REST;
            if self.calls.load(Ordering::SeqCst) == calls {
                rest = (rest * 2).min(most);
            } else {
                // The host does something: more will come.
                (worked, rest) = (Instant::now(), FIRST_REST);
            }
        }
    }

    /// Hands out the events that were raised.
    fn tell(&self) {
        let Some(sink) = &self.events else { return };
        for (number, nic) in self.nics.iter().enumerate() {
            let events = locked(&nic.model).take_events();
            if !events.is_empty() {
                sink(number, events);
            }
        }
    }

    /// Lets host calls that wait have the locks: a mutex is not fair.
    fn make_room(&self) {
        while (self.callers.load(Ordering::SeqCst) > 0 || self.bus.is_wanted())
            && !self.stop.load(Ordering::SeqCst)
        {
            thread::yield_now();
        }
    }

    fn round(&self, now: u64, look: Look) -> Round {
        let mut round = Round {
            busy: false,
            reachable: false,
            deadline: None,
        };
        let mut bus = self.bus.lock();
        for nic in &self.nics {
            let mut dma = bus.dma(nic.number);
            let mut model = locked(&nic.model);
            model.set_time(now);
            round.busy |= nic.take_doorbells(&mut model, look);
            if nic.stores.is_none() {
                round.busy |= model.look_at_records(look == Look::All, &mut dma);
            }
            for _ in 0..STEPS {
                if model.step(&mut dma) == Step::Idle {
                    break;
                }
                round.busy = true;
            }
            round.reachable |= model.has_qps();
            round.deadline = [round.deadline, model.deadline()]
                .into_iter()
                .flatten()
                .min();
        }
        round
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
