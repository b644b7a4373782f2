//! The NICs and the GPU of a run: simulated, or the system's.
//!
//! Knows: which are opened, and what can be asked of each kind. Must not know: what runs on them.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use warpverbs::driver::sim::{self, Beside, Cable, Trace, World};
use warpverbs::driver::{Gpu, Nic};

use super::plan::{self, Plan};
use super::session::unwritable;
use crate::args::{Check, Doorbell};
use crate::failure::Failure;
use crate::mlx5;

/// Devices of a run.
pub(super) enum Devices {
    /// Simulated, on one bus.
    Simulated(World),
    /// A NIC of the system, opened once for each end, and the host's CPUs as a GPU, or a simulated one.
    Real {
        nics: [Arc<dyn Nic>; 2],
        gpu: Arc<dyn Gpu>,
    },
}

impl Devices {
    pub(super) fn open(plan: &Plan) -> Result<Self, Failure> {
        if let Some(name) = &plan.nic {
            return real(name, plan);
        }
        let builder = World::builder()
            .seed(plan.seed)
            .nics(2)
            .check(match plan.check {
                Check::Fast => sim::Check::Fast,
                Check::Strict => sim::Check::Strict,
                Check::Gpu => sim::Check::Gpu,
            })
            .nic_config(|nic| nic.no_dbr |= plan.doorbell == Doorbell::Nodbr);
        let world = match plan.gpu {
            plan::Gpu::Sim => builder.build(),
            plan::Gpu::Host => builder
                .build_on_host()
                .map_err(|error| Failure::Run(format!("cannot start the NICs: {error}")))?,
        };
        Ok(Self::Simulated(world))
    }

    /// Begins to keep frames and a trace, where that is asked for.
    pub(super) fn record(
        &self,
        pcap: Option<&Path>,
        trace: Option<&(PathBuf, Trace)>,
    ) -> Result<(), Failure> {
        let Self::Simulated(world) = self else {
            return Ok(());
        };
        if let (Some(path), Some(cable)) = (pcap, world.cable()) {
            File::create(path)
                .and_then(|file| cable.capture(BufWriter::new(file)))
                .map_err(|error| unwritable(path, &error))?;
        }
        if let Some((path, trace)) = trace {
            // A file that cannot be written is better known before the run.
            File::create(path).map_err(|error| unwritable(path, &error))?;
            world.trace(trace);
        }
        Ok(())
    }

    /// The NICs of both ends.
    pub(super) fn nics(&self) -> [Arc<dyn Nic>; 2] {
        match self {
            Self::Simulated(world) => {
                let far = world.nic_at(1).unwrap_or_else(|| world.nic());
                [world.nic(), far]
            }
            Self::Real { nics, .. } => nics.clone(),
        }
    }

    pub(super) fn gpu(&self) -> Arc<dyn Gpu> {
        match self {
            Self::Simulated(world) => world.gpu(),
            Self::Real { gpu, .. } => gpu.clone(),
        }
    }

    /// Runs a host thread's work in the schedule of a simulation; `None` where threads are real.
    pub(super) fn run_beside(&self, work: impl FnMut() -> bool + Send + 'static) -> Option<Beside> {
        match self {
            Self::Simulated(world) => world.run_beside(work),
            Self::Real { .. } => None,
        }
    }

    pub(super) fn cable(&self) -> Option<&Cable> {
        match self {
            Self::Simulated(world) => world.cable(),
            Self::Real { .. } => None,
        }
    }

    /// The near NIC's name, for a report.
    pub(super) fn nic_name(&self) -> String {
        let [near, _] = self.nics();
        match self {
            Self::Simulated(_) => near.name(),
            Self::Real { .. } => mlx5::shown(&near.name()),
        }
    }

    /// Completions so far, if the NICs tell.
    pub(super) fn completions(&self) -> Option<u64> {
        match self {
            Self::Simulated(world) => Some(world.nic_stats().cqes),
            Self::Real { .. } => None,
        }
    }

    /// Bytes of messages that the NICs wrote to memory so far, if they tell.
    pub(super) fn bytes_moved(&self) -> Option<u64> {
        match self {
            Self::Simulated(world) => Some(
                (0..)
                    .map_while(|nic| world.nic_stats_at(nic))
                    .map(|stats| stats.bytes_written)
                    .sum(),
            ),
            Self::Real { .. } => None,
        }
    }

    /// What the devices found wrong.
    pub(super) fn findings(&self) -> Vec<String> {
        match self {
            Self::Simulated(world) => world.findings(),
            Self::Real { .. } => Vec::new(),
        }
    }

    /// What is left once everything is closed.
    pub(super) fn live(&self) -> Vec<String> {
        match self {
            Self::Simulated(world) => world.live(),
            Self::Real { .. } => Vec::new(),
        }
    }
}

#[cfg(target_os = "linux")]
fn real(name: &str, plan: &Plan) -> Result<Devices, Failure> {
    let nics = [mlx5::open(name)?, mlx5::open(name)?];
    let gpu = match plan.gpu {
        plan::Gpu::Sim => warpverbs::driver::mlx5::sim_gpu(&nics, plan.seed),
        plan::Gpu::Host => warpverbs::driver::mlx5::host_gpu(&nics),
    };
    Ok(Devices::Real {
        nics: nics.map(|nic| nic as Arc<dyn Nic>),
        gpu,
    })
}

#[cfg(not(target_os = "linux"))]
fn real(name: &str, _: &Plan) -> Result<Devices, Failure> {
    Err(match mlx5::open(name) {
        Ok(_) => Failure::Run(format!("NIC {name:?} cannot be used")),
        Err(failure) => failure,
    })
}
