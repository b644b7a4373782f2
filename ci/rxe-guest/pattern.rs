//! The bytes that both ends fill memory with and compare.
//!
//! Knows: one rule. Compiled into the guest and into the test that drives it.

/// Byte `at` of a filled memory: differs from its neighbours, from those of another salt, and between pages.
pub(crate) fn byte(at: usize, salt: u32) -> u8 {
    let mixed = (at as u32 ^ salt.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
    (mixed >> 15) as u8 ^ at as u8
}

/// `len` bytes of it, as if `start` were their place.
pub(crate) fn bytes(start: usize, len: usize, salt: u32) -> Vec<u8> {
    (start..start + len).map(|at| byte(at, salt)).collect()
}
