//! The devices of a run, and what hangs on them.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use warpverbs::driver::sim::{self, World};
use warpverbs::{
    Context, ErrorKind, GpuContext, Module, Pd, QpConfig, QueuePair, Run, RunReport, Stream,
};

use super::plan::Plan;
use crate::args::{Check, Cq};
use crate::failure::{Failure, one_line};

/// A kernel that completes nothing for so long is given up.
const STALLED: Duration = Duration::from_secs(120);

/// Open devices, a protection domain, the loaded kernels.
pub(crate) struct Session {
    pub(crate) pd: Pd,
    pub(crate) gpu: GpuContext,
    pub(crate) module: Module,
    pub(crate) stream: Stream,
    nic: Context,
    world: World,
}

/// What the simulators found, and what the run left behind.
#[derive(Debug, Default)]
pub(crate) struct Findings(pub(crate) Vec<String>);

impl Session {
    pub(crate) fn open(plan: &Plan) -> Result<Self, Failure> {
        let world = World::builder()
            .seed(plan.seed)
            .check(match plan.check {
                Check::Fast => sim::Check::Fast,
                Check::Strict => sim::Check::Strict,
                Check::Gpu => sim::Check::Gpu,
            })
            .build();
        let nic = Context::open(world.nic())?;
        let gpu = GpuContext::open(world.gpu())?;
        let pd = Pd::alloc(&nic)?;
        let module = match &plan.ptx {
            // A file that does not load is a failed run, not bad usage.
            Some((name, text)) => Module::load(&gpu, name, text)
                .map_err(|error| Failure::Run(format!("{name}: {}", one_line(&error))))?,
            None => Module::embedded(&gpu)?,
        };
        let stream = Stream::create(&gpu)?;
        Ok(Self {
            pd,
            gpu,
            module,
            stream,
            nic,
            world,
        })
    }

    pub(crate) fn nic_name(&self) -> String {
        self.nic.name()
    }

    pub(crate) fn gpu_name(&self) -> String {
        self.gpu.name()
    }

    /// Two queue pairs, connected with each other.
    pub(crate) fn pair(&self, plan: &Plan) -> Result<(QueuePair, QueuePair), Failure> {
        let config = QpConfig::default()
            .depth(plan.depth)
            .cq_form(match plan.cq {
                Cq::Collapsed => warpverbs::CqForm::Collapsed,
                Cq::Ring => warpverbs::CqForm::Ring,
            });
        let mut near = QueuePair::create(&self.pd, &self.gpu, &config)?;
        let mut far = QueuePair::create(&self.pd, &self.gpu, &config)?;
        near.connect(&far.local_info())?;
        far.connect(&near.local_info())?;
        Ok((near, far))
    }

    /// Waits for a run, with a progress bar on a terminal, and gives up when nothing completes any more.
    pub(crate) fn wait(&self, plan: &Plan, run: &mut Run) -> Result<RunReport, Failure> {
        let bar = if plan.progress && std::io::stderr().is_terminal() {
            let style = ProgressStyle::with_template("{bar:40} {pos}/{len} operations, {eta} left");
            ProgressBar::new(plan.operations())
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        } else {
            ProgressBar::hidden()
        };
        let mut moved = Instant::now();
        let report = loop {
            match run.wait(Duration::from_millis(200)) {
                Ok(report) => break report,
                Err(error) if error.kind() == ErrorKind::Timeout => {}
                Err(error) => return Err(error.into()),
            }
            // Not from the handles: the owner of an exclusive queue keeps its indices in registers until it ends.
            let completed = self.world.nic_stats().cqes;
            // A thread may end with one work request of its own, to settle its reads.
            let most = plan.operations() + u64::from(plan.threads);
            if completed > most {
                run.stop()?;
                return Err(Failure::Run(format!(
                    "{completed} operations completed where {} were asked for: the kernel does not stop",
                    plan.operations()
                )));
            }
            if completed != bar.position() {
                bar.set_position(completed);
                moved = Instant::now();
            }
            if moved.elapsed() > STALLED {
                run.stop()?;
                return Err(Failure::Run(format!(
                    "nothing completed for {} s: given up after {completed} operations",
                    STALLED.as_secs()
                )));
            }
        };
        bar.finish_and_clear();
        Ok(report)
    }

    /// Closes everything and says what the simulators found, leaks included.
    pub(crate) fn close(self) -> Findings {
        let Self {
            pd,
            gpu,
            module,
            stream,
            nic,
            world,
        } = self;
        let mut findings = world.findings();
        drop((stream, module, pd, gpu, nic));
        findings.extend(
            world
                .live()
                .into_iter()
                .map(|object| format!("left behind after close: {object}")),
        );
        Findings(findings)
    }
}
