//! Builders of control flow. Branch targets are indices in the function until the module is put together.

use super::operands;
use crate::decode::context::{Cx, Local, Mods};
use crate::decode::symbols::{Symbol, place_params};
use crate::error::LoadError;
use crate::ir::{CallSite, NO_PC, Op};
use crate::parse::ast::{Operand, Var};

type Built = Result<Op, LoadError>;

pub(in crate::decode) fn bra(cx: &mut Cx<'_, '_>, _: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    operands!(cx, ops, target);
    let Operand::Name(name, None) = target else {
        return cx.fail("label expected");
    };
    Ok(Op::Bra {
        target: cx.label(name)?,
    })
}

pub(in crate::decode) fn brx(cx: &mut Cx<'_, '_>, _: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    operands!(cx, ops, index, list);
    let index = cx.src(index, 32)?;
    let Operand::Name(name, None) = list else {
        return cx.fail("list of targets expected");
    };
    match cx.local(name) {
        Some(Local::Table(table)) => Ok(Op::BrxIdx {
            index,
            table,
            join: NO_PC,
        }),
        _ => cx.fail(format!("`{name}` is no list of targets")),
    }
}

pub(in crate::decode) fn simple(cx: &mut Cx<'_, '_>, m: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    if !ops.is_empty() {
        return cx.fail("no operands expected");
    }
    Ok(match m.mnemonic() {
        "ret" => Op::Ret,
        "exit" => Op::Exit,
        "trap" => Op::Trap,
        _ => Op::Brkpt,
    })
}

pub(in crate::decode) fn nanosleep(
    cx: &mut Cx<'_, '_>,
    _: &Mods<'_>,
    ops: &[Operand<'_>],
) -> Built {
    operands!(cx, ops, t);
    Ok(Op::Nanosleep { a: cx.src(t, 32)? })
}

pub(in crate::decode) fn call(cx: &mut Cx<'_, '_>, _: &Mods<'_>, ops: &[Operand<'_>]) -> Built {
    let none: &[Operand<'_>] = &[];
    let (results, target, args) = match ops {
        [
            Operand::List(results),
            Operand::Name(target, None),
            Operand::List(args),
        ] => (&results[..], target, &args[..]),
        [Operand::List(results), Operand::Name(target, None)] => (&results[..], target, none),
        [Operand::Name(target, None), Operand::List(args)] => (none, target, &args[..]),
        [Operand::Name(target, None)] => (none, target, none),
        _ => return cx.fail(
            "`call (results), function, (arguments)` expected; indirect calls are not supported",
        ),
    };
    let Some(Symbol::Function(callee)) = cx.symbols.get(target) else {
        return cx.fail(if cx.local(target).is_some() {
            "indirect calls are not supported".to_owned()
        } else {
            format!("function `{target}` is not defined in this module")
        });
    };
    let Some(func) = cx.symbols.functions.get(callee as usize).copied() else {
        return cx.fail("function without a body");
    };
    if func.is_kernel {
        return cx.fail("a kernel cannot be called");
    }
    // The callee's frame holds its parameters, then its results: as `declare_params` lays them out.
    let params = frame_places(&func.params, &func.returns)?;
    let (param_places, result_places) = params.split_at(func.params.len());
    let args = pair(cx, args, param_places)?;
    let results = pair(cx, results, result_places)?;
    if !cx.callees.contains(&callee) {
        cx.callees.push(callee);
    }
    cx.tables.calls.push(CallSite {
        callee,
        args,
        results: results
            .into_iter()
            .map(|(caller, callee, n)| (callee, caller, n))
            .collect(),
    });
    Ok(Op::Call {
        site: (cx.tables.calls.len() - 1) as u32,
    })
}

/// Places of a function's parameters and then of its results in its frame.
pub(in crate::decode) fn frame_places(
    params: &[Var<'_>],
    returns: &[Var<'_>],
) -> Result<Vec<(u32, u32)>, LoadError> {
    let all: Vec<Var<'_>> = params.iter().chain(returns).cloned().collect();
    Ok(place_params(&all)?.0)
}

/// Pairs the caller's variables with the callee's places.
fn pair(
    cx: &Cx<'_, '_>,
    operands: &[Operand<'_>],
    places: &[(u32, u32)],
) -> Result<Vec<(u32, u32, u32)>, LoadError> {
    if operands.len() != places.len() {
        return cx.fail(format!(
            "{} values given, the function has {}",
            operands.len(),
            places.len()
        ));
    }
    let mut out = Vec::new();
    for (operand, (callee, bytes)) in operands.iter().zip(places) {
        let Operand::Name(name, None) = operand else {
            return cx.fail("arguments are passed in `.param` variables only");
        };
        match cx.local(name) {
            Some(Local::Param {
                offset,
                bytes: have,
                kernel: false,
            }) if have == *bytes => {
                out.push((offset, *callee, *bytes));
            }
            Some(Local::Param {
                bytes: have,
                kernel: false,
                ..
            }) => {
                return cx.fail(format!(
                    "`{name}` has {have} bytes, the function's parameter {bytes}"
                ));
            }
            _ => return cx.fail(format!("`{name}` is no `.param` variable of this body")),
        }
    }
    Ok(out)
}
