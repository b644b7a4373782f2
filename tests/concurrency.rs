//! Closing while other threads use what is closed.

mod common;

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::{Bench, Options, PATIENCE, connected_pair};
use warpverbs::{Access, Error, ErrorKind, Mr, Result};

fn options() -> Options {
    Options {
        depth: 8,
        size: 64,
        slots: 2,
        iters: 10,
        step_budget: Some(u64::MAX),
        ..Options::default()
    }
}

/// What a thread may be told once a close has begun.
fn is_refusal(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::State | ErrorKind::Busy | ErrorKind::Run
    )
}

#[test]
fn closing_while_others_post_launch_register_and_connect() {
    for seed in 0..8 {
        let options = Options { seed, ..options() };
        let bench = options.bench().unwrap();
        bench.world.is_timed();
        let (start, stop) = (Barrier::new(5), AtomicBool::new(false));
        let done = AtomicU64::new(0);
        let repeat = |work: &(dyn Fn() -> Result<()> + Sync)| {
            start.wait();
            while !stop.load(Ordering::Relaxed) {
                match work() {
                    Ok(()) => done.fetch_add(1, Ordering::Relaxed),
                    Err(error) => {
                        assert!(is_refusal(&error), "seed {seed}: {error}");
                        0
                    }
                };
            }
        };
        let launch = || -> Result<()> {
            let (local, remote) = (&bench.source_mr, bench.target_mr.remote());
            let (module, stream) = (&bench.module, &bench.stream);
            let mut run = options
                .bandwidth()
                .launch(module, stream, &bench.qps, local, &remote)?;
            let report = run.wait(PATIENCE)?;
            // Stopped, or done.
            assert!(
                report
                    .threads
                    .iter()
                    .all(|thread| thread.completed <= thread.posted)
            );
            Ok(())
        };
        let register = || -> Result<()> {
            let memory = bench.gpu.alloc(64, "small")?;
            let mr = Mr::register(&bench.pd, &memory, Access::LOCAL_WRITE)?;
            mr.close()?;
            memory.close()?;
            Ok(())
        };
        let connect = || -> Result<()> {
            let (one, mut two) = connected_pair(&bench.pd, &bench.gpu, &options.qp_config())?;
            let one = one.export()?;
            two.reset()?;
            drop(one);
            Ok(())
        };
        std::thread::scope(|scope| {
            scope.spawn(|| repeat(&launch));
            scope.spawn(|| repeat(&register));
            scope.spawn(|| repeat(&connect));
            // Two threads close.
            let closers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        start.wait();
                        while done.load(Ordering::Relaxed) < 5 + seed {
                            std::thread::yield_now();
                        }
                        bench.nic.clone().close().map_err(|refused| refused.error)
                    })
                })
                .collect();
            let mut released = 0;
            for closer in closers {
                let closed = closer.join().unwrap();
                stop.store(closed.is_err(), Ordering::Relaxed);
                let report = closed.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                released += report.released.get("QP").copied().unwrap_or(0);
            }
            stop.store(true, Ordering::Relaxed);
            assert!(released > 0, "seed {seed}");
        });
        let Bench {
            world, nic, gpu, ..
        } = bench;
        nic.close().unwrap();
        gpu.close().unwrap();
        assert_eq!(world.live(), [""; 0], "seed {seed}");
        assert_eq!(world.findings(), [""; 0], "seed {seed}");
    }
}

#[test]
fn two_threads_close_one_qp_and_it_is_destroyed_once() {
    for _ in 0..50 {
        let mut bench = options().bench().unwrap();
        let qp = bench.qps.remove(0);
        let start = Barrier::new(2);
        let released: usize = std::thread::scope(|scope| {
            let close = || {
                let qp = qp.clone();
                start.wait();
                let report = qp.close().unwrap();
                report.released.get("QP").copied().unwrap_or(0)
            };
            let (one, two) = (scope.spawn(close), scope.spawn(close));
            one.join().unwrap() + two.join().unwrap()
        });
        assert_eq!(released, 1);
    }
}
