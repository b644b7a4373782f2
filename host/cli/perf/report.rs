//! The report of a run: one JSON object, or a table.
//!
//! Knows: names and order of the fields. Scripts depend on them.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use warpverbs::RunReport;
use warpverbs::driver::{LaunchCounters, Phase, PhaseCounters};

use super::closing::Closed;
use super::plan::Plan;
use super::session::Findings;
use crate::args::{Check, Cq, Doorbell, Order, Sharing, Test};
use crate::failure::{Failure, one_line};
use crate::interrupt::Signal;

/// What a run came to.
#[derive(Default)]
pub(crate) struct Outcome {
    ops: u64,
    posted: u64,
    errors: u64,
    counters: Option<LaunchCounters>,
    /// Why the data is not verified: what threads and comparisons said.
    problems: Vec<String>,
    /// The signal that ended it, and how far each device was closed then.
    interrupted: Option<(Signal, Vec<Closed>)>,
}

impl Outcome {
    /// A kernel that ended, where its data differs from what should have arrived, and how many bytes the NICs wrote,
    /// if they tell: buffers are used in turn, so the comparison alone shows only the last operation on each.
    pub(crate) fn ended(
        ran: &RunReport,
        size: u32,
        moved: Option<u64>,
        difference: Option<String>,
    ) -> Self {
        let mut problems = Vec::new();
        problems.extend(ran.check().err().map(|error| one_line(&error)));
        problems.extend(difference);
        let due = ran.completed() * u64::from(size);
        if let Some(moved) = moved
            && problems.is_empty()
            && moved != due
        {
            problems.push(format!(
                "the NICs wrote {moved} bytes, where {} operations of {size} bytes write {due}",
                ran.completed()
            ));
        }
        Self {
            ops: ran.completed(),
            posted: ran.threads.iter().map(|thread| thread.posted).sum(),
            errors: ran.errors(),
            counters: ran.counters,
            problems,
            interrupted: None,
        }
    }

    /// A kernel that did not end as kernels do.
    pub(crate) fn broken_off(why: String) -> Self {
        Self {
            errors: 1,
            problems: vec![why],
            ..Self::default()
        }
    }

    /// A run that a signal ended, after which everything was taken down in stages.
    pub(crate) fn interrupted(
        signal: Signal,
        completed: u64,
        why: String,
        closed: Vec<Closed>,
    ) -> Self {
        let mut problems = vec![why];
        problems.extend(closed.iter().flat_map(Closed::retained));
        Self {
            ops: completed,
            errors: 1,
            problems,
            interrupted: Some((signal, closed)),
            ..Self::default()
        }
    }
}

/// All fields; `--json` prints them in this order. Per-operation figures are null where the GPU cannot count.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    test: &'static str,
    nic: String,
    gpu: String,
    size: u32,
    iters: u64,
    depth: u32,
    qps: u32,
    threads: u32,
    sharing: &'static str,
    doorbell: &'static str,
    cq: &'static str,
    order: &'static str,
    check: &'static str,
    seed: u64,
    ptx: String,
    ops: u64,
    bytes: u64,
    verified: bool,
    errors: u64,
    findings: usize,
    /// Text of each error and finding.
    messages: Vec<String>,
    seconds: f64,
    simulated_ns: Option<u64>,
    executed_instructions: Option<u64>,
    executed_instructions_per_op: Option<f64>,
    loads_per_op: Option<f64>,
    stores_per_op: Option<f64>,
    doorbells_per_op: Option<f64>,
    atomics_per_op: Option<f64>,
    fences_per_op: Option<f64>,
    ordered_ops_per_op: Option<f64>,
    poll_instructions_per_op: Option<f64>,
    poll_loads_per_op: Option<f64>,
    poll_stores_per_op: Option<f64>,
    poll_atomics_per_op: Option<f64>,
    poll_fences_per_op: Option<f64>,
    spin_instructions_per_op: Option<f64>,
    spin_loads_per_op: Option<f64>,
    other_instructions_per_op: Option<f64>,
    /// The signal that ended the run.
    interrupted: Option<&'static str>,
    /// How far each device was closed after it.
    closed: Vec<Closed>,
    #[serde(skip)]
    signal: Option<Signal>,
}

