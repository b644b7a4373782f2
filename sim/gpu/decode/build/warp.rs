//! Builders of barriers and warp operations.

use super::operands;
use crate::decode::context::{Cx, Mods};
use crate::error::LoadError;
use crate::ir::{BarKind, NO_REG, Op, ReduxOp, ShflMode, VoteMode};
use crate::parse::ast::{Operand, Ty};

type Built = Result<Op, LoadError>;

pub(in crate::decode) fn bar(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    // `bar` is `barrier.aligned` (PTX ISA, "bar").
    let aligned = m.mnemonic() == "bar" || m.has("aligned");
    let kind = match m.one_of(&["sync", "arrive", "popc", "and", "or"]) {
        Some("arrive") => BarKind::Arrive,
        Some("popc") => BarKind::RedPopc,
        Some("and") => BarKind::RedAnd,
        Some("or") => BarKind::RedOr,
        _ => BarKind::Sync,
    };
    let (mut d, mut p, mut negate) = (cx.sink()?, NO_REG, false);
    let rest = match kind {
        BarKind::Sync | BarKind::Arrive => ops,
        BarKind::RedPopc | BarKind::RedAnd | BarKind::RedOr => {
            let ([out, rest @ ..], true) = (ops, ops.len() >= 3) else {
                return cx.fail("a result, a barrier and a predicate are expected");
            };
            d = cx.dst(out, if kind == BarKind::RedPopc { 32 } else { 1 })?;
            let Some((last, rest)) = rest.split_last() else {
                return cx.fail("a predicate is expected");
            };
            (p, negate) = cx.pred(last)?;
            rest
        }
    };
    let (id, count) = match rest {
        [id] if kind != BarKind::Arrive => (cx.src(id, 32)?, NO_REG),
        [id, count] => (cx.src(id, 32)?, cx.src(count, 32)?),
        _ => return cx.fail("a barrier and a number of threads are expected"),
    };
    Ok(Op::Bar {
        kind,
        aligned,
        id,
        count,
        d,
        p,
        negate,
    })
}

pub(in crate::decode) fn warp_bar(cx: &mut Cx<'_, '_>, _: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    operands!(cx, ops, mask);
    Ok(Op::WarpBar {
        mask: cx.src(mask, 32)?,
    })
}

pub(in crate::decode) fn shfl(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    operands!(cx, ops, out, a, b, c, mask);
    let mode = match m.one_of(&["up", "down", "bfly", "idx"]) {
        Some("up") => ShflMode::Up,
        Some("down") => ShflMode::Down,
        Some("bfly") => ShflMode::Bfly,
        _ => ShflMode::Idx,
    };
    let (d, p) = cx.dst_pair(out, 32)?;
    let (a, b, c) = (cx.src(a, 32)?, cx.src(b, 32)?, cx.src(c, 32)?);
    let mask = cx.src(mask, 32)?;
    Ok(Op::Shfl {
        mode,
        d,
        p,
        a,
        b,
        c,
        mask,
    })
}

pub(in crate::decode) fn vote(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    operands!(cx, ops, out, p, mask);
    let mode = match m.one_of(&["all", "any", "uni", "ballot"]) {
        Some("all") => VoteMode::All,
        Some("any") => VoteMode::Any,
        Some("uni") => VoteMode::Uni,
        _ => VoteMode::Ballot,
    };
    let d = cx.dst(out, m.ty().bits())?;
    let (p, negate) = cx.pred(p)?;
    let mask = cx.src(mask, 32)?;
    Ok(Op::Vote {
        mode,
        d,
        p,
        negate,
        mask,
    })
}

pub(in crate::decode) fn matching(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    operands!(cx, ops, out, a, mask);
    let all = m.has("all");
    if !all && matches!(out, Operand::Pair(..)) {
        return cx.fail("`match.any` has no predicate output");
    }
    let (d, p) = cx.dst_pair(out, 32)?;
    let a = cx.src(a, m.ty().bits())?;
    let mask = cx.src(mask, 32)?;
    Ok(Op::Match {
        all,
        wide: m.ty() == Ty::B64,
        d,
        p,
        a,
        mask,
    })
}

pub(in crate::decode) fn redux(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    operands!(cx, ops, d, a, mask);
    let op = match (
        m.one_of(&["add", "min", "max", "and", "or", "xor"]),
        m.ty().is_signed(),
    ) {
        (Some("min"), false) => ReduxOp::MinU,
        (Some("min"), true) => ReduxOp::MinS,
        (Some("max"), false) => ReduxOp::MaxU,
        (Some("max"), true) => ReduxOp::MaxS,
        (Some("and"), _) => ReduxOp::And,
        (Some("or"), _) => ReduxOp::Or,
        (Some("xor"), _) => ReduxOp::Xor,
        _ => ReduxOp::Add,
    };
    let (d, a, mask) = (cx.dst(d, 32)?, cx.src(a, 32)?, cx.src(mask, 32)?);
    Ok(Op::Redux { op, d, a, mask })
}

pub(in crate::decode) fn elect(cx: &mut Cx<'_, '_>, _: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    operands!(cx, ops, out, mask);
    if !matches!(out, Operand::Pair(..)) {
        return cx.fail("`d|p` expected");
    }
    let (d, p) = cx.dst_pair(out, 32)?;
    let mask = cx.src(mask, 32)?;
    Ok(Op::Elect { d, p, mask })
}

pub(in crate::decode) fn active_mask(
    cx: &mut Cx<'_, '_>,
    _: &Mods<'_>,
    ops: &[Operand<'_>],
) -> Built {
    operands!(cx, ops, d);
    Ok(Op::ActiveMask { d: cx.dst(d, 32)? })
}
