//! Programs of GPU threads.
//!
//! Names are those of the literature: MP message passing, SB store buffering, S and 2+2W for stores, IRIW independent reads
//! of independent writes, WRC write-to-read causality, CoRR and so on for coherence of one location.

use warpverbs_sim_gpu::OrderFault;

use crate::rig::{Litmus, says};

/// Blocks or not, and a scope that includes both threads.
const PLACES: [(bool, &str); 3] = [(false, "cta"), (true, "gpu"), (true, "sys")];

fn st(order: &str, at: &str, value: u32) -> String {
    format!("st.{order}.global.u32 {at}, {value};")
}

fn ld(order: &str, reg: &str, at: &str) -> String {
    format!("ld.{order}.global.u32 {reg}, {at};")
}

/// Four ways to release and three to acquire, inside a block and between blocks: weak data, never stale, never a race.
pub(crate) fn message_passing() -> Vec<Litmus> {
    let mut table = Vec::new();
    for (blocks, s) in PLACES {
        let releases = [
            ("st.release", format!("st.release.{s}.global.u32 Y, 1;")),
            (
                "fence;st",
                format!("fence.acq_rel.{s}; st.relaxed.{s}.global.u32 Y, 1;"),
            ),
            (
                "fence.sc;st",
                format!("fence.sc.{s}; st.relaxed.{s}.global.u32 Y, 1;"),
            ),
            (
                "atom.release",
                format!("atom.release.{s}.global.exch.b32 %b, Y, 1;"),
            ),
        ];
        let acquires = [
            ("ld.acquire", format!("ld.acquire.{s}.global.u32 %a, Y;")),
            (
                "ld;fence",
                format!("ld.relaxed.{s}.global.u32 %a, Y; fence.acq_rel.{s};"),
            ),
            (
                "atom.acquire",
                format!("atom.acquire.{s}.global.add.u32 %a, Y, 0;"),
            ),
        ];
        for (release_name, release) in &releases {
            for (acquire_name, acquire) in &acquires {
                let name = format!("MP.{s} {release_name} / {acquire_name}");
                let write = format!("{} {release}", st("weak", "X", 1));
                // The data is read only if the flag was seen: reading it otherwise would be a race.
                let read = format!(
                    "{acquire} setp.ne.u32 %p1, %a, 1; @%p1 bra END; {}",
                    ld("weak", "%b", "X")
                );
                table.push(
                    Litmus::new(name, blocks, &[&write, &read])
                        .never(says!(|o| o.a(1) == 1 && o.b(1) == 0))
                        .sometimes(says!(|o| o.a(1) == 1))
                        .sometimes(says!(|o| o.a(1) == 0)),
                );
            }
        }
    }
    table
}

