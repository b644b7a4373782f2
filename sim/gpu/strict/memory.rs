//! Accesses: loads, stores, atomics, fences, DMA.
//!
//! Knows: the order of checks, choice of value, and bookkeeping of each.
//! Must not know: who runs next.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use warpverbs_sim_bus::{
    Access, Agent, Event, Fault, FenceKind, Memory, MemoryFinding, Order, OrderFault, Party,
    Posted, Purpose, RmwOp, Rng, Scope, Script, Space,
};

use super::agents::{Agents, Path, reach};
use super::cell::Cell;
use super::clocks::{Clock, DISTANCES, Releases, Snapshot, merged};
use super::doorbells::Doorbells;
use super::message::{Message, Side, Strength, bits};
use super::race::{self, Findings};
use super::table::{CELL, GRANULE, Granule, Table};
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
    flat: FastMemory,
    table: Table,
    written: WrittenBytes,
    agents: Agents,
    doorbells: Doorbells,
    /// Who made the doorbell that arrived last, by device and queue.
    rung: HashMap<(u16, u32), Party>,
    /// By thread: the last completion that it has loaded and that it knew nothing of, with what that carried.
    learned: BTreeMap<u32, (Party, Arc<Snapshot>)>,
    findings: Findings,
    rng: Rng,
    /// Accesses so far.
    now: u64,
    /// Accesses up to here are visible to everyone.
    all_visible: u64,
}

/// Bytes of one cell.
#[derive(Clone, Copy)]
struct Part {
    cell: u64,
    mask: u8,
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

    fn shift(addr: u64) -> u32 {
        (addr % CELL) as u32 * 8
    }

