//! Messages and read stamps: what is kept of each access.
//!
//! Knows: who, when (by epoch), how strong.
//! Must not know: in which order messages of a location are.

use warpverbs_sim_bus::{Order, Party, Purpose};

use super::agents::{Agents, Place, reach};
use super::clocks::{Carried, Known};
use warpverbs_sim_bus::Access;

/// How strong an access is (PTX ISA, "Operation Types": weak, and strong with a scope).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Strength {
    pub(super) strong: bool,
    /// Its scope as the greatest distance that it includes.
    pub(super) reach: u8,
}

impl Strength {
    pub(super) const WEAK: Self = Self {
        strong: false,
        reach: 0,
    };
    pub(super) const SYSTEM: Self = Self {
        strong: true,
        reach: 2,
    };

    pub(super) fn of(access: &Access) -> Self {
        match access.order {
            Order::Weak | Order::NonCoherent => Self::WEAK,
            // PTX ISA, "ld": `.volatile` has the ordering of `.relaxed.sys`.
            Order::Volatile | Order::Mmio => Self::SYSTEM,
            _ => Self {
                strong: true,
                reach: reach(access.scope) as u8,
            },
        }
    }
}

/// What two accesses of one location have in common, for the question whether they are morally strong.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side {
    pub(super) slot: u32,
    pub(super) epoch: u32,
    pub(super) place: Place,
    pub(super) strength: Strength,
    /// Bytes of the cell.
    pub(super) mask: u8,
    /// A device's access: of whole lines, so that an aligned scalar inside it overlaps completely (assumed: a device
    /// reads and writes aligned 8 bytes at once).
    pub(super) wide: bool,
    pub(super) purpose: Purpose,
    pub(super) site: u32,
    pub(super) writes: bool,
    pub(super) non_coherent: bool,
}

/// Why two conflicting accesses are not morally strong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weakness {
    Weak,
    Scope,
    Overlap,
}

impl Side {
    /// PTX ISA, "Morally Strong Operations": both strong, each scope includes the other's thread, and, as memory
    /// operations, they overlap completely. All are of the generic proxy here: others are refused.
    pub(super) fn weakness(&self, other: &Self, agents: &Agents) -> Option<Weakness> {
        if !self.strength.strong || !other.strength.strong {
            return Some(Weakness::Weak);
        }
        let distance = agents.distance(self.place, other.place);
        let least = self.strength.reach.min(other.strength.reach);
        if usize::from(least) < distance {
            return Some(Weakness::Scope);
        }
        (self.mask != other.mask && !self.wide && !other.wide).then_some(Weakness::Overlap)
    }

    #[inline]
    pub(super) fn is_before(&self, known: Known<'_>) -> bool {
        known.covers(self.slot, self.epoch)
    }

    pub(super) fn party(&self, agents: &Agents) -> Party {
        Party {
            actor: agents.actor(self.slot, self.epoch),
            site: self.site,
            does: self.does(),
        }
    }

    pub(super) fn does(&self) -> &'static str {
        match (self.purpose, self.writes) {
            (Purpose::Instruction, true) if self.strength.strong => "strong store",
            (Purpose::Instruction, true) => "weak store",
            (Purpose::Instruction, false) if self.non_coherent => "non-coherent load",
            (Purpose::Instruction, false) if self.strength.strong => "strong load",
            (Purpose::Instruction, false) => "weak load",
            (Purpose::Copy, true) => "copy to the GPU",
            (Purpose::Copy, false) => "copy from the GPU",
            (Purpose::Dbr | Purpose::DbrAtDoorbell, _) => "doorbell record read",
            (Purpose::Wqe, _) => "work request fetch",
            (Purpose::Payload, true) => "payload write",
            (Purpose::Payload, false) => "payload read",
            (Purpose::Cqe, _) => "completion write",
        }
    }
}

/// Who read a write: the first epoch in which each slot did, by slot. Boxed by its owner, as most writes have none.
#[derive(Clone, Debug, Default)]
struct Readers {
    by_slot: Vec<(u32, u32)>,
}

/// A write, as the history of a cell keeps it.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) side: Side,
    /// When it was made, in accesses of the whole memory.
    pub(super) at: u64,
    /// Bytes that somebody may still read from it.
    pub(super) live: u8,
    /// Bytes in their places of the cell; those that are not live are meaningless.
    pub(super) value: u64,
    pub(super) releases: Carried,
    /// The write half of an atomic: nothing comes between it and the message before it (PTX ISA, "Atomicity").
    pub(super) atomic: bool,
    /// `None` until someone reads it who did not know it.
    readers: Option<Box<Readers>>,
}

impl Message {
    pub(super) fn new(side: Side, at: u64, value: u64, releases: Carried, atomic: bool) -> Self {
        Self {
            side,
            at,
            live: side.mask,
            value,
            releases,
            atomic,
            readers: None,
        }
    }

    /// What a cell held before its history began: it happens before everything.
    pub(super) fn base(value: u64) -> Self {
        let side = Side {
            slot: 0,
            epoch: 0,
            place: Place::Host,
            strength: Strength::SYSTEM,
            mask: 0xff,
            wide: true,
            purpose: Purpose::Copy,
            site: 0,
            writes: true,
            non_coherent: false,
        };
        Self::new(side, 0, value, Carried::Nothing, false)
    }

    /// True if whoever has this clock may not read anything older: the write happens before it, or a read of it does (PTX
    /// ISA, "Causality": a morally strong read extends causality order from the write to what follows the read).
    pub(super) fn is_known_to(&self, known: Known<'_>) -> bool {
        if self.side.is_before(known) {
            return true;
        }
        let Some(Readers { by_slot: readers }) = self.readers.as_deref() else {
            return false;
        };
        // Mostly whoever asks has read it before.
        let own = known
            .own()
            .map(|own| readers.binary_search_by_key(&own, |r| r.0));
        matches!(own, Some(Ok(_)))
            || readers
                .iter()
                .any(|(slot, epoch)| known.covers(*slot, *epoch))
    }

    pub(super) fn note_reader(&mut self, slot: u32, epoch: u32) {
        let readers = &mut self.readers.get_or_insert_default().by_slot;
        if let Err(at) = readers.binary_search_by_key(&slot, |r| r.0) {
            readers.insert(at, (slot, epoch));
        }
    }
}

/// Spreads the mask's bytes over the bits of a word.
pub(super) fn bits(mask: u8) -> u64 {
    let mut out = 0;
    for byte in 0..8 {
        if mask >> byte & 1 == 1 {
            out |= 0xff << (8 * byte);
        }
    }
    out
}
