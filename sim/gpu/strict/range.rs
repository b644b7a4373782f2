//! Accesses of many bytes: DMA, and copies by the host.
//!
//! Knows: how a range falls into granules and cells.
//! Must not know: what one cell does.

use warpverbs_sim_bus::{Access, Agent, Order, Purpose, Space};

use super::agents::Path;
use super::cell::Cell;
use super::clocks::Carried;
use super::few::Few;
use super::judge::{judge_read, judge_write};
use super::memory::{Part, StrictMemory};
use super::message::{Message, Side, Weakness};
use super::race::Conflict;
use super::table::{CELL, GRANULE, Granule};

impl StrictMemory {
    /// DMA and copies, cell by cell where the cells differ.
    pub(super) fn read_range(&mut self, access: &Access, addr: u64, bytes: &mut [u8]) {
        let mut side = self.side(access, 0xff, false);
        if matches!(access.agent, Agent::Device(_)) {
            if let Some(at) = self.written.first_unwritten(addr, bytes.len() as u64) {
                self.findings
                    .uninitialised(&side, at, &self.agents, &self.flat);
            }
            if access.purpose == Purpose::Payload {
                self.agents.device_reads(side.slot, path(addr));
            }
        }
        for piece in pieces(addr, bytes.len() as u64) {
            let out = bytes
                .get_mut(piece.from..piece.from + piece.len as usize)
                .unwrap_or_default();
            if piece.is_granule() && self.read_granule(side, piece.addr) {
                continue;
            }
            for part in parts(piece.addr, piece.len) {
                side.mask = part.mask;
                let word = self.read_part(access, side, part).to_le_bytes();
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
    fn read_granule(&mut self, mut side: Side, addr: u64) -> bool {
        self.now += 1;
        side.mask = 0xff;
        let mut found = Vec::new();
        match self.table.granule_mut(addr) {
            Some(Granule::Cells(_)) => return false,
            Some(Granule::Uniform(cell)) => {
                if let Some(agent) = self.agents.get(side.slot) {
                    let part = Part::whole(addr);
                    judge_read(cell, &side, agent, &self.agents, part, &mut found);
                }
                cell.note_read(side);
            }
            None => {
                let mut cell = Cell::default();
                cell.note_read(side);
                self.table.set(addr, Granule::Uniform(Box::new(cell)));
            }
        }
        self.report(found);
        true
    }

    /// A device's write.
    pub(super) fn write_range(&mut self, access: &Access, addr: u64, bytes: &[u8]) {
        let mut side = self.side(access, 0xff, true);
        let relaxed = access.order == Order::Weak;
        let (slot, epoch, carried) = self.agents.device_write(side.slot, path(addr), relaxed);
        // The write counts to its path, not to the queue's reads.
        let counts_to = (slot, epoch);
        let releases = carried.map_or(Carried::Nothing, Carried::ToAll);
        for piece in pieces(addr, bytes.len() as u64) {
            let data = bytes
                .get(piece.from..piece.from + piece.len as usize)
                .unwrap_or_default();
            if piece.is_granule() {
                side.mask = 0xff;
                self.write_granule(side, counts_to, piece.addr, releases.clone());
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
                self.write_part(
                    side,
                    counts_to,
                    part,
                    u64::from_le_bytes(word),
                    releases.clone(),
                );
            }
        }
    }

    fn write_granule(
        &mut self,
        side: Side,
        (slot, epoch): (u32, u32),
        addr: u64,
        releases: Carried,
    ) {
        self.now += 1;
        let message = Message::new(
            Side {
                slot,
                epoch,
                ..side
            },
            self.now,
            0,
            releases,
            false,
        );
        let mut found = Vec::new();
        let Some(agent) = self.agents.get(side.slot) else {
            return;
        };
        match self.table.granule_mut(addr) {
            Some(Granule::Uniform(cell)) => {
                let part = Part::whole(addr);
                judge_write(cell, &side, agent, &self.agents, part, &mut found);
                cell.messages = Few::One(message);
                cell.reads = Few::None;
            }
            other => {
                if let Some(Granule::Cells(cells)) = other {
                    for (offset, cell) in cells.iter() {
                        let part = Part::whole(addr + offset);
                        judge_write(cell, &side, agent, &self.agents, part, &mut found);
                    }
                }
                let cell = Cell {
                    messages: Few::One(message),
                    reads: Few::None,
                };
                self.table.set(addr, Granule::Uniform(Box::new(cell)));
            }
        }
        self.report(found);
    }

    /// A copy from the GPU: complete before anything else happens, so it takes the newest bytes. Of data that a device
    /// wrote, the host must know by a completion that somebody saw.
    pub(super) fn judge_copy(&mut self, addr: u64, len: u64) {
        let side = self.side(&Access::HOST_COPY, 0xff, false);
        let mut found = Vec::new();
        for piece in pieces(addr, len) {
            let (Some(agent), Some(granule)) = (
                self.agents.get(side.slot),
                self.table.granule_mut(piece.addr),
            ) else {
                continue;
            };
            let mut judge = |addr: u64, cell: &Cell| {
                let data = cell
                    .messages
                    .iter()
                    .filter(|m| m.side.purpose == Purpose::Payload);
                let unknown = data.filter(|m| !m.side.is_before(agent.known()));
                found.extend(unknown.map(|message| Conflict {
                    earlier: message.side,
                    later: side,
                    weakness: Weakness::Weak,
                    addr,
                }));
            };
            match granule {
                Granule::Uniform(cell) => judge(piece.addr, cell),
                Granule::Cells(cells) => {
                    let start = piece.addr / GRANULE * GRANULE;
                    let range = piece.addr / CELL * CELL..piece.addr + piece.len;
                    for (offset, cell) in
                        cells.iter().filter(|(at, _)| range.contains(&(start + at)))
                    {
                        judge(start + offset, cell);
                    }
                }
            }
        }
        self.report(found);
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
