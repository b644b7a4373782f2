//! Tokens to a syntax tree.
//!
//! Knows: directives, declarations, statements and operands.
//! Must not know: instructions.

use super::ast::{Func, Init, Instr, Linkage, Module, Operand, Stmt, StmtKind, Ty, Var, VarSpace};
use super::lex::{Spanned, Token, lex};
use crate::error::LoadError;

type Parsed<T> = Result<T, LoadError>;

/// Largest variable, so that sizes cannot overflow.
const MAX_VAR_BYTES: u64 = 1 << 32;
/// Largest number of registers that one declaration makes.
const MAX_REGISTERS: u64 = 1 << 16;
/// Deepest nesting of initialisers and bodies.
const MAX_DEPTH: u32 = 32;

/// Parses a whole module.
pub(crate) fn parse(source: &str) -> Parsed<Module<'_>> {
    let tokens = lex(source).map_err(|e| e.with_source(source))?;
    let mut parser = Parser { tokens, at: 0 };
    parser.module().map_err(|e| e.with_source(source))
}

struct Parser<'a> {
    tokens: Vec<Spanned<'a>>,
    at: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> &Token<'a> {
        self.tokens
            .get(self.at)
            .map_or(&Token::End, |(token, _)| token)
    }

    fn peek_ahead(&self) -> &Token<'a> {
        self.tokens
            .get(self.at + 1)
            .map_or(&Token::End, |(token, _)| token)
    }

    fn line(&self) -> u32 {
        self.tokens
            .get(self.at)
            .or(self.tokens.last())
            .map_or(1, |(_, line)| *line)
    }

    fn next(&mut self) -> Token<'a> {
        let token = self.peek().clone();
        self.at += 1;
        token
    }

    fn fail<T>(&self, message: impl Into<String>) -> Parsed<T> {
        Err(LoadError::new(self.line(), message))
    }

    fn accept(&mut self, mark: char) -> bool {
        let hit = *self.peek() == Token::Mark(mark);
        if hit {
            self.at += 1;
        }
        hit
    }

    fn expect(&mut self, mark: char) -> Parsed<()> {
        if self.accept(mark) {
            Ok(())
        } else {
            self.fail(format!("`{mark}` expected, found {}", self.found()))
        }
    }

    fn found(&self) -> String {
        match self.peek() {
            Token::Word(word) => format!("`{word}`"),
            Token::Dot(word) => format!("`.{word}`"),
            Token::Int(value) => format!("`{value}`"),
            Token::F32(_) | Token::F64(_) => "a float".into(),
            Token::Text => "a string".into(),
            Token::Mark(mark) => format!("`{mark}`"),
            Token::Phase(_) => "a phase marker".into(),
            Token::End => "the end of the text".into(),
        }
    }

    fn word(&mut self) -> Parsed<&'a str> {
        match *self.peek() {
            Token::Word(word) => {
                self.at += 1;
                Ok(word)
            }
            _ => self.fail(format!("name expected, found {}", self.found())),
        }
    }

    fn int(&mut self) -> Parsed<u64> {
        match *self.peek() {
            Token::Int(value) => {
                self.at += 1;
                Ok(value)
            }
            _ => self.fail(format!("number expected, found {}", self.found())),
        }
    }

    fn small(&mut self) -> Parsed<u32> {
        let line = self.line();
        u32::try_from(self.int()?).map_err(|_| LoadError::new(line, "number out of range"))
    }

    fn module(&mut self) -> Parsed<Module<'a>> {
        let mut module = Module::default();
        let (mut version, mut target, mut size) = (false, false, false);
        loop {
            match *self.peek() {
                Token::End => break,
                Token::Dot("version") => {
                    self.at += 1;
                    let major = self.int()?;
                    let Token::Dot(minor) = self.next() else {
                        return self.fail("`.version major.minor` expected");
                    };
                    if !(6..=9).contains(&major) || minor.parse::<u32>().is_err() {
                        self.at -= 1;
                        return self.fail("PTX version outside 6.0 to 9.x");
                    }
                    version = true;
                }
                Token::Dot("target") => {
                    self.at += 1;
                    self.target()?;
                    target = true;
                }
                Token::Dot("address_size") => {
                    self.at += 1;
                    if self.int()? != 64 {
                        self.at -= 1;
                        return self.fail("only 64-bit addresses are supported");
                    }
                    size = true;
                }
                _ if !(version && target) => {
                    return self.fail("`.version` and `.target` must come first");
                }
                Token::Dot("file") => self.file()?,
                Token::Dot("pragma") => self.pragma()?,
                Token::Phase(_) => return self.fail("phase marker outside a function"),
                _ => self.declaration(&mut module)?,
            }
        }
        if !(version && target && size) {
            return Err(LoadError::new(
                0,
                "`.version`, `.target` or `.address_size 64` is missing",
            ));
        }
        Ok(module)
    }

    fn target(&mut self) -> Parsed<()> {
        loop {
            let name = self.word()?;
            let known = name.strip_prefix("sm_").is_some_and(|rest| {
                rest.trim_end_matches(['a', 'f'])
                    .parse::<u32>()
                    .is_ok_and(|sm| sm >= 50)
            });
            if !known && !matches!(name, "texmode_unified" | "texmode_independent" | "debug") {
                self.at -= 1;
                return self.fail("unknown target");
            }
            if !self.accept(',') {
                return Ok(());
            }
        }
    }

    /// `.file index "name" [, timestamp, size]`
    fn file(&mut self) -> Parsed<()> {
        self.at += 1;
        self.int()?;
        if self.next() != Token::Text {
            self.at -= 1;
            return self.fail("file name expected");
        }
        while self.accept(',') {
            self.int()?;
        }
        Ok(())
    }

    /// `.loc file line column [, function_name label, inlined_at file line column]`
    fn loc(&mut self) -> Parsed<()> {
        self.at += 1;
        for _ in 0..3 {
            self.int()?;
        }
        while self.accept(',') {
            match self.word()? {
                "function_name" => {
                    self.word()?;
                    if self.accept('+') {
                        self.int()?;
                    }
                }
                "inlined_at" => {
                    for _ in 0..3 {
                        self.int()?;
                    }
                }
                _ => {
                    self.at -= 1;
                    return self.fail("unknown attribute of `.loc`");
                }
            }
        }
        Ok(())
    }

    /// Pragmas are hints to ptxas (PTX ISA, ".pragma"): none changes what a program means.
    fn pragma(&mut self) -> Parsed<()> {
        self.at += 1;
        loop {
            if self.next() != Token::Text {
                self.at -= 1;
                return self.fail("string expected");
            }
            if !self.accept(',') {
                return self.expect(';');
            }
        }
    }

    fn declaration(&mut self, module: &mut Module<'a>) -> Parsed<()> {
        let mut linkage = Linkage::Here;
        loop {
            match *self.peek() {
                Token::Dot("visible" | "weak" | "common") => self.at += 1,
                Token::Dot("extern") => {
                    linkage = Linkage::Extern;
                    self.at += 1;
                }
                Token::Dot("entry") => {
                    self.at += 1;
                    let func = self.func(true)?;
                    module.funcs.push(func);
                    return Ok(());
                }
                Token::Dot("func") => {
                    self.at += 1;
                    let func = self.func(false)?;
                    module.funcs.push(func);
                    return Ok(());
                }
                Token::Dot(name @ ("global" | "const" | "shared")) => {
                    self.at += 1;
                    let space = match name {
                        "global" => VarSpace::Global,
                        "const" => VarSpace::Const,
                        _ => VarSpace::Shared,
                    };
                    self.vars(space, linkage, |var| module.vars.push(var))?;
                    return Ok(());
                }
                Token::Dot("section") => {
                    return self.fail(
                        "debug sections are not supported: build the PTX without debug info",
                    );
                }
                Token::Dot(name) => return self.fail(format!("unknown directive `.{name}`")),
                _ => return self.fail(format!("directive expected, found {}", self.found())),
            }
        }
    }

    /// One or more variables of one declaration, `;` included.
    fn vars(
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

    fn align_and_type(&mut self) -> Parsed<(u32, Ty)> {
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

    fn alignment(&mut self) -> Parsed<u32> {
        let align = self.small()?;
        if align.is_power_of_two() && align <= 1 << 16 {
            Ok(align)
        } else {
            self.at -= 1;
            self.fail("alignment is not a power of two up to 65536")
        }
    }

    /// Name, dimensions and initialiser.
    fn var(&mut self, space: VarSpace, linkage: Linkage, align: u32, ty: Ty) -> Parsed<Var<'a>> {
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
    fn initialiser(
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

    fn init_value(&mut self, ty: Ty) -> Parsed<Init<'a>> {
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

    /// `+n`, `-n`, `+-n` or nothing.
    fn offset(&mut self) -> Parsed<i64> {
        let plus = self.accept('+');
        let minus = self.accept('-');
        if !plus && !minus {
            return Ok(0);
        }
        let line = self.line();
        let value =
            i64::try_from(self.int()?).map_err(|_| LoadError::new(line, "offset out of range"))?;
        Ok(if minus { -value } else { value })
    }

    fn literal(&mut self) -> Parsed<Operand<'a>> {
        let minus = self.accept('-');
        let operand = match self.next() {
            Token::Int(value) if minus => Operand::Int(-i128::from(value)),
            Token::Int(value) => Operand::Int(i128::from(value)),
            Token::F32(bits) if !minus => Operand::F32(bits),
            Token::F64(bits) if !minus => Operand::F64(bits),
            _ => {
                self.at -= 1;
                return self.fail(format!("operand expected, found {}", self.found()));
            }
        };
        Ok(operand)
    }

    fn func(&mut self, is_kernel: bool) -> Parsed<Func<'a>> {
        let line = self.line();
        let mut returns = Vec::new();
        if *self.peek() == Token::Dot("attribute") {
            return self.fail("unknown directive `.attribute`");
        }
        if !is_kernel && *self.peek() == Token::Mark('(') {
            returns = self.params()?;
        }
        let name = self.word()?;
        let params = if *self.peek() == Token::Mark('(') {
            self.params()?
        } else {
            Vec::new()
        };
        let (mut max_threads, mut required_shape) = (None, None);
        loop {
            match *self.peek() {
                Token::Dot("maxntid") => {
                    self.at += 1;
                    let shape = self.shape()?;
                    max_threads = Some(shape.iter().map(|n| u64::from(*n)).product());
                }
                Token::Dot("reqntid") => {
                    self.at += 1;
                    required_shape = Some(self.shape()?);
                }
                // Hints to ptxas on register allocation.
                Token::Dot("minnctapersm" | "maxnctapersm" | "maxnreg") => {
                    self.at += 1;
                    self.int()?;
                }
                Token::Dot("noreturn") => self.at += 1,
                Token::Dot("pragma") => self.pragma()?,
                _ => break,
            }
        }
        let body = if self.accept(';') {
            None
        } else {
            Some(self.body()?)
        };
        Ok(Func {
            line,
            is_kernel,
            name,
            returns,
            params,
            max_threads,
            required_shape,
            body,
        })
    }

    fn shape(&mut self) -> Parsed<[u32; 3]> {
        let mut shape = [self.small()?, 1, 1];
        for n in shape.iter_mut().skip(1) {
            if self.accept(',') {
                *n = self.small()?;
            }
        }
        Ok(shape)
    }

    fn params(&mut self) -> Parsed<Vec<Var<'a>>> {
        self.expect('(')?;
        let mut params = Vec::new();
        if self.accept(')') {
            return Ok(params);
        }
        loop {
            match self.next() {
                Token::Dot("param") => {}
                Token::Dot("reg") => {
                    self.at -= 1;
                    return self.fail("parameters in registers are not supported");
                }
                _ => {
                    self.at -= 1;
                    return self.fail("`.param` expected");
                }
            }
            let (mut align, ty) = self.align_and_type()?;
            if *self.peek() == Token::Dot("ptr") {
                self.at += 1;
                // The alignment and space after `.ptr` describe what the parameter points to: a hint to ptxas.
                loop {
                    match *self.peek() {
                        Token::Dot("global" | "const" | "shared" | "local") => self.at += 1,
                        Token::Dot("align") => {
                            self.at += 1;
                            self.alignment()?;
                        }
                        _ => break,
                    }
                }
            }
            align = align.max(u32::from(ty.bytes()));
            let param = self.var(VarSpace::Param, Linkage::Here, align, ty)?;
            if param.bytes.is_none() {
                return Err(LoadError::new(param.line, "parameter of unspecified size"));
            }
            params.push(param);
            if self.accept(')') {
                return Ok(params);
            }
            self.expect(',')?;
        }
    }

    fn body(&mut self) -> Parsed<Vec<Stmt<'a>>> {
        self.expect('{')?;
        let mut depth = 1u32;
        let mut out = Vec::new();
        loop {
            let line = self.line();
            let kind = match *self.peek() {
                Token::End => return self.fail("the body has no end"),
                Token::Mark('}') => {
                    self.at += 1;
                    depth -= 1;
                    if depth == 0 {
                        return Ok(out);
                    }
                    StmtKind::Close
                }
                Token::Mark('{') => {
                    self.at += 1;
                    depth += 1;
                    if depth > MAX_DEPTH {
                        return self.fail("blocks are nested too deeply");
                    }
                    StmtKind::Open
                }
                // LLVM's inline assembly may leave an empty statement.
                Token::Mark(';') => {
                    self.at += 1;
                    continue;
                }
                Token::Phase(phase) => {
                    self.at += 1;
                    StmtKind::Phase(phase)
                }
                Token::Dot("reg") => {
                    self.at += 1;
                    self.registers(&mut out)?;
                    continue;
                }
                Token::Dot(name @ ("local" | "shared" | "param" | "global" | "const")) => {
                    self.at += 1;
                    let space = match name {
                        "local" => VarSpace::Local,
                        "shared" => VarSpace::Shared,
                        "global" => VarSpace::Global,
                        "const" => VarSpace::Const,
                        _ => VarSpace::Param,
                    };
                    self.vars(space, Linkage::Here, |var| {
                        out.push(Stmt {
                            line: var.line,
                            kind: StmtKind::Var(var),
                        });
                    })?;
                    continue;
                }
                Token::Dot("loc") => {
                    self.loc()?;
                    continue;
                }
                Token::Dot("pragma") => {
                    self.pragma()?;
                    continue;
                }
                Token::Dot(name) => return self.fail(format!("unknown directive `.{name}`")),
                Token::Word(name) if *self.peek_ahead() == Token::Mark(':') => {
                    self.at += 2;
                    match *self.peek() {
                        Token::Dot("branchtargets") => {
                            self.at += 1;
                            let targets = self.names()?;
                            StmtKind::BranchTargets { name, targets }
                        }
                        Token::Dot("callprototype" | "calltargets") => {
                            return self.fail("indirect calls are not supported");
                        }
                        _ => StmtKind::Label(name),
                    }
                }
                Token::Word(_) | Token::Mark('@') => StmtKind::Instr(self.instruction()?),
                _ => return self.fail(format!("statement expected, found {}", self.found())),
            };
            out.push(Stmt { line, kind });
        }
    }

    fn registers(&mut self, out: &mut Vec<Stmt<'a>>) -> Parsed<()> {
        let Token::Dot(name) = *self.peek() else {
            return self.fail("type expected");
        };
        let Some(ty) = Ty::from_name(name) else {
            return self.fail(format!("unsupported register type `.{name}`"));
        };
        self.at += 1;
        loop {
            let line = self.line();
            let name = self.word()?;
            let mut count = None;
            if self.accept('<') {
                let n = self.int()?;
                if n > MAX_REGISTERS {
                    self.at -= 1;
                    return self.fail("too many registers");
                }
                count = Some(n as u32);
                self.expect('>')?;
            }
            out.push(Stmt {
                line,
                kind: StmtKind::Reg { ty, name, count },
            });
            if !self.accept(',') {
                return self.expect(';');
            }
        }
    }

    fn names(&mut self) -> Parsed<Vec<&'a str>> {
        let mut names = vec![self.word()?];
        while self.accept(',') {
            names.push(self.word()?);
        }
        self.expect(';')?;
        Ok(names)
    }

    fn instruction(&mut self) -> Parsed<Instr<'a>> {
        let mut guard = None;
        if self.accept('@') {
            let negated = self.accept('!');
            guard = Some((negated, self.word()?));
        }
        let mnemonic = self.word()?;
        let mut modifiers = Vec::new();
        while let Token::Dot(name) = *self.peek() {
            modifiers.push(name);
            self.at += 1;
        }
        let mut operands = Vec::new();
        if !self.accept(';') {
            loop {
                operands.push(self.operand()?);
                if !self.accept(',') {
                    self.expect(';')?;
                    break;
                }
            }
        }
        Ok(Instr {
            guard,
            mnemonic,
            modifiers,
            operands,
        })
    }

    fn operand(&mut self) -> Parsed<Operand<'a>> {
        match *self.peek() {
            Token::Mark('[') => {
                self.at += 1;
                let base = match *self.peek() {
                    Token::Word(name) => {
                        self.at += 1;
                        Some(name)
                    }
                    _ => None,
                };
                let offset = if base.is_some() {
                    self.offset()?
                } else {
                    let line = self.line();
                    let Operand::Int(value) = self.literal()? else {
                        return Err(LoadError::new(line, "address expected"));
                    };
                    let Ok(value) = u64::try_from(value) else {
                        return Err(LoadError::new(line, "address out of range"));
                    };
                    value as i64
                };
                self.expect(']')?;
                Ok(Operand::Address(base, offset))
            }
            Token::Mark('{') => {
                self.at += 1;
                Ok(Operand::Vector(self.list('}')?))
            }
            Token::Mark('(') => {
                self.at += 1;
                Ok(Operand::List(self.list(')')?))
            }
            _ => self.simple(),
        }
    }

    fn list(&mut self, close: char) -> Parsed<Vec<Operand<'a>>> {
        let mut list = Vec::new();
        if self.accept(close) {
            return Ok(list);
        }
        loop {
            list.push(self.simple()?);
            if self.accept(close) {
                return Ok(list);
            }
            self.expect(',')?;
        }
    }

    fn simple(&mut self) -> Parsed<Operand<'a>> {
        match *self.peek() {
            Token::Mark('!') => {
                self.at += 1;
                Ok(Operand::Not(self.word()?))
            }
            Token::Word(name) => {
                self.at += 1;
                match *self.peek() {
                    Token::Dot(part) => {
                        self.at += 1;
                        Ok(Operand::Name(name, Some(part)))
                    }
                    Token::Mark('|') => {
                        self.at += 1;
                        Ok(Operand::Pair(name, self.word()?))
                    }
                    Token::Mark('+' | '-') => Ok(Operand::Offset(name, self.offset()?)),
                    _ => Ok(Operand::Name(name, None)),
                }
            }
            _ => self.literal(),
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

/// The low `bits` bits of `value`, if it is in the range of the signed or of the unsigned type of that width.
pub(crate) fn fit(value: i128, bits: u8) -> Option<u64> {
    let bits = u32::from(bits);
    let inside = value >= -(1i128 << (bits - 1)) && value < (1i128 << bits);
    let mask = if bits >= 64 {
        u64::MAX
    } else {
        (1 << bits) - 1
    };
    inside.then_some(value as u64 & mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = ".version 8.2\n.target sm_70\n.address_size 64\n";

    fn error(body: &str) -> LoadError {
        parse(&format!("{HEAD}{body}")).unwrap_err()
    }

    #[test]
    fn declarations_keep_size_alignment_and_values() {
        let source = format!(
            "{HEAD}.visible .global .align 4 .u32 x = 5;\n.const .align 8 .b8 t[] = {{1, 0xff, 3}};\n\
             .global .u64 p[2] = {{x, generic(x)+4}};\n.global .b16 m[2][3] = {{{{1, 2}}, {{3}}}};\n\
             .extern .shared .align 16 .b8 smem[];\n"
        );
        let module = parse(&source).unwrap();
        let sizes: Vec<_> = module
            .vars
            .iter()
            .map(|v| (v.name, v.bytes, v.align))
            .collect();
        assert_eq!(
            sizes,
            [
                ("x", Some(4), 4),
                ("t", Some(3), 8),
                ("p", Some(16), 8),
                ("m", Some(12), 2),
                ("smem", None, 16)
            ]
        );
        let indices: Vec<_> = module.vars[3].init.iter().map(|(at, _)| *at).collect();
        assert_eq!(indices, [0, 1, 3]);
    }

    #[test]
    fn errors_name_line_and_text() {
        for (body, line, part) in [
            (".global .u32 x = 0x1ffffffff;", 4, "does not fit"),
            (".global .u32 x[1] = {1, 2};", 4, "more initial values"),
            ("\n.wibble", 5, "unknown directive `.wibble`"),
            (".entry k() {\n add.u32 a, b\n}", 6, "`;` expected"),
            (".entry k() {\n @ add.u32;\n", 5, "name expected"),
            (".entry k() {\n add.u32 a;\n", 6, "the body has no end"),
            (".entry k() { .maxnreg 3; }", 4, "unknown directive"),
            (".section .debug_str { }", 4, "debug sections"),
            (".global .f16 x;", 4, "unsupported type"),
            (".global .align 3 .b8 x;", 4, "power of two"),
            ("// wv.phase post\n", 4, "outside a function"),
            (".entry k(.reg .u32 x) {}", 4, "registers are not supported"),
        ] {
            let e = error(body);
            assert_eq!(e.line, line, "{body}: {e}");
            assert!(e.message.contains(part), "{body}: {e}");
        }
        let e = error("\n  .wibble 3");
        assert_eq!(
            e.to_string(),
            "PTX line 5: unknown directive `.wibble`: `.wibble 3`"
        );
        assert_eq!(parse(".version 8.2\n.target sm_70\n").unwrap_err().line, 0);
        assert!(parse(".version 8.2\n.target sm_70\n.address_size 32").is_err());
        assert!(parse(".version 3.0\n").is_err());
        assert!(parse(".entry k() {}").is_err());
    }

    #[test]
    fn literals_fit_signed_or_unsigned() {
        assert_eq!(fit(-1, 16), Some(0xffff));
        assert_eq!(fit(0xffff, 16), Some(0xffff));
        assert_eq!(fit(0x1_0000, 16), None);
        assert_eq!(fit(-0x8001, 16), None);
        assert_eq!(fit(i128::from(u64::MAX), 64), Some(u64::MAX));
        assert_eq!(fit(-1, 64), Some(u64::MAX));
    }
}