    fn first(self) -> u64 {
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
            all_visible: 0,
        }
    }

    fn visible(&self) -> u64 {
        self.all_visible.max(self.now.saturating_sub(HORIZON))
    }

    fn side(&mut self, access: &Access, mask: u8, writes: bool) -> Side {
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
            place: state.map_or(super::agents::Place::Host, |s| s.place),
            strength,
            mask,
            wide: is_device,
            purpose: access.purpose,
            site: access.site,
            writes,
            non_coherent: access.order == Order::NonCoherent,
        }
    }

    fn report(&mut self, finding: MemoryFinding) {
        let flat = &self.flat;
        let addr = finding.addr;
        self.findings.add(finding, || flat.describe(addr));
    }

    /// Reads bytes of a cell, which lie in a live object.
    fn read_part(&mut self, access: &Access, part: Part) -> u64 {
        self.now += 1;
        let side = self.side(access, part.mask, false);
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
        judge_read(
            cell,
            &side,
            agent.began.as_deref(),
            &agent.clock,
            &self.agents,
            part,
            &mut found,
        );
        let floor = cell.floor(&agent.clock, part.mask, visible);
        let cut = choose(cell, floor, part.mask, &mut self.rng, |_| true);
        let (value, sources) = cell.value_at(cut, part.mask);
        let acquires = match access.order {
            Order::Acquire | Order::AcqRel => Some(reach(access.scope)),
            // A device acts on what it reads: its queue is one sequence.
            _ if access.purpose == Purpose::Dbr => Some(DISTANCES - 1),
            _ => None,
        };
        let mut observed = [const { None }; 8];
        for (index, entry) in sources.iter().zip(&mut observed) {
            if let Some(message) = cell.messages.get_mut(index) {
                // Who learns of this reader learns of a write that it knew already.
                if !message.side.is_before(&agent.clock) {
                    message.note_reader(side.slot, side.epoch);
                }
                if side.weakness(&message.side, &self.agents).is_none() {
                    let distance = self.agents.distance(side.place, message.side.place);
                    *entry = message
                        .releases
                        .get(distance)
                        .cloned()
                        .flatten()
                        .map(|r| (r, distance));
                }
                if let Some((carried, _)) = entry
                    && message.side.purpose == Purpose::Cqe
                    && !message.side.is_before(&agent.clock)
                {
                    self.learned
                        .insert(side.slot, (side.party(&self.agents), carried.clone()));
                }
            }
        }
        cell.note_read(side);
        if let Some(agent) = self.agents.get_mut(side.slot) {
            for (releases, distance) in observed.iter().flatten() {
                agent.observe(
                    releases,
                    *distance,
                    acquires.is_some_and(|reach| reach >= *distance),
                );
            }
        }
        for finding in found {
            self.report(finding);
        }
        value
    }

    /// Writes bytes of a cell, which lie in a live object.
    fn write_part(&mut self, side: Side, part: Part, value: u64, releases: Releases) {
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
        judge_write(cell, &side, &agent.clock, &self.agents, part, &mut found);
        cell.begin(flat.word(part.cell));
        let floor = cell.floor(&agent.clock, part.mask, visible);
        // PTX ISA, "Coherence": behind every write that happens before it, and behind what was read before it. A device's
        // write is the newest: devices see each other's order.
        let behind = if side.wide {
            cell.messages.len() - 1
        } else {
            choose(cell, floor, part.mask, &mut self.rng, |next| !next.atomic)
        };
        let message = Message {
            side,
            at: self.now,
            live: side.mask,
            value,
            releases,
            atomic: false,
            readers: Vec::new(),
        };
        cell.insert_behind(behind, message, visible);
        cell.settle_reads(&agent.clock, part.mask);
        flat.put_word(part.cell, cell.latest(), part.mask);
        for finding in found {
            self.report(finding);
        }
    }

    fn note_written(&mut self, addr: u64, len: u64) {
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
        let mut found = Vec::new();
        judge_write(cell, &side, &agent.clock, &self.agents, part, &mut found);
        cell.begin(flat.word(part.cell));
        let floor = cell.floor(&agent.clock, part.mask, visible);
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
        let writes = op != RmwOp::Cas || old == a & bits(((1u16 << size) - 1) as u8);
        let acquires =
            matches!(access.order, Order::Acquire | Order::AcqRel).then(|| reach(access.scope));
        let releasing =
            matches!(access.order, Order::Release | Order::AcqRel).then(|| reach(access.scope));
        let mut inherited = Releases::default();
        let mut observed = None;
        if let Some(message) = sources
            .single()
            .and_then(|index| cell.messages.get_mut(index))
        {
            if !message.side.is_before(&agent.clock) {
                message.note_reader(side.slot, side.epoch);
            }
            if side.weakness(&message.side, &self.agents).is_none() {
                let distance = self.agents.distance(side.place, message.side.place);
                observed = message
                    .releases
                    .get(distance)
                    .cloned()
                    .flatten()
                    .map(|r| (r, distance));
                // PTX ISA, "Observation": a read of this write observes what it read, too. The first writer is as far from
                // that reader as the farther of both (distances are ultrametric).
                for (to, entry) in inherited.iter_mut().enumerate() {
                    *entry = message.releases.get(to.max(distance)).cloned().flatten();
                }
            }
        }
        let Some(agent) = self.agents.get_mut(side.slot) else {
            return old;
        };
        if let Some((releases, distance)) = observed {
            agent.observe(
                &releases,
                distance,
                acquires.is_some_and(|reach| reach >= distance),
            );
        }
        if writes {
            let mut releases = agent.releases(releasing);
            for (own, inherited) in releases.iter_mut().zip(&inherited) {
                *own = match (own.take(), inherited) {
                    (Some(own), Some(inherited)) => Some(merged(&own, inherited)),
                    (own, inherited) => own.or_else(|| inherited.clone()),
                };
            }
            let message = Message {
                side,
                at: self.now,
                live: side.mask,
                value: op.apply(size, old, a, b) << shift,
                releases,
                atomic: true,
                readers: Vec::new(),
            };
            cell.insert_behind(cut, message, visible);
            cell.settle_reads(&agent.clock, part.mask);
            flat.put_word(part.cell, cell.latest(), part.mask);
            for finding in found {
                self.report(finding);
            }
        } else {
            // A compare-and-swap that fails writes nothing.
            side.writes = false;
            cell.note_read(side);
        }
        old
    }

    /// DMA and copies, cell by cell where the cells differ.
    fn read_range(&mut self, access: &Access, addr: u64, bytes: &mut [u8]) {
        if matches!(access.agent, Agent::Device(_)) {
            let slot = self.agents.slot(access.agent, access.site);
            if let Some(at) = self.written.first_unwritten(addr, bytes.len() as u64) {
                let side = self.side(access, 0xff, false);
                let finding = race::uninitialised(&side, at, &self.agents);
                self.report(finding);
            }
            if access.purpose == Purpose::Payload {
                self.agents.device_reads(slot, path(addr));
            }
        }
        for piece in pieces(addr, bytes.len() as u64) {
            let out = bytes
                .get_mut(piece.from..piece.from + piece.len as usize)
                .unwrap_or_default();
            if piece.is_granule() && self.read_granule(access, piece.addr) {
                continue;
            }
            for part in parts(piece.addr, piece.len) {
                let word = self.read_part(access, part).to_le_bytes();
                for byte in (0..8).filter(|byte| part.mask >> byte & 1 == 1) {
                    if let (Some(to), Some(from)) = (
                        out.get_mut((part.cell + byte).wrapping_sub(piece.addr) as usize),
                        word.get(byte as usize),
                    ) {
                        *to = *from;
                    }
                }
            }
        }
    }

    /// Reads a granule whose cells are alike: its bytes are those of flat memory. False if they are not.
    fn read_granule(&mut self, access: &Access, addr: u64) -> bool {
        self.now += 1;
        let side = self.side(access, 0xff, false);
        let mut found = Vec::new();
        match self.table.granule_mut(addr) {
            Some(Granule::Cells(_)) => return false,
            Some(Granule::Uniform(cell)) => {
                if let Some(agent) = self.agents.get(side.slot) {
                    let part = Part {
                        cell: addr,
                        mask: 0xff,
                    };
                    judge_read(
                        cell,
                        &side,
                        None,
                        &agent.clock,
                        &self.agents,
                        part,
                        &mut found,
                    );
                }
                cell.note_read(side);
            }
            None => {
                let mut cell = Cell::default();
                cell.note_read(side);
                self.table.set(addr, Granule::Uniform(Box::new(cell)));
            }
        }
        for finding in found {
            self.report(finding);
        }
        true
    }

    /// A device's write.
    fn write_range(&mut self, access: &Access, addr: u64, bytes: &[u8]) {
        let slot = self.agents.slot(access.agent, access.site);
        let mut side = self.side(access, 0xff, true);
        let relaxed = access.order == Order::Weak;
        let (writer, epoch, carried) = self.agents.device_write(slot, path(addr), relaxed);
        let releases: Releases = std::array::from_fn(|_| carried.clone());
        for piece in pieces(addr, bytes.len() as u64) {
            let data = bytes
                .get(piece.from..piece.from + piece.len as usize)
                .unwrap_or_default();
            if piece.is_granule() {
                self.write_granule(side, (writer, epoch), piece.addr, releases.clone());
                // The caller has written flat memory.
                continue;
            }
            for part in parts(piece.addr, piece.len) {
                let mut word = [0; 8];
                for byte in (0..8).filter(|byte| part.mask >> byte & 1 == 1) {
                    if let (Some(to), Some(from)) = (
                        word.get_mut(byte as usize),
                        data.get((part.cell + byte).wrapping_sub(piece.addr) as usize),
                    ) {
                        *to = *from;
                    }
                }
                side.mask = part.mask;
                self.device_write_part(
                    side,
                    (writer, epoch),
                    part,
                    u64::from_le_bytes(word),
                    releases.clone(),
                );
            }
        }
    }

    fn device_write_part(
        &mut self,
        side: Side,
        as_slot: (u32, u32),
        part: Part,
        value: u64,
        releases: Releases,
    ) {
        self.write_part(side, part, value, releases);
        // The write counts to its path, not to the queue's reads.
        let flat = &mut self.flat;
        if let Some(cell) = self.table.cell_mut(part.cell, |at| flat.word(at))
            && let Some(message) = cell.messages.last_mut()
        {
            (message.side.slot, message.side.epoch) = as_slot;
        }
    }

    fn write_granule(
        &mut self,
        mut side: Side,
        as_slot: (u32, u32),
        addr: u64,
        releases: Releases,
    ) {
        self.now += 1;
        let mut found = Vec::new();
        if let (Some(agent), Some(granule)) =
            (self.agents.get(side.slot), self.table.granule_mut(addr))
        {
            let cells = match granule {
                Granule::Uniform(cell) => std::slice::from_ref(&**cell),
                Granule::Cells(cells) => cells,
            };
            for (n, cell) in cells.iter().enumerate() {
                let part = Part {
                    cell: addr + n as u64 * CELL,
                    mask: 0xff,
                };
                judge_write(cell, &side, &agent.clock, &self.agents, part, &mut found);
            }
        }
        (side.slot, side.epoch) = as_slot;
        let message = Message {
            side,
            at: self.now,
            live: side.mask,
            value: 0,
            releases,
            atomic: false,
            readers: Vec::new(),
        };
        let cell = Cell {
            messages: vec![message],
            reads: Vec::new(),
        };
        self.table.set(addr, Granule::Uniform(Box::new(cell)));
        for finding in found {
            self.report(finding);
        }
    }

    /// A copy from the GPU: complete before anything else happens, so it takes the newest bytes. Of data that a device
    /// wrote, the host must know by a completion that somebody saw.
    fn judge_copy(&mut self, addr: u64, len: u64) {
        let side = self.side(&Access::HOST_COPY, 0xff, false);
        let mut found = Vec::new();
        for piece in pieces(addr, len) {
            let (Some(agent), Some(granule)) = (
                self.agents.get(side.slot),
                self.table.granule_mut(piece.addr),
            ) else {
                continue;
            };
            let (cells, at) = match granule {
                Granule::Uniform(cell) => (std::slice::from_ref(&**cell), piece.addr),
                Granule::Cells(cells) => {
                    let first = (piece.addr % GRANULE / CELL) as usize;
                    let last = ((piece.addr % GRANULE + piece.len).div_ceil(CELL) as usize)
                        .min(cells.len());
                    (
                        cells.get(first..last).unwrap_or_default(),
                        piece.addr / CELL * CELL,
                    )
                }
            };
            for (n, cell) in cells.iter().enumerate() {
                for message in cell
                    .messages
                    .iter()
                    .filter(|m| m.side.purpose == Purpose::Payload)
                {
                    if !message.side.is_before(&agent.clock) {
                        let learned = self.learned.values().rev().find(|(_, carried)| {
                            let known = carried.to_clock();
                            message.side.is_before(&known)
                        });
                        let addr = at + n as u64 * CELL;
                        let weak = super::message::Weakness::Weak;
                        let conflict =
                            race::conflict(&message.side, &side, weak, addr, &self.agents);
                        found.push(MemoryFinding {
                            learned: learned.map(|(party, _)| *party),
                            ..conflict
                        });
                    }
                }
            }
        }
        for finding in found {
            self.report(finding);
        }
    }
}

