//! The table in docs/mutants.md.
//!
//! Knows: how it is written. Must not know: how changes are found.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::places::Kind;
use crate::survivors::SURVIVORS;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/mutants.md");
const HEAD: &str = "| kernel | change | made | found | by seed | not found |";

const UNREACHED: &str = "
## Places that no run executes

The compiler expands a wait for room in each post. An end of the latency kernel has no more than one message outstanding, and the
owner of a queue posts the DUMP (O14) when all its reads have completed, so that these posts always have room. And a post looks at the
host's stop word at a 64th index, which few DUMPs have: in some modes none of a run that is
stopped did here (the same source is found in every other post).

";

/// One change and what came of it.
pub(crate) struct Row {
    pub(crate) kernel: &'static str,
    pub(crate) kind: Kind,
    pub(crate) place: String,
    /// The seed that found it.
    pub(crate) seed: Option<u64>,
    pub(crate) reason: Option<&'static str>,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Table {
    rows: Vec<Row>,
    /// Places that no run executes, how often there is one of that name.
    unreached: BTreeMap<(&'static str, String), u32>,
}

impl Table {
    pub(crate) fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    pub(crate) fn add_unreached(&mut self, kernel: &'static str, place: String) {
        *self.unreached.entry((kernel, place)).or_default() += 1;
    }

    pub(crate) fn summary(&self) -> String {
        let found = self.rows.iter().filter(|row| row.seed.is_some()).count();
        let known = self
            .rows
            .iter()
            .filter(|row| row.seed.is_none() && row.reason.is_some())
            .count();
        format!(
            "{} changes, {found} found, {known} that are not, each for a reason below",
            self.rows.len()
        )
    }

    pub(crate) fn to_markdown(&self) -> String {
        let mut out = String::from(
            "# Mutations of the committed PTX\n\n\
             Written by `WARPVERBS_FULL=1 BLESS=1 cargo test --test mutants`. Each change is made to each place that a mode of a\n\
             kernel executes (sharing, doorbell and CQ form; runs that complete, are refused, are stopped by the host at work or in\n\
             each kind of wait, and lose packets), and run with at most 100 seeds under `strict`. Found: a report, a fault, wrong\n\
             bytes, a wrong record of an error, or a wrong number of doorbells. \"By seed\" is the largest number of seeds that\n\
             one of them took.\n\n",
        );
        let _ = writeln!(
            out,
            "{}\n\n{HEAD}\n|---|---|---|---|---|---|",
            self.summary()
        );
        let mut cells: BTreeMap<(&str, Kind), (u32, u32, u64, u32)> = BTreeMap::new();
        for row in &self.rows {
            let cell = cells.entry((row.kernel, row.kind)).or_default();
            cell.0 += 1;
            match row.seed {
                Some(seed) => {
                    cell.1 += 1;
                    cell.2 = cell.2.max(seed);
                }
                None => cell.3 += 1,
            }
        }
        for ((kernel, kind), (made, found, seed, rest)) in cells {
            let seed = if found > 0 {
                seed.to_string()
            } else {
                "-".into()
            };
            let _ = writeln!(
                out,
                "| `{kernel}` | {kind} | {made} | {found} | {seed} | {rest} |"
            );
        }
        out += "\n## Changes that are not found, and why\n";
        let mut reasons = BTreeMap::<&str, (u32, BTreeSet<(Kind, &str)>)>::new();
        for row in self.rows.iter().filter(|row| row.seed.is_none()) {
            let entry = reasons
                .entry(row.reason.unwrap_or("no reason is known"))
                .or_default();
            entry.0 += 1;
            entry.1.insert((row.kind, &row.place));
        }
        for (reason, (count, places)) in reasons {
            let _ = writeln!(out, "\n{reason}\n\n{count} changes:\n");
            for (kind, place) in places {
                let _ = writeln!(out, "- {kind}: `{place}`");
            }
        }
        out += UNREACHED;
        for ((kernel, place), count) in &self.unreached {
            let _ = writeln!(out, "- `{kernel}`: {count} of `{place}`");
        }
        out
    }
}

/// What is committed.
pub(crate) fn committed() -> String {
    std::fs::read_to_string(PATH).unwrap_or_default()
}

/// With `BLESS`, replaces what is committed.
pub(crate) fn bless(table: &str) {
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(PATH, table).unwrap();
    }
}

/// Compares with what is committed.
pub(crate) fn compare(table: &str) {
    assert_eq!(
        committed(),
        table,
        "docs/mutants.md is old: BLESS=1 rewrites it"
    );
}

/// The table names each kernel, each kind of change, and each reason that is still given.
pub(crate) fn check_form(table: &str) {
    assert!(
        table.contains(HEAD),
        "docs/mutants.md has another form: write it again"
    );
    for kernel in crate::modes::KERNELS {
        // One thread and one queue an end: nothing there is acquired or released by a word.
        let has = |kind: &Kind| *kind != Kind::Relaxed || kernel != "wv_write_lat";
        for kind in Kind::ALL.iter().filter(|kind| has(kind)) {
            assert!(
                table.contains(&format!("| `{kernel}` | {kind} |")),
                "no row for {kind} of {kernel}"
            );
        }
    }
    for survivor in SURVIVORS {
        assert!(
            table.contains(survivor.why),
            "a reason is not in docs/mutants.md: {}",
            survivor.why
        );
    }
    assert!(!table.contains("no reason is known"));
}
