//! A simulated mlx5 NIC.
//!
//! Knows: the formats of `warpverbs-wire` and what firmware and hardware do with them. Each modelled behaviour is listed
//! with its source in docs/hardware-facts.md.
//! Must not know: GPUs, kernels, or the host crate. It is an oracle for both.
//!
//! [`NicModel`] executes command mailboxes ([`NicModel::command`]), driver calls (PD, MR, UMEM, UAR), doorbells
//! ([`Device::mmio_write`](warpverbs_sim_bus::Device::mmio_write)) and, in small deterministic steps, work requests
//! ([`Device::step`](warpverbs_sim_bus::Device::step)). What real hardware would silently corrupt ends up in
//! [`NicModel::findings`].
#![forbid(unsafe_code)]

/// Gives an enumeration short names that do not change: `name` of a value, and `NAMES` of all.
macro_rules! names {
    ($ty:ident: $($variant:ident $({ $($field:tt)* })? => $name:literal,)*) => {
        impl $ty {
            /// Every name.
            pub const NAMES: &'static [&'static str] = &[$($name),*];

            /// A short name that does not change.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant $({ $($field)* })? => $name,)*
                }
            }
        }
    };
}

mod answer;
mod background;
mod cable;
mod capture;
mod command;
mod completion;
mod config;
mod counters;
mod cq;
mod error;
mod events;
mod failure;
mod faults;
mod fetch;
mod findings;
mod flush;
mod gids;
mod impair;
mod keys;
mod link;
mod model;
mod objects;
mod packet;
mod port;
mod qp;
mod receive;
mod records;
mod registers;
mod requester;
mod respond;
mod responder;
mod rmp;
mod schedule;
mod send;
mod socket;
mod sq;
mod stats;
mod stores;
mod syndrome;
mod time;
mod trace;
mod transfer;
mod uar;
mod umem;
mod work;

pub use background::{About, Background, EventSink, HostCall};
pub use cable::{Cable, CableEnd};
pub use config::{FindingPolicy, GidEntry, GidKind, LinkLayer, NicConfig, PortInfo};
pub use error::NicError;
pub use faults::{FaultPlan, InjectedFault};
pub use findings::{Finding, FindingKind, Told};
pub use impair::{CablePlan, CableStats};
pub use keys::{MrKeys, access};
pub use link::Link;
pub use model::NicModel;
pub use objects::{ObjectId, ObjectKind};
pub use registers::Registers;
pub use socket::{SocketEnd, Wire};
pub use stats::NicStats;
pub use syndrome::{Check, CommandError};
pub use trace::{Event, Record, Trace};
pub use uar::UarKind;
pub use umem::DmaRange;
