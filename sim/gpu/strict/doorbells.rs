//! MMIO stores under way.
//!
//! Knows: which of them may arrive next.
//! Must not know: what they are for.
//!
//! A posted store arrives some steps later. Stores to one address that are ordered by causality arrive in that order
//! (PTX ISA, "mmio operation": performed as often as they are executed, and like relaxed operations otherwise); others in any.

use std::collections::BTreeMap;
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

/// Stores under way, by device, oldest first.
#[derive(Default)]
pub(super) struct Doorbells {
    under_way: BTreeMap<u16, Vec<UnderWay>>,
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
        let stores = self.under_way.entry(posted.device).or_default();
        stores.push(UnderWay {
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
            .get(&device)
            .is_some_and(|stores| !stores.is_empty())
    }

    /// One that arrives at the device now, if any does.
    pub(super) fn next(&mut self, device: u16, rng: &mut Rng) -> Option<UnderWay> {
        let stores = self.under_way.get_mut(&device)?;
        let oldest = stores.first_mut()?;
        oldest.looks += 1;
        if oldest.looks < LONGEST && rng.below(4) != 0 {
            return None;
        }
        let mut choice = rng.below(stores.len() as u32) as usize;
        // One that must arrive before it takes its turn.
        while let Some(before) = first_before(stores, choice) {
            choice = before;
        }
        (choice < stores.len()).then(|| stores.remove(choice))
    }
}

/// The first store to the same address that happens before the one at `at`.
fn first_before(stores: &[UnderWay], at: usize) -> Option<usize> {
    let store = stores.get(at)?;
    let known = Known::of(&store.clock, store.slot);
    stores.iter().take(at).position(|before| {
        before.posted.offset == store.posted.offset && known.covers(before.slot, before.epoch)
    })
}
