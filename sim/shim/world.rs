//! The NICs of this process, and everything that programs have opened on them.
//!
//! Knows: which configuration the environment asks for, when the NICs are made, which NIC stands behind which device, who holds
//! what lock.
//! Must not know: commands.
//!
//! Lock order: [`State`], then the bus, then a NIC. The NICs' thread takes the state only while it holds neither.

use std::collections::{BTreeMap, HashMap};
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use warpverbs_sim_bus::Bus;
use warpverbs_sim_nic::{About, Background, HostCall, LinkLayer, NicConfig, NicModel};
use warpverbs_wire::prm::{Command, alloc_q_counter, query_q_counter as q_counters};

use crate::context::Context;
use crate::errno::{Errno, Result};
use crate::events::{Channel, Owner, Subscription};
use crate::lent::LentNic;
use crate::memory::NoMemory;
use crate::sys::{self, SharedPages};
use crate::{events, wire};

/// How many NICs there are (1 to [`MOST_NICS`]; 1 by default).
pub(crate) const NICS: &str = "WARPVERBS_SIM_NICS";
/// Folder of the wire that joins the NICs of several processes.
pub(crate) const WIRE: &str = "WARPVERBS_SIM_WIRE";
/// `ethernet` (the default) or `infiniband`.
pub(crate) const LINK: &str = "WARPVERBS_SIM_LINK";
/// How doorbells are seen: [`Doorbells`], by name.
pub(crate) const DOORBELLS: &str = "WARPVERBS_SIM_DOORBELLS";
/// What the kernel or the device does not offer, by names between commas: [`Missing`].
const REFUSE: &str = "WARPVERBS_SIM_REFUSE";
/// What an ordinary device does not have, by names between commas: `data-direct`, and `lag` of two ports.
const OFFER: &str = "WARPVERBS_SIM_OFFER";
/// How many bytes a process may pin, as `RLIMIT_MEMLOCK` says where it applies.
const MEMLOCK: &str = "WARPVERBS_SIM_MEMLOCK";
/// Most NICs of a process.
const MOST_NICS: usize = 16;
/// Bytes of register space of a NIC.
const BAR: usize = warpverbs_sim_bus::BAR_SIZE as usize;

/// How stores to doorbell pages are seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doorbells {
    /// In memory, by looking: of stores that follow each other closely the last one.
    Fast,
    /// Each by itself, with its width and place.
    Conformance,
}

impl Doorbells {
    fn wanted() -> std::result::Result<Self, String> {
        match std::env::var(DOORBELLS).as_deref() {
            Err(_) | Ok("fast") => Ok(Self::Fast),
            Ok("conformance") => Ok(Self::Conformance),
            Ok(other) => Err(format!("{DOORBELLS} is {other}, not fast or conformance")),
        }
    }

    #[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
    fn arm() -> std::result::Result<(), String> {
        crate::traps::arm()
    }

    #[cfg(not(all(target_arch = "x86_64", target_env = "gnu")))]
    fn arm() -> std::result::Result<(), String> {
        Err("conformance mode needs x86-64 and glibc".into())
    }
}

/// All of it.
pub(crate) struct World {
    process: u32,
    slots: Vec<Slot>,
    /// NICs of this library's own, made when one of them is opened; why they cannot be is said once.
    own: OnceLock<Option<Own>>,
    state: Mutex<State>,
}

/// The place of a device.
struct Slot {
    /// Memory of its doorbell pages.
    pages: SharedPages,
    /// The NIC that stands behind it, if somebody has lent one.
    lent: Mutex<Option<Arc<LentNic>>>,
}

/// NICs that run by themselves, on a bus of their own: one a device.
pub(crate) struct Own {
    bus: Arc<Bus>,
    models: Vec<Arc<Mutex<NicModel>>>,
    background: Background,
    doorbells: Doorbells,
    /// Each port's counter set, to which QPs of verbs are attached.
    counters: Vec<u8>,
    /// What files of sysfs say of each port's counters.
    counters_shown: Mutex<Vec<q_counters::Out>>,
    /// Files to be removed at the end.
    sockets: Vec<PathBuf>,
}

/// The NIC behind a device.
pub(crate) enum Nic<'a> {
    /// This library's, its number and its model.
    Own(&'a Own, usize, &'a Mutex<NicModel>),
    /// Somebody's.
    Lent(Arc<LentNic>),
}

