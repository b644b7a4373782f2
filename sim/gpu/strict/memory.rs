//! Accesses: loads, stores, atomics, fences, DMA.
//!
//! Knows: the order of checks, choice of value, and bookkeeping of each.
//! Must not know: who runs next.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use warpverbs_sim_bus::{
    Access, Agent, Event, Fault, FenceKind, Memory, MemoryFinding, Order, Party, Posted, Purpose,
    RmwOp, Rng, Scope, Script, Space,
};

use super::agents::{Agents, Place, reach};
use super::clocks::{Carried, Clock, DISTANCES, Known, Snapshot};
use super::doorbells::Doorbells;
use super::judge::{certain, choose, judge_read, judge_write};
use super::message::{Message, Side, Strength, bits};
use super::race::{Conflict, Findings};
use super::table::{CELL, Table};
use super::written::WrittenBytes;
use crate::memory::FastMemory;

/// Accesses of all agents after which a store is visible to everyone: hardware has no bound, but a wait must end.
const HORIZON: u64 = 1 << 14;
/// A device at `.sys` scope is two scopes away from a thread, at `.gpu` scope one.
const SYSTEM: usize = 2;
const GPU: usize = 1;

/// Memory with the PTX memory model.
pub struct StrictMemory {
    /// Bounds and liveness, and the newest value of each byte.
    pub(super) flat: FastMemory,
    pub(super) table: Table,
    pub(super) written: WrittenBytes,
    pub(super) agents: Agents,
    doorbells: Doorbells,
    /// Who made the doorbell that arrived last, by device and queue.
    rung: HashMap<(u16, u32), Party>,
    /// By thread: the last completion that it has loaded and that it knew nothing of, with what that carried.
    learned: BTreeMap<u32, (Party, Arc<Snapshot>)>,
    pub(super) findings: Findings,
    rng: Rng,
    /// Accesses so far.
    pub(super) now: u64,
    /// Cells with more than one message, and when the newest was made: old ones are forgotten once nobody can read them.
    aging: VecDeque<(u64, u64)>,
    /// Accesses up to here are visible to everyone.
    all_visible: u64,
}

/// Bytes of one cell.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) cell: u64,
    pub(super) mask: u8,
}

impl Part {
    /// A scalar, which lies in one cell as it is aligned.
    fn scalar(addr: u64, size: u32) -> Self {
        let ones = ((1u16 << size.min(8)) - 1) as u8;
        Self {
            cell: addr / CELL * CELL,
            mask: ones << (addr % CELL),
        }
    }

    /// All of a cell.
    pub(super) fn whole(cell: u64) -> Self {
        Self { cell, mask: 0xff }
    }

    fn shift(addr: u64) -> u32 {
        (addr % CELL) as u32 * 8
    }

    pub(super) fn first(self) -> u64 {
        self.cell + u64::from(self.mask.trailing_zeros())
    }
}

impl StrictMemory {
    /// Empty memory, whose devices are observers at system scope; `at_gpu_scope`: at GPU scope.
    pub fn new(seed: u64, at_gpu_scope: bool) -> Self {
        Self::scripted(seed, None, at_gpu_scope)
    }

    /// The same; a script, if given, chooses what loads return.
    pub(crate) fn scripted(seed: u64, script: Option<Script>, at_gpu_scope: bool) -> Self {
        Self {
            flat: FastMemory::new(),
            table: Table::default(),
            written: WrittenBytes::default(),
            agents: Agents::new(if at_gpu_scope { GPU } else { SYSTEM }),
            doorbells: Doorbells::default(),
            rung: HashMap::new(),
            learned: BTreeMap::new(),
            findings: Findings::default(),
            // A sequence of its own, so that the scheduler's choices do not depend on those made here.
            rng: Rng::scripted(seed ^ 0x7374_7269_6374_6d65, script),
            now: 0,
            aging: VecDeque::new(),
            all_visible: 0,
        }
    }

    fn visible(&self) -> u64 {
        self.all_visible.max(self.now.saturating_sub(HORIZON))
    }

