//! Running launches: state, scheduling, and how threads wait for each other.

mod active_mask;
mod barrier;
mod converge;
mod diagnose;
pub(crate) mod machine;
mod meeting;
mod residency;
pub(crate) mod state;
mod warp;
