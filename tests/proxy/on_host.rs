//! On the host as a GPU: real threads post, the proxy's thread rings, the NICs have a thread, and time is real.
//!
//! `WARPVERBS_LAPS` says how often queues are gone around.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::common::{Bench, Options};
use super::{close, options};
use warpverbs::wire::abi::Outcome;
use warpverbs::{Doorbell, Proxy, Served};
use warpverbs_device::{Error, Exclusive, Gpu, Local, Remote, Ring, Sharing, Sq, Ticket};

const SIZE: u32 = 64;

fn laps() -> u64 {
    let laps = std::env::var("WARPVERBS_LAPS").ok();
    laps.map_or(25, |laps| laps.parse().expect("a number"))
}

fn on_host(qps: usize, doorbell: Doorbell) -> Bench {
    let options = Options {
        on_host: true,
        doorbell,
        ptx: None,
        qps,
        threads: 8,
        size: SIZE,
        slots: 1,
        first_index: (1 << 16) - 40,
        ..options()
    };
    options.bench().unwrap()
}

/// Thread `thread` writes its slot `count` times.
fn post<S: Sharing, D: warpverbs_device::Doorbell>(
    bench: &Bench,
    qp: usize,
    thread: u64,
    count: u64,
) -> Outcome {
    let offset = thread * u64::from(SIZE);
    let local = Local {
        addr: bench.source_mr.addr() + offset,
        lkey: bench.source_mr.lkey(),
    };
    let remote = bench.target_mr.remote();
    let remote = Remote {
        addr: remote.addr + offset,
        rkey: remote.rkey,
    };
    let run = || -> Result<(), Error> {
        // SAFETY: the QP is exported and lives in the bench; sharing is as the caller says; nobody touches the slot.
        let mut sq = unsafe { Sq::<S, D, Ring>::open(bench.qps[qp].handle()) }?;
        sq.set_deadline(60_000_000_000);
        let mut last = Ticket::default();
        for _ in 0..count {
            last = sq.post_write(local, remote, SIZE)?;
        }
        sq.wait(last)
    };
    run().map_or_else(Error::outcome, |()| Outcome::Done)
}

fn all_rung(served: &[Served], producer: u64) {
    for served in served {
        assert!(served.failure.is_none(), "{served:?}");
        assert_eq!((served.producer, served.rung), (producer, producer));
    }
}

#[test]
fn threads_that_share_queues_post_through_a_proxy_of_real_time() {
    let first = (1 << 16) - 40;
    for (threads, qps) in [(1, 1), (4, 1), (6, 2)] {
        let bench = on_host(qps, Doorbell::Proxy);
        let proxy = bench.proxy.clone().unwrap();
        assert!(proxy.is_running());
        let count = laps() * 8 * qps as u64 / threads;
        std::thread::scope(|scope| {
            let posts = (0..threads).map(|thread| {
                let bench = &bench;
                let qp = thread as usize % qps;
                scope.spawn(move || post::<Gpu, warpverbs_device::Proxy>(bench, qp, thread, count))
            });
            for post in posts.collect::<Vec<_>>() {
                assert_eq!(post.join().unwrap(), Outcome::Done);
            }
        });
        all_rung(&proxy.served(), first + count * threads / qps as u64);
        let moved = threads as usize * SIZE as usize;
        assert_eq!(
            bench.target.to_vec().unwrap()[..moved],
            bench.bytes[..moved]
        );
        assert_eq!(bench.world.nic_stats().executed_total(), count * threads);
        close(bench);
    }
}

