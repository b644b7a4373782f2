//! PTX text to tokens.
//!
//! Knows: the shapes of words, numbers and comments (PTX ISA, "Syntax").
//! Must not know: what a word means.

use crate::counters::Phase;
use crate::error::LoadError;

/// One token.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token<'a> {
    /// A name, `%` registers included.
    Word(&'a str),
    /// `.name`, without the dot; may hold `::`.
    Dot(&'a str),
    /// An integer, without sign.
    Int(u64),
    /// `0f` and eight hex digits: the bits of an `f32`.
    F32(u32),
    /// `0d` and sixteen hex digits: the bits of an `f64`.
    F64(u64),
    /// A quoted string.
    Text,
    /// One of `, ; : { } ( ) [ ] < > @ ! + - | =`.
    Mark(char),
    /// A `// wv.phase NAME` comment.
    Phase(Phase),
    /// The end of the text.
    End,
}

/// A token and its line.
pub(super) type Spanned<'a> = (Token<'a>, u32);

/// All tokens of `source`, [`Token::End`] last.
pub(super) fn lex(source: &str) -> Result<Vec<Spanned<'_>>, LoadError> {
    let mut lexer = Lexer {
        source,
        bytes: source.as_bytes(),
        at: 0,
        line: 1,
        out: Vec::with_capacity(source.len() / 4),
    };
    lexer.run()?;
    lexer.out.push((Token::End, lexer.line));
    Ok(lexer.out)
}

struct Lexer<'a> {
    source: &'a str,
    bytes: &'a [u8],
    at: usize,
    line: u32,
    out: Vec<Spanned<'a>>,
}

fn is_word_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'$' | b'%')
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$')
}

impl<'a> Lexer<'a> {
    fn peek(&self, ahead: usize) -> u8 {
        self.bytes.get(self.at + ahead).copied().unwrap_or(0)
    }

    fn push(&mut self, token: Token<'a>) {
        self.out.push((token, self.line));
    }

    fn fail<T>(&self, message: impl Into<String>) -> Result<T, LoadError> {
        Err(LoadError::new(self.line, message))
    }

    /// Takes bytes while `keep` holds. All bytes that `keep` accepts are ASCII, so the slice is on character borders.
    fn take(&mut self, keep: impl Fn(u8) -> bool) -> &'a str {
        let from = self.at;
        while self.at < self.bytes.len() && keep(self.bytes[self.at]) {
            self.at += 1;
        }
        self.source.get(from..self.at).unwrap_or_default()
    }

    fn run(&mut self) -> Result<(), LoadError> {
        while self.at < self.bytes.len() {
            let byte = self.peek(0);
            match byte {
                b'\n' => {
                    self.line += 1;
                    self.at += 1;
                }
                b' ' | b'\t' | b'\r' | 0x0c => self.at += 1,
                b'/' if self.peek(1) == b'/' => self.line_comment()?,
                b'/' if self.peek(1) == b'*' => self.block_comment()?,
                b'"' => self.text()?,
                b'.' => self.dotted()?,
                b'0'..=b'9' => self.number()?,
                _ if is_word_start(byte) => {
                    let from = self.at;
                    self.at += 1;
                    self.take(is_word);
                    let word = self.source.get(from..self.at).unwrap_or_default();
                    self.push(Token::Word(word));
                }
                b',' | b';' | b':' | b'{' | b'}' | b'(' | b')' | b'[' | b']' | b'<' | b'>'
                | b'@' | b'!' | b'+' | b'-' | b'|' | b'=' => {
                    self.at += 1;
                    self.push(Token::Mark(byte as char));
                }
                _ => {
                    let c = self
                        .source
                        .get(self.at..)
                        .and_then(|rest| rest.chars().next());
                    return self.fail(format!(
                        "unexpected character {:?}",
                        c.unwrap_or('\u{fffd}')
                    ));
                }
            }
        }
        Ok(())
    }

    fn line_comment(&mut self) -> Result<(), LoadError> {
        let from = self.at + 2;
        while self.at < self.bytes.len() && self.bytes[self.at] != b'\n' {
            self.at += 1;
        }
        let comment = self.source.get(from..self.at).unwrap_or_default();
        let mut words = comment.split_ascii_whitespace();
        if words.next() == Some("wv.phase") {
            let name = words.next().unwrap_or_default();
            match Phase::from_name(name) {
                Some(phase) if words.next().is_none() => self.push(Token::Phase(phase)),
                _ => return self.fail("unknown phase; known: other, post, poll, spin"),
            }
        }
        Ok(())
    }

    fn block_comment(&mut self) -> Result<(), LoadError> {
        let start = self.line;
        self.at += 2;
        while self.at < self.bytes.len() {
            match self.peek(0) {
                b'*' if self.peek(1) == b'/' => {
                    self.at += 2;
                    return Ok(());
                }
                b'\n' => self.line += 1,
                _ => {}
            }
            self.at += 1;
        }
        Err(LoadError::new(start, "comment without end"))
    }

    fn text(&mut self) -> Result<(), LoadError> {
        self.at += 1;
        while self.at < self.bytes.len() {
            match self.peek(0) {
                b'"' => {
                    self.at += 1;
                    self.push(Token::Text);
                    return Ok(());
                }
                b'\n' => break,
                b'\\' => self.at += 1,
                _ => {}
            }
            self.at += 1;
        }
        self.fail("string without end")
    }

    fn dotted(&mut self) -> Result<(), LoadError> {
        self.at += 1;
        let from = self.at;
        loop {
            if self.take(|b| is_word(b) || b == b'%').is_empty() {
                return self.fail("name expected after `.`");
            }
            if self.peek(0) == b':' && self.peek(1) == b':' {
                self.at += 2;
            } else {
                break;
            }
        }
        let name = self.source.get(from..self.at).unwrap_or_default();
        self.push(Token::Dot(name));
        Ok(())
    }

    fn number(&mut self) -> Result<(), LoadError> {
        let all = self.take(|b| b.is_ascii_alphanumeric());
        let hex_bits = |digits: &str, len: usize| {
            (digits.len() == len)
                .then(|| u64::from_str_radix(digits, 16).ok())
                .flatten()
        };
        let token = match all.get(..2) {
            Some("0f" | "0F") => all
                .get(2..)
                .and_then(|d| hex_bits(d, 8))
                .map(|bits| Token::F32(bits as u32)),
            Some("0d" | "0D") => all.get(2..).and_then(|d| hex_bits(d, 16)).map(Token::F64),
            _ => integer(all).map(Token::Int),
        };
        match token {
            Some(token) => {
                self.push(token);
                Ok(())
            }
            None => self.fail(format!("malformed number `{all}`")),
        }
    }
}

