//! Which blocks are resident: how they start, end, and share multiprocessors.
//!
//! Knows: room on multiprocessors, and what a block needs when it starts.
//! Must not know: who runs next.

use warpverbs_sim_bus::{BusState, Event, Fault, Space};

use super::machine::Machine;
use super::state::{Barrier, Block, Failure, Launch, Place, Status, Thread, WARP, Warp};
use crate::config::Scheduler;
use crate::counters::Phase;
use crate::ir::NO_PC;
use crate::report::{FailureKind, RunReport};

/// Threads that a multiprocessor holds.
const THREADS_PER_SM: u64 = 2048;

impl Machine {
    /// Blocks of so many threads that one multiprocessor holds.
    fn per_sm(&self, threads: u64) -> u32 {
        let by_threads = u32::try_from(THREADS_PER_SM / threads.max(1)).unwrap_or(u32::MAX);
        self.config.blocks_per_sm.max(1).min(by_threads.max(1))
    }

    /// Blocks of so many threads that can be resident together.
    pub(crate) fn max_resident(&self, threads: u64) -> u32 {
        self.per_sm(threads).saturating_mul(self.loads.len() as u32)
    }

    /// True if a launch can begin now: a cooperative one needs room for all its blocks.
    pub(crate) fn has_room(&self, launch: &Launch) -> bool {
        if !launch.shape.cooperative {
            return true;
        }
        let per_sm = self.per_sm(launch.shape.threads());
        let free: u64 = self
            .loads
            .iter()
            .map(|load| u64::from(per_sm.saturating_sub(*load)))
            .sum();
        // Blocks of earlier launches that have not started come first.
        let owed: u64 = self
            .launches
            .iter()
            .flatten()
            .map(|l| l.shape.blocks() - l.next_block)
            .sum();
        launch.shape.blocks() + owed <= free
    }

    /// All threads of a block have ended: frees its memory and its place.
    pub(super) fn retire(&mut self, bus: &mut BusState, slot: u32) -> Result<(), Box<RunReport>> {
        let Some(block) = self.blocks.get_mut(slot as usize).and_then(Option::take) else {
            return Ok(());
        };
        if let Some(load) = self.loads.get_mut(block.place.sm as usize) {
            *load -= 1;
        }
        if let Some(Some(launch)) = self.launches.get_mut(block.launch) {
            launch.resident -= 1;
            if launch.resident == 0 && launch.next_block == launch.shape.blocks() {
                bus.memory.event(Event::KernelEnd {
                    launch: launch.id,
                    stream: launch.stream,
                });
            }
        }
        free_block(bus, &block).map_err(|fault| Box::new(self.broken(block.launch, fault)))
    }

    /// Starts blocks while there is room, in order of launch.
    pub(super) fn start_blocks(&mut self, bus: &mut BusState) -> Result<(), Box<RunReport>> {
        for at in 0..self.order.len() {
            let Some(slot) = self.order.get(at).copied() else {
                break;
            };
            while let Some(Some(launch)) = self.launches.get(slot) {
                if launch.next_block >= launch.shape.blocks() {
                    break;
                }
                let per_sm = self.per_sm(launch.shape.threads());
                let Some((sm, _)) = self
                    .loads
                    .iter()
                    .enumerate()
                    .filter(|(_, load)| **load < per_sm)
                    .min_by_key(|(_, load)| **load)
                else {
                    return Ok(());
                };
                self.start_block(bus, slot, sm)?;
            }
        }
        Ok(())
    }

