//! A bench on simulated devices: QPs, buffers, one run of a provided kernel, and what came of it.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses its own part"
)]

#[cfg(target_os = "linux")]
mod mlx5;
mod nic;

use std::sync::Arc;
use std::time::Duration;

use warpverbs::driver::fault::Faults;
use warpverbs::driver::sim::{Beside, Check, FindingPolicy, NicStats, Scheduler};
use warpverbs::driver::{Gpu, Nic, WriteOrdering};
use warpverbs::{
    Access, Bandwidth, Context, CqForm, Direction, Doorbell, ExportedQp, GpuContext, GpuMemory,
    Module, Mr, Pd, Proxy, QpConfig, QpStatus, QueuePair, Result, RunReport, Sharing, Stream,
};

#[allow(unused_imports, reason = "each test file uses its own part")]
pub use nic::{Builder, World, hash, over_mlx5, part_of_test};

/// Longer than any run here takes; reached only by a run that hangs.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// What a destination holds before a run. No source byte has this value.
pub const POISON: u8 = 0xa7;

/// Makes drivers of a world's.
pub type Wrap = Arc<dyn Fn(&World) -> (Arc<dyn Nic>, Arc<dyn Gpu>) + Send + Sync>;

/// What to run.
#[derive(Clone)]
pub struct Options {
    pub seed: u64,
    pub scheduler: Scheduler,
    /// How memory is modelled and judged.
    pub check: Check,
    pub direction: Direction,
    pub sharing: Sharing,
    pub doorbell: Doorbell,
    pub cq: CqForm,
    pub threads: u32,
    pub block: u32,
    /// Blocks that are resident together, at most.
    pub resident: Option<u32>,
    pub qps: usize,
    pub depth: u32,
    pub size: u32,
    pub slots: u32,
    pub iters: u64,
    pub first_index: u64,
    pub ptx: Option<String>,
    /// Simulated time that one wait of a thread may take.
    pub wait_deadline: Duration,
    /// What a NIC's finding does.
    pub on_finding: FindingPolicy,
    /// Steps of the GPU without progress before it reports a livelock.
    pub step_budget: Option<u64>,
    /// What the destination's region allows.
    pub access: Access,
    /// How far the GPU says that it orders the NIC's writes.
    pub write_ordering: WriteOrdering,
    /// The host tells the run to stop after it has looked at it so many times.
    pub stop_after: Option<u32>,
    /// Stands in front of both drivers.
    pub wrap: Option<Wrap>,
    /// NICs that run by themselves, and the host as a GPU; `WARPVERBS_TEST_ON=host` makes it the default.
    pub on_host: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 1,
            scheduler: Scheduler::Independent,
            check: Check::Fast,
            direction: Direction::Write,
            sharing: Sharing::Exclusive,
            doorbell: Doorbell::Db,
            cq: CqForm::Ring,
            threads: 1,
            block: 32,
            resident: None,
            qps: 1,
            depth: 64,
            size: 256,
            slots: 4,
            iters: 40,
            first_index: 0,
            ptx: None,
            wait_deadline: Duration::from_millis(50),
            on_finding: FindingPolicy::Report,
            step_budget: None,
            access: Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ,
            write_ordering: WriteOrdering::Owner,
            stop_after: None,
            wrap: None,
            on_host: std::env::var_os("WARPVERBS_TEST_ON").is_some_and(|on| on == "host"),
        }
    }
}

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    pub report: Result<RunReport>,
    /// The destination holds exactly what it should.
    pub verified: bool,
    /// The destination is as it was poisoned.
    pub untouched: bool,
    pub findings: Vec<String>,
    pub stats: NicStats,
    pub statuses: Vec<QpStatus>,
    /// What was left when everything was dropped.
    pub live: Vec<String>,
}

impl Outcome {
    /// Panics unless the run did all it should and left nothing.
    pub fn expect_success(&self) -> &RunReport {
        let report = self
            .report
            .as_ref()
            .unwrap_or_else(|error| panic!("{error}"));
        report.check().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(self.findings, [""; 0]);
        assert!(
            self.verified,
            "the destination does not hold the source's bytes"
        );
        assert!(self.statuses.iter().all(|status| *status == QpStatus::Live));
        assert_eq!(self.live, [""; 0]);
        report
    }

