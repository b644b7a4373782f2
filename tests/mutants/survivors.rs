//! Changes that no run can miss, each with the reason why.
//!
//! Knows: arguments. A test fails if one of these is found after all, or if another survives.

use warpverbs::{CqForm, Doorbell, Sharing};

use crate::modes::Mode;
use crate::places::{Kind, Mutant};

/// A family of changes that change nothing.
pub(crate) struct Survivor {
    kinds: &'static [Kind],
    /// What the place's name begins with, and what it ends with.
    place: (&'static str, &'static str),
    applies: fn(&Mode) -> bool,
    pub(crate) why: &'static str,
}

const WEAKER: &[Kind] = &[Kind::Gpu, Kind::Cta, Kind::Weak, Kind::Relaxed];
const FENCE: &[Kind] = &[Kind::NoFence, Kind::Gpu, Kind::Cta, Kind::LoadBeforeFence];

fn exclusive(mode: &Mode) -> bool {
    mode.sharing == Sharing::Exclusive
}

const OWNED: &str = "One thread uses an exclusive queue's handle, and the host looks at it before the kernel begins and after it has \
                     ended: program order and the launch's edges order all accesses. (The scope is there for shared queues, \
                     which run the same source.)";

const REREAD: &str = "Behind an error CQE the NIC writes flushes only. An error word that belongs to one says so, and is recorded as \
                      a cause that was overwritten whether or not the CQE is looked at again (loom: \
                      `these_orderings_come_twice`). A ring's error CQE is not overwritten at all.";

pub(crate) const SURVIVORS: &[Survivor] = &[
    Survivor {
        kinds: WEAKER,
        place: ("ld.acquire.gpu.u64 +192", ""),
        applies: exclusive,
        why: OWNED,
    },
    Survivor {
        kinds: WEAKER,
        place: ("ld.relaxed.gpu.u64 +", ""),
        applies: exclusive,
        why: OWNED,
    },
    Survivor {
        kinds: WEAKER,
        place: ("st.relaxed.gpu.u64 +", ""),
        applies: exclusive,
        why: OWNED,
    },
    Survivor {
        kinds: WEAKER,
        place: ("atom.relaxed.gpu.cas.b64 +256", ""),
        applies: exclusive,
        why: OWNED,
    },
    Survivor {
        kinds: WEAKER,
        place: ("red.relaxed.gpu.or.b64 +256", ""),
        applies: exclusive,
        why: OWNED,
    },
    Survivor {
        kinds: &[Kind::NoDoorbell],
        place: ("doorbell", "first"),
        applies: |mode| mode.doorbell == Doorbell::DbEarly,
        why: "The first of two doorbells is there for speed: without it the post is one of the other form, whose one doorbell \
              comes after the record.",
    },
    Survivor {
        kinds: &[Kind::LoadBeforeFence],
        place: (
            "fence.acq_rel.sys between ld.relaxed.sys.u64 +56 and ld.relaxed.gpu.u64 +192",
            "",
        ),
        applies: |mode| mode.sharing == Sharing::Gpu,
        why: "The second load of the completed index finds out whether other pollers got 2^15 ahead of this one meanwhile, which \
              takes 2^15 completions between two of its instructions: more than these runs have. A loom test sets it up \
              (`a_poller_left_far_behind_does_not_take_one_index_for_another`).",
    },
    Survivor {
        kinds: FENCE,
        place: ("fence.acq_rel.sys between ld.relaxed.sys.u64 +48 and", ""),
        applies: |_| true,
        why: REREAD,
    },
    Survivor {
        kinds: WEAKER,
        place: ("ld.relaxed.sys.u64 +48", ""),
        applies: |mode| mode.cq == CqForm::Ring,
        why: "A ring's error CQE is written once, and the fence behind the load of its last 8 bytes (O6) orders this load after \
              that write. (On a collapsed CQ a flush may overwrite it at any time, and there the change is found.)",
    },
];

/// Why the change changes nothing, if it is known to.
pub(crate) fn reason(mode: &Mode, mutant: &Mutant) -> Option<&'static str> {
    reason_in(SURVIVORS, mode, mutant)
}

const STOP: &str = "Not shown here: it takes a stop by the host, or a fault by another thread, during this very wait, and the runs that are stopped are stopped elsewhere. The same load where a post looks is found.";
const ROOM: &str = "Not shown here, or by chance only: in an exclusive queue the slot that a completion frees was known to be free before the last post, whose own fence (O2) lies between (loom: `these_orderings_come_twice`). An error completion needs the fence, since the error word is loaded behind it; which of the runs have one at the right moment depends on the seed.";
const LATENCY: &str = "Not shown here: a side of the latency kernel learns from its inbox, whose load and fence are its own, that its message was read; completions only make room, and order nothing that it or the host looks at. How its errors read is not compared.";
const OUTBOX: &str = "The sequence number lies between fences: the one behind the inbox's load, and the one before the doorbell record (O2). A weak store is ordered as well.";

const SELDOM: &str = "Not shown by every choice of seeds: it takes a thread that learns of room from another's index alone. In the other modes, and with other seeds in this one, the change is found.";

/// Changes that these runs need not show: found or not, nothing is said.
pub(crate) const OPEN: &[Survivor] = &[
    Survivor {
        kinds: WEAKER,
        place: ("st.relaxed.sys.u64 +0", ""),
        applies: latency,
        why: OUTBOX,
    },
    Survivor {
        kinds: WEAKER,
        place: ("ld.relaxed.sys.u64 +0", ""),
        applies: |_| true,
        why: STOP,
    },
    Survivor {
        kinds: WEAKER,
        place: ("ld.relaxed.gpu.u64 +256", ""),
        applies: |mode| mode.sharing == Sharing::Gpu,
        why: STOP,
    },
    Survivor {
        kinds: FENCE,
        place: (COMPLETION_FENCE, ""),
        applies: latency,
        why: LATENCY,
    },
    Survivor {
        kinds: WEAKER,
        place: ("ld.relaxed.sys.u64 +", ""),
        applies: latency,
        why: LATENCY,
    },
    Survivor {
        kinds: FENCE,
        place: (COMPLETION_FENCE, ""),
        applies: exclusive,
        why: ROOM,
    },
    Survivor {
        kinds: &[Kind::Relaxed],
        place: ("ld.acquire.gpu.u64 +192", ""),
        applies: |mode| mode.sharing == Sharing::Gpu && mode.cq == CqForm::Ring,
        why: SELDOM,
    },
];

const COMPLETION_FENCE: &str =
    "fence.acq_rel.sys between ld.relaxed.sys.u64 +56 and ld.relaxed.sys.u64 +48";

fn latency(mode: &Mode) -> bool {
    mode.kernel == "wv_write_lat"
}

/// Why no run need show the change.
pub(crate) fn open(mode: &Mode, mutant: &Mutant) -> Option<&'static str> {
    reason_in(OPEN, mode, mutant)
}

fn reason_in(list: &[Survivor], mode: &Mode, mutant: &Mutant) -> Option<&'static str> {
    let name = &mutant.place.name;
    list.iter()
        .find(|s| {
            s.kinds.contains(&mutant.kind)
                && name.starts_with(s.place.0)
                && name.ends_with(s.place.1)
                && (s.applies)(mode)
        })
        .map(|s| s.why)
}
