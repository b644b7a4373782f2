//! Operations between threads: warp operations and block barriers.

mod support;

use support::{config, failure, run, run_with};
use warpverbs_sim_gpu::{FailureKind, Scheduler};

/// `%r1` of each thread, stored as its word of the output.
const STORE: &str = "
    mul.wide.u32 %rd9, %t, 8; add.u64 %rd9, %rd9, %out; cvt.u64.u32 %rd8, %r1; st.global.u64 [%rd9], %rd8;";

fn each(body: &str, n: u32) -> Vec<u64> {
    run(&format!("{body}{STORE}"), n, &[0], n as usize)
}

#[test]
fn shuffles_in_all_modes() {
    // Result and predicate: value * 10 + predicate.
    let shuffle = |mode: &str, b: u32, c: u32| {
        each(
            &format!(
                "shfl.sync.{mode}.b32 %r1|%p1, %t, {b}, {c}, 0xffffffff;
                 selp.u32 %r2, 1, 0, %p1; mad.lo.u32 %r1, %r1, 10, %r2;"
            ),
            32,
        )
    };
    let expect = |f: &dyn Fn(u64) -> (u64, bool)| -> Vec<u64> {
        (0..32).map(f).map(|(v, p)| v * 10 + u64::from(p)).collect()
    };
    // `up` takes clamp 0: lanes below the distance keep their own.
    assert_eq!(
        shuffle("up", 3, 0),
        expect(&|l| if l >= 3 { (l - 3, true) } else { (l, false) })
    );
    assert_eq!(
        shuffle("down", 3, 31),
        expect(&|l| if l + 3 < 32 {
            (l + 3, true)
        } else {
            (l, false)
        })
    );
    assert_eq!(shuffle("bfly", 5, 31), expect(&|l| (l ^ 5, true)));
    assert_eq!(shuffle("idx", 7, 31), expect(&|_| (7, true)));
    // Segments of 8 lanes: mask 0b11000 in bits 8..13, clamp 7.
    assert_eq!(
        shuffle("down", 3, 0x1807),
        expect(&|l| if l % 8 + 3 < 8 {
            (l + 3, true)
        } else {
            (l, false)
        })
    );
    assert_eq!(
        shuffle("up", 2, 0x1800),
        expect(&|l| if l % 8 >= 2 {
            (l - 2, true)
        } else {
            (l, false)
        })
    );
    assert_eq!(
        shuffle("idx", 9, 0x1807),
        expect(&|l| (l / 8 * 8 + 1, true))
    );
    // A clamp inside the segment: butterfly partners beyond it are out of range.
    assert_eq!(
        shuffle("bfly", 16, 15),
        expect(&|l| if l < 16 { (l, false) } else { (l - 16, true) })
    );
}

#[test]
fn a_shuffle_from_a_lane_that_takes_no_part_gives_nothing_plausible() {
    let body = "
        setp.ge.u32 %p1, %t, 2; @%p1 bra $out;
        shfl.sync.idx.b32 %r1, %t, 5, 31, 3;
        bra $store;
        $out: mov.u32 %r1, 0;
        $store:";
    let out = each(body, 32);
    assert_eq!(out[..3], [0xa5a5_a5a5, 0xa5a5_a5a5, 0]);
}

