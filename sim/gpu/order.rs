//! Reports on memory order, with kernels, instructions and threads by name.
//!
//! Knows: which launch had which program and shape.
//! Must not know: how order is judged.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use warpverbs_sim_bus::{Actor, MemoryFinding, OrderFault, Party};

use crate::ir::Program;
use crate::report::Location;
use crate::run::state::{Launch, LaunchShape};

/// One side of an [`OrderReport`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessReport {
    /// The kernel, if a GPU thread made the access.
    pub kernel: Option<String>,
    /// The instruction and the thread, likewise.
    pub location: Option<Location>,
    /// Who made it.
    pub actor: Actor,
    /// The access, such as "weak store".
    pub does: &'static str,
}

/// Two accesses that memory order leaves open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderReport {
    /// What is wrong.
    pub kind: OrderFault,
    /// First address that both touch.
    pub addr: u64,
    /// The object there, with the offset.
    pub object: String,
    /// The access that came first in this run; `None` if there is only one.
    pub earlier: Option<AccessReport>,
    /// The access at which it was found.
    pub later: AccessReport,
    /// Of data that a device wrote: the load of a completion by which a thread learned of it and did not acquire it.
    pub learned: Option<AccessReport>,
    /// The edge that is missing, and what would supply it.
    pub missing: String,
}

impl fmt::Display for AccessReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.actor, &self.kernel, &self.location) {
            (Actor::Host, ..) => write!(f, "{} by the host", self.does),
            (Actor::Device { device, context }, ..) => {
                write!(f, "{} by device {device} for queue {context:#x}", self.does)
            }
            (Actor::Thread { .. }, Some(kernel), Some(location)) => {
                write!(f, "{} in kernel `{kernel}`, {location}", self.does)
            }
            (
                Actor::Thread {
                    launch,
                    block,
                    index,
                },
                ..,
            ) => {
                write!(
                    f,
                    "{} by thread {index} of block {block} of launch {launch}",
                    self.does
                )
            }
        }
    }
}

impl fmt::Display for OrderReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:#x}", self.kind, self.addr)?;
        if !self.object.is_empty() {
            write!(f, " ({})", self.object)?;
        }
        write!(f, ": {}", self.later)?;
        if let Some(earlier) = &self.earlier {
            write!(f, "; not ordered after {earlier}")?;
        }
        if let Some(learned) = &self.learned {
            write!(f, "; a completion that tells of it was read by {learned}")?;
        }
        write!(f, "; {}", self.missing)
    }
}

struct Launched {
    program: Arc<Program>,
    func: u32,
    shape: LaunchShape,
}

/// Launches whose threads reports may name.
#[derive(Default)]
pub(crate) struct LaunchNames {
    launches: BTreeMap<u64, Launched>,
}

impl LaunchNames {
    pub(crate) fn add(&mut self, launch: &Launch) {
        self.launches.insert(
            launch.id,
            Launched {
                program: launch.program.clone(),
                func: launch.func,
                shape: launch.shape,
            },
        );
    }

    pub(crate) fn resolve(&self, finding: MemoryFinding) -> OrderReport {
        OrderReport {
            kind: finding.kind,
            addr: finding.addr,
            object: finding.object,
            earlier: finding.earlier.map(|party| self.access(party)),
            later: self.access(finding.later),
            learned: finding.learned.map(|party| self.access(party)),
            missing: finding.missing,
        }
    }

    pub(crate) fn access(&self, party: Party) -> AccessReport {
        let launched = match party.actor {
            Actor::Thread {
                launch,
                block,
                index,
            } => self.launches.get(&launch).map(|l| (l, block, index)),
            Actor::Host | Actor::Device { .. } => None,
        };
        AccessReport {
            kernel: launched
                .and_then(|(l, ..)| l.program.functions.get(l.func as usize))
                .map(|f| f.name.clone()),
            location: launched.map(|(l, block, index)| {
                let [gx, gy, _] = l.shape.grid.map(u64::from);
                let [bx, by, _] = l.shape.block;
                Location::of(
                    &l.program,
                    party.site,
                    [block % gx, block / gx % gy, block / gx / gy].map(|n| n as u32),
                    [index % bx, index / bx % by, index / bx / by],
                )
            }),
            actor: party.actor,
            does: party.does,
        }
    }
}
