//! The scheduler: which thread or device acts next.
//!
//! Knows: ready threads, sleepers, resident blocks, simulated time, and the seeded order of all agents.
//! Must not know: what instructions compute, streams, or modules.
//!
//! One step is one instruction of one thread or one step of a device, and takes 1 ns of simulated time: the figure
//! is a convention, chosen so that deadlines and sleeps have a meaning.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use warpverbs_sim_bus::{BusState, Event, Rng, Step};

use super::residency::free_block;
use super::state::{Block, Launch, Status, Thread};
use super::{active_mask, barrier, converge, meeting, warp};
use crate::config::{Check, GpuConfig, Scheduler};
use crate::exec::{End, Env, burst};
use crate::ir::{NO_PC, Op};
use crate::report::RunReport;
use crate::window::RegisterWindow;

/// Most steps a device takes between two bursts while threads do useful work.
const DEVICE_STEPS: u32 = 4;
/// Most steps a device takes between two bursts when threads only wait.
const DEVICE_STEPS_WAITING: u32 = 64;
/// Instructions that write nothing, after which a thread under a script is taken to wait.
const WAITS_IN_A_ROW: u32 = 24;

/// Tick of `%globaltimer` where it is not the time itself: 1.024 us, the coarsest that was seen on hardware.
const TIMER_TICK: u64 = 1024;

/// Slots of launches, blocks and threads, and who runs when.
pub(crate) struct Machine {
    pub(super) config: GpuConfig,
    rng: Rng,
    pub(super) launches: Vec<Option<Launch>>,
    /// Launches in the order they began.
    pub(super) order: Vec<usize>,
    pub(super) blocks: Vec<Option<Block>>,
    /// Ready threads: block slot and thread.
    pub(super) ready: Vec<(u32, u32)>,
    /// The thread that ran last, where a script chooses.
    last: Option<(u32, u32)>,
    /// Sleeping threads by wake time; the number keeps equal times in order.
    asleep: BinaryHeap<Reverse<(u64, u64, u32, u32)>>,
    sleeps: u64,
    /// Resident blocks of each multiprocessor.
    pub(super) loads: Vec<u32>,
    /// Simulated time, which is also the number of steps taken and slept through.
    now: u64,
    pub(super) steps: u64,
    pub(super) progress_at: u64,
    /// Bursts in a row that wrote nothing.
    waiting_bursts: u32,
    /// Mixes every choice: two runs with the same value took the same steps.
    fingerprint: u64,
}

/// A launch that has ended.
pub(crate) struct Finished {
    pub(crate) launch: Launch,
}

/// What an advance did.
pub(crate) struct Advanced {
    pub(crate) steps: u64,
    pub(crate) idle: bool,
}

impl Machine {
    pub(crate) fn new(config: GpuConfig) -> Self {
        let sms = config.sms.max(1) as usize;
        Self {
            rng: Rng::scripted(config.seed, config.script.clone()),
            config,
            launches: Vec::new(),
            order: Vec::new(),
            blocks: Vec::new(),
            ready: Vec::new(),
            last: None,
            asleep: BinaryHeap::new(),
            sleeps: 0,
            loads: vec![0; sms],
            now: 0,
            steps: 0,
            progress_at: 0,
            waiting_bursts: 0,
            fingerprint: 0,
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    pub(crate) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    pub(crate) fn runs_module(&self, module: u64) -> bool {
        self.launches.iter().flatten().any(|l| l.module == module)
    }

    /// Begins a launch.
    pub(crate) fn begin(&mut self, mut launch: Launch) {
        launch.started_ns = self.now;
        launch.agents = self
            .launches
            .iter()
            .flatten()
            .map(|l| {
                l.agents
                    .saturating_add((l.shape.blocks() * l.shape.threads()) as u32)
            })
            .max()
            .unwrap_or(0);
        let slot = match self.launches.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                self.launches.push(None);
                self.launches.len() - 1
            }
        };
        if let Some(place) = self.launches.get_mut(slot) {
            *place = Some(launch);
        }
        self.order.push(slot);
        self.progress_at = self.steps;
    }