/// Message passing in which something is missing.
pub(crate) fn broken_message_passing() -> Vec<Litmus> {
    let stale = says!(|o| o.a(1) == 1 && o.b(1) == 0);
    let relaxed = |name: &str, blocks, write: &str, read: &str| {
        Litmus::new(name, blocks, &[write, read]).sometimes(stale)
    };
    let guarded = |acquire: &str, load: &str| {
        format!("{acquire} setp.ne.u32 %p1, %a, 1; @%p1 bra END; {load}")
    };
    vec![
        relaxed(
            "MP without fences",
            true,
            "st.relaxed.gpu.global.u32 X, 1; st.relaxed.gpu.global.u32 Y, 1;",
            "ld.relaxed.gpu.global.u32 %a, Y; ld.relaxed.gpu.global.u32 %b, X;",
        ),
        relaxed(
            "MP without acquire",
            true,
            "st.relaxed.gpu.global.u32 X, 1; st.release.gpu.global.u32 Y, 1;",
            "ld.relaxed.gpu.global.u32 %a, Y; ld.relaxed.gpu.global.u32 %b, X;",
        ),
        relaxed(
            "MP without release",
            true,
            "st.relaxed.gpu.global.u32 X, 1; st.relaxed.gpu.global.u32 Y, 1;",
            "ld.acquire.gpu.global.u32 %a, Y; ld.relaxed.gpu.global.u32 %b, X;",
        ),
        relaxed(
            "MP with .cta fences between blocks",
            true,
            "st.relaxed.gpu.global.u32 X, 1; fence.acq_rel.cta; st.relaxed.gpu.global.u32 Y, 1;",
            "ld.relaxed.gpu.global.u32 %a, Y; fence.acq_rel.cta; ld.relaxed.gpu.global.u32 %b, X;",
        ),
        relaxed(
            "MP with a .cta release between blocks",
            true,
            "st.relaxed.gpu.global.u32 X, 1; fence.acq_rel.cta; st.relaxed.gpu.global.u32 Y, 1;",
            "ld.acquire.gpu.global.u32 %a, Y; ld.relaxed.gpu.global.u32 %b, X;",
        ),
        relaxed(
            "MP with a .cta acquire between blocks",
            true,
            "st.relaxed.gpu.global.u32 X, 1; st.release.gpu.global.u32 Y, 1;",
            "ld.relaxed.gpu.global.u32 %a, Y; fence.acq_rel.cta; ld.relaxed.gpu.global.u32 %b, X;",
        ),
        // The flag itself has too small a scope.
        relaxed(
            "MP with a .cta flag between blocks",
            true,
            "st.relaxed.gpu.global.u32 X, 1; fence.acq_rel.gpu; st.relaxed.cta.global.u32 Y, 1;",
            "ld.relaxed.gpu.global.u32 %a, Y; fence.acq_rel.gpu; ld.relaxed.gpu.global.u32 %b, X;",
        )
        .reports(OrderFault::Scope),
        // A weak flag.
        relaxed(
            "MP with a weak flag",
            true,
            "st.relaxed.gpu.global.u32 X, 1; fence.acq_rel.gpu; st.weak.global.u32 Y, 1;",
            "ld.relaxed.gpu.global.u32 %a, Y; fence.acq_rel.gpu; ld.relaxed.gpu.global.u32 %b, X;",
        )
        .reports(OrderFault::Race),
        // `.volatile` is relaxed at .sys scope: with fences it passes a message.
        Litmus::new(
            "MP with volatile and fences",
            true,
            &[
                "st.volatile.global.u32 X, 1; fence.acq_rel.sys; st.volatile.global.u32 Y, 1;",
                "ld.volatile.global.u32 %a, Y; fence.acq_rel.sys; ld.volatile.global.u32 %b, X;",
            ],
        )
        .never(stale),
        relaxed(
            "MP with volatile alone",
            true,
            "st.volatile.global.u32 X, 1; st.volatile.global.u32 Y, 1;",
            "ld.volatile.global.u32 %a, Y; ld.volatile.global.u32 %b, X;",
        ),
        // membar.gl is fence.sc.gpu.
        Litmus::new(
            "MP with membar",
            true,
            &[
                "st.relaxed.gpu.global.u32 X, 1; membar.gl; st.relaxed.gpu.global.u32 Y, 1;",
                "ld.relaxed.gpu.global.u32 %a, Y; membar.gl; ld.relaxed.gpu.global.u32 %b, X;",
            ],
        )
        .never(stale),
        // Weak data behind a flag that synchronises nothing.
        Litmus::new(
            "MP, weak data, no release",
            true,
            &[
                "st.weak.global.u32 X, 1; st.relaxed.gpu.global.u32 Y, 1;",
                &guarded(
                    "ld.acquire.gpu.global.u32 %a, Y;",
                    "ld.weak.global.u32 %b, X;",
                ),
            ],
        )
        .sometimes(stale)
        .reports(OrderFault::Race),
        // Fences that only acquire, or only release, do half.
        relaxed(
            "MP with fence.acquire for the release",
            true,
            "st.relaxed.gpu.global.u32 X, 1; fence.acquire.gpu; st.relaxed.gpu.global.u32 Y, 1;",
            "ld.acquire.gpu.global.u32 %a, Y; ld.relaxed.gpu.global.u32 %b, X;",
        ),
        relaxed(
            "MP with fence.release for the acquire",
            true,
            "st.relaxed.gpu.global.u32 X, 1; st.release.gpu.global.u32 Y, 1;",
            "ld.relaxed.gpu.global.u32 %a, Y; fence.release.gpu; ld.relaxed.gpu.global.u32 %b, X;",
        ),
        Litmus::new(
            "MP with fence.release and fence.acquire",
            true,
            &[
                "st.relaxed.gpu.global.u32 X, 1; fence.release.gpu; st.relaxed.gpu.global.u32 Y, 1;",
                "ld.relaxed.gpu.global.u32 %a, Y; fence.acquire.gpu; ld.relaxed.gpu.global.u32 %b, X;",
            ],
        )
        .never(stale),
        // membar.sys reaches whoever membar.gl does; membar.cta does not reach another block.
        Litmus::new(
            "MP with membar.sys",
            true,
            &[
                "st.relaxed.gpu.global.u32 X, 1; membar.sys; st.relaxed.gpu.global.u32 Y, 1;",
                "ld.relaxed.gpu.global.u32 %a, Y; membar.sys; ld.relaxed.gpu.global.u32 %b, X;",
            ],
        )
        .never(stale),
        relaxed(
            "MP with membar.cta between blocks",
            true,
            "st.relaxed.gpu.global.u32 X, 1; membar.cta; st.relaxed.gpu.global.u32 Y, 1;",
            "ld.relaxed.gpu.global.u32 %a, Y; membar.cta; ld.relaxed.gpu.global.u32 %b, X;",
        ),
        Litmus::new(
            "MP with membar.cta in a block",
            false,
            &[
                "st.relaxed.cta.global.u32 X, 1; membar.cta; st.relaxed.cta.global.u32 Y, 1;",
                "ld.relaxed.cta.global.u32 %a, Y; membar.cta; ld.relaxed.cta.global.u32 %b, X;",
            ],
        )
        .never(stale),
        // The flag is half as wide as the data's release: the load takes a part of the store and synchronises nothing.
        relaxed(
            "MP with a flag of two sizes",
            true,
            "st.relaxed.gpu.global.u32 X, 1; st.release.gpu.global.u64 Y, 1;",
            "ld.acquire.gpu.global.u32 %a, Y; ld.relaxed.gpu.global.u32 %b, X;",
        )
        .reports(OrderFault::MixedSize),
        // The release stands before the data.
        Litmus::new(
            "MP, release before the data",
            true,
            &[
                "fence.acq_rel.gpu; st.weak.global.u32 X, 1; st.relaxed.gpu.global.u32 Y, 1;",
                &guarded(
                    "ld.acquire.gpu.global.u32 %a, Y;",
                    "ld.weak.global.u32 %b, X;",
                ),
            ],
        )
        .sometimes(stale)
        .reports(OrderFault::Race),
    ]
}

