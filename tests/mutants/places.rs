//! Places of a kernel's PTX that order memory, and what can be done to each.
//!
//! Knows: the text of instructions. Must not know: what runs them, or whether a change is found.

use std::fmt;

/// A change to one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A fence is gone.
    NoFence,
    /// A scope is `.gpu`, or `.cta`.
    Gpu,
    Cta,
    /// An acquire or release is relaxed.
    Relaxed,
    /// An access is weak.
    Weak,
    /// A fence and the load behind it change places.
    LoadBeforeFence,
    /// A doorbell record and the doorbell behind it change places.
    DoorbellBeforeRecord,
    /// A store is gone.
    NoSegment,
    NoRecord,
    NoDoorbell,
}

impl Kind {
    pub(crate) const ALL: [Self; 10] = [
        Self::NoFence,
        Self::Gpu,
        Self::Cta,
        Self::Relaxed,
        Self::Weak,
        Self::LoadBeforeFence,
        Self::DoorbellBeforeRecord,
        Self::NoSegment,
        Self::NoRecord,
        Self::NoDoorbell,
    ];

    pub(crate) fn says(self) -> &'static str {
        match self {
            Self::NoFence => "fence removed",
            Self::Gpu => "scope .sys to .gpu",
            Self::Cta => "scope to .cta",
            Self::Relaxed => "acquire or release to relaxed",
            Self::Weak => "strong access to weak",
            Self::LoadBeforeFence => "load moved before its fence",
            Self::DoorbellBeforeRecord => "doorbell before its record",
            Self::NoSegment => "segment store removed",
            Self::NoRecord => "doorbell record removed",
            Self::NoDoorbell => "doorbell removed",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.says())
    }
}

/// An instruction that accesses or orders shared memory.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Index of its line.
    pub line: usize,
    /// What it does, without registers: the same wherever the compiler puts it.
    pub name: String,
}

/// A changed kernel.
#[derive(Clone, Debug)]
pub(crate) struct Mutant {
    pub kind: Kind,
    pub place: Place,
    /// Lines that stand in place of others.
    edits: Vec<(usize, String)>,
}

impl Mutant {
    /// The whole module with the change.
    pub(crate) fn apply(&self, ptx: &str) -> String {
        let mut lines: Vec<&str> = ptx.lines().collect();
        for (line, text) in &self.edits {
            lines[*line] = text;
        }
        lines.join("\n")
    }
}

/// A module in which every thread is held for a while in front of a place. That changes no order: hardware may do it.
pub(crate) fn held(ptx: &str, place: &Place) -> String {
    const HOLD: &str = "nanosleep.u32 1000;";
    let mut lines: Vec<&str> = ptx.lines().collect();
    lines.insert(place.line, HOLD);
    lines.join("\n")
}

/// All places of a kernel, in the order of their lines.
pub(crate) fn places(ptx: &str, kernel: &str) -> Vec<Place> {
    let accesses: Vec<(usize, &str)> = body(ptx, kernel)
        .filter(|(_, text)| is_access(text))
        .collect();
    accesses
        .iter()
        .enumerate()
        .map(|(at, (line, text))| {
            let mut name = name_of(text);
            if text.starts_with("fence") {
                // A fence is known by what it stands between.
                let side = |at: Option<usize>| {
                    at.and_then(|at| accesses.get(at))
                        .map_or("nothing".into(), |(_, text)| name_of(text))
                };
                name = format!(
                    "{name} between {} and {}",
                    side(at.checked_sub(1)),
                    side(Some(at + 1))
                );
            }
            // The next access tells a first doorbell, which a record follows, from the last.
            let followed_by_record = accesses
                .get(at + 1)
                .is_some_and(|(_, text)| is_record(text));
            if name == "doorbell" && followed_by_record {
                name += ", first";
            }
            Place { line: *line, name }
        })
        .collect()
}

