//! The interpreter: runs one thread for a burst of instructions.
//!
//! Knows: what each operation does to one thread and to memory.
//! Must not know: who runs next, or how threads wait for each other: it returns to the scheduler for that.

mod access;
pub(crate) mod alu;
pub(crate) mod float;

use warpverbs_sim_bus::{Agent, BusState, Order, Rng};

use self::access::Site;
use crate::ir::{BoolOp, NO_REG, Op, Program, Special, Window};
use crate::report::FailureKind;
use crate::run::state::{Failure, Launch, Place, Thread};
use crate::window::RegisterWindow;

/// Address of kernel parameters seen through a generic pointer: a window of its own behind the spaces of [`Memory`],
/// which is not told of parameters, since they never change.
///
/// [`Memory`]: warpverbs_sim_bus::Memory
pub(crate) const PARAM_WINDOW: u64 = access::PARAM_WINDOW;

/// One strong access or fence in this many ends the burst, so that other agents act between two of them.
const BREAK_AFTER_STRONG: u32 = 4;

/// What a burst may touch beside its thread.
pub(crate) struct Env<'a> {
    pub(crate) bus: &'a mut BusState,
    pub(crate) registers: &'a RegisterWindow,
    /// Sorted ranges that kernels may not write: constant variables.
    pub(crate) read_only: &'a [(u64, u64)],
    pub(crate) rng: &'a mut Rng,
    /// Simulated time at the start of the burst, in ns; each instruction adds one.
    pub(crate) now: u64,
    /// Low bits of the time that `%globaltimer` does not show.
    pub(crate) timer_tick: u64,
    /// Set when memory was written.
    pub(crate) wrote: bool,
    /// Set when a device register was written.
    pub(crate) rang: bool,
}

/// Why a burst ended.
#[derive(Debug)]
pub(crate) enum End {
    /// It was long enough.
    Spent,
    /// At an operation between threads, which the scheduler completes.
    Together,
    /// At a branch that the thread's group takes together, with the thread's own choice.
    Branch {
        next: u32,
        join: u32,
    },
    /// At a post-dominator.
    Join,
    /// In `nanosleep`, for so many ns.
    Sleep(u64),
    Exited,
    Failed(Failure),
}

/// Runs `thread` for about `limit` instructions; returns how many it executed.
pub(crate) fn burst(
    thread: &mut Thread,
    place: &Place,
    launch: &mut Launch,
    env: &mut Env<'_>,
    limit: u32,
) -> (u32, End) {
    let program = launch.program.clone();
    let mut left = limit;
    // Instructions counted to a phase up to here.
    let mut counted = limit;
    let end = loop {
        match run_frame(
            &program,
            thread,
            place,
            launch,
            env,
            limit,
            &mut left,
            &mut counted,
        ) {
            Flow::Call(site) => {
                if let Err(failure) = thread.call(&program, site, place) {
                    break End::Failed(failure);
                }
            }
            Flow::Ret => {
                if !thread.ret(&program) {
                    break End::Exited;
                }
            }
            Flow::End(end) => break end,
        }
    };
    launch.counters.at(thread.phase).instructions += u64::from(counted - left);
    (limit - left, end)
}

enum Flow {
    Call(u32),
    Ret,
    End(End),
}

