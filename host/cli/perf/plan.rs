//! What a run is, after defaults and checks between options.

use std::path::PathBuf;

use crate::args::{Check, Cq, Doorbell, PerfArgs, Sharing, Test};
use crate::failure::Failure;

/// Memory of one side's buffers that a run may ask for.
const MOST_BUFFER: u64 = 4 << 30;
/// Memory of one side's buffers that a run asks for if a thread's operations can share buffers.
const GOOD_BUFFER: u64 = 32 << 20;

/// What runs the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gpu {
    /// The simulated GPU.
    Sim,
    /// CPU threads.
    Host,
}

/// A run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) test: Test,
    pub(crate) gpu: Gpu,
    pub(crate) size: u32,
    pub(crate) iters: u64,
    pub(crate) depth: u32,
    pub(crate) qps: u32,
    pub(crate) threads: u32,
    pub(crate) sharing: Sharing,
    pub(crate) doorbell: Doorbell,
    pub(crate) cq: Cq,
    pub(crate) check: Check,
    pub(crate) seed: u64,
    /// A real NIC, by name.
    pub(crate) nic: Option<String>,
    pub(crate) ptx: Option<(String, String)>,
    pub(crate) pcap: Option<PathBuf>,
    pub(crate) trace: Option<PathBuf>,
    /// Buffers that a thread uses in turn.
    pub(crate) slots: u32,
    /// Show a progress bar if stderr is a terminal.
    pub(crate) progress: bool,
}

impl Plan {
    pub(crate) fn of(args: &PerfArgs) -> Result<Self, Failure> {
        // A real NIC cannot reach the simulated GPU's memory; `sim-env`'s can.
        let default = if args.nic == "sim" || crate::mlx5::is_simulated(&args.nic) {
            "sim"
        } else {
            "host"
        };
        let gpu = match args.gpu.as_deref().unwrap_or(default) {
            "host" => Gpu::Host,
            name => {
                known_device("GPU", "--gpu", name, "CUDA", "sim or host")?;
                Gpu::Sim
            }
        };
        let usage = |text: String| Err(Failure::Usage(text));
        let nic = (args.nic != "sim").then(|| args.nic.clone());
        if nic.is_some() {
            if gpu == Gpu::Sim && !crate::mlx5::is_simulated(&args.nic) {
                return usage(format!(
                    "--nic {} needs --gpu host: a real NIC cannot reach the simulated GPU's memory; `warpverbs sim-env` gives a \
                     NIC that can",
                    args.nic
                ));
            }
            if gpu == Gpu::Sim && args.check != Check::Fast {
                return usage(
                    "--check needs --nic sim: a NIC that runs by itself is in no order that could be judged".into(),
                );
            }
            if args.pcap.is_some() || args.trace.is_some() {
                return usage("--pcap and --trace need --nic sim".into());
            }
        }
        if gpu == Gpu::Host {
            if args.check != Check::Fast {
                return usage(
                    "--gpu host runs at the CPU's own memory order, which nobody can judge: leave --check out, or use \
                     --gpu sim"
                        .into(),
                );
            }
            if args.ptx.is_some() {
                return usage("--gpu host runs no PTX: leave --ptx out, or use --gpu sim".into());
            }
        }
        let (size, qps, threads) = match args.test {
            Test::WriteBw | Test::ReadBw => (
                args.size.unwrap_or(4096),
                args.qps.unwrap_or(1),
                args.threads.unwrap_or(1),
            ),
            Test::WriteLat => {
                for (option, value) in [("--qps", args.qps), ("--threads", args.threads)] {
                    if value.is_some_and(|value| value != 2) {
                        return usage(format!(
                            "write-lat has two ends: leave {option} out, or give 2"
                        ));
                    }
                }
                if args.sharing != Sharing::Exclusive {
                    return usage(
                        "write-lat gives each end a queue pair of its own: leave --sharing out"
                            .into(),
                    );
                }
                (args.size.unwrap_or(8), 2, 2)
            }
        };
        if args.sharing == Sharing::Exclusive && threads > qps {
            return usage(format!(
                "{threads} threads on {qps} queue pairs cannot each have one: give --qps {threads}, or --sharing gpu"
            ));
        }
        let per_slot = u64::from(threads) * u64::from(size);
        if per_slot > MOST_BUFFER {
            return usage(format!(
                "{threads} threads with {size} bytes each need {per_slot} bytes on either side, more than {MOST_BUFFER}: \
                 lower --threads or --size"
            ));
        }
        if u64::from(threads)
            .checked_mul(args.iters)
            .is_none_or(|ops| ops > 1 << 48)
        {
            return usage("--threads times --iters is more than 2^48 operations: lower one".into());
        }
        let slots = (GOOD_BUFFER / per_slot).clamp(1, args.iters.min(u64::from(args.depth)));
        let ptx = match &args.ptx {
            Some(file) => Some((file.display().to_string(), crate::ptx::read(file)?)),
            None => None,
        };
        Ok(Self {
            test: args.test,
            gpu,
            size,
            iters: args.iters,
            depth: args.depth,
            qps,
            threads,
            sharing: args.sharing,
            doorbell: args.doorbell,
            cq: args.cq,
            check: args.check,
            seed: args.seed,
            nic,
            ptx,
            pcap: args.pcap.clone(),
            trace: args.trace.clone(),
            slots: slots as u32,
            progress: !args.json,
        })
    }

    /// Operations of all threads.
    pub(crate) fn operations(&self) -> u64 {
        // Also of write-lat: either end sends one message a round trip.
        u64::from(self.threads) * self.iters
    }

    /// Bytes of the buffers of either side.
    pub(crate) fn buffer(&self) -> usize {
        (u64::from(self.threads) * u64::from(self.slots) * u64::from(self.size)) as usize
    }
}

fn known_device(
    what: &str,
    option: &str,
    name: &str,
    real: &str,
    instead: &str,
) -> Result<(), Failure> {
    if name == "sim" {
        return Ok(());
    }
    Err(Failure::Run(format!(
        "no {what} named {name:?}: this version has no driver for {real} devices yet; use {option} {instead}"
    )))
}
