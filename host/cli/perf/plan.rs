//! What a run is, after defaults and checks between options.

use std::path::PathBuf;

use crate::args::{Check, Cq, Doorbell, Order, PerfArgs, Sharing, Test};
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
    /// Threads of a block.
    pub(crate) block: u32,
    pub(crate) sharing: Sharing,
    pub(crate) doorbell: Doorbell,
    pub(crate) cq: Cq,
    pub(crate) order: Order,
    pub(crate) check: Check,
    pub(crate) seed: u64,
    /// A real NIC, by name.
    pub(crate) nic: Option<String>,
    pub(crate) ptx: Option<(String, String)>,
    pub(crate) pcap: Option<PathBuf>,
    pub(crate) trace: Option<PathBuf>,
    /// Buffers that a thread uses in turn.
    pub(crate) slots: u32,
    /// Buffers that a queue pair receives into in turn.
    pub(crate) receives: u32,
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
        let (qps, threads) = (args.qps.unwrap_or(1), args.threads.unwrap_or(1));
        let (size, qps, threads) = match args.test {
            Test::WriteBw | Test::ReadBw | Test::SendBw => {
                (args.size.unwrap_or(4096), qps, threads)
            }
            Test::AtomicRate => match args.size {
                None | Some(8) => (8, qps, threads),
                Some(_) => {
                    return usage(
                        "atomic-rate adds to 8 bytes: leave --size out, or give 8".into(),
                    );
                }
            },
            Test::PostRate => match args.size.unwrap_or(8) {
                size @ 1..=28 => (size, qps, threads),
                size => {
                    return usage(format!(
                        "post-rate writes data that is in the work request, 1 to 28 bytes: lower --size {size}, or use write-bw"
                    ));
                }
            },
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
        modes(args, gpu).map_err(Failure::Usage)?;
        let block = block(args, qps, threads).map_err(Failure::Usage)?;
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
        let each = u64::from(qps) * u64::from(size);
        if args.test == Test::SendBw && each > MOST_BUFFER {
            return usage(format!(
                "{qps} queue pairs that receive {size} bytes need {each} bytes, more than {MOST_BUFFER}: lower --qps or --size"
            ));
        }
        let receives = (GOOD_BUFFER / each).clamp(1, u64::from(args.depth));
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
            block,
            sharing: args.sharing,
            doorbell: args.doorbell,
            cq: args.cq,
            order: args.order,
            check: args.check,
            seed: args.seed,
            nic,
            ptx,
            pcap: args.pcap.clone(),
            trace: args.trace.clone(),
            slots: slots as u32,
            receives: receives as u32,
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

/// Says which modes do not go together, and what does.
fn modes(args: &PerfArgs, gpu: Gpu) -> Result<(), String> {
    let is_unusual = args.cq == Cq::Onerror || matches!(args.sharing, Sharing::Warp | Sharing::Cta);
    if is_unusual && args.doorbell != Doorbell::Db {
        return Err(
            "--sharing warp, --sharing cta and --cq onerror are built for --doorbell db alone: leave --doorbell out, or use --sharing \
             exclusive or gpu and --cq ring or collapsed"
                .into(),
        );
    }
    if args.test == Test::PostRate
        && args.cq == Cq::Onerror
        && matches!(args.sharing, Sharing::Warp | Sharing::Cta)
    {
        return Err(
            "post-rate by warps or blocks that post together is not built for --cq onerror: use --cq ring or collapsed"
                .into(),
        );
    }
    if args.cq == Cq::Onerror && args.depth < 32 {
        return Err("--cq onerror has a completion in 16 blocks: give --depth 32 or more".into());
    }
    if args.order == Order::Gpu {
        if args.doorbell != Doorbell::Db || is_unusual {
            return Err(
                "--order gpu is built for --doorbell db, --sharing exclusive or gpu, and --cq ring or collapsed: use these, or \
                 --order sys"
                    .into(),
            );
        }
        if gpu == Gpu::Host || args.nic != "sim" {
            return Err(
                "--order gpu needs queues and data in a GPU's memory that the NIC reaches: use --order sys".into(),
            );
        }
        if args.check == Check::Strict {
            return Err(
                "--order gpu rests on a NIC that observes memory at the GPU's scope, which --check strict denies: use --check gpu"
                    .into(),
            );
        }
    }
    Ok(())
}

/// Threads of a block: those that share a queue pair, if blocks do; else the largest divisor that makes whole blocks of at most 256.
fn block(args: &PerfArgs, qps: u32, threads: u32) -> Result<u32, String> {
    let (name, most) = match args.sharing {
        Sharing::Warp => ("warp", 32),
        Sharing::Cta => ("cta", 1024),
        Sharing::Exclusive | Sharing::Gpu => return Ok(whole_blocks(threads)),
    };
    let block = (threads / qps).max(1);
    if block > most || (threads > qps && !threads.is_multiple_of(qps)) {
        return Err(format!(
            "--sharing {name} gives each queue pair a block of as many threads, at most {most}: {threads} threads on {qps} queue pairs \
             are not that; make --threads a multiple of --qps, at most {most} times as many"
        ));
    }
    if args.test == Test::PostRate && block >= args.depth {
        return Err(format!(
            "{block} threads post together, more than a queue of depth {} holds: give a larger --depth",
            args.depth
        ));
    }
    Ok(block)
}

fn whole_blocks(threads: u32) -> u32 {
    (1..=threads.min(256))
        .rev()
        .find(|block| threads.is_multiple_of(*block))
        .unwrap_or(1)
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

#[cfg(test)]
mod tests {
    use super::whole_blocks;

    #[test]
    fn blocks_are_whole() {
        assert_eq!(
            [1, 64, 256, 512, 300, 257, 1024].map(whole_blocks),
            [1, 64, 256, 256, 150, 1, 256]
        );
    }
}