/// An integer literal: decimal, hex, octal or binary, with an optional `U` (PTX ISA, "Integer Constants").
fn integer(text: &str) -> Option<u64> {
    let text = text.strip_suffix('U').unwrap_or(text);
    let (radix, digits) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, text.get(2..)?),
        [b'0', b'b' | b'B', ..] => (2, text.get(2..)?),
        [b'0', _, ..] => (8, text.get(1..)?),
        _ => (10, text),
    };
    u64::from_str_radix(digits, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(source: &str) -> Vec<Token<'_>> {
        lex(source)
            .unwrap()
            .into_iter()
            .map(|(token, _)| token)
            .collect()
    }

    #[test]
    fn words_numbers_and_marks() {
        assert_eq!(
            tokens(
                "@!%p1 ld.L1::evict_last.b64 %rd2, [a+0x1fU]; 010 0b11 0f3F800000 0d3FF0000000000000"
            ),
            [
                Token::Mark('@'),
                Token::Mark('!'),
                Token::Word("%p1"),
                Token::Word("ld"),
                Token::Dot("L1::evict_last"),
                Token::Dot("b64"),
                Token::Word("%rd2"),
                Token::Mark(','),
                Token::Mark('['),
                Token::Word("a"),
                Token::Mark('+'),
                Token::Int(0x1f),
                Token::Mark(']'),
                Token::Mark(';'),
                Token::Int(8),
                Token::Int(3),
                Token::F32(0x3f80_0000),
                Token::F64(0x3ff0_0000_0000_0000),
                Token::End,
            ]
        );
    }

    #[test]
    fn comments_end_and_phase_markers_do_not_vanish() {
        assert_eq!(
            tokens("/* a\n b */ x // c\n\t// wv.phase poll\n// wv.phased\n"),
            [Token::Word("x"), Token::Phase(Phase::Poll), Token::End]
        );
        assert_eq!(lex("a\n/* b\n\n").unwrap_err().line, 2);
        assert!(
            lex("// wv.phase nap")
                .unwrap_err()
                .message
                .contains("unknown phase")
        );
    }

    #[test]
    fn malformed_text_is_refused_with_its_line() {
        for (source, line) in [
            ("\n09", 2),
            ("0x", 1),
            ("0f3F8", 1),
            ("a\n\"b", 2),
            ("é", 1),
            (". x", 1),
            ("12ab", 1),
        ] {
            assert_eq!(lex(source).unwrap_err().line, line, "{source:?}");
        }
    }
}
