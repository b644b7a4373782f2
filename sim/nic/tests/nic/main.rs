//! The NIC through its public doors: mailboxes, driver calls, doorbells, and memory.

mod background;
mod commands;
mod completions;
mod coverage;
mod doorbells;
mod errors;
mod events;
mod facts;
mod faults;
mod fences;
mod formats;
mod hostile;
mod objects;
mod overwritten;
mod properties;
mod receives;
mod refusals;
mod replay;
mod rig;
mod semantics;
mod services;
mod sockets;
mod tables;
mod transfers;
mod transport;
mod waits;
