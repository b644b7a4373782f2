//! Names of a module: variables, functions, and the layout of parameters and shared memory.
//!
//! Knows: addresses and offsets.
//! Must not know: instructions.

use std::collections::HashMap;

use crate::error::LoadError;
use crate::parse::ast::{Func, Linkage, Module, StmtKind, Var, VarSpace};

/// Alignment of dynamic shared memory: enough for every vector access.
const DYNAMIC_ALIGN: u32 = 16;

/// What a module-scope name is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Symbol {
    /// A global or constant variable, by address.
    Global(u64),
    /// A shared variable, by offset.
    Shared(u32),
    /// A function, by index.
    Function(u32),
}

/// All module-scope names, and the layout of `.shared` variables of bodies.
pub(crate) struct Symbols<'a> {
    names: HashMap<&'a str, Symbol>,
    body_shared: HashMap<(u32, &'a str), u32>,
    /// Functions with a body, in the order of their indices.
    pub(super) functions: Vec<&'a Func<'a>>,
    pub(super) static_shared: u32,
}

impl<'a> Symbols<'a> {
    /// Lays the module out; `globals` gives the addresses of its global and constant variables.
    pub(crate) fn new(
        module: &'a Module<'a>,
        globals: &HashMap<&str, u64>,
    ) -> Result<Self, LoadError> {
        let mut symbols = Self {
            names: HashMap::new(),
            body_shared: HashMap::new(),
            functions: Vec::new(),
            static_shared: 0,
        };
        let mut dynamic: Vec<(Option<u32>, &'a str)> = Vec::new();
        for var in &module.vars {
            match var.space {
                VarSpace::Shared => {
                    if var.bytes.is_none() {
                        dynamic.push((None, var.name));
                        continue;
                    }
                    let at = symbols.place_shared(var)?;
                    symbols.define(var.name, Symbol::Shared(at), var.line)?;
                }
                _ => match globals.get(var.name) {
                    Some(addr) => symbols.define(var.name, Symbol::Global(*addr), var.line)?,
                    None => {
                        return Err(LoadError::new(
                            var.line,
                            format!("`{}` is defined nowhere", var.name),
                        ));
                    }
                },
            }
        }
        for func in &module.funcs {
            for stmt in func.body.iter().flatten() {
                if let StmtKind::Var(var) = &stmt.kind
                    && var.space == VarSpace::Shared
                {
                    if var.bytes.is_none() {
                        dynamic.push((Some(var.line), var.name));
                        continue;
                    }
                    let at = symbols.place_shared(var)?;
                    symbols.body_shared.insert((var.line, var.name), at);
                }
            }
        }
        symbols.static_shared = symbols.static_shared.next_multiple_of(DYNAMIC_ALIGN);
        let dynamic_at = symbols.static_shared;
        for (line, name) in dynamic {
            match line {
                Some(line) => {
                    symbols.body_shared.insert((line, name), dynamic_at);
                }
                None => {
                    symbols.names.insert(name, Symbol::Shared(dynamic_at));
                }
            }
        }
        for func in &module.funcs {
            if func.body.is_some() {
                let index = symbols.functions.len() as u32;
                symbols.define(func.name, Symbol::Function(index), func.line)?;
                symbols.functions.push(func);
            }
        }
        Ok(symbols)
    }

    fn define(&mut self, name: &'a str, symbol: Symbol, line: u32) -> Result<(), LoadError> {
        match self.names.insert(name, symbol) {
            None => Ok(()),
            Some(_) => Err(LoadError::new(line, format!("`{name}` is defined twice"))),
        }
    }

    fn place_shared(&mut self, var: &Var<'a>) -> Result<u32, LoadError> {
        let bytes = var.bytes.and_then(|b| u32::try_from(b).ok());
        let at = self.static_shared.checked_next_multiple_of(var.align);
        match (at, bytes) {
            (Some(at), Some(bytes)) if at.checked_add(bytes).is_some_and(|end| end <= 1 << 20) => {
                self.static_shared = at + bytes;
                Ok(at)
            }
            _ => Err(LoadError::new(var.line, "shared variables are too large")),
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<Symbol> {
        self.names.get(name).copied()
    }

    pub(super) fn body_shared(&self, var: &Var<'_>) -> Option<u32> {
        self.body_shared.get(&(var.line, var.name)).copied()
    }
}

/// Offsets of parameters, each aligned as declared (PTX ISA, "Kernel Function Parameters"), and the size of all.
pub(super) fn place_params(params: &[Var<'_>]) -> Result<(Vec<(u32, u32)>, u32), LoadError> {
    let mut end = 0u32;
    let mut out = Vec::with_capacity(params.len());
    for param in params {
        let bytes = param.bytes.and_then(|b| u32::try_from(b).ok());
        let at = end.checked_next_multiple_of(param.align);
        match (at, bytes) {
            (Some(at), Some(bytes)) if at.checked_add(bytes).is_some_and(|e| e <= MAX_PARAMS) => {
                out.push((at, bytes));
                end = at + bytes;
            }
            _ => return Err(LoadError::new(param.line, "parameters are too large")),
        }
    }
    Ok((out, end))
}

/// Largest parameter buffer (PTX ISA, "Kernel Function Parameters").
pub(super) const MAX_PARAMS: u32 = 32_764;

/// Global and constant variables that a module defines.
pub(crate) fn global_variables<'m, 'a>(
    module: &'m Module<'a>,
) -> impl Iterator<Item = &'m Var<'a>> {
    module
        .vars
        .iter()
        .filter(|var| var.space != VarSpace::Shared && var.linkage == Linkage::Here)
}