impl Report {
    pub(crate) fn new(
        plan: &Plan,
        nic: String,
        gpu: String,
        run: Outcome,
        findings: Findings,
        seconds: f64,
    ) -> Self {
        let Outcome {
            ops,
            posted,
            errors,
            counters,
            problems: mut messages,
            interrupted,
        } = run;
        let (signal, closed) = interrupted.unzip();
        let verified = messages.is_empty() && errors == 0 && ops == plan.operations();
        let found = findings.0.len();
        messages.extend(findings.0);
        let per_op =
            |phase: Phase, count: fn(&PhaseCounters) -> u64| per_op(counters, posted, phase, count);
        Self {
            test: plan.test.name(),
            nic,
            gpu,
            size: plan.size,
            iters: plan.iters,
            depth: plan.depth,
            qps: plan.qps,
            threads: plan.threads,
            sharing: match plan.sharing {
                Sharing::Exclusive => "exclusive",
                Sharing::Warp => "warp",
                Sharing::Cta => "cta",
                Sharing::Gpu => "gpu",
            },
            doorbell: match plan.doorbell {
                Doorbell::Db => "db",
                Doorbell::Early => "early",
                Doorbell::Bf => "bf",
                Doorbell::Proxy => "proxy",
                Doorbell::Nodbr => "nodbr",
            },
            cq: match plan.cq {
                Cq::Collapsed => "collapsed",
                Cq::Ring => "ring",
                Cq::Onerror => "onerror",
            },
            order: match plan.order {
                Order::Sys => "sys",
                Order::Gpu => "gpu",
            },
            check: match plan.check {
                Check::Fast => "fast",
                Check::Strict => "strict",
                Check::Gpu => "gpu",
            },
            seed: plan.seed,
            ptx: plan
                .ptx
                .as_ref()
                .map_or("embedded".into(), |(name, _)| name.clone()),
            ops,
            bytes: ops * u64::from(plan.size),
            verified,
            errors,
            findings: found,
            messages,
            seconds,
            simulated_ns: counters.map(|counters| counters.simulated_ns),
            executed_instructions: counters
                .map(|counters| counters.phases.iter().map(|phase| phase.instructions).sum()),
            executed_instructions_per_op: per_op(Phase::Post, |c| c.instructions),
            loads_per_op: per_op(Phase::Post, |c| c.loads),
            stores_per_op: per_op(Phase::Post, |c| c.stores),
            doorbells_per_op: per_op(Phase::Post, |c| c.mmio_stores)
                .map(|stores| stores / stores_of_a_doorbell(plan)),
            atomics_per_op: per_op(Phase::Post, |c| c.atomics),
            fences_per_op: per_op(Phase::Post, |c| c.fences),
            ordered_ops_per_op: per_op(Phase::Post, |c| c.ordered),
            poll_instructions_per_op: per_op(Phase::Poll, |c| c.instructions),
            poll_loads_per_op: per_op(Phase::Poll, |c| c.loads),
            poll_stores_per_op: per_op(Phase::Poll, |c| c.stores),
            poll_atomics_per_op: per_op(Phase::Poll, |c| c.atomics),
            poll_fences_per_op: per_op(Phase::Poll, |c| c.fences),
            spin_instructions_per_op: per_op(Phase::Spin, |c| c.instructions),
            spin_loads_per_op: per_op(Phase::Spin, |c| c.loads),
            other_instructions_per_op: per_op(Phase::Other, |c| c.instructions),
            interrupted: signal.map(Signal::name),
            closed: closed.unwrap_or_default(),
            signal,
        }
    }

    /// The signal that ended the run.
    pub(crate) fn signal(&self) -> Option<Signal> {
        self.signal
    }

    /// Why the run failed, on one line; `None` if all data was verified and nothing was found.
    pub(crate) fn failure(&self) -> Option<String> {
        if self.verified && self.findings == 0 {
            return None;
        }
        let first = self
            .messages
            .first()
            .map_or("not all operations completed", String::as_str);
        let more = match self.messages.len() {
            0 | 1 => String::new(),
            n => format!(" (and {} more)", n - 1),
        };
        Some(format!("{} failed: {first}{more}", self.test))
    }