/// The oldest value that may be read by who knows `clock` and nothing else.
fn certain(cell: &Cell, clock: &Clock, mask: u8) -> u64 {
    let known = |m: &Message| m.live & mask != 0 && m.side.is_before(clock);
    let cut = cell.messages.iter().rposition(known).unwrap_or(0);
    cell.value_at(cut.max(cell.oldest(mask)), mask).0
}

/// A message from `floor` on, by the seed: the newest half of the time, so that waits end soon. `allows` says of the
/// message behind whether something may come before it.
fn choose(
    cell: &Cell,
    floor: usize,
    mask: u8,
    rng: &mut Rng,
    allows: impl Fn(&Message) -> bool,
) -> usize {
    let last = cell.messages.len().saturating_sub(1);
    if floor >= last || rng.below(2) == 0 {
        return last;
    }
    let fits = |index: &usize| {
        let touches = cell
            .messages
            .get(*index)
            .is_some_and(|m| m.live & mask != 0);
        touches && cell.messages.get(index + 1).is_none_or(&allows)
    };
    let count = (floor..=last).filter(fits).count() as u32;
    (floor..=last)
        .filter(fits)
        .nth(rng.below(count) as usize)
        .unwrap_or(last)
}

/// Reports writes that a read conflicts with.
fn judge_read(
    cell: &Cell,
    side: &Side,
    began: Option<&Clock>,
    clock: &Clock,
    agents: &Agents,
    part: Part,
    found: &mut Vec<MemoryFinding>,
) {
    for message in cell.messages.iter().filter(|m| m.live & part.mask != 0) {
        let weakness = if side.non_coherent {
            // PTX ISA, "ld.global.nc": for data that is read-only while the kernel runs.
            let began = began.is_none_or(|began| message.side.is_before(began));
            (!began).then_some(super::message::Weakness::Weak)
        } else if message.side.is_before(clock) {
            None
        } else {
            side.weakness(&message.side, agents)
        };
        if let Some(weakness) = weakness {
            found.push(race::conflict(
                &message.side,
                side,
                weakness,
                part.first(),
                agents,
            ));
        }
    }
}

