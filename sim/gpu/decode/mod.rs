//! Syntax tree to decoded program.
//!
//! Knows: how functions become one array of operations.
//! Must not know: what operations do.

mod build;
mod cfg;
mod context;
mod converge;
mod coverage;
mod forms;
mod symbols;

use std::collections::HashMap;

use self::build::flow::frame_places;
use self::context::{Cx, Local, Mods, Tables};
pub use self::coverage::coverage;
use self::symbols::place_params;
pub(crate) use self::symbols::{Symbol, Symbols, global_variables};
use crate::error::LoadError;
use crate::ir::{Function, Instr, NO_REG, Op, Program};
use crate::parse::ast::{self, Func, Module, Stmt, StmtKind};

/// A decoded operation and its line.
type Lined = (Instr, u32);

/// Decodes a module. With `converge`, branches and their post-dominators become points where lanes meet.
pub(crate) fn decode<'a>(
    source: &str,
    module: &'a Module<'a>,
    globals: &HashMap<&str, u64>,
    converge: bool,
) -> Result<(Program, Symbols<'a>), LoadError> {
    let build = || {
        let symbols = Symbols::new(module, globals)?;
        let mut tables = Tables::default();
        let mut code: Vec<Instr> = Vec::new();
        let mut lines = Vec::new();
        let mut functions = Vec::new();
        for func in symbols.functions.clone() {
            let base = code.len() as u32;
            let first_table = tables.tables.len();
            let (mut ops, mut function) = decode_function(func, &symbols, &mut tables)?;
            if converge {
                ops = converge::insert_joins(ops, &mut tables.tables, first_table);
            }
            for (instr, line) in ops {
                code.push(relocate(instr, base));
                lines.push(line);
            }
            for target in tables.tables.iter_mut().skip(first_table).flatten() {
                *target += base;
            }
            function.entry = base;
            functions.push(function);
        }
        let program = Program {
            source: source.to_owned(),
            code,
            lines,
            vecs: tables.vecs,
            calls: tables.calls,
            tables: tables.tables,
            functions,
            converge,
            static_shared: symbols.static_shared,
        };
        Ok((program, symbols))
    };
    build().map_err(|e: LoadError| e.with_source(source))
}

fn relocate(mut instr: Instr, base: u32) -> Instr {
    // `NO_PC` stays what it is.
    match &mut instr.op {
        Op::Bra { target } => *target += base,
        Op::Branch { target, join, .. } => {
            *target += base;
            *join = join.saturating_add(base);
        }
        Op::BrxIdx { join, .. } => *join = join.saturating_add(base),
        _ => {}
    }
    instr
}

/// Index of each label, by the scope that declares it. Scopes count as [`Cx::open`] counts them.
fn find_labels<'a>(body: &[Stmt<'a>]) -> Result<HashMap<(u32, &'a str), u32>, LoadError> {
    let mut labels = HashMap::new();
    let mut open = vec![0u32];
    let mut made = 1;
    let mut index = 0;
    for stmt in body {
        match &stmt.kind {
            StmtKind::Open => {
                open.push(made);
                made += 1;
            }
            StmtKind::Close => {
                open.pop();
            }
            StmtKind::Label(name) => {
                let scope = open.last().copied().unwrap_or(0);
                if labels.insert((scope, *name), index).is_some() {
                    return Err(LoadError::new(
                        stmt.line,
                        format!("label `{name}` is defined twice"),
                    ));
                }
            }
            StmtKind::Instr(_) | StmtKind::Phase(_) => index += 1,
            StmtKind::Reg { .. } | StmtKind::Var(_) | StmtKind::BranchTargets { .. } => {}
        }
    }
    Ok(labels)
}

fn decode_function<'a>(
    func: &'a Func<'a>,
    symbols: &Symbols<'a>,
    tables: &mut Tables,
) -> Result<(Vec<Lined>, Function), LoadError> {
    let body = func.body.as_deref().unwrap_or_default();
    let mut cx = Cx::new(symbols, tables, find_labels(body)?, func.is_kernel);
    cx.line = func.line;
    let kernel_params = declare_params(&mut cx, func)?;
    let mut ops: Vec<Lined> = Vec::new();
    for stmt in body {
        cx.line = stmt.line;
        match &stmt.kind {
            StmtKind::Open => cx.open(),
            StmtKind::Close => cx.close(),
            StmtKind::Label(_) => {}
            StmtKind::Reg { ty, name, count } => cx.declare_registers(*ty, name, *count)?,
            StmtKind::Var(var) => cx.declare_var(var)?,
            StmtKind::BranchTargets { name, targets } => {
                let mut table = Vec::new();
                for target in targets {
                    table.push(cx.label(target)?);
                }
                cx.tables.tables.push(table);
                let index = (cx.tables.tables.len() - 1) as u32;
                cx.declare(name, Local::Table(index))?;
            }
            StmtKind::Phase(phase) => ops.push((unguarded(Op::Phase(*phase)), stmt.line)),
            StmtKind::Instr(instr) => ops.push((instruction(&mut cx, instr)?, stmt.line)),
        }
    }
    ops.push((unguarded(Op::FellOff), cx.line));
    let function = Function {
        name: func.name.to_owned(),
        is_kernel: func.is_kernel,
        entry: 0,
        template: std::mem::take(&mut cx.template),
        specials: std::mem::take(&mut cx.specials),
        param_area: cx.param_area,
        kernel_params,
        local_bytes: cx.local_bytes.next_multiple_of(16),
        uses_shared: cx.uses_shared,
        callees: std::mem::take(&mut cx.callees),
        max_threads: func.max_threads,
        required_shape: func.required_shape,
    };
    Ok((ops, function))
}

/// Declares parameters and results; returns the size of a kernel's parameter buffer.
fn declare_params<'a>(cx: &mut Cx<'_, 'a>, func: &'a Func<'a>) -> Result<u32, LoadError> {
    if func.is_kernel {
        let (places, bytes) = place_params(&func.params)?;
        for (param, (offset, bytes)) in func.params.iter().zip(places) {
            let kernel = true;
            cx.declare(
                param.name,
                Local::Param {
                    offset,
                    bytes,
                    kernel,
                },
            )?;
        }
        return Ok(bytes);
    }
    let places = frame_places(&func.params, &func.returns)?;
    for (param, (offset, bytes)) in func.params.iter().chain(&func.returns).zip(places) {
        let kernel = false;
        cx.declare(
            param.name,
            Local::Param {
                offset,
                bytes,
                kernel,
            },
        )?;
        cx.param_area = cx.param_area.max(offset + bytes);
    }
    Ok(0)
}

fn unguarded(op: Op) -> Instr {
    Instr {
        op,
        guard: NO_REG,
        negated: false,
    }
}

fn instruction(cx: &mut Cx<'_, '_>, instr: &ast::Instr<'_>) -> Result<Instr, LoadError> {
    let form = match forms::find(instr.mnemonic, &instr.modifiers) {
        Ok(form) => form,
        Err(message) => return cx.fail(message),
    };
    let mods = Mods(&instr.modifiers, instr.mnemonic);
    let op = (form.build)(cx, &mods, &instr.operands)?;
    let (guard, negated) = match instr.guard {
        None => (NO_REG, false),
        Some((negated, name)) => (cx.guard(name)?, negated),
    };
    // Lanes of one warp would part here without a join; compilers branch around instead.
    if guard != NO_REG && matches!(op, Op::Call { .. } | Op::BrxIdx { .. }) {
        return cx.fail(format!(
            "a predicate on `{}` is not supported",
            instr.mnemonic
        ));
    }
    Ok(Instr { op, guard, negated })
}