#[test]
fn votes_matches_and_reductions() {
    let body = |op: &str| {
        format!("and.b32 %r2, %t, 1; setp.eq.u32 %p1, %r2, 1; setp.lt.u32 %p2, %t, 99; {op}")
    };
    assert_eq!(
        each(&body("vote.sync.ballot.b32 %r1, %p1, 0xffffffff;"), 32)[4],
        0xaaaa_aaaa
    );
    assert_eq!(
        each(&body("vote.sync.ballot.b32 %r1, !%p1, 0xffffffff;"), 32)[4],
        0x5555_5555
    );
    let truth = |vote: &str| {
        each(
            &body(&format!(
                "vote.sync.{vote}, 0xffffffff; selp.u32 %r1, 1, 0, %p3;"
            )),
            32,
        )[9]
    };
    assert_eq!(truth("any.pred %p3, %p1"), 1);
    assert_eq!(truth("all.pred %p3, %p1"), 0);
    assert_eq!(truth("all.pred %p3, %p2"), 1);
    assert_eq!(truth("uni.pred %p3, %p1"), 0);
    assert_eq!(truth("uni.pred %p3, !%p2"), 1);

    let mask = each(
        &body("rem.u32 %r3, %t, 3; match.any.sync.b32 %r1, %r3, 0xffffffff;"),
        32,
    );
    for (lane, got) in mask.iter().enumerate() {
        let expected = (0..32)
            .filter(|l| l % 3 == lane % 3)
            .fold(0u64, |m, l| m | 1 << l);
        assert_eq!(*got, expected);
    }
    let all = |value: &str| {
        each(
            &body(&format!(
                "{value} match.all.sync.b64 %r1|%p3, %rd1, 0xffffffff; selp.u32 %r4, 1, 0, %p3; xor.b32 %r1, %r1, %r4;"
            )),
            32,
        )[3]
    };
    assert_eq!(all("mov.u64 %rd1, 7;"), 0xffff_fffe);
    assert_eq!(all("cvt.u64.u32 %rd1, %t;"), 0);

    let reduce = |op: &str| {
        each(
            &body(&format!(
                "sub.s32 %r3, %t, 5; redux.sync.{op} %r1, %r3, 0xffffffff;"
            )),
            32,
        )[8]
    };
    assert_eq!(reduce("add.s32"), (0..32).sum::<u64>() - 5 * 32);
    assert_eq!(reduce("min.s32"), 0xffff_fffb);
    assert_eq!(reduce("max.s32"), 26);
    assert_eq!(reduce("min.u32"), 0);
    assert_eq!(reduce("max.u32"), 0xffff_ffff);
    assert_eq!(reduce("or.b32"), 0xffff_ffff);
    assert_eq!(reduce("and.b32"), 0);
    assert_eq!(
        reduce("xor.b32"),
        (0u32..32).fold(0, |x, l| x ^ l.wrapping_sub(5)).into()
    );

    // One leader, known to all.
    let out = each(
        &body("elect.sync %r3|%p3, 0xffffffff; selp.u32 %r1, 100, 0, %p3; add.u32 %r1, %r1, %r3;"),
        32,
    );
    assert_eq!(out.iter().filter(|v| **v >= 100).count(), 1);
    assert!(out.iter().all(|v| v % 100 == out[1] % 100));
}

#[test]
fn sync_operations_wait_for_named_lanes_only_and_not_for_exited_ones() {
    // Lanes 0 and 1 exchange values at different places while lane 2 has exited and lane 3 goes its own way.
    let body = "
        setp.eq.u32 %p1, %t, 2; @%p1 exit;
        setp.eq.u32 %p1, %t, 3; @%p1 bra $other;
        setp.eq.u32 %p2, %t, 1; @%p2 bra $one;
        shfl.sync.bfly.b32 %r1, %t, 1, 31, 0x7;
        bra $store;
        $one: add.u32 %r2, %t, 40;
        shfl.sync.bfly.b32 %r1, %r2, 1, 31, 0x7;
        bra $store;
        $other: mov.u32 %r1, 9;
        $store: bar.warp.sync 0xf;";
    let out = each(body, 4);
    assert_eq!(out, [41, 0, 0, 9]);
}

