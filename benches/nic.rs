//! Speed and size of the simulated NIC.
//!
//! Stepped: work requests per second, doorbells one by one, on one NIC and over a cable. In the background: 64-byte writes
//! per second, posted by native device code in the thread that measures, 1 MiB writes against a loop of `memcpy`, and latency.
//! And the memory of 10,000 queue pairs. Rates of this machine, of no NIC.
//!
//! Each figure is printed with the one it must reach; with `--check` the program fails where it does not. Rates are per second
//! of processor time, of all threads together: what one core would do that poster and NIC share.
#![allow(missing_docs, reason = "a program")]

use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use warpverbs::driver::sim::World;
use warpverbs::wire::abi::QpHandle;
use warpverbs::wire::doorbell::{REGISTER, UAR_PAGE, dbr_word, doorbell};
use warpverbs::wire::wqe::{
    Opcode, SIGNALLED, control, control_head, data, qpn_ds, remote, segment_bytes,
};
use warpverbs::{
    Access, Context, CqForm, ExportedQp, GpuContext, GpuMemory, Mr, Pd, QpConfig, QpPool,
    QueuePair, RemoteMr,
};
use warpverbs_device::{Collapsed, Db, Exclusive, Local, Remote, Sq};
use warpverbs_sim_bus as bus;

const BATCH: u64 = 32;
const DEPTH: u32 = 128;
const MIB: u32 = 1 << 20;

/// A QP of the first NIC, connected to one of the last, and buffers.
struct Rig {
    world: World,
    qp: ExportedQp,
    handle: QpHandle,
    local: Mr,
    remote: Mr,
    _keep: (QueuePair, GpuMemory, GpuMemory),
}

impl Rig {
    fn new(world: World, nics: usize, size: u32) -> Self {
        let near = Context::open(world.nic()).expect("open");
        let far = match nics {
            1 => near.clone(),
            _ => Context::open(world.nic_at(1).expect("a NIC")).expect("open"),
        };
        let gpu = GpuContext::open(world.gpu()).expect("open");
        let (pd, far_pd) = (Pd::alloc(&near).expect("PD"), Pd::alloc(&far).expect("PD"));
        let config = config();
        let mut a = QueuePair::create(&pd, &gpu, &config).expect("QP");
        let mut b = QueuePair::create(&far_pd, &gpu, &config).expect("QP");
        a.connect(&b.local_info()).expect("connect");
        b.connect(&a.local_info()).expect("connect");
        let from = gpu
            .alloc_copy(&vec![7; size as usize], "source")
            .expect("memory");
        let to = gpu
            .alloc_copy(&vec![0; size as usize], "target")
            .expect("memory");
        let local = Mr::register(&pd, &from, Access::LOCAL_READ).expect("MR");
        let writable = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let remote = Mr::register(&far_pd, &to, writable).expect("MR");
        let qp = a.export().expect("export");
        let mut bytes = [0; QpHandle::LEN];
        let read = world.gpu().copy_from_device(&mut bytes, qp.handle());
        read.expect("handle");
        let handle = QpHandle::from_bytes(&bytes).expect("handle");
        Self {
            world,
            qp,
            handle,
            local,
            remote,
            _keep: (b, from, to),
        }
    }

    /// Posts a batch of writes, one doorbell each, and steps the NICs until they are idle.
    fn step_batch(&self, first: u64) {
        let (handle, size) = (self.handle, self.local.len() as u32);
        let register = bus::bar_base(0) + (UAR_PAGE + REGISTER) as u64;
        let mut bus = self.world.bus().lock();
        for index in first..first + BATCH {
            let mut wqe = [0; 64];
            let head = control_head(index, Opcode::RdmaWrite, qpn_ds(handle.qpn, 3));
            for (to, segment) in wqe.chunks_exact_mut(16).zip([
                control(head, SIGNALLED, 0),
                remote(self.remote.addr(), self.remote.remote().rkey),
                data(size, self.local.lkey(), self.local.addr()),
            ]) {
                to.copy_from_slice(&segment_bytes(segment));
            }
            let at = handle.sq + index % u64::from(DEPTH) * 64;
            let dbr = dbr_word(index + 1).to_le_bytes();
            let host = bus::Access::HOST_COPY;
            bus.memory.write(host, at, &wqe).expect("WQE");
            bus.memory.write(host, handle.dbr, &dbr).expect("record");
            let value = doorbell(index + 1, handle.qpn).to_le_bytes();
            bus.mmio_write(register, &value).expect("doorbell");
        }
        bus.run_devices(u64::MAX);
    }

