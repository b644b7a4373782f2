//! The state of decoding one function: names, slots, constants; and how operands become slots.
//!
//! Knows: scopes, register widths, symbol addresses.
//! Must not know: instructions.

use std::collections::HashMap;

use warpverbs_sim_bus::Scope;

use super::symbols::{Symbol, Symbols};
use crate::error::LoadError;
use crate::ir::{CallSite, MemSpace, NO_REG, Reg, Special, VecRegs, Window};
use crate::parse::ast::{Operand, Ty, Var, VarSpace};
use crate::parse::fit;

/// What uninitialised registers hold, cut to their width: a kernel that reads one should not find a plausible zero.
const POISON: u64 = 0xa5a5_a5a5_a5a5_a5a5;

/// Modifiers of an instruction that match its form, and its mnemonic.
pub(super) struct Mods<'a>(pub(super) &'a [&'a str], pub(super) &'a str);

impl<'a> Mods<'a> {
    pub(super) fn mnemonic(&self) -> &'a str {
        self.1
    }

    /// True for instructions that add the carry in.
    pub(super) fn carries_in(&self) -> bool {
        matches!(self.1, "addc" | "subc" | "madc")
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains(&name)
    }

    /// The type of the operation: the last one.
    pub(super) fn ty(&self) -> Ty {
        self.types().last().unwrap_or(Ty::B64)
    }

    pub(super) fn types(&self) -> impl Iterator<Item = Ty> {
        self.0.iter().filter_map(|name| Ty::from_name(name))
    }

    /// The first modifier among `names`.
    pub(super) fn one_of(&self, names: &[&str]) -> Option<&'a str> {
        self.0.iter().copied().find(|m| names.contains(m))
    }

    pub(super) fn scope(&self) -> Option<Scope> {
        Some(
            match self.one_of(&["cta", "cluster", "gpu", "gl", "sys"])? {
                "cta" => Scope::Cta,
                "cluster" => Scope::Cluster,
                "sys" => Scope::Sys,
                _ => Scope::Gpu,
            },
        )
    }

    pub(super) fn space(&self) -> MemSpace {
        match self.one_of(&["global", "const", "shared", "shared::cta", "local", "param"]) {
            None => MemSpace::Generic,
            Some("global" | "const") => MemSpace::Global,
            Some("local") => MemSpace::Local,
            Some("param") => MemSpace::Param,
            Some(_) => MemSpace::Shared,
        }
    }

    pub(super) fn window(&self) -> Window {
        match self.space() {
            MemSpace::Shared => Window::Shared,
            MemSpace::Local => Window::Local,
            MemSpace::Param => Window::Param,
            MemSpace::Generic | MemSpace::Global => Window::Global,
        }
    }
}

/// What a name of a function's body is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Local {
    Reg(Reg, Ty),
    /// `count` registers from a slot on, named by the key and a number.
    Range {
        first: Reg,
        count: u32,
        ty: Ty,
    },
    /// A parameter: of the kernel's buffer, or in the frame's parameter area.
    Param {
        offset: u32,
        bytes: u32,
        kernel: bool,
    },
    /// A `.local` variable, by its offset in the frame.
    OwnVar(u32),
    /// A `.shared` variable, by its offset in the block's.
    SharedVar(u32),
    /// A list of branch targets.
    Table(u32),
}

/// What an address operand's name is.
pub(super) enum Base {
    /// A slot whose value, plus the operand's offset, is the address.
    Slot(Reg, i64),
    /// A parameter named directly.
    Param {
        offset: u32,
        bytes: u32,
        kernel: bool,
        at: i64,
    },
}

/// Tables that all functions of the module share.
#[derive(Default)]
pub(super) struct Tables {
    pub(super) vecs: Vec<VecRegs>,
    pub(super) calls: Vec<CallSite>,
    pub(super) tables: Vec<Vec<u32>>,
}

/// Decoding state of one function.
pub(super) struct Cx<'m, 'a> {
    pub(super) symbols: &'m Symbols<'a>,
    pub(super) tables: &'m mut Tables,
    pub(super) line: u32,
    pub(super) is_kernel: bool,

