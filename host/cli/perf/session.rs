//! The devices of a run, and what hangs on them.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use warpverbs::driver::sim::{self, Trace, World};
use warpverbs::{
    Context, ErrorKind, GpuContext, Module, Pd, QpConfig, QueuePair, Run, RunReport, Stream,
};

use super::closing::{Closed, GRACE};
use super::plan::{Gpu, Plan};
use super::report::Outcome;
use crate::args::{Check, Cq};
use crate::failure::{Failure, one_line};
use crate::interrupt::{Interrupt, Signal};

/// A kernel that completes nothing for so long is given up.
const STALLED: Duration = Duration::from_secs(120);

/// A kernel that looks at its stop word ends sooner.
const SOON: Duration = Duration::from_secs(2);

/// Open devices, a protection domain, the loaded kernels.
pub(crate) struct Session {
    /// Of the near NIC, whose queue pairs GPU threads post on.
    pub(crate) pd: Pd,
    /// Of the far NIC, at the other end of the cable.
    pub(crate) far_pd: Pd,
    pub(crate) gpu: GpuContext,
    pub(crate) module: Module,
    pub(crate) stream: Stream,
    nics: [Context; 2],
    world: World,
    interrupt: Interrupt,
    trace: Option<(PathBuf, Trace)>,
    pcap: Option<PathBuf>,
}

/// How a run ended.
pub(crate) enum Ended {
    /// As kernels do.
    Ran(RunReport),
    /// By a signal; everything was taken down.
    Interrupted(Outcome),
}

/// What the simulators found, and what the run left behind.
#[derive(Debug, Default)]
pub(crate) struct Findings(pub(crate) Vec<String>);

impl Session {
    pub(crate) fn open(plan: &Plan, interrupt: Interrupt) -> Result<Self, Failure> {
        let builder = World::builder()
            .seed(plan.seed)
            .nics(2)
            .check(match plan.check {
                Check::Fast => sim::Check::Fast,
                Check::Strict => sim::Check::Strict,
                Check::Gpu => sim::Check::Gpu,
            });
        let world = match plan.gpu {
            Gpu::Sim => builder.build(),
            Gpu::Host => builder
                .build_on_host()
                .map_err(|error| Failure::Run(format!("cannot start the NICs: {error}")))?,
        };
        if let (Some(path), Some(cable)) = (&plan.pcap, world.cable()) {
            File::create(path)
                .and_then(|file| cable.capture(BufWriter::new(file)))
                .map_err(|error| unwritable(path, &error))?;
        }
        let trace = plan.trace.clone().map(|path| (path, Trace::new()));
        if let Some((path, trace)) = &trace {
            // A file that cannot be written is better known before the run.
            File::create(path).map_err(|error| unwritable(path, &error))?;
            world.trace(trace);
        }
        let far_nic = world.nic_at(1).unwrap_or_else(|| world.nic());
        let nics = [Context::open(world.nic())?, Context::open(far_nic)?];
        let gpu = GpuContext::open(world.gpu())?;
        let [pd, far_pd] = [Pd::alloc(&nics[0])?, Pd::alloc(&nics[1])?];
        let module = match &plan.ptx {
            // A file that does not load is a failed run, not bad usage.
            Some((name, text)) => Module::load(&gpu, name, text)
                .map_err(|error| Failure::Run(format!("{name}: {}", one_line(&error))))?,
            None => Module::embedded(&gpu)?,
        };
        let stream = Stream::create(&gpu)?;
        Ok(Self {
            pd,
            far_pd,
            gpu,
            module,
            stream,
            nics,
            world,
            interrupt,
            trace,
            pcap: plan.pcap.clone(),
        })
    }

    pub(crate) fn nic_name(&self) -> String {
        // Both are simulated; the near one's name stands for the pair.
        self.nics[0].name()
    }

    pub(crate) fn gpu_name(&self) -> String {
        self.gpu.name()
    }

    /// Bytes of messages that the NICs wrote to memory so far.
    pub(crate) fn bytes_moved(&self) -> u64 {
        (0..)
            .map_while(|nic| self.world.nic_stats_at(nic))
            .map(|stats| stats.bytes_written)
            .sum()
    }

