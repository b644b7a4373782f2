//! Counts of the data path, compared with those that are kept: they do not drift up unnoticed.
//!
//! `BLESS=1 cargo test --test datapath` keeps what they are now; `cargo bench --bench datapath` prints them.

#[path = "../common/mod.rs"]
mod common;
mod figures;

const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/datapath/golden.txt");

#[test]
fn counts_are_those_that_are_kept_and_within_what_is_promised() {
    let figures = figures::all();
    let text = figures::text(&figures);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(KEPT, &text).unwrap();
    }
    let over: Vec<_> = figures
        .iter()
        .filter(|figure| figure.most.is_some_and(|most| figure.value > most + 1e-9))
        .map(|figure| format!("{}: {}", figure.name, figure.value))
        .collect();
    assert!(over.is_empty(), "{}", over.join("\n"));
    let kept = std::fs::read_to_string(KEPT).unwrap_or_default();
    assert!(
        text == kept,
        "counts have changed; BLESS=1 keeps them:\n{text}"
    );
}

/// docs/kernels.md lists every entry, and no other.
#[test]
fn the_kernels_that_are_listed_are_those_that_are_embedded() {
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/kernels.md")).unwrap();
    let listed: std::collections::BTreeSet<_> = text
        .lines()
        .skip_while(|line| *line != "## Registers")
        .filter_map(|line| line.strip_prefix("| `wv_")?.split('`').next())
        .collect();
    let embedded: std::collections::BTreeSet<_> = warpverbs::ptx::EMBEDDED[0]
        .text
        .lines()
        .filter_map(|line| line.split_once(".entry wv_")?.1.split('(').next())
        .collect();
    assert_eq!(listed, embedded);
}
