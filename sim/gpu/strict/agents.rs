//! Agents: who they are, what they know, and what their fences do.
//!
//! Knows: threads with their blocks, queues of devices, the host; releases and acquires by scope.
//! Must not know: memory locations.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use warpverbs_sim_bus::{Actor, Agent, Event, FenceKind, Scope};

use super::clocks::{Carried, Clock, DISTANCES, Known, OWN_SLOTS, Snapshot};

/// Clocks that a thread has read and not acquired, beyond which they are joined.
const PENDING: usize = 16;

/// Where an agent is: scopes are distances between places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A block of threads, by a number of its own.
    Block(u32),
    Device,
    Host,
}

impl Place {
    pub(super) fn block(self) -> Option<u32> {
        match self {
            Self::Block(number) => Some(number),
            Self::Device | Self::Host => None,
        }
    }
}

/// A scope as the greatest distance that it includes. No launch has clusters, so a cluster is a block (PTX ISA,
/// "Cluster of Cooperative Thread Arrays").
pub(super) fn reach(scope: Scope) -> usize {
    match scope {
        Scope::Cta | Scope::Cluster => 0,
        Scope::Gpu => 1,
        Scope::Sys => 2,
    }
}

/// Where a device writes: two ways into the system that do not order each other's writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    GpuMemory,
    HostMemory,
}

/// What a device's queue writes, and what it releases by that, on each path.
#[derive(Debug)]
struct Paths {
    /// Epochs of the writes on each path. They count to the two slots behind the queue's.
    epochs: [u32; 2],
    /// Writes that happen before a write on the path, for whoever reads that, and not before one on the other: those of
    /// peers, and, where a read has pushed them, the queue's own.
    before: [Clock; 2],
}

impl Path {
    /// How far behind the queue's slot that of its writes is.
    fn offset(self) -> u32 {
        1 + self as u32
    }
}

/// An agent.
#[derive(Debug)]
pub(super) struct AgentState {
    pub(super) slot: u32,
    pub(super) place: Place,
    /// Of what it does now.
    epoch: u32,
    /// What it knows of others.
    clock: Clock,
    /// What relaxed loads have read and a later fence acquires, by distance of the writer.
    pending: [Vec<Arc<Snapshot>>; DISTANCES],
    /// What fences have released and later strong stores carry, by distance of the reader.
    fences: Carried,
    /// The clock that its launch began with.
    pub(super) began: Option<Clock>,
    launch: u64,
    paths: Option<Paths>,
    /// The clock that the last doorbell carried.
    pub(super) doorbell: Option<Arc<Snapshot>>,
}

impl AgentState {
    fn new(slot: u32, place: Place, clock: Clock, epoch: u32) -> Self {
        Self {
            slot,
            place,
            epoch,
            clock,
            pending: Default::default(),
            fences: Default::default(),
            began: None,
            launch: 0,
            paths: None,
            doorbell: None,
        }
    }