pub(crate) fn store_buffering() -> Vec<Litmus> {
    let both_old = says!(|o| o.a(0) == 0 && o.a(1) == 0);
    let mut table = Vec::new();
    for (blocks, s) in PLACES {
        let threads = |fence: &str| {
            [("X", "Y"), ("Y", "X")].map(|(own, other)| {
                format!("st.relaxed.{s}.global.u32 {own}, 1; {fence} ld.relaxed.{s}.global.u32 %a, {other};")
            })
        };
        for (fence, weak) in [
            ("", true),
            ("fence.acq_rel", true),
            ("fence.sc", false),
            ("membar", false),
        ] {
            let text = match fence {
                "" => String::new(),
                "membar" if s == "cta" => "membar.cta;".into(),
                "membar" => "membar.gl;".into(),
                fence => format!("{fence}.{s};"),
            };
            let [one, two] = threads(&text);
            let test = Litmus::new(format!("SB.{s} {fence}"), blocks, &[&one, &two]);
            table.push(if weak {
                test.sometimes(both_old)
            } else {
                test.never(both_old)
            });
        }
    }
    // A fence.sc of too small a scope is not ordered with the other's.
    table.push(
        Litmus::new(
            "SB fence.sc.cta between blocks",
            true,
            &[
                "st.relaxed.gpu.global.u32 X, 1; fence.sc.cta; ld.relaxed.gpu.global.u32 %a, Y;",
                "st.relaxed.gpu.global.u32 Y, 1; fence.sc.cta; ld.relaxed.gpu.global.u32 %a, X;",
            ],
        )
        .sometimes(both_old),
    );
    table.push(
        Litmus::new(
            "SB fence.sc.gpu and fence.sc.sys",
            true,
            &[
                "st.relaxed.gpu.global.u32 X, 1; fence.sc.gpu; ld.relaxed.gpu.global.u32 %a, Y;",
                "st.relaxed.gpu.global.u32 Y, 1; fence.sc.sys; ld.relaxed.gpu.global.u32 %a, X;",
            ],
        )
        .never(both_old),
    );
    // Atomics order nothing by themselves.
    table.push(
        Litmus::new(
            "SB with exch",
            true,
            &[
                "atom.relaxed.gpu.global.exch.b32 %b, X, 1; ld.relaxed.gpu.global.u32 %a, Y;",
                "atom.relaxed.gpu.global.exch.b32 %b, Y, 1; ld.relaxed.gpu.global.u32 %a, X;",
            ],
        )
        .sometimes(both_old),
    );
    table
}

