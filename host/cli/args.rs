//! The command line: names, defaults, ranges.
//!
//! Knows: what a user may type. Must not know: what is done with it.
//!
//! Options and values that the contract names but that are not built yet are left out here: they end as bad usage.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// GPU-initiated RDMA: microbenchmarks and checks.
#[derive(Debug, Parser)]
#[command(name = "warpverbs", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a microbenchmark; over the simulators its rates are not those of any hardware
    Perf(PerfArgs),
    /// Try out what a NIC does where specifications are silent, with rings in host memory and no GPU
    Probe(ProbeArgs),
    /// Look at PTX
    Ptx(PtxArgs),
    /// Run any command with simulated mlx5 devices: unmodified RDMA programs find mlx5_0
    SimEnv(SimEnvArgs),
}

/// `sim-env`.
#[derive(Debug, Args)]
pub(crate) struct SimEnvArgs {
    /// How many devices
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) nics: u8,
    /// Folder of the wire that joins devices of several commands [default: one for all commands of this user]
    #[arg(long, value_name = "PATH")]
    pub(crate) wire: Option<PathBuf>,
    /// What the devices' ports are
    #[arg(long, value_enum, default_value_t = Link::Ethernet)]
    pub(crate) link: Link,
    /// How the devices see doorbells [default: what WARPVERBS_SIM_DOORBELLS says, or fast]
    #[arg(long, value_enum)]
    pub(crate) doorbells: Option<Doorbells>,
    /// The command
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// How doorbells are seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Doorbells {
    /// In memory: of stores that follow each other closely the last one
    Fast,
    /// Each store to a doorbell page by itself, with its width and place: slow
    Conformance,
}

/// What a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Link {
    /// RoCE
    Ethernet,
    /// InfiniBand
    Infiniband,
}

/// `probe`.
#[derive(Debug, Args)]
pub(crate) struct ProbeArgs {
    /// NIC: `sim`, or an RDMA device's name
    #[arg(long, default_value = "sim")]
    pub(crate) nic: String,
    /// How often each trial is made; those that wait for retries, a tenth of it
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) trials: u32,
    /// Compare with this report of another NIC; where they differ the command fails
    #[arg(long, value_name = "FILE")]
    pub(crate) against: Option<PathBuf>,
}

/// `ptx`.
#[derive(Debug, Args)]
pub(crate) struct PtxArgs {
    #[command(subcommand)]
    pub(crate) command: PtxCommand,
}

/// What to do with PTX.
#[derive(Debug, Subcommand)]
pub(crate) enum PtxCommand {
    /// List the embedded PTX and its kernels
    List,
    /// Parse a PTX file as the simulated GPU does, and list its kernels
    Check {
        /// The file
        file: PathBuf,
    },
}

/// Which microbenchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Test {
    /// RDMA writes, many in flight
    WriteBw,
    /// RDMA reads, many in flight
    ReadBw,
    /// Sends with immediate data, many in flight, into buffers that GPU threads post again
    SendBw,
    /// Fetch-and-adds of 8 bytes, all on one counter
    AtomicRate,
    /// RDMA writes whose data is in the work request; threads that share a queue pair as a warp or a block post together
    PostRate,
    /// Ping-pong of RDMA writes between two GPU threads
    WriteLat,
}

impl Test {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::WriteBw => "write-bw",
            Self::ReadBw => "read-bw",
            Self::SendBw => "send-bw",
            Self::AtomicRate => "atomic-rate",
            Self::PostRate => "post-rate",
            Self::WriteLat => "write-lat",
        }
    }
}

/// Who shares a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sharing {
    /// One thread a QP
    Exclusive,
    /// The threads of one warp: a block of at most 32 has a QP
    Warp,
    /// The threads of one block
    Cta,
    /// All threads of the GPU
    Gpu,
}

/// How a post rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Doorbell {
    /// Fence, doorbell record, fence, one ring
    Db,
    /// Fence, ring, doorbell record, fence, ring
    Early,
    /// As db, but a work request that fits 64 bytes is pushed whole (BlueFlame)
    Bf,
    /// A host thread rings
    Proxy,
    /// Fence, one ring: no doorbell record
    Nodbr,
}

/// Form of the completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Cq {
    /// One CQE, overwritten by each completion
    Collapsed,
    /// A ring of CQEs
    Ring,
    /// A ring of CQEs, in which only errors and one work request in 16 have one
    Onerror,
}

/// Scope of the fence between a work request and its doorbell record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Order {
    /// The system's
    Sys,
    /// The GPU's: queue and data lie in its memory; that it suffices is judged by --check gpu
    Gpu,
}

/// How much the simulators check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Check {
    /// Addresses, bounds, work requests, every byte of data
    Fast,
    /// And memory order, with the NIC as an observer at .sys scope
    Strict,
    /// And memory order, with the NIC as an observer at .gpu scope
    Gpu,
}

/// `perf`.
#[derive(Debug, Args)]
pub(crate) struct PerfArgs {
    /// Which microbenchmark
    pub(crate) test: Test,
    /// NIC: `sim`, or an RDMA device's name
    #[arg(long, default_value = "sim")]
    pub(crate) nic: String,
    /// GPU: `sim`; `host`, which runs the native device code on CPU threads, in real time; or a CUDA device's number [default: sim; host with a real NIC]
    #[arg(long)]
    pub(crate) gpu: Option<String>,
    /// Bytes of one operation, 1 to 2^30 [default: 4096; 8 for write-lat, atomic-rate and post-rate]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    pub(crate) size: Option<u32>,
    /// Operations of each thread; round trips for write-lat
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub(crate) iters: u64,
    /// Send queue depth in 64-byte blocks, a power of two, 2 to 32768
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = depth)]
    pub(crate) depth: u32,
    /// Queue pairs [default: 1, or 2 for write-lat, the only number it has]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) qps: Option<u32>,
    /// GPU threads; thread t posts on queue pair t modulo --qps; shared by warps or blocks, each queue pair has a block of as many [default: 1, or 2 for write-lat, the only number it has]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) threads: Option<u32>,
    /// Who shares a queue pair; `exclusive` wants --threads no larger than --qps
    #[arg(long, value_enum, default_value = "exclusive")]
    pub(crate) sharing: Sharing,
    /// How a post rings the doorbell
    #[arg(long, value_enum, default_value = "db")]
    pub(crate) doorbell: Doorbell,
    /// Form of the completion queue
    #[arg(long, value_enum, default_value = "collapsed")]
    pub(crate) cq: Cq,
    /// Scope of the fence between a work request and its doorbell record
    #[arg(long, value_enum, default_value = "sys")]
    pub(crate) order: Order,
    /// Seed of the interleaving and of the data
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// How much the simulators check
    #[arg(long, value_enum, default_value = "fast")]
    pub(crate) check: Check,
    /// Run this PTX instead of the embedded
    #[arg(long, value_name = "FILE")]
    pub(crate) ptx: Option<PathBuf>,
    /// Write the frames between the simulated NICs to this file; Wireshark and tshark open it
    #[arg(long, value_name = "FILE")]
    pub(crate) pcap: Option<PathBuf>,
    /// Write what the simulated NICs do to this file: for Perfetto if it ends in .json, else a line an event
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

fn depth(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(depth @ 2..=32768) if depth.is_power_of_two() => Ok(depth),
        Ok(depth @ 2..=32768) => Err(format!(
            "not a power of two; {} is the next",
            depth.next_power_of_two()
        )),
        _ => Err("not a power of two from 2 to 32768".into()),
    }
}
