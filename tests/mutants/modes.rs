//! Runs of the provided kernels, by mode.
//!
//! Knows: how a mode is run and what is wrong with a run. Must not know: what was changed in the PTX.

use std::fmt;
use std::time::Duration;

use warpverbs::driver::sim::{Check, Scheduler};
use warpverbs::{
    Access, Context, CqForm, Direction, Doorbell, GpuContext, Latency, LatencyEnd, Module, Mr, Pd,
    Sharing, Stream,
};

use crate::common::{Options, Outcome, PATIENCE, POISON, connected_pair};

/// What of a kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mode {
    pub kernel: &'static str,
    pub sharing: Sharing,
    pub doorbell: Doorbell,
    pub cq: CqForm,
}

/// How a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ending {
    /// With all its operations done.
    Done,
    /// With error completions: the destination forbids what is done to it.
    Refused,
    /// Before its time: the host stops it.
    Stopped,
}

impl Ending {
    pub(crate) const ALL: [Self; 3] = [Self::Done, Self::Refused, Self::Stopped];
}

/// How much of it runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub iters: u64,
    pub check: Check,
    pub scheduler: Scheduler,
    pub seed: u64,
    pub ending: Ending,
}

impl Mode {
    /// Every kernel in every mode.
    pub(crate) fn all() -> Vec<Self> {
        let mut out = Vec::new();
        for kernel in ["wv_write_bw", "wv_read_bw", "wv_write_lat"] {
            for sharing in [Sharing::Exclusive, Sharing::Gpu] {
                for doorbell in [Doorbell::Db, Doorbell::DbEarly] {
                    for cq in [CqForm::Collapsed, CqForm::Ring] {
                        // A thread of the latency kernel has a queue of its own.
                        if kernel != "wv_write_lat" || sharing == Sharing::Exclusive {
                            out.push(Self {
                                kernel,
                                sharing,
                                doorbell,
                                cq,
                            });
                        }
                    }
                }
            }
        }
        out
    }

    /// Runs the kernel of a module once; says what is wrong, if anything.
    pub(crate) fn run(&self, ptx: &str, effort: Effort) -> Option<String> {
        match self.kernel {
            "wv_write_lat" => self.latency(ptx, effort),
            _ => self.bandwidth(ptx, effort),
        }
    }

    pub(crate) fn options(&self, effort: Effort) -> Options {
        let (threads, qps) = match self.sharing {
            Sharing::Exclusive => (2, 2),
            Sharing::Gpu => (6, 2),
        };
        let full = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        Options {
            seed: effort.seed,
            scheduler: effort.scheduler,
            check: effort.check,
            direction: if self.kernel == "wv_read_bw" {
                Direction::Read
            } else {
                Direction::Write
            },
            sharing: self.sharing,
            doorbell: self.doorbell,
            cq: self.cq,
            threads,
            // So that no scope is wider than it need be; and a block may begin when another has ended.
            block: if self.sharing == Sharing::Gpu { 2 } else { 1 },
            // The two sides of the latency kernel wait for each other.
            resident: Some(if self.kernel == "wv_write_lat" {
                2
            } else {
                1 + (effort.seed % 3) as u32
            }),
            qps,
            depth: 8,
            size: 64,
            slots: 4,
            // Long enough for the host to find it running.
            iters: if effort.ending == Ending::Stopped {
                12 * effort.iters
            } else {
                effort.iters
            },
            // A READ is refused where it lands: its own region cannot be written.
            access: match (effort.ending, self.kernel) {
                (Ending::Done | Ending::Stopped, _) => full,
                (Ending::Refused, "wv_read_bw") => Access::REMOTE_READ,
                (Ending::Refused, _) => Access::LOCAL_WRITE,
            },
            stop_after: (effort.ending == Ending::Stopped).then_some((effort.seed % 3) as u32),
            wait_deadline: Duration::from_micros(400),
            step_budget: Some(3_000_000),
            ..Options::default()
        }
    }