/// S and 2+2W: a store that comes later in the run and earlier in coherence order.
pub(crate) fn late_stores() -> Vec<Litmus> {
    vec![
        Litmus::new(
            "S without fences",
            true,
            &[
                "st.relaxed.gpu.global.u32 X, 2; st.relaxed.gpu.global.u32 Y, 1;",
                "ld.relaxed.gpu.global.u32 %a, Y; st.relaxed.gpu.global.u32 X, 1;",
            ],
        )
        .sometimes(says!(|o| o.a(1) == 1 && o.x == 2)),
        Litmus::new(
            "S with release and acquire",
            true,
            &[
                "st.relaxed.gpu.global.u32 X, 2; st.release.gpu.global.u32 Y, 1;",
                "ld.acquire.gpu.global.u32 %a, Y; st.relaxed.gpu.global.u32 X, 1;",
            ],
        )
        .never(says!(|o| o.a(1) == 1 && o.x == 2)),
        Litmus::new(
            "S in a block",
            false,
            &[
                "st.relaxed.cta.global.u32 X, 2; st.relaxed.cta.global.u32 Y, 1;",
                "ld.relaxed.cta.global.u32 %a, Y; st.relaxed.cta.global.u32 X, 1;",
            ],
        )
        .sometimes(says!(|o| o.a(1) == 1 && o.x == 2)),
        Litmus::new(
            "S with fences",
            true,
            &[
                "st.relaxed.sys.global.u32 X, 2; fence.acq_rel.sys; st.relaxed.sys.global.u32 Y, 1;",
                "ld.relaxed.sys.global.u32 %a, Y; fence.acq_rel.sys; st.relaxed.sys.global.u32 X, 1;",
            ],
        )
        .never(says!(|o| o.a(1) == 1 && o.x == 2)),
        Litmus::new(
            "2+2W in a block",
            false,
            &[
                "st.relaxed.cta.global.u32 X, 1; st.relaxed.cta.global.u32 Y, 2;",
                "st.relaxed.cta.global.u32 Y, 1; st.relaxed.cta.global.u32 X, 2;",
            ],
        )
        .sometimes(says!(|o| o.x == 1 && o.y == 1)),
        // Releases alone order no stores.
        Litmus::new(
            "2+2W with fence.acq_rel",
            true,
            &[
                "st.relaxed.gpu.global.u32 X, 1; fence.acq_rel.gpu; st.relaxed.gpu.global.u32 Y, 2;",
                "st.relaxed.gpu.global.u32 Y, 1; fence.acq_rel.gpu; st.relaxed.gpu.global.u32 X, 2;",
            ],
        )
        .sometimes(says!(|o| o.x == 1 && o.y == 1)),
        Litmus::new(
            "R with fence.acq_rel",
            true,
            &[
                "st.relaxed.gpu.global.u32 X, 1; fence.acq_rel.gpu; st.relaxed.gpu.global.u32 Y, 1;",
                "st.relaxed.gpu.global.u32 Y, 2; fence.acq_rel.gpu; ld.relaxed.gpu.global.u32 %a, X;",
            ],
        )
        .sometimes(says!(|o| o.y == 2 && o.a(1) == 0)),
        Litmus::new(
            "2+2W without fences",
            true,
            &[
                "st.relaxed.gpu.global.u32 X, 1; st.relaxed.gpu.global.u32 Y, 2;",
                "st.relaxed.gpu.global.u32 Y, 1; st.relaxed.gpu.global.u32 X, 2;",
            ],
        )
        .sometimes(says!(|o| o.x == 1 && o.y == 1)),
        Litmus::new(
            "2+2W with fence.sc",
            true,
            &[
                "st.relaxed.gpu.global.u32 X, 1; fence.sc.gpu; st.relaxed.gpu.global.u32 Y, 2;",
                "st.relaxed.gpu.global.u32 Y, 1; fence.sc.gpu; st.relaxed.gpu.global.u32 X, 2;",
            ],
        )
        .never(says!(|o| o.x == 1 && o.y == 1)),
        Litmus::new(
            "R with fence.sc",
            true,
            &[
                "st.relaxed.gpu.global.u32 X, 1; fence.sc.gpu; st.relaxed.gpu.global.u32 Y, 1;",
                "st.relaxed.gpu.global.u32 Y, 2; fence.sc.gpu; ld.relaxed.gpu.global.u32 %a, X;",
            ],
        )
        .never(says!(|o| o.y == 2 && o.a(1) == 0)),
        Litmus::new(
            "R without fences",
            true,
            &[
                "st.relaxed.gpu.global.u32 X, 1; st.relaxed.gpu.global.u32 Y, 1;",
                "st.relaxed.gpu.global.u32 Y, 2; ld.relaxed.gpu.global.u32 %a, X;",
            ],
        )
        .sometimes(says!(|o| o.y == 2 && o.a(1) == 0)),
        // Load buffering is not modelled: never seen, though PTX allows it without fences.
        Litmus::new(
            "LB without fences",
            true,
            &[
                "ld.relaxed.gpu.global.u32 %a, X; st.relaxed.gpu.global.u32 Y, 1;",
                "ld.relaxed.gpu.global.u32 %a, Y; st.relaxed.gpu.global.u32 X, 1;",
            ],
        )
        .never(says!(|o| o.a(0) == 1 && o.a(1) == 1)),
    ]
}

pub(crate) fn coherence() -> Vec<Litmus> {
    let relaxed = "ld.relaxed.gpu.global.u32 %a, X; ld.relaxed.gpu.global.u32 %b, X;";
    vec![
        Litmus::new("CoRR", true, &["st.relaxed.gpu.global.u32 X, 1;", relaxed])
            .never(says!(|o| o.a(1) == 1 && o.b(1) == 0))
            .sometimes(says!(|o| o.a(1) == 0 && o.b(1) == 1)),
        Litmus::new(
            "CoRR of two writers: all readers agree",
            true,
            &[
                "st.relaxed.gpu.global.u32 X, 1;",
                "st.relaxed.gpu.global.u32 X, 2;",
                relaxed,
                relaxed,
            ],
        )
        .never(says!(|o| (o.a(2), o.b(2), o.a(3), o.b(3)) == (1, 2, 2, 1)))
        .never(says!(|o| (o.a(2), o.b(2), o.a(3), o.b(3)) == (2, 1, 1, 2)))
        .never(says!(|o| (o.a(2), o.b(2)) == (1, 2) && o.x == 1))
        .sometimes(says!(|o| (o.a(2), o.b(2)) == (2, 1))),
        Litmus::new(
            "CoWR",
            true,
            &[
                "st.relaxed.gpu.global.u32 X, 1; ld.relaxed.gpu.global.u32 %a, X;",
                "st.relaxed.gpu.global.u32 X, 2;",
            ],
        )
        .never(says!(|o| o.a(0) == 0))
        .never(says!(|o| o.a(0) == 2 && o.x == 1))
        .sometimes(says!(|o| o.a(0) == 2)),
        Litmus::new(
            "CoRW",
            true,
            &[
                "ld.relaxed.gpu.global.u32 %a, X; st.relaxed.gpu.global.u32 X, 1;",
                "st.relaxed.gpu.global.u32 X, 2;",
            ],
        )
        .never(says!(|o| o.a(0) == 1))
        .never(says!(|o| o.a(0) == 2 && o.x == 2)),
        Litmus::new(
            "CoWW",
            true,
            &[
                "st.relaxed.gpu.global.u32 X, 1; st.relaxed.gpu.global.u32 X, 2;",
                relaxed,
            ],
        )
        .never(says!(|o| o.x == 1))
        .never(says!(|o| o.a(1) == 2 && o.b(1) == 1)),
        // A read that another thread learns of: it may not read anything older.
        Litmus::new(
            "CoRR through release and acquire",
            true,
            &[
                "st.relaxed.gpu.global.u32 X, 1;",
                "ld.relaxed.gpu.global.u32 %a, X; st.release.gpu.global.u32 Y, 1;",
                "ld.acquire.gpu.global.u32 %a, Y; ld.relaxed.gpu.global.u32 %b, X;",
            ],
        )
        .never(says!(|o| o.a(1) == 1 && o.a(2) == 1 && o.b(2) == 0))
        .sometimes(says!(|o| o.a(1) == 1 && o.a(2) == 1 && o.b(2) == 1)),
        // A store behind such a read is behind what was read.
        Litmus::new(
            "CoRW through release and acquire",
            true,
            &[
                "st.relaxed.gpu.global.u32 X, 1;",
                "ld.relaxed.gpu.global.u32 %a, X; st.release.gpu.global.u32 Y, 1;",
                "ld.acquire.gpu.global.u32 %a, Y; st.relaxed.gpu.global.u32 X, 2;",
            ],
        )
        .never(says!(|o| o.a(1) == 1 && o.a(2) == 1 && o.x == 1)),
    ]
}

