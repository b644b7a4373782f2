//! What can be chosen about a simulated GPU.

use warpverbs_sim_bus::Script;

/// How lanes of a warp are scheduled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheduler {
    /// Each lane on its own; only `.sync` instructions bring lanes together.
    #[default]
    Independent,
    /// Lanes that part at a branch are held at its post-dominator until they are together again, as a compiler may make
    /// them: code whose lanes wait for each other across that point deadlocks.
    Converge,
}

/// How memory is modelled and judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Check {
    /// Flat bytes: every access sees the latest store. Addresses are checked.
    #[default]
    Fast,
    /// The PTX memory model; devices observe at `.sys` scope.
    Strict,
    /// The PTX memory model; devices observe at `.gpu` scope, as if all they access were in this GPU's memory.
    Gpu,
}

/// Configuration of a simulated GPU.
#[derive(Clone, Debug)]
pub struct GpuConfig {
    /// Seed of every choice the scheduler makes: the same seed replays the same run.
    pub seed: u64,
    /// Makes the choices instead of chance, one thread at a time: see [`crate::explore`].
    pub script: Option<Script>,
    /// How lanes are scheduled.
    pub scheduler: Scheduler,
    /// How memory is modelled: of what [`crate::memory_of`] makes of it.
    pub check: Check,
    /// Steps without progress after which a run is reported as a livelock. Progress is a thread that ends, a block that
    /// starts, a device that takes a step, or a store to a device register; stores to memory are not, since a thread that
    /// waits may store too. A kernel that computes for longer needs a larger budget.
    pub step_budget: u64,
    /// Multiprocessors.
    pub sms: u32,
    /// Blocks that can be resident on one multiprocessor.
    pub blocks_per_sm: u32,
    /// Most instructions that a thread executes before another agent may act.
    pub max_burst: u32,
}

impl Default for GpuConfig {
    fn default() -> Self {
        Self {
            seed: 1,
            script: None,
            scheduler: Scheduler::Independent,
            check: Check::Fast,
            step_budget: 200_000_000,
            sms: 16,
            blocks_per_sm: 16,
            max_burst: 64,
        }
    }
}