/// All changes to a place.
pub(crate) fn mutants(ptx: &str, place: &Place) -> Vec<Mutant> {
    let lines: Vec<&str> = ptx.lines().collect();
    let text = lines[place.line].trim();
    let opcode = opcode(text);
    let mut out = Vec::new();
    let mut add = |kind, edits| {
        out.push(Mutant {
            kind,
            place: place.clone(),
            edits,
        });
    };
    let mut put = |kind, from: &str, to: &str| {
        if opcode.contains(from) {
            add(
                kind,
                vec![(place.line, format!("\t{}", text.replacen(from, to, 1)))],
            );
        }
    };
    if opcode.contains(".mmio") {
        add(Kind::NoDoorbell, vec![(place.line, String::new())]);
        return out;
    }
    put(Kind::Gpu, ".sys", ".gpu");
    put(Kind::Cta, ".sys", ".cta");
    put(Kind::Cta, ".gpu", ".cta");
    put(Kind::Relaxed, ".acquire", ".relaxed");
    put(Kind::Relaxed, ".release", ".relaxed");
    // An atomic operation is never weak (PTX ISA, "atom").
    if opcode.starts_with("ld.") || opcode.starts_with("st.") {
        for order in [".relaxed", ".acquire", ".release"] {
            for scope in [".sys", ".gpu"] {
                put(Kind::Weak, &format!("{order}{scope}"), "");
            }
        }
    }
    if opcode.starts_with("fence") {
        add(Kind::NoFence, vec![(place.line, String::new())]);
        if let Some(load) =
            next_access(&lines, place.line).filter(|at| lines[*at].trim().starts_with("ld."))
        {
            add(
                Kind::LoadBeforeFence,
                vec![
                    (place.line, lines[load].into()),
                    (load, lines[place.line].into()),
                ],
            );
        } else if let Some(load) = error_load_behind(&lines, place.line) {
            // Behind a branch: the register is nobody's on the other side of it.
            add(
                Kind::LoadBeforeFence,
                vec![
                    (
                        place.line,
                        format!("{}\n{}", lines[load], lines[place.line]),
                    ),
                    (load, String::new()),
                ],
            );
        }
    }
    if is_segment(text) {
        add(Kind::NoSegment, vec![(place.line, String::new())]);
    }
    if is_record(text) {
        add(Kind::NoRecord, vec![(place.line, String::new())]);
        let bell =
            (place.line + 1..lines.len()).find(|at| opcode_of(&lines, *at).contains(".mmio"));
        if let Some(bell) = bell {
            add(
                Kind::DoorbellBeforeRecord,
                vec![
                    (place.line, lines[bell].into()),
                    (bell, lines[place.line].into()),
                ],
            );
        }
    }
    out
}

/// Lines of a kernel, trimmed.
pub(crate) fn body<'a>(ptx: &'a str, kernel: &str) -> impl Iterator<Item = (usize, &'a str)> {
    let mut inside = false;
    let entry = format!("{kernel}(");
    ptx.lines().enumerate().filter_map(move |(line, text)| {
        if text.contains(".entry") {
            inside = text.contains(&entry);
        }
        inside.then(|| (line, text.trim()))
    })
}

/// The module with this kernel alone, on the same lines.
pub(crate) fn kernel_alone(ptx: &str, kernel: &str) -> String {
    let entry = format!("{kernel}(");
    let mut keeps = true;
    let mut out = String::with_capacity(ptx.len() / 2);
    for text in ptx.lines() {
        if text.contains(".entry") {
            keeps = text.contains(&entry);
        }
        if keeps {
            out += text;
        }
        out.push('\n');
    }
    out
}

fn opcode(text: &str) -> &str {
    text.split([' ', '\t', ';']).next().unwrap_or_default()
}

fn opcode_of<'a>(lines: &[&'a str], line: usize) -> &'a str {
    opcode(lines[line].trim())
}

/// Strong accesses, fences, segment stores and plain loads of what a NIC wrote; not the weak accesses to what is a thread's own.
fn is_access(text: &str) -> bool {
    text.starts_with("fence")
        || is_segment(text)
        || is_payload(text)
        || [
            "ld.relaxed",
            "ld.acquire",
            "st.relaxed",
            "st.release",
            "st.mmio",
            "red.",
            "atom.",
        ]
        .iter()
        .any(|opcode| text.starts_with(opcode))
}

fn is_segment(text: &str) -> bool {
    text.starts_with("st.global.v2.b64")
}

/// A ring's error word.
fn is_payload(text: &str) -> bool {
    text.starts_with("ld.global.u64") && text.ends_with("+48];")
}

fn is_record(text: &str) -> bool {
    text.starts_with("st.relaxed.sys.global.u32")
}

/// The next access in the same stretch of straight code.
fn next_access(lines: &[&str], line: usize) -> Option<usize> {
    for (at, text) in lines.iter().enumerate().skip(line + 1) {
        let text = text.trim();
        if text.starts_with('$') || text.starts_with('@') || text.starts_with("bra") {
            return None;
        }
        if is_access(text) {
            return Some(at);
        }
    }
    None
}

/// The load of the error word of the CQE whose last 8 bytes were loaded before a fence.
fn error_load_behind(lines: &[&str], fence: usize) -> Option<usize> {
    let tail = lines[..fence]
        .iter()
        .rev()
        .take(60)
        .find(|text| text.contains("+56]"))?;
    let (base, _) = tail.split_once('[')?.1.split_once("+56]")?;
    let error = format!("[{base}+48]");
    // Behind another fence it is another look at the CQE.
    (fence + 1..lines.len().min(fence + 300))
        .take_while(|at| !lines[*at].trim().starts_with("fence."))
        .find(|at| {
            let text = lines[*at].trim();
            text.starts_with("ld.") && text.contains(&error)
        })
}

/// The instruction without registers: opcode and offset.
fn name_of(text: &str) -> String {
    let offset = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
        .and_then(|(inside, _)| inside.split_once('+'))
        .map(|(_, offset)| format!(" +{offset}"))
        .unwrap_or_default();
    let opcode = opcode(text).replace(".global", "");
    match (is_record(text), opcode.contains(".mmio"), is_segment(text)) {
        (true, ..) => "record".into(),
        (_, true, _) => "doorbell".into(),
        (.., true) => format!("segment{offset}"),
        _ => format!("{opcode}{offset}"),
    }
}
