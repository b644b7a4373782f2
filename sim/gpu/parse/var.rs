//! Variables: type, alignment, dimensions, initial values.
//!
//! Knows: the grammar of variable declarations (PTX ISA, "Variables").
//! Must not know: where a variable will lie.

use super::ast::{Init, Linkage, Operand, Ty, Var, VarSpace};
use super::cursor::{MAX_DEPTH, Parsed, Parser, fit};
use super::lex::Token;
use crate::error::LoadError;

/// Largest variable, so that sizes cannot overflow.
const MAX_VAR_BYTES: u64 = 1 << 32;

impl<'a> Parser<'a> {
    /// One or more variables of one declaration, `;` included.
    pub(super) fn vars(
        &mut self,
        space: VarSpace,
        linkage: Linkage,
        mut keep: impl FnMut(Var<'a>),
    ) -> Parsed<()> {
        let (align, ty) = self.align_and_type()?;
        loop {
            keep(self.var(space, linkage, align, ty)?);
            if !self.accept(',') {
                return self.expect(';');
            }
        }
    }

    pub(super) fn align_and_type(&mut self) -> Parsed<(u32, Ty)> {
        let mut align = None;
        loop {
            match *self.peek() {
                Token::Dot("align") => {
                    self.at += 1;
                    align = Some(self.alignment()?);
                }
                Token::Dot(name) => {
                    let Some(ty) = Ty::from_name(name) else {
                        return self.fail(format!("unsupported type or attribute `.{name}`"));
                    };
                    self.at += 1;
                    return Ok((align.unwrap_or(u32::from(ty.bytes())), ty));
                }
                _ => return self.fail(format!("type expected, found {}", self.found())),
            }
        }
    }

    pub(super) fn alignment(&mut self) -> Parsed<u32> {
        let align = self.small()?;
        if align.is_power_of_two() && align <= 1 << 16 {
            Ok(align)
        } else {
            self.at -= 1;
            self.fail("alignment is not a power of two up to 65536")
        }
    }

    /// Name, dimensions and initialiser.
    pub(super) fn var(
        &mut self,
        space: VarSpace,
        linkage: Linkage,
        align: u32,
        ty: Ty,
    ) -> Parsed<Var<'a>> {
        let line = self.line();
        if ty == Ty::Pred {
            return self.fail("a predicate cannot be a variable");
        }
        let name = self.word()?;
        let element = u64::from(ty.bytes());
        let mut dims: Vec<Option<u64>> = Vec::new();
        while self.accept('[') {
            if self.accept(']') {
                if !dims.is_empty() {
                    return self.fail("only the first dimension may be left open");
                }
                dims.push(None);
            } else {
                dims.push(Some(self.int()?));
                self.expect(']')?;
            }
        }
        let mut inner = 1u64;
        for dim in dims.iter().skip(1).flatten() {
            inner = inner.saturating_mul(*dim);
        }
        let mut init = Vec::new();
        let mut count = match dims.first() {
            None => Some(1),
            Some(first) => first.map(|n| n.saturating_mul(inner)),
        };
        if self.accept('=') {
            if !matches!(space, VarSpace::Global | VarSpace::Const) {
                return self.fail("only global and constant variables can be initialised");
            }
            let strides = strides(&dims);
            let end = self.initialiser(ty, &strides, 0, 0, &mut init)?;
            let limit = count.get_or_insert(end.next_multiple_of(inner.max(1)));
            if end > *limit {
                return Err(LoadError::new(line, "more initial values than elements"));
            }
        }
        let bytes = count.map(|n| n.saturating_mul(element));
        if bytes.is_some_and(|b| b > MAX_VAR_BYTES) {
            return Err(LoadError::new(line, "variable is too large"));
        }
        Ok(Var {
            line,
            space,
            linkage,
            align: align.max(u32::from(ty.bytes())),
            ty,
            name,
            bytes,
            init,
        })
    }

    /// One initialiser, nested lists included; returns the index after its last element. `strides` are the elements
    /// that one step of each open dimension skips.
    pub(super) fn initialiser(
        &mut self,
        ty: Ty,
        strides: &[u64],
        at: u64,
        depth: u32,
        out: &mut Vec<(u64, Init<'a>)>,
    ) -> Parsed<u64> {
        if !self.accept('{') {
            out.push((at, self.init_value(ty)?));
            return Ok(at + 1);
        }
        if depth >= MAX_DEPTH {
            return self.fail("initialiser is nested too deeply");
        }
        let stride = strides.first().copied().unwrap_or(1);
        let mut next = at;
        if self.accept('}') {
            return Ok(at);
        }
        loop {
            let nested = *self.peek() == Token::Mark('{');
            let end =
                self.initialiser(ty, strides.get(1..).unwrap_or(&[]), next, depth + 1, out)?;
            next = if nested {
                next.saturating_add(stride).max(end)
            } else {
                end
            };
            if self.accept('}') {
                return Ok(next);
            }
            self.expect(',')?;
        }
    }

    pub(super) fn init_value(&mut self, ty: Ty) -> Parsed<Init<'a>> {
        match *self.peek() {
            Token::Word("generic") if *self.peek_ahead() == Token::Mark('(') => {
                self.at += 2;
                let symbol = self.word()?;
                self.expect(')')?;
                let offset = self.offset()?;
                Ok(Init::Address {
                    symbol,
                    offset,
                    generic: true,
                })
            }
            Token::Word(symbol) => {
                self.at += 1;
                let offset = self.offset()?;
                Ok(Init::Address {
                    symbol,
                    offset,
                    generic: false,
                })
            }
            _ => {
                let line = self.line();
                let bits = match self.literal()? {
                    Operand::Int(value) => fit(value, ty.bits()),
                    Operand::F32(bits) if ty == Ty::F32 || ty == Ty::B32 => Some(u64::from(bits)),
                    Operand::F64(bits) if ty == Ty::F64 || ty == Ty::B64 => Some(bits),
                    _ => None,
                };
                match bits {
                    Some(bits) => Ok(Init::Bits(bits)),
                    None => Err(LoadError::new(line, "initial value does not fit its type")),
                }
            }
        }
    }
}

/// Elements that one step of each dimension skips.
fn strides(dims: &[Option<u64>]) -> Vec<u64> {
    (0..dims.len())
        .map(|i| {
            dims.iter()
                .skip(i + 1)
                .flatten()
                .fold(1u64, |product, dim| product.saturating_mul(*dim))
        })
        .collect()
}