    /// Runs until `steps` are taken or nothing is left to do. `finished` takes each launch that ends, and may begin
    /// others.
    pub(crate) fn advance(
        &mut self,
        bus: &mut BusState,
        registers: &RegisterWindow,
        read_only: &[(u64, u64)],
        steps: u64,
        mut finished: impl FnMut(&mut Self, Finished),
    ) -> Result<Advanced, Box<RunReport>> {
        let start = self.steps;
        let end = start.saturating_add(steps);
        while self.steps < end {
            self.collect(&mut finished);
            self.start_blocks(bus)?;
            self.wake();
            if self.ready.is_empty() {
                if self.order.is_empty() {
                    let left = end - self.steps;
                    let taken = bus.run_devices(left);
                    self.steps += taken;
                    self.now += taken;
                    if taken < left {
                        return Ok(Advanced {
                            steps: self.steps - start,
                            idle: true,
                        });
                    }
                    continue;
                }
                self.pass_time(bus, registers, end)?;
                continue;
            }
            self.run_one(bus, registers, read_only)?;
            if self.steps - self.progress_at > self.config.step_budget {
                return Err(Box::new(self.livelock(bus, registers)));
            }
        }
        self.collect(&mut finished);
        Ok(Advanced {
            steps: self.steps - start,
            idle: false,
        })
    }

    /// All threads sleep: devices act until the first wakes.
    fn pass_time(
        &mut self,
        bus: &mut BusState,
        registers: &RegisterWindow,
        end: u64,
    ) -> Result<(), Box<RunReport>> {
        let Some(Reverse((wake, ..))) = self.asleep.peek().copied() else {
            return Err(Box::new(self.deadlock(bus, registers, None)));
        };
        let room = (end - self.steps).min(wake.saturating_sub(self.now));
        let taken = bus.run_devices(room);
        self.steps += taken;
        self.now += taken;
        if taken > 0 {
            self.progress_at = self.steps;
        }
        if taken < room || self.now >= wake {
            // A sleep is a step too, so that an endless loop around one spends the budget.
            self.steps += 1;
            self.now = self.now.max(wake);
        }
        if self.steps - self.progress_at > self.config.step_budget {
            return Err(Box::new(self.livelock(bus, registers)));
        }
        Ok(())
    }

    fn wake(&mut self) {
        while let Some(Reverse((wake, _, block, thread))) = self.asleep.peek().copied() {
            if wake > self.now {
                return;
            }
            self.asleep.pop();
            self.make_ready(block, thread, false);
        }
    }

    /// Which ready thread runs next, where a script chooses: the one that ran last, unless the script departs from that
    /// before an access to memory. A thread that only waits gives way, which is no departure.
    fn next_by_script(&mut self) -> usize {
        let threads = self.ready.len();
        let running = self
            .last
            .and_then(|last| self.ready.iter().position(|ready| *ready == last));
        match running {
            Some(at) if self.waiting_bursts >= WAITS_IN_A_ROW => {
                self.waiting_bursts = 0;
                (at + 1) % threads.max(1)
            }
            Some(at) if self.accesses_memory(at) => {
                (at + self.rng.below(threads as u32) as usize) % threads.max(1)
            }
            Some(at) => at,
            None => self.rng.below(threads as u32) as usize,
        }
    }

    fn accesses_memory(&self, ready: usize) -> bool {
        let op = || {
            let (slot, index) = self.ready.get(ready)?;
            let block = self.blocks.get(*slot as usize)?.as_ref()?;
            let launch = self.launches.get(block.launch)?.as_ref()?;
            let thread = block.threads.get(*index as usize)?;
            launch
                .program
                .code
                .get(thread.pc as usize)
                .map(|instr| instr.op)
        };
        matches!(op(), Some(Op::Ld { .. } | Op::St { .. } | Op::Atom { .. }))
    }

    /// Runs one burst of one thread, then lets devices act.
    fn run_one(
        &mut self,
        bus: &mut BusState,
        registers: &RegisterWindow,
        read_only: &[(u64, u64)],
    ) -> Result<(), Box<RunReport>> {
        let (choice, limit) = match self.rng.script() {
            None => {
                let choice = self.rng.below(self.ready.len() as u32);
                (
                    choice as usize,
                    1 + self.rng.below(self.config.max_burst.max(1)),
                )
            }
            Some(_) => (self.next_by_script(), 1),
        };
        let Some((slot, index)) = self.ready.get(choice).copied() else {
            return Ok(());
        };
        self.last = Some((slot, index));
        let Some(Some(block)) = self.blocks.get_mut(slot as usize) else {
            return Ok(());
        };
        let Some(Some(launch)) = self.launches.get_mut(block.launch) else {
            return Ok(());
        };
        let Some(thread) = block.threads.get_mut(index as usize) else {
            return Ok(());
        };
        let mut env = Env {
            bus,
            registers,
            read_only,
            rng: &mut self.rng,
            now: self.now,
            timer_tick: match self.config.check {
                Check::Fast => 0,
                Check::Strict | Check::Gpu => TIMER_TICK - 1,
            },
            wrote: false,
            rang: false,
        };
        let (ran, end) = burst(thread, &block.place, launch, &mut env, limit);
        let (wrote, rang) = (env.wrote, env.rang);
        self.fingerprint = (self.fingerprint.rotate_left(7)
            ^ (u64::from(slot) << 42 | u64::from(index) << 32 | u64::from(ran)))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.steps += u64::from(ran);
        self.now += u64::from(ran);
        self.waiting_bursts = if wrote {
            0
        } else {
            self.waiting_bursts.saturating_add(1)
        };
        if rang {
            self.progress_at = self.steps;
        }
        if !matches!(end, End::Spent) {
            self.handle(bus, registers, slot, index, end)?;
        }
        self.run_devices(bus);
        Ok(())
    }

