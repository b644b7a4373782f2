//! Builders of loads, stores, atomics, fences and address conversions.

use warpverbs_sim_bus::{FenceKind, Order, RmwOp, Scope};

use super::operands;
use crate::decode::context::{Base, Cx, Mods};
use crate::error::LoadError;
use crate::ir::{Mem, MemSpace, Op, Reg, Window};
use crate::parse::ast::Operand;

type Built = Result<Op, LoadError>;

fn order(m: &Mods<'_>) -> Order {
    match m.one_of(&[
        "nc", "volatile", "mmio", "acq_rel", "acquire", "release", "relaxed",
    ]) {
        Some("nc") => Order::NonCoherent,
        Some("volatile") => Order::Volatile,
        Some("mmio") => Order::Mmio,
        Some("acq_rel") => Order::AcqRel,
        Some("acquire") => Order::Acquire,
        Some("release") => Order::Release,
        Some("relaxed") => Order::Relaxed,
        _ => Order::Weak,
    }
}

fn mem(m: &Mods<'_>, order: Order) -> Mem {
    Mem {
        space: m.space(),
        order,
        // Volatile accesses are relaxed at system scope (PTX ISA, "ld"); an atomic without a scope has GPU scope (PTX ISA, "atom").
        scope: m.scope().unwrap_or(if order == Order::Volatile {
            Scope::Sys
        } else {
            Scope::Gpu
        }),
        size: m.ty().bytes(),
        extend: 0,
    }
}

/// Drops the cache policy that `.L2::cache_hint` brings.
fn without_policy<'o, 'a>(
    cx: &mut Cx<'_, '_>,
    m: &Mods<'_>,
    ops: &'o [Operand<'a>],
) -> Result<&'o [Operand<'a>], LoadError> {
    if !m.has("L2::cache_hint") {
        return Ok(ops);
    }
    match ops.split_last() {
        Some((policy, rest)) => {
            cx.src(policy, 64)?;
            Ok(rest)
        }
        None => cx.fail("cache policy expected"),
    }
}

/// Elements of a vector operand, or the one operand there is.
fn elements<'o, 'a>(
    cx: &Cx<'_, '_>,
    m: &Mods<'_>,
    op: &'o Operand<'a>,
) -> Result<&'o [Operand<'a>], LoadError> {
    let wanted = match m.one_of(&["v2", "v4", "v8"]) {
        Some("v2") => 2,
        Some("v4") => 4,
        Some(_) => 8,
        None => 0,
    };
    match op {
        Operand::Vector(list) if list.len() == wanted => {}
        Operand::Vector(_) => {
            return cx.fail("the vector operand's length is not the instruction's");
        }
        _ if wanted != 0 => return cx.fail("vector operand expected"),
        _ => return Ok(std::slice::from_ref(op)),
    }
    // 256-bit accesses are the widest (PTX ISA, "ld").
    if wanted * usize::from(m.ty().bytes()) > 32 {
        return cx.fail("the vector is wider than 256 bits");
    }
    match op {
        Operand::Vector(list) => Ok(list),
        _ => Ok(&[]),
    }
}

fn offset(cx: &Cx<'_, '_>, offset: i64) -> Result<i32, LoadError> {
    i32::try_from(offset).or_else(|_| cx.fail("address offset does not fit in 32 bits"))
}

/// Checks a direct parameter access against the parameter, and gives its place.
fn param_place(
    cx: &Cx<'_, '_>,
    start: u32,
    bytes: u32,
    at: i64,
    len: usize,
    size: u8,
) -> Result<u32, LoadError> {
    let len = len as i64 * i64::from(size);
    if at < 0 || at + len > i64::from(bytes) {
        return cx.fail(format!(
            "access of {len} bytes at offset {at} of a parameter of {bytes} bytes"
        ));
    }
    let place = i64::from(start) + at;
    if place % len != 0 {
        return cx.fail("misaligned parameter access");
    }
    Ok(place as u32)
}