/// Reports writes and reads that a write conflicts with.
fn judge_write(
    cell: &Cell,
    side: &Side,
    clock: &Clock,
    agents: &Agents,
    part: Part,
    found: &mut Vec<MemoryFinding>,
) {
    let writes = cell
        .messages
        .iter()
        .filter(|m| m.live & part.mask != 0)
        .map(|m| &m.side);
    let reads = cell.reads.iter().filter(|read| read.mask & part.mask != 0);
    for other in writes.chain(reads) {
        let weakness = if other.non_coherent && agents.runs(other.slot, other.epoch) {
            Some(super::message::Weakness::Weak)
        } else if other.non_coherent || other.is_before(clock) {
            None
        } else {
            side.weakness(other, agents)
        };
        if let Some(weakness) = weakness {
            found.push(race::conflict(other, side, weakness, part.first(), agents));
        }
    }
}

fn path(addr: u64) -> Path {
    if addr < Space::HostMapped.base() {
        Path::GpuMemory
    } else {
        Path::HostMemory
    }
}

/// A stretch of a range that lies in one granule.
#[derive(Clone, Copy)]
struct Piece {
    addr: u64,
    len: u64,
    /// Where it begins in the range.
    from: usize,
}

impl Piece {
    fn is_granule(self) -> bool {
        self.len == GRANULE
    }
}

