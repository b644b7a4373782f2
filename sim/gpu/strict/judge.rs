//! What an access may read or follow, and what it conflicts with.
//!
//! Knows: one cell, who accesses it, what that agent knows.
//! Must not know: where cells are kept, or what a finding says.

use warpverbs_sim_bus::Rng;

use super::agents::{AgentState, Agents};
use super::cell::Cell;
use super::clocks::{Clock, Known};
use super::memory::Part;
use super::message::{Message, Side, Weakness};
use super::race::Conflict;

/// The oldest value that may be read by who knows `clock` and nothing else.
pub(super) fn certain(cell: &Cell, clock: &Clock, mask: u8) -> u64 {
    let is_known = |m: &Message| m.live & mask != 0 && m.side.is_before(Known::only(clock));
    let cut = cell.messages.iter().rposition(is_known).unwrap_or(0);
    cell.value_at(cut.max(cell.oldest(mask)), mask).0
}

/// A message from `floor` on, by the seed: the newest half of the time, so that waits end soon. `allows` says of the
/// message behind whether something may come before it.
pub(super) fn choose(
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

/// Finds writes that a read conflicts with.
pub(super) fn judge_read(
    cell: &Cell,
    side: &Side,
    agent: &AgentState,
    agents: &Agents,
    part: Part,
    found: &mut Vec<Conflict>,
) {
    for message in cell.messages.iter().filter(|m| m.live & part.mask != 0) {
        let weakness = if side.non_coherent {
            // PTX ISA, "ld.global.nc": for data that is read-only while the kernel runs.
            let before = |began| message.side.is_before(Known::only(began));
            let began = agent.began.as_ref().is_none_or(before);
            (!began).then_some(Weakness::Weak)
        } else if message.side.is_before(agent.known()) {
            None
        } else {
            side.weakness(&message.side, agents)
        };
        found.extend(weakness.map(|weakness| Conflict {
            earlier: message.side,
            later: *side,
            weakness,
            addr: part.first(),
        }));
    }
}

/// Finds writes and reads that a write conflicts with.
pub(super) fn judge_write(
    cell: &Cell,
    side: &Side,
    agent: &AgentState,
    agents: &Agents,
    part: Part,
    found: &mut Vec<Conflict>,
) {
    let writes = cell
        .messages
        .iter()
        .filter(|m| m.live & part.mask != 0)
        .map(|m| &m.side);
    let reads = cell.reads.iter().filter(|read| read.mask & part.mask != 0);
    for other in writes.chain(reads) {
        let weakness = if other.non_coherent && agents.runs(other.slot, other.epoch) {
            Some(Weakness::Weak)
        } else if other.non_coherent || other.is_before(agent.known()) {
            None
        } else {
            side.weakness(other, agents)
        };
        found.extend(weakness.map(|weakness| Conflict {
            earlier: *other,
            later: *side,
            weakness,
            addr: part.first(),
        }));
    }
}