/// What programs have opened.
#[derive(Default)]
pub(crate) struct State {
    /// By descriptor of the device's file.
    pub(crate) contexts: BTreeMap<i32, Context>,
    /// By descriptor.
    pub(crate) channels: BTreeMap<i32, Channel>,
    /// Who is told of a queue's events.
    pub(crate) owners: HashMap<(usize, events::Queue), Owner>,
    pub(crate) subscriptions: Vec<Subscription>,
    /// Contexts made so far.
    pub(crate) uids: u16,
    /// A thread sends what waits for room in channels.
    pub(crate) pumping: bool,
}

/// A NIC, locked for a call.
pub(crate) struct Locked<'a> {
    model: MutexGuard<'a, NicModel>,
    /// Ends after the lock.
    _call: Option<HostCall<'a>>,
}

impl Deref for Locked<'_> {
    type Target = NicModel;
    fn deref(&self) -> &NicModel {
        &self.model
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut NicModel {
        &mut self.model
    }
}

/// The world of this process, once it is made. Kept for the process's life; a fork's child makes its own.
static CURRENT: AtomicPtr<World> = AtomicPtr::new(std::ptr::null_mut());
static MAKING: Mutex<()> = Mutex::new(());

/// What can be missing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Missing {
    /// DevX is not permitted.
    Devx,
    /// Doorbell pages that are not cached.
    NonCachedPages,
    /// Memory of dmabufs.
    Dmabuf,
}

/// True if the environment asks for this to be missing.
pub(crate) fn lacks(what: Missing) -> bool {
    let name = match what {
        Missing::Devx => "devx",
        Missing::NonCachedPages => "nc-uar",
        Missing::Dmabuf => "dmabuf",
    };
    std::env::var(REFUSE).is_ok_and(|names| names.split(',').any(|other| other == name))
}

fn offers(what: &str) -> bool {
    std::env::var(OFFER).is_ok_and(|names| names.split(',').any(|name| name == what))
}

/// True if the environment asks for a data-direct function.
pub(crate) fn has_data_direct() -> bool {
    offers("data-direct")
}

/// Bytes that the process may pin.
pub(crate) fn memlock() -> u64 {
    std::env::var(MEMLOCK)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(u64::MAX)
}

/// How many NICs the environment asks for.
pub(crate) fn wanted_nics() -> usize {
    std::env::var(NICS)
        .ok()
        .and_then(|text| text.parse().ok())
        .map_or(1, |nics: usize| nics.clamp(1, MOST_NICS))
}

/// The world of this process, if it has been made.
pub(crate) fn existing() -> Option<&'static World> {
    let world = sys::leaked(CURRENT.load(Ordering::Acquire))?;
    (world.process == sys::process()).then_some(world)
}

/// The world of this process, made at the first call.
pub(crate) fn current() -> Result<&'static World> {
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(world) = existing() {
        return Ok(world);
    }
    let world = Box::leak(Box::new(World::new()?));
    CURRENT.store(world, Ordering::Release);
    Ok(world)
}

/// Has the driver of a NIC, which is nobody's program (uid 0), make its port's counter set.
fn port_counters(model: &mut NicModel) -> std::result::Result<u8, String> {
    let command = alloc_q_counter::In::default();
    let input = command.encode().map_err(|error| error.to_string())?;
    let mut output = alloc_q_counter::In::reply();
    model
        .command(input.as_ref(), output.as_mut())
        .map_err(|error| error.to_string())?;
    let made = alloc_q_counter::In::decode(output.as_ref()).map_err(|error| error.to_string())?;
    Ok(made.counter_set_id)
}

impl Own {
    fn new() -> std::result::Result<Self, String> {
        let bus = Bus::new(Box::new(NoMemory));
        let folder = std::env::var_os(WIRE).map(PathBuf::from);
        let link_layer = match std::env::var(LINK).as_deref() {
            Err(_) | Ok("ethernet") => LinkLayer::Ethernet,
            Ok("infiniband") => LinkLayer::InfiniBand,
            Ok(other) => return Err(format!("{LINK} is {other}, not ethernet or infiniband")),
        };
        let doorbells = Doorbells::wanted()?;
        let mut models = Vec::new();
        let mut counters = Vec::new();
        let mut numbered = Vec::new();
        let mut sockets = Vec::new();
        for index in 0..wanted_nics() {
            let mut config = NicConfig {
                name: crate::sysfs::device_name(index),
                ignores_unused_immediates: true,
                link_layer,
                data_direct: has_data_direct(),
                lag_ports: if offers("lag") { 2 } else { 0 },
                ..NicConfig::default()
            };
            config.mac[5] = config.mac[5].wrapping_add(index as u8);
            config.lid += index as u16;
            let port = match &folder {
                None => None,
                Some(folder) => {
                    let (port, mac) = wire::Port::join(folder).map_err(|error| {
                        format!("cannot join the wire in {}: {error}", folder.display())
                    })?;
                    sockets.push(wire::Port::file(folder, mac));
                    config.mac = mac;
                    config.lid = u16::from_be_bytes([mac[4], mac[5]]);
                    Some(port)
                }
            };
            let mut model = NicModel::new(config);
            if let Some(port) = port {
                model.connect(port);
            }
            counters.push(port_counters(&mut model)?);
            let model = Arc::new(Mutex::new(model));
            numbered.push((bus.attach(model.clone()), model.clone()));
            models.push(model);
        }
        let events = Box::new(events::of_nic);
        let background = match doorbells {
            Doorbells::Fast => Background::start_with_events(&bus, numbered, events),
            Doorbells::Conformance => Background::start_with_stores(&bus, numbered, events),
        };
        let background =
            background.map_err(|error| format!("cannot start the NICs' thread: {error}"))?;
        // Last: whoever fails before leaves the program's signals alone.
        if doorbells == Doorbells::Conformance {
            Doorbells::arm()?;
        }
        Ok(Self {
            bus,
            background,
            doorbells,
            counters_shown: Mutex::new(vec![q_counters::Out::default(); counters.len()]),
            counters,
            models,
            sockets,
        })
    }
}

