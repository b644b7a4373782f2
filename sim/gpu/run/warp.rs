//! Warp operations: `.sync` instructions wait for all lanes their mask names that have not exited.
//!
//! Knows: what each operation computes from the lanes' values.
//! Must not know: who runs next.

use super::state::{Block, Failure, Status, WARP};
use crate::ir::{Op, Program, ReduxOp, ShflMode, VoteMode};
use crate::report::FailureKind;

/// What a source lane that takes no part supplies: unpredictable by the PTX ISA, so not a plausible value.
const POISON: u64 = 0xa5a5_a5a5;

/// The slot that holds the member mask of a warp operation.
pub(super) fn mask_slot(op: &Op) -> Option<u16> {
    match op {
        Op::WarpBar { mask }
        | Op::Shfl { mask, .. }
        | Op::Vote { mask, .. }
        | Op::Match { mask, .. }
        | Op::Redux { mask, .. }
        | Op::Elect { mask, .. } => Some(*mask),
        _ => None,
    }
}

/// True if two operations meet: same instruction, same qualifiers; operands are each lane's own (PTX ISA, "shfl.sync").
fn meets(a: &Op, b: &Op) -> bool {
    match (a, b) {
        (Op::WarpBar { .. }, Op::WarpBar { .. }) | (Op::Elect { .. }, Op::Elect { .. }) => true,
        (Op::Shfl { mode: a, .. }, Op::Shfl { mode: b, .. }) => a == b,
        (Op::Vote { mode: a, .. }, Op::Vote { mode: b, .. }) => a == b,
        (
            Op::Match {
                all: a, wide: x, ..
            },
            Op::Match {
                all: b, wide: y, ..
            },
        ) => (a, x) == (b, y),
        (Op::Redux { op: a, .. }, Op::Redux { op: b, .. }) => a == b,
        _ => false,
    }
}

/// Thread `index` has come to a warp operation. Gives the threads that may go on; none if it must wait.
pub(super) fn arrive(
    block: &mut Block,
    program: &Program,
    index: usize,
) -> Result<Vec<u32>, Failure> {
    let Some(thread) = block.threads.get_mut(index) else {
        return Ok(Vec::new());
    };
    let Some(op) = program.code.get(thread.pc as usize).map(|i| i.op) else {
        return Ok(Vec::new());
    };
    let mask = mask_slot(&op).map_or(0, |slot| thread.get(slot) as u32);
    if mask >> thread.lane() & 1 == 0 {
        return Err(Failure::new(
            FailureKind::BadMask,
            format!(
                "lane {} executes it with member mask {mask:#010x}",
                thread.lane()
            ),
        ));
    }
    thread.status = Status::Warp { mask };
    let warp = thread.warp();
    Ok(complete(block, program, warp, mask, &op))
}

/// Completes operations of a warp that a lane's exit leaves nobody to wait for.
pub(super) fn recheck(block: &mut Block, program: &Program, warp: usize) -> Vec<u32> {
    let mut released = Vec::new();
    for lane in 0..WARP {
        let Some(thread) = block.lane(warp, lane) else {
            break;
        };
        if let Status::Warp { mask } = thread.status
            && let Some(op) = program.code.get(thread.pc as usize).map(|i| i.op)
        {
            released.extend(complete(block, program, warp, mask, &op));
        }
    }
    released
}

/// Lanes among `mask` that still have to come to an operation that meets `op`.
pub(super) fn missing(block: &Block, program: &Program, warp: usize, mask: u32, op: &Op) -> u32 {
    let live = block.warps.get(warp).map_or(0, |w| w.live);
    let mut missing = mask & live;
    for lane in 0..WARP {
        let there = block
            .threads
            .get(warp * WARP as usize + lane as usize)
            .is_some_and(|thread| {
                thread.status == Status::Warp { mask }
                    && program
                        .code
                        .get(thread.pc as usize)
                        .is_some_and(|i| meets(&i.op, op))
            });
        if there {
            missing &= !(1 << lane);
        }
    }
    missing
}