    pub(crate) fn json(&self) -> Result<String, Failure> {
        serde_json::to_string(self)
            .map_err(|error| Failure::Run(format!("cannot write the report: {error}")))
    }

    pub(crate) fn table(&self) -> String {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_BORDERS_ONLY);
        let mut row = |name: &str, value: String| {
            table.add_row([name.to_owned(), value]);
        };
        row(
            "test",
            format!("{} on {} and {}", self.test, self.nic, self.gpu),
        );
        row("operations", format!("{} of {} bytes", self.ops, self.size));
        row(
            "threads, queue pairs, depth",
            format!("{}, {}, {}", self.threads, self.qps, self.depth),
        );
        row(
            "sharing, doorbell, CQ",
            format!("{}, {}, {}", self.sharing, self.doorbell, self.cq),
        );
        row("seed", self.seed.to_string());
        row(
            "verified",
            if self.verified {
                "yes, every byte"
            } else {
                "NO"
            }
            .into(),
        );
        row(
            "errors, findings",
            format!("{}, {}", self.errors, self.findings),
        );
        let figure =
            |value: Option<f64>| value.map_or("not counted".into(), |value| format!("{value:.2}"));
        row(
            "PTX instructions a post",
            figure(self.executed_instructions_per_op),
        );
        row(
            "loads, stores a post",
            format!(
                "{}, {}",
                figure(self.loads_per_op),
                figure(self.stores_per_op)
            ),
        );
        row(
            "doorbells, fences, atomics a post",
            format!(
                "{}, {}, {}",
                figure(self.doorbells_per_op),
                figure(self.fences_per_op),
                figure(self.atomics_per_op)
            ),
        );
        row(
            "PTX instructions a post spent polling",
            figure(self.poll_instructions_per_op),
        );
        row(
            "PTX instructions a post spent waiting",
            figure(self.spin_instructions_per_op),
        );
        // The name of every simulated NIC says so.
        let (what, which) = if self.nic.contains("sim") {
            ("simulator's run time", "no NIC's or GPU's rate")
        } else {
            ("run time", "kernels on CPU threads: no GPU's rate")
        };
        row(what, format!("{:.2} s, {which}", self.seconds));
        if let Some(column) = table.column_mut(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let messages: String = self
            .messages
            .iter()
            .map(|message| format!("! {message}\n"))
            .collect();
        let closed: String = self.closed.iter().map(Closed::to_string).collect();
        format!("{table}\n{messages}{closed}")
    }
}

/// A work request of one block that is pushed takes eight; of several that are posted together none is.
fn stores_of_a_doorbell(plan: &Plan) -> f64 {
    let together = plan.test == Test::PostRate
        && matches!(plan.sharing, Sharing::Warp | Sharing::Cta)
        && plan.block > 1;
    if plan.doorbell == Doorbell::Bf && !together {
        8.0
    } else {
        1.0
    }
}

fn per_op(
    counters: Option<LaunchCounters>,
    posted: u64,
    phase: Phase,
    count: fn(&PhaseCounters) -> u64,
) -> Option<f64> {
    let counted = count(&counters?.phases[phase as usize]);
    (posted > 0).then(|| counted as f64 / posted as f64)
}

#[cfg(test)]
mod tests {
    use warpverbs::ThreadReport;

    use super::*;

    #[test]
    fn operations_that_moved_nothing_are_noticed() {
        let ran = RunReport {
            kernel: "wv_write_bw".into(),
            expected: 10,
            threads: vec![ThreadReport {
                posted: 10,
                completed: 10,
                error: None,
                start_ns: 0,
                end_ns: 1,
            }],
            counters: None,
            stalls: Vec::new(),
        };
        assert!(Outcome::ended(&ran, 8, Some(80), None).problems.is_empty());
        let problems = Outcome::ended(&ran, 8, Some(72), None).problems;
        assert_eq!(
            problems,
            ["the NICs wrote 72 bytes, where 10 operations of 8 bytes write 80"]
        );
    }
}
