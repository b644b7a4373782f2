//! Reports on runs that failed.
//!
//! Knows: the state of every thread when it happened.
//! Must not know: how to go on; nothing does.

use warpverbs_sim_bus::{BusState, Fault, Space};

use super::machine::Machine;
use super::state::{Block, Failure, Launch, Read, Status, Thread};
use super::{barrier, converge, warp};
use crate::exec::PARAM_WINDOW;
use crate::ir::{Instr, Op};
use crate::report::{FailureKind, Location, RunReport, Waiter};
use crate::window::RegisterWindow;

impl Machine {
    /// A thread's instruction failed.
    pub(super) fn failed(
        &self,
        bus: &BusState,
        registers: &RegisterWindow,
        slot: u32,
        index: u32,
        failure: Failure,
    ) -> RunReport {
        let block = self.blocks.get(slot as usize).and_then(Option::as_ref);
        let launch = block
            .and_then(|b| self.launches.get(b.launch))
            .and_then(Option::as_ref);
        let thread = block.and_then(|b| b.threads.get(index as usize));
        let mut detail = failure.detail;
        // A fault at a null or wild address says little; where the address came from is in the PTX line.
        if let FailureKind::MemoryFault(fault) = &failure.kind {
            let place = describe(bus, registers, fault.addr);
            if !fault.detail.contains(&place) {
                detail = place;
            }
        }
        RunReport {
            kind: failure.kind,
            kernel: launch.map(Launch::kernel_name).unwrap_or_default(),
            location: match (launch, block, thread) {
                (Some(launch), Some(block), Some(thread)) => {
                    Some(location(launch, block, thread, thread.pc))
                }
                _ => None,
            },
            detail,
            waiters: Vec::new(),
        }
    }

    /// Memory of a block could not be allocated or freed.
    pub(super) fn broken(&self, launch: usize, fault: Fault) -> RunReport {
        let launch = self.launches.get(launch).and_then(Option::as_ref);
        RunReport {
            kind: FailureKind::MemoryFault(fault),
            kernel: launch.map(Launch::kernel_name).unwrap_or_default(),
            location: None,
            detail: "while a block started or ended".into(),
            waiters: Vec::new(),
        }
    }

    pub(super) fn deadlock(
        &self,
        bus: &BusState,
        registers: &RegisterWindow,
        launch: Option<usize>,
    ) -> RunReport {
        RunReport {
            kind: FailureKind::Deadlock,
            kernel: self.first_kernel(launch),
            location: None,
            detail: format!("no thread can go on{}", self.not_resident(launch)),
            waiters: self.waiters(bus, registers, launch),
        }
    }

    pub(super) fn livelock(&self, bus: &BusState, registers: &RegisterWindow) -> RunReport {
        RunReport {
            kind: FailureKind::Livelock,
            kernel: self.first_kernel(None),
            location: None,
            detail: format!(
                "{} steps without progress{}",
                self.config.step_budget,
                self.not_resident(None)
            ),
            waiters: self.waiters(bus, registers, None),
        }
    }

    /// Says which blocks have not started for want of room: whoever waits for one of them waits for ever.
    fn not_resident(&self, only: Option<usize>) -> String {
        let mut text = String::new();
        for (slot, launch) in self.launches.iter().enumerate() {
            let Some(launch) = launch
                .as_ref()
                .filter(|_| only.is_none_or(|only| only == slot))
            else {
                continue;
            };
            let blocks = launch.shape.blocks();
            if launch.next_block < blocks {
                text += &format!(
                    "; blocks {} to {} of `{}` have not started: {} are resident and there is no room, so a wait for one of \
                     them never ends (a cooperative launch would have been refused)",
                    launch.next_block,
                    blocks - 1,
                    launch.kernel_name(),
                    launch.resident
                );
            }
        }
        text
    }

    fn first_kernel(&self, launch: Option<usize>) -> String {
        let mut launches = self.launches.iter().enumerate();
        launches
            .find_map(|(slot, l)| {
                l.as_ref()
                    .filter(|_| launch.is_none_or(|only| only == slot))
            })
            .map(Launch::kernel_name)
            .unwrap_or_default()
    }

    /// All threads that have not ended, and what each waits for.
    fn waiters(
        &self,
        bus: &BusState,
        registers: &RegisterWindow,
        only: Option<usize>,
    ) -> Vec<Waiter> {
        let mut out = Vec::new();
        for block in self.blocks.iter().flatten() {
            if only.is_some_and(|launch| launch != block.launch) {
                continue;
            }
            let Some(Some(launch)) = self.launches.get(block.launch) else {
                continue;
            };
            for thread in block.threads.iter().filter(|t| t.status != Status::Exited) {
                out.push(Waiter {
                    kernel: launch.kernel_name(),
                    location: location(launch, block, thread, thread.pc),
                    waits_for: waits_for(bus, registers, launch, block, thread),
                });
            }
        }
        out
    }
}

/// Names what lies at an address.
fn describe(bus: &BusState, registers: &RegisterWindow, addr: u64) -> String {
    if (Space::MAPPED_REGISTERS..Space::Shared.base()).contains(&addr) {
        registers.describe(addr)
    } else if addr >= PARAM_WINDOW {
        "kernel parameters".into()
    } else {
        bus.memory.describe(addr)
    }
}

fn location(launch: &Launch, block: &Block, thread: &Thread, pc: u32) -> Location {
    Location::of(&launch.program, pc, block.place.ctaid, thread.tid)
}

fn waits_for(
    bus: &BusState,
    registers: &RegisterWindow,
    launch: &Launch,
    block: &Block,
    thread: &Thread,
) -> String {
    let program = &launch.program;
    match thread.status {
        Status::Ready => match thread.last_read {
            None => "runs, and has loaded nothing".into(),
            Some(Read {
                pc, addr, value, ..
            }) => {
                let line = program.lines.get(pc as usize).copied().unwrap_or(0);
                format!(
                    "polls {addr:#x} ({}) at PTX line {line} `{}`, last value {value:#x}",
                    describe(bus, registers, addr),
                    program.line_text(line)
                )
            }
        },
        Status::Warp { mask } => {
            let op = program.code.get(thread.pc as usize).map(|i: &Instr| i.op);
            let missing = op.map_or(0, |op: Op| {
                warp::missing(block, program, thread.warp(), mask, &op)
            });
            format!("waits for lanes {missing:#010x} of member mask {mask:#010x}")
        }
        Status::Barrier { id } => match block.barriers.get(usize::from(id)) {
            Some(b) => format!(
                "waits at barrier {id}: {} of {} threads have arrived",
                b.arrived,
                barrier::wanted(block, b)
            ),
            None => format!("waits at barrier {id}"),
        },
        Status::Branch { .. } | Status::ActiveMask => format!(
            "goes on together with lanes {:#010x}, which are not here yet",
            converge::missing(block, thread)
        ),
        Status::Held => format!(
            "has left a branch or loop and is held at its post-dominator until lanes {:#010x} arrive",
            converge::missing(block, thread)
        ),
        Status::Asleep => "sleeps".into(),
        Status::Exited => "has ended".into(),
    }
}