    /// Each device takes a seeded number of steps: more while threads do nothing but wait.
    fn run_devices(&mut self, bus: &mut BusState) {
        let most = DEVICE_STEPS
            .saturating_add(self.waiting_bursts)
            .min(DEVICE_STEPS_WAITING);
        for device in 0..bus.devices() {
            for _ in 0..self.rng.below(most) {
                if bus.step_device(device) == Step::Idle {
                    break;
                }
                self.steps += 1;
                self.now += 1;
                self.progress_at = self.steps;
            }
        }
    }

    /// Deals with a thread whose burst ended in something that concerns others.
    fn handle(
        &mut self,
        bus: &mut BusState,
        registers: &RegisterWindow,
        slot: u32,
        index: u32,
        end: End,
    ) -> Result<(), Box<RunReport>> {
        let converging = self.config.scheduler == Scheduler::Converge;
        let Some(Some(block)) = self.blocks.get_mut(slot as usize) else {
            return Ok(());
        };
        let Some(Some(launch)) = self.launches.get_mut(block.launch) else {
            return Ok(());
        };
        let program = launch.program.clone();
        let at = index as usize;
        let released = match end {
            End::Spent => return Ok(()),
            End::Failed(failure) => {
                return Err(Box::new(self.failed(bus, registers, slot, index, failure)));
            }
            End::Sleep(ns) => {
                self.remove_ready(slot, index);
                if let Some(thread) = self.thread_mut(slot, index) {
                    thread.status = Status::Asleep;
                }
                self.sleeps += 1;
                self.asleep
                    .push(Reverse((self.now + ns, self.sleeps, slot, index)));
                return Ok(());
            }
            End::Exited => return self.exited(bus, registers, slot, index),
            End::Branch { next, join } => {
                converge::branch(block, at, next, Some(join).filter(|pc| *pc != NO_PC))
            }
            End::Join => converge::join(block, at),
            End::Together => {
                let pc = block.threads.get(at).map_or(0, |t| t.pc);
                let op = program.code.get(pc as usize).map(|i| i.op);
                meeting::arrives(bus, block, slot, at, op);
                let released = match op {
                    Some(Op::Bar { .. }) => barrier::arrive(block, &program, at),
                    Some(Op::ActiveMask { d }) if converging => {
                        Ok(match converge::active_mask(block, at) {
                            Some(lanes) => active_mask::give(block, at, lanes, d),
                            None => Vec::new(),
                        })
                    }
                    Some(Op::ActiveMask { d }) => {
                        Ok(active_mask::some(block, at, d, &mut self.rng))
                    }
                    _ => warp::arrive(block, &program, at),
                };
                match released {
                    Ok(released) => {
                        meeting::released(bus, block, slot, &program, &released);
                        released
                    }
                    Err(failure) => {
                        return Err(Box::new(self.failed(bus, registers, slot, index, failure)));
                    }
                }
            }
        };
        let launch = block.launch;
        self.settle(slot, index, &released);
        self.check_deadlock(bus, registers, launch)
    }

    /// Puts the thread that acted and those it released into or out of the list of ready threads.
    fn settle(&mut self, slot: u32, index: u32, released: &[u32]) {
        for other in released {
            if *other != index {
                self.make_ready(slot, *other, true);
            }
        }
        let waits = self
            .thread_mut(slot, index)
            .is_some_and(|t| t.status != Status::Ready);
        if waits {
            self.remove_ready(slot, index);
            self.change_active(slot, -1);
        }
    }

    /// A thread that was blocked (`counts`) or asleep can run.
    fn make_ready(&mut self, slot: u32, index: u32, counts: bool) {
        let at = self.ready.len() as u32;
        let Some(thread) = self.thread_mut(slot, index) else {
            return;
        };
        thread.status = Status::Ready;
        // Already listed: it never left.
        if thread.ready_at != u32::MAX {
            return;
        }
        thread.ready_at = at;
        self.ready.push((slot, index));
        if counts {
            self.change_active(slot, 1);
        }
    }

