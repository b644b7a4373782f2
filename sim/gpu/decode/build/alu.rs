//! Builders of arithmetic, logic, comparison and data movement.

use super::operands;
use crate::decode::context::{Cx, Mods, is_dynamic, special_register};
use crate::error::LoadError;
use crate::exec::{alu, float};
use crate::exec::{alu::by_type, float::by_float};
use crate::ir::{Alu4Fn, AluFn, BoolOp, Op, Reg};
use crate::parse::ast::{Operand, Ty};

type Built = Result<Op, LoadError>;

/// 64 minus a width.
fn sh(bits: u8) -> u8 {
    64 - bits.min(64)
}

fn known<F>(cx: &Cx<'_, '_>, f: Option<F>) -> Result<F, LoadError> {
    f.map_or_else(|| cx.fail("unsupported type"), Ok)
}

fn two(cx: &mut Cx<'_, '_>, ops: &[Operand<'_>], bits: u8) -> Result<(Reg, Reg, Reg), LoadError> {
    operands!(cx, ops, d, a, b);
    Ok((cx.dst(d, bits)?, cx.src(a, bits)?, cx.src(b, bits)?))
}

fn pure(f: AluFn, (d, a, b): (Reg, Reg, Reg)) -> Op {
    Op::Alu { f, d, a, b, c: a }
}

pub(in crate::decode) fn add(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    let (d, a, b) = two(cx, ops, m.ty().bits())?;
    Ok(Op::Add {
        sh: sh(m.ty().bits()),
        d,
        a,
        b,
    })
}

pub(in crate::decode) fn sub(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    let (d, a, b) = two(cx, ops, m.ty().bits())?;
    Ok(Op::Sub {
        sh: sh(m.ty().bits()),
        d,
        a,
        b,
    })
}

pub(in crate::decode) fn add_sat(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    let f = if m.mnemonic() == "add" {
        alu::add_sat_s32
    } else {
        alu::sub_sat_s32
    };
    Ok(pure(f, two(cx, ops, 32)?))
}

/// `add.cc`, `addc`, `sub.cc`, `subc`, `mad.cc`, `madc`.
pub(in crate::decode) fn extended(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    let ty = m.ty();
    let bits = ty.bits();
    let zero = cx.constant(0)?;
    let e = if m.carries_in() { cx.carry()? } else { zero };
    let second = if m.has("cc") { cx.carry()? } else { cx.sink()? };
    macro_rules! pick {
        ($f:ident) => {
            match ty {
                Ty::U32 => alu::$f::<u32> as Alu4Fn,
                Ty::S32 => alu::$f::<i32>,
                Ty::U64 => alu::$f::<u64>,
                _ => alu::$f::<i64>,
            }
        };
    }
    let f = match (m.mnemonic(), m.has("hi")) {
        ("add" | "addc", _) => pick!(add_carry),
        ("sub" | "subc", _) => pick!(sub_borrow),
        (_, false) => pick!(mad_lo_carry),
        (_, true) => pick!(mad_hi_carry),
    };
    if matches!(m.mnemonic(), "mad" | "madc") {
        operands!(cx, ops, d, a, b, c);
        let (d, a, b, c) = (
            cx.dst(d, bits)?,
            cx.src(a, bits)?,
            cx.src(b, bits)?,
            cx.src(c, bits)?,
        );
        Ok(Op::Alu4 {
            f,
            d,
            second,
            a,
            b,
            c,
            e,
        })
    } else {
        let (d, a, b) = two(cx, ops, bits)?;
        Ok(Op::Alu4 {
            f,
            d,
            second,
            a,
            b,
            c: zero,
            e,
        })
    }
}

pub(in crate::decode) fn mul(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    let ty = m.ty();
    let bits = ty.bits();
    if m.has("wide") {
        operands!(cx, ops, d, a, b);
        let regs = (cx.dst(d, 2 * bits)?, cx.src(a, bits)?, cx.src(b, bits)?);
        // Unsigned factors are zero-extended already, so their 64-bit product is the wide one.
        return Ok(match ty {
            Ty::U16 | Ty::U32 => Op::Mul {
                sh: 0,
                d: regs.0,
                a: regs.1,
                b: regs.2,
            },
            Ty::S16 => pure(alu::mul_wide::<i16>, regs),
            _ => pure(alu::mul_wide::<i32>, regs),
        });
    }
    let (d, a, b) = two(cx, ops, bits)?;
    if m.has("lo") {
        return Ok(Op::Mul {
            sh: sh(bits),
            d,
            a,
            b,
        });
    }
    use alu::mul_hi;
    Ok(pure(known(cx, by_type!(ty, mul_hi))?, (d, a, b)))
}

pub(in crate::decode) fn mad(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    operands!(cx, ops, d, a, b, c);
    let ty = m.ty();
    let bits = ty.bits();
    let result = if m.has("wide") { 2 * bits } else { bits };
    let (d, a, b, c) = (
        cx.dst(d, result)?,
        cx.src(a, bits)?,
        cx.src(b, bits)?,
        cx.src(c, result)?,
    );
    Ok(match (m.has("wide"), m.has("lo"), ty) {
        (true, _, Ty::S16) => Op::Alu {
            f: alu::mad_wide::<i16>,
            d,
            a,
            b,
            c,
        },
        (true, _, Ty::S32) => Op::Alu {
            f: alu::mad_wide::<i32>,
            d,
            a,
            b,
            c,
        },
        (true, ..) => Op::Mad {
            sh: sh(result),
            d,
            a,
            b,
            c,
        },
        (_, true, _) => Op::Mad {
            sh: sh(bits),
            d,
            a,
            b,
            c,
        },
        _ => {
            use alu::mad_hi;
            let f = known(cx, by_type!(ty, mad_hi))?;
            Op::Alu { f, d, a, b, c }
        }
    })
}

pub(in crate::decode) fn mul24(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    let f: AluFn = match (m.ty(), m.has("hi")) {
        (Ty::U32, false) => alu::mul24_lo::<u32>,
        (Ty::U32, true) => alu::mul24_hi::<u32>,
        (_, false) => alu::mul24_lo::<i32>,
        (_, true) => alu::mul24_hi::<i32>,
    };
    if m.mnemonic() == "mad24" {
        operands!(cx, ops, d, a, b, c);
        let (d, a, b, c) = (
            cx.dst(d, 32)?,
            cx.src(a, 32)?,
            cx.src(b, 32)?,
            cx.src(c, 32)?,
        );
        Ok(Op::Alu { f, d, a, b, c })
    } else {
        let (d, a, b) = two(cx, ops, 32)?;
        let c = cx.constant(0)?;
        Ok(Op::Alu { f, d, a, b, c })
    }
}

pub(in crate::decode) fn int2(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    use alu::{div, max, min, rem};
    let ty = m.ty();
    let f = match m.mnemonic() {
        "div" => by_type!(ty, div),
        "rem" => by_type!(ty, rem),
        "min" => by_type!(ty, min),
        _ => by_type!(ty, max),
    };
    let f = known(cx, f)?;
    Ok(pure(f, two(cx, ops, ty.bits())?))
}

pub(in crate::decode) fn int1(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    use alu::{abs, brev, cnot, neg};
    let ty = m.ty();
    let f = match m.mnemonic() {
        "abs" => by_type!(ty, abs),
        "neg" => by_type!(ty, neg),
        "cnot" => by_type!(ty, cnot),
        _ => by_type!(ty, brev),
    };
    let f = known(cx, f)?;
    operands!(cx, ops, d, a);
    let (d, a) = (cx.dst(d, ty.bits())?, cx.src(a, ty.bits())?);
    Ok(pure(f, (d, a, a)))
}

pub(in crate::decode) fn float2(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    use float::{fadd, fcopysign, fdiv, fmax, fmin, fmul, fsub};
    let ty = m.ty();
    let f = match m.mnemonic() {
        "add" => by_float!(ty, fadd),
        "sub" => by_float!(ty, fsub),
        "mul" => by_float!(ty, fmul),
        "div" => by_float!(ty, fdiv),
        "min" => by_float!(ty, fmin),
        "copysign" => by_float!(ty, fcopysign),
        _ => by_float!(ty, fmax),
    };
    let f = known(cx, f)?;
    Ok(pure(f, two(cx, ops, ty.bits())?))
}

pub(in crate::decode) fn float1(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    use float::{fabs, fneg, frcp, fsqrt};
    let ty = m.ty();
    let f = match m.mnemonic() {
        "abs" => by_float!(ty, fabs),
        "neg" => by_float!(ty, fneg),
        "sqrt" => by_float!(ty, fsqrt),
        _ => by_float!(ty, frcp),
    };
    let f = known(cx, f)?;
    operands!(cx, ops, d, a);
    let (d, a) = (cx.dst(d, ty.bits())?, cx.src(a, ty.bits())?);
    Ok(pure(f, (d, a, a)))
}

pub(in crate::decode) fn fma(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    use float::ffma;
    operands!(cx, ops, d, a, b, c);
    let bits = m.ty().bits();
    let f = known(cx, by_float!(m.ty(), ffma))?;
    let (d, a, b, c) = (
        cx.dst(d, bits)?,
        cx.src(a, bits)?,
        cx.src(b, bits)?,
        cx.src(c, bits)?,
    );
    Ok(Op::Alu { f, d, a, b, c })
}

pub(in crate::decode) fn sad(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    use alu::sad;
    operands!(cx, ops, d, a, b, c);
    let bits = m.ty().bits();
    let f = known(cx, by_type!(m.ty(), sad))?;
    let (d, a, b, c) = (
        cx.dst(d, bits)?,
        cx.src(a, bits)?,
        cx.src(b, bits)?,
        cx.src(c, bits)?,
    );
    Ok(Op::Alu { f, d, a, b, c })
}

pub(in crate::decode) fn logic(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    let (d, a, b) = two(cx, ops, m.ty().bits())?;
    Ok(match m.mnemonic() {
        "and" => Op::And { d, a, b },
        "or" => Op::Or { d, a, b },
        _ => Op::Xor { d, a, b },
    })
}

pub(in crate::decode) fn not(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    use alu::not;
    operands!(cx, ops, d, a);
    let ty = m.ty();
    let (d, a) = (cx.dst(d, ty.bits())?, cx.src(a, ty.bits())?);
    let f = if ty == Ty::Pred {
        alu::not_pred
    } else {
        known(cx, by_type!(ty, not))?
    };
    Ok(pure(f, (d, a, a)))
}

pub(in crate::decode) fn lop3(cx: &mut Cx<'_, '_>, _: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    operands!(cx, ops, d, a, b, c, table);
    let Operand::Int(value @ 0..=255) = table else {
        return cx.fail("the truth table is a literal from 0 to 255");
    };
    let e = cx.constant(*value as u64)?;
    let second = cx.sink()?;
    let (d, a, b, c) = (
        cx.dst(d, 32)?,
        cx.src(a, 32)?,
        cx.src(b, 32)?,
        cx.src(c, 32)?,
    );
    Ok(Op::Alu4 {
        f: alu::lop3,
        d,
        second,
        a,
        b,
        c,
        e,
    })
}

pub(in crate::decode) fn shift(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    use alu::shr;
    operands!(cx, ops, d, a, amount);
    let ty = m.ty();
    let bits = ty.bits();
    // The amount is a 32-bit value whatever the type (PTX ISA, "shl").
    let (d, a, b) = (cx.dst(d, bits)?, cx.src(a, bits)?, cx.src(amount, 32)?);
    Ok(match m.mnemonic() {
        "shl" => Op::Shl {
            sh: sh(bits),
            d,
            a,
            b,
        },
        _ if !ty.is_signed() => Op::ShrU { d, a, b },
        _ => pure(known(cx, by_type!(ty, shr))?, (d, a, b)),
    })
}

pub(in crate::decode) fn funnel(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    operands!(cx, ops, d, low, high, amount);
    let f: AluFn = match (m.has("l"), m.has("wrap")) {
        (true, true) => alu::shf_l::<true>,
        (true, false) => alu::shf_l::<false>,
        (false, true) => alu::shf_r::<true>,
        (false, false) => alu::shf_r::<false>,
    };
    let (d, a, b, c) = (
        cx.dst(d, 32)?,
        cx.src(low, 32)?,
        cx.src(high, 32)?,
        cx.src(amount, 32)?,
    );
    Ok(Op::Alu { f, d, a, b, c })
}

pub(in crate::decode) fn bfe(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    use alu::bfe;
    operands!(cx, ops, d, a, position, length);
    let bits = m.ty().bits();
    let f = known(cx, by_type!(m.ty(), bfe))?;
    let (d, a) = (cx.dst(d, bits)?, cx.src(a, bits)?);
    let (b, c) = (cx.src(position, 32)?, cx.src(length, 32)?);
    Ok(Op::Alu { f, d, a, b, c })
}

pub(in crate::decode) fn bfi(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    operands!(cx, ops, d, a, b, position, length);
    let bits = m.ty().bits();
    let f: Alu4Fn = if bits == 32 {
        alu::bfi::<u32>
    } else {
        alu::bfi::<u64>
    };
    let second = cx.sink()?;
    let (d, a, b) = (cx.dst(d, bits)?, cx.src(a, bits)?, cx.src(b, bits)?);
    let (c, e) = (cx.src(position, 32)?, cx.src(length, 32)?);
    Ok(Op::Alu4 {
        f,
        d,
        second,
        a,
        b,
        c,
        e,
    })
}

/// Operations whose result has 32 bits whatever the operand.
pub(in crate::decode) fn count(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    use alu::clz;
    operands!(cx, ops, d, a);
    let ty = m.ty();
    let f: AluFn = match (m.mnemonic(), m.has("shiftamt"), ty) {
        ("popc", ..) => alu::popc,
        ("clz", ..) => known(cx, by_type!(ty, clz))?,
        (_, false, Ty::U32) => alu::bfind::<u32, false>,
        (_, false, Ty::U64) => alu::bfind::<u64, false>,
        (_, false, Ty::S32) => alu::bfind::<i32, false>,
        (_, false, _) => alu::bfind::<i64, false>,
        (_, true, Ty::U32) => alu::bfind::<u32, true>,
        (_, true, Ty::U64) => alu::bfind::<u64, true>,
        (_, true, Ty::S32) => alu::bfind::<i32, true>,
        (_, true, _) => alu::bfind::<i64, true>,
    };
    let (d, a) = (cx.dst(d, 32)?, cx.src(a, ty.bits())?);
    Ok(pure(f, (d, a, a)))
}

pub(in crate::decode) fn prmt(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    operands!(cx, ops, d, a, b, selector);
    let f: AluFn = match m.0.get(1).copied() {
        None => alu::prmt,
        Some("f4e") => alu::prmt_f4e,
        Some("b4e") => alu::prmt_b4e,
        Some("rc8") => alu::prmt_rc8,
        Some("ecl") => alu::prmt_ecl,
        Some("ecr") => alu::prmt_ecr,
        Some(_) => alu::prmt_rc16,
    };
    let (d, a, b, c) = (
        cx.dst(d, 32)?,
        cx.src(a, 32)?,
        cx.src(b, 32)?,
        cx.src(selector, 32)?,
    );
    Ok(Op::Alu { f, d, a, b, c })
}

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

pub(in crate::decode) fn mov(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    operands!(cx, ops, d, a);
    let bits = m.ty().bits();
    match (d, a) {
        (Operand::Vector(parts), a) => {
            let part_bits = part_bits(cx, parts, bits)?;
            let mut regs = Vec::new();
            for part in parts {
                regs.push(cx.dst(part, part_bits)?);
            }
            let a = cx.src(a, bits)?;
            Ok(Op::Unpack {
                a,
                regs: cx.vector(&regs)?,
                bits: part_bits,
            })
        }
        (d, Operand::Vector(parts)) => {
            let part_bits = part_bits(cx, parts, bits)?;
            let mut regs = Vec::new();
            for part in parts {
                regs.push(cx.src(part, part_bits)?);
            }
            let d = cx.dst(d, bits)?;
            Ok(Op::Pack {
                d,
                regs: cx.vector(&regs)?,
                bits: part_bits,
            })
        }
        (d, a) => {
            let d = cx.dst(d, bits)?;
            if let Operand::Name(name, part) = a
                && let Some((which, width)) = special_register(name, *part)
                && is_dynamic(which)
            {
                if width != bits {
                    return cx.fail(format!("`{name}` is {width} bits wide"));
                }
                return Ok(Op::Special { d, which });
            }
            let (name, offset) = match a {
                Operand::Name(name, None) => (Some(*name), 0),
                Operand::Offset(name, offset) => (Some(*name), *offset),
                _ => (None, 0),
            };
            if let Some(name) = name
                && let Some((a, rest)) = cx.symbol(name, offset)?
            {
                if bits != 64
                    && !(bits == 32
                        && cx
                            .template
                            .get(usize::from(a))
                            .is_some_and(|v| *v >> 32 == 0))
                {
                    return cx.fail(format!("the address of `{name}` needs 64 bits"));
                }
                let b = cx.constant(rest as u64)?;
                return Ok(Op::Add {
                    sh: sh(bits),
                    d,
                    a,
                    b,
                });
            }
            let a = if m.ty() == Ty::Pred {
                match cx.pred(a)? {
                    (a, false) => a,
                    (_, true) => return cx.fail("`mov` takes no negated predicate"),
                }
            } else {
                cx.src(a, bits)?
            };
            Ok(Op::Mov { d, a })
        }
    }
}

fn part_bits(cx: &Cx<'_, '_>, parts: &[Operand<'_>], bits: u8) -> Result<u8, LoadError> {
    match parts.len() {
        n @ (2 | 4) if bits / n as u8 >= 8 => Ok(bits / n as u8),
        _ => cx.fail("a vector of 2 or 4 parts of at least 8 bits is expected"),
    }
}

pub(in crate::decode) fn cvt(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    operands!(cx, ops, d, a);
    let mut types = m.types();
    let (Some(to), Some(from)) = (types.next(), types.next()) else {
        return cx.fail("two types are expected");
    };
    let (d, width) = cx.dst_wider(d, to.bits())?;
    let a = cx.src_wider(a, from.bits())?;
    if to.is_float() || from.is_float() {
        if width != to.bits() && to.is_float() {
            return cx.fail("a float needs a register of its own width");
        }
        let rounding = m.one_of(&["rn", "rni", "rzi", "rmi", "rpi"]);
        let f = known(cx, float::conversion(rounding, to, from))?;
        if to.is_signed() && width > to.bits() {
            return cx.fail("sign extension of a converted float is not supported: use a register of the type's width");
        }
        return Ok(pure(f, (d, a, a)));
    }
    if m.has("sat") {
        if to.is_signed() && width > to.bits() {
            return cx.fail("`.sat` to a wider register is not supported");
        }
        let f = known(cx, alu::saturating(from, to))?;
        return Ok(pure(f, (d, a, a)));
    }
    // The value passes through the narrower type's width; a signed destination type then extends it to the register
    // (PTX ISA, "Operand Size Exceeding Instruction-Type Size").
    if from.is_signed() && from.bits() < to.bits() {
        let to = if to.is_signed() { width } else { to.bits() };
        return Ok(Op::SignExtend {
            from: sh(from.bits()),
            to: sh(to),
            d,
            a,
        });
    }
    let narrow = from.bits().min(to.bits());
    if to.is_signed() && width > to.bits() && narrow == to.bits() {
        return Ok(Op::SignExtend {
            from: sh(narrow),
            to: sh(width),
            d,
            a,
        });
    }
    Ok(Op::Trunc {
        sh: sh(narrow),
        d,
        a,
    })
}