    /// Everything that is wrong with the run, in one text.
    pub fn complaint(&self) -> String {
        let mut complaint = self.findings.clone();
        match &self.report {
            Err(error) => complaint.push(error.to_string()),
            Ok(report) => complaint.extend(report.check().err().map(|error| error.to_string())),
        }
        complaint.join("\n")
    }
}

/// Everything that a run needs.
pub struct Bench {
    pub world: Arc<World>,
    /// In front of both drivers; no fault is planned.
    pub faults: Faults,
    pub nic: Context,
    pub gpu: GpuContext,
    pub pd: Pd,
    pub module: Module,
    pub stream: Stream,
    pub qps: Vec<ExportedQp>,
    pub peers: Vec<QueuePair>,
    pub source: GpuMemory,
    pub target: GpuMemory,
    pub source_mr: Mr,
    pub target_mr: Mr,
    pub bytes: Vec<u8>,
    /// In the schedule of a simulation; on the host it has a thread.
    pub beside: Option<Beside>,
    /// Serves the QPs, if they need one.
    pub proxy: Option<Proxy>,
}

impl Options {
    pub fn bandwidth(&self) -> Bandwidth {
        Bandwidth {
            direction: self.direction,
            threads: self.threads,
            block: self.block,
            sharing: self.sharing,
            doorbell: self.doorbell,
            size: self.size,
            slots: self.slots,
            iters: self.iters,
            // Real time, on a machine that has other things to do.
            wait_deadline: if self.on_host {
                self.wait_deadline.max(Duration::from_secs(5))
            } else {
                self.wait_deadline
            },
        }
    }

    pub fn world(&self) -> World {
        let builder = World::builder()
            .seed(self.seed)
            .scheduler(self.scheduler)
            .check(self.check)
            .first_index(self.first_index)
            .write_ordering(self.write_ordering)
            .on_finding(self.on_finding)
            .nic_config(|nic| nic.no_dbr |= self.doorbell == Doorbell::NoDbr)
            .gpu_config(|gpu| {
                if let Some(blocks) = self.resident {
                    (gpu.sms, gpu.blocks_per_sm) = (1, blocks);
                }
                if let Some(budget) = self.step_budget {
                    gpu.step_budget = budget;
                }
            });
        if self.on_host {
            builder.build_on_host().unwrap()
        } else {
            builder.build()
        }
    }

    pub fn qp_config(&self) -> QpConfig {
        QpConfig::default()
            .depth(self.depth)
            .cq_form(self.cq)
            .doorbell_path(self.doorbell.path())
            .first_index(self.first_index)
    }

