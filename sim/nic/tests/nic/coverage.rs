//! docs/nic-coverage.md: every command, opcode, variant, syndrome, event, packet, finding and fault, with a test of it.
//!
//! The list of what there is comes from the enumerations themselves; which test exercises what is seen in a run of all tests
//! whose NICs say what they did. So an item without a test fails here, and no test is named that does not do it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use warpverbs_sim_nic::{Check, FindingKind, InjectedFault};
use warpverbs_wire::cqe::{CqeOpcode, Syndrome};
use warpverbs_wire::eqe::EventType;
use warpverbs_wire::fields;
use warpverbs_wire::roce;
use warpverbs_wire::wqe::{CompletionMode, FenceMode, Opcode};

use crate::rig::exercised::{
    NOTES, command, completion_mode, cqe, event, executed, fault, fence, fetched, finding, refusal,
    sent, syndrome, variant,
};

/// Tests that are not looked at: what they do differs from run to run.
const SKIPPED: [&str; 5] = [
    "coverage::",
    "properties::",
    "semantics::",
    "sockets::",
    "background::",
];

/// Which tests exercise an item.
struct Seen {
    /// By item: the tests, the one that exercises least else first.
    tests: BTreeMap<String, Vec<String>>,
}

impl Seen {
    /// Runs all tests again and reads what they noted.
    fn run() -> Self {
        let directory = std::env::temp_dir().join(format!("nic-coverage-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let mut tests = Command::new(std::env::current_exe().unwrap());
        for skipped in SKIPPED {
            tests.args(["--skip", skipped]);
        }
        // A name for each test's thread needs more than one.
        let output = tests
            .args(["--quiet", "--test-threads=2"])
            .env(NOTES, &directory)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "the tests fail: {}",
            String::from_utf8_lossy(&output.stdout)
        );
        let mut by_test: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for entry in std::fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path
                .file_name()
                .unwrap()
                .to_string_lossy()
                .replace('.', "::");
            let items = std::fs::read_to_string(&path).unwrap();
            by_test.insert(name, items.lines().map(str::to_owned).collect());
        }
        std::fs::remove_dir_all(&directory).unwrap();
        let mut order: Vec<_> = by_test.iter().collect();
        order.sort_by_key(|(name, items)| (items.len(), *name));
        let mut tests: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, items) in order {
            for item in items {
                tests.entry(item.clone()).or_default().push(name.clone());
            }
        }
        Self { tests }
    }

    /// The test that is shown for an item: the one that `committed` shows, if it still is one.
    fn show(&self, item: &str, row: &str, committed: &str) -> Option<String> {
        let tests = self.tests.get(item)?;
        let kept = tests.iter().find(|test| {
            committed
                .lines()
                .any(|line| line == format!("| {row} | `{test}` |"))
        });
        Some(format!("`{}`", kept.or(tests.first())?))
    }
}

/// The document, and what has no test.
struct Table<'a> {
    seen: &'a Seen,
    committed: &'a str,
    text: String,
    missing: Vec<String>,
}

impl Table<'_> {
    fn section(&mut self, title: &str, intro: &str, columns: &str) {
        let rule: String = columns.matches('|').skip(1).map(|_| "---|").collect();
        write!(self.text, "\n## {title}\n\n").unwrap();
        if !intro.is_empty() {
            write!(self.text, "{intro}\n\n").unwrap();
        }
        write!(self.text, "{columns}\n|{rule}\n").unwrap();
    }

    /// A row that needs a test.
    fn row(&mut self, cells: &str, item: &str) {
        let shown = self.seen.show(item, cells, self.committed);
        let shown = shown.unwrap_or_else(|| {
            self.missing.push(item.to_owned());
            String::new()
        });
        writeln!(self.text, "| {cells} | {shown} |").unwrap();
    }

    /// A row of what the NIC does not do, which says so; if a test exercises it after all, that is wrong.
    fn absent(&mut self, cells: &str, item: &str, why: &str) {
        if self.seen.tests.contains_key(item) {
            self.missing
                .push(format!("{item}, which is listed as absent"));
        }
        writeln!(self.text, "| {cells} | {why} |").unwrap();
    }
}