    pub(super) fn side(&mut self, access: &Access, mask: u8, writes: bool) -> Side {
        let slot = self.agents.slot(access.agent, access.site);
        let is_device = matches!(access.agent, Agent::Device(_));
        let strength = match access.purpose {
            // What a device fetches must be there for certain: no value of it is right by luck.
            Purpose::Wqe | Purpose::Payload if is_device && !writes => Strength::WEAK,
            _ if is_device => Strength::SYSTEM,
            _ => Strength::of(access),
        };
        let state = self.agents.get(slot);
        Side {
            slot,
            epoch: state.map_or(0, |s| s.epoch()),
            place: state.map_or(Place::Host, |s| s.place),
            strength,
            mask,
            wide: is_device,
            purpose: access.purpose,
            site: access.site,
            writes,
            non_coherent: access.order == Order::NonCoherent,
        }
    }

    /// Adds what was found at an access.
    pub(super) fn report(&mut self, found: Vec<Conflict>) {
        for conflict in found {
            // The host knows of data by a completion that some thread has loaded.
            let learned = (conflict.later.place == Place::Host)
                .then(|| self.learned_of(&conflict.earlier))
                .flatten();
            self.findings
                .add(&conflict, learned, &self.agents, &self.flat);
        }
    }

    /// The load by which a thread learned of a device's write without acquiring it.
    fn learned_of(&self, write: &Side) -> Option<Party> {
        self.learned
            .values()
            .rev()
            .find(|(_, carried)| write.is_before(Known::only(&carried.to_clock())))
            .map(|(party, _)| *party)
    }

    /// Reads bytes of a cell, which lie in a live object.
    pub(super) fn read_part(&mut self, access: &Access, side: Side, part: Part) -> u64 {
        self.now += 1;
        let visible = self.visible();
        let flat = &mut self.flat;
        let Some(cell) = self.table.cell_or_new(part.cell, |at| flat.word(at)) else {
            return flat.word(part.cell);
        };
        let Some(agent) = self.agents.get(side.slot) else {
            return flat.word(part.cell);
        };
        if access.purpose == Purpose::DbrAtDoorbell {
            return match agent.doorbell.as_ref() {
                _ if cell.messages.is_empty() => flat.word(part.cell),
                Some(carried) => certain(cell, &carried.to_clock(), part.mask),
                None => certain(cell, &Clock::default(), part.mask),
            };
        }
        if cell.messages.is_empty() {
            cell.note_read(side);
            return flat.word(part.cell);
        }
        let mut found = Vec::new();
        judge_read(cell, &side, agent, &self.agents, part, &mut found);
        let floor = cell.floor(agent.known(), part.mask, visible);
        let cut = choose(cell, floor, part.mask, &mut self.rng, |_| true);
        let (value, sources) = cell.value_at(cut, part.mask);
        let acquires = match access.order {
            Order::Acquire | Order::AcqRel => Some(reach(access.scope)),
            // A device acts on what it reads: its queue is one sequence.
            _ if access.purpose == Purpose::Dbr => Some(DISTANCES - 1),
            _ => None,
        };
        let mut observed = [const { None }; 8];
        let mut in_block = None;
        for (index, entry) in sources.iter().zip(&mut observed) {
            if let Some(message) = cell.messages.get_mut(index) {
                // Who learns of this reader learns of a write that it knew already.
                if !message.side.is_before(agent.known()) {
                    message.note_reader(side.slot, side.epoch);
                }
                if side.weakness(&message.side, &self.agents).is_none() {
                    let distance = self.agents.distance(side.place, message.side.place);
                    *entry = message.releases.to(distance).map(|r| (r.clone(), distance));
                    in_block = in_block.or(message.releases.to_block(side.place.block()).cloned());
                }
                if let Some((carried, _)) = entry
                    && message.side.purpose == Purpose::Cqe
                    && !message.side.is_before(agent.known())
                {
                    self.learned
                        .insert(side.slot, (side.party(&self.agents), carried.clone()));
                }
            }
        }
        cell.note_read(side);
        if observed.first().is_some_and(Option::is_some) || sources.single().is_none() {
            self.observe(side.slot, observed.iter().flatten(), acquires);
        }
        if let Some(snapshot) = in_block {
            self.observe(side.slot, [(snapshot, 0)].iter(), acquires);
        }
        self.report(found);
        value
    }

