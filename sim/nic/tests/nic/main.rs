//! The NIC through its public doors: mailboxes, driver calls, doorbells, and memory.

mod commands;
mod completions;
mod doorbells;
mod errors;
mod facts;
mod formats;
mod objects;
mod properties;
mod rig;
mod semantics;
mod transfers;
mod transport;