pub(crate) fn causality() -> Vec<Litmus> {
    let iriw = |fence: &str| {
        let reader = |first: &str, second: &str| {
            format!(
                "ld.relaxed.gpu.global.u32 %a, {first}; {fence} ld.relaxed.gpu.global.u32 %b, {second};"
            )
        };
        let (one, two) = (reader("X", "Y"), reader("Y", "X"));
        Litmus::new(
            format!("IRIW {fence}"),
            true,
            &[
                "st.relaxed.gpu.global.u32 X, 1;",
                "st.relaxed.gpu.global.u32 Y, 1;",
                &one,
                &two,
            ],
        )
    };
    let disagree = says!(|o| (o.a(2), o.b(2), o.a(3), o.b(3)) == (1, 0, 1, 0));
    vec![
        iriw("").sometimes(disagree),
        // PTX is not multi-copy atomic: acquire-release fences do not make readers agree.
        iriw("fence.acq_rel.gpu;").sometimes(disagree),
        iriw("fence.sc.gpu;").never(disagree),
        iriw("fence.sc.sys;").never(disagree),
        iriw("membar.gl;").never(disagree),
        // Of too small a scope.
        iriw("fence.sc.cta;").sometimes(disagree),
        Litmus::new(
            "WRC with fences",
            true,
            &[
                "st.relaxed.gpu.global.u32 X, 1;",
                "ld.relaxed.gpu.global.u32 %a, X; fence.acq_rel.gpu; st.relaxed.gpu.global.u32 Y, 1;",
                "ld.relaxed.gpu.global.u32 %a, Y; fence.acq_rel.gpu; ld.relaxed.gpu.global.u32 %b, X;",
            ],
        )
        .never(says!(|o| o.a(1) == 1 && o.a(2) == 1 && o.b(2) == 0)),
        // What a .cta hand-off gave goes on by a wider one.
        Litmus::new(
            "WRC by .cta, then by .gpu",
            true,
            &[
                "st.weak.global.u32 X, 1; st.release.cta.global.u32 Y, 1;",
                "ld.acquire.cta.global.u32 %a, Y; setp.ne.u32 %p1, %a, 1; @%p1 bra END; st.release.gpu.global.u32 Z, 1;",
                "ld.acquire.gpu.global.u32 %a, Z; setp.ne.u32 %p1, %a, 1; @%p1 bra END; ld.weak.global.u32 %b, X;",
                "mov.u32 %a, 0;",
            ],
        )
        .in_blocks_of(2)
        .never(says!(|o| o.a(2) == 1 && o.b(2) == 0))
        .sometimes(says!(|o| o.a(2) == 1)),
        // And the other way round, the last step is too narrow.
        Litmus::new(
            "WRC by .gpu, then by .cta between blocks",
            true,
            &[
                "st.relaxed.gpu.global.u32 X, 1; st.release.gpu.global.u32 Y, 1;",
                "mov.u32 %a, 0;",
                "ld.acquire.gpu.global.u32 %a, Y; fence.acq_rel.cta; st.relaxed.gpu.global.u32 Z, 1;",
                "mov.u32 %a, 0;",
                "ld.acquire.gpu.global.u32 %a, Z; ld.relaxed.gpu.global.u32 %b, X;",
                "mov.u32 %a, 0;",
            ],
        )
        .in_blocks_of(2)
        .sometimes(says!(|o| o.a(2) == 1 && o.a(4) == 1 && o.b(4) == 0)),
        Litmus::new(
            "WRC with release and acquire",
            true,
            &[
                "st.relaxed.gpu.global.u32 X, 1;",
                "ld.acquire.gpu.global.u32 %a, X; st.release.gpu.global.u32 Y, 1;",
                "ld.acquire.gpu.global.u32 %a, Y; ld.relaxed.gpu.global.u32 %b, X;",
            ],
        )
        .never(says!(|o| o.a(1) == 1 && o.a(2) == 1 && o.b(2) == 0)),
        Litmus::new(
            "WRC without fences",
            true,
            &[
                "st.relaxed.gpu.global.u32 X, 1;",
                "ld.relaxed.gpu.global.u32 %a, X; st.relaxed.gpu.global.u32 Y, 1;",
                "ld.relaxed.gpu.global.u32 %a, Y; ld.relaxed.gpu.global.u32 %b, X;",
            ],
        )
        .sometimes(says!(|o| o.a(1) == 1 && o.a(2) == 1 && o.b(2) == 0)),
        // Cumulativity: weak data goes on through a second hand-off.
        Litmus::new(
            "ISA2: weak data through two hand-offs",
            true,
            &[
                "st.weak.global.u32 X, 1; st.release.gpu.global.u32 Y, 1;",
                "ld.acquire.gpu.global.u32 %a, Y; st.release.gpu.global.u32 Z, 1;",
                "ld.acquire.gpu.global.u32 %a, Z; setp.ne.u32 %p1, %a, 1; @%p1 bra END; ld.acquire.gpu.global.u32 %b, Y;",
            ],
        )
        .never(says!(|o| o.a(1) == 1 && o.a(2) == 1 && o.b(2) == 0)),
        // The second hand-off is within a block, the first between blocks: `.cta` does not carry further than itself,
        // but what it carries includes what was acquired before.
        Litmus::new(
            "ISA2 with a first hand-off too narrow",
            true,
            &[
                "st.relaxed.gpu.global.u32 X, 1; fence.acq_rel.cta; st.relaxed.gpu.global.u32 Y, 1;",
                "ld.acquire.gpu.global.u32 %a, Y; st.release.gpu.global.u32 Z, 1;",
                "ld.acquire.gpu.global.u32 %a, Z; ld.relaxed.gpu.global.u32 %b, X;",
            ],
        )
        .sometimes(says!(|o| o.a(1) == 1 && o.a(2) == 1 && o.b(2) == 0)),
    ]
}

