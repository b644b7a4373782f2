//! docs/hardware-facts.md names tests that exist.

use std::path::Path;

#[test]
fn every_test_that_the_table_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = match std::fs::read_to_string(root.join("../../docs/hardware-facts.md")) {
        Ok(table) => table,
        // The package holds this crate alone.
        Err(error) if !root.join("../../docs").exists() => {
            eprintln!("SKIPPED: no docs beside this crate: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let mut named = 0;
    for line in table.lines().filter(|line| line.starts_with('|')) {
        for name in line.split('`').filter(|part| part.contains("::")) {
            let (path, test) = name.split_once("::").unwrap();
            let file = match path.split_once(' ') {
                Some(("unit", module)) => root.join(format!("{module}.rs")),
                Some(("wire", module)) => root.join(format!("../../wire/tests/{module}.rs")),
                _ => root.join(format!("tests/nic/{path}.rs")),
            };
            let source =
                std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(
                source.contains(&format!("fn {test}(")),
                "{name} is not in {}",
                file.display()
            );
            named += 1;
        }
    }
    assert!(
        named > 30,
        "only {named} tests are named: was the table's form changed?"
    );
}