    fn observe<'a>(
        &mut self,
        slot: u32,
        observed: impl Iterator<Item = &'a (Arc<Snapshot>, usize)>,
        acquires: Option<usize>,
    ) {
        if let Some(agent) = self.agents.get_mut(slot) {
            for (snapshot, distance) in observed {
                let acquired = acquires.is_some_and(|reach| reach >= *distance);
                agent.observe(snapshot, *distance, acquired);
            }
        }
    }

    /// Writes bytes of a cell, which lie in a live object. The write may count to another slot than its judgement: that of
    /// a device's path.
    pub(super) fn write_part(
        &mut self,
        side: Side,
        counts_to: (u32, u32),
        part: Part,
        value: u64,
        releases: Carried,
    ) {
        self.now += 1;
        let visible = self.visible();
        let flat = &mut self.flat;
        let Some(cell) = self.table.cell_or_new(part.cell, |at| flat.word(at)) else {
            return;
        };
        let Some(agent) = self.agents.get(side.slot) else {
            return;
        };
        let mut found = Vec::new();
        judge_write(cell, &side, agent, &self.agents, part, &mut found);
        cell.begin(|| flat.word(part.cell));
        // PTX ISA, "Coherence": behind every write that happens before it, and behind what was read before it. A device's
        // write is the newest: devices see each other's order.
        let behind = if side.wide {
            cell.messages.len() - 1
        } else {
            let floor = cell.floor(agent.known(), part.mask, visible);
            choose(cell, floor, part.mask, &mut self.rng, |next| !next.atomic)
        };
        let (slot, epoch) = counts_to;
        let counted = Side {
            slot,
            epoch,
            ..side
        };
        let message = Message::new(counted, self.now, value, releases, false);
        cell.insert_behind(behind, message, visible);
        cell.settle_reads(agent.known(), part.mask);
        flat.put_word(part.cell, cell.latest(), part.mask);
        let ages = cell.messages.len() > 1;
        self.age(ages.then_some(part.cell));
        self.report(found);
    }

    /// A cell that was just written will have to forget something; others have to now.
    fn age(&mut self, cell: Option<u64>) {
        self.aging.extend(cell.map(|cell| (self.now, cell)));
        let visible = self.visible();
        while let Some((_, cell)) = self.aging.front().copied().filter(|(at, _)| *at <= visible) {
            self.aging.pop_front();
            if let Some(cell) = self.table.own_cell(cell) {
                cell.forget(visible);
            }
        }
    }

    pub(super) fn note_written(&mut self, addr: u64, len: u64) {
        self.written.note(addr, len);
    }

    /// Reads and perhaps writes a cell as one (PTX ISA, "Atomicity").
    fn atomic_part(
        &mut self,
        access: &Access,
        addr: u64,
        part: Part,
        op: (RmwOp, u32, u64, u64),
    ) -> u64 {
        self.now += 1;
        let (op, size, a, b) = op;
        let mut side = self.side(access, part.mask, true);
        let visible = self.visible();
        let flat = &mut self.flat;
        let shift = Part::shift(addr);
        let (Some(cell), Some(agent)) = (
            self.table.cell_or_new(part.cell, |at| flat.word(at)),
            self.agents.get(side.slot),
        ) else {
            return 0;
        };
        cell.begin(|| flat.word(part.cell));
        let floor = cell.floor(agent.known(), part.mask, visible);
        let last = cell.messages.len() - 1;
        let mixed = cell
            .messages
            .iter()
            .any(|m| m.live & part.mask != 0 && m.live & part.mask != part.mask);
        let cut = if mixed {
            last
        } else {
            choose(cell, floor, part.mask, &mut self.rng, |next| !next.atomic)
        };
        let (word, sources) = cell.value_at(cut, part.mask);
        let old = word >> shift;
        // A compare-and-swap that fails writes nothing.
        let writes = op != RmwOp::Cas || old == a & bits(((1u16 << size) - 1) as u8);
        side.writes = writes;
        let mut found = Vec::new();
        if writes {
            judge_write(cell, &side, agent, &self.agents, part, &mut found);
        } else {
            judge_read(cell, &side, agent, &self.agents, part, &mut found);
        }
        let acquires =
            matches!(access.order, Order::Acquire | Order::AcqRel).then(|| reach(access.scope));
        let releasing =
            matches!(access.order, Order::Release | Order::AcqRel).then(|| reach(access.scope));
        let mut inherited = None;
        let mut observed = [None, None];
        if let Some(message) = sources
            .single()
            .and_then(|index| cell.messages.get_mut(index))
        {
            if !message.side.is_before(agent.known()) {
                message.note_reader(side.slot, side.epoch);
            }
            if side.weakness(&message.side, &self.agents).is_none() {
                let distance = self.agents.distance(side.place, message.side.place);
                let wide = message.releases.to(distance).map(|r| (r.clone(), distance));
                let narrow = message.releases.to_block(side.place.block());
                observed = [wide, narrow.map(|r| (r.clone(), 0))];
                inherited = Some((
                    message.releases.clone(),
                    distance,
                    message.side.place.block(),
                ));
            }
        }
        let Some(agent) = self.agents.get_mut(side.slot) else {
            return old;
        };
        for (releases, distance) in observed.into_iter().flatten() {
            let acquired = acquires.is_some_and(|reach| reach >= distance);
            agent.observe(&releases, distance, acquired);
        }
        if writes {
            let own = agent.releases(releasing);
            let releases = match inherited {
                Some((inherited, distance, block)) => own.and_read(&inherited, distance, block),
                None => own,
            };
            let value = op.apply(size, old, a, b) << shift;
            let message = Message::new(side, self.now, value, releases, true);
            cell.insert_behind(cut, message, visible);
            cell.settle_reads(agent.known(), part.mask);
            flat.put_word(part.cell, cell.latest(), part.mask);
            let ages = cell.messages.len() > 1;
            self.age(ages.then_some(part.cell));
        } else {
            cell.note_read(side);
        }
        self.report(found);
        old
    }
}

