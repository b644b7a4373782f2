//! Builders of comparisons and selections.

use super::alu::{Built, known, pure, sh};
use super::operands;
use crate::decode::context::{Cx, Mods};
use crate::error::LoadError;
use crate::exec::alu::by_type;
use crate::exec::{alu, float};
use crate::ir::{AluFn, BoolOp, Op, Reg};
use crate::parse::ast::{Operand, Ty};

/// A comparison's function. `lo`, `ls`, `hi` and `hs` compare unsigned whatever the type.
fn comparison(cx: &Cx<'_, '_>, name: &str, ty: Ty) -> Result<AluFn, LoadError> {
    use alu::{eq, ge, gt, le, lt, ne};
    if ty.is_float() {
        return known(cx, float::comparison(name, ty));
    }
    let f = match name {
        "eq" => by_type!(ty, eq),
        "ne" => by_type!(ty, ne),
        "lt" => by_type!(ty, lt),
        "le" => by_type!(ty, le),
        "gt" => by_type!(ty, gt),
        "ge" => by_type!(ty, ge),
        _ if ty.is_signed() => return cx.fail(format!("`.{name}` compares unsigned values")),
        "lo" => by_type!(ty, lt),
        "ls" => by_type!(ty, le),
        "hi" => by_type!(ty, gt),
        _ => by_type!(ty, ge),
    };
    if matches!(ty, Ty::B16 | Ty::B32 | Ty::B64) && !matches!(name, "eq" | "ne") {
        return cx.fail(format!("`.{name}` needs a type with an order"));
    }
    known(cx, f)
}

/// How a comparison is combined with a predicate: the modifier after the comparison.
fn combination(m: &Mods<'_>) -> BoolOp {
    match m.0.get(1).copied() {
        Some("and") => BoolOp::And,
        Some("or") => BoolOp::Or,
        Some("xor") => BoolOp::Xor,
        _ => BoolOp::None,
    }
}

/// Result, operands and combining predicate of a comparison.
type Compared<'o, 'a> = (
    &'o Operand<'a>,
    &'o Operand<'a>,
    &'o Operand<'a>,
    Option<&'o Operand<'a>>,
);

fn compared<'o, 'a>(
    cx: &Cx<'_, '_>,
    ops: &'o [Operand<'a>],
    combine: BoolOp,
) -> Result<Compared<'o, 'a>, LoadError> {
    match (ops, combine) {
        ([out, a, b], BoolOp::None) => Ok((out, a, b, None)),
        ([out, a, b, c], BoolOp::And | BoolOp::Or | BoolOp::Xor) => Ok((out, a, b, Some(c))),
        _ => cx.fail("wrong number of operands"),
    }
}

fn third_predicate(
    cx: &mut Cx<'_, '_>,
    third: Option<&Operand<'_>>,
) -> Result<(Reg, bool), LoadError> {
    match third {
        Some(third) => cx.pred(third),
        None => Ok((cx.constant(0)?, false)),
    }
}

pub(in crate::decode) fn setp(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    let ty = m.ty();
    let bits = ty.bits();
    let name = m.0.first().copied().unwrap_or_default();
    let combine = combination(m);
    let f = comparison(cx, name, ty)?;
    let (out, a, b, third) = compared(cx, ops, combine)?;
    let simple = !matches!(out, Operand::Pair(..)) && third.is_none();
    let (d, q) = cx.dst_pair(out, 1)?;
    let (a, b) = (cx.src(a, bits)?, cx.src(b, bits)?);
    if simple && !ty.is_float() {
        let signed = ty.is_signed();
        let sh = sh(bits);
        // `a > b` is `b < a`.
        return Ok(match name {
            "eq" => Op::SetEq { d, a, b },
            "ne" => Op::SetNe { d, a, b },
            "lt" if signed => Op::SetLtS { sh, d, a, b },
            "le" if signed => Op::SetLeS { sh, d, a, b },
            "gt" if signed => Op::SetLtS { sh, d, a: b, b: a },
            "ge" if signed => Op::SetLeS { sh, d, a: b, b: a },
            "lt" | "lo" => Op::SetLtU { d, a, b },
            "le" | "ls" => Op::SetLeU { d, a, b },
            "gt" | "hi" => Op::SetLtU { d, a: b, b: a },
            _ => Op::SetLeU { d, a: b, b: a },
        });
    }
    if simple {
        return Ok(pure(f, (d, a, b)));
    }
    let (c, negate) = third_predicate(cx, third)?;
    Ok(Op::Setp {
        f,
        d,
        q,
        a,
        b,
        c,
        negate,
        combine,
    })
}

pub(in crate::decode) fn set(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    let ty = m.ty();
    let f = comparison(cx, m.0.first().copied().unwrap_or_default(), ty)?;
    let combine = combination(m);
    let (d, a, b, third) = compared(cx, ops, combine)?;
    let (d, a, b) = (cx.dst(d, 32)?, cx.src(a, ty.bits())?, cx.src(b, ty.bits())?);
    let (c, negate) = third_predicate(cx, third)?;
    Ok(Op::Set {
        f,
        d,
        a,
        b,
        c,
        negate,
        combine,
    })
}

pub(in crate::decode) fn selp(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    operands!(cx, ops, d, a, b, p);
    let bits = m.ty().bits();
    let (d, mut a, mut b) = (cx.dst(d, bits)?, cx.src(a, bits)?, cx.src(b, bits)?);
    let (p, negated) = cx.pred(p)?;
    if negated {
        (a, b) = (b, a);
    }
    Ok(Op::Select { d, a, b, p })
}

pub(in crate::decode) fn slct(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    operands!(cx, ops, d, a, b, c);
    let bits = m.types().next().unwrap_or(Ty::B32).bits();
    let (d, a, b, c) = (
        cx.dst(d, bits)?,
        cx.src(a, bits)?,
        cx.src(b, bits)?,
        cx.src(c, 32)?,
    );
    Ok(Op::Alu {
        f: alu::slct_s32,
        d,
        a,
        b,
        c,
    })
}