#[test]
fn active_mask_is_one_mask_for_a_group() {
    // Each lane publishes its mask; lanes with the same mask are in it, and no lane is in two.
    let body = format!("activemask.b32 %r1; {STORE}");
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let out = run_with(config(seed, Scheduler::Independent), &body, 32, &[0], 32).unwrap();
        for (lane, mask) in out.iter().enumerate() {
            assert_eq!(mask >> lane & 1, 1, "a lane is in its own mask");
            for (other, theirs) in out.iter().enumerate() {
                assert_eq!(
                    mask >> other & 1 == 1,
                    mask == theirs,
                    "seed {seed}: lanes {lane} and {other}"
                );
            }
        }
        seen.insert(out);
    }
    assert!(seen.len() > 10, "seeds give different groups");
    assert!(
        seen.iter().flatten().any(|mask| mask.count_ones() > 1),
        "some lanes go together"
    );
    // The converging scheduler has all lanes together where the code is not divergent.
    let out = run_with(config(1, Scheduler::Converge), &body, 32, &[0], 32).unwrap();
    assert!(out.iter().all(|mask| *mask == 0xffff_ffff));
    let half = format!(
        "setp.lt.u32 %p1, %t, 8; @%p1 bra $low; activemask.b32 %r1; bra $s; $low: activemask.b32 %r1; $s: {STORE}"
    );
    let out = run_with(config(1, Scheduler::Converge), &half, 32, &[0], 32).unwrap();
    assert_eq!((out[0], out[31]), (0xff, 0xffff_ff00));
    // Behind a branch and a loop that part them, they are together again.
    let rejoined = format!(
        "rem.u32 %r2, %t, 5; setp.eq.u32 %p1, %r2, 1; @%p1 bra $one; add.u32 %r2, %r2, 1; $one:
         $again: sub.u32 %r2, %r2, 1; setp.gt.s32 %p2, %r2, 0; @%p2 bra $again; activemask.b32 %r1; {STORE}"
    );
    let out = run_with(config(1, Scheduler::Converge), &rejoined, 32, &[0], 32).unwrap();
    assert!(out.iter().all(|mask| *mask == 0xffff_ffff), "{out:x?}");
}

#[test]
fn a_lane_outside_its_mask_is_reported() {
    let report = failure(config(1, Scheduler::Independent), "bar.warp.sync 2;", 2);
    assert_eq!(report.kind, FailureKind::BadMask);
    let location = report.location.clone().unwrap();
    assert_eq!(
        (location.thread, location.text.as_str()),
        ([0, 0, 0], "bar.warp.sync 2;")
    );
}

#[test]
fn a_warp_operation_that_not_all_named_lanes_reach_is_a_deadlock() {
    let body = "setp.eq.u32 %p1, %t, 1; @%p1 bra $two; bar.warp.sync 3; bra $end; $two: vote.sync.any.pred %p2, %p1, 3; $end:";
    let report = failure(config(1, Scheduler::Independent), body, 2);
    assert_eq!(report.kind, FailureKind::Deadlock);
    assert_eq!(report.waiters.len(), 2);
    assert!(
        report.waiters[0]
            .waits_for
            .contains("waits for lanes 0x00000002 of member mask 0x00000003"),
        "{report}"
    );
}

#[test]
fn barriers_synchronise_the_block_and_reduce() {
    // Each thread reads what its neighbour wrote before the barrier.
    let body = "
        .shared .align 4 .b8 cells[1024];
        mov.u32 %r2, cells; shl.b32 %r3, %t, 2; add.u32 %r3, %r3, %r2; st.shared.u32 [%r3], %t;
        bar.sync 0;
        add.u32 %r4, %t, 1; rem.u32 %r4, %r4, 70; shl.b32 %r4, %r4, 2; add.u32 %r4, %r4, %r2; ld.shared.u32 %r1, [%r4];";
    let out = each(body, 70);
    assert!(
        out.iter()
            .enumerate()
            .all(|(i, v)| *v == (i as u64 + 1) % 70)
    );

    let reduce = |op: &str| each(&format!("setp.lt.u32 %p1, %t, 50; {op}"), 70);
    assert!(
        reduce("bar.red.popc.u32 %r1, 1, %p1;")
            .iter()
            .all(|v| *v == 50)
    );
    assert!(
        reduce("barrier.red.popc.u32 %r1, 1, !%p1;")
            .iter()
            .all(|v| *v == 20)
    );
    assert!(
        reduce("bar.red.and.pred %p2, 0, %p1; selp.u32 %r1, 1, 0, %p2;")
            .iter()
            .all(|v| *v == 0)
    );
    assert!(
        reduce("bar.red.or.pred %p2, 0, %p1; selp.u32 %r1, 1, 0, %p2;")
            .iter()
            .all(|v| *v == 1)
    );
    assert!(
        reduce("barrier.cta.sync.aligned 3; mov.u32 %r1, 5;")
            .iter()
            .all(|v| *v == 5)
    );
}

