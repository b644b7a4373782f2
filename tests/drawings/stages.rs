//! The stages of a teardown: a box each, and an arrow for each event that leads to another.

use std::fmt::Write;

use warpverbs::{Stage, StageEvent};

const STEP: f64 = 174.0;
const WIDTH: f64 = 104.0;
const HEIGHT: f64 = 34.0;
const MIDDLE: f64 = 40.0;

fn x(stage: Stage) -> f64 {
    70.0 + STEP * stage as u8 as f64
}

pub(super) fn draw() -> String {
    let mut body = String::new();
    for stage in Stage::ALL {
        for event in StageEvent::ALL {
            let Some(next) = stage.next(event).filter(|next| *next != stage) else {
                continue;
            };
            let (from, to) = (x(stage), x(next));
            let name = format!("{event:?}");
            if next as u8 == stage as u8 + 1 {
                let (start, end) = (from + WIDTH / 2.0, to - WIDTH / 2.0);
                let _ = writeln!(
                    body,
                    r##"<path d="M{start:.1} {MIDDLE:.1}H{end:.1}" stroke="#444" fill="none" marker-end="url(#head)"/>"##
                );
                body += &super::note((start + end) / 2.0, MIDDLE - 8.0, "middle", &name);
            } else {
                // Below all boxes in between.
                let (edge, low) = (MIDDLE + HEIGHT / 2.0, MIDDLE + 70.0);
                let _ = writeln!(
                    body,
                    r##"<path d="M{from:.1} {edge:.1}C{from:.1} {low:.1} {to:.1} {low:.1} {to:.1} {edge:.1}" stroke="#444" fill="none" marker-end="url(#head)"/>"##
                );
                body += &super::note((from + to) / 2.0, MIDDLE + 52.0, "middle", &name);
            }
        }
    }
    for stage in Stage::ALL {
        let name = format!("{stage:?}");
        body += &super::labelled_box(x(stage), MIDDLE, WIDTH, HEIGHT, "#eef3fb", &name);
    }
    let width = x(Stage::Destroyed) + 70.0;
    super::svg(width, 120.0, "Stages of a QP's teardown", &body)
}
