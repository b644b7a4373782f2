//! The inputs that the fuzzer kept, and those that it begins with: each is run again, by any toolchain.

use std::path::PathBuf;

use crate::hostile;

/// A door, by the name of its fuzz target.
type Door = (&'static str, fn(&[u8]));

const DOORS: [Door; 3] = [
    ("mailboxes", hostile::mailboxes),
    ("queues", hostile::queues),
    ("frames", hostile::frames),
];

/// An action of a hostile program: its kind, and its bytes.
fn action(kind: u8, bytes: &[u8]) -> Vec<u8> {
    let mut all = vec![kind, bytes.len().div_ceil(4) as u8];
    all.extend(bytes);
    all.resize(2 + bytes.len().next_multiple_of(4), 0);
    all
}

/// Inputs that get far: what the tests do, as the doors' actions.
fn seeds(door: &str) -> Vec<Vec<u8>> {
    let all = |head: &[u8], actions: &[Vec<u8>]| [head.to_vec(), actions.concat()].concat();
    match door {
        "mailboxes" => {
            // A QP, number 1 of those known, to RTS; then each command once.
            let to_rts = [
                action(9, &[2]),
                action(12, &[1]),
                action(13, &[1, 1]),
                action(14, &[1]),
            ];
            let each: Vec<Vec<u8>> = (8..32).map(|kind| action(kind, &[1, 1])).collect();
            let mut seeds = vec![
                all(&[], &[to_rts.concat(), action(30, &[3])]),
                all(&[], &[to_rts.concat(), each.concat()]),
            ];
            for kind in 8..32 {
                seeds.push(all(
                    &[],
                    &[to_rts.concat(), action(kind, &[1, 1]), action(30, &[1])],
                ));
            }
            for command in 0..64 {
                seeds.push(all(&[], &[to_rts.concat(), action(31, &[command, 1])]));
            }
            // A byte of each of the first 64 of a transition changed.
            for at in (0..64u8).step_by(4) {
                seeds.push(all(
                    &[],
                    &[to_rts.concat(), action(13, &[1, 1, 1, at, 0, 0xff])],
                ));
            }
            seeds
        }
        "queues" => {
            let mut seeds = vec![];
            for mode in [0, 1, 2, 3, 0xe1] {
                let each: Vec<Vec<u8>> = (0..10u8)
                    .map(|opcode| {
                        let operands = [
                            opcode, 8, 0, 0, 0, 64, 0, 1, 0, 0, 64, 0, 0, 0, 0, 0, 64, 0, 1, 0, 0,
                            64,
                        ];
                        [
                            action(7, &[1, 1, 0, 4, 200, 0]),
                            action(3, &operands),
                            action(0x1e, &[]),
                        ]
                        .concat()
                    })
                    .collect();
                seeds.push(all(&[mode], &each));
                seeds.extend(
                    each.iter()
                        .map(|one| all(&[mode], std::slice::from_ref(one))),
                );
            }
            for opcode in [
                0x00, 0x08, 0x0a, 0x10, 0x11, 0x12, 0x14, 0x15, 0x23, 0x0f, 0x25,
            ] {
                let wqe = [
                    opcode, 8, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                ];
                seeds.push(all(&[1], &[action(1, &wqe), action(0x1e, &[])]));
            }
            for kind in [0, 8, 9, 10, 11, 12, 13] {
                seeds.push(all(
                    &[1],
                    &[action(0x10 | kind, &[1; 32]), action(0x1e, &[])],
                ));
            }
            seeds
        }
        _ => {
            let mut seeds = vec![];
            for mode in [0x00, 0x40, 0x7f] {
                for opcode in 0..=0x1eu8 {
                    // The PSN that is due, then the next.
                    let one = |ahead: u8| {
                        action(
                            0x0b,
                            &[opcode, 0x51, 8 + ahead, 64, 0, 16, 0, 0, 0, 0, 0, 1, 1],
                        )
                    };
                    seeds.push(all(&[mode], &[one(0), one(1), one(0)]));
                }
            }
            // Answers to each of the first packets that are outstanding.
            for (opcode, syndrome) in [
                (0x0d, 0x1f),
                (0x0f, 0x1f),
                (0x10, 0x1f),
                (0x11, 0x1f),
                (0x11, 0x60),
                (0x11, 0x61),
                (0x11, 0x62),
                (0x11, 0x2c),
                (0x12, 0x1f),
            ] {
                for ahead in 0..9 {
                    let answer = [opcode, 0x41, 8 + ahead, 0, 0, 0, 0, syndrome];
                    seeds.push(all(&[0x4f], &[action(0xfb, &answer)]));
                }
            }
            seeds.push(all(&[0x40], &[action(8, &[2, 0, 0, 0, 0, 1])]));
            seeds
        }
    }
}

/// Where the fuzzer keeps its inputs; `None` outside the repository.
fn corpus(door: &str) -> Option<PathBuf> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    root.exists().then(|| root.join("corpus").join(door))
}

#[test]
fn what_the_fuzzer_begins_with_and_what_it_kept_is_harmless() {
    for (door, run) in DOORS {
        let seeds = seeds(door);
        seeds.iter().for_each(|seed| run(seed));
        let Some(folder) = corpus(door) else {
            eprintln!("SKIPPED: no corpus beside this crate");
            continue;
        };
        let mut kept = 0;
        let entries = std::fs::read_dir(&folder)
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        for entry in entries {
            let path = entry.unwrap().path();
            eprintln!("{}", path.display());
            run(&std::fs::read(&path).unwrap());
            kept += 1;
        }
        assert!(kept > 0, "{} is empty", folder.display());
        println!("{door}: {} seeds, {kept} inputs of the corpus", seeds.len());
    }
}

/// Writes the seeds for the fuzzer: `HOSTILE_SEEDS=FOLDER cargo test -p warpverbs-sim-nic --test nic write_the_seeds -- --ignored`.
#[test]
#[ignore = "writes files for ci/fuzz"]
fn write_the_seeds() {
    let folder = PathBuf::from(std::env::var_os("HOSTILE_SEEDS").expect("HOSTILE_SEEDS: a folder"));
    for (door, _) in DOORS {
        let folder = folder.join(door);
        std::fs::create_dir_all(&folder).unwrap();
        for (n, seed) in seeds(door).into_iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{n:03}")), seed).unwrap();
        }
    }
}
