//! The PTX that this crate embeds.
//!
//! Knows: which modules there are, and which of them suits a GPU best.
//! Must not know: what their kernels do.

/// An embedded module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Embedded {
    /// Its file name in `ptx/`.
    pub name: &'static str,
    /// The lowest compute capability that it runs on, such as 70 for 7.0.
    pub compute_capability: u32,
    /// Its text.
    pub text: &'static str,
}

/// All of them: the table is `build.rs`'s.
pub const EMBEDDED: &[Embedded] = include!(concat!(env!("OUT_DIR"), "/ptx.rs"));

/// The module with the highest compute capability that is not above the GPU's: PTX runs on what it
/// names and on anything later.
pub fn best_for(compute_capability: u32) -> Option<&'static Embedded> {
    EMBEDDED
        .iter()
        .filter(|ptx| ptx.compute_capability <= compute_capability)
        .max_by_key(|ptx| ptx.compute_capability)
}
