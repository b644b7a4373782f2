//! Changes that no run can miss, each with the reason why.
//!
//! Knows: arguments. A test fails if one of these is found after all, or if another survives.

use warpverbs::{CqForm, Sharing};

use crate::modes::{Ending, Mode};
use crate::places::{Kind, Mutant};

/// A family of changes that change nothing.
pub(crate) struct Survivor {
    kinds: &'static [Kind],
    /// What the place's name begins with.
    place: &'static str,
    /// In which mode, at a place that only runs with these endings execute.
    applies: fn(&Mode, &[Ending]) -> bool,
    pub(crate) why: &'static str,
}

pub(crate) const SURVIVORS: &[Survivor] = &[
    Survivor {
        kinds: &[Kind::Gpu, Kind::Cta, Kind::Weak],
        place: "ld.relaxed.sys.u64 +48",
        applies: |mode, _| mode.is_latency() && mode.cq == CqForm::Collapsed,
        why: "An end of the latency kernel has one message outstanding, whose completion it waits for before it posts another: \
              no flush follows an error completion, nothing overwrites it, and the fence behind the load of its last 8 bytes \
              (O6) orders this load after its write. (In the bandwidth kernels flushes may follow, and the change is found.)",
    },
    Survivor {
        kinds: &[Kind::Gpu, Kind::Cta, Kind::Weak],
        place: "ld.relaxed.sys.u64 +48",
        applies: |mode, endings| {
            mode.sharing == Sharing::Exclusive
                && mode.cq == CqForm::Collapsed
                && endings == [Ending::DumpFailed]
        },
        why: "The owner of a queue posts the DUMP (O14) when all its reads have completed, and waits for it: no flush follows \
              its error completion, nothing overwrites it, and the fence behind the load of its last 8 bytes (O6) orders this \
              load after its write.",
    },
    Survivor {
        kinds: &[Kind::NoFence, Kind::Gpu, Kind::Cta],
        place: "fence.acq_rel.sys between ld.relaxed.sys.u64 +48 and ld.relaxed.sys.u64 +0",
        applies: |mode, endings| waits_for_reads(mode, endings) && mode.cq == CqForm::Collapsed,
        why: READS_ARE_WAITED_FOR,
    },
    Survivor {
        kinds: &[Kind::NoFence, Kind::Gpu, Kind::Cta],
        place: "fence.acq_rel.sys between ld.relaxed.sys.u64 +56 and fence.acq_rel.sys",
        applies: |mode, endings| waits_for_reads(mode, endings) && mode.cq == CqForm::Ring,
        why: READS_ARE_WAITED_FOR,
    },
];

/// The place of an owner's kernel of READs that only complete runs, and runs that the host stops, execute.
fn waits_for_reads(mode: &Mode, endings: &[Ending]) -> bool {
    mode.kernel == "wv_read_bw"
        && mode.sharing == Sharing::Exclusive
        && endings == [Ending::Done, Ending::Stopped]
}

const READS_ARE_WAITED_FOR: &str = "The owner of a queue waits for its READs, posts the DUMP (O14) and waits for that: the fences of the \
    DUMP's post and of its completion acquire the READs' data before anybody reads it. The DUMP's slot is free by what the fence of \
    the post before has acquired, as a queue leaves one WQEBB unused (O6, O11). If the host stops the kernel in between, it reads no data.";

/// Why the change changes nothing, if it is known to.
pub(crate) fn reason(mode: &Mode, mutant: &Mutant, endings: &[Ending]) -> Option<&'static str> {
    SURVIVORS
        .iter()
        .find(|s| {
            s.kinds.contains(&mutant.kind)
                && mutant.place.name.starts_with(s.place)
                && (s.applies)(mode, endings)
        })
        .map(|s| s.why)
}