pub(in crate::decode) fn ld(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    let ops = without_policy(cx, m, ops)?;
    operands!(cx, ops, d, address);
    let ty = m.ty();
    let mut mode = mem(m, order(m));
    let mut regs: Vec<Reg> = Vec::new();
    for element in elements(cx, m, d)? {
        let (reg, width) = cx.dst_wider(element, ty.bits())?;
        if ty.is_signed() {
            if mode.extend != 0 && mode.extend != width {
                return cx.fail("the registers of the vector differ in width");
            }
            mode.extend = width;
        }
        regs.push(reg);
    }
    match cx.base(address, mode.space)? {
        Base::Slot(base, at) => {
            if mode.space == MemSpace::Param && !cx.is_kernel {
                return cx.fail("a function's parameters can be loaded by name only");
            }
            let offset = offset(cx, at)?;
            Ok(match regs.as_slice() {
                [d] => Op::Ld {
                    d: *d,
                    base,
                    offset,
                    m: mode,
                },
                regs => Op::LdVec {
                    regs: cx.vector(regs)?,
                    base,
                    offset,
                    m: mode,
                },
            })
        }
        Base::Param {
            offset,
            bytes,
            kernel,
            at,
        } => {
            let offset = param_place(cx, offset, bytes, at, regs.len(), mode.size)?;
            let regs = cx.vector(&regs)?;
            Ok(Op::LdParam {
                regs,
                offset,
                kernel,
                size: mode.size,
                extend: mode.extend,
            })
        }
    }
}

pub(in crate::decode) fn st(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    let ops = without_policy(cx, m, ops)?;
    operands!(cx, ops, address, value);
    let mode = mem(m, order(m));
    let mut regs: Vec<Reg> = Vec::new();
    for element in elements(cx, m, value)? {
        regs.push(cx.src_wider(element, m.ty().bits())?);
    }
    match cx.base(address, mode.space)? {
        Base::Slot(..) if mode.space == MemSpace::Param => {
            cx.fail("parameters can be stored by name only")
        }
        Base::Slot(base, at) => {
            let offset = offset(cx, at)?;
            Ok(match regs.as_slice() {
                [a] => Op::St {
                    a: *a,
                    base,
                    offset,
                    m: mode,
                },
                regs => Op::StVec {
                    regs: cx.vector(regs)?,
                    base,
                    offset,
                    m: mode,
                },
            })
        }
        Base::Param { kernel: true, .. } => cx.fail("a kernel's parameters are read-only"),
        Base::Param {
            offset, bytes, at, ..
        } => {
            let offset = param_place(cx, offset, bytes, at, regs.len(), mode.size)?;
            let regs = cx.vector(&regs)?;
            Ok(Op::StParam {
                regs,
                offset,
                size: mode.size,
            })
        }
    }
}

