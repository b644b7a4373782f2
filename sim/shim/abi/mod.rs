//! The bytes of the uverbs ABI (`rdma/*.h` of the kernel's user headers): structures, object and method numbers.
//!
//! Knows: what lies where. Must not know: what a command does.

mod layout;
pub(crate) mod mlx5;
pub(crate) mod verbs;

pub use layout::Layout;
pub(crate) use layout::{Field, abi, copy, padded};

/// All structures, for the comparison with the C headers.
pub fn layouts() -> impl Iterator<Item = &'static Layout> {
    verbs::LAYOUTS.iter().chain(mlx5::LAYOUTS)
}