/// Runs until the frame changes or the burst ends.
#[allow(
    clippy::too_many_arguments,
    reason = "the burst's state, split so that the loop keeps it in registers"
)]
#[inline]
fn run_frame(
    program: &Program,
    thread: &mut Thread,
    place: &Place,
    launch: &mut Launch,
    env: &mut Env<'_>,
    limit: u32,
    left: &mut u32,
    counted: &mut u32,
) -> Flow {
    let code = program.code.as_slice();
    let mut site = Site {
        agent: Agent::Thread(thread.agent),
        pc: 0,
        shared: place.shared,
        local: thread.local,
    };
    let base = thread.base();
    let Some(regs) = thread.slots.get_mut(base..) else {
        return fail(FailureKind::BadBranch, "frame without slots");
    };
    let mut pc = thread.pc;
    // Every slot of an operation lies in its function's template, which the frame was made from: this cannot fail.
    macro_rules! r {
        ($reg:expr) => {
            regs[usize::from($reg)]
        };
    }
    macro_rules! leave {
        ($flow:expr) => {{
            thread.pc = pc;
            return $flow;
        }};
    }
    macro_rules! count {
        ($field:ident) => {
            launch.counters.at(thread.phase).$field += 1
        };
    }
    macro_rules! ordered {
        ($order:expr) => {
            if matches!($order, Order::Acquire | Order::Release | Order::AcqRel) {
                count!(ordered);
            }
        };
    }
    /// The value of a memory operation, or the end of the burst.
    macro_rules! check {
        ($result:expr) => {
            match $result {
                Ok(value) => value,
                Err(fault) => {
                    *left -= 1;
                    leave!(Flow::End(End::Failed(Failure::new(
                        FailureKind::MemoryFault(fault),
                        ""
                    ))))
                }
            }
        };
    }
    /// Ends the burst now and then after an operation that other agents can see the order of.
    macro_rules! strong {
        ($order:expr) => {
            if !matches!($order, Order::Weak | Order::NonCoherent)
                && env.rng.below(BREAK_AFTER_STRONG) == 0
            {
                *left -= 1;
                pc += 1;
                leave!(Flow::End(End::Spent));
            }
        };
    }
    while *left > 0 {
        let Some(instr) = code.get(pc as usize) else {
            leave!(fail(FailureKind::BadBranch, "control left the code"));
        };
        if instr.guard != NO_REG && (r!(instr.guard) != 0) == instr.negated {
            pc += 1;
            *left -= 1;
            continue;
        }
        match instr.op {
            Op::Phase(phase) => {
                launch.counters.at(thread.phase).instructions += u64::from(*counted - *left);
                *counted = *left;
                thread.phase = phase;
                pc += 1;
                continue;
            }
            Op::Join => leave!(Flow::End(End::Join)),

            Op::Mov { d, a } => r!(d) = r!(a),
            Op::Trunc { sh, d, a } => r!(d) = r!(a) << sh >> sh,
            Op::SignExtend { from, to, d, a } => {
                r!(d) = (((r!(a) << from) as i64 >> from) as u64) << to >> to
            }
            Op::Add { sh, d, a, b } => r!(d) = r!(a).wrapping_add(r!(b)) << sh >> sh,
            Op::Sub { sh, d, a, b } => r!(d) = r!(a).wrapping_sub(r!(b)) << sh >> sh,
            Op::Mul { sh, d, a, b } => r!(d) = r!(a).wrapping_mul(r!(b)) << sh >> sh,
            Op::Mad { sh, d, a, b, c } => {
                r!(d) = r!(a).wrapping_mul(r!(b)).wrapping_add(r!(c)) << sh >> sh
            }
            Op::And { d, a, b } => r!(d) = r!(a) & r!(b),
            Op::Or { d, a, b } => r!(d) = r!(a) | r!(b),
            Op::Xor { d, a, b } => r!(d) = r!(a) ^ r!(b),
            Op::Shl { sh, d, a, b } => {
                let n = r!(b);
                r!(d) = if n > 63 { 0 } else { r!(a) << n << sh >> sh };
            }
            Op::ShrU { d, a, b } => {
                let n = r!(b);
                r!(d) = if n > 63 { 0 } else { r!(a) >> n };
            }
            Op::Select { d, a, b, p } => r!(d) = if r!(p) != 0 { r!(a) } else { r!(b) },
            Op::SetEq { d, a, b } => r!(d) = u64::from(r!(a) == r!(b)),
            Op::SetNe { d, a, b } => r!(d) = u64::from(r!(a) != r!(b)),
            Op::SetLtU { d, a, b } => r!(d) = u64::from(r!(a) < r!(b)),
            Op::SetLeU { d, a, b } => r!(d) = u64::from(r!(a) <= r!(b)),
            // Both shifted to the top: the sign decides, the order is kept.
            Op::SetLtS { sh, d, a, b } => {
                r!(d) = u64::from(((r!(a) << sh) as i64) < (r!(b) << sh) as i64)
            }
            Op::SetLeS { sh, d, a, b } => {
                r!(d) = u64::from((r!(a) << sh) as i64 <= (r!(b) << sh) as i64)
            }
            Op::Alu { f, d, a, b, c } => r!(d) = f(r!(a), r!(b), r!(c)),
            Op::Alu4 {
                f,
                d,
                second,
                a,
                b,
                c,
                e,
            } => {
                let (value, other) = f(r!(a), r!(b), r!(c), r!(e));
                r!(second) = other;
                r!(d) = value;
            }
            Op::Setp {
                f,
                d,
                q,
                a,
                b,
                c,
                negate,
                combine,
            } => {
                let (holds, c) = (f(r!(a), r!(b), 0), r!(c) ^ u64::from(negate));
                r!(q) = combined(combine, holds ^ 1, c);
                r!(d) = combined(combine, holds, c);
            }
            Op::Set {
                f,
                d,
                a,
                b,
                c,
                negate,
                combine,
            } => {
                let holds = combined(combine, f(r!(a), r!(b), 0), r!(c) ^ u64::from(negate));
                r!(d) = holds.wrapping_neg() & 0xffff_ffff;
            }
            Op::Pack {
                d,
                regs: list,
                bits,
            } => {
                let mut value = 0;
                for (i, reg) in vector(program, list).iter().enumerate() {
                    value |= r!(*reg) << (i as u32 * u32::from(bits));
                }
                r!(d) = value;
            }
            Op::Unpack {
                a,
                regs: list,
                bits,
            } => {
                let value = r!(a);
                for (i, reg) in vector(program, list).iter().enumerate() {
                    let sh = 64 - u32::from(bits);
                    r!(*reg) = (value >> (i as u32 * u32::from(bits))) << sh >> sh;
                }
            }
            Op::Cvta {
                d,
                a,
                window,
                to_generic,
            } => {
                let start = match window {
                    Window::Global => 0,
                    Window::Shared => site.shared.0,
                    Window::Local => site.local.0,
                    Window::Param => PARAM_WINDOW,
                };
                r!(d) = if to_generic {
                    r!(a).wrapping_add(start)
                } else {
                    r!(a).wrapping_sub(start)
                };
            }
            Op::IsSpace { d, a, window } => r!(d) = u64::from(site.window_of(r!(a)) == window),
            Op::Special { d, which } => {
                let now = env.now + u64::from(limit - *left);
                let timer = now & !env.timer_tick;
                r!(d) = match which {
                    Special::Clock => now & 0xffff_ffff,
                    Special::ClockHi => now >> 32,
                    Special::GlobalTimerLo => timer & 0xffff_ffff,
                    Special::GlobalTimerHi => timer >> 32,
                    Special::GlobalTimer => timer,
                    _ => now,
                };
            }

            Op::Ld { d, base, offset, m } => {
                site.pc = pc;
                let addr = r!(base).wrapping_add(offset as i64 as u64);
                let (value, counts) = check!(access::load(env, &site, &launch.params, addr, m));
                r!(d) = access::extend(value, m.size, m.extend);
                if counts {
                    count!(loads);
                }
                ordered!(m.order);
                access::note(&mut thread.last_read, pc, addr, value, m.order);
                strong!(m.order);
            }
            Op::LdVec {
                regs: list,
                base,
                offset,
                m,
            } => {
                site.pc = pc;
                let addr = r!(base).wrapping_add(offset as i64 as u64);
                let list = vector(program, list);
                check!(access::aligned(env, addr, m.size, list.len()));
                for (i, reg) in list.iter().enumerate() {
                    let addr = addr.wrapping_add(i as u64 * u64::from(m.size));
                    let (value, counts) = check!(access::load(env, &site, &launch.params, addr, m));
                    r!(*reg) = access::extend(value, m.size, m.extend);
                    if i == 0 {
                        access::note(&mut thread.last_read, pc, addr, value, m.order);
                        if counts {
                            count!(loads);
                        }
                    }
                }
                ordered!(m.order);
                strong!(m.order);
            }
            Op::St { a, base, offset, m } => {
                site.pc = pc;
                let addr = r!(base).wrapping_add(offset as i64 as u64);
                if check!(access::store(env, &site, addr, m, r!(a))) {
                    count!(stores);
                }
                if m.order == Order::Mmio {
                    count!(mmio_stores);
                }
                ordered!(m.order);
                strong!(m.order);
            }
            Op::StVec {
                regs: list,
                base,
                offset,
                m,
            } => {
                site.pc = pc;
                let addr = r!(base).wrapping_add(offset as i64 as u64);
                let list = vector(program, list);
                check!(access::aligned(env, addr, m.size, list.len()));
                for (i, reg) in list.iter().enumerate() {
                    let addr = addr.wrapping_add(i as u64 * u64::from(m.size));
                    if check!(access::store(env, &site, addr, m, r!(*reg))) && i == 0 {
                        count!(stores);
                    }
                }
                ordered!(m.order);
                strong!(m.order);
            }
            Op::Atom {
                op,
                d,
                base,
                offset,
                a,
                b,
                m,
            } => {
                site.pc = pc;
                let addr = r!(base).wrapping_add(offset as i64 as u64);
                let old = check!(access::rmw(env, &site, addr, m, op, r!(a), r!(b)));
                r!(d) = old;
                count!(atomics);
                ordered!(m.order);
                access::note(&mut thread.last_read, pc, addr, old, m.order);
                strong!(m.order);
            }
            Op::LdParam {
                regs: list,
                offset,
                kernel,
                size,
                extend,
            } => {
                let frame = thread.frames.last().map_or(0, |f| f.params);
                let list = vector(program, list);
                for (i, reg) in list.iter().enumerate() {
                    let at = offset as usize + i * usize::from(size);
                    let value = if kernel {
                        access::param(&launch.params, at, size)
                    } else {
                        access::param(&thread.params, frame + at, size)
                    };
                    r!(*reg) = access::extend(value, size, extend);
                }
            }
            Op::StParam {
                regs: list,
                offset,
                size,
            } => {
                let frame = thread.frames.last().map_or(0, |f| f.params);
                for (i, reg) in vector(program, list).iter().enumerate() {
                    let at = frame + offset as usize + i * usize::from(size);
                    access::set_param(&mut thread.params, at, size, r!(*reg));
                }
            }
            Op::Fence { kind, scope } => {
                env.bus.memory.fence(site.agent, kind, scope);
                count!(fences);
                strong!(Order::AcqRel);
            }
            Op::Nop => {}

            Op::Bra { target } => {
                pc = target;
                *left -= 1;
                continue;
            }
            Op::Branch {
                target,
                join,
                pred,
                negated,
            } => {
                let taken = (r!(pred) != 0) != negated;
                let next = if taken { target } else { pc + 1 };
                *left -= 1;
                leave!(Flow::End(End::Branch { next, join }));
            }
            Op::BrxIdx { index, table, join } => {
                let targets = program.tables.get(table as usize);
                let Some(next) = targets.and_then(|t| t.get(r!(index) as usize)) else {
                    *left -= 1;
                    leave!(fail(
                        FailureKind::BadBranch,
                        "index beyond the list of targets"
                    ));
                };
                *left -= 1;
                if program.converge {
                    leave!(Flow::End(End::Branch { next: *next, join }));
                }
                pc = *next;
                continue;
            }
            Op::Call { site } => {
                *left -= 1;
                leave!(Flow::Call(site));
            }
            Op::Ret => {
                *left -= 1;
                leave!(Flow::Ret);
            }
            Op::Exit => {
                *left -= 1;
                leave!(Flow::End(End::Exited));
            }
            Op::Trap => {
                *left -= 1;
                leave!(fail(FailureKind::Trap, "`trap`"));
            }
            Op::Brkpt => {
                *left -= 1;
                leave!(fail(FailureKind::Trap, "`brkpt`: there is no debugger"));
            }
            Op::FellOff => leave!(fail(
                FailureKind::BadBranch,
                "control reached the end of the body"
            )),
            Op::Nanosleep { a } => {
                let ns = r!(a);
                pc += 1;
                *left -= 1;
                leave!(Flow::End(End::Sleep(ns)));
            }
            Op::Bar { .. }
            | Op::WarpBar { .. }
            | Op::Shfl { .. }
            | Op::Vote { .. }
            | Op::Match { .. }
            | Op::Redux { .. }
            | Op::Elect { .. }
            | Op::ActiveMask { .. } => {
                // Counted when it is arrived at; `activemask` may be visited again before it completes.
                if !thread.met_active_mask {
                    *left -= 1;
                }
                leave!(Flow::End(End::Together));
            }
        }
        pc += 1;
        *left -= 1;
    }
    thread.pc = pc;
    Flow::End(End::Spent)
}

fn fail(kind: FailureKind, detail: &str) -> Flow {
    Flow::End(End::Failed(Failure::new(kind, detail)))
}

/// A comparison's truth value combined with a predicate.
fn combined(op: BoolOp, holds: u64, c: u64) -> u64 {
    match op {
        BoolOp::None => holds,
        BoolOp::And => holds & c,
        BoolOp::Or => holds | c,
        BoolOp::Xor => holds ^ c,
    }
}

fn vector(program: &Program, index: u32) -> &[u16] {
    program
        .vecs
        .get(index as usize)
        .and_then(|v| v.regs.get(..usize::from(v.len)))
        .unwrap_or_default()
}
