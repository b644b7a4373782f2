//! Counts of the data path, compared with those that are kept: they do not drift up unnoticed.
//!
//! `BLESS=1 cargo test --test datapath` keeps what they are now; `cargo bench --bench datapath` prints them.

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
