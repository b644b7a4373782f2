//! Builders of arithmetic, logic and bit fields.

use super::operands;
use crate::decode::context::{Cx, Mods};
use crate::error::LoadError;
use crate::exec::{alu, float};
use crate::exec::{alu::by_type, float::by_float};
use crate::ir::{Alu4Fn, AluFn, Op, Reg};
use crate::parse::ast::{Operand, Ty};

pub(super) type Built = Result<Op, LoadError>;

/// 64 minus a width.
pub(super) fn sh(bits: u8) -> u8 {
    64 - bits.min(64)
}

pub(super) fn known<F>(cx: &Cx<'_, '_>, f: Option<F>) -> Result<F, LoadError> {
    f.map_or_else(|| cx.fail("unsupported type"), Ok)
}

fn two(cx: &mut Cx<'_, '_>, ops: &[Operand<'_>], bits: u8) -> Result<(Reg, Reg, Reg), LoadError> {
    operands!(cx, ops, d, a, b);
    Ok((cx.dst(d, bits)?, cx.src(a, bits)?, cx.src(b, bits)?))
}

pub(super) fn pure(f: AluFn, (d, a, b): (Reg, Reg, Reg)) -> Op {
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
