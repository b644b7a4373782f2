//! The NICs of this process, and everything that programs have opened on them.
//!
//! Knows: which configuration the environment asks for, when the NICs are made, who holds what lock.
//! Must not know: commands.
//!
//! Lock order: [`State`], then the bus, then a NIC. The NICs' thread takes the state only while it holds neither.

use std::collections::{BTreeMap, HashMap};
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use warpverbs_sim_bus::Bus;
use warpverbs_sim_nic::{About, Background, HostCall, LinkLayer, NicConfig, NicModel};

use warpverbs_wire::prm::{Command, alloc_q_counter, query_q_counter as q_counters};

use crate::context::Context;
use crate::errno::{Errno, Result};
use crate::events::{Channel, Owner, Subscription};
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
    pub(crate) bus: Arc<Bus>,
    nics: Vec<Slot>,
    background: Background,
    pub(crate) doorbells: Doorbells,
    state: Mutex<State>,
    /// What files of sysfs say of each port's counters.
    counters_shown: Mutex<Vec<q_counters::Out>>,
    /// Files to be removed at the end.
    sockets: Vec<PathBuf>,
}

struct Slot {
    model: Arc<Mutex<NicModel>>,
    pages: SharedPages,
    /// The port's counter set, to which QPs of verbs are attached.
    counters: u8,
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
    _call: HostCall<'a>,
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

/// The world of this process, made at the first call. EIO if it cannot be made; why is said on standard error.
pub(crate) fn current() -> Result<&'static World> {
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(world) = existing() {
        return Ok(world);
    }
    match World::new() {
        Ok(world) => {
            let world = Box::leak(Box::new(world));
            CURRENT.store(world, Ordering::Release);
            crate::counters::keep_fresh();
            Ok(world)
        }
        Err(why) => {
            eprintln!("libwarpverbs_sim: no simulated NIC: {why}");
            Err(Errno(libc::EIO))
        }
    }
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

impl World {
    fn new() -> std::result::Result<Self, String> {
        let bus = Bus::new(Box::new(NoMemory));
        let folder = std::env::var_os(WIRE).map(PathBuf::from);
        let link_layer = match std::env::var(LINK).as_deref() {
            Err(_) | Ok("ethernet") => LinkLayer::Ethernet,
            Ok("infiniband") => LinkLayer::InfiniBand,
            Ok(other) => return Err(format!("{LINK} is {other}, not ethernet or infiniband")),
        };
        let doorbells = Doorbells::wanted()?;
        let mut nics = Vec::new();
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
            let counters = port_counters(&mut model)?;
            let model = Arc::new(Mutex::new(model));
            numbered.push((bus.attach(model.clone()), model.clone()));
            let pages = SharedPages::new(c"warpverbs doorbells", BAR)
                .map_err(|error| format!("no memory for doorbell pages (error {})", error.0))?;
            nics.push(Slot {
                model,
                pages,
                counters,
            });
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
            process: sys::process(),
            bus,
            nics,
            background,
            doorbells,
            state: Mutex::default(),
            counters_shown: Mutex::new(vec![q_counters::Out::default(); wanted_nics()]),
            sockets,
        })
    }

    /// The counter set of a NIC's port.
    pub(crate) fn port_counters(&self, index: usize) -> Result<u8> {
        Ok(self.nics.get(index).ok_or(Errno::INVAL)?.counters)
    }

    /// What files say of counters; whoever writes files holds it.
    pub(crate) fn counters_shown(&self) -> MutexGuard<'_, Vec<q_counters::Out>> {
        self.counters_shown
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// How many NICs there are.
    pub(crate) fn nics(&self) -> usize {
        self.nics.len()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks NIC number `index`.
    pub(crate) fn nic(&self, index: usize) -> Result<Locked<'_>> {
        let slot = self.nics.get(index).ok_or(Errno::INVAL)?;
        let call = self.background.call();
        Ok(Locked {
            model: self.background.lock(index, &slot.model, About::Everything),
            _call: call,
        })
    }

    /// Gives a doorbell page its memory, where it has some.
    pub(crate) fn map_doorbells(&self, index: usize, page: u32) -> Result<()> {
        if self.doorbells == Doorbells::Conformance {
            return Ok(());
        }
        let slot = self.nics.get(index).ok_or(Errno::INVAL)?;
        let words = slot.pages.page(page).ok_or(Errno::NOMEM)?;
        self.background.map_given(index, page, words);
        Ok(())
    }

    /// Takes it back.
    pub(crate) fn unmap_doorbells(&self, index: usize, page: u32) {
        self.background.unmap(index, page);
    }

    /// The file of the doorbell pages; page `p` lies at byte `p * 4096`.
    pub(crate) fn doorbells(&self, index: usize) -> Result<i32> {
        Ok(self.nics.get(index).ok_or(Errno::INVAL)?.pages.fd())
    }

    /// Tells a NIC of a store to a doorbell page; false if there is no room now. A signal handler may call it.
    #[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
    pub(crate) fn store(&self, nic: usize, page: u32, offset: u16, bytes: &[u8]) -> bool {
        // To a NIC that is not there: nobody waits for that.
        nic >= self.nics.len() || self.background.store(nic, page, offset, bytes)
    }

    /// Takes what the NICs have found wrong.
    pub(crate) fn take_findings(&self) -> Vec<String> {
        let mut all = Vec::new();
        for (index, _) in self.nics.iter().enumerate() {
            let Ok(mut nic) = self.nic(index) else {
                continue;
            };
            let name = crate::sysfs::device_name(index);
            let findings = nic.take_findings();
            all.extend(findings.iter().map(|finding| format!("{name}: {finding}")));
        }
        all
    }

    /// How many findings of a kind there were.
    pub(crate) fn findings_of(&self, kind: &str) -> u64 {
        let of = |index| {
            let nic = self.nic(index).ok()?;
            nic.findings_by_kind().get(kind).copied()
        };
        (0..self.nics.len()).filter_map(of).sum()
    }

    /// Says what the NICs have found wrong and nobody has taken. The process ends: whoever holds a NIC may never let go, so
    /// nobody waits for long.
    fn report(&self) {
        for (index, slot) in self.nics.iter().enumerate() {
            let name = crate::sysfs::device_name(index);
            let _call = self.background.call();
            let held = (0..100).find_map(|_| {
                let held = self.background.try_lock(index, &slot.model);
                if held.is_none() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                held
            });
            let Some(mut nic) = held else {
                eprintln!("libwarpverbs_sim: {name} is busy: what it found is not known");
                continue;
            };
            if self.doorbells == Doorbells::Conformance {
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

    /// Says what was found, and removes what the process leaves in file systems.
    pub(crate) fn leave(&self) {
        self.report();
        for socket in &self.sockets {
            let _ = std::fs::remove_file(socket);
        }
    }
}