    /// Work requests per second, stepped.
    fn stepped(&self) -> f64 {
        let mut next = 0;
        let rate = rate(|| {
            self.step_batch(next);
            next += BATCH;
            BATCH
        });
        assert_eq!(self.world.nic_stats().cqes, next);
        assert_eq!(self.world.findings(), [""; 0]);
        rate
    }

    fn sq(&self) -> Sq<Exclusive, Db, Collapsed> {
        // SAFETY: the handle is exported on the host as a GPU, so it lies in this process; one thread uses it.
        unsafe { Sq::open(self.qp.handle()) }.expect("queue")
    }

    fn local(&self) -> Local {
        Local {
            addr: self.local.addr(),
            lkey: self.local.lkey(),
        }
    }

    fn remote(&self) -> Remote {
        let RemoteMr { addr, rkey, .. } = self.remote.remote();
        Remote { addr, rkey }
    }

    /// Writes per second, with the queue kept full.
    fn background(&self, batch: u64) -> f64 {
        let (mut sq, local, remote) = (self.sq(), self.local(), self.remote());
        let size = self.local.len() as u32;
        let mut last = None;
        let rate = rate(|| {
            for _ in 0..batch {
                last = Some(sq.post_write(local, remote, size).expect("post"));
            }
            batch
        });
        sq.wait(last.expect("a post")).expect("completion");
        assert_eq!(self.world.findings(), [""; 0]);
        rate
    }

    /// Microseconds from a post to its completion, one at a time, the least of some runs.
    fn latency(&self) -> f64 {
        let (mut sq, local, remote) = (self.sq(), self.local(), self.remote());
        let size = self.local.len() as u32;
        let round = || {
            let begun = Instant::now();
            for _ in 0..100 {
                let ticket = sq.post_write(local, remote, size).expect("post");
                sq.wait(ticket).expect("completion");
            }
            begun.elapsed().as_secs_f64() * 1e4
        };
        std::iter::repeat_with(round)
            .take(200)
            .fold(f64::MAX, f64::min)
    }
}

fn config() -> QpConfig {
    QpConfig::default().depth(DEPTH).cq_form(CqForm::Collapsed)
}

/// What `work` says it did, per second of the processor: of all of this process's threads together, so that what else the
/// machine does counts little. The best of some runs.
fn rate(mut work: impl FnMut() -> u64) -> f64 {
    let mut best = 0f64;
    for _ in 0..5 {
        let (begun, spent) = (Instant::now(), processor_time());
        let mut done = 0;
        while begun.elapsed() < Duration::from_millis(400) {
            done += work();
        }
        best = best.max(done as f64 / (processor_time() - spent));
    }
    best
}

/// Seconds that this process's threads have run.
fn processor_time() -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
    let times = tasks.filter_map(|task| {
        let stat = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        stat.split_whitespace().next()?.parse::<u64>().ok()
    });
    times.sum::<u64>() as f64 / 1e9
}

/// Copies of 1 MiB per second.
fn memcpy() -> f64 {
    let from = vec![7u8; MIB as usize];
    let mut to = vec![0u8; MIB as usize];
    rate(|| {
        for _ in 0..8 {
            to.copy_from_slice(black_box(&from));
            black_box(&mut to);
        }
        8
    })
}

