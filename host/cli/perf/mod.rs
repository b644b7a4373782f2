//! `warpverbs perf`: sets a microbenchmark up, runs it, verifies every byte, reports.
//!
//! Knows: the order of these, and that a report is printed whatever the run came to.
//! Must not know: how data moves.

mod atomics;
mod bandwidth;
mod closing;
mod data;
mod devices;
mod latency;
mod mode;
mod plan;
mod report;
mod sends;
mod serving;
mod session;

use std::time::Instant;

use crate::args::{PerfArgs, Test};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output;
use plan::Plan;
use report::{Outcome, Report};
use session::Session;

pub(crate) fn run(args: &PerfArgs) -> Result<(), Failure> {
    let plan = Plan::of(args)?;
    let interrupt = Interrupt::listen()
        .map_err(|error| Failure::Run(format!("cannot listen to signals: {error}")))?;
    let session = Session::open(&plan, interrupt)?;
    let started = Instant::now();
    let run = match plan.test {
        Test::WriteBw | Test::ReadBw | Test::PostRate => bandwidth::run(&plan, &session),
        Test::SendBw => sends::run(&plan, &session),
        Test::AtomicRate => atomics::run(&plan, &session),
        Test::WriteLat => latency::run(&plan, &session),
    };
    // A run that broke off is reported like one that ended: with what was found.
    let outcome = match run {
        Ok(outcome) => outcome,
        Err(Failure::Run(why)) => Outcome::broken_off(why),
        Err(other) => return Err(other),
    };
    let seconds = started.elapsed().as_secs_f64();
    let (nic, gpu) = (session.nic_name(), session.gpu_name());
    let findings = session.close();
    let report = Report::new(&plan, nic, gpu, outcome, findings, seconds);
    let text = if args.json {
        report.json()? + "\n"
    } else {
        report.table()
    };
    // Of a run that failed and a report that cannot be written, the former is what to say.
    let written = output::result(&text);
    match (report.failure(), report.signal()) {
        (None, _) => written,
        (Some(what), None) => Err(Failure::Run(what)),
        (Some(why), Some(signal)) => Err(Failure::Interrupted(signal, why)),
    }
}
