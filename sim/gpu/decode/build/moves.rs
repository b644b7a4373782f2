//! Builders of data movement and conversion.

use super::alu::{Built, known, pure, sh};
use super::operands;
use crate::decode::context::{Cx, Mods, is_dynamic, special_register};
use crate::error::LoadError;
use crate::exec::{alu, float};
use crate::ir::Op;
use crate::parse::ast::{Operand, Ty};

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