    /// The epoch of what it does now.
    pub(super) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// What it knows.
    #[inline]
    pub(super) fn known(&self) -> Known<'_> {
        match &self.paths {
            Some(paths) => Known::of_queue(&self.clock, &paths.before, self.slot),
            None => Known::of(&self.clock, self.slot),
        }
    }

    /// What it knows of others.
    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// What it knows, as a clock: its own epoch included.
    fn whole(&self) -> Clock {
        let mut clock = self.clock.clone();
        clock.raise(self.slot, self.epoch);
        clock
    }

    /// Ends the epoch and gives what is known at its end.
    pub(super) fn release(&mut self) -> Arc<Snapshot> {
        let of = (self.slot, self.epoch);
        self.epoch += 1;
        Arc::new(Snapshot::new(self.clock.clone(), &[of], Some(of)))
    }

    /// What a strong store carries: the fences before it (PTX ISA, "Release and Acquire Patterns": a fence followed by a
    /// strong write), and, if it releases itself, all before it.
    pub(super) fn releases(&mut self, releasing: Option<usize>) -> Carried {
        let Some(reach) = releasing else {
            return self.fences.clone();
        };
        let now = self.release();
        self.fences.with(now, reach)
    }

    /// What an MMIO store carries to the device.
    pub(super) fn fenced(&self, distance: usize) -> Option<Arc<Snapshot>> {
        self.fences.to(distance).cloned()
    }

    /// A strong load has read what a writer at `distance` released to it. A later fence acquires it, or the load itself.
    pub(super) fn observe(&mut self, snapshot: &Arc<Snapshot>, distance: usize, acquires: bool) {
        if snapshot.is_known_to(self.known()) {
            return;
        }
        if acquires {
            self.learn(snapshot);
            return;
        }
        let Some(pending) = self.pending.get_mut(distance) else {
            return;
        };
        if pending
            .last()
            .is_some_and(|last| Arc::ptr_eq(last, snapshot))
        {
            return;
        }
        pending.push(snapshot.clone());
        if pending.len() > PENDING {
            let joined = Snapshot::join_of(pending.iter());
            pending.clear();
            pending.push(joined);
        }
    }

    /// Acquires a snapshot.
    fn learn(&mut self, snapshot: &Snapshot) {
        snapshot.join_into(&mut self.clock);
    }

    fn acquire_pending(&mut self, reach: usize) {
        for pending in self.pending.iter_mut().take(reach + 1) {
            for snapshot in pending.drain(..) {
                snapshot.join_into(&mut self.clock);
            }
        }
    }
}

/// A running or finished stretch of a slot's life.
#[derive(Clone, Copy, Debug)]
struct Life {
    from: u32,
    actor: Actor,
}

struct Launch {
    clock: Clock,
    end: Clock,
    blocks: HashMap<u64, u32>,
}

/// All agents.
pub(super) struct Agents {
    states: Vec<Option<AgentState>>,
    lives: Vec<Vec<Life>>,
    /// Slots whose thread has ended, with their last epoch.
    free: Vec<(u32, u32)>,
    threads: Vec<u32>,
    contexts: HashMap<(u16, u32), u32>,
    launches: BTreeMap<u64, Launch>,
    streams: BTreeMap<u64, Clock>,
    /// What has arrived at a barrier without waiting.
    arrived: BTreeMap<u64, Clock>,
    /// What `fence.sc` of each block, of the GPU and of the system have in common.
    sc_blocks: HashMap<u32, Clock>,
    sc: [Clock; DISTANCES],
    blocks: u32,
    /// How far a device is from a GPU thread.
    device_distance: usize,
}

const HOST: u32 = 0;
const NO_SLOT: u32 = u32::MAX;

impl Agents {
    pub(super) fn new(device_distance: usize) -> Self {
        let mut agents = Self {
            states: Vec::new(),
            lives: Vec::new(),
            free: Vec::new(),
            threads: Vec::new(),
            contexts: HashMap::new(),
            launches: BTreeMap::new(),
            streams: BTreeMap::new(),
            arrived: BTreeMap::new(),
            sc_blocks: HashMap::new(),
            sc: Default::default(),
            blocks: 0,
            device_distance,
        };
        let slot = agents.new_slot(Actor::Host, 1);
        agents.put(AgentState::new(slot, Place::Host, Clock::default(), 1));
        agents
    }

    fn new_slot(&mut self, actor: Actor, from: u32) -> u32 {
        self.states.push(None);
        self.lives.push(vec![Life { from, actor }]);
        self.states.len() as u32 - 1
    }

    fn put(&mut self, state: AgentState) {
        let at = state.slot as usize;
        if let Some(place) = self.states.get_mut(at) {
            *place = Some(state);
        }
    }

