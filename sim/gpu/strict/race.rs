//! Conflicts: which pairs of accesses are reported, and what would have ordered them.
//!
//! Knows: two accesses that nothing orders.
//! Must not know: values.
//!
//! PTX ISA, "Data Races": two overlapping operations conflict if at least one is a write; they race if neither happens
//! before the other and they are not morally strong.

use std::collections::BTreeSet;

use warpverbs_sim_bus::{Actor, Fault, Memory, MemoryFinding, OrderFault, Party, Posted, Purpose};

use super::agents::{Agents, Place};
use super::message::{Side, Weakness};
use super::table::CELL;
use crate::memory::FastMemory;

/// Findings of different pairs of instructions that are kept.
const KEPT: usize = 64;

/// Two accesses that conflict.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conflict {
    pub(super) earlier: Side,
    pub(super) later: Side,
    pub(super) weakness: Weakness,
    /// Of their cell, or in it.
    pub(super) addr: u64,
}

impl Conflict {
    /// First byte that both touch.
    fn first(&self) -> u64 {
        let both = self.earlier.mask & self.later.mask;
        self.addr / CELL * CELL + u64::from(both.trailing_zeros() % 8)
    }
}

/// What was found: one for each kind and pair of instructions.
#[derive(Default)]
pub(super) struct Findings {
    seen: BTreeSet<(OrderFault, Option<Who>, Who)>,
    kept: Vec<MemoryFinding>,
    /// Of how many pairs it is not said more than that there were so many.
    left_out: u64,
}

/// Who and where, but for the number of the thread or queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    Host,
    Device(&'static str),
    Instruction(u32),
}

impl Who {
    fn of(side: &Side) -> Self {
        match side.place {
            Place::Host => Self::Host,
            Place::Device => Self::Device(side.does()),
            Place::Block(_) => Self::Instruction(side.site),
        }
    }
}

impl Findings {
    /// True if a finding is to be kept: it is the first of its kind and pair, and not too many are kept.
    fn is_new(&mut self, kind: OrderFault, earlier: Option<Who>, later: Who) -> bool {
        if !self.seen.insert((kind, earlier, later)) {
            return false;
        }
        let new = self.seen.len() <= KEPT;
        self.left_out += u64::from(!new);
        new
    }

    /// Two accesses that conflict.
    pub(super) fn add(
        &mut self,
        conflict: &Conflict,
        learned: Option<Party>,
        agents: &Agents,
        flat: &FastMemory,
    ) {
        let Conflict { earlier, later, .. } = conflict;
        let kind = kind(earlier, later, conflict.weakness);
        if self.is_new(kind, Some(Who::of(earlier)), Who::of(later)) {
            self.kept.push(MemoryFinding {
                kind,
                addr: conflict.first(),
                object: flat.describe(conflict.first()),
                earlier: Some(earlier.party(agents)),
                later: later.party(agents),
                learned,
                missing: missing(kind, earlier, later, agents),
            });
        }
    }

    /// A device reads what nobody has written.
    pub(super) fn uninitialised(
        &mut self,
        reader: &Side,
        addr: u64,
        agents: &Agents,
        flat: &FastMemory,
    ) {
        let kind = OrderFault::Uninitialised;
        if self.is_new(kind, None, Who::of(reader)) {
            self.kept.push(MemoryFinding {
                kind,
                addr,
                object: flat.describe(addr),
                earlier: None,
                later: reader.party(agents),
                learned: None,
                missing: "nobody has written these bytes (rule O1: every byte that a work request declares is written)"
                    .into(),
            });
        }
    }

    /// A device refused an MMIO store when it arrived.
    pub(super) fn refused(&mut self, posted: Posted, fault: &Fault) {
        let kind = OrderFault::RefusedStore;
        let does = "MMIO store";
        if self.is_new(kind, None, Who::Device(does)) {
            let actor = Actor::Device {
                device: posted.device,
                context: posted.context,
            };
            self.kept.push(MemoryFinding {
                kind,
                addr: fault.addr,
                object: String::new(),
                earlier: None,
                later: Party {
                    actor,
                    site: 0,
                    does,
                },
                learned: None,
                missing: fault.to_string(),
            });
        }
    }

    pub(super) fn take(&mut self) -> Vec<MemoryFinding> {
        std::mem::take(&mut self.kept)
    }

    /// Pairs that were found and not kept.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out
    }
}

fn kind(earlier: &Side, later: &Side, weakness: Weakness) -> OrderFault {
    let device = |side: &Side| side.place == Place::Device;
    if earlier.non_coherent || later.non_coherent {
        OrderFault::NonCoherent
    } else if device(later) && later.purpose == Purpose::Wqe {
        OrderFault::WorkRequest
    } else if device(later) && !later.writes && later.purpose == Purpose::Payload {
        OrderFault::DeviceRead
    } else if device(earlier)
        && matches!(earlier.purpose, Purpose::Wqe | Purpose::Payload)
        && !earlier.writes
    {
        OrderFault::Reuse
    } else if device(earlier) && earlier.writes {
        OrderFault::DeviceWrite
    } else {
        match weakness {
            Weakness::Weak => OrderFault::Race,
            Weakness::Scope => OrderFault::Scope,
            Weakness::Overlap => OrderFault::MixedSize,
        }
    }
}

fn scope_between(a: &Side, b: &Side, agents: &Agents) -> &'static str {
    match agents.distance(a.place, b.place) {
        0 => ".cta",
        1 => ".gpu",
        _ => ".sys",
    }
}

fn missing(kind: OrderFault, earlier: &Side, later: &Side, agents: &Agents) -> String {
    let scope = scope_between(earlier, later, agents);
    match kind {
        OrderFault::WorkRequest => format!(
            "no release between the store and the doorbell record or doorbell that made the NIC fetch: fence.acq_rel{scope} after the last store of the work request, before the doorbell record (rule O2)"
        ),
        OrderFault::DeviceRead => format!(
            "no release between the store of the data and the doorbell record or doorbell of the work request that names it: fence.acq_rel{scope} between the two (rule O2)"
        ),
        OrderFault::Reuse => format!(
            "nothing orders the store after the NIC's read: the completion must be seen by a strong .sys load and a fence.acq_rel{scope} after it, by this thread or by one that released to it (rule O6)"
        ),
        OrderFault::DeviceWrite if !later.writes || later.place != Place::Device => format!(
            "nothing orders the access after the NIC's write: a strong .sys load of the completion and a fence.acq_rel{scope} after it (rule O6); for data of a READ that takes another path than its completion, a DUMP as well (rule O14)"
        ),
        OrderFault::NonCoherent => {
            "the location is written while the kernel runs: ld.global without .nc (rule O8)".into()
        }
        OrderFault::Scope => format!("the scope of one of them leaves the other out: both need {scope}"),
        OrderFault::MixedSize => {
            "strong accesses of different sizes never synchronise: use one size and address, or order them".into()
        }
        _ if later.purpose == Purpose::Dbr || earlier.purpose == Purpose::Dbr => {
            format!("the doorbell record takes strong{scope} stores only: st.relaxed{scope} (rule O3)")
        }
        _ => format!(
            "no release{scope} by the first and acquire{scope} by the second through a strong{scope} access, and no barrier: or make both strong{scope}"
        ),
    }
}
