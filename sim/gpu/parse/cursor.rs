//! A cursor over tokens: what all parts of the grammar are made of.
//!
//! Knows: tokens, literals, and errors with their line.
//! Must not know: directives or statements.

use super::ast::Operand;
use super::lex::{Spanned, Token};
use crate::error::LoadError;

pub(super) type Parsed<T> = Result<T, LoadError>;

/// Deepest nesting of initialisers and bodies.
pub(super) const MAX_DEPTH: u32 = 32;

/// A place in the tokens.
pub(super) struct Parser<'a> {
    pub(super) tokens: Vec<Spanned<'a>>,
    pub(super) at: usize,
}

impl<'a> Parser<'a> {
    pub(super) fn peek(&self) -> &Token<'a> {
        self.tokens
            .get(self.at)
            .map_or(&Token::End, |(token, _)| token)
    }

    pub(super) fn peek_ahead(&self) -> &Token<'a> {
        self.tokens
            .get(self.at + 1)
            .map_or(&Token::End, |(token, _)| token)
    }

    pub(super) fn line(&self) -> u32 {
        self.tokens
            .get(self.at)
            .or(self.tokens.last())
            .map_or(1, |(_, line)| *line)
    }

    pub(super) fn next(&mut self) -> Token<'a> {
        let token = self.peek().clone();
        self.at += 1;
        token
    }

    pub(super) fn fail<T>(&self, message: impl Into<String>) -> Parsed<T> {
        Err(LoadError::new(self.line(), message))
    }

    pub(super) fn accept(&mut self, mark: char) -> bool {
        let hit = *self.peek() == Token::Mark(mark);
        if hit {
            self.at += 1;
        }
        hit
    }

    pub(super) fn expect(&mut self, mark: char) -> Parsed<()> {
        if self.accept(mark) {
            Ok(())
        } else {
            self.fail(format!("`{mark}` expected, found {}", self.found()))
        }
    }

    pub(super) fn found(&self) -> String {
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

    pub(super) fn word(&mut self) -> Parsed<&'a str> {
        match *self.peek() {
            Token::Word(word) => {
                self.at += 1;
                Ok(word)
            }
            _ => self.fail(format!("name expected, found {}", self.found())),
        }
    }

    pub(super) fn int(&mut self) -> Parsed<u64> {
        match *self.peek() {
            Token::Int(value) => {
                self.at += 1;
                Ok(value)
            }
            _ => self.fail(format!("number expected, found {}", self.found())),
        }
    }

    pub(super) fn small(&mut self) -> Parsed<u32> {
        let line = self.line();
        u32::try_from(self.int()?).map_err(|_| LoadError::new(line, "number out of range"))
    }

    /// `+n`, `-n`, `+-n` or nothing.
    pub(super) fn offset(&mut self) -> Parsed<i64> {
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

    pub(super) fn literal(&mut self) -> Parsed<Operand<'a>> {
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
    use super::fit;

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
