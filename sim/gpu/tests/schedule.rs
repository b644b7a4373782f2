//! Scheduling: convergence, determinism, budgets, co-residency.

mod support;

use std::sync::{Arc, Mutex};

use support::{Rig, config, failure, grid, kernel, report, run, run_with, threads};
use warpverbs_sim_bus::{Device, Dma, DmaAccess, Fault, Purpose, Step};
use warpverbs_sim_gpu::{FailureKind, GpuConfig, GpuError, Scheduler};

const SCHEDULERS: [Scheduler; 2] = [Scheduler::Independent, Scheduler::Converge];

/// Lanes take turns: `%in` holds the turn, `%out` collects the order. Waiting and hand-off in one loop.
const ONE_LOOP: &str = "
    cvt.u64.u32 %rd1, %t;
    $again:
    ld.acquire.gpu.global.u64 %rd2, [%in];
    setp.ne.u64 %p1, %rd2, %rd1;
    @%p1 bra $next;
    shl.b64 %rd3, %rd1, 3; add.u64 %rd3, %rd3, %out; st.global.u64 [%rd3], %rd1;
    add.u64 %rd4, %rd1, 1; st.release.gpu.global.u64 [%in], %rd4;
    $next:
    @%p1 bra $again;";

/// The same with the hand-off behind the loop, where a compiler may bring the lanes together first.
const TWO_STEPS: &str = "
    cvt.u64.u32 %rd1, %t;
    $again:
    ld.acquire.gpu.global.u64 %rd2, [%in];
    setp.ne.u64 %p1, %rd2, %rd1;
    @%p1 bra $again;
    shl.b64 %rd3, %rd1, 3; add.u64 %rd3, %rd3, %out; st.global.u64 [%rd3], %rd1;
    add.u64 %rd4, %rd1, 1; st.release.gpu.global.u64 [%in], %rd4;";

#[test]
fn turns_in_one_loop_finish_under_both_schedulers() {
    let out = run(ONE_LOOP, 32, &[0], 32);
    assert!(out.iter().enumerate().all(|(i, v)| *v == i as u64));
}

#[test]
fn a_hand_off_behind_the_waiting_loop_deadlocks_when_lanes_are_held_there() {
    for seed in 1..4 {
        let out = run_with(
            config(seed, Scheduler::Independent),
            TWO_STEPS,
            32,
            &[0],
            32,
        )
        .unwrap();
        assert!(out.iter().enumerate().all(|(i, v)| *v == i as u64));
        let report = failure(config(seed, Scheduler::Converge), TWO_STEPS, 32);
        assert_eq!(report.kind, FailureKind::Livelock);
        let held: Vec<_> = report
            .waiters
            .iter()
            .filter(|w| w.waits_for.contains("held at its post-dominator"))
            .collect();
        assert_eq!(held.len(), 1, "{report}");
        assert_eq!(held[0].location.thread, [0, 0, 0]);
        assert!(
            held[0].waits_for.contains("until lanes 0xfffffffe arrive"),
            "{report}"
        );
        let polling = report.waiters.iter().filter(|w| {
            w.waits_for.contains("polls") && w.waits_for.contains("(input+0x0 (512 bytes)")
        });
        assert!(polling.count() >= 1, "{report}");
    }
    // Threads of different warps do not hold each other.
    let body = TWO_STEPS.replace("cvt.u64.u32 %rd1, %t;", "shr.u32 %r1, %t, 5; cvt.u64.u32 %rd1, %r1; and.b32 %r2, %t, 31; setp.ne.u32 %p3, %r2, 0; @%p3 exit;");
    let out = run_with(config(1, Scheduler::Converge), &body, 96, &[0], 3).unwrap();
    assert_eq!(out, [0, 1, 2]);
}

#[test]
fn nested_loops_branches_and_exits_end_together_under_the_converging_scheduler() {
    // Thread t runs an outer loop t % 5 times and an inner one t % 3 times, skips some, and a third of them exit early.
    let body = "
        mov.u32 %r1, 0; mov.u32 %r2, 0; rem.u32 %r3, %t, 5; rem.u32 %r4, %t, 3;
        $outer:
        setp.ge.u32 %p1, %r2, %r3; @%p1 bra $done;
        and.b32 %r5, %r2, 1; setp.eq.u32 %p2, %r5, 1; @%p2 bra $skip;
        mov.u32 %r6, 0;
        $inner:
        setp.ge.u32 %p3, %r6, %r4; @%p3 bra $skip;
        add.u32 %r1, %r1, 1; add.u32 %r6, %r6, 1;
        setp.eq.u32 %p4, %r1, 4; @%p4 bra $store;
        bra $inner;
        $skip:
        add.u32 %r2, %r2, 1; add.u32 %r1, %r1, 10;
        bra $outer;
        $done:
        rem.u32 %r7, %t, 7; setp.eq.u32 %p5, %r7, 6; @%p5 ret;
        $store:
        mul.wide.u32 %rd1, %t, 8; add.u64 %rd1, %rd1, %out; cvt.u64.u32 %rd2, %r1; st.global.u64 [%rd1], %rd2;";
    let out = run(body, 64, &[0], 64);
    let expected: Vec<u64> = (0..64u64)
        .map(|t| {
            let mut sum = 0;
            for i in 0..t % 5 {
                if i % 2 == 0 {
                    for _ in 0..t % 3 {
                        sum += 1;
                        if sum == 4 {
                            return sum;
                        }
                    }
                }
                sum += 10;
            }
            if t % 7 == 6 { 0 } else { sum }
        })
        .collect();
    assert_eq!(out, expected);
}

