//! Random verbs sequences against a small model of reliable connections, over wires that lose, repeat, delay and reorder.
//!
//! A case is a setup and a list of actions; both shrink, and a failing one is kept by proptest and replayed. `MODEL_CASES` says how many
//! cases each test runs. The reference (`reference.rs`) knows requests and memories alone; `judge.rs` says which outcomes losses and
//! errors of the other direction leave open.

mod judge;
mod reference;
#[allow(dead_code)]
#[path = "../nic/rig.rs"]
mod rig;
mod world;

use proptest::collection::vec;
use proptest::prelude::*;
use warpverbs_sim_nic::CablePlan;

use reference::{Kind, LocalKey, Receive, RemoteKey, Request, Rules};
use world::{LANDING, LOCAL, Setup, TARGET, World};

/// One thing that a program does. Numbers are any; they are brought into range when it is done.
#[derive(Clone, Debug)]
enum Action {
    Post {
        which: u8,
        kind: u8,
        pieces: Vec<(u16, u16)>,
        remote: u16,
        flags: u8,
        operand: u8,
        trouble: u16,
    },
    Receive {
        which: u8,
        pieces: Vec<(u16, u16)>,
        trouble: u16,
    },
    Ring(u8),
    Run(u16),
    ToError(u8),
    Reset(u8),
}

fn action() -> impl Strategy<Value = Action> {
    let pieces = || {
        vec(
            (any::<u16>(), prop_oneof![3 => 1u16..300, 1 => 0u16..2600]),
            0..4,
        )
    };
    prop_oneof![
        24 => (any::<u8>(), any::<u8>(), pieces(), any::<u16>(), any::<u8>(), 0u8..4, any::<u16>()).prop_map(
            |(which, kind, pieces, remote, flags, operand, trouble)| Action::Post {
                which, kind, pieces, remote, flags, operand, trouble,
            }
        ),
        10 => (any::<u8>(), pieces(), any::<u16>()).prop_map(|(which, pieces, trouble)| Action::Receive { which, pieces, trouble }),
        6 => any::<u8>().prop_map(Action::Ring),
        6 => (0u16..400).prop_map(Action::Run),
        1 => any::<u8>().prop_map(Action::ToError),
        1 => any::<u8>().prop_map(Action::Reset),
    ]
}

fn plan() -> impl Strategy<Value = CablePlan> {
    let all = CablePlan {
        loss_ppm: 30_000,
        duplicate_ppm: 30_000,
        reorder_ppm: 50_000,
        reorder_ns: 3_000,
        delay_ns: 1_000,
        ..CablePlan::default()
    };
    let loss = CablePlan {
        loss_ppm: 60_000,
        ..CablePlan::default()
    };
    let order = CablePlan {
        loss_ppm: 0,
        ..all.clone()
    };
    prop_oneof![
        Just(CablePlan::default()),
        Just(loss),
        Just(order),
        Just(all)
    ]
}

fn setup() -> impl Strategy<Value = Setup> {
    let first_index = prop_oneof![
        Just(0u64),
        (1u64 << 16) - 40..(1 << 16),
        (1u64 << 32) - 40..(1 << 32)
    ];
    let rules = (
        prop_oneof![Just(256usize), Just(1024), Just(4096)],
        vec(prop::bool::weighted(0.97), 3),
    )
        .prop_map(|(mtu, allowed)| Rules {
            mtu,
            writes: allowed[0],
            reads: allowed[1],
            atomics: allowed[2],
        });
    (
        plan(),
        any::<u64>(),
        first_index,
        1usize..4,
        rules,
        0u8..4,
        prop::bool::weighted(0.7),
    )
        .prop_map(
            |(plan, seed, first_index, qps, rules, log_reads, late)| Setup {
                plan,
                seed,
                first_index,
                qps,
                rules,
                log_reads,
                late,
            },
        )
}

/// Of masked atomics: what is compared, or where fields end; what is swapped.
const MASKS: [(u64, u64); 4] = [
    (0, 0xff00_ff00_ff00_ff00),
    (0x8080_8080, 0xffff_ffff),
    (!0, !0),
    (0x0000_0001, 0),
];

