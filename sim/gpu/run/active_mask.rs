//! `activemask`.
//!
//! Knows: which lanes get one mask.
//! Must not know: who runs next.

use warpverbs_sim_bus::Rng;

use super::converge;
use super::state::{Block, Status, Thread, WARP};
use crate::ir::{Op, Program};

/// Gives a complete group's lanes their mask.
pub(super) fn give(block: &mut Block, index: usize, lanes: u32, d: u16) -> Vec<u32> {
    let Some(warp) = block.threads.get(index).map(Thread::warp) else {
        return Vec::new();
    };
    let mut released = Vec::new();
    for lane in converge::lanes_of(lanes) {
        if let Some(thread) = block.lane(warp, lane) {
            thread.set(d, u64::from(lanes));
            thread.pc += 1;
            thread.status = Status::Ready;
            thread.met_active_mask = false;
            released.push(thread.index);
        }
    }
    released
}

/// The same for a group that a lane's exit completed.
pub(super) fn complete(block: &mut Block, warp: usize, lanes: u32, program: &Program) -> Vec<u32> {
    let first = lanes.trailing_zeros();
    let Some(thread) = block.lane(warp, first) else {
        return Vec::new();
    };
    let index = thread.index as usize;
    match program.code.get(thread.pc as usize).map(|i| i.op) {
        Some(Op::ActiveMask { d }) => give(block, index, lanes, d),
        _ => Vec::new(),
    }
}

/// `activemask` of independent lanes: a seeded choice among the warp's lanes that are at it now gets one mask. A lane
/// may let some turns pass, so that others can join it.
pub(super) fn some(block: &mut Block, index: usize, d: u16, rng: &mut Rng) -> Vec<u32> {
    let Some(thread) = block.threads.get_mut(index) else {
        return Vec::new();
    };
    let (own, warp, pc) = (thread.lane(), thread.warp(), thread.pc);
    thread.met_active_mask = true;
    if rng.below(2) == 0 {
        return Vec::new();
    }
    let mut lanes = 1u32 << own;
    let everyone = rng.below(2) == 0;
    for lane in 0..WARP {
        let there = block
            .lane(warp, lane)
            .is_some_and(|t| t.met_active_mask && t.pc == pc && t.status == Status::Ready);
        if there && (everyone || rng.below(2) == 0) {
            lanes |= 1 << lane;
        }
    }
    give(block, index, lanes, d)
}