    /// Builds all that the run needs.
    pub fn bench(&self) -> Result<Bench> {
        let world = Arc::new(self.world());
        let faults = Faults::new();
        let (nic, gpu) = match &self.wrap {
            Some(wrap) => wrap(&world),
            None => (world.nic(), world.gpu()),
        };
        let nic = Context::open(faults.nic(nic))?;
        let gpu = GpuContext::open(faults.gpu(gpu))?;
        let pd = Pd::alloc(&nic)?;
        let bytes = pattern(self.seed, self.bandwidth().region_len().unwrap() as usize);
        let source = gpu.alloc_copy(&bytes, "source")?;
        let target = gpu.alloc_copy(&vec![POISON; bytes.len()], "target")?;
        let source_mr = Mr::register(&pd, &source, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
        let target_mr = Mr::register(&pd, &target, self.access)?;
        let mut qps = Vec::new();
        let mut peers = Vec::new();
        for _ in 0..self.qps {
            let (qp, peer) = connected_pair(&pd, &gpu, &self.qp_config())?;
            qps.push(qp.export()?);
            peers.push(peer);
        }
        let module = match &self.ptx {
            Some(ptx) => Module::load(&gpu, "test", ptx)?,
            None => Module::embedded(&gpu)?,
        };
        let stream = Stream::create(&gpu)?;
        let (mut proxy, mut beside) = (None, None);
        if self.doorbell == Doorbell::Proxy {
            let (serving, schedule) = serve(&world, qps.iter().map(ExportedQp::qp))?;
            (proxy, beside) = (Some(serving), schedule);
        }
        Ok(Bench {
            world,
            faults,
            nic,
            gpu,
            pd,
            module,
            stream,
            qps,
            peers,
            source,
            target,
            source_mr,
            target_mr,
            bytes,
            beside,
            proxy,
        })
    }

    /// Builds, runs, looks, and takes everything down.
    pub fn run(&self) -> Result<Outcome> {
        self.bench()?.run(self)
    }
}

impl Bench {
    /// Runs once and takes everything down.
    pub fn run(self, options: &Options) -> Result<Outcome> {
        let (local, remote) = match options.direction {
            Direction::Write => (&self.source_mr, self.target_mr.remote()),
            Direction::Read => (&self.target_mr, self.source_mr.remote()),
        };
        let report = options
            .bandwidth()
            .launch(&self.module, &self.stream, &self.qps, local, &remote)
            .and_then(|mut run| {
                if let Some(looks) = options.stop_after {
                    for _ in 0..looks {
                        run.is_finished()?;
                    }
                    run.stop()?;
                }
                run.wait(PATIENCE)
            });
        // What a run has left undone may be on its way still; what it has done must be here, and that is judged too.
        let done = report.as_ref().is_ok_and(|report| report.check().is_ok());
        let early = done.then(|| self.target.to_vec().unwrap_or_default());
        let findings = self.world.findings();
        let bytes = early.unwrap_or_else(|| self.target.to_vec().unwrap_or_default());
        let statuses: Vec<QpStatus> = self
            .qps
            .iter()
            .filter_map(|qp| Some(qp.progress().ok()?.status))
            .collect();
        let verified = bytes == self.bytes;
        let world = self.world.clone();
        if done {
            world.note("the destination", (verified, hash(&bytes), &statuses));
        }
        drop(self);
        Ok(Outcome {
            report,
            verified,
            untouched: bytes.iter().all(|byte| *byte == POISON),
            findings,
            stats: world.nic_stats(),
            statuses,
            live: world.live(),
        })
    }
}

/// A proxy that serves the QPs: in the schedule of a simulation, or on a thread.
pub fn serve<'a>(
    world: &World,
    qps: impl IntoIterator<Item = &'a QueuePair>,
) -> Result<(Proxy, Option<Beside>)> {
    let stepped = Proxy::without_thread();
    let steps = stepped.clone();
    // Between which steps of the NIC a host's doorbell falls is up to its driver.
    world.is_timed();
    let (proxy, beside) = match world.run_beside(move || steps.step() > 0) {
        Some(beside) => (stepped, Some(beside)),
        None => (Proxy::start()?, None),
    };
    for qp in qps {
        proxy.add(qp)?;
    }
    Ok((proxy, beside))
}

/// The module of the tests' own kernels.
pub fn test_ptx() -> Option<String> {
    Some(include_str!("../kernels/test.ptx").to_owned())
}

/// Two QPs connected to each other.
pub fn connected_pair(
    pd: &Pd,
    gpu: &GpuContext,
    config: &QpConfig,
) -> Result<(QueuePair, QueuePair)> {
    let mut first = QueuePair::create(pd, gpu, config)?;
    let mut second = QueuePair::create(pd, gpu, config)?;
    first.connect(&second.local_info())?;
    second.connect(&first.local_info())?;
    Ok((first, second))
}

/// `len` bytes from a seed, none of which is [`POISON`].
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed ^ 0x9e37_79b9_7f4a_7c15;
    (0..len)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let byte = (state >> 56) as u8;
            if byte == POISON { 0 } else { byte }
        })
        .collect()
}

/// The text of the embedded module.
pub fn embedded_ptx() -> &'static str {
    warpverbs::ptx::EMBEDDED[0].text
}

/// The embedded module with some lines of one kernel changed: `edit` is given each line of the
/// kernel and returns what stands in its place, or nothing to keep it. Panics if nothing was
/// changed.
pub fn edit_kernel(kernel: &str, mut edit: impl FnMut(&str) -> Option<String>) -> String {
    let mut inside = false;
    let mut edits = 0;
    let lines: Vec<String> = embedded_ptx()
        .lines()
        .map(|line| {
            if line.contains(".entry") {
                inside = line.contains(&format!("{kernel}("));
            }
            match inside.then(|| edit(line)).flatten() {
                Some(changed) => {
                    edits += 1;
                    changed
                }
                None => line.to_owned(),
            }
        })
        .collect();
    assert!(edits > 0, "no line of {kernel} was changed");
    lines.join("\n")
}
