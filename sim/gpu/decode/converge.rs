//! Join points for the converging scheduler.
//!
//! Knows: branches, and where their paths meet again.
//! Must not know: how lanes are held there.
//!
//! ptxas reconverges a warp's lanes at a branch's immediate post-dominator when it sees fit (`BSSY`/`BSYNC`). The
//! converging scheduler does so at every one of them, which is the most a compiler may do.

use std::collections::BTreeSet;

use super::Lined;
use super::cfg::post_dominators;
use super::unguarded;
use crate::ir::{Instr, NO_PC, NO_REG, Op};

/// Turns conditional branches into [`Op::Branch`], and puts an [`Op::Join`] before each post-dominator.
pub(super) fn insert_joins(
    mut ops: Vec<Lined>,
    tables: &mut [Vec<u32>],
    first_table: usize,
) -> Vec<Lined> {
    // A predicated `ret` is a branch to one that is not.
    let returns = ops.len() as u32;
    let last_line = ops.last().map_or(0, |(_, line)| *line);
    ops.push((unguarded(Op::Ret), last_line));
    for (instr, _) in &mut ops {
        if instr.guard == NO_REG {
            continue;
        }
        let target = match instr.op {
            Op::Bra { target } => target,
            Op::Ret => returns,
            _ => continue,
        };
        *instr = unguarded(Op::Branch {
            target,
            join: NO_PC,
            pred: instr.guard,
            negated: instr.negated,
        });
    }
    let code: Vec<Instr> = ops.iter().map(|(instr, _)| *instr).collect();
    let joins = post_dominators(&code, tables);
    let mut points = BTreeSet::new();
    for ((instr, _), join) in ops.iter_mut().zip(&joins) {
        if let Op::Branch { join: at, .. } | Op::BrxIdx { join: at, .. } = &mut instr.op {
            *at = *join;
            if *join != NO_PC {
                points.insert(*join);
            }
        }
    }
    // An index moves up by the joins before it; a jump to a post-dominator lands on its join.
    let moved: Vec<u32> = {
        let mut shift = 0;
        (0..ops.len() as u32)
            .map(|at| {
                let new = at + shift;
                shift += u32::from(points.contains(&at));
                new
            })
            .collect()
    };
    let move_to = |at: &mut u32| {
        if let Some(new) = moved.get(*at as usize) {
            *at = *new;
        }
    };
    let mut out = Vec::with_capacity(ops.len() + points.len());
    for (at, (mut instr, line)) in ops.into_iter().enumerate() {
        if points.contains(&(at as u32)) {
            out.push((unguarded(Op::Join), line));
        }
        match &mut instr.op {
            Op::Bra { target } => move_to(target),
            Op::Branch { target, join, .. } => {
                move_to(target);
                move_to(join);
            }
            Op::BrxIdx { join, .. } => move_to(join),
            _ => {}
        }
        out.push((instr, line));
    }
    for target in tables.iter_mut().skip(first_table).flatten() {
        move_to(target);
    }
    out
}
