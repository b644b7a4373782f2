//! The dependencies: a box for each kind, on the level below all that it depends on, and an arrow to each.
//!
//! Levels by longest path, invisible stops where an arrow passes a level, and the order in a level by the mean of what its
//! boxes are joined to: Sugiyama's method, as simple as it can be.

use std::collections::BTreeMap;
use std::fmt::Write;

use warpverbs::NODE_KINDS;

const LEVEL: f64 = 104.0;
const HEIGHT: f64 = 34.0;
const GAP: f64 = 34.0;
const MARGIN: f64 = 24.0;

/// A box, or a stop of an arrow.
struct Spot {
    name: Option<&'static str>,
    level: usize,
    x: f64,
    /// Spots one level up that it is joined to.
    up: Vec<usize>,
}

/// From a box through stops to a box.
struct Arrow {
    path: Vec<usize>,
    when: Option<&'static str>,
}

#[derive(Default)]
struct Drawing {
    spots: Vec<Spot>,
    boxes: BTreeMap<&'static str, usize>,
    arrows: Vec<Arrow>,
}

fn width(name: Option<&str>) -> f64 {
    name.map_or(8.0, |name| name.len() as f64 * 8.0 + 24.0)
}

impl Drawing {
    fn place(&mut self, name: Option<&'static str>, level: usize) -> usize {
        self.spots.push(Spot {
            name,
            level,
            x: self.spots.len() as f64,
            up: Vec::new(),
        });
        self.spots.len() - 1
    }

    fn join(&mut self, from: &'static str, to: &'static str, when: Option<&'static str>) {
        let (mut at, end) = (self.boxes[from], self.boxes[to]);
        let mut path = vec![at];
        while self.spots[at].level > self.spots[end].level + 1 {
            let stop = self.place(None, self.spots[at].level - 1);
            self.spots[at].up.push(stop);
            path.push(stop);
            at = stop;
        }
        self.spots[at].up.push(end);
        path.push(end);
        self.arrows.push(Arrow { path, when });
    }

    fn of_the_table() -> Self {
        let mut drawing = Self::default();
        for kind in NODE_KINDS {
            if !drawing.boxes.contains_key(kind.context) {
                let at = drawing.place(Some(kind.context), 0);
                drawing.boxes.insert(kind.context, at);
            }
        }
        for kind in NODE_KINDS {
            let on = kind.depends_on.iter().map(|other| other.on);
            let level = on
                .chain([kind.context])
                .map(|name| drawing.spots[drawing.boxes[name]].level + 1)
                .max()
                .unwrap_or(0);
            let at = drawing.place(Some(kind.name), level);
            drawing.boxes.insert(kind.name, at);
            for other in kind.depends_on {
                drawing.join(kind.name, other.on, other.when);
            }
            // Its context too, unless something else leads there.
            let leads = |name| {
                let of = NODE_KINDS.iter().find(|kind| kind.name == name);
                of.is_some_and(|of| of.context == kind.context)
            };
            if !kind.depends_on.iter().any(|other| leads(other.on)) {
                drawing.join(kind.name, kind.context, None);
            }
        }
        drawing
    }

    fn levels(&self) -> Vec<Vec<usize>> {
        let depth = self.spots.iter().map(|spot| spot.level).max().unwrap_or(0);
        let mut levels = vec![Vec::new(); depth + 1];
        for (at, spot) in self.spots.iter().enumerate() {
            levels[spot.level].push(at);
        }
        levels
    }

    /// What a spot is joined to, up and down.
    fn joined(&self, at: usize) -> Vec<usize> {
        let down = (0..self.spots.len()).filter(|other| self.spots[*other].up.contains(&at));
        self.spots[at].up.iter().copied().chain(down).collect()
    }

    /// Sorts each level by where its spots are joined, then sets them apart, a few times over.
    fn arrange(&mut self) -> f64 {
        let mut levels = self.levels();
        for round in 0..60 {
            for level in &mut levels {
                let mean = |at: &usize| {
                    let joined = self.joined(*at);
                    let sum: f64 = joined.iter().map(|other| self.spots[*other].x).sum();
                    sum / joined.len().max(1) as f64
                };
                let mut wanted: Vec<(usize, f64)> =
                    level.iter().map(|at| (*at, mean(at))).collect();
                // The order stands after half of the rounds: from then on distances alone change.
                if round < 30 {
                    wanted.sort_by(|one, two| one.1.total_cmp(&two.1));
                }
                *level = wanted.iter().map(|(at, _)| *at).collect();
                self.spread(&wanted);
            }
        }
        let left = |spot: &Spot| spot.x - width(spot.name) / 2.0;
        let shift = MARGIN - self.spots.iter().map(left).fold(f64::MAX, f64::min);
        for spot in &mut self.spots {
            spot.x += shift;
        }
        let right = |spot: &Spot| spot.x + width(spot.name) / 2.0;
        self.spots.iter().map(right).fold(0.0, f64::max) + MARGIN
    }