/// Local memory belongs to one thread: it needs no model.
fn is_local(addr: u64) -> bool {
    addr >= Space::Local.base()
}

impl Memory for StrictMemory {
    fn alloc(&mut self, space: Space, len: u64, align: u64, label: &str) -> Result<u64, Fault> {
        let addr = self.flat.alloc(space, len, align, label)?;
        if space != Space::Local {
            self.written.alloc(addr, len);
        }
        Ok(addr)
    }

    fn free(&mut self, addr: u64) -> Result<(), Fault> {
        self.flat.free(addr)?;
        let len = self.written.free(addr);
        self.table.clear(addr, len, |_| 0);
        Ok(())
    }

    fn load(&mut self, access: Access, addr: u64, size: u32) -> Result<u64, Fault> {
        let value = self.flat.load(access, addr, size)?;
        if is_local(addr) {
            return Ok(value);
        }
        let part = Part::scalar(addr, size);
        let side = self.side(&access, part.mask, false);
        let word = self.read_part(&access, side, part) & bits(part.mask);
        Ok(word >> Part::shift(addr))
    }

    fn store(&mut self, access: Access, addr: u64, size: u32, value: u64) -> Result<(), Fault> {
        if is_local(addr) {
            return self.flat.store(access, addr, size, value);
        }
        // Finds out whether the access can be made.
        self.flat.load(access, addr, size)?;
        let part = Part::scalar(addr, size);
        let side = self.side(&access, part.mask, true);
        let releasing =
            matches!(access.order, Order::Release | Order::AcqRel).then(|| reach(access.scope));
        let releases = match self.agents.get_mut(side.slot) {
            Some(agent) if side.strength.strong => agent.releases(releasing),
            _ => Carried::Nothing,
        };
        self.note_written(addr, size.into());
        self.write_part(
            side,
            (side.slot, side.epoch),
            part,
            value << Part::shift(addr) & bits(part.mask),
            releases,
        );
        Ok(())
    }