/// A WRITE or a SEND whose data is in its WQE.
fn inlined(remote: u16, operand: u8, trouble: u16) -> Request {
    let len = usize::from(trouble) % 200;
    Request {
        kind: if operand & 1 == 0 {
            Kind::Write
        } else {
            Kind::Send
        },
        local: vec![],
        local_key: LocalKey::Good,
        inline: Some(rig::pattern(len, operand)),
        remote: usize::from(remote) % (TARGET - len),
        remote_key: RemoteKey::Good,
        immediate: 0,
        operands: (0, 0),
        masks: (0, 0),
    }
}

/// A request out of any numbers. `level` of 65536 have something wrong.
fn request(action: &Action, level: u32) -> Request {
    let Action::Post {
        kind,
        pieces,
        remote,
        operand,
        trouble,
        ..
    } = action
    else {
        unreachable!("only posts are requests");
    };
    let kind = match kind % 20 {
        0..4 => Kind::Write,
        4..7 => Kind::Read,
        7..9 => Kind::Send,
        9 => Kind::SendImmediate,
        10 => Kind::WriteImmediate,
        11 | 12 => Kind::FetchAdd,
        13 => Kind::CompareSwap,
        14 => Kind::Nop,
        15 => Kind::SendInvalidate,
        16 => Kind::MaskedCompareSwap,
        17 => Kind::MaskedFetchAdd,
        18 => Kind::Dump,
        _ => return inlined(*remote, *operand, *trouble),
    };
    let word = match kind {
        Kind::CompareSwap | Kind::FetchAdd | Kind::MaskedCompareSwap => 8,
        Kind::MaskedFetchAdd => 4,
        _ => 0,
    };
    let mut local: Vec<_> = pieces
        .iter()
        .filter(|(_, len)| *len > 0)
        .map(|(at, len)| {
            let len = usize::from(*len);
            let start = usize::from(*at) % (LOCAL - len);
            start..start + len
        })
        .collect();
    if word > 0 {
        let start = usize::from(*remote >> 3) % (LOCAL - 8);
        local = std::iter::once(start..start + word).collect();
    }
    let kind = match kind {
        // A DUMP has one piece.
        Kind::Dump if local.is_empty() => Kind::Nop,
        kind => kind,
    };
    if kind == Kind::Dump {
        local.truncate(1);
    }
    if kind == Kind::Nop {
        local.clear();
    }
    let len: usize = local.iter().map(ExactSizeIterator::len).sum();
    let remote = match word {
        // Few words, so that they meet.
        1.. => usize::from(remote % 4) * 8,
        0 => usize::from(*remote) % (TARGET - len.min(TARGET - 1)),
    };
    let mut request = Request {
        kind,
        local,
        local_key: LocalKey::Good,
        inline: None,
        remote,
        remote_key: if operand & 1 == 0 {
            RemoteKey::Good
        } else {
            RemoteKey::Extra
        },
        immediate: 0x1234_0000 | u32::from(*trouble),
        operands: (u64::from(*operand), u64::from(operand / 2)),
        masks: MASKS[usize::from(*operand) % 4],
    };
    // A key that a SEND has invalidated is one more thing that is wrong.
    if u32::from(*trouble).wrapping_mul(40503) % 65536 >= level * 4 {
        request.remote_key = RemoteKey::Good;
    }
    if u32::from(*trouble) < level {
        match trouble % 7 {
            0 => request.local_key = LocalKey::Wrong,
            1 => request.local_key = LocalKey::ReadOnly,
            2 => request.remote_key = RemoteKey::Wrong,
            3 => request.remote_key = RemoteKey::ReadOnly,
            4 => request.kind = Kind::Malformed,
            // Its last byte at least is outside; a word stays aligned.
            5 => request.remote = TARGET + LANDING - request.len() / 16 * 8,
            _ => request.remote += 1,
        }
    }
    request
}