    scopes: Vec<(u32, HashMap<&'a str, Local>)>,
    scopes_made: u32,
    /// Scope of each label, and the index it marks.
    labels: HashMap<(u32, &'a str), u32>,

    pub(super) template: Vec<u64>,
    constants: HashMap<u64, Reg>,
    pub(super) specials: Vec<(Reg, Special)>,
    sink: Option<Reg>,
    carry: Option<Reg>,
    pub(super) param_area: u32,
    pub(super) local_bytes: u32,
    pub(super) uses_shared: bool,
    pub(super) callees: Vec<u32>,
}

impl<'m, 'a> Cx<'m, 'a> {
    pub(super) fn new(
        symbols: &'m Symbols<'a>,
        tables: &'m mut Tables,
        labels: HashMap<(u32, &'a str), u32>,
        is_kernel: bool,
    ) -> Self {
        Self {
            symbols,
            tables,
            line: 0,
            is_kernel,
            scopes: vec![(0, HashMap::new())],
            scopes_made: 1,
            labels,
            template: Vec::new(),
            constants: HashMap::new(),
            specials: Vec::new(),
            sink: None,
            carry: None,
            param_area: 0,
            local_bytes: 0,
            uses_shared: false,
            callees: Vec::new(),
        }
    }

    pub(super) fn fail<T>(&self, message: impl Into<String>) -> Result<T, LoadError> {
        Err(LoadError::new(self.line, message))
    }

    pub(super) fn open(&mut self) {
        self.scopes.push((self.scopes_made, HashMap::new()));
        self.scopes_made += 1;
    }

    pub(super) fn close(&mut self) {
        if self.scopes.len() > 1 {
            self.scopes.pop();
        }
    }

    // Slots.

    fn slot(&mut self, value: u64) -> Result<Reg, LoadError> {
        let at = self.template.len();
        if at >= usize::from(NO_REG) {
            return self.fail("the function has too many registers and constants");
        }
        self.template.push(value);
        Ok(at as Reg)
    }

    pub(super) fn constant(&mut self, value: u64) -> Result<Reg, LoadError> {
        if let Some(reg) = self.constants.get(&value) {
            return Ok(*reg);
        }
        let reg = self.slot(value)?;
        self.constants.insert(value, reg);
        Ok(reg)
    }

    /// A slot that nobody reads.
    pub(super) fn sink(&mut self) -> Result<Reg, LoadError> {
        if let Some(reg) = self.sink {
            return Ok(reg);
        }
        let reg = self.slot(0)?;
        self.sink = Some(reg);
        Ok(reg)
    }

    /// The condition code's carry (`CC.CF`).
    pub(super) fn carry(&mut self) -> Result<Reg, LoadError> {
        if let Some(reg) = self.carry {
            return Ok(reg);
        }
        let reg = self.slot(0)?;
        self.carry = Some(reg);
        Ok(reg)
    }

    pub(super) fn special(&mut self, which: Special) -> Result<Reg, LoadError> {
        if let Some((reg, _)) = self.specials.iter().find(|(_, s)| *s == which) {
            return Ok(*reg);
        }
        let reg = self.slot(0)?;
        self.specials.push((reg, which));
        Ok(reg)
    }

    pub(super) fn vector(&mut self, regs: &[Reg]) -> Result<u32, LoadError> {
        let mut vec = VecRegs {
            len: regs.len() as u8,
            regs: [0; 8],
        };
        let Some(target) = vec.regs.get_mut(..regs.len()) else {
            return self.fail("vector has more than 8 elements");
        };
        target.copy_from_slice(regs);
        self.tables.vecs.push(vec);
        Ok((self.tables.vecs.len() - 1) as u32)
    }

    // Declarations.

    pub(super) fn declare(&mut self, name: &'a str, local: Local) -> Result<(), LoadError> {
        if let Some((_, names)) = self.scopes.last_mut()
            && names.insert(name, local).is_some()
        {
            return self.fail(format!("`{name}` is declared twice"));
        }
        Ok(())
    }

    pub(super) fn declare_registers(
        &mut self,
        ty: Ty,
        name: &'a str,
        count: Option<u32>,
    ) -> Result<(), LoadError> {
        let poison = POISON >> (64 - u32::from(ty.bits()));
        let first = self.template.len() as Reg;
        for _ in 0..count.unwrap_or(1) {
            self.slot(poison)?;
        }
        let local = match count {
            None => Local::Reg(first, ty),
            Some(count) => Local::Range { first, count, ty },
        };
        self.declare(name, local)
    }

    /// A variable of the body, or a parameter that lies in the frame.
    pub(super) fn declare_var(&mut self, var: &Var<'a>) -> Result<(), LoadError> {
        let bytes = self.var_bytes(var)?;
        match var.space {
            VarSpace::Local => {
                let at = self.place(self.local_bytes, var, bytes)?;
                self.local_bytes = at + bytes;
                self.declare(var.name, Local::OwnVar(at))
            }
            VarSpace::Param => {
                let at = self.place(self.param_area, var, bytes)?;
                self.param_area = at + bytes;
                let local = Local::Param { offset: at, bytes, kernel: false };
                self.declare(var.name, local)
            }
            VarSpace::Shared => match self.symbols.body_shared(var) {
                Some(offset) => self.declare(var.name, Local::SharedVar(offset)),
                None => self.fail("shared variable was not laid out"),
            },
            VarSpace::Global | VarSpace::Const => {
                self.fail("global and constant variables inside a body are not supported: declare them outside")
            }
        }
    }

    fn var_bytes(&self, var: &Var<'_>) -> Result<u32, LoadError> {
        match var.bytes {
            Some(bytes) => u32::try_from(bytes).or_else(|_| self.fail("variable is too large")),
            None if var.space == VarSpace::Shared => Ok(0),
            None => self.fail("variable of unspecified size"),
        }
    }

    fn place(&self, end: u32, var: &Var<'_>, bytes: u32) -> Result<u32, LoadError> {
        end.checked_next_multiple_of(var.align)
            .filter(|at| at.checked_add(bytes).is_some_and(|e| e <= 1 << 24))
            .map_or_else(|| self.fail("variables of the function are too large"), Ok)
    }

    // Names.

    pub(super) fn local(&self, name: &str) -> Option<Local> {
        let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let number = name.get(prefix.len()..).unwrap_or_default();
        for (_, names) in self.scopes.iter().rev() {
            match names.get(name) {
                Some(Local::Range { .. }) | None => {}
                Some(local) => return Some(*local),
            }
            if let Some(Local::Range { first, count, ty }) = names.get(prefix)
                && (number.len() == 1 || !number.starts_with('0'))
                && let Ok(n) = number.parse::<u32>()
                && n < *count
            {
                return Some(Local::Reg(first + n as Reg, *ty));
            }
        }
        None
    }

    /// The instruction index of a label that is in scope.
    pub(super) fn label(&self, name: &str) -> Result<u32, LoadError> {
        self.scopes
            .iter()
            .rev()
            .find_map(|(scope, _)| self.labels.get(&(*scope, name)))
            .map_or_else(
                || self.fail(format!("unknown label `{name}`")),
                |index| Ok(*index),
            )
    }

    fn register(&self, name: &str) -> Result<(Reg, Ty), LoadError> {
        match self.local(name) {
            Some(Local::Reg(reg, ty)) => Ok((reg, ty)),
            Some(_) => self.fail(format!("`{name}` is not a register")),
            None => self.fail(format!("unknown register `{name}`")),
        }
    }

    // Operands.

    fn width(&self, name: &str, ty: Ty, bits: u8, wider: bool) -> Result<(), LoadError> {
        let fits = if wider {
            ty != Ty::Pred && ty.bits() >= bits
        } else {
            ty.bits() == bits
        };
        if fits {
            Ok(())
        } else {
            self.fail(format!(
                "register `{name}` is {} bits wide, {bits} are wanted",
                ty.bits()
            ))
        }
    }

    /// A source of exactly `bits` bits.
    pub(super) fn src(&mut self, operand: &Operand<'_>, bits: u8) -> Result<Reg, LoadError> {
        self.source(operand, bits, false)
    }

    /// A source of at least `bits` bits, of which the low ones count (`st`, `cvt`).
    pub(super) fn src_wider(&mut self, operand: &Operand<'_>, bits: u8) -> Result<Reg, LoadError> {
        self.source(operand, bits, true)
    }

    fn source(&mut self, operand: &Operand<'_>, bits: u8, wider: bool) -> Result<Reg, LoadError> {
        match operand {
            Operand::Name(name, part) => {
                if let Some((which, width)) = special_register(name, *part) {
                    if width != bits {
                        return self
                            .fail(format!("`{name}` is {width} bits wide, {bits} are wanted"));
                    }
                    if is_dynamic(which) {
                        return self.fail(format!("`{name}` can be read by `mov` only"));
                    }
                    return self.special(which);
                }
                if let Some(part) = part {
                    return self.fail(format!("unknown register `{name}.{part}`"));
                }
                let (reg, ty) = self.register(name)?;
                self.width(name, ty, bits, wider)?;
                Ok(reg)
            }
            Operand::Int(value) => match fit(*value, bits) {
                Some(value) => self.constant(value),
                None => self.fail(format!("{value} does not fit in {bits} bits")),
            },
            Operand::F32(value) if bits == 32 => self.constant(u64::from(*value)),
            Operand::F64(value) if bits == 64 => self.constant(*value),
            // A 64-bit float literal in single precision is rounded (PTX ISA, "Floating-Point Constants").
            Operand::F64(value) if bits == 32 => {
                self.constant(u64::from((f64::from_bits(*value) as f32).to_bits()))
            }
            _ => self.fail("register or literal expected"),
        }
    }

    /// A destination of exactly `bits` bits, or `_`.
    pub(super) fn dst(&mut self, operand: &Operand<'_>, bits: u8) -> Result<Reg, LoadError> {
        let Operand::Name(name, None) = operand else {
            return self.fail("register expected");
        };
        self.dst_name(name, bits)
    }

    fn dst_name(&mut self, name: &str, bits: u8) -> Result<Reg, LoadError> {
        if name == "_" {
            return self.sink();
        }
        let (reg, ty) = self.register(name)?;
        self.width(name, ty, bits, false)?;
        Ok(reg)
    }

    /// A destination of at least `bits` bits and its width (`ld`, `cvt`).
    pub(super) fn dst_wider(
        &mut self,
        operand: &Operand<'_>,
        bits: u8,
    ) -> Result<(Reg, u8), LoadError> {
        let Operand::Name(name, None) = operand else {
            return self.fail("register expected");
        };
        if *name == "_" {
            return Ok((self.sink()?, 64));
        }
        let (reg, ty) = self.register(name)?;
        self.width(name, ty, bits, true)?;
        Ok((reg, ty.bits()))
    }

    /// `d` or `d|p`, with a sink for a `p` that is not there.
    pub(super) fn dst_pair(
        &mut self,
        operand: &Operand<'_>,
        bits: u8,
    ) -> Result<(Reg, Reg), LoadError> {
        match operand {
            Operand::Pair(d, p) => Ok((self.dst_name(d, bits)?, self.dst_name(p, 1)?)),
            operand => Ok((self.dst(operand, bits)?, self.sink()?)),
        }
    }

    /// A predicate source, and whether it is negated.
    pub(super) fn pred(&mut self, operand: &Operand<'_>) -> Result<(Reg, bool), LoadError> {
        match operand {
            Operand::Not(name) => {
                let (reg, ty) = self.register(name)?;
                self.width(name, ty, 1, false)?;
                Ok((reg, true))
            }
            // `mov.pred` and votes take a literal truth value.
            Operand::Int(value) => Ok((self.constant(u64::from(*value != 0))?, false)),
            operand => Ok((self.src(operand, 1)?, false)),
        }
    }

    /// A guard predicate.
    pub(super) fn guard(&mut self, name: &str) -> Result<Reg, LoadError> {
        let (reg, ty) = self.register(name)?;
        self.width(name, ty, 1, false)?;
        Ok(reg)
    }

    /// The slot that holds a symbol's address in its own space, plus an offset that an addition must still make.
    pub(super) fn symbol(
        &mut self,
        name: &str,
        offset: i64,
    ) -> Result<Option<(Reg, i64)>, LoadError> {
        let value = match self.local(name) {
            Some(Local::OwnVar(at)) => {
                let base = self.special(Special::LocalBase)?;
                return Ok(Some((base, i64::from(at) + offset)));
            }
            Some(Local::SharedVar(at)) => {
                self.uses_shared = true;
                u64::from(at)
            }
            Some(Local::Param {
                offset,
                kernel: true,
                ..
            }) => u64::from(offset),
            Some(Local::Param { .. }) => {
                return self.fail("the address of a function's parameter cannot be taken");
            }
            Some(Local::Reg(..) | Local::Range { .. } | Local::Table(_)) => return Ok(None),
            None => match self.symbols.get(name) {
                Some(Symbol::Global(addr)) => addr,
                Some(Symbol::Shared(at)) => {
                    self.uses_shared = true;
                    u64::from(at)
                }
                Some(Symbol::Function(_)) => {
                    return self.fail("the address of a function cannot be taken: indirect calls are not supported");
                }
                None => return Ok(None),
            },
        };
        Ok(Some((self.constant(value.wrapping_add(offset as u64))?, 0)))
    }

    /// The base of an address operand.
    pub(super) fn base(
        &mut self,
        operand: &Operand<'_>,
        space: MemSpace,
    ) -> Result<Base, LoadError> {
        let Operand::Address(name, offset) = operand else {
            return self.fail("address expected");
        };
        let Some(name) = name else {
            return Ok(Base::Slot(self.constant(*offset as u64)?, 0));
        };
        match self.local(name) {
            Some(Local::Reg(reg, ty)) => {
                let short = ty.bits() == 32
                    && matches!(space, MemSpace::Shared | MemSpace::Local | MemSpace::Param);
                if ty.bits() != 64 && !short {
                    return self.fail(format!("`{name}` is no 64-bit address"));
                }
                return Ok(Base::Slot(reg, *offset));
            }
            Some(Local::Param {
                offset: start,
                bytes,
                kernel,
            }) if space == MemSpace::Param => {
                return Ok(Base::Param {
                    offset: start,
                    bytes,
                    kernel,
                    at: *offset,
                });
            }
            _ => {}
        }
        let home = match self.local(name) {
            Some(Local::OwnVar(_)) => MemSpace::Local,
            Some(Local::SharedVar(_)) => MemSpace::Shared,
            Some(Local::Param { .. }) => MemSpace::Param,
            _ => match self.symbols.get(name) {
                Some(Symbol::Shared(_)) => MemSpace::Shared,
                _ => MemSpace::Global,
            },
        };
        match self.symbol(name, *offset)? {
            Some((reg, rest))
                if home == space || (home == MemSpace::Global && space == MemSpace::Generic) =>
            {
                Ok(Base::Slot(reg, rest))
            }
            Some(_) => self.fail(format!("`{name}` is not in the state space of the access")),
            None => self.fail(format!("unknown name `{name}`")),
        }
    }
}

/// A special register and its width.
pub(super) fn special_register(name: &str, part: Option<&str>) -> Option<(Special, u8)> {
    let axis = match part {
        Some("x") => Some(0),
        Some("y") => Some(1),
        Some("z") => Some(2),
        _ => None,
    };
    if part.is_some() {
        let axis = axis?;
        return Some(match name {
            "%tid" => (Special::Tid(axis), 32),
            "%ntid" => (Special::Ntid(axis), 32),
            "%ctaid" => (Special::Ctaid(axis), 32),
            "%nctaid" => (Special::Nctaid(axis), 32),
            _ => return None,
        });
    }
    Some(match name {
        "%laneid" => (Special::LaneId, 32),
        "%warpid" => (Special::WarpId, 32),
        "%nwarpid" => (Special::NWarpId, 32),
        "%smid" => (Special::SmId, 32),
        "%nsmid" => (Special::NSmId, 32),
        "%gridid" => (Special::GridId, 64),
        "%lanemask_eq" => (Special::LaneMaskEq, 32),
        "%lanemask_le" => (Special::LaneMaskLe, 32),
        "%lanemask_lt" => (Special::LaneMaskLt, 32),
        "%lanemask_ge" => (Special::LaneMaskGe, 32),
        "%lanemask_gt" => (Special::LaneMaskGt, 32),
        "%dynamic_smem_size" => (Special::DynamicSmemSize, 32),
        "%total_smem_size" => (Special::TotalSmemSize, 32),
        "%clock" => (Special::Clock, 32),
        "%clock_hi" => (Special::ClockHi, 32),
        "%clock64" => (Special::Clock64, 64),
        "%globaltimer" => (Special::GlobalTimer, 64),
        "%globaltimer_lo" => (Special::GlobalTimerLo, 32),
        "%globaltimer_hi" => (Special::GlobalTimerHi, 32),
        _ => return None,
    })
}

/// True if a special register changes while a thread runs.
pub(super) fn is_dynamic(which: Special) -> bool {
    matches!(
        which,
        Special::Clock
            | Special::ClockHi
            | Special::Clock64
            | Special::GlobalTimer
            | Special::GlobalTimerLo
            | Special::GlobalTimerHi
    )
}