pub(crate) fn atomics() -> Vec<Litmus> {
    let add = "atom.relaxed.gpu.global.add.u32 %a, X, 1;";
    vec![
        Litmus::new("add is atomic", true, &[add, add, add])
            .never(says!(|o| o.x != 3))
            .never(says!(|o| o.a(0) == o.a(1) || o.a(1) == o.a(2) || o.a(0) == o.a(2))),
        Litmus::new(
            "one compare-and-swap wins",
            true,
            &[
                "atom.relaxed.gpu.global.cas.b32 %a, X, 0, 1;",
                "atom.relaxed.gpu.global.cas.b32 %a, X, 0, 2;",
            ],
        )
        .never(says!(|o| o.a(0) == 0 && o.a(1) == 0))
        .never(says!(|o| o.a(0) != 0 && o.a(1) != 0)),
        // A plain store never comes between the halves of an atomic.
        Litmus::new(
            "a store and an add",
            true,
            &["st.relaxed.gpu.global.u32 X, 10;", add],
        )
        .never(says!(|o| o.a(1) == 10 && o.x != 11))
        .never(says!(|o| o.a(1) == 0 && o.x != 10))
        .sometimes(says!(|o| o.a(1) == 0))
        .sometimes(says!(|o| o.a(1) == 10)),
        // A release sequence: the add of another thread carries the release on.
        Litmus::new(
            "MP through a chain of atomics",
            true,
            &[
                "st.weak.global.u32 X, 1; atom.release.gpu.global.add.u32 %b, Y, 1;",
                "atom.relaxed.gpu.global.add.u32 %a, Y, 1;",
                "ld.acquire.gpu.global.u32 %a, Y; setp.ne.u32 %p1, %a, 2; @%p1 bra END; ld.weak.global.u32 %b, X;",
            ],
        )
        .never(says!(|o| o.a(2) == 2 && o.b(2) == 0))
        .sometimes(says!(|o| o.a(2) == 2)),
        // A plain store breaks it.
        Litmus::new(
            "MP through a store that hides the release",
            true,
            &[
                "st.relaxed.gpu.global.u32 X, 1; st.release.gpu.global.u32 Y, 1;",
                "ld.relaxed.gpu.global.u32 %a, Y; st.relaxed.gpu.global.u32 Y, 2;",
                "ld.acquire.gpu.global.u32 %a, Y; ld.relaxed.gpu.global.u32 %b, X;",
            ],
        )
        .sometimes(says!(|o| o.a(1) == 1 && o.a(2) == 2 && o.b(2) == 0)),
        // An unqualified atom is relaxed at .gpu scope: it orders nothing (rule O7).
        Litmus::new(
            "MP with an unqualified atom",
            true,
            &[
                "st.relaxed.gpu.global.u32 X, 1; atom.global.exch.b32 %b, Y, 1;",
                "ld.acquire.gpu.global.u32 %a, Y; ld.relaxed.gpu.global.u32 %b, X;",
            ],
        )
        .sometimes(says!(|o| o.a(1) == 1 && o.b(1) == 0)),
        Litmus::new(
            "red releases with a fence before it",
            true,
            &[
                "st.weak.global.u32 X, 1; fence.acq_rel.gpu; red.relaxed.gpu.global.max.u32 Y, 1;",
                "ld.acquire.gpu.global.u32 %a, Y; setp.ne.u32 %p1, %a, 1; @%p1 bra END; ld.weak.global.u32 %b, X;",
            ],
        )
        .never(says!(|o| o.a(1) == 1 && o.b(1) == 0))
        .sometimes(says!(|o| o.a(1) == 1)),
        // A .cta release that another block's atomic carries back into the block.
        Litmus::new(
            "a .cta release carried on by another block's atomic",
            true,
            &[
                "st.weak.global.u32 X, 1; fence.acq_rel.cta; st.relaxed.gpu.global.u32 Y, 1;",
                "ld.acquire.gpu.global.u32 %a, Y; setp.ne.u32 %p1, %a, 2; @%p1 bra END; ld.weak.global.u32 %b, X;",
                "atom.relaxed.gpu.global.cas.b32 %a, Y, 1, 2;",
                "mov.u32 %a, 0;",
            ],
        )
        .in_blocks_of(2)
        .never(says!(|o| o.a(1) == 2 && o.b(1) == 0))
        .sometimes(says!(|o| o.a(1) == 2)),
        Litmus::new(
            "SB with acq_rel exchanges",
            true,
            &[
                "atom.acq_rel.gpu.global.exch.b32 %b, X, 1; ld.relaxed.gpu.global.u32 %a, Y;",
                "atom.acq_rel.gpu.global.exch.b32 %b, Y, 1; ld.relaxed.gpu.global.u32 %a, X;",
            ],
        )
        .sometimes(says!(|o| o.a(0) == 0 && o.a(1) == 0)),
        Litmus::new(
            "a compare-and-swap that fails beside a weak store",
            true,
            &["st.weak.global.u32 X, 1;", "atom.relaxed.gpu.global.cas.b32 %a, X, 9, 2;"],
        )
        .never(says!(|o| o.x == 2))
        .reports(OrderFault::Race),
        Litmus::new(
            "atomics of blocks with .cta scope",
            true,
            &[
                "atom.relaxed.cta.global.add.u32 %a, X, 1;",
                "atom.relaxed.cta.global.add.u32 %a, X, 1;",
            ],
        )
        .reports(OrderFault::Scope),
        // A ticket lock protects weak data.
        Litmus::new(
            "a hand-off by tickets",
            true,
            &[HANDOFF, HANDOFF, HANDOFF],
        )
        .never(says!(|o| o.z != 3)),
    ]
}

