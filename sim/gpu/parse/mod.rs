//! PTX text to a syntax tree.
//!
//! Knows: the grammar of PTX: directives, declarations, statements, operands.
//! Must not know: which instructions exist or what they do.

pub(crate) mod ast;
mod body;
mod cursor;
mod grammar;
mod lex;
mod var;

pub(crate) use cursor::fit;
pub(crate) use grammar::parse;
