//! MMIO stores under way.
//!
//! Knows: which of them may arrive next.
//! Must not know: what they are for.
//!
//! A posted store arrives some steps later. Stores to one address that are ordered by causality arrive in that order
//! (PTX ISA, "mmio operation": performed as often as they are executed, and like relaxed operations otherwise); others in any.

use std::sync::Arc;

use warpverbs_sim_bus::{Party, Posted, Rng};

use super::clocks::{Clock, Known, Snapshot};

/// Looks of the device after which the oldest store arrives.
const LONGEST: u32 = 24;

pub(super) struct UnderWay {
    pub(super) posted: Posted,
    /// Who stored it, and what it knew.
    pub(super) slot: u32,
    pub(super) epoch: u32,
    pub(super) clock: Clock,
    /// What it carries to the device.
    pub(super) carries: Option<Arc<Snapshot>>,
    /// For reports.
    pub(super) by: Party,
    looks: u32,
}

#[derive(Default)]
pub(super) struct Doorbells {
    under_way: Vec<UnderWay>,
}

impl Doorbells {
    pub(super) fn post(
        &mut self,
        posted: Posted,
        slot: u32,
        epoch: u32,
        clock: Clock,
        carries: Option<Arc<Snapshot>>,
        by: Party,
    ) {
        self.under_way.push(UnderWay {
            posted,
            slot,
            epoch,
            clock,
            carries,
            by,
            looks: 0,
        });
    }

    pub(super) fn any_for(&self, device: u16) -> bool {
        self.under_way
            .iter()
            .any(|store| store.posted.device == device)
    }

    /// One that arrives at the device now, if any does.
    pub(super) fn next(&mut self, device: u16, rng: &mut Rng) -> Option<UnderWay> {
        let mine = |store: &UnderWay| store.posted.device == device;
        let oldest = self.under_way.iter().position(mine)?;
        let looks = self.under_way.get_mut(oldest).map_or(0, |store| {
            store.looks += 1;
            store.looks
        });
        if looks < LONGEST && rng.below(4) != 0 {
            return None;
        }
        let free: Vec<usize> = (0..self.under_way.len())
            .filter(|at| self.may_arrive(*at, device))
            .collect();
        let choice = free.get(rng.below(free.len() as u32) as usize).copied()?;
        Some(self.under_way.remove(choice))
    }

    /// True if no store before it to the same address happens before it.
    fn may_arrive(&self, at: usize, device: u16) -> bool {
        let Some(store) = self
            .under_way
            .get(at)
            .filter(|store| store.posted.device == device)
        else {
            return false;
        };
        !self.under_way.iter().take(at).any(|before| {
            before.posted.device == device
                && before.posted.offset == store.posted.offset
                && Known::of(&store.clock, store.slot, 1).covers(before.slot, before.epoch)
        })
    }
}
