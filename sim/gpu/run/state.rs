//! State of running launches, blocks, warps and threads.
//!
//! Knows: what must be kept while they run.
//! Must not know: what instructions do, or who runs next.

use std::sync::Arc;

use crate::counters::{LaunchCounters, Phase};
use crate::ir::{Function, Program, Special};
use crate::report::FailureKind;

/// Lanes of a warp.
pub(crate) const WARP: u32 = 32;
/// Named barriers of a block (PTX ISA, "bar").
pub(crate) const BARRIERS: usize = 16;
/// Most slots of all frames of a thread, and most frames.
const MAX_SLOTS: usize = 1 << 20;
pub(crate) const MAX_FRAMES: usize = 1024;

/// A failed instruction.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    pub(crate) detail: String,
}

impl Failure {
    pub(crate) fn new(kind: FailureKind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
        }
    }
}

/// An activation of a function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) func: u32,
    /// Where the caller goes on.
    pub(crate) return_pc: u32,
    /// The call, by its index in [`Program::calls`].
    pub(crate) site: u32,
    /// First slot.
    pub(crate) base: usize,
    /// First byte of the parameter area.
    pub(crate) params: usize,
    /// First byte in the thread's local memory.
    pub(crate) local: u32,
}

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Ready,
    /// In a warp operation.
    Warp {
        mask: u32,
    },
    /// At a block barrier.
    Barrier {
        id: u8,
    },
    /// At a branch, for the lanes it goes with.
    Branch {
        next: u32,
    },
    /// At a post-dominator, for the lanes it parted from.
    Held,
    /// In `activemask`, for the lanes it goes with.
    ActiveMask,
    Asleep,
    Exited,
}

/// The last load that a thread may be polling.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    pub(crate) pc: u32,
    pub(crate) addr: u64,
    pub(crate) value: u64,
    pub(crate) strong: bool,
}

/// A thread.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) pc: u32,
    pub(crate) phase: Phase,
    pub(crate) status: Status,
    /// All slots of all frames; the last frame's are at the end.
    pub(crate) slots: Vec<u64>,
    pub(crate) params: Vec<u8>,
    pub(crate) frames: Vec<Frame>,
    /// Number in the block.
    pub(crate) index: u32,
    pub(crate) tid: [u32; 3],
    /// Number on the bus.
    pub(crate) agent: u32,
    /// Local memory: address and bytes.
    pub(crate) local: (u64, u32),
    /// Index in the list of ready threads.
    pub(crate) ready_at: u32,
    pub(crate) last_read: Option<Read>,
    /// True once it has come to the `activemask` at its pc.
    pub(crate) met_active_mask: bool,
}

impl Thread {
    pub(crate) fn lane(&self) -> u32 {
        self.index % WARP
    }

    pub(crate) fn warp(&self) -> usize {
        (self.index / WARP) as usize
    }

    /// First slot of the running frame.
    pub(crate) fn base(&self) -> usize {
        self.frames.last().map_or(0, |f| f.base)
    }

    /// Value of a slot of the running frame; every slot of an operation lies in it.
    pub(crate) fn get(&self, reg: u16) -> u64 {
        self.slots
            .get(self.base() + usize::from(reg))
            .copied()
            .unwrap_or(0)
    }

