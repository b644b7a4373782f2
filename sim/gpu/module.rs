//! Loaded modules: their variables in memory and their decoded code.
//!
//! Knows: how a module's text becomes memory and code, and how that is undone.
//! Must not know: launches.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use warpverbs_sim_bus::{Access, Bus, BusState, Space};

use crate::cache::{self, Variable};
use crate::decode::{Symbol, Symbols, decode, global_variables};
use crate::error::LoadError;
use crate::ir::Program;
use crate::memory::FastMemory;
use crate::parse::ast::{Init, Module as Syntax, Var, VarSpace};
use crate::parse::parse;
use crate::run::state::MAX_FRAMES;

/// Local memory of a thread whose calls recurse.
const RECURSIVE_LOCAL: u32 = 64 * 1024;

/// A loaded module.
pub(crate) struct Module {
    pub(crate) program: Arc<Program>,
    /// Address and bytes of each variable.
    pub(crate) globals: BTreeMap<String, (u64, u64)>,
    /// Address ranges of constant variables.
    pub(crate) constants: Vec<(u64, u64)>,
}

impl Module {
    /// Loads a module: allocates its variables, decodes its code, writes the initial values.
    pub(crate) fn load(
        source: &str,
        bus: &mut BusState,
        converge: bool,
    ) -> Result<Self, LoadError> {
        let known = cache::find(source, converge);
        let mut syntax = None;
        let variables = match &known {
            Some(known) => known.variables.clone(),
            None => variables(syntax.insert(parse(source)?)).map_err(|e| e.with_source(source))?,
        };
        let mut addresses = Vec::with_capacity(variables.len());
        let loaded = place(&variables, bus, &mut addresses)
            .map_err(|e| e.with_source(source))
            .and_then(|()| {
                if let Some(known) = known.filter(|known| known.addresses == addresses) {
                    write(&variables, &addresses, &known.images, bus)?;
                    return Ok(known.program.clone());
                }
                let syntax = match syntax {
                    Some(syntax) => syntax,
                    None => parse(source)?,
                };
                let by_name: HashMap<&str, u64> = variables
                    .iter()
                    .zip(&addresses)
                    .map(|(var, addr)| (var.name.as_str(), *addr))
                    .collect();
                let (program, symbols) = decode(source, &syntax, &by_name, converge)?;
                let images = global_variables(&syntax)
                    .zip(&variables)
                    .map(|(var, known)| image(var, known.bytes as usize, &symbols))
                    .collect::<Result<Vec<_>, _>>()
                    .map_err(|e| e.with_source(source))?;
                write(&variables, &addresses, &images, bus).map_err(|e| e.with_source(source))?;
                let program = Arc::new(program);
                let (variables, addresses) = (variables.clone(), addresses.clone());
                cache::keep(
                    source,
                    converge,
                    variables,
                    addresses,
                    images,
                    program.clone(),
                );
                Ok(program)
            });
        let program = match loaded {
            Ok(program) => program,
            Err(error) => {
                for addr in addresses {
                    // The load error is what the caller must see; these were allocated a moment ago.
                    let _ = bus.memory.free(addr);
                }
                return Err(error);
            }
        };
        let placed = || variables.iter().zip(&addresses);
        Ok(Self {
            program,
            constants: placed()
                .filter(|(var, _)| var.constant)
                .map(|(var, addr)| (*addr, addr + var.bytes))
                .collect(),
            globals: placed()
                .map(|(var, addr)| (var.name.clone(), (*addr, var.bytes)))
                .collect(),
        })
    }
}

/// A module's variables, in the order of the text.
fn variables(syntax: &Syntax<'_>) -> Result<Vec<Variable>, LoadError> {
    let mut names = BTreeSet::new();
    let variable = |var: &Var<'_>| {
        let Some(bytes) = var.bytes.filter(|b| *b > 0) else {
            return Err(LoadError::new(
                var.line,
                format!("`{}` has no size", var.name),
            ));
        };
        if !names.insert(var.name.to_owned()) {
            return Err(LoadError::new(
                var.line,
                format!("`{}` is defined twice", var.name),
            ));
        }
        Ok(Variable {
            name: var.name.to_owned(),
            bytes,
            // As the driver aligns what it allocates.
            align: u64::from(var.align).max(256),
            line: var.line,
            constant: var.space == VarSpace::Const,
        })
    };
    global_variables(syntax).map(variable).collect()
}

fn place(
    variables: &[Variable],
    bus: &mut BusState,
    addresses: &mut Vec<u64>,
) -> Result<(), LoadError> {
    for var in variables {
        let label = format!("global `{}`", var.name);
        let addr = bus
            .memory
            .alloc(Space::Device, var.bytes, var.align, &label)
            .map_err(|fault| LoadError::new(var.line, fault.to_string()))?;
        addresses.push(addr);
    }
    Ok(())
}