/// Takes a ticket, waits for its turn, adds to weak data, hands the turn on.
const HANDOFF: &str = "atom.relaxed.gpu.global.add.u32 %a, X, 1; LOOP%t: ld.acquire.gpu.global.u32 %r5, Y; \
    setp.ne.u32 %p1, %r5, %a; @%p1 bra LOOP%t; ld.weak.global.u32 %r6, Z; add.u32 %r6, %r6, 1; \
    st.weak.global.u32 Z, %r6; add.u32 %r5, %r5, 1; st.release.gpu.global.u32 Y, %r5;";

pub(crate) fn barriers() -> Vec<Litmus> {
    let around = |between: &str| {
        [
            format!("st.weak.global.u32 X, 1; {between}"),
            format!("{between} ld.weak.global.u32 %a, X;"),
        ]
    };
    let never_old = |name: &str, between: &str| {
        let [one, two] = around(between);
        Litmus::new(name, false, &[&one, &two]).never(says!(|o| o.a(1) != 1))
    };
    let races = |name: &str, between: &str| {
        let [one, two] = around(between);
        Litmus::new(name, false, &[&one, &two])
            .sometimes(says!(|o| o.a(1) == 0))
            .reports(OrderFault::Race)
    };
    vec![
        never_old("bar.warp.sync orders", "bar.warp.sync 3;"),
        never_old("barrier.sync orders", "barrier.sync 0;"),
        Litmus::new(
            "barrier.sync of another number orders",
            false,
            &[
                "st.weak.global.u32 X, 1; barrier.sync 1;",
                "barrier.sync 1; ld.weak.global.u32 %a, X;",
            ],
        )
        .never(says!(|o| o.a(1) != 1)),
        races("shfl orders nothing", "shfl.sync.idx.b32 %b, %b, 0, 31, 3;"),
        races(
            "vote orders nothing",
            "setp.eq.u32 %p2, %b, 0; vote.sync.ballot.b32 %b, %p2, 3;",
        ),
        races("match orders nothing", "match.any.sync.b32 %b, %b, 3;"),
        races("redux orders nothing", "redux.sync.add.u32 %b, %b, 3;"),
        races("elect orders nothing", "elect.sync %b|%p2, 3;"),
        races("activemask orders nothing", "activemask.b32 %b;"),
        races("match.all orders nothing", "match.all.sync.b32 %b|%p2, %b, 3;"),
        // Who arrives and does not wait releases; who waits acquires.
        Litmus::new(
            "barrier.arrive orders who arrives before who waits",
            false,
            &[
                "st.weak.global.u32 X, 1; barrier.arrive 1, 64;",
                "barrier.sync 1, 64; ld.weak.global.u32 %a, X;",
            ],
        )
        .in_warps()
        .never(says!(|o| o.a(1) != 1)),
        Litmus::new(
            "barrier.arrive orders nothing after itself",
            false,
            &[
                "barrier.arrive 1, 64; ld.weak.global.u32 %a, X;",
                "st.weak.global.u32 X, 1; barrier.sync 1, 64;",
            ],
        )
        .in_warps()
        .sometimes(says!(|o| o.a(0) == 0))
        .reports(OrderFault::Race),
        Litmus::new(
            "barrier.red orders",
            false,
            &[
                "st.weak.global.u32 X, 1; setp.eq.u32 %p2, %b, 0; barrier.red.popc.u32 %b, 0, %p2;",
                "setp.eq.u32 %p2, %b, 0; barrier.red.popc.u32 %b, 0, %p2; ld.weak.global.u32 %a, X;",
            ],
        )
        .never(says!(|o| o.a(1) != 1)),
        Litmus::new(
            "bar.sync orders shared memory",
            false,
            &[
                "st.shared.u32 [sh], 1; bar.sync 0;",
                "bar.sync 0; ld.shared.u32 %a, [sh];",
            ],
        )
        .in_warps()
        .never(says!(|o| o.a(1) != 1)),
        Litmus::new(
            "a race in shared memory",
            false,
            &["st.shared.u32 [sh], 1;", "ld.shared.u32 %a, [sh];"],
        )
        .reports(OrderFault::Race),
        Litmus::new(
            "shared atomics and weak loads",
            false,
            &["atom.shared.add.u32 %a, [sh], 1;", "ld.shared.u32 %a, [sh];"],
        )
        .reports(OrderFault::Race),
        // A barrier of one warp says nothing to another block.
        Litmus::new(
            "no barrier between blocks",
            true,
            &[
                "st.weak.global.u32 X, 1; barrier.sync 0;",
                "barrier.sync 0; ld.weak.global.u32 %a, X;",
            ],
        )
        .sometimes(says!(|o| o.a(1) == 0))
        .reports(OrderFault::Race),
    ]
}