    pub(crate) fn set(&mut self, reg: u16, value: u64) {
        let at = self.base() + usize::from(reg);
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = value;
        }
    }

    /// Enters a function.
    pub(crate) fn push_frame(
        &mut self,
        program: &Program,
        func: u32,
        site: u32,
        return_pc: u32,
        place: &Place,
    ) -> Result<(), Failure> {
        let overflow = || Failure::new(FailureKind::StackOverflow, "calls are nested too deeply");
        let callee = program.functions.get(func as usize).ok_or_else(overflow)?;
        let local = match self.frames.last() {
            None => 0,
            Some(caller) => {
                let bytes = program
                    .functions
                    .get(caller.func as usize)
                    .map_or(0, |f| f.local_bytes);
                caller.local.saturating_add(bytes)
            }
        };
        let base = self.slots.len();
        if base + callee.template.len() > MAX_SLOTS || self.frames.len() >= MAX_FRAMES {
            return Err(overflow());
        }
        if local.saturating_add(callee.local_bytes) > self.local.1 {
            return Err(Failure::new(
                FailureKind::StackOverflow,
                format!("local memory of {} bytes is used up", self.local.1),
            ));
        }
        self.slots.extend_from_slice(&callee.template);
        for (reg, which) in &callee.specials {
            let value = match which {
                Special::LocalBase => u64::from(local),
                which => place.special(*which, self),
            };
            if let Some(slot) = self.slots.get_mut(base + usize::from(*reg)) {
                *slot = value;
            }
        }
        let params = self.params.len();
        self.params.resize(params + callee.param_area as usize, 0);
        self.frames.push(Frame {
            func,
            return_pc,
            site,
            base,
            params,
            local,
        });
        self.pc = callee.entry;
        Ok(())
    }

    /// Calls a function.
    pub(crate) fn call(
        &mut self,
        program: &Program,
        site: u32,
        place: &Place,
    ) -> Result<(), Failure> {
        let Some(call) = program.calls.get(site as usize) else {
            return Err(Failure::new(FailureKind::BadBranch, "no such call"));
        };
        let caller = self.frames.last().map_or(0, |f| f.params);
        self.push_frame(program, call.callee, site, self.pc + 1, place)?;
        let callee = self.frames.last().map_or(0, |f| f.params);
        for (from, to, bytes) in &call.args {
            self.copy_params(caller + *from as usize, callee + *to as usize, *bytes);
        }
        Ok(())
    }

    /// Returns from a function; false if it was the kernel.
    pub(crate) fn ret(&mut self, program: &Program) -> bool {
        if self.frames.len() < 2 {
            return false;
        }
        let Some(frame) = self.frames.pop() else {
            return false;
        };
        let caller = self.frames.last().map_or(0, |f| f.params);
        if let Some(call) = program.calls.get(frame.site as usize) {
            for (from, to, bytes) in &call.results {
                self.copy_params(frame.params + *from as usize, caller + *to as usize, *bytes);
            }
        }
        self.slots.truncate(frame.base);
        self.params.truncate(frame.params);
        self.pc = frame.return_pc;
        true
    }

    fn copy_params(&mut self, from: usize, to: usize, bytes: u32) {
        let end = from + bytes as usize;
        if end <= self.params.len() && to + bytes as usize <= self.params.len() {
            self.params.copy_within(from..end, to);
        }
    }
}

/// What all threads of a block share and never changes.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) ctaid: [u32; 3],
    pub(crate) nctaid: [u32; 3],
    pub(crate) ntid: [u32; 3],
    pub(crate) sm: u32,
    pub(crate) sms: u32,
    pub(crate) grid: u64,
    /// Shared memory: address and bytes.
    pub(crate) shared: (u64, u32),
    pub(crate) dynamic_shared: u32,
}

impl Place {
    pub(crate) fn threads(&self) -> u32 {
        self.ntid.iter().product()
    }

    /// Value of a special register that does not change.
    fn special(&self, which: Special, thread: &Thread) -> u64 {
        let axis = |values: [u32; 3], axis: u8| values.get(usize::from(axis)).copied().unwrap_or(0);
        let lane = thread.lane();
        let value = match which {
            Special::Tid(a) => axis(thread.tid, a),
            Special::Ntid(a) => axis(self.ntid, a),
            Special::Ctaid(a) => axis(self.ctaid, a),
            Special::Nctaid(a) => axis(self.nctaid, a),
            Special::LaneId => lane,
            Special::WarpId => thread.index / WARP,
            Special::NWarpId => self.threads().div_ceil(WARP),
            Special::SmId => self.sm,
            Special::NSmId => self.sms,
            Special::GridId => return self.grid,
            Special::LaneMaskEq => 1 << lane,
            Special::LaneMaskLt => (1 << lane) - 1,
            Special::LaneMaskLe => (2u64 << lane).wrapping_sub(1) as u32,
            Special::LaneMaskGt => !((2u64 << lane).wrapping_sub(1) as u32),
            Special::LaneMaskGe => !((1 << lane) - 1),
            Special::DynamicSmemSize => self.dynamic_shared,
            Special::TotalSmemSize => self.shared.1,
            // Read by an instruction of their own, or by the frame.
            Special::LocalBase
            | Special::Clock
            | Special::ClockHi
            | Special::Clock64
            | Special::GlobalTimer
            | Special::GlobalTimerLo
            | Special::GlobalTimerHi => 0,
        };
        u64::from(value)
    }
}

