//! Who may launch with a QP while another launch uses it, and whose figures a run reports.

mod common;

use common::{Bench, Options, PATIENCE};
use warpverbs::driver::Phase;
use warpverbs::driver::fault::{Fault, Outcome};
use warpverbs::{Bandwidth, Error, ErrorKind, ExportedQp, Result, Run, Sharing, Stream};

/// Operations that take longer than one look at an event lets pass.
const LONG: u64 = 5_000;

fn options() -> Options {
    Options {
        depth: 8,
        size: 64,
        slots: 2,
        iters: 20,
        qps: 2,
        step_budget: Some(u64::MAX),
        ..Options::default()
    }
}

fn launch(
    bench: &Bench,
    stream: &Stream,
    qps: &[ExportedQp],
    sharing: Sharing,
    iters: u64,
) -> Result<Run> {
    Bandwidth {
        sharing,
        threads: qps.len() as u32,
        slots: 1,
        iters,
        ..options().bandwidth()
    }
    .launch(
        &bench.module,
        stream,
        qps,
        &bench.source_mr,
        &bench.target_mr.remote(),
    )
}

fn is_leased<T>(launched: Result<T>, qp: &ExportedQp) -> bool {
    match launched {
        Err(error @ Error::QpLeased { qpn }) => qpn == qp.qpn() && error.kind() == ErrorKind::Busy,
        _ => false,
    }
}

fn bench() -> Bench {
    options().bench().unwrap()
}

fn close(bench: Bench) {
    assert_eq!(bench.world.findings(), [""; 0]);
    let world = bench.world.clone();
    bench.nic.clone().close().unwrap();
    bench.gpu.clone().close().unwrap();
    drop(bench);
    assert_eq!(world.live(), [""; 0]);
}

#[test]
fn an_exclusive_qp_is_not_launched_with_on_another_stream_while_it_is_used() {
    use Sharing::{Exclusive, Gpu};
    let bench = bench();
    let other = Stream::create(&bench.gpu).unwrap();
    let qps = &bench.qps[..1];
    for (first, second) in [(Exclusive, Exclusive), (Exclusive, Gpu), (Gpu, Exclusive)] {
        let mut run = launch(&bench, &bench.stream, qps, first, LONG).unwrap();
        let live = bench.world.live().len();
        let launches = || {
            let trace = bench.faults.trace();
            trace.iter().filter(|call| call.name == "launch").count()
        };
        let before = launches();
        assert!(
            is_leased(launch(&bench, &other, qps, second, 5), &qps[0]),
            "{first:?}, {second:?}"
        );
        assert_eq!((launches(), bench.world.live().len()), (before, live));
        run.wait(PATIENCE).unwrap().check().unwrap();
        // It is over, although its handle is held.
        let mut next = launch(&bench, &other, qps, second, 5).unwrap();
        next.wait(PATIENCE).unwrap().check().unwrap();
        run.wait(PATIENCE).unwrap().check().unwrap();
    }
    drop(other);
    close(bench);
}

#[test]
fn launches_on_one_stream_follow_each_other_and_shared_ones_run_at_once() {
    let bench = bench();
    let other = Stream::create(&bench.gpu).unwrap();
    let qps = &bench.qps[..1];
    let mut runs: Vec<Run> = (0..4)
        .map(|_| launch(&bench, &bench.stream, qps, Sharing::Exclusive, 20).unwrap())
        .collect();
    for run in &mut runs {
        run.wait(PATIENCE).unwrap().check().unwrap();
    }
    drop(runs);
    // The first runs while the others are launched, and they beside it.
    let mut runs: Vec<Run> = [
        (&bench.stream, LONG),
        (&other, 20),
        (&bench.stream, 20),
        (&other, 20),
    ]
    .into_iter()
    .map(|(stream, iters)| launch(&bench, stream, qps, Sharing::Gpu, iters).unwrap())
    .collect();
    runs[1].wait(PATIENCE).unwrap().check().unwrap();
    assert!(!runs[0].is_finished().unwrap());
    for run in &mut runs {
        run.wait(PATIENCE).unwrap().check().unwrap();
    }
    assert_eq!(bench.qps[0].progress().unwrap().completed, LONG + 7 * 20);
    drop((runs, other));
    close(bench);
}