pub(crate) fn races() -> Vec<Litmus> {
    vec![
        Litmus::new("two weak stores", true, &["st.global.u32 X, 1;", "st.global.u32 X, 2;"])
            .reports(OrderFault::Race),
        Litmus::new("a weak store and a weak load", false, &["st.global.u32 X, 1;", "ld.global.u32 %a, X;"])
            .sometimes(says!(|o| o.a(1) == 0))
            .sometimes(says!(|o| o.a(1) == 1))
            .reports(OrderFault::Race),
        Litmus::new("two weak loads", true, &["ld.global.u32 %a, X;", "ld.global.u32 %a, X;"]),
        Litmus::new(
            "weak stores to different bytes",
            true,
            &["st.global.u8 X, 1;", "st.global.u8 [%x+1], 1;"],
        )
        .never(says!(|o| o.x != 0x101)),
        Litmus::new(
            "strong accesses of different sizes",
            true,
            &["st.relaxed.gpu.global.u32 X, 1;", "st.relaxed.gpu.global.u64 X, 2;"],
        )
        .reports(OrderFault::MixedSize),
        Litmus::new(
            "a strong load of half a strong store",
            true,
            &["st.relaxed.gpu.global.u64 X, 1;", "ld.relaxed.gpu.global.u32 %a, X;"],
        )
        .reports(OrderFault::MixedSize),
        // Different sizes that are ordered are fine, and bytes come from where they were written.
        Litmus::new(
            "different sizes in order",
            true,
            &[
                "st.weak.global.u32 X, 0x01020304; st.weak.global.u8 [%x+1], 9; st.release.gpu.global.u32 Y, 1;",
                "ld.acquire.gpu.global.u32 %a, Y; setp.ne.u32 %p1, %a, 1; @%p1 bra END; ld.weak.global.u32 %b, X;",
            ],
        )
        .never(says!(|o| o.a(1) == 1 && o.b(1) != 0x0102_0904)),
        Litmus::new(
            "strong stores in blocks with .cta scope",
            true,
            &["st.relaxed.cta.global.u32 X, 1;", "st.relaxed.cta.global.u32 X, 2;"],
        )
        .reports(OrderFault::Scope),
        Litmus::new(
            "strong stores in one block with .cta scope",
            false,
            &["st.relaxed.cta.global.u32 X, 1;", "st.relaxed.cta.global.u32 X, 2;"],
        )
        .sometimes(says!(|o| o.x == 1))
        .sometimes(says!(|o| o.x == 2)),
        Litmus::new(
            "ld.global.nc of what the kernel writes",
            true,
            &["st.global.u32 X, 1;", "ld.global.nc.u32 %a, X;"],
        )
        .reports(OrderFault::NonCoherent),
        // Even in order: the non-coherent path may keep what it saw.
        Litmus::new(
            "ld.global.nc in order",
            true,
            &[
                "st.weak.global.u32 X, 1; st.release.gpu.global.u32 Y, 1;",
                "ld.acquire.gpu.global.u32 %a, Y; setp.ne.u32 %p1, %a, 1; @%p1 bra END; ld.global.nc.u32 %b, X;",
            ],
        )
        .reports(OrderFault::NonCoherent),
        Litmus::new(
            "a strong load of the second half of a strong store",
            true,
            &["st.relaxed.gpu.global.u64 X, 1;", "ld.relaxed.gpu.global.u32 %a, [%x+4];"],
        )
        .reports(OrderFault::MixedSize),
        Litmus::new(
            "an atomic of half a strong store",
            true,
            &["st.relaxed.gpu.global.u64 X, 1;", "atom.relaxed.gpu.global.add.u32 %a, X, 1;"],
        )
        .reports(OrderFault::MixedSize),
        // Overlaps in part are never morally strong, but who overlaps nothing races with nobody.
        Litmus::new(
            "strong stores to two halves",
            true,
            &["st.relaxed.gpu.global.u32 X, 1;", "st.relaxed.gpu.global.u32 [%x+4], 2;"],
        )
        .never(says!(|o| o.x != 1)),
        Litmus::new("ld.global.nc of what nobody writes", true, &["ld.global.nc.u32 %a, X;", "ret;"]),
    ]
}