/// Bytes of memory that 10,000 connected queue pairs in pools of `places` take, simulators included, and the seconds in which they
/// are made and destroyed. A queue pair by itself is a pool of one.
fn many(world: World, places: u32) -> (u64, f64, f64) {
    let (before, begun) = (resident(), Instant::now());
    let nic = Context::open(world.nic()).expect("open");
    let gpu = GpuContext::open(world.gpu()).expect("open");
    let pd = Pd::alloc(&nic).expect("PD");
    let pools: Vec<(QpPool, Vec<QueuePair>)> = (0..10_000 / places)
        .map(|_| {
            let pool = QpPool::create(&pd, &gpu, &config(), places).expect("pool");
            let mut qps = pool.qps(places as usize).expect("QPs");
            let infos: Vec<_> = qps.iter().map(QueuePair::local_info).collect();
            QueuePair::connect_all(&mut qps, &infos).expect("connect");
            (pool, qps)
        })
        .collect();
    let (after, made) = (resident(), Instant::now());
    drop(pools);
    let [making, destroying] = [made - begun, made.elapsed()].map(|time| time.as_secs_f64());
    (after.saturating_sub(before), making, destroying)
}

/// Bytes of this process that are in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.expect("VmRSS") * 1024
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let chosen = |what: &str| {
        let mut names = arguments
            .iter()
            .filter(|argument| !argument.starts_with("--"))
            .peekable();
        names.peek().is_none() || names.any(|name| what.contains(name.as_str()))
    };
    let stepped = |nics| World::builder().seed(1).nics(nics).build();
    let on_host = |nics| {
        World::builder()
            .nics(nics)
            .build_on_host()
            .expect("threads")
    };
    let mut all = true;
    // Prints a figure beside what it must be.
    let mut show = |what: &str, needed: &str, measure: &dyn Fn() -> (String, bool)| {
        if chosen(what) {
            let (figure, reached) = measure();
            let verdict = if reached { "" } else { "  NOT REACHED" };
            println!("{what:<46} {figure:>22}   {needed}{verdict}");
            all &= reached;
        }
    };
    let per_second = |figure: f64| format!("{figure:.0} WQEs/s");
    for (what, nics) in [
        ("stepped, one NIC, 64 B writes", 1),
        ("stepped, two NICs and a cable, 64 B writes", 2),
    ] {
        show(what, "at least 300,000", &|| {
            let figure = Rig::new(stepped(nics), nics, 64).stepped();
            (per_second(figure), figure >= 300e3)
        });
    }
    show(
        "background, two QPs of a NIC, 64 B writes",
        "at least 1,000,000",
        &|| {
            let figure = Rig::new(on_host(1), 1, 64).background(u64::from(DEPTH) / 2);
            (per_second(figure), figure >= 1e6)
        },
    );
    show("background, two NICs and a cable, 64 B writes", "", &|| {
        let figure = Rig::new(on_host(2), 2, 64).background(u64::from(DEPTH) / 2);
        (per_second(figure), true)
    });
    for (what, nics, needed) in [
        (
            "background, 1 MiB writes, of memcpy's rate",
            1,
            "at least half",
        ),
        ("background, 1 MiB writes over a cable", 2, ""),
    ] {
        show(what, needed, &|| {
            let copies = memcpy();
            let figure = Rig::new(on_host(nics), nics, MIB).background(4);
            let gigabytes = |rate: f64| rate * f64::from(MIB) / 1e9;
            let text = format!("{:.2} of {:.2} GB/s", gigabytes(figure), gigabytes(copies));
            (text, needed.is_empty() || figure * 2.0 >= copies)
        });
    }
    for (what, nics) in [
        ("background, one NIC, post to completion", 1),
        ("background, two NICs and a cable, the same", 2),
    ] {
        show(what, "", &|| {
            let figure = Rig::new(on_host(nics), nics, 64).latency();
            (format!("{figure:.1} us"), true)
        });
    }
    // What the process has freed is used again: name one of these for its own figure.
    for (what, places, host) in [
        (
            "memory of 10,000 QPs of depth 128 in ten pools, stepped",
            1000,
            false,
        ),
        ("memory of the same in the background", 1000, true),
        ("memory of 10,000 QPs made one by one, stepped", 1, false),
        ("memory of the same one by one, background", 1, true),
    ] {
        show(what, "less than 1 GB", &|| {
            let (bytes, making, destroying) =
                many(if host { on_host(1) } else { stepped(1) }, places);
            let megabytes = bytes / 1_000_000;
            let text = format!("{megabytes} MB ({making:.1} + {destroying:.1} s)");
            (text, bytes < 1_000_000_000)
        });
    }
    if all || !arguments.iter().any(|argument| argument == "--check") {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