    fn rmw(
        &mut self,
        access: Access,
        addr: u64,
        size: u32,
        op: RmwOp,
        a: u64,
        b: u64,
    ) -> Result<u64, Fault> {
        if is_local(addr) {
            return self.flat.rmw(access, addr, size, op, a, b);
        }
        self.flat.load(access, addr, size)?;
        let part = Part::scalar(addr, size);
        self.note_written(addr, size.into());
        Ok(self.atomic_part(&access, addr, part, (op, size, a, b)))
    }

    fn fence(&mut self, agent: Agent, kind: FenceKind, scope: Scope) {
        let slot = self.agents.slot(agent, 0);
        self.agents.fence(slot, kind, scope);
    }

    fn read(&mut self, access: Access, addr: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        self.flat.read(access, addr, bytes)?;
        if is_local(addr) || bytes.is_empty() {
            return Ok(());
        }
        if access.purpose == Purpose::Copy {
            self.judge_copy(addr, bytes.len() as u64);
        } else {
            self.read_range(&access, addr, bytes);
        }
        Ok(())
    }

    fn write(&mut self, access: Access, addr: u64, bytes: &[u8]) -> Result<(), Fault> {
        let len = bytes.len() as u64;
        if access.purpose == Purpose::Copy || is_local(addr) || bytes.is_empty() {
            // A copy to the GPU is complete when the call returns, and whoever learns of it learns that by a launch, a
            // doorbell or a command: it is visible to all. That is assumed.
            self.flat.write(access, addr, bytes)?;
            let flat = &mut self.flat;
            self.table.clear(addr, len, |at| flat.word(at));
            self.note_written(addr, len);
            return Ok(());
        }
        // Granules are written to flat memory as a whole, the rest cell by cell.
        self.flat.check(addr, len)?;
        self.note_written(addr, len);
        self.write_range(&access, addr, bytes);
        self.flat.write(access, addr, bytes)
    }

    fn describe(&self, addr: u64) -> String {
        self.flat.describe(addr)
    }

    fn event(&mut self, event: Event<'_>) {
        if self.agents.event(event) {
            self.all_visible = self.now;
        }
    }

    fn post(&mut self, access: Access, posted: Posted) -> bool {
        let slot = self.agents.slot(access.agent, access.site);
        let place = self
            .agents
            .get(slot)
            .map_or(Place::Host, |agent| agent.place);
        let distance = self.agents.distance(place, Place::Device);
        let Some(agent) = self.agents.get(slot) else {
            return false;
        };
        let carries = agent.fenced(distance);
        let (epoch, clock) = (agent.epoch(), agent.clock().clone());
        let by = Party {
            actor: self.agents.actor(slot, epoch),
            site: access.site,
            does: "doorbell",
        };
        self.doorbells.post(posted, slot, epoch, clock, carries, by);
        true
    }

    fn has_posted(&self, device: u16) -> bool {
        self.doorbells.any_for(device)
    }

    fn arrive(&mut self, device: u16) -> Option<Posted> {
        let store = self.doorbells.next(device, &mut self.rng)?;
        let slot = self
            .agents
            .slot(Agent::Device(device), store.posted.context);
        self.agents.doorbell(slot, store.carries);
        self.rung.insert((device, store.posted.context), store.by);
        Some(store.posted)
    }

    fn doorbell_by(&self, device: u16, context: u32) -> Option<Party> {
        self.rung.get(&(device, context)).copied()
    }

    fn written_by(&mut self, addr: u64) -> Option<Party> {
        let part = Part::scalar(addr, 1);
        let flat = &mut self.flat;
        let cell = self.table.cell_mut(part.cell, |at| flat.word(at))?;
        let newest = cell.messages.iter().rfind(|m| m.live & part.mask != 0)?;
        Some(newest.side.party(&self.agents))
    }

    fn follow(&mut self, queue: (u16, u32), peer: (u16, u32)) {
        self.agents.follow(queue, peer);
    }

    fn refused(&mut self, posted: Posted, fault: &Fault) {
        self.findings.refused(posted, fault);
    }

    fn take_findings(&mut self) -> Vec<MemoryFinding> {
        self.findings.take()
    }

    fn findings_left_out(&self) -> u64 {
        self.findings.left_out()
    }
}