    fn start_block(
        &mut self,
        bus: &mut BusState,
        launch_slot: usize,
        sm: usize,
    ) -> Result<(), Box<RunReport>> {
        let converging = self.config.scheduler == Scheduler::Converge;
        let sms = self.loads.len() as u32;
        let Some(Some(launch)) = self.launches.get_mut(launch_slot) else {
            return Ok(());
        };
        let number = launch.next_block;
        if number == 0 {
            bus.memory.event(Event::KernelStart {
                launch: launch.id,
                stream: launch.stream,
            });
        }
        let [gx, gy, _] = launch.shape.grid.map(u64::from);
        let ctaid = [number % gx, number / gx % gy, number / gx / gy].map(|n| n as u32);
        let mut place = Place {
            ctaid,
            nctaid: launch.shape.grid,
            ntid: launch.shape.block,
            sm: sm as u32,
            sms,
            grid: launch.id,
            shared: (Space::Shared.base(), 0),
            dynamic_shared: launch.shape.shared_bytes,
        };
        let mut block = Block {
            launch: launch_slot,
            place: place.clone(),
            threads: Vec::new(),
            warps: Vec::new(),
            barriers: std::array::from_fn(|_| Barrier::default()),
            live: 0,
        };
        let built = build_block(bus, launch, &mut place, &mut block, number, converging);
        block.place = place;
        let threads = block.threads.len() as u32;
        block.live = threads;
        launch.next_block += 1;
        launch.resident += 1;
        launch.active += threads;
        if let Some(load) = self.loads.get_mut(sm) {
            *load += 1;
        }
        self.progress_at = self.steps;
        let slot = match self.blocks.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                self.blocks.push(None);
                self.blocks.len() - 1
            }
        };
        for index in 0..threads {
            let at = self.ready.len() as u32;
            if let Some(thread) = block.threads.get_mut(index as usize) {
                thread.ready_at = at;
            }
            self.ready.push((slot as u32, index));
        }
        if let Some(place) = self.blocks.get_mut(slot) {
            *place = Some(block);
        }
        built.map_err(|failure| match failure.kind {
            FailureKind::MemoryFault(fault) => Box::new(self.broken(launch_slot, fault)),
            kind => Box::new(RunReport {
                kind,
                kernel: String::new(),
                location: None,
                detail: failure.detail,
                waiters: Vec::new(),
            }),
        })
    }
}

/// Makes a block's threads and allocates its memory.
fn build_block(
    bus: &mut BusState,
    launch: &Launch,
    place: &mut Place,
    block: &mut Block,
    number: u64,
    converging: bool,
) -> Result<(), Failure> {
    let memory = |fault: Fault| Failure::new(FailureKind::MemoryFault(fault), "");
    let name = launch.kernel_name();
    if launch.shared_bytes > 0 {
        let [x, y, z] = place.ctaid;
        let label = format!("shared memory of `{name}` block ({x},{y},{z})");
        let addr = bus
            .memory
            .alloc(Space::Shared, launch.shared_bytes.into(), 1024, &label)
            .map_err(memory)?;
        place.shared = (addr, launch.shared_bytes);
    }
    let total = place.threads();
    let [nx, ny, _] = place.ntid;
    block.place = place.clone();
    for index in 0..total {
        let mut local = (Space::Local.base(), 0);
        if launch.local_bytes > 0 {
            let label = format!("local memory of `{name}` thread {index} of block {number}");
            let addr = bus
                .memory
                .alloc(Space::Local, launch.local_bytes.into(), 256, &label)
                .map_err(memory)?;
            local = (addr, launch.local_bytes);
        }
        let mut thread = Thread {
            pc: 0,
            phase: Phase::Other,
            status: Status::Ready,
            slots: Vec::new(),
            params: Vec::new(),
            frames: Vec::new(),
            index,
            tid: [index % nx, index / nx % ny, index / nx / ny],
            agent: launch
                .agents
                .wrapping_add((number * u64::from(total)) as u32 + index),
            local,
            ready_at: u32::MAX,
            last_read: None,
            met_active_mask: false,
        };
        bus.memory.event(Event::ThreadStart {
            thread: thread.agent,
            launch: launch.id,
            block: number,
            index,
        });
        let entered = thread.push_frame(&launch.program, launch.func, u32::MAX, NO_PC, place);
        block.threads.push(thread);
        entered?;
    }
    for warp in 0..total.div_ceil(WARP) {
        let lanes = (total - warp * WARP).min(WARP);
        let live = if lanes == WARP {
            u32::MAX
        } else {
            (1 << lanes) - 1
        };
        block.warps.push(if converging {
            Warp::converged(live)
        } else {
            Warp {
                live,
                ..Warp::default()
            }
        });
    }
    Ok(())
}

pub(super) fn free_block(bus: &mut BusState, block: &Block) -> Result<(), Fault> {
    for thread in block.threads.iter().filter(|t| t.local.1 > 0) {
        bus.memory.free(thread.local.0)?;
    }
    if block.place.shared.1 > 0 {
        bus.memory.free(block.place.shared.0)?;
    }
    Ok(())
}
