//! The drawings of docs/lifecycle.md are what the code's tables say. `WARPVERBS_BLESS=1 cargo test --test drawings` draws
//! them again.

mod graph;
mod stages;

use std::fs;
use std::path::Path;

/// Compares a drawing with the committed one, or commits it.
fn check(name: &str, drawn: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("docs")
        .join(name);
    if std::env::var_os("WARPVERBS_BLESS").is_some() {
        fs::write(&path, drawn).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == drawn,
        "docs/{name} is not what the tables say; draw it again with WARPVERBS_BLESS=1"
    );
}

#[test]
fn the_dependencies_are_drawn_as_they_are() {
    check("dependencies.svg", &graph::draw());
}

#[test]
fn the_stages_are_drawn_as_they_are() {
    check("stages.svg", &stages::draw());
}

#[test]
fn every_kind_and_every_stage_is_on_the_page() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/lifecycle.md");
    let page = fs::read_to_string(page).unwrap();
    for stage in warpverbs::Stage::ALL {
        let name = format!("| {stage:?} |");
        assert!(page.contains(&name), "{name}");
    }
    for drawing in ["](dependencies.svg)", "](stages.svg)"] {
        assert!(page.contains(drawing), "{drawing}");
    }
}

/// What both drawings begin with: a size, fonts and an arrow's head.
fn svg(width: f64, height: f64, title: &str, body: &str) -> String {
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}" font-family="sans-serif" font-size="14">
<title>{title}</title>
<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="#444"/></marker></defs>
<rect width="100%" height="100%" fill="#fff"/>
{body}</svg>
"##
    )
}

/// A box with a name in it.
fn labelled_box(x: f64, y: f64, width: f64, height: f64, fill: &str, name: &str) -> String {
    format!(
        r##"<rect x="{:.1}" y="{:.1}" width="{width:.1}" height="{height:.1}" rx="6" fill="{fill}" stroke="#444"/>
<text x="{x:.1}" y="{:.1}" text-anchor="middle">{name}</text>
"##,
        x - width / 2.0,
        y - height / 2.0,
        y + 5.0
    )
}

/// A small text that stands out from the lines behind it.
fn note(x: f64, y: f64, anchor: &str, text: &str) -> String {
    format!(
        r##"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" font-size="12" fill="#666" stroke="#fff" stroke-width="4" paint-order="stroke">{text}</text>
"##
    )
}