fn named<T>(codes: impl Iterator<Item = T>, is_named: impl Fn(&T) -> bool) -> Vec<T> {
    codes.filter(|value| is_named(value)).collect()
}

const INTRO: &str = "\
# What the simulated NIC does, with a test of each

Written by `BLESS=1 cargo test -p warpverbs-sim-nic --test nic coverage`: the lists are the code's own enumerations, and the
tests are those of `sim/nic/tests/nic` (`module::test`) whose NICs were seen to do it. Of several that one was chosen that does
least else. Property tests, which do something else each time, are not counted.
";

fn table(seen: &Seen, committed: &str) -> (String, Vec<String>) {
    let mut table = Table {
        seen,
        committed,
        text: INTRO.to_owned(),
        missing: vec![],
    };
    table.section("Commands", "", "| command | opcode | executed by |");
    for (name, opcode) in fields::commands() {
        let cells = format!("{name} | {opcode:#05x}");
        match *name {
            "SQERR2RTS_QP" => table.absent(&cells, &command(*opcode), "always refused: see below"),
            _ => table.row(&cells, &command(*opcode)),
        }
    }
    table.section(
        "Refusals",
        "Every check of a command. The syndromes are this NIC's own.",
        "| syndrome | status | must hold | source | refused by |",
    );
    let mut checks = Check::ALL.to_vec();
    checks.sort_by_key(|check| check.syndrome());
    for check in checks {
        let cells = format!(
            "{:#08x} | {:#04x} {:?} | {} | {}",
            check.syndrome(),
            check.status().code(),
            check.status(),
            check.text(),
            check.source()
        );
        table.row(&cells, &refusal(check.syndrome()));
    }
    table.section("Opcodes of WQEs", "", "| opcode | code | executed by |");
    let opcodes = named((0..=255).map(Opcode::from_code), |opcode| {
        !matches!(opcode, Opcode::Unknown(_))
    });
    for opcode in &opcodes {
        let cells = format!("{opcode:?} | {:#04x}", opcode.code());
        if opcode.is_supported() {
            table.row(&cells, &executed(*opcode));
        } else {
            table.absent(&cells, &executed(*opcode), "refused: 0x02, vendor 0x68");
            table.row(&format!("{cells}, refused"), &fetched(*opcode));
        }
    }
    table.section(
        "Variants of WQEs",
        "Opmods of masked atomics are their operand sizes.",
        "| variant | fetched by |",
    );
    for opcode in opcodes.iter().filter(|opcode| opcode.is_atomic()) {
        let opmods: &[u8] = match opcode {
            Opcode::AtomicMaskedCompareSwap | Opcode::AtomicMaskedFetchAdd => &[8, 9],
            _ => &[0],
        };
        for opmod in opmods {
            table.row(
                &format!("{opcode:?}, opmod {opmod}"),
                &variant(*opcode, *opmod),
            );
        }
    }
    for mode in (0..=7).map(FenceMode::from_code) {
        table.row(&format!("fence mode {mode:?}"), &fence(mode));
    }
    for mode in (0..=3).map(CompletionMode::from_code) {
        table.row(&format!("completion mode {mode:?}"), &completion_mode(mode));
    }
    table.section("CQEs", "", "| opcode | code | written by |");
    let opcodes = named((0..=15).map(CqeOpcode::from_code), |opcode| {
        !matches!(opcode, CqeOpcode::Unknown(_))
    });
    for opcode in opcodes {
        let cells = format!("{opcode:?} | {:#03x}", opcode.code());
        let why = match opcode {
            CqeOpcode::Resize => "never: CQs are not resized",
            CqeOpcode::NoPacket => "never: not modelled",
            CqeOpcode::SignatureError => "never: data signatures are not modelled",
            CqeOpcode::Invalid => "never: software's",
            _ => {
                table.row(&cells, &cqe(opcode));
                continue;
            }
        };
        table.absent(&cells, &cqe(opcode), why);
    }
    table.section(
        "Syndromes of CQEs",
        "With the vendor syndromes that come by themselves. Others are only planted.",
        "| syndrome | code | vendor | written by |",
    );
    let natural: [(Syndrome, &[u8]); 10] = [
        (Syndrome::LocalLength, &[0]),
        (Syndrome::LocalQpOperation, &[0x68]),
        (Syndrome::LocalProtection, &[0x52]),
        (Syndrome::Flushed, &[0xf5, 0xf9]),
        (Syndrome::BadResponse, &[0]),
        (Syndrome::RemoteInvalidRequest, &[0x8a]),
        (Syndrome::RemoteAccess, &[0x88]),
        (Syndrome::RemoteOperation, &[0]),
        (Syndrome::TransportRetryExceeded, &[0x81]),
        (Syndrome::RnrRetryExceeded, &[0]),
    ];
    for code in 0..=255u8 {
        let of = Syndrome::from_code(code);
        if let Some((_, vendors)) = natural.iter().find(|(natural, _)| *natural == of) {
            for vendor in *vendors {
                let cells = format!("{of:?} | {code:#04x} | {vendor:#04x}");
                table.row(&cells, &syndrome(code, *vendor));
            }
        } else if !matches!(of, Syndrome::Unknown(_)) {
            // Planted by `any_syndrome_is_planted_at_any_wqe`, with this vendor syndrome.
            let cells = format!("{of:?} | {code:#04x} | planted");
            table.row(&cells, &syndrome(code, !code));
        }
    }
    table.section("Events", "", "| event | code | raised by |");
    for of in named((0..=255).map(EventType::from_code), |of| {
        !matches!(of, EventType::Unknown(_))
    }) {
        let cells = format!("{of:?} | {:#04x}", of.code());
        let why = match of {
            EventType::PathMigrated | EventType::PathMigrationFailed => {
                "never: path migration is not modelled"
            }
            EventType::SendQueueDrained => "never: state SQD is not modelled",
            _ => {
                table.row(&cells, &event(of));
                continue;
            }
        };
        table.absent(&cells, &event(of), why);
    }
    table.section("Packets", "", "| packet | opcode | sent by |");
    for opcode in named((0..=255).map(roce::Opcode::from_code), |opcode| {
        !matches!(opcode, roce::Opcode::Unknown(_))
    }) {
        let cells = format!("{opcode:?} | {:#04x}", opcode.code());
        match opcode {
            roce::Opcode::CongestionNotification => table.absent(
                &cells,
                &sent(opcode),
                "never: congestion control is not modelled",
            ),
            _ => table.row(&cells, &sent(opcode)),
        }
    }
    table.section("Findings", "", "| finding | found by |");
    for name in FindingKind::NAMES {
        table.row(&format!("`{name}`"), &finding(name));
    }
    table.section("Faults", "", "| fault | planted by |");
    for name in InjectedFault::NAMES {
        table.row(&format!("`{name}`"), &fault(name));
    }
    (table.text, table.missing)
}

#[test]
fn every_item_has_a_test_and_the_table_says_which() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/nic-coverage.md");
    let seen = Seen::run();
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let (text, missing) = table(&seen, &committed);
    assert!(missing.is_empty(), "no test of {missing:#?}");
    if !path.parent().is_some_and(Path::exists) {
        eprintln!("SKIPPED: no docs beside this crate");
        return;
    }
    if std::env::var_os("BLESS").is_some_and(|bless| bless == "1") {
        std::fs::write(&path, &text).unwrap();
        return;
    }
    assert!(
        committed == text,
        "docs/nic-coverage.md is not what the tests do: BLESS=1 rewrites it"
    );
}
