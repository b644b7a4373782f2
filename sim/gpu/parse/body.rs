//! Bodies: statements, instructions, operands.
//!
//! Knows: the shape of statements and operands.
//! Must not know: which instructions exist.

use super::ast::{Instr, Linkage, Operand, Stmt, StmtKind, Ty, VarSpace};
use super::cursor::{MAX_DEPTH, Parsed, Parser};
use super::lex::Token;
use crate::error::LoadError;

/// Largest number of registers that one declaration makes.
const MAX_REGISTERS: u64 = 1 << 16;

impl<'a> Parser<'a> {
    pub(super) fn body(&mut self) -> Parsed<Vec<Stmt<'a>>> {
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

    pub(super) fn registers(&mut self, out: &mut Vec<Stmt<'a>>) -> Parsed<()> {
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

    pub(super) fn names(&mut self) -> Parsed<Vec<&'a str>> {
        let mut names = vec![self.word()?];
        while self.accept(',') {
            names.push(self.word()?);
        }
        self.expect(';')?;
        Ok(names)
    }

    pub(super) fn instruction(&mut self) -> Parsed<Instr<'a>> {
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

    pub(super) fn operand(&mut self) -> Parsed<Operand<'a>> {
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

    pub(super) fn list(&mut self, close: char) -> Parsed<Vec<Operand<'a>>> {
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

    pub(super) fn simple(&mut self) -> Parsed<Operand<'a>> {
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
