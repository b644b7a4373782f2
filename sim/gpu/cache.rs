//! Modules that were decoded before, in this process.
//!
//! Knows: which text gave which code at which addresses of its variables.
//! Must not know: how text is decoded.
//!
//! Decoding costs more than a short run. What is kept changes no address and no result: the variables are allocated first, as
//! they always are, and code is used again only if all lie where they lay.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use crate::ir::Program;

/// Modules that are kept.
const KEPT: usize = 4;

/// A variable of a module.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) align: u64,
    pub(crate) line: u32,
    pub(crate) constant: bool,
}

/// A decoded module.
pub(crate) struct Decoded {
    source: String,
    converge: bool,
    pub(crate) variables: Vec<Variable>,
    /// Where they lay.
    pub(crate) addresses: Vec<u64>,
    /// What they held at first.
    pub(crate) images: Vec<Vec<u8>>,
    pub(crate) program: Arc<Program>,
}

static DECODED: Mutex<VecDeque<Arc<Decoded>>> = Mutex::new(VecDeque::new());

/// What was decoded from the same text.
pub(crate) fn find(source: &str, converge: bool) -> Option<Arc<Decoded>> {
    let decoded = DECODED.lock().unwrap_or_else(PoisonError::into_inner);
    let same = |decoded: &&Arc<Decoded>| decoded.converge == converge && decoded.source == source;
    decoded.iter().find(same).cloned()
}

/// Keeps a module in place of the oldest, or of the same text at other addresses.
pub(crate) fn keep(
    source: &str,
    converge: bool,
    variables: Vec<Variable>,
    addresses: Vec<u64>,
    images: Vec<Vec<u8>>,
    program: Arc<Program>,
) {
    let new = Arc::new(Decoded {
        source: source.to_owned(),
        converge,
        variables,
        addresses,
        images,
        program,
    });
    let mut decoded = DECODED.lock().unwrap_or_else(PoisonError::into_inner);
    decoded.retain(|old| old.converge != converge || old.source != source);
    decoded.push_back(new);
    if decoded.len() > KEPT {
        decoded.pop_front();
    }
}