impl Nic<'_> {
    /// The bus that it is on.
    pub(crate) fn bus(&self) -> &Bus {
        match self {
            Self::Own(own, ..) => &own.bus,
            Self::Lent(nic) => nic.bus(),
        }
    }

    /// Locks it for a call.
    pub(crate) fn lock(&self) -> Locked<'_> {
        match self {
            Self::Own(own, index, model) => {
                let call = own.background.call();
                Locked {
                    model: own.background.lock(*index, model, About::Everything),
                    _call: Some(call),
                }
            }
            Self::Lent(nic) => {
                nic.comes_command();
                let (model, call) = nic.lock();
                Locked { model, _call: call }
            }
        }
    }
}

impl World {
    fn new() -> Result<Self> {
        let slot = |_| {
            Ok(Slot {
                pages: SharedPages::new(c"warpverbs doorbells", BAR)?,
                lent: Mutex::default(),
            })
        };
        Ok(Self {
            process: sys::process(),
            slots: (0..wanted_nics()).map(slot).collect::<Result<_>>()?,
            own: OnceLock::new(),
            state: Mutex::default(),
        })
    }

    /// NICs of this library's own, made at the first call. EIO if they cannot be made; why is said on standard error.
    fn own(&self) -> Result<&Own> {
        self.own
            .get_or_init(|| {
                let made = Own::new()
                    .inspect_err(|why| eprintln!("libwarpverbs_sim: no simulated NIC: {why}"))
                    .ok();
                if made.is_some() {
                    crate::counters::keep_fresh();
                }
                made
            })
            .as_ref()
            .ok_or(Errno(libc::EIO))
    }

    /// NICs of this library's own, if they have been made.
    fn own_made(&self) -> Option<&Own> {
        self.own.get()?.as_ref()
    }

    /// True if stores to the device's doorbell pages are seen one by one.
    pub(crate) fn traps_doorbells(&self, index: usize) -> bool {
        matches!(self.nic(index), Ok(Nic::Own(own, ..)) if own.doorbells == Doorbells::Conformance)
    }

    /// The counter set of a device's port; 0, which is none, of a NIC that was lent.
    pub(crate) fn port_counters(&self, index: usize) -> Result<u8> {
        Ok(match self.nic(index)? {
            Nic::Own(own, index, _) => own.counters.get(index).copied().unwrap_or(0),
            Nic::Lent(_) => 0,
        })
    }