#[test]
fn producers_arrive_without_waiting_and_exited_threads_leave_barriers() {
    // Warp 1 arrives and goes on; warp 0 waits for both.
    let body = "
        .shared .align 4 .u32 cell;
        setp.ge.u32 %p1, %t, 32; @%p1 bra $produce;
        bar.sync 1, 64; ld.shared.u32 %r1, [cell]; bra $end;
        $produce: setp.eq.u32 %p2, %t, 32; @!%p2 bra $arrive; st.shared.u32 [cell], 77;
        $arrive: bar.warp.sync 0xffffffff; bar.arrive 1, 64; mov.u32 %r1, 1;
        $end:";
    let out = each(body, 64);
    assert!(out[..32].iter().all(|v| *v == 77) && out[32..].iter().all(|v| *v == 1));

    let exited = each(
        "setp.ge.u32 %p1, %t, 20; @%p1 exit; barrier.sync 0; mov.u32 %r1, 3;",
        40,
    );
    assert!(exited[..20].iter().all(|v| *v == 3) && exited[20..].iter().all(|v| *v == 0));
}

#[test]
fn divergent_and_contradictory_barriers_are_reported() {
    let two =
        "setp.eq.u32 %p1, %t, 1; @%p1 bra $two; bar.sync 0; bra $end; $two: bar.sync 0; $end:";
    let report = failure(config(1, Scheduler::Independent), two, 2);
    assert_eq!(report.kind, FailureKind::BarrierDivergence);
    assert!(
        report
            .detail
            .contains("of the same warp waits at barrier 0 at PTX line"),
        "{report}"
    );
    // The form that is not aligned allows it.
    let out = each(
        &two.replace("bar.sync", "barrier.sync")
            .replace("$end:", "$end: mov.u32 %r1, 1;"),
        2,
    );
    assert_eq!(out, [1, 1]);

    for (body, part) in [
        ("bar.sync 0, 33;", "whole warps"),
        ("mov.u32 %r1, 16; bar.sync %r1;", "no barrier 16"),
        (
            "setp.eq.u32 %p1, %t, 1; @%p1 bra $two; barrier.sync 0, 32; bra $end; $two: barrier.sync 0, 64; $end:",
            "this one for",
        ),
        (
            "setp.eq.u32 %p1, %t, 1; @%p1 bra $two; barrier.sync 0; bra $end; $two: barrier.red.popc.u32 %r1, 0, %p1; $end:",
            "another operation",
        ),
    ] {
        let report = failure(config(1, Scheduler::Independent), body, 2);
        assert_eq!(report.kind, FailureKind::BarrierDivergence, "{body}");
        assert!(report.detail.contains(part), "{report}");
    }
    // A thread that waits for a barrier nobody else comes to.
    let alone = "setp.eq.u32 %p1, %t, 1; @%p1 bra $two; barrier.sync 0; bra $end; $two: barrier.sync 1; $end:";
    let report = failure(config(1, Scheduler::Independent), alone, 2);
    assert_eq!(report.kind, FailureKind::Deadlock);
    assert!(
        report.waiters[0]
            .waits_for
            .contains("waits at barrier 0: 1 of 2 threads have arrived"),
        "{report}"
    );
}