    fn remove_ready(&mut self, slot: u32, index: u32) {
        let Some(thread) = self.thread_mut(slot, index) else {
            return;
        };
        let at = std::mem::replace(&mut thread.ready_at, u32::MAX);
        if (at as usize) < self.ready.len() {
            self.ready.swap_remove(at as usize);
            if let Some((slot, index)) = self.ready.get(at as usize).copied()
                && let Some(moved) = self.thread_mut(slot, index)
            {
                moved.ready_at = at;
            }
        }
    }

    fn thread_mut(&mut self, slot: u32, index: u32) -> Option<&mut Thread> {
        self.blocks
            .get_mut(slot as usize)?
            .as_mut()?
            .threads
            .get_mut(index as usize)
    }

    fn change_active(&mut self, slot: u32, by: i32) {
        if let Some(Some(block)) = self.blocks.get(slot as usize)
            && let Some(Some(launch)) = self.launches.get_mut(block.launch)
        {
            launch.active = launch.active.saturating_add_signed(by);
        }
    }

    /// No resident thread of a launch can go on, and some have not ended: nothing will ever release them, for only threads
    /// of their own block do that.
    fn check_deadlock(
        &mut self,
        bus: &BusState,
        registers: &RegisterWindow,
        launch: usize,
    ) -> Result<(), Box<RunReport>> {
        match self.launches.get(launch) {
            Some(Some(l)) if l.active == 0 && l.resident > 0 => {
                Err(Box::new(self.deadlock(bus, registers, Some(launch))))
            }
            _ => Ok(()),
        }
    }

    fn exited(
        &mut self,
        bus: &mut BusState,
        registers: &RegisterWindow,
        slot: u32,
        index: u32,
    ) -> Result<(), Box<RunReport>> {
        self.remove_ready(slot, index);
        self.change_active(slot, -1);
        self.progress_at = self.steps;
        let converging = self.config.scheduler == Scheduler::Converge;
        let Some(Some(block)) = self.blocks.get_mut(slot as usize) else {
            return Ok(());
        };
        let Some(Some(launch)) = self.launches.get_mut(block.launch) else {
            return Ok(());
        };
        let program = launch.program.clone();
        let Some(thread) = block.threads.get_mut(index as usize) else {
            return Ok(());
        };
        thread.status = Status::Exited;
        let (lane, warp_at) = (thread.lane(), thread.warp());
        bus.memory.event(Event::ThreadEnd {
            thread: thread.agent,
        });
        block.live -= 1;
        if let Some(warp) = block.warps.get_mut(warp_at) {
            warp.live &= !(1 << lane);
        }
        let launch = block.launch;
        if block.live == 0 {
            self.retire(bus, slot)?;
            return self.check_deadlock(bus, registers, launch);
        }
        let mut released = warp::recheck(block, &program, warp_at);
        released.extend(barrier::recheck(block, &program));
        meeting::released(bus, block, slot, &program, &released);
        if converging {
            let join_of = |pc: u32| match program.code.get(pc as usize).map(|i| i.op) {
                Some(Op::Branch { join, .. } | Op::BrxIdx { join, .. }) if join != NO_PC => {
                    Some(join)
                }
                _ => None,
            };
            let (more, masks) = converge::exit(block, warp_at, lane, join_of);
            released.extend(more);
            for lanes in masks {
                released.extend(active_mask::complete(block, warp_at, lanes, &program));
            }
        }
        for other in released {
            self.make_ready(slot, other, true);
        }
        self.check_deadlock(bus, registers, launch)
    }

    /// Hands out launches whose blocks have all ended.
    fn collect(&mut self, finished: &mut impl FnMut(&mut Self, Finished)) {
        let mut at = 0;
        while let Some(slot) = self.order.get(at).copied() {
            let done = self
                .launches
                .get(slot)
                .and_then(Option::as_ref)
                .is_none_or(|l| l.resident == 0 && l.next_block == l.shape.blocks());
            if !done {
                at += 1;
                continue;
            }
            self.order.remove(at);
            if let Some(mut launch) = self.launches.get_mut(slot).and_then(Option::take) {
                launch.counters.simulated_ns = self.now - launch.started_ns;
                self.progress_at = self.steps;
                finished(self, Finished { launch });
            }
        }
    }

    /// Drops everything that runs and frees its memory: the context is dead.
    pub(crate) fn kill(&mut self, bus: &mut BusState) {
        for block in self.blocks.drain(..).flatten() {
            // The report of the failure that killed the context says more than a second one could.
            let _ = free_block(bus, &block);
        }
        bus.memory.event(Event::ContextDead);
        self.launches.clear();
        self.order.clear();
        self.ready.clear();
        self.asleep.clear();
        self.loads.fill(0);
    }
}
