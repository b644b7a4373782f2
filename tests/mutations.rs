//! Kernels that are broken at random: whatever happens is reported, nothing panics and nothing leaks.

mod common;

use std::time::Duration;

use common::{Options, embedded_ptx};
use warpverbs::Sharing;

/// A line of `wv_write_bw` that does something, by a number.
fn pick(number: u64) -> usize {
    let mut inside = false;
    let instructions: Vec<usize> = embedded_ptx()
        .lines()
        .enumerate()
        .filter(|(_, line)| {
            if line.contains(".entry") {
                inside = line.contains("wv_write_bw(");
            }
            inside && line.trim_end().ends_with(';') && !line.trim_start().starts_with('.')
        })
        .map(|(at, _)| at)
        .collect();
    instructions[number as usize % instructions.len()]
}

/// The module with one line changed.
fn mutate(seed: u64) -> String {
    // A multiplier that spreads consecutive seeds.
    let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8;
    let at = pick(random);
    let line = embedded_ptx().lines().nth(at).unwrap();
    let changed = match seed % 4 {
        0 => String::new(),
        1 => format!("{line}\n{line}"),
        // Another register, another offset, another constant: whichever digit comes first from the end.
        2 => {
            let mut bytes = line.as_bytes().to_vec();
            if let Some(digit) = bytes.iter_mut().rev().find(|byte| byte.is_ascii_digit()) {
                *digit = b'0' + (*digit - b'0' + 1) % 10;
            }
            String::from_utf8(bytes).unwrap()
        }
        // The two last operands change places.
        _ => match line.trim_end_matches(';').rsplit_once(", ") {
            Some((head, last)) => match head.rsplit_once(", ") {
                Some((head, other)) => format!("{head}, {last}, {other};"),
                None => format!("{head};"),
            },
            None => line.replacen(' ', " @!%p1 ", 1),
        },
    };
    let lines: Vec<&str> = embedded_ptx()
        .lines()
        .enumerate()
        .map(|(number, line)| if number == at { changed.as_str() } else { line })
        .collect();
    lines.join("\n")
}

#[test]
fn broken_kernels_are_reported() {
    let (mut refused, mut failed, mut passed) = (0, 0, 0);
    for seed in 0..120 {
        let shared = seed % 2 == 0;
        let options = Options {
            seed,
            ptx: Some(mutate(seed)),
            sharing: if shared {
                Sharing::Gpu
            } else {
                Sharing::Exclusive
            },
            threads: if shared { 4 } else { 1 },
            iters: 10,
            wait_deadline: Duration::from_micros(200),
            step_budget: Some(1 << 20),
            ..Options::default()
        };
        match options.run() {
            Err(_) => refused += 1,
            Ok(outcome) => {
                assert_eq!(outcome.live, [""; 0], "seed {seed}");
                if outcome.complaint().is_empty() && outcome.verified {
                    passed += 1;
                } else {
                    failed += 1;
                }
            }
        }
    }
    // Each kind comes up, or the mutations are of no use. Many lines belong to other modes.
    assert!(
        refused > 0 && failed > 0 && passed > 0,
        "{refused} {failed} {passed}"
    );
}
