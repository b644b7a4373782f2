//! Any control flow that does not wait ends under both schedulers with the same result.

mod support;

use std::fmt::Write as _;

use proptest::prelude::*;
use support::{config, run_with};
use warpverbs_sim_gpu::Scheduler;

/// A block of a random flow graph: mixes its number into the accumulator, may leave, then branches on one of its bits.
#[derive(Clone, Debug)]
struct Node {
    bit: u32,
    taken: usize,
    other: usize,
    /// How it leaves when the fuel is used up.
    leave: Leave,
}

#[derive(Clone, Copy, Debug)]
enum Leave {
    /// `@p exit`
    Exit,
    /// `@p ret`
    Ret,
    /// `@p bra` to the end of the body.
    Jump,
}

const THREADS: u32 = 40;

fn graph() -> impl Strategy<Value = (Vec<Node>, u32)> {
    (2usize..9).prop_flat_map(|n| {
        let leave = prop_oneof![Just(Leave::Exit), Just(Leave::Ret), Just(Leave::Jump)];
        let node = (0u32..16, 0..n, 0..n, leave).prop_map(|(bit, taken, other, leave)| Node {
            bit,
            taken,
            other,
            leave,
        });
        (prop::collection::vec(node, n), 1u32..40)
    })
}

fn ptx(nodes: &[Node], fuel: u32) -> String {
    let mut body = format!(
        "mul.wide.u32 %rd1, %t, 8; add.u64 %rd1, %rd1, %out;\n\
         mov.u32 %r1, %t; rem.u32 %r9, %t, 7; add.u32 %r2, %r9, {fuel};\n"
    );
    for (i, node) in nodes.iter().enumerate() {
        let leave = match node.leave {
            Leave::Exit => "exit",
            Leave::Ret => "ret",
            Leave::Jump => "bra $end",
        };
        let next = if node.other == i + 1 {
            String::new()
        } else {
            format!("bra $n{};", node.other)
        };
        writeln!(
            body,
            "$n{i}: mad.lo.u32 %r1, %r1, 1664525, {i}; add.u32 %r1, %r1, 1013904223; sub.u32 %r2, %r2, 1;\n\
             cvt.u64.u32 %rd2, %r1; st.global.u64 [%rd1], %rd2; setp.eq.u32 %p1, %r2, 0; @%p1 {leave};\n\
             shr.u32 %r3, %r1, {}; and.b32 %r3, %r3, 1; setp.ne.u32 %p2, %r3, 0; @%p2 bra $n{}; {next}",
            node.bit + 8,
            node.taken
        )
        .unwrap();
    }
    // The last block may fall through to here.
    body.push_str("$end:\n");
    body
}

fn expected(nodes: &[Node], fuel: u32) -> Vec<u64> {
    (0..THREADS)
        .map(|t| {
            let (mut acc, mut fuel, mut at) = (t, t % 7 + fuel, 0);
            while let Some(node) = nodes.get(at) {
                acc = acc
                    .wrapping_mul(1_664_525)
                    .wrapping_add(at as u32)
                    .wrapping_add(1_013_904_223);
                fuel -= 1;
                if fuel == 0 {
                    break;
                }
                at = if acc >> (node.bit + 8) & 1 == 1 {
                    node.taken
                } else {
                    node.other
                };
            }
            acc.into()
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn random_flow_ends_the_same_way((nodes, fuel) in graph(), seed in any::<u64>()) {
        let body = ptx(&nodes, fuel);
        let want = expected(&nodes, fuel);
        for scheduler in [Scheduler::Independent, Scheduler::Converge] {
            let got = run_with(config(seed, scheduler), &body, THREADS, &[0], THREADS as usize);
            prop_assert_eq!(got.as_ref().map_err(|e| e.to_string()), Ok(&want), "{:?}\n{}", scheduler, body);
        }
    }
}
