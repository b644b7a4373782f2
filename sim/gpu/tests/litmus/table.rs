//! The table of litmus tests in the docs.
//!
//! Knows: how results are written down.
//! Must not know: how they came about.

use std::fmt::Write as _;

use warpverbs_sim_gpu::Check;

use crate::devices;
use crate::rig::{self, Layout, Litmus, Shown};

/// Seeds of the committed table.
const FULL: u64 = 10_000;
const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/litmus.md");

const HEAD: &str = "\
# Litmus tests

Written by `WARPVERBS_LITMUS_SEEDS=10000 BLESS=1 cargo test --release -p warpverbs-sim-gpu --test litmus the_table`; `cargo test`
runs all of them with fewer seeds. X, Y, Z, H are locations that hold 0 at first (H in host memory), D is a doorbell register, `sh` is shared
memory; threads are separated by `‖`, and `a(n)` and `b(n)` are what thread n loaded into `%a` and `%b`; x, y, z what the
locations hold in the end. A count is the number of seeds of 10,000 that showed an outcome or gave a report; a forbidden outcome
that is seen even once, or a report that is not listed, fails the test.

";

/// A line, with its counts or without.
struct Table {
    text: String,
    counts: bool,
}

impl Table {
    fn count(&self, count: u64) -> String {
        if self.counts {
            count.to_string()
        } else {
            "n".into()
        }
    }

    fn program(&mut self, test: &Litmus, shown: &Shown) {
        let place = match test.layout {
            Layout::Blocks(1) => "blocks".into(),
            Layout::Blocks(threads) => format!("blocks of {threads}"),
            Layout::Warp => "one warp".into(),
            Layout::Warps => "warps".to_owned(),
        };
        let clean = |says: &str| {
            says.replace("o.", "")
                .replace("| ", "")
                .replace("||", "or")
                .replace("&&", "and")
        };
        let mut verdicts = Vec::new();
        for ((_, says), _) in test.forbidden.iter().zip(&shown.forbidden) {
            verdicts.push(format!("forbidden `{}`: 0", clean(says)));
        }
        for ((_, says), count) in test.seen.iter().zip(&shown.seen) {
            verdicts.push(format!("allowed `{}`: {}", clean(says), self.count(*count)));
        }
        for (fault, count) in test.faults.iter().zip(&shown.faults) {
            verdicts.push(format!("reported {fault}: {}", self.count(*count)));
        }
        if verdicts.is_empty() {
            verdicts.push("no report".into());
        }
        let _ = writeln!(
            self.text,
            "| {} | {place} | {} | {} |",
            test.name.trim(),
            code(&test.threads),
            verdicts.join("<br>")
        );
    }

    fn device(&mut self, name: &str, row: &devices::Row) {
        let check = match row.check {
            Check::Gpu => "gpu",
            _ => "strict",
        };
        let mut verdicts: Vec<String> = row
            .reports
            .iter()
            .map(|(kind, count)| format!("reported {kind}: {}", self.count(*count)))
            .collect();
        if verdicts.is_empty() {
            verdicts.push("no report".into());
        }
        if self.counts {
            verdicts.extend(
                row.outcomes
                    .iter()
                    .map(|(says, count)| format!("{says}: {count}")),
            );
        }
        let _ = writeln!(
            self.text,
            "| {} | {check} | {} | {} | {} |",
            name.replace('_', " "),
            code(&row.threads),
            row.does,
            verdicts.join("<br>")
        );
    }
}

fn code(threads: &[String]) -> String {
    let threads: Vec<String> = threads
        .iter()
        .map(|thread| {
            let thread = thread
                .replace(".global", "")
                .replace('|', "\\|")
                .replace("%t", "");
            format!("`{}`", thread.trim_end_matches(';'))
        })
        .collect();
    threads.join(" ‖ ")
}

/// Runs everything. What a run says without its counts is what is compared where fewer seeds are tried.
fn written() -> [String; 2] {
    let mut tables = [true, false].map(|counts| Table {
        text: HEAD.into(),
        counts,
    });
    for (heading, tests) in crate::all() {
        for table in &mut tables {
            let _ = writeln!(
                table.text,
                "## {heading}\n\n| Test | Threads are | Program | Outcomes |\n|---|---|---|---|"
            );
        }
        for test in &tests {
            let shown = rig::check(test).unwrap_or_else(|error| panic!("{error}"));
            tables
                .iter_mut()
                .for_each(|table| table.program(test, &shown));
        }
        tables.iter_mut().for_each(|table| table.text.push('\n'));
    }
    for table in &mut tables {
        let _ = writeln!(
            table.text,
            "## A device as observer\n\n| Test | Check | Program, each thread a block | Device | Reports and outcomes |\n|---|---|---|---|---|"
        );
    }
    for (name, test) in devices::ALL {
        test();
        for row in devices::shown() {
            tables.iter_mut().for_each(|table| table.device(name, &row));
        }
    }
    tables.map(|table| table.text)
}

/// A committed table without its counts, and without what a device's outcomes were.
fn without_counts(table: &str) -> String {
    let mut out = String::new();
    for line in table.lines() {
        let cells: Vec<&str> = line
            .split("<br>")
            .filter(|cell| !cell.starts_with("device ["))
            .collect();
        let cells: Vec<String> = cells
            .into_iter()
            .map(|cell| uncounted(cell.trim_end_matches(" |")))
            .collect();
        out += &cells.join("<br>");
        if line.ends_with(" |") {
            out += " |";
        }
        out.push('\n');
    }
    out
}

/// A cell that ends in a count, with a letter in its place; forbidden outcomes keep their 0.
fn uncounted(cell: &str) -> String {
    match cell.rsplit_once(": ") {
        Some((says, count)) if count.parse::<u64>().is_ok_and(|count| count > 0) => {
            format!("{says}: n")
        }
        _ => cell.to_owned(),
    }
}

pub(crate) fn check() {
    let [full, form] = written();
    let committed = std::fs::read_to_string(PATH).unwrap_or_default();
    if rig::seeds() != FULL {
        assert_eq!(without_counts(&committed), form, "docs/litmus.md is old");
    } else if std::env::var_os("BLESS").is_some() {
        std::fs::write(PATH, &full).unwrap();
        assert_eq!(without_counts(&full), form);
    } else {
        assert_eq!(
            committed, full,
            "docs/litmus.md is old: BLESS=1 rewrites it"
        );
    }
}
