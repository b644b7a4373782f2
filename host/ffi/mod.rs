//! libibverbs and libmlx5: their structures, and their functions, found when the program runs.
//!
//! Knows: names, versions of symbols, layouts. Nothing of rdma-core is needed to build.
//! Must not know: what a function is good for.
//!
//! `bindings.rs` is made from `infiniband/verbs.h` and `infiniband/mlx5dv.h` by `cargo xtask ffi`; ci/ffi-check proves it and
//! the table of functions against the headers of the system.

#[allow(
    dead_code,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    reason = "generated"
)]
mod bindings;
mod functions;

pub(crate) use bindings::*;
pub(crate) use functions::{Functions, NotLoaded};

/// `MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT`, of rdma-core 54 and later.
pub(crate) const REG_DMABUF_DATA_DIRECT: std::ffi::c_int = 1;
/// `MLX5DV_UAR_ALLOC_TYPE_BF`
pub(crate) const UAR_BLUE_FLAME: u32 = 0;
/// `MLX5DV_UAR_ALLOC_TYPE_NC`
pub(crate) const UAR_NON_CACHED: u32 = 1;
/// `MLX5DV_UAR_ALLOC_TYPE_NC_DEDICATED`, of rdma-core 45 and later.
pub(crate) const UAR_NON_CACHED_DEDICATED: u32 = 1 << 31;
