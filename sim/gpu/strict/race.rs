//! Conflicts: which pairs of accesses are reported, and what would have ordered them.
//!
//! Knows: two accesses that nothing orders.
//! Must not know: values.
//!
//! PTX ISA, "Data Races": two overlapping operations conflict if at least one is a write; they race if neither happens
//! before the other and they are not morally strong.

use std::collections::BTreeMap;

use warpverbs_sim_bus::{Actor, MemoryFinding, OrderFault, Party, Purpose};

use super::agents::{Agents, Place};
use super::message::{Side, Weakness};

/// Findings of different pairs of instructions that are kept.
const KEPT: usize = 64;

/// What was found: one for each kind and pair of instructions.
#[derive(Default)]
pub(super) struct Findings {
    seen: BTreeMap<Key, ()>,
    kept: Vec<MemoryFinding>,
}

type Key = (OrderFault, Option<(u8, u32)>, (u8, u32));

impl Findings {
    /// Adds a finding if none of the same instructions was there; `object` names the address.
    pub(super) fn add(&mut self, finding: MemoryFinding, object: impl FnOnce() -> String) {
        let key = (
            finding.kind,
            finding.earlier.map(place_of),
            place_of(finding.later),
        );
        if self.seen.len() >= KEPT || self.seen.insert(key, ()).is_some() {
            return;
        }
        self.kept.push(MemoryFinding {
            object: object(),
            ..finding
        });
    }

    pub(super) fn take(&mut self) -> Vec<MemoryFinding> {
        std::mem::take(&mut self.kept)
    }
}

/// Who and where, but for the number of the thread or queue.
fn place_of(party: Party) -> (u8, u32) {
    match party.actor {
        Actor::Host => (0, 0),
        Actor::Device { .. } => (1, party.does.len() as u32),
        Actor::Thread { .. } => (2, party.site),
    }
}

/// A finding of two accesses that conflict.
pub(super) fn conflict(
    earlier: &Side,
    later: &Side,
    weakness: Weakness,
    addr: u64,
    agents: &Agents,
) -> MemoryFinding {
    let kind = kind(earlier, later, weakness);
    MemoryFinding {
        kind,
        addr,
        object: String::new(),
        earlier: Some(earlier.party(agents)),
        later: later.party(agents),
        learned: None,
        missing: missing(kind, earlier, later, agents),
    }
}

/// A device reads what nobody has written.
pub(super) fn uninitialised(reader: &Side, addr: u64, agents: &Agents) -> MemoryFinding {
    MemoryFinding {
        kind: OrderFault::Uninitialised,
        addr,
        object: String::new(),
        earlier: None,
        later: reader.party(agents),
        learned: None,
        missing: "nobody has written these bytes (rule O1: every byte that a work request declares is written)".into(),
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
