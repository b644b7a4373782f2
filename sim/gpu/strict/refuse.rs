//! Instructions that the interpreter executes and the memory model cannot judge.
//!
//! Knows: decoded instructions.
//! Must not know: memory.
//!
//! Most of what has no model here (`cp.async`, `mbarrier`, TMA, `fence.proxy`, `multimem`, `.shared::cluster`) no module
//! with it loads at all.

use warpverbs_sim_bus::Scope;

use crate::error::LoadError;
use crate::ir::{Op, Program};

/// The first instruction of a program that the model cannot judge.
pub(crate) fn beyond_the_model(program: &Program) -> Option<LoadError> {
    let scope_of = |op: &Op| match op {
        Op::Ld { m, .. }
        | Op::LdVec { m, .. }
        | Op::St { m, .. }
        | Op::StVec { m, .. }
        | Op::Atom { m, .. } => Some(m.scope),
        Op::Fence { scope, .. } => Some(*scope),
        _ => None,
    };
    let at = program
        .code
        .iter()
        .position(|instr| scope_of(&instr.op) == Some(Scope::Cluster))?;
    let line = program.lines.get(at).copied().unwrap_or(0);
    let message = "the memory model has no clusters: `.cluster` is checked in fast mode only";
    Some(LoadError::new(line, message).with_source(&program.source))
}
