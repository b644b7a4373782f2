//! The devices of a run, and what hangs on them.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use warpverbs::driver::sim::Trace;
use warpverbs::{
    Access, Context, ErrorKind, GpuContext, Module, Pd, QpConfig, QpPool, QueuePair, Run,
    RunReport, Stream,
};

use super::closing::{Closed, GRACE};
use super::devices::Devices;
use super::mode;
use super::plan::Plan;
use super::report::Outcome;
use super::serving::Serving;
use crate::args::{Cq, Doorbell, Test};
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
    devices: Devices,
    /// Rings, where GPU threads do not.
    serving: Option<Serving>,
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
        let devices = Devices::open(plan)?;
        let trace = plan.trace.clone().map(|path| (path, Trace::new()));
        devices.record(plan.pcap.as_deref(), trace.as_ref())?;
        let [near, far] = devices.nics();
        let nics = [Context::open(near)?, Context::open(far)?];
        if plan.doorbell == Doorbell::Nodbr && !nics[0].capabilities().no_dbr {
            return Err(Failure::Run(format!(
                "NIC {} has no queue pairs without doorbell record: use --doorbell proxy, or db",
                devices.nic_name()
            )));
        }
        let gpu = GpuContext::open(devices.gpu())?;
        let [pd, far_pd] = [Pd::alloc(&nics[0])?, Pd::alloc(&nics[1])?];
        let module = match &plan.ptx {
            // A file that does not load is a failed run, not bad usage.
            Some((name, text)) => Module::load(&gpu, name, text)
                .map_err(|error| Failure::Run(format!("{name}: {}", one_line(&error))))?,
            None => Module::embedded(&gpu)?,
        };
        let stream = Stream::create(&gpu)?;
        let serving = (plan.doorbell == Doorbell::Proxy)
            .then(|| Serving::start(&devices))
            .transpose()?;
        Ok(Self {
            pd,
            far_pd,
            gpu,
            module,
            stream,
            nics,
            devices,
            serving,
            interrupt,
            trace,
            pcap: plan.pcap.clone(),
        })
    }

    pub(crate) fn nic_name(&self) -> String {
        // The near one's name stands for the pair.
        self.devices.nic_name()
    }

    pub(crate) fn gpu_name(&self) -> String {
        self.gpu.name()
    }

    /// Bytes of messages that the NICs wrote to memory so far; `None` if they do not tell.
    pub(crate) fn bytes_moved(&self) -> Option<u64> {
        self.devices.bytes_moved()
    }

    /// Queue pairs of the near NIC, each connected with one of the far.
    pub(crate) fn pairs(
        &self,
        plan: &Plan,
        count: u32,
    ) -> Result<(Vec<QueuePair>, Vec<QueuePair>), Failure> {
        let answers = QpConfig::default()
            .depth(plan.depth)
            .cq_form(mode::cq_form(plan.cq));
        let config = answers
            .clone()
            .doorbell_path(mode::doorbell(plan.doorbell).path());
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let far_config = match plan.test {
            // A receiver that is behind says so for 10 us, the shortest time: it is one thread.
            Test::SendBw => answers
                .receive_depth(plan.receives.next_power_of_two())
                .min_rnr_timer(1),
            Test::AtomicRate => answers.access(access | Access::REMOTE_ATOMIC),
            // Both ends post.
            Test::WriteLat => config.clone(),
            Test::WriteBw | Test::ReadBw | Test::PostRate => answers,
        };
        let build = |pd: &Pd, config: &QpConfig| {
            QpPool::create(pd, &self.gpu, config, count)?.qps(count as usize)
        };
        let infos =
            |qps: &[QueuePair]| -> Vec<_> { qps.iter().map(QueuePair::local_info).collect() };
        let (mut near, mut far) = (build(&self.pd, &config)?, build(&self.far_pd, &far_config)?);
        let (here, there) = (infos(&near), infos(&far));
        QueuePair::connect_all(&mut near, &there)?;
        QueuePair::connect_all(&mut far, &here)?;
        if let Some(serving) = &self.serving {
            serving.add(&near)?;
            if plan.test == Test::WriteLat {
                serving.add(&far)?;
            }
        }
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
            // A NIC that does not tell is trusted to: a kernel's waits have deadlines.
            let Some(completed) = self.devices.completions() else {
                continue;
            };
            // A thread may end with one work request of its own, to settle its reads.
            let more = match (plan.test, plan.cq) {
                // Each message is completed at both ends.
                (Test::SendBw, _) => plan.operations(),
                _ => 0,
            };
            // A wait behind the last completion that is due posts one.
            let waits = if plan.cq == Cq::Onerror {
                plan.operations()
            } else {
                0
            };
            let most = plan.operations() + u64::from(plan.threads) + more + waits;
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
            devices,
            serving,
            interrupt: _,
            trace,
            pcap,
        } = self;
        let mut findings = serving.map(Serving::end).unwrap_or_default();
        findings.extend(devices.findings());
        drop((stream, module, pd, far_pd, gpu, nics));
        if let (Some(path), Some(cable)) = (pcap, devices.cable())
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
            devices
                .live()
                .into_iter()
                .map(|object| format!("left behind after close: {object}")),
        );
        Findings(findings)
    }
}

pub(super) fn unwritable(path: &Path, error: &io::Error) -> Failure {
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