fn write(
    variables: &[Variable],
    addresses: &[u64],
    images: &[Vec<u8>],
    bus: &mut BusState,
) -> Result<(), LoadError> {
    for ((var, addr), image) in variables.iter().zip(addresses).zip(images) {
        bus.memory
            .write(Access::HOST_COPY, *addr, image)
            .map_err(|fault| LoadError::new(var.line, fault.to_string()))?;
    }
    Ok(())
}

/// The initial bytes of a variable: zero where nothing is given (PTX ISA, "Initializers").
fn image(var: &Var<'_>, bytes: usize, symbols: &Symbols<'_>) -> Result<Vec<u8>, LoadError> {
    let size = usize::from(var.ty.bytes());
    let mut image = vec![0u8; bytes];
    for (at, init) in &var.init {
        let value = match init {
            Init::Bits(bits) => *bits,
            Init::Address {
                symbol,
                offset,
                generic,
            } => {
                let addr = match symbols.get(symbol) {
                    Some(Symbol::Global(addr)) => addr,
                    Some(Symbol::Shared(at)) if !generic => u64::from(at),
                    Some(Symbol::Shared(_)) => {
                        return Err(LoadError::new(
                            var.line,
                            "a shared variable has no generic address before a block runs",
                        ));
                    }
                    Some(Symbol::Function(_)) => {
                        return Err(LoadError::new(
                            var.line,
                            "the address of a function cannot be taken",
                        ));
                    }
                    None => {
                        return Err(LoadError::new(var.line, format!("unknown name `{symbol}`")));
                    }
                };
                if size != 8 {
                    return Err(LoadError::new(var.line, "an address needs 64-bit elements"));
                }
                addr.wrapping_add(*offset as u64)
            }
        };
        let from = usize::try_from(*at)
            .unwrap_or(usize::MAX)
            .saturating_mul(size);
        let end = from.saturating_add(size);
        match (image.get_mut(from..end), value.to_le_bytes().get(..size)) {
            (Some(to), Some(value)) => to.copy_from_slice(value),
            _ => {
                return Err(LoadError::new(
                    var.line,
                    "more initial values than elements",
                ));
            }
        }
    }
    Ok(image)
}

/// What a kernel needs of each thread's local and each block's shared memory, its callees included.
pub(crate) struct Needs {
    pub(crate) local: u32,
    pub(crate) shared: bool,
}

/// Adds up what a function and its callees need.
pub(crate) fn needs(program: &Program, func: u32) -> Needs {
    let mut on_path = vec![false; program.functions.len()];
    let mut memo = vec![None; program.functions.len()];
    let mut needs = Needs {
        local: 0,
        shared: false,
    };
    match deepest(program, func, 0, &mut on_path, &mut memo, &mut needs.shared) {
        Some(bytes) => needs.local = bytes,
        None => needs.local = RECURSIVE_LOCAL,
    }
    needs
}

/// Local bytes of the deepest call path; `None` if calls recurse, or nest deeper than a thread's frames may.
fn deepest(
    program: &Program,
    func: u32,
    depth: usize,
    on_path: &mut [bool],
    memo: &mut [Option<Option<u32>>],
    shared: &mut bool,
) -> Option<u32> {
    let at = func as usize;
    if *on_path.get(at)? || depth >= MAX_FRAMES {
        return None;
    }
    if let Some(known) = *memo.get(at)? {
        return known;
    }
    let function = program.functions.get(at)?;
    *shared |= function.uses_shared;
    *on_path.get_mut(at)? = true;
    let mut below = Some(0);
    for callee in &function.callees {
        let bytes = deepest(program, *callee, depth + 1, on_path, memo, shared);
        below = below.zip(bytes).map(|(a, b): (u32, u32)| a.max(b));
    }
    *on_path.get_mut(at)? = false;
    let total = below.map(|b| b.saturating_add(function.local_bytes));
    *memo.get_mut(at)? = Some(total);
    total
}

/// Names of a module's kernels, in the order of the text. The module is loaded as a launch would load it, so text that
/// a GPU would refuse is refused.
pub fn kernels(ptx: &str) -> Result<Vec<String>, LoadError> {
    let bus = Bus::new(Box::new(FastMemory::new()));
    let module = Module::load(ptx, &mut bus.lock(), false)?;
    let functions = module.program.functions.iter();
    Ok(functions
        .filter(|function| function.is_kernel)
        .map(|function| function.name.clone())
        .collect())
}
