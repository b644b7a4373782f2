//! PTX text to a syntax tree.
//!
//! Knows: the grammar of PTX: directives, declarations, statements, operands.
//! Must not know: which instructions exist or what they do.

pub(crate) mod ast;
mod grammar;
mod lex;

pub(crate) use grammar::{fit, parse};