    pub(super) fn get(&self, slot: u32) -> Option<&AgentState> {
        self.states.get(slot as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut AgentState> {
        self.states.get_mut(slot as usize)?.as_mut()
    }

    /// The slot of an agent; `site` names a device's queue. An agent that was never announced begins now and knows nothing.
    pub(super) fn slot(&mut self, agent: Agent, site: u32) -> u32 {
        match agent {
            Agent::Host => HOST,
            Agent::Thread(thread) => match self.threads.get(thread as usize) {
                Some(slot) if *slot != NO_SLOT => *slot,
                _ => {
                    self.start_thread(thread, 0, u64::from(thread), 0);
                    self.threads.get(thread as usize).copied().unwrap_or(HOST)
                }
            },
            Agent::Device(device) => match self.contexts.get(&(device, site)) {
                Some(slot) => *slot,
                None => self.start_context(device, site),
            },
        }
    }

    fn start_context(&mut self, device: u16, context: u32) -> u32 {
        let actor = Actor::Device { device, context };
        let slots = [(); OWN_SLOTS].map(|()| self.new_slot(actor, 1));
        let [slot, ..] = slots;
        let mut state = AgentState::new(slot, Place::Device, Clock::default(), 1);
        state.paths = Some(Paths {
            epochs: [1, 1],
            before: Default::default(),
        });
        self.put(state);
        self.contexts.insert((device, context), slot);
        slot
    }

    fn start_thread(&mut self, thread: u32, launch: u64, block: u64, index: u32) {
        let (clock, place) = match self.launches.get_mut(&launch) {
            Some(running) => {
                let blocks = &mut self.blocks;
                let number = *running.blocks.entry(block).or_insert_with(|| {
                    *blocks += 1;
                    *blocks
                });
                (running.clock.clone(), Place::Block(number))
            }
            None => {
                self.blocks += 1;
                (Clock::default(), Place::Block(self.blocks))
            }
        };
        let actor = Actor::Thread {
            launch,
            block,
            index,
        };
        // A slot serves a second thread only if all that the first did happens before that: its epochs go on.
        let reuse = self
            .free
            .iter()
            .position(|(slot, last)| clock.covers(*slot, *last));
        let (slot, epoch) = match reuse.map(|at| self.free.swap_remove(at)) {
            Some((slot, last)) => {
                if let Some(lives) = self.lives.get_mut(slot as usize) {
                    lives.push(Life {
                        from: last + 1,
                        actor,
                    });
                }
                (slot, last + 1)
            }
            None => (self.new_slot(actor, 1), 1),
        };
        let mut state = AgentState::new(slot, place, clock.clone(), epoch);
        state.began = Some(clock);
        state.launch = launch;
        self.put(state);
        let at = thread as usize;
        if at >= self.threads.len() {
            self.threads.resize(at + 1, NO_SLOT);
        }
        if let Some(entry) = self.threads.get_mut(at) {
            *entry = slot;
        }
    }

    fn end_thread(&mut self, thread: u32) {
        let Some(entry) = self.threads.get_mut(thread as usize) else {
            return;
        };
        let slot = std::mem::replace(entry, NO_SLOT);
        let Some(state) = self.states.get_mut(slot as usize).and_then(Option::take) else {
            return;
        };
        self.free.push((slot, state.epoch()));
        if let Some(launch) = self.launches.get_mut(&state.launch) {
            launch.end.join(&state.whole());
        }
    }

    fn slot_of_thread(&self, thread: u32) -> Option<u32> {
        self.threads
            .get(thread as usize)
            .copied()
            .filter(|slot| *slot != NO_SLOT)
    }

    /// The agent of a slot in an epoch.
    pub(super) fn actor(&self, slot: u32, epoch: u32) -> Actor {
        let lives = self.lives.get(slot as usize);
        let life = lives.and_then(|lives| lives.iter().rev().find(|life| life.from <= epoch));
        life.map_or(Actor::Host, |life| life.actor)
    }

    /// True while the thread that had the slot in that epoch runs.
    pub(super) fn runs(&self, slot: u32, epoch: u32) -> bool {
        let from = self
            .lives
            .get(slot as usize)
            .and_then(|lives| lives.last())
            .map_or(0, |life| life.from);
        epoch >= from && self.get(slot).is_some()
    }

    /// The least scope, as a distance, that includes both.
    pub(super) fn distance(&self, a: Place, b: Place) -> usize {
        match (a, b) {
            (Place::Block(a), Place::Block(b)) => usize::from(a != b),
            (Place::Block(_), Place::Device) | (Place::Device, Place::Block(_)) => {
                self.device_distance
            }
            _ => 2,
        }
    }

    /// Takes notice of an event. True if all that was stored is now visible to everyone.
    pub(super) fn event(&mut self, event: Event<'_>) -> bool {
        match event {
            Event::Launch { launch } => {
                // CUDA C++ Programming Guide, "Streams": a launch sees what the launching thread did before.
                let clock = match self.get_mut(HOST) {
                    Some(host) => host.release().to_clock(),
                    None => Clock::default(),
                };
                self.launches.insert(
                    launch,
                    Launch {
                        clock,
                        end: Clock::default(),
                        blocks: HashMap::new(),
                    },
                );
            }
            Event::KernelStart { launch, stream } => {
                if let (Some(launch), Some(before)) =
                    (self.launches.get_mut(&launch), self.streams.get(&stream))
                {
                    launch.clock.join(before);
                }
            }
            Event::ThreadStart {
                thread,
                launch,
                block,
                index,
            } => self.start_thread(thread, launch, block, index),
            Event::ThreadEnd { thread } => self.end_thread(thread),
            Event::KernelEnd { launch, stream } => {
                if let Some(launch) = self.launches.remove(&launch) {
                    self.streams.entry(stream).or_default().join(&launch.end);
                    for block in launch.blocks.values() {
                        self.sc_blocks.remove(block);
                    }
                }
                return true;
            }
            Event::ContextDead => {
                for thread in 0..self.threads.len() as u32 {
                    self.end_thread(thread);
                }
                self.launches.clear();
                return true;
            }
            // The device takes it from memory, behind all that the host has stored: assumed, as of a copy.
            Event::Command => return true,
            Event::HostSync { stream } => {
                let clock = self.streams.get(&stream).cloned().unwrap_or_default();
                if let Some(host) = self.get_mut(HOST) {
                    host.clock.join(&clock);
                }
            }
            Event::Arrive { thread, barrier } => {
                if let Some(slot) = self.slot_of_thread(thread)
                    && let Some(state) = self.get_mut(slot)
                {
                    let clock = state.release().to_clock();
                    self.arrived.entry(barrier).or_default().join(&clock);
                }
            }
            Event::Meet { threads, barrier } => self.meet(threads, barrier),
        }
        false
    }

    /// PTX ISA, "Synchronizing Operations": a barrier orders all before it, of those who arrive, before all after it, of
    /// those who wait.
    fn meet(&mut self, threads: &[u32], barrier: Option<u64>) {
        let mut clock = barrier
            .and_then(|barrier| self.arrived.remove(&barrier))
            .unwrap_or_default();
        let slots: Vec<u32> = threads
            .iter()
            .filter_map(|t| self.slot_of_thread(*t))
            .collect();
        for slot in &slots {
            if let Some(state) = self.get(*slot) {
                clock.join(&state.clock);
                clock.raise(*slot, state.epoch);
            }
        }
        for slot in slots {
            if let Some(state) = self.get_mut(slot) {
                state.clock.join(&clock);
                state.epoch += 1;
            }
        }
    }

    /// A fence.
    pub(super) fn fence(&mut self, slot: u32, kind: FenceKind, scope: Scope) {
        let reach = reach(scope);
        let Some(mut state) = self.states.get_mut(slot as usize).and_then(Option::take) else {
            return;
        };
        if kind != FenceKind::Release {
            // PTX ISA, "Release and Acquire Patterns": a strong read followed by a fence acquires.
            state.acquire_pending(reach);
        }
        if kind == FenceKind::Sc {
            // PTX ISA, "Fence-SC": morally strong `fence.sc` are in one order, and synchronise along it.
            for level in 0..=reach {
                let pool = match (level, state.place) {
                    (0, Place::Block(block)) => self.sc_blocks.entry(block).or_default(),
                    _ => match self.sc.get_mut(level) {
                        Some(pool) => pool,
                        None => continue,
                    },
                };
                state.clock.join(pool);
            }
            for level in 0..=reach {
                let pool = match (level, state.place) {
                    (0, Place::Block(block)) => self.sc_blocks.entry(block).or_default(),
                    _ => match self.sc.get_mut(level) {
                        Some(pool) => pool,
                        None => continue,
                    },
                };
                pool.join(&state.clock);
                pool.raise(slot, state.epoch);
            }
        }
        if kind != FenceKind::Acquire {
            let snapshot = state.release();
            state.fences = state.fences.with(snapshot, reach);
        } else {
            // The epoch ends all the same: what the pool of `fence.sc` holds must not cover what follows.
            state.epoch += 1;
        }
        self.put(state);
    }

    /// The slot and epoch that a device's write on a path counts to, and what it carries: all that its queue has seen,
    /// read and written before, but for writes on the other path, unless something pushed them. PCIe Base Specification,
    /// "Transaction Ordering": posted writes do not pass each other; that this holds along one path only, and that a
    /// relaxed-ordering write carries nothing, is assumed.
    pub(super) fn device_write(
        &mut self,
        slot: u32,
        path: Path,
        relaxed: bool,
    ) -> (u32, u32, Option<Arc<Snapshot>>) {
        let Some(state) = self.get_mut(slot) else {
            return (slot, 0, None);
        };
        let (slot, reads) = (state.slot, state.epoch);
        let Some(paths) = &mut state.paths else {
            return (slot, reads, Some(state.release()));
        };
        let own = slot + path.offset();
        let at = path as usize;
        let (Some(entry), Some(before)) = (paths.epochs.get_mut(at), paths.before.get(at)) else {
            return (slot, reads, None);
        };
        let epoch = *entry;
        if relaxed {
            return (own, epoch, None);
        }
        *entry += 1;
        state.epoch += 1;
        // What this queue read before, and wrote on the path before.
        let later = [(slot, reads), (own, epoch)];
        let snapshot = Snapshot::new(state.clock.clone(), &later, Some((own, epoch)));
        (own, epoch, Some(Arc::new(snapshot.and(before.clone()))))
    }

    /// A device's queue reads data: the read pushes its writes on that path before it.
    pub(super) fn device_reads(&mut self, slot: u32, path: Path) {
        if let Some(state) = self.get_mut(slot)
            && let Some(paths) = &mut state.paths
        {
            let [gpu, host] = &mut paths.before;
            let (pushed, other) = match path {
                Path::GpuMemory => (gpu, host),
                Path::HostMemory => (host, gpu),
            };
            other.join(pushed);
            let epoch = paths.epochs.get(path as usize).copied().unwrap_or(0);
            other.raise(slot + path.offset(), epoch);
        }
    }

    /// A queue has heard from its peer: what the peer did happens before what it does now. The peer's clock is taken as it
    /// is now, not as it was when the peer sent; what the peer did since is little.
    pub(super) fn follow(&mut self, queue: (u16, u32), peer: (u16, u32)) {
        let Some(peer) = self.contexts.get(&peer).copied() else {
            return;
        };
        let slot = self.slot(Agent::Device(queue.0), queue.1);
        if peer == slot {
            return;
        }
        let Some(state) = self.get_mut(peer) else {
            return;
        };
        let Some(paths) = &mut state.paths else {
            return;
        };
        let (known, epoch) = (state.clock.clone(), state.epoch);
        let (before, epochs) = (paths.before.clone(), paths.epochs);
        // Its epochs end here, so that nothing that it does later is covered.
        state.epoch += 1;
        for epoch in &mut paths.epochs {
            *epoch += 1;
        }
        let Some(state) = self.get_mut(slot) else {
            return;
        };
        state.clock.join(&known);
        state.clock.raise(peer, epoch);
        let Some(paths) = &mut state.paths else {
            return;
        };
        for path in [Path::GpuMemory, Path::HostMemory] {
            let at = path as usize;
            let theirs = (before.get(at), epochs.get(at));
            if let (Some(own), (Some(before), Some(epoch))) = (paths.before.get_mut(at), theirs) {
                own.join(before);
                own.raise(peer + path.offset(), *epoch);
            }
        }
    }

    /// A doorbell arrives at a device's queue.
    pub(super) fn doorbell(&mut self, slot: u32, carried: Option<Arc<Snapshot>>) {
        if let Some(state) = self.get_mut(slot) {
            if let Some(carried) = &carried {
                state.learn(carried);
            }
            state.doorbell = carried;
        }
    }
}
