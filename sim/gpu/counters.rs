//! Counters of executed instructions.
//!
//! Knows: phases and what is counted in each.
//! Must not know: what a phase means to the code that marks it.

/// Part of a run that a counter belongs to, as marked by `// wv.phase NAME` lines of the PTX.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Everything not marked.
    #[default]
    Other = 0,
    /// A post.
    Post = 1,
    /// Looking at a completion queue.
    Poll = 2,
    /// Repeated iterations of a wait.
    Spin = 3,
}

impl Phase {
    /// The phase of a marker's name.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "other" => Self::Other,
            "post" => Self::Post,
            "poll" => Self::Poll,
            "spin" => Self::Spin,
            _ => return None,
        })
    }
}

/// What GPU threads executed in one phase. Counts are per thread, summed over threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseCounters {
    /// Instructions, those below included; predicated-off ones count.
    pub instructions: u64,
    /// Load instructions from global or shared memory. Parameters, constants and local memory do not count.
    pub loads: u64,
    /// Store instructions to global or shared memory, MMIO stores included.
    pub stores: u64,
    /// Atomic read-modify-writes.
    pub atomics: u64,
    /// Fence instructions.
    pub fences: u64,
    /// Loads, stores and atomics with an acquire or release qualifier.
    pub ordered: u64,
    /// MMIO stores.
    pub mmio_stores: u64,
}

/// Counters of a launch, by [`Phase`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchCounters {
    /// Indexed by `Phase as usize`.
    pub phases: [PhaseCounters; 4],
    /// Simulated time the launch took, in ns; not a measurement.
    pub simulated_ns: u64,
}

impl LaunchCounters {
    #[inline]
    pub(crate) fn at(&mut self, phase: Phase) -> &mut PhaseCounters {
        &mut self.phases[phase as usize & 3]
    }
}