fn pieces(addr: u64, len: u64) -> impl Iterator<Item = Piece> {
    let end = addr + len;
    let mut at = addr;
    std::iter::from_fn(move || {
        let next = ((at / GRANULE + 1) * GRANULE).min(end);
        let piece = Piece {
            addr: at,
            len: next - at,
            from: (at - addr) as usize,
        };
        at = next;
        (piece.len > 0).then_some(piece)
    })
}

/// The cells of a range, with the bytes that lie in it.
fn parts(addr: u64, len: u64) -> impl Iterator<Item = Part> {
    let end = addr + len;
    let mut at = addr;
    std::iter::from_fn(move || {
        let next = ((at / CELL + 1) * CELL).min(end);
        let count = next - at;
        if count == 0 {
            return None;
        }
        let ones = ((1u16 << count) - 1) as u8;
        let part = Part {
            cell: at / CELL * CELL,
            mask: ones << (at % CELL),
        };
        at = next;
        Some(part)
    })
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
        let word = self.read_part(&access, part) & bits(part.mask);
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
            _ => Releases::default(),
        };
        self.note_written(addr, size.into());
        self.write_part(
            side,
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
        let distance = self.agents.device_distance();
        let Some(agent) = self.agents.get_mut(slot) else {
            return false;
        };
        let carries = agent.fenced(distance);
        let (epoch, clock) = (agent.epoch(), agent.clock.clone());
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

    fn follow(&mut self, device: u16, context: u32, peer: u32, here: bool) {
        self.agents.follow(device, context, peer, here);
    }

    fn refused(&mut self, posted: Posted, fault: &Fault) {
        let later = Party {
            actor: warpverbs_sim_bus::Actor::Device {
                device: posted.device,
                context: posted.context,
            },
            site: 0,
            does: "MMIO store",
        };
        self.findings.add(
            MemoryFinding {
                kind: OrderFault::RefusedStore,
                addr: fault.addr,
                object: String::new(),
                earlier: None,
                later,
                learned: None,
                missing: fault.to_string(),
            },
            String::new,
        );
    }

    fn take_findings(&mut self) -> Vec<MemoryFinding> {
        self.findings.take()
    }
}