/// A block barrier.
#[derive(Clone, Debug, Default)]
pub(crate) struct Barrier {
    pub(crate) arrived: u32,
    /// Number of threads, if an arrival named one.
    pub(crate) expected: Option<u32>,
    pub(crate) waiting: Vec<u32>,
    pub(crate) count: u32,
    pub(crate) all: bool,
    pub(crate) any: bool,
}

/// Lanes that go together, under the converging scheduler.
#[derive(Clone, Debug, Default)]
pub(crate) struct Group {
    pub(crate) lanes: u32,
    /// Index of the innermost meeting, or none.
    pub(crate) meeting: Option<usize>,
    /// Lanes that wait at the group's next common point.
    pub(crate) waiting: u32,
}

/// Where lanes that parted meet again.
#[derive(Clone, Debug)]
pub(crate) struct Meeting {
    pub(crate) pc: u32,
    /// Frames of a thread at the branch.
    pub(crate) depth: usize,
    pub(crate) expected: u32,
    pub(crate) arrived: u32,
    pub(crate) outer: Option<usize>,
}

/// A warp.
#[derive(Clone, Debug, Default)]
pub(crate) struct Warp {
    /// Lanes that have not exited.
    pub(crate) live: u32,
    pub(crate) groups: Vec<Group>,
    pub(crate) meetings: Vec<Option<Meeting>>,
}

/// A resident block.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) launch: usize,
    pub(crate) place: Place,
    pub(crate) threads: Vec<Thread>,
    pub(crate) warps: Vec<Warp>,
    pub(crate) barriers: [Barrier; BARRIERS],
    /// Threads that have not exited.
    pub(crate) live: u32,
}

impl Block {
    /// The thread of a warp's lane.
    pub(crate) fn lane(&mut self, warp: usize, lane: u32) -> Option<&mut Thread> {
        self.threads.get_mut(warp * WARP as usize + lane as usize)
    }
}

/// Shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks of the grid (x, y, z).
    pub grid: [u32; 3],
    /// Threads of a block (x, y, z).
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// True if blocks wait for each other: all must be resident together.
    pub cooperative: bool,
}

impl LaunchShape {
    pub(crate) fn blocks(&self) -> u64 {
        self.grid
            .iter()
            .map(|n| u64::from(*n))
            .fold(1, u64::saturating_mul)
    }

    pub(crate) fn threads(&self) -> u64 {
        self.block
            .iter()
            .map(|n| u64::from(*n))
            .fold(1, u64::saturating_mul)
    }
}

/// A launch that waits or runs.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) id: u64,
    pub(crate) module: u64,
    pub(crate) program: Arc<Program>,
    pub(crate) func: u32,
    pub(crate) shape: LaunchShape,
    pub(crate) params: Vec<u8>,
    pub(crate) stream: u64,
    /// Bytes of shared memory of a block and of local memory of a thread.
    pub(crate) shared_bytes: u32,
    pub(crate) local_bytes: u32,
    /// First number of its threads on the bus.
    pub(crate) agents: u32,
    /// Next block to start, and blocks resident.
    pub(crate) next_block: u64,
    pub(crate) resident: u32,
    /// Threads that can run, now or after a sleep.
    pub(crate) active: u32,
    pub(crate) counters: LaunchCounters,
    pub(crate) started_ns: u64,
}

impl Launch {
    pub(crate) fn function(&self) -> Option<&Function> {
        self.program.functions.get(self.func as usize)
    }

    pub(crate) fn kernel_name(&self) -> String {
        self.function().map(|f| f.name.clone()).unwrap_or_default()
    }
}
