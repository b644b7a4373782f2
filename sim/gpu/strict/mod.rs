//! Memory with the PTX memory model.
//!
//! Knows: histories of messages, clocks of agents, and the NIC as an observer.
//! Must not know: instructions, work requests, or who is scheduled when.
//!
//! An operational model of the axioms in the PTX ISA, chapter "Memory Consistency Model". A load may return any value that
//! coherence and causality allow; which one, the seed decides. What the axioms call a data race is reported at the newest
//! conflicting access, whatever value was read. `docs/memory-model.md` lists what is modelled and what is not.
//!
//! - `clocks`: vector clocks and what releases carry;
//! - `agents`: threads, queues of devices, the host; fences and scopes;
//! - `message`, `few`, `cell`, `table`: histories, and where they are kept;
//! - `race`: conflicts and what would have ordered them;
//! - `doorbells`: MMIO stores under way;
//! - `written`: initialised bytes;
//! - `memory`, `range`: the accesses, of one cell and of many; `judge`: what they may read, and what they conflict with;
//! - `refuse`: instructions that cannot be judged.

mod agents;
mod cell;
mod clocks;
mod doorbells;
mod few;
mod judge;
mod memory;
mod message;
mod race;
mod range;
mod refuse;
mod table;
mod written;

pub use memory::StrictMemory;
pub(crate) use refuse::beyond_the_model;