fn rmw(
    cx: &mut Cx<'_, '_>,
    m: &Mods<'_>,
    address: &Operand<'_>,
    d: Reg,
    values: [&Operand<'_>; 2],
) -> Built {
    let ty = m.ty();
    let op = match (
        m.one_of(&[
            "add", "and", "or", "xor", "exch", "cas", "min", "max", "inc", "dec",
        ]),
        ty.is_signed(),
    ) {
        (Some("add"), _) => RmwOp::Add,
        (Some("and"), _) => RmwOp::And,
        (Some("or"), _) => RmwOp::Or,
        (Some("xor"), _) => RmwOp::Xor,
        (Some("exch"), _) => RmwOp::Exch,
        (Some("cas"), _) => RmwOp::Cas,
        (Some("min"), false) => RmwOp::MinU,
        (Some("min"), true) => RmwOp::MinS,
        (Some("max"), false) => RmwOp::MaxU,
        (Some("max"), true) => RmwOp::MaxS,
        (Some("inc"), _) => RmwOp::Inc,
        _ => RmwOp::Dec,
    };
    // An atomic without `.sem` is relaxed (PTX ISA, "atom").
    let order = match order(m) {
        Order::Weak => Order::Relaxed,
        order => order,
    };
    let mode = mem(m, order);
    let a = cx.src(values[0], ty.bits())?;
    let b = cx.src(values[1], ty.bits())?;
    match cx.base(address, mode.space)? {
        Base::Slot(base, at) => {
            let offset = offset(cx, at)?;
            Ok(Op::Atom {
                op,
                d,
                base,
                offset,
                a,
                b,
                m: mode,
            })
        }
        Base::Param { .. } => cx.fail("atomic on a parameter"),
    }
}

pub(in crate::decode) fn atom(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    let ops = without_policy(cx, m, ops)?;
    let bits = m.ty().bits();
    match ops {
        [d, address, a, b] if m.has("cas") => {
            let d = cx.dst(d, bits)?;
            rmw(cx, m, address, d, [a, b])
        }
        [d, address, a] if !m.has("cas") => {
            let d = cx.dst(d, bits)?;
            rmw(cx, m, address, d, [a, a])
        }
        _ => cx.fail("wrong number of operands"),
    }
}

pub(in crate::decode) fn red(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    let ops = without_policy(cx, m, ops)?;
    operands!(cx, ops, address, a);
    let d = cx.sink()?;
    rmw(cx, m, address, d, [a, a])
}

pub(in crate::decode) fn fence(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    if !ops.is_empty() {
        return cx.fail("no operands expected");
    }
    // `fence` without a kind is `fence.acq_rel`; `membar.level` is `fence.sc.level` (PTX ISA, "membar").
    let kind = match m.one_of(&["sc", "acq_rel", "acquire", "release"]) {
        _ if m.mnemonic() == "membar" => FenceKind::Sc,
        Some("sc") => FenceKind::Sc,
        Some("acquire") => FenceKind::Acquire,
        Some("release") => FenceKind::Release,
        _ => FenceKind::AcqRel,
    };
    match m.scope() {
        Some(scope) => Ok(Op::Fence { kind, scope }),
        None => cx.fail("a scope is expected"),
    }
}

pub(in crate::decode) fn prefetch(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    operands!(cx, ops, address);
    cx.base(address, m.space())?;
    Ok(Op::Nop)
}

pub(in crate::decode) fn cvta(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    operands!(cx, ops, d, a);
    let window = m.window();
    let to_generic = !m.has("to");
    let d = cx.dst(d, 64)?;
    let named = match a {
        Operand::Name(name, None) => cx.symbol(name, 0)?,
        Operand::Offset(name, offset) => cx.symbol(name, *offset)?,
        _ => None,
    };
    let a = match named {
        Some((a, 0)) => a,
        Some(_) => return cx.fail("move the address into a register first"),
        None => cx.src(a, 64)?,
    };
    // Global and constant addresses are generic addresses here.
    if window == Window::Global {
        return Ok(Op::Mov { d, a });
    }
    Ok(Op::Cvta {
        d,
        a,
        window,
        to_generic,
    })
}

pub(in crate::decode) fn isspacep(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    operands!(cx, ops, p, a);
    if m.has("const") {
        return cx.fail("`isspacep.const` is not supported");
    }
    let (d, a) = (cx.dst(p, 1)?, cx.src(a, 64)?);
    Ok(Op::IsSpace {
        d,
        a,
        window: m.window(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::ast::Ty;

    #[test]
    fn orders_come_from_modifiers() {
        for (mods, order_, scope) in [
            (&["global", "b32"][..], Order::Weak, Scope::Gpu),
            (&["volatile", "b32"], Order::Volatile, Scope::Sys),
            (&["mmio", "relaxed", "sys", "b64"], Order::Mmio, Scope::Sys),
            (&["global", "nc", "b64"], Order::NonCoherent, Scope::Gpu),
            (&["acquire", "cta", "b64"], Order::Acquire, Scope::Cta),
        ] {
            let m = Mods(mods, "ld");
            let mode = mem(&m, order(&m));
            assert_eq!((mode.order, mode.scope), (order_, scope), "{mods:?}");
        }
        assert_eq!(Mods(&["u16", "s32"], "cvt").ty(), Ty::S32);
    }
}
