//! Where cells are kept.
//!
//! Knows: granules of 64 cells, of which some are alike and need one entry.
//! Must not know: what a cell's history means.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::cell::Cell;

/// Bytes of a cell.
pub(super) const CELL: u64 = 8;
/// Bytes of a granule.
pub(super) const GRANULE: u64 = 512;
const CELLS: usize = (GRANULE / CELL) as usize;
/// Cells of a line.
const LINE: usize = 8;

/// State of a granule; one without an entry holds what flat memory holds.
pub(super) enum Granule {
    /// A device read or wrote all of it at once: each cell is like this one, with its bytes in flat memory.
    Uniform(Box<Cell>),
    Cells(Box<Cells>),
}

/// Cells of a granule, in lines that exist once one of theirs was touched.
#[derive(Default)]
pub(super) struct Cells([Option<Box<[Cell; LINE]>>; CELLS / LINE]);

impl Cells {
    fn cell_mut(&mut self, addr: u64) -> Option<&mut Cell> {
        let at = index(addr);
        let line = self.0.get_mut(at / LINE)?;
        line.get_or_insert_default().get_mut(at % LINE)
    }

    fn existing_mut(&mut self, addr: u64) -> Option<&mut Cell> {
        let at = index(addr);
        self.0.get_mut(at / LINE)?.as_mut()?.get_mut(at % LINE)
    }

    /// Those that exist, with their distance from the first in bytes.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Cell)> {
        self.0.iter().enumerate().flat_map(|(line, cells)| {
            let cells = cells.iter().flat_map(|cells| cells.iter());
            cells
                .enumerate()
                .map(move |(n, cell)| ((line * LINE + n) as u64 * CELL, cell))
        })
    }
}

impl Granule {
    /// The cell of an address. Those of a uniform granule get a state of their own each.
    fn cell_mut(&mut self, addr: u64, flat: impl FnMut(u64) -> u64) -> Option<&mut Cell> {
        if let Self::Uniform(cell) = self {
            *self = Self::Cells(apart(cell, addr / GRANULE * GRANULE, flat));
        }
        match self {
            Self::Cells(cells) => cells.cell_mut(addr),
            Self::Uniform(_) => None,
        }
    }
}

/// The cells of a uniform granule that begins at `start`.
fn apart(cell: &Cell, start: u64, mut flat: impl FnMut(u64) -> u64) -> Box<Cells> {
    let mut cells = Box::<Cells>::default();
    for at in (start..start + GRANULE).step_by(CELL as usize) {
        let mut own = Cell::clone(cell);
        // Its one message is the oldest that anyone may read, too: what was there before is gone.
        for message in own.messages.iter_mut() {
            message.value = flat(at);
        }
        if let Some(place) = cells.cell_mut(at) {
            *place = own;
        }
    }
    cells
}

/// Granule numbers are spread already; one multiplication is enough.
#[derive(Default)]
pub(super) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

/// All granules with a state.
#[derive(Default)]
pub(super) struct Table {
    granules: HashMap<u64, Granule, BuildHasherDefault<NumberHasher>>,
}

impl Table {
    pub(super) fn granule_mut(&mut self, addr: u64) -> Option<&mut Granule> {
        self.granules.get_mut(&(addr / GRANULE))
    }

    /// The cell of an address, if it has a state of its own.
    pub(super) fn own_cell(&mut self, addr: u64) -> Option<&mut Cell> {
        match self.granules.get_mut(&(addr / GRANULE))? {
            Granule::Cells(cells) => cells.existing_mut(addr),
            Granule::Uniform(_) => None,
        }
    }

    /// The cell of an address, if its granule has a state; `flat` gives what flat memory holds.
    pub(super) fn cell_mut(
        &mut self,
        addr: u64,
        flat: impl FnMut(u64) -> u64,
    ) -> Option<&mut Cell> {
        let granule = self.granules.get_mut(&(addr / GRANULE))?;
        granule.cell_mut(addr, flat)
    }

    /// The same, made if it does not exist.
    pub(super) fn cell_or_new(
        &mut self,
        addr: u64,
        flat: impl FnMut(u64) -> u64,
    ) -> Option<&mut Cell> {
        let new = || Granule::Cells(Box::default());
        let granule = self.granules.entry(addr / GRANULE).or_insert_with(new);
        granule.cell_mut(addr, flat)
    }

    pub(super) fn set(&mut self, addr: u64, granule: Granule) {
        self.granules.insert(addr / GRANULE, granule);
    }

    /// Forgets what lies in a range that begins and ends anywhere; cells at its ends go as a whole.
    pub(super) fn clear(&mut self, addr: u64, len: u64, mut flat: impl FnMut(u64) -> u64) {
        let end = addr.saturating_add(len);
        let mut at = addr;
        while at < end {
            let next = (at / GRANULE + 1) * GRANULE;
            if at.is_multiple_of(GRANULE) && next <= end {
                self.granules.remove(&(at / GRANULE));
            } else {
                let mut cell_at = at / CELL * CELL;
                while cell_at < next.min(end) {
                    if let Some(cell) = self.cell_mut(cell_at, &mut flat) {
                        *cell = Cell::default();
                    }
                    cell_at += CELL;
                }
            }
            at = next;
        }
    }
}

fn index(addr: u64) -> usize {
    (addr % GRANULE / CELL) as usize
}