#[test]
fn another_qp_is_no_reason_to_refuse_and_a_refused_launch_leases_nothing() {
    let bench = bench();
    let other = Stream::create(&bench.gpu).unwrap();
    let third = Stream::create(&bench.gpu).unwrap();
    let [first, second] = [&bench.qps[..1], &bench.qps[1..2]];
    let mut run = launch(&bench, &bench.stream, second, Sharing::Exclusive, LONG).unwrap();
    // The first QP is free, the second is not: neither is leased.
    let both = launch(&bench, &other, &bench.qps, Sharing::Exclusive, 5);
    assert!(is_leased(both, &second[0]));
    let mut beside = launch(&bench, &third, first, Sharing::Exclusive, 5).unwrap();
    beside.wait(PATIENCE).unwrap().check().unwrap();
    run.wait(PATIENCE).unwrap().check().unwrap();
    // Nor does a launch that the driver refuses.
    drop((run, beside));
    bench.faults.plan(Fault::fail(0).of("launch"));
    launch(&bench, &bench.stream, first, Sharing::Exclusive, 5).unwrap_err();
    let mut run = launch(&bench, &other, first, Sharing::Exclusive, 5).unwrap();
    run.wait(PATIENCE).unwrap().check().unwrap();
    drop((run, other, third));
    close(bench);
}

/// A launch that has no event behind it is waited for with its stream; until then the QP is leased.
#[test]
fn a_launch_without_an_event_leases_its_qps_too() {
    let bench = bench();
    let other = Stream::create(&bench.gpu).unwrap();
    let qps = &bench.qps[..1];
    bench.faults.plan(Fault::fail(0).of("record_event"));
    let mut run = launch(&bench, &bench.stream, qps, Sharing::Exclusive, LONG).unwrap();
    assert!(is_leased(
        launch(&bench, &other, qps, Sharing::Exclusive, 5),
        &qps[0]
    ));
    let report = run.wait(PATIENCE).unwrap();
    report.check().unwrap();
    assert_eq!(report.counters, None);
    launch(&bench, &other, qps, Sharing::Exclusive, 5)
        .unwrap()
        .wait(PATIENCE)
        .unwrap()
        .check()
        .unwrap();
    drop((run, other));
    close(bench);
}

#[test]
fn of_threads_that_launch_at_once_one_has_the_qp() {
    let bench = bench();
    bench.world.is_timed();
    let streams: Vec<_> = (0..4)
        .map(|_| Stream::create(&bench.gpu).unwrap())
        .collect();
    for _ in 0..5 {
        let endless = |stream| launch(&bench, stream, &bench.qps[..1], Sharing::Exclusive, LONG);
        let launched: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = streams
                .iter()
                .map(|stream| scope.spawn(|| endless(stream)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        let mut runs: Vec<_> = launched
            .into_iter()
            .filter_map(|launched| match launched {
                Ok(run) => Some(run),
                Err(error) => {
                    assert!(matches!(error, Error::QpLeased { .. }), "{error}");
                    None
                }
            })
            .collect();
        assert!(!runs.is_empty());
        for run in &mut runs {
            run.wait(PATIENCE).unwrap().check().unwrap();
        }
    }
    // Nobody posted beside another: every index was used once.
    let progress = bench.qps[0].progress().unwrap();
    assert_eq!(progress.completed, progress.reserved);
    assert_eq!(progress.completed % LONG, 0);
    drop(streams);
    close(bench);
}

/// Doorbells of a run's posts: one a post.
fn rings(run: &mut Run) -> u64 {
    let report = run.wait(PATIENCE).unwrap();
    report.check().unwrap();
    report.counters.unwrap().phases[Phase::Post as usize].mmio_stores
}

#[test]
fn runs_on_one_stream_report_their_own_figures() {
    let bench = bench();
    let of = |iters| {
        launch(
            &bench,
            &bench.stream,
            &bench.qps[..1],
            Sharing::Exclusive,
            iters,
        )
        .unwrap()
    };
    let (mut five, mut nine, mut two) = (of(5), of(9), of(2));
    // The last is waited for first.
    assert_eq!(
        (rings(&mut two), rings(&mut five), rings(&mut nine)),
        (2, 5, 9)
    );
    // Again, when another has run since.
    assert_eq!(rings(&mut of(4)), 4);
    assert_eq!(rings(&mut five), 5);
    drop((five, nine, two));
    close(bench);
}

/// Closing a QP closes launches that are over; who waits for one afterwards is given its figures all the same.
#[test]
fn a_run_whose_launch_was_closed_has_its_figures() {
    let mut bench = bench();
    let qps = &bench.qps[..1];
    let mut run = launch(&bench, &bench.stream, qps, Sharing::Exclusive, 7).unwrap();
    while !run.is_finished().unwrap() {}
    let report = bench.qps.remove(0).close().unwrap();
    assert_eq!(report.released["launch"], 1);
    let destroyed = |call: &&warpverbs::driver::fault::Call| {
        call.name == "destroy_event" && call.outcome == Outcome::Done
    };
    assert_eq!(bench.faults.trace().iter().filter(destroyed).count(), 1);
    assert_eq!(rings(&mut run), 7);
    drop(run);
    close(bench);
}
