//! Running launches: state, scheduling, and how threads wait for each other.

mod barrier;
mod converge;
mod diagnose;
pub(crate) mod machine;
pub(crate) mod state;
mod warp;