    /// Puts spots in this order as near as can be to where they are wanted, without overlap.
    fn spread(&mut self, wanted: &[(usize, f64)]) {
        let apart = |one: usize, two: usize, spots: &[Spot]| {
            (width(spots[one].name) + width(spots[two].name)) / 2.0 + GAP
        };
        let mut x: Vec<f64> = wanted.iter().map(|(_, x)| *x).collect();
        for _ in 0..200 {
            for at in 1..x.len() {
                let least = apart(wanted[at - 1].0, wanted[at].0, &self.spots);
                let lacks = least - (x[at] - x[at - 1]);
                if lacks > 0.0 {
                    x[at - 1] -= lacks / 2.0;
                    x[at] += lacks / 2.0;
                }
            }
        }
        for ((at, _), x) in wanted.iter().zip(x) {
            self.spots[*at].x = x;
        }
    }
}

/// a, b, c: what the legend explains.
fn letter(at: usize) -> String {
    char::from(b'a' + at as u8).to_string()
}

pub(super) fn draw() -> String {
    let mut drawing = Drawing::of_the_table();
    let width_of_all = drawing.arrange();
    let depth = drawing.levels().len();
    let y = |level: usize| 40.0 + LEVEL * level as f64;
    let mut body = String::new();
    let (mut notes, mut legend) = (String::new(), Vec::new());
    for arrow in &drawing.arrows {
        let spots: Vec<&Spot> = arrow.path.iter().map(|at| &drawing.spots[*at]).collect();
        let (start, end) = (spots[0], spots[spots.len() - 1]);
        let mut path = format!("M{:.1} {:.1}", start.x, y(start.level) - HEIGHT / 2.0);
        for pair in spots.windows(2) {
            let (x1, x2) = (pair[0].x, pair[1].x);
            let above = if pair[1].name.is_some() {
                HEIGHT / 2.0
            } else {
                0.0
            };
            let (y1, y2) = (y(pair[0].level) - HEIGHT / 2.0, y(pair[1].level) + above);
            let bend = (y1 - y2) / 2.0;
            let _ = write!(
                path,
                "C{x1:.1} {:.1} {x2:.1} {:.1} {x2:.1} {y2:.1}",
                y1 - bend,
                y2 + bend
            );
            if pair[1].name.is_none() {
                let _ = write!(path, "V{:.1}", y(pair[1].level) - HEIGHT / 2.0);
            }
        }
        let dashes = if arrow.when.is_some() {
            r#" stroke-dasharray="5 4""#
        } else {
            ""
        };
        let _ = writeln!(
            body,
            r##"<path d="{path}" stroke="#444" fill="none"{dashes} marker-end="url(#head)"/>"##
        );
        if let Some(when) = arrow.when {
            let sign = match legend.iter().position(|other| *other == when) {
                Some(at) => at,
                None => {
                    legend.push(when);
                    legend.len() - 1
                }
            };
            // In the middle of the last bend, where no two arrows meet.
            let last = spots[spots.len() - 2];
            let middle = (y(last.level) + y(end.level)) / 2.0;
            notes += &super::note(
                (last.x + end.x) / 2.0,
                middle + 4.0,
                "middle",
                &letter(sign),
            );
        }
    }
    let bottom = y(depth - 1) + HEIGHT / 2.0;
    for (at, when) in legend.iter().enumerate() {
        let line = bottom - 16.0 * (legend.len() - 1 - at) as f64;
        notes += &super::note(MARGIN, line, "start", &format!("{}: {when}", letter(at)));
    }
    for spot in &drawing.spots {
        let Some(name) = spot.name else { continue };
        let context = NODE_KINDS
            .iter()
            .find(|kind| kind.name == name)
            .map_or(name, |kind| kind.context);
        let fill = if context.starts_with("NIC") {
            "#dcebfb"
        } else {
            "#e0f2dc"
        };
        body += &super::labelled_box(spot.x, y(spot.level), width(Some(name)), HEIGHT, fill, name);
    }
    super::svg(
        width_of_all,
        bottom + MARGIN,
        "What depends on what: an arrow leads to what is kept",
        &(body + &notes),
    )
}