/// Threads post without a rest while QPs go from one proxy to another and back, and proxies stop and start.
#[test]
fn qps_change_hands_between_proxies_while_threads_post() {
    const QPS: usize = 3;
    let bench = on_host(QPS, Doorbell::Proxy);
    bench.proxy.as_ref().unwrap().stop().unwrap();
    let done = AtomicBool::new(false);
    let count = laps() * 40;
    let changes = std::thread::scope(|scope| {
        let posts: Vec<_> = (0..QPS)
            .map(|qp| {
                let bench = &bench;
                scope.spawn(move || {
                    post::<Exclusive, warpverbs_device::Proxy>(bench, qp, qp as u64, count)
                })
            })
            .collect();
        let changer = scope.spawn(|| {
            let mut proxies = [Proxy::start().unwrap(), Proxy::start().unwrap()];
            for qp in &bench.qps {
                proxies[0].add(qp.qp()).unwrap();
            }
            let mut changes = 0;
            while !done.load(Ordering::Acquire) {
                let (from, to) = (changes % 2, (changes + 1) % 2);
                for qp in &bench.qps {
                    let served = proxies[from].remove(qp.qp()).unwrap();
                    assert!(served.is_all_rung() && served.failure.is_none());
                    proxies[to].add(qp.qp()).unwrap();
                }
                if changes % 5 == 4 {
                    assert!(proxies[from].stop().unwrap().is_empty());
                    proxies[from] = Proxy::start().unwrap();
                }
                changes += 1;
                std::thread::sleep(Duration::from_micros(50));
            }
            let served: Vec<_> = proxies.iter().flat_map(Proxy::served).collect();
            assert_eq!(served.len(), QPS);
            all_rung(&served, (1 << 16) - 40 + count);
            changes
        });
        let ended: Vec<_> = posts.into_iter().map(|post| post.join().unwrap()).collect();
        done.store(true, Ordering::Release);
        let changes = changer.join().unwrap();
        assert_eq!(ended, [Outcome::Done; QPS]);
        changes
    });
    assert!(changes > 0);
    assert_eq!(bench.world.nic_stats().executed_total(), count * QPS as u64);
    close(bench);
}

/// Without record: the register alone, taken by the NICs' thread.
#[test]
fn threads_post_to_qps_without_record() {
    let bench = on_host(2, Doorbell::NoDbr);
    let count = laps() * 8;
    std::thread::scope(|scope| {
        for qp in 0..2 {
            let bench = &bench;
            scope.spawn(move || {
                let ended = post::<Exclusive, warpverbs_device::NoDbr>(bench, qp, qp as u64, count);
                assert_eq!(ended, Outcome::Done);
            });
        }
    });
    assert_eq!(bench.world.nic_stats().executed_total(), 2 * count);
    close(bench);
}

/// In a process of its own, where no other test's proxies run.
#[test]
fn a_proxy_that_has_nothing_to_do_rests() {
    let alone = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "--ignored",
            "on_host::alone::an_idle_proxy_rests",
        ])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&alone.stdout);
    assert!(
        alone.status.success() && said.contains("1 passed"),
        "{said}"
    );
}

mod alone {
    use super::*;

    #[test]
    #[ignore = "wants a process of its own: the test above runs it"]
    fn an_idle_proxy_rests() {
        // Nanoseconds that threads of that name have run.
        let spent = || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap();
            let proxies = tasks.filter_map(|task| {
                let task = task.ok()?.path();
                let name = std::fs::read_to_string(task.join("comm")).ok()?;
                let times = std::fs::read_to_string(task.join("schedstat")).ok()?;
                (name.trim() == "wv-proxy").then(|| times.split(' ').next()?.parse::<u64>().ok())?
            });
            proxies.sum::<u64>()
        };
        let bench = on_host(4, Doorbell::Proxy);
        // One more, without a QP.
        let idle = Proxy::start().unwrap();
        while post::<Exclusive, warpverbs_device::Proxy>(&bench, 0, 0, 8) != Outcome::Done {}
        let before = spent();
        std::thread::sleep(Duration::from_millis(500));
        let time = spent() - before;
        assert!(before > 0, "there is a thread, and it has run");
        assert!(time < 100_000_000, "{time} of 500,000,000 ns");
        idle.stop().unwrap();
        close(bench);
    }
}