#[test]
fn a_seed_replays_the_run_and_another_seed_is_another_run() {
    // Threads race for a counter: the order of wins is the schedule.
    let body = "atom.relaxed.gpu.global.add.u64 %rd1, [%in], 1; mul.wide.u32 %rd2, %t, 8; add.u64 %rd2, %rd2, %out; st.global.u64 [%rd2], %rd1;";
    for scheduler in SCHEDULERS {
        let trace = |seed: u64, quantum: u64| {
            let mut rig = Rig::new(config(seed, scheduler));
            let (a, b) = (rig.alloc(8, "a"), rig.alloc(64 * 8, "b"));
            let params: Vec<u8> = [a, b].iter().flat_map(|p| p.to_le_bytes()).collect();
            rig.launch(&kernel(body), threads(64), &params).unwrap();
            while !rig.gpu.advance(quantum).unwrap().idle {}
            let words: Vec<u64> = (0..64).map(|i| rig.read_u64(b + 8 * i)).collect();
            (
                rig.gpu.schedule_fingerprint(),
                words,
                rig.gpu.counters(rig.event),
                rig.gpu.now_ns(),
            )
        };
        let first = trace(5, 1000);
        assert_eq!(trace(5, 1000), first);
        // How the host cuts a run into quanta does not change it.
        assert_eq!(trace(5, 7), first);
        let others: Vec<_> = (6..10).map(|seed| trace(seed, 1000)).collect();
        assert!(others.iter().all(|t| t.0 != first.0));
        assert!(others.iter().any(|t| t.1 != first.1));
    }
}