fn receive(pieces: &[(u16, u16)], trouble: u16, level: u32) -> Receive {
    let wrong = u32::from(trouble) < level * 2;
    let mut ranges: Vec<_> = pieces
        .iter()
        .filter(|(_, len)| *len > 0)
        .map(|(at, len)| {
            let len = usize::from(*len);
            let start = TARGET + usize::from(*at) % (LANDING - len);
            start..start + len
        })
        .collect();
    // Room for any message, unless there is to be trouble.
    if !wrong || trouble & 1 == 0 {
        ranges.truncate(3);
        ranges.push(TARGET..TARGET + LANDING);
    }
    Receive {
        pieces: ranges,
        wrong_key: wrong && trouble & 1 == 0,
    }
}

fn run(setup: Setup, actions: &[Action], level: u32) -> Result<(), TestCaseError> {
    let (qps, late) = (setup.qps, setup.late);
    let Rules {
        writes,
        reads,
        atomics,
        ..
    } = setup.rules;
    let undisturbed = setup.plan == CablePlan::default() && level == 0 && late;
    let undisturbed = undisturbed && writes && reads && atomics;
    let of = |which: u8| (usize::from(which) / 2 % qps, usize::from(which) % 2);
    let mut world = World::new(setup);
    let fail = TestCaseError::fail;
    // Receives that must not be late are there before a connection's first request.
    let early = |world: &mut World, from: usize, q: usize| {
        for action in &actions[from..] {
            match action {
                Action::Receive {
                    which,
                    pieces,
                    trouble,
                } if of(*which).0 == q => {
                    world.receive(q, of(*which).1, receive(pieces, *trouble, level));
                }
                Action::Reset(which) if of(*which).0 == q => return,
                _ => {}
            }
        }
    };
    if !late {
        (0..qps).for_each(|q| early(&mut world, 0, q));
    }
    for (at, action) in actions.iter().enumerate() {
        match action {
            Action::Post { which, flags, .. } => {
                let (q, side) = of(*which);
                world.post(q, side, request(action, level), *flags);
            }
            Action::Receive {
                which,
                pieces,
                trouble,
            } => {
                if late {
                    let (q, side) = of(*which);
                    world.receive(q, side, receive(pieces, *trouble, level));
                }
            }
            Action::Ring(which) => {
                let (q, side) = of(*which);
                world.ring(q, side);
            }
            Action::Run(steps) => world.run(u64::from(*steps)),
            Action::ToError(which) => {
                if level > 0 {
                    let (q, side) = of(*which);
                    world.break_off(q, side);
                }
            }
            Action::Reset(which) => {
                let (q, _) = of(*which);
                world.reset(q).map_err(fail)?;
                if !late {
                    early(&mut world, at + 1, q);
                }
            }
        }
    }
    world.finish().map_err(fail)?;
    // Nothing was lost and nobody refused: everything was answered at once.
    prop_assert!(!undisturbed || world.timeouts() == 0, "timeouts");
    Ok(())
}

fn cases() -> ProptestConfig {
    let cases = std::env::var("MODEL_CASES")
        .ok()
        .and_then(|text| text.parse().ok());
    ProptestConfig::with_cases(cases.unwrap_or(1000))
}

proptest! {
    #![proptest_config(cases())]

    /// Nothing is wrong: all is executed, whatever the wire does.
    #[test]
    fn what_can_be_executed_is_in_order_and_exactly_once(
        mut setup in setup(),
        actions in vec(action(), 1..90),
    ) {
        setup.rules = Rules { writes: true, reads: true, atomics: true, ..setup.rules };
        setup.late = true;
        run(setup, &actions, 0)?;
    }

    /// A request in so many is wrong, receives may be missing, QPs are taken to ERR and reset.
    #[test]
    fn the_first_that_cannot_be_executed_ends_its_queue(
        setup in setup(),
        actions in vec(action(), 1..90),
        level in prop_oneof![Just(0u32), Just(700), Just(4000)],
    ) {
        run(setup, &actions, level)?;
    }
}