    /// What files say of counters of this library's own NICs; whoever writes files holds it.
    pub(crate) fn counters_shown(&self) -> Option<MutexGuard<'_, Vec<q_counters::Out>>> {
        let shown = &self.own_made()?.counters_shown;
        Some(shown.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Tells a NIC of a store to a doorbell page; false if there is no room now. A signal handler may call it.
    #[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
    pub(crate) fn store(&self, nic: usize, page: u32, offset: u16, bytes: &[u8]) -> bool {
        // To a NIC that is not there: nobody waits for that.
        let Some(own) = self.own_made() else {
            return true;
        };
        nic >= own.models.len() || own.background.store(nic, page, offset, bytes)
    }

    /// Takes what this library's own NICs have found wrong.
    pub(crate) fn take_findings(&self) -> Vec<String> {
        let mut all = Vec::new();
        for index in 0..self.own_made().map_or(0, |own| own.models.len()) {
            let Ok(nic) = self.nic(index) else { continue };
            let name = crate::sysfs::device_name(index);
            let findings = nic.lock().take_findings();
            all.extend(findings.iter().map(|finding| format!("{name}: {finding}")));
        }
        all
    }

    /// How many findings of a kind there were.
    pub(crate) fn findings_of(&self, kind: &str) -> u64 {
        let of = |index| {
            let nic = self.nic(index).ok()?;
            nic.lock().findings_by_kind().get(kind).copied()
        };
        (0..self.own_made().map_or(0, |own| own.models.len()))
            .filter_map(of)
            .sum()
    }

    /// Says what the NICs have found wrong and nobody has taken. The process ends: whoever holds a NIC may never let go, so
    /// nobody waits for long.
    fn report(&self) {
        let Some(own) = self.own_made() else { return };
        for (index, model) in own.models.iter().enumerate() {
            let name = crate::sysfs::device_name(index);
            let _call = own.background.call();
            let held = (0..100).find_map(|_| {
                let held = own.background.try_lock(index, model);
                if held.is_none() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                held
            });
            let Some(mut nic) = held else {
                eprintln!("libwarpverbs_sim: {name} is busy: what it found is not known");
                continue;
            };
            if own.doorbells == Doorbells::Conformance {
                nic.end_of_run();
            }
            let (kept, total) = (nic.take_findings(), nic.findings_total());
            for finding in &kept {
                eprintln!("libwarpverbs_sim: {name}: {finding}");
            }
            if total > kept.len() as u64 && !kept.is_empty() {
                eprintln!("libwarpverbs_sim: {name}: {total} findings in all");
            }
        }
    }

    /// Makes sure that there is a NIC behind a device.
    pub(crate) fn ready(&self, index: usize) -> Result<()> {
        self.nic(index).map(drop)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The NIC behind device number `index`.
    pub(crate) fn nic(&self, index: usize) -> Result<Nic<'_>> {
        let slot = self.slots.get(index).ok_or(Errno::NOENT)?;
        if let Some(lent) = &*slot.lent.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(Nic::Lent(lent.clone()));
        }
        let own = self.own()?;
        let model = own.models.get(index).ok_or(Errno::NOENT)?;
        Ok(Nic::Own(own, index, model))
    }

    /// Puts a NIC behind the first device that has none; `None` if each has one.
    pub(crate) fn lend(&self, nic: &Arc<LentNic>) -> Option<usize> {
        if self.own.get().is_some() {
            return None;
        }
        self.slots.iter().position(|slot| {
            let mut lent = slot.lent.lock().unwrap_or_else(PoisonError::into_inner);
            let free = lent.is_none();
            if free {
                *lent = Some(nic.clone());
            }
            free
        })
    }

    /// Takes it away again, with all that programs have open on it.
    pub(crate) fn take_back(&self, index: usize) {
        self.abandon(&mut self.state(), index);
        if let Some(slot) = self.slots.get(index) {
            *slot.lent.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    /// Gives a doorbell page its memory, where it has some.
    pub(crate) fn map_doorbells(&self, index: usize, page: u32) -> Result<()> {
        if self.traps_doorbells(index) {
            return Ok(());
        }
        let slot = self.slots.get(index).ok_or(Errno::INVAL)?;
        let words = slot.pages.page(page).ok_or(Errno::NOMEM)?;
        match self.nic(index)? {
            Nic::Own(own, number, _) => {
                own.background.map_given(number, page, words);
            }
            Nic::Lent(nic) => nic.map(page, words),
        }
        Ok(())
    }

    /// Takes it back.
    pub(crate) fn unmap_doorbells(&self, index: usize, page: u32) {
        match self.nic(index) {
            Ok(Nic::Own(own, number, _)) => own.background.unmap(number, page),
            Ok(Nic::Lent(nic)) => nic.unmap(page),
            Err(_) => {}
        }
    }

    /// A program has mapped a doorbell page at an address.
    pub(crate) fn mapped_at(&self, index: usize, page: u32, addr: u64) {
        if let Ok(Nic::Lent(nic)) = self.nic(index) {
            nic.mapped_at(page, addr);
        }
    }

    /// The file of the doorbell pages; page `p` lies at byte `p * 4096`.
    pub(crate) fn doorbells(&self, index: usize) -> Result<i32> {
        Ok(self.slots.get(index).ok_or(Errno::INVAL)?.pages.fd())
    }

    /// Says what was found, and removes what the process leaves in file systems.
    pub(crate) fn leave(&self) {
        self.report();
        for socket in self
            .own
            .get()
            .into_iter()
            .flatten()
            .flat_map(|own| &own.sockets)
        {
            let _ = std::fs::remove_file(socket);
        }
    }
}