fn complete(block: &mut Block, program: &Program, warp: usize, mask: u32, op: &Op) -> Vec<u32> {
    if missing(block, program, warp, mask, op) != 0 {
        return Vec::new();
    }
    let live = block.warps.get(warp).map_or(0, |w| w.live);
    let lanes = mask & live;
    // Each lane may be at an instruction of its own: collect the inputs first, then hand out the results.
    let mut inputs = [Input::default(); WARP as usize];
    for (lane, input) in inputs.iter_mut().enumerate() {
        if lanes >> lane & 1 == 1
            && let Some(thread) = block.lane(warp, lane as u32)
            && let Some(op) = program.code.get(thread.pc as usize).map(|i| i.op)
        {
            *input = match op {
                Op::Shfl { a, b, c, .. } => Input {
                    a: thread.get(a),
                    b: thread.get(b),
                    c: thread.get(c),
                },
                Op::Vote { p, negate, .. } => Input::one(thread.get(p) ^ u64::from(negate)),
                Op::Match { a, .. } | Op::Redux { a, .. } => Input::one(thread.get(a)),
                _ => Input::default(),
            };
        }
    }
    let mut released = Vec::new();
    for lane in (0..WARP).filter(|lane| lanes >> lane & 1 == 1) {
        let Some(thread) = block.lane(warp, lane) else {
            continue;
        };
        let Some(op) = program.code.get(thread.pc as usize).map(|i| i.op) else {
            continue;
        };
        match op {
            Op::Shfl { mode, d, p, .. } => {
                let (value, inside) = shuffle(mode, lane, lanes, &inputs);
                thread.set(p, u64::from(inside));
                thread.set(d, value);
            }
            Op::Vote { mode, d, .. } => thread.set(d, vote(mode, lanes, &inputs)),
            Op::Match { all, d, p, .. } => {
                let own = inputs.get(lane as usize).map_or(0, |i| i.a);
                let same = lanes_where(lanes, &inputs, |i| i.a == own);
                let value = if all && same != lanes { 0 } else { same };
                thread.set(p, u64::from(same == lanes));
                thread.set(d, u64::from(value));
            }
            Op::Redux { op, d, .. } => thread.set(d, reduce(op, lanes, &inputs)),
            Op::Elect { d, p, .. } => {
                // Any choice that depends on the mask alone is allowed (PTX ISA, "elect.sync"): the lowest lane.
                let leader = lanes.trailing_zeros();
                thread.set(p, u64::from(leader == lane));
                thread.set(d, u64::from(leader));
            }
            _ => {}
        }
        thread.pc += 1;
        thread.status = Status::Ready;
        released.push(thread.index);
    }
    released
}

#[derive(Clone, Copy, Default)]
struct Input {
    a: u64,
    b: u64,
    c: u64,
}

impl Input {
    fn one(a: u64) -> Self {
        Self { a, b: 0, c: 0 }
    }
}

fn lanes_where(lanes: u32, inputs: &[Input; 32], keep: impl Fn(&Input) -> bool) -> u32 {
    inputs
        .iter()
        .enumerate()
        .filter(|(lane, input)| lanes >> lane & 1 == 1 && keep(input))
        .fold(0, |mask, (lane, _)| mask | 1 << lane)
}

/// The lane that a shuffle reads, and its predicate (PTX ISA, "shfl.sync", the pseudocode of its semantics).
fn shuffle(mode: ShflMode, lane: u32, lanes: u32, inputs: &[Input; 32]) -> (u64, bool) {
    let own = inputs.get(lane as usize).copied().unwrap_or_default();
    let b = (own.b & 31) as i64;
    let clamp = (own.c & 31) as i64;
    let segment = (own.c >> 8 & 31) as i64;
    let lane = i64::from(lane);
    let max = (lane & segment) | (clamp & !segment);
    let min = lane & segment;
    let (source, inside) = match mode {
        ShflMode::Up => (lane - b, lane - b >= max),
        ShflMode::Down => (lane + b, lane + b <= max),
        ShflMode::Bfly => (lane ^ b, lane ^ b <= max),
        ShflMode::Idx => {
            let source = min | (b & !segment);
            (source, source <= max)
        }
    };
    let source = if inside { source } else { lane };
    let taking_part = (0..32).contains(&source) && lanes >> source & 1 == 1;
    let value = match usize::try_from(source).ok().and_then(|s| inputs.get(s)) {
        Some(input) if taking_part => input.a,
        _ => POISON,
    };
    (value, inside)
}

fn vote(mode: VoteMode, lanes: u32, inputs: &[Input; 32]) -> u64 {
    let yes = lanes_where(lanes, inputs, |i| i.a != 0);
    match mode {
        VoteMode::All => u64::from(yes == lanes),
        VoteMode::Any => u64::from(yes != 0),
        VoteMode::Uni => u64::from(yes == lanes || yes == 0),
        VoteMode::Ballot => u64::from(yes),
    }
}

fn reduce(op: ReduxOp, lanes: u32, inputs: &[Input; 32]) -> u64 {
    let values = inputs
        .iter()
        .enumerate()
        .filter(|(lane, _)| lanes >> lane & 1 == 1)
        .map(|(_, input)| input.a as u32);
    let signed = |v: u32| v as i32;
    let result = values.reduce(|x, y| match op {
        ReduxOp::Add => x.wrapping_add(y),
        ReduxOp::MinU => x.min(y),
        ReduxOp::MaxU => x.max(y),
        ReduxOp::MinS => signed(x).min(signed(y)) as u32,
        ReduxOp::MaxS => signed(x).max(signed(y)) as u32,
        ReduxOp::And => x & y,
        ReduxOp::Or => x | y,
        ReduxOp::Xor => x ^ y,
    });
    u64::from(result.unwrap_or(0))
}