#[test]
fn a_spin_that_nobody_ends_is_reported_with_what_it_polls() {
    let body =
        "$w: ld.relaxed.sys.global.u64 %rd1, [%in+8]; setp.eq.u64 %p1, %rd1, 1; @!%p1 bra $w;";
    for scheduler in SCHEDULERS {
        let budget = GpuConfig {
            step_budget: 10_000,
            ..config(1, scheduler)
        };
        let report = failure(budget, body, 2);
        assert_eq!(report.kind, FailureKind::Livelock);
        assert_eq!(report.kernel, "k");
        assert_eq!(report.waiters.len(), 2);
        let text = report.to_string();
        for part in [
            "livelock in kernel `k`: 10000 steps without progress",
            "block (0,0,0) thread (1,0,0) in `k`, PTX line",
            "input+0x8 (512 bytes)",
            "ld.relaxed.sys.global.u64 %rd1, [%in+8];",
            "last value 0x0",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    // A loop around a sleep spends the budget too.
    let sleeping = "$w: nanosleep.u32 100; ld.volatile.global.u64 %rd1, [%in]; setp.eq.u64 %p1, %rd1, 1; @!%p1 bra $w;";
    let budget = GpuConfig {
        step_budget: 10_000,
        ..config(1, Scheduler::Independent)
    };
    assert_eq!(failure(budget, sleeping, 1).kind, FailureKind::Livelock);
}

/// A device that writes 1 to a word after so many steps.
struct Slow {
    addr: u64,
    steps: u32,
}

impl Device for Slow {
    fn name(&self) -> &str {
        "slow"
    }
    fn step(&mut self, dma: &mut dyn Dma) -> Step {
        if self.steps == 0 {
            return Step::Idle;
        }
        self.steps -= 1;
        if self.steps == 0 {
            dma.write(
                DmaAccess::new(Purpose::Cqe, 0),
                self.addr,
                &1u64.to_le_bytes(),
            )
            .unwrap();
        }
        Step::Progress
    }
    fn mmio_write(&mut self, _: u64, _: &[u8]) -> Result<(), Fault> {
        Ok(())
    }
}

#[test]
fn devices_act_between_bursts_and_while_all_threads_sleep() {
    for wait in [
        "$w: ld.acquire.sys.global.u64 %rd1, [%in]; setp.eq.u64 %p1, %rd1, 1; @!%p1 bra $w;",
        "$w: nanosleep.u32 1000000; ld.acquire.sys.global.u64 %rd1, [%in]; setp.eq.u64 %p1, %rd1, 1; @!%p1 bra $w;",
    ] {
        for scheduler in SCHEDULERS {
            let mut rig = Rig::new(config(1, scheduler));
            let a = rig.alloc(8, "a");
            rig.bus.attach(Arc::new(Mutex::new(Slow {
                addr: a,
                steps: 50_000,
            })));
            let counters = rig.run(&kernel(wait), threads(64), &[a, a]).unwrap();
            // Waiting threads leave most of the time to the device.
            let instructions = counters.phases[0].instructions;
            assert!(instructions < 4_000_000, "{instructions}");
        }
    }
}

#[test]
fn with_no_kernel_devices_run_until_idle() {
    let mut rig = Rig::new(config(1, Scheduler::Independent));
    let a = rig.alloc(8, "a");
    rig.bus.attach(Arc::new(Mutex::new(Slow {
        addr: a,
        steps: 100,
    })));
    let first = rig.gpu.advance(60).unwrap();
    assert_eq!((first.steps, first.idle), (60, false));
    let second = rig.gpu.advance(60).unwrap();
    assert_eq!((second.steps, second.idle), (40, true));
    assert_eq!(rig.read_u64(a), 1);
}

#[test]
fn blocks_beyond_the_device_wait_for_room_and_cooperative_ones_are_refused() {
    // Block 0 waits for the last block's signal.
    let body = "
        mov.u32 %r1, %ctaid.x; mov.u32 %r2, %nctaid.x; sub.u32 %r2, %r2, 1;
        setp.eq.u32 %p1, %r1, %r2; @%p1 st.release.gpu.global.u64 [%in], 1;
        setp.ne.u32 %p2, %r1, 0; @%p2 bra $end;
        $w: ld.acquire.gpu.global.u64 %rd1, [%in]; setp.eq.u64 %p3, %rd1, 1; @!%p3 bra $w;
        $end: atom.relaxed.gpu.global.add.u64 %rd2, [%out], 1;";
    let small = |blocks_per_sm: u32| GpuConfig {
        sms: 2,
        blocks_per_sm,
        step_budget: 100_000,
        ..config(1, Scheduler::Independent)
    };
    let run = |config: GpuConfig, blocks: u32| {
        let mut rig = Rig::new(config);
        let (a, b) = (rig.alloc(8, "a"), rig.alloc(8, "b"));
        rig.run(&kernel(body), grid(blocks, 1), &[a, b])
            .map(|_| rig.read_u64(b))
    };
    // Two resident blocks: the others pass through beside block 0.
    assert_eq!(run(small(1), 50), Ok(50));
    // One resident block: the signal never comes.
    let one = GpuConfig { sms: 1, ..small(1) };
    let stuck = report(run(one.clone(), 2));
    assert_eq!(stuck.kind, FailureKind::Livelock);
    assert!(
        stuck
            .detail
            .contains("blocks 1 to 1 of `k` have not started: 1 are resident"),
        "{stuck}"
    );
    assert_eq!(run(one, 1), Ok(1));

    let mut rig = Rig::new(small(3));
    let module = rig.load(&kernel(body)).unwrap();
    let k = rig.gpu.kernel(module, "k").unwrap();
    let mut shape = grid(7, 1);
    shape.cooperative = true;
    assert_eq!(rig.gpu.max_resident_blocks(k, shape), Ok(6));
    let refused = rig.gpu.launch(k, shape, rig.stream, &[0; 16]);
    assert_eq!(
        refused,
        Err(GpuError::TooManyBlocks {
            blocks: 7,
            resident: 6
        })
    );
    // Large blocks fill a multiprocessor sooner.
    assert_eq!(rig.gpu.max_resident_blocks(k, grid(1, 1024)), Ok(4));
}

#[test]
fn phases_divide_the_counts() {
    let body = "
        // wv.phase post
        st.relaxed.sys.global.u64 [%in], 1;
        fence.acq_rel.sys;
        st.release.sys.global.u64 [%in+8], 2;
        // wv.phase poll
        ld.acquire.sys.global.u64 %rd1, [%in];
        mov.u32 %r1, 0;
        // wv.phase spin
        $w: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 10; @%p1 bra $w;
        // wv.phase other
        atom.acq_rel.gpu.add.u64 %rd2, [%in], 1; @%p1 ld.u64 %rd3, [%in];";
    for scheduler in SCHEDULERS {
        let mut rig = Rig::new(config(1, scheduler));
        let a = rig.alloc(64, "a");
        let counters = rig.run(&kernel(body), threads(3), &[a, a]).unwrap();
        let [other, post, poll, spin] = counters.phases;
        assert_eq!(
            (post.instructions, post.stores, post.fences, post.ordered),
            (9, 6, 3, 3)
        );
        assert_eq!((poll.instructions, poll.loads, poll.ordered), (6, 3, 3));
        assert_eq!((spin.instructions, spin.loads), (3 * 30, 0));
        // Three parameter and register moves before, an atomic, a load that is off, and `ret`.
        assert_eq!(
            (
                other.instructions,
                other.atomics,
                other.loads,
                other.ordered
            ),
            (3 * 6, 3, 0, 3)
        );
        assert!(counters.simulated_ns >= 100);
    }
}