    fn bandwidth(&self, ptx: &str, effort: Effort) -> Option<String> {
        let options = Options {
            ptx: Some(ptx.into()),
            ..self.options(effort)
        };
        let outcome = match options.run() {
            Ok(outcome) => outcome,
            Err(error) => return Some(error.to_string()),
        };
        match effort.ending {
            Ending::Done => failed(&outcome),
            Ending::Refused => refused_wrongly(&outcome),
            Ending::Stopped => outcome
                .findings
                .first()
                .cloned()
                .or(outcome.report.err().map(|error| error.to_string())),
        }
    }

    fn latency(&self, ptx: &str, effort: Effort) -> Option<String> {
        let options = self.options(effort);
        let run = || -> warpverbs::Result<Option<String>> {
            let size = 64u64;
            let world = options.world();
            let nic = Context::open(world.nic())?;
            let gpu = GpuContext::open(world.gpu())?;
            let pd = Pd::alloc(&nic)?;
            let (first, second) = connected_pair(&pd, &gpu, &options.qp_config())?;
            let (first, second) = (first.export()?, second.export()?);
            let memory = gpu.alloc_copy(&vec![POISON; 4 * size as usize], "mailboxes")?;
            let access = match effort.ending {
                Ending::Refused => Access::LOCAL_WRITE,
                _ => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            };
            let mr = |n: u64| Mr::register_range(&pd, &memory, n * size..(n + 1) * size, access);
            let mrs = [mr(0)?, mr(1)?, mr(2)?, mr(3)?];
            let module = Module::load(&gpu, "changed", ptx)?;
            let stream = Stream::create(&gpu)?;
            let ends = [
                LatencyEnd {
                    qp: &first,
                    outbox: &mrs[0],
                    inbox: &mrs[1],
                },
                LatencyEnd {
                    qp: &second,
                    outbox: &mrs[2],
                    inbox: &mrs[3],
                },
            ];
            let latency = Latency {
                size: size as u32,
                iters: options.iters,
                doorbell: self.doorbell,
                wait_deadline: options.wait_deadline,
            };
            let mut run = latency.launch(&module, &stream, ends)?;
            if let Some(looks) = options.stop_after {
                for _ in 0..looks {
                    run.is_finished()?;
                }
                run.stop()?;
            }
            let report = run.wait(PATIENCE)?;
            if effort.ending != Ending::Done {
                return Ok(world.findings().into_iter().next());
            }
            let bytes = memory.to_vec()?;
            if let Some(finding) = world.findings().into_iter().next() {
                return Ok(Some(finding));
            }
            report.check()?;
            let last = effort.iters.to_le_bytes();
            let arrived = [2, 4]
                .iter()
                .all(|end| bytes[end * size as usize - 8..end * size as usize] == last);
            Ok((!arrived).then(|| "an inbox does not hold the last message".into()))
        };
        run().unwrap_or_else(|error| Some(error.to_string()))
    }
}

/// What is wrong with a run that should succeed.
fn failed(outcome: &Outcome) -> Option<String> {
    if let Some(finding) = outcome.findings.first() {
        return Some(finding.clone());
    }
    match &outcome.report {
        Err(error) => return Some(error.to_string()),
        Ok(report) => {
            if let Err(error) = report.check() {
                return Some(error.to_string());
            }
        }
    }
    (!outcome.verified).then(|| "verified: false".into())
}

/// What is wrong with a run whose operations are refused: beyond their refusal.
fn refused_wrongly(outcome: &Outcome) -> Option<String> {
    if let Some(finding) = outcome.findings.first() {
        return Some(finding.clone());
    }
    let report = match &outcome.report {
        Err(error) => return Some(error.to_string()),
        Ok(report) => report,
    };
    let Err(error) = report.check() else {
        return Some("refused operations were reported as done".into());
    };
    let text = error.to_string();
    let expected = ["access", "protection", "overwritten"]
        .iter()
        .any(|word| text.contains(word));
    (!expected).then_some(text)
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sharing = match self.sharing {
            Sharing::Exclusive => "exclusive",
            Sharing::Gpu => "gpu",
        };
        let doorbell = match self.doorbell {
            Doorbell::Db => "db",
            Doorbell::DbEarly => "early",
        };
        let cq = match self.cq {
            CqForm::Collapsed => "collapsed",
            CqForm::Ring => "ring",
        };
        write!(f, "{} {sharing} {doorbell} {cq}", self.kernel)
    }
}
