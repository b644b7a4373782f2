//! What a wire does to the frames on it: loses, repeats and delays them, by plan and by seed.
//!
//! Knows: frames by number, chances.
//! Must not know: what a frame says, where it goes, or when time passes.

use std::collections::BTreeSet;

use warpverbs_sim_bus::Rng;

/// What a cable does to frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CablePlan {
    /// Of a million frames, how many are lost.
    pub loss_ppm: u32,
    /// Of a million frames, how many arrive twice.
    pub duplicate_ppm: u32,
    /// Of a million frames, how many take `reorder_ns` longer, so that later ones overtake them.
    pub reorder_ppm: u32,
    /// How much longer.
    pub reorder_ns: u64,
    /// How long a frame takes.
    pub delay_ns: u64,
    /// Frames that are lost whatever the seed, counted from 0 over both directions.
    pub drop: BTreeSet<u64>,
}

/// What a cable has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CableStats {
    /// Frames sent.
    pub frames: u64,
    /// Frames lost.
    pub lost: u64,
    /// Frames that arrived twice.
    pub duplicated: u64,
    /// Frames that took longer.
    pub reordered: u64,
}

/// A plan at work.
pub(crate) struct Impairment {
    plan: CablePlan,
    rng: Rng,
    pub(crate) stats: CableStats,
}

/// What becomes of a frame that is not lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passage {
    /// How many frames were sent before it.
    pub(crate) number: u64,
    /// How long it takes.
    pub(crate) delay_ns: u64,
    /// How often it arrives.
    pub(crate) copies: u64,
}

impl Impairment {
    pub(crate) fn new(plan: CablePlan, seed: u64) -> Self {
        Self {
            plan,
            rng: Rng::new(seed),
            stats: CableStats::default(),
        }
    }

    fn draws(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.rng.below(1_000_000) < ppm
    }

    /// Decides about the next frame; `None` if it is lost, as all are while the wire is out.
    pub(crate) fn pass(&mut self, up: bool) -> Option<Passage> {
        let number = self.stats.frames;
        self.stats.frames += 1;
        let planned = self.plan.drop.contains(&number);
        if self.draws(self.plan.loss_ppm) || planned || !up {
            self.stats.lost += 1;
            return None;
        }
        let mut delay_ns = self.plan.delay_ns;
        if self.draws(self.plan.reorder_ppm) {
            self.stats.reordered += 1;
            delay_ns += self.plan.reorder_ns;
        }
        let copies = if self.draws(self.plan.duplicate_ppm) {
            2
        } else {
            1
        };
        self.stats.duplicated += copies - 1;
        Some(Passage {
            number,
            delay_ns,
            copies,
        })
    }
}