    /// Two queue pairs, connected with each other: one of the near NIC, one of the far.
    pub(crate) fn pair(&self, plan: &Plan) -> Result<(QueuePair, QueuePair), Failure> {
        let config = QpConfig::default()
            .depth(plan.depth)
            .cq_form(match plan.cq {
                Cq::Collapsed => warpverbs::CqForm::Collapsed,
                Cq::Ring => warpverbs::CqForm::Ring,
            });
        let mut near = QueuePair::create(&self.pd, &self.gpu, &config)?;
        let mut far = QueuePair::create(&self.far_pd, &self.gpu, &config)?;
        near.connect(&far.local_info())?;
        far.connect(&near.local_info())?;
        Ok((near, far))
    }

    /// Waits for a run, with a progress bar on a terminal, and gives up when nothing completes any more, or a signal comes.
    pub(crate) fn wait(&self, plan: &Plan, run: &mut Run) -> Result<Ended, Failure> {
        let bar = if plan.progress && std::io::stderr().is_terminal() {
            let style = ProgressStyle::with_template("{bar:40} {pos}/{len} operations, {eta} left");
            ProgressBar::new(plan.operations())
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        } else {
            ProgressBar::hidden()
        };
        let mut moved = Instant::now();
        let report = loop {
            if let Some(signal) = self.interrupt.signal() {
                bar.finish_and_clear();
                return Ok(Ended::Interrupted(self.interrupted(run, signal)));
            }
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
        Ok(Ended::Ran(report))
    }

    /// Ends a run that a signal asks to end, and takes everything down.
    fn interrupted(&self, run: &mut Run, signal: Signal) -> Outcome {
        let (completed, done) = match run.stop().and_then(|()| run.wait(SOON)) {
            Ok(report) => {
                let completed = report.completed();
                (completed, format!("after {completed} operations"))
            }
            Err(error) => (0, format!("while it runs: {error}")),
        };
        let why = format!("interrupted by {} {done}", signal.name());
        Outcome::interrupted(signal, completed, why, self.take_down())
    }

    /// Takes everything down in stages, whoever holds it: NICs first, then the GPU whose memory they use. A kernel that
    /// ends meanwhile may free what a NIC had to retain, so each has a second try.
    fn take_down(&self) -> Vec<Closed> {
        let until = Instant::now() + GRACE;
        let mut nics = self.nics.each_ref().map(|nic| Closed::new(nic.name()));
        let mut gpu = Closed::new(self.gpu_name());
        for _ in 0..2 {
            for (closed, nic) in nics.iter_mut().zip(&self.nics) {
                if !closed.is_complete() {
                    closed.go_on(&self.interrupt, until, |time| {
                        nic.clone().close_within(time)
                    });
                }
            }
            if !gpu.is_complete() {
                gpu.go_on(&self.interrupt, until, |time| {
                    self.gpu.clone().close_within(time)
                });
            }
        }
        nics.into_iter().chain([gpu]).collect()
    }

    /// Closes everything and says what the simulators found, leaks included.
    pub(crate) fn close(self) -> Findings {
        let Self {
            pd,
            far_pd,
            gpu,
            module,
            stream,
            nics,
            world,
            interrupt: _,
            trace,
            pcap,
        } = self;
        let mut findings = world.findings();
        drop((stream, module, pd, far_pd, gpu, nics));
        if let (Some(path), Some(cable)) = (pcap, world.cable())
            && let Err(error) = cable.end_capture()
        {
            findings.push(unwritable(&path, &error).to_string());
        }
        if let Some((path, trace)) = trace
            && let Err(error) = write_trace(&path, &trace)
        {
            findings.push(unwritable(&path, &error).to_string());
        }
        findings.extend(
            world
                .live()
                .into_iter()
                .map(|object| format!("left behind after close: {object}")),
        );
        Findings(findings)
    }
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::Run(format!("{}: {error}", path.display()))
}

fn write_trace(path: &Path, trace: &Trace) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    if path
        .extension()
        .is_some_and(|extension| extension == "json")
    {
        trace.write_perfetto(&mut file)?;
    } else {
        trace.write_text(&mut file)?;
    }
    file.flush()
}
