//! Which threads a barrier orders.
//!
//! Knows: `bar`, `barrier` and `bar.warp.sync` order memory; `shfl`, `vote`, `match`, `redux`, `elect` and `activemask`
//! do not (PTX ISA: of these instructions only the former are listed among the synchronizing operations).
//! Must not know: what order is.

use warpverbs_sim_bus::{BusState, Event};

use super::state::Block;
use crate::ir::{BarKind, Op, Program};

/// A block's barrier, or a warp and its member mask.
type Key = (Option<u64>, u64);

fn name_of(slot: u32, id: u64) -> u64 {
    u64::from(slot) << 8 | id & 0xff
}

/// A thread comes to an operation between threads. Of one that does not wait, what it did before is noted now.
pub(super) fn arrives(bus: &mut BusState, block: &Block, slot: u32, index: usize, op: Option<Op>) {
    if let Some(Op::Bar {
        kind: BarKind::Arrive,
        id,
        ..
    }) = op
        && let Some(thread) = block.threads.get(index)
    {
        bus.memory.event(Event::Arrive {
            thread: thread.agent,
            barrier: name_of(slot, thread.get(id)),
        });
    }
}

/// Threads have gone past operations between threads; those of one barrier meet.
pub(super) fn released(
    bus: &mut BusState,
    block: &Block,
    slot: u32,
    program: &Program,
    released: &[u32],
) {
    let mut meetings: Vec<(Key, Vec<u32>)> = Vec::new();
    for thread in released
        .iter()
        .filter_map(|index| block.threads.get(*index as usize))
    {
        let passed = thread
            .pc
            .checked_sub(1)
            .and_then(|pc| program.code.get(pc as usize));
        let key = match passed.map(|instr| instr.op) {
            Some(Op::Bar { kind, id, .. }) if kind != BarKind::Arrive => {
                (Some(name_of(slot, thread.get(id))), 0)
            }
            Some(Op::WarpBar { mask }) => (None, (thread.warp() as u64) << 32 | thread.get(mask)),
            _ => continue,
        };
        match meetings.iter_mut().find(|(known, _)| *known == key) {
            Some((_, threads)) => threads.push(thread.agent),
            None => meetings.push((key, vec![thread.agent])),
        }
    }
    for ((barrier, _), threads) in meetings {
        bus.memory.event(Event::Meet {
            threads: &threads,
            barrier,
        });
    }
}
