//! Block barriers.
//!
//! Knows: `bar` and `barrier` (PTX ISA, "barrier{.cta}").
//! Must not know: who runs next.

use super::state::{Barrier, Block, Failure, Status, WARP};
use crate::ir::{BarKind, NO_REG, Op, Program};
use crate::report::FailureKind;

/// Thread `index` has come to a barrier instruction. Gives the threads that may go on.
pub(super) fn arrive(
    block: &mut Block,
    program: &Program,
    index: usize,
) -> Result<Vec<u32>, Failure> {
    let bad = |detail: String| Failure::new(FailureKind::BarrierDivergence, detail);
    let Some(thread) = block.threads.get_mut(index) else {
        return Ok(Vec::new());
    };
    let pc = thread.pc;
    let Some(Op::Bar {
        kind,
        aligned,
        id,
        count,
        p,
        negate,
        ..
    }) = program.code.get(pc as usize).map(|i| i.op)
    else {
        return Ok(Vec::new());
    };
    let id = thread.get(id);
    let vote = if p == NO_REG {
        false
    } else {
        (thread.get(p) != 0) != negate
    };
    let all = block.place.threads();
    let expected = match count {
        NO_REG => None,
        slot => Some(thread.get(slot) as u32),
    };
    if let Some(n) = expected
        && (n == 0 || n % WARP != 0)
    {
        return Err(bad(format!("{n} threads: a barrier counts whole warps")));
    }
    // A barrier of all threads is one without a number: exited threads leave it.
    let expected = expected.filter(|n| *n != all);
    let warp = thread.warp();
    let number = id as usize;
    let Some(barrier) = block.barriers.get(number) else {
        return Err(bad(format!("there is no barrier {id}")));
    };
    if barrier.arrived > 0 && barrier.expected != expected {
        let say = |n: Option<u32>| n.map_or("all".to_owned(), |n| n.to_string());
        return Err(bad(format!(
            "barrier {id} waits for {} threads, this one for {}",
            say(barrier.expected),
            say(expected)
        )));
    }
    for other in &barrier.waiting {
        let Some(other) = block.threads.get(*other as usize) else {
            continue;
        };
        // All threads of a warp execute the same aligned barrier instruction.
        if aligned && other.warp() == warp && other.pc != pc {
            let line = program.lines.get(other.pc as usize).copied().unwrap_or(0);
            return Err(bad(format!(
                "thread {} of the same warp waits at barrier {id} at PTX line {line}",
                other.index
            )));
        }
        let same = matches!(program.code.get(other.pc as usize).map(|i| i.op),
            Some(Op::Bar { kind: k, .. }) if k == kind || kind == BarKind::Arrive);
        if !same {
            return Err(bad(format!(
                "barrier {id} is used for another operation at the same time"
            )));
        }
    }
    let Some(barrier) = block.barriers.get_mut(number) else {
        return Ok(Vec::new());
    };
    if barrier.arrived == 0 {
        *barrier = Barrier {
            expected,
            all: true,
            waiting: std::mem::take(&mut barrier.waiting),
            ..Barrier::default()
        };
    }
    barrier.arrived += 1;
    barrier.count += u32::from(vote);
    barrier.all &= vote;
    barrier.any |= vote;
    let mut released = Vec::new();
    if kind == BarKind::Arrive {
        released.push(index as u32);
        if let Some(thread) = block.threads.get_mut(index) {
            thread.pc += 1;
        }
    } else {
        barrier.waiting.push(index as u32);
        if let Some(thread) = block.threads.get_mut(index) {
            thread.status = Status::Barrier { id: number as u8 };
        }
    }
    released.extend(complete(block, program, number));
    Ok(released)
}

/// Completes barriers that a thread's exit leaves nobody to wait for.
pub(super) fn recheck(block: &mut Block, program: &Program) -> Vec<u32> {
    let mut released = Vec::new();
    for number in 0..block.barriers.len() {
        if block.barriers.get(number).is_some_and(|b| b.arrived > 0) {
            released.extend(complete(block, program, number));
        }
    }
    released
}

/// Threads that a barrier waits for.
pub(super) fn wanted(block: &Block, barrier: &Barrier) -> u32 {
    barrier.expected.unwrap_or(block.live)
}

fn complete(block: &mut Block, program: &Program, number: usize) -> Vec<u32> {
    let Some(barrier) = block.barriers.get(number) else {
        return Vec::new();
    };
    if barrier.arrived < wanted(block, barrier) {
        return Vec::new();
    }
    let Some(barrier) = block.barriers.get_mut(number) else {
        return Vec::new();
    };
    let barrier = std::mem::take(barrier);
    for index in &barrier.waiting {
        let Some(thread) = block.threads.get_mut(*index as usize) else {
            continue;
        };
        if let Some(Op::Bar { kind, d, .. }) = program.code.get(thread.pc as usize).map(|i| i.op) {
            match kind {
                BarKind::RedPopc => thread.set(d, u64::from(barrier.count)),
                BarKind::RedAnd => thread.set(d, u64::from(barrier.all)),
                BarKind::RedOr => thread.set(d, u64::from(barrier.any)),
                BarKind::Sync | BarKind::Arrive => {}
            }
        }
        thread.pc += 1;
        thread.status = Status::Ready;
    }
    barrier.waiting
}
