//! Changes that no run can miss, each with the reason why.
//!
//! Knows: arguments. A test fails if one of these is found after all, or if another survives.

use warpverbs::CqForm;

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

pub(crate) const SURVIVORS: &[Survivor] = &[Survivor {
    kinds: &[Kind::Gpu, Kind::Cta, Kind::Weak],
    place: ("ld.relaxed.sys.u64 +48", ""),
    applies: |mode| mode.is_latency() && mode.cq == CqForm::Collapsed,
    why: "An end of the latency kernel has one message outstanding, whose completion it waits for before it posts another: no \
          flush follows an error completion, nothing overwrites it, and the fence behind the load of its last 8 bytes (O6) \
          orders this load after its write. (In the bandwidth kernels flushes may follow, and the change is found.)",
}];

/// Why the change changes nothing, if it is known to.
pub(crate) fn reason(mode: &Mode, mutant: &Mutant) -> Option<&'static str> {
    reason_in(SURVIVORS, mode, mutant)
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
