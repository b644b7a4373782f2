//! The decoded form of a module: what the interpreter executes.
//!
//! Knows: slots, program counters, small enums.
//! Must not know: names or text; those live in the syntax tree and are gone at run time.
//!
//! Every register, literal and per-thread constant of a function has a slot in one flat array of `u64`, so an operand is
//! an index and nothing else. A slot's value is always zero-extended from its register's width; each operation keeps it so.

use warpverbs_sim_bus::{FenceKind, Order, RmwOp, Scope};

use crate::counters::Phase;

/// A slot in a frame.
pub(crate) type Reg = u16;
/// No slot.
pub(crate) const NO_REG: Reg = Reg::MAX;
/// No program counter.
pub(crate) const NO_PC: u32 = u32::MAX;

/// A pure operation on up to three values.
pub(crate) type AluFn = fn(u64, u64, u64) -> u64;
/// A pure operation on four values with two results: `add.cc` (carry in, carry out), `bfi`, `lop3`.
pub(crate) type Alu4Fn = fn(u64, u64, u64, u64) -> (u64, u64);

/// A decoded instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instr {
    pub(crate) op: Op,
    /// Predicate slot, or [`NO_REG`].
    pub(crate) guard: Reg,
    /// True for `@!p`.
    pub(crate) negated: bool,
}

/// How memory is accessed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mem {
    pub(crate) space: MemSpace,
    pub(crate) order: Order,
    pub(crate) scope: Scope,
    /// Bytes of one element.
    pub(crate) size: u8,
    /// For a signed load: bits of the destination; otherwise 0.
    pub(crate) extend: u8,
}

/// State space of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemSpace {
    Generic,
    /// Global or constant: addresses are generic ones.
    Global,
    Shared,
    Local,
    /// Kernel parameters through a register.
    Param,
}

/// Windows that `cvta` and `isspacep` name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Window {
    Global,
    Shared,
    Local,
    Param,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BoolOp {
    None,
    And,
    Or,
    Xor,
}

/// What a barrier instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BarKind {
    Sync,
    Arrive,
    RedPopc,
    RedAnd,
    RedOr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShflMode {
    Up,
    Down,
    Bfly,
    Idx,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VoteMode {
    All,
    Any,
    Uni,
    Ballot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReduxOp {
    Add,
    MinU,
    MaxU,
    MinS,
    MaxS,
    And,
    Or,
    Xor,
}

/// Special registers (PTX ISA, "Special Registers").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as in the PTX ISA")]
pub(crate) enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    NWarpId,
    SmId,
    NSmId,
    GridId,
    LaneMaskEq,
    LaneMaskLe,
    LaneMaskLt,
    LaneMaskGe,
    LaneMaskGt,
    DynamicSmemSize,
    TotalSmemSize,
    /// Not of PTX: the offset of the frame in the thread's local memory.
    LocalBase,
    Clock,
    ClockHi,
    Clock64,
    GlobalTimer,
    GlobalTimerLo,
    GlobalTimerHi,
}

/// Operations. `sh` is 64 minus the operation's width: `v << sh >> sh` truncates or extends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    // No instruction: marks that cost nothing.
    Phase(Phase),
    /// A post-dominator of a branch; present under the converging scheduler only.
    Join,

    // Data movement and arithmetic that is frequent enough for a case of its own.
    Mov {
        d: Reg,
        a: Reg,
    },
    Trunc {
        sh: u8,
        d: Reg,
        a: Reg,
    },
    /// Sign-extends from `64 - from` bits, then truncates to `64 - to`.
    SignExtend {
        from: u8,
        to: u8,
        d: Reg,
        a: Reg,
    },
    Add {
        sh: u8,
        d: Reg,
        a: Reg,
        b: Reg,
    },
    Sub {
        sh: u8,
        d: Reg,
        a: Reg,
        b: Reg,
    },
    Mul {
        sh: u8,
        d: Reg,
        a: Reg,
        b: Reg,
    },
    Mad {
        sh: u8,
        d: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
    },
    And {
        d: Reg,
        a: Reg,
        b: Reg,
    },
    Or {
        d: Reg,
        a: Reg,
        b: Reg,
    },
    Xor {
        d: Reg,
        a: Reg,
        b: Reg,
    },
    Shl {
        sh: u8,
        d: Reg,
        a: Reg,
        b: Reg,
    },
    ShrU {
        d: Reg,
        a: Reg,
        b: Reg,
    },
    Select {
        d: Reg,
        a: Reg,
        b: Reg,
        p: Reg,
    },
    SetEq {
        d: Reg,
        a: Reg,
        b: Reg,
    },
    SetNe {
        d: Reg,
        a: Reg,
        b: Reg,
    },
    SetLtU {
        d: Reg,
        a: Reg,
        b: Reg,
    },
    SetLeU {
        d: Reg,
        a: Reg,
        b: Reg,
    },
    SetLtS {
        sh: u8,
        d: Reg,
        a: Reg,
        b: Reg,
    },
    SetLeS {
        sh: u8,
        d: Reg,
        a: Reg,
        b: Reg,
    },
    /// Everything else that is pure.
    Alu {
        f: AluFn,
        d: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
    },
    /// Pure, with four inputs or a second output.
    Alu4 {
        f: Alu4Fn,
        d: Reg,
        second: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
        e: Reg,
    },
    /// `setp` with a second output or a combining predicate.
    Setp {
        f: AluFn,
        d: Reg,
        q: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
        negate: bool,
        combine: BoolOp,
    },
    /// `set`: all ones if the comparison holds.
    Set {
        f: AluFn,
        d: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
        negate: bool,
        combine: BoolOp,
    },
    /// `mov` of a vector into a scalar of `count` parts.
    Pack {
        d: Reg,
        regs: u32,
        bits: u8,
    },
    /// `mov` of a scalar into a vector.
    Unpack {
        a: Reg,
        regs: u32,
        bits: u8,
    },
    Cvta {
        d: Reg,
        a: Reg,
        window: Window,
        to_generic: bool,
    },
    IsSpace {
        d: Reg,
        a: Reg,
        window: Window,
    },
    Special {
        d: Reg,
        which: Special,
    },

    // Memory.
    Ld {
        d: Reg,
        base: Reg,
        offset: i32,
        m: Mem,
    },
    LdVec {
        regs: u32,
        base: Reg,
        offset: i32,
        m: Mem,
    },
    St {
        a: Reg,
        base: Reg,
        offset: i32,
        m: Mem,
    },
    StVec {
        regs: u32,
        base: Reg,
        offset: i32,
        m: Mem,
    },
    Atom {
        op: RmwOp,
        d: Reg,
        base: Reg,
        offset: i32,
        a: Reg,
        b: Reg,
        m: Mem,
    },
    /// From the kernel's parameter buffer (`kernel`) or the frame's parameter area.
    LdParam {
        regs: u32,
        offset: u32,
        kernel: bool,
        size: u8,
        extend: u8,
    },
    /// To the frame's parameter area.
    StParam {
        regs: u32,
        offset: u32,
        size: u8,
    },
    Fence {
        kind: FenceKind,
        scope: Scope,
    },
    /// Accepted and without effect: `prefetch`.
    Nop,

    // Control.
    Bra {
        target: u32,
    },
    /// A branch that lanes take together under the converging scheduler. `join` is the immediate post-dominator.
    Branch {
        target: u32,
        join: u32,
        pred: Reg,
        negated: bool,
    },
    BrxIdx {
        index: Reg,
        table: u32,
        join: u32,
    },
    Call {
        site: u32,
    },
    Ret,
    Exit,
    Trap,
    Brkpt,
    /// The end of a body without `ret`, where control must not come.
    FellOff,
    Nanosleep {
        a: Reg,
    },

    // Between threads.
    Bar {
        kind: BarKind,
        aligned: bool,
        id: Reg,
        count: Reg,
        d: Reg,
        p: Reg,
        negate: bool,
    },
    WarpBar {
        mask: Reg,
    },
    Shfl {
        mode: ShflMode,
        d: Reg,
        p: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
        mask: Reg,
    },
    Vote {
        mode: VoteMode,
        d: Reg,
        p: Reg,
        negate: bool,
        mask: Reg,
    },
    Match {
        all: bool,
        wide: bool,
        d: Reg,
        p: Reg,
        a: Reg,
        mask: Reg,
    },
    Redux {
        op: ReduxOp,
        d: Reg,
        a: Reg,
        mask: Reg,
    },
    Elect {
        d: Reg,
        p: Reg,
        mask: Reg,
    },
    ActiveMask {
        d: Reg,
    },
}

/// The registers of a vector operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VecRegs {
    pub(crate) len: u8,
    pub(crate) regs: [Reg; 8],
}

/// One direct call: which bytes go where.
#[derive(Clone, Debug)]
pub(crate) struct CallSite {
    pub(crate) callee: u32,
    /// Offset in the caller's parameter area, offset in the callee's, bytes.
    pub(crate) args: Vec<(u32, u32, u32)>,
    /// The same, for results.
    pub(crate) results: Vec<(u32, u32, u32)>,
}

/// A kernel or function.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) is_kernel: bool,
    pub(crate) entry: u32,
    /// Initial slots of a frame.
    pub(crate) template: Vec<u64>,
    /// Slots that hold special registers, filled when a frame is made.
    pub(crate) specials: Vec<(Reg, Special)>,
    /// Bytes of the frame's parameter area.
    pub(crate) param_area: u32,
    /// Bytes of a kernel's parameter buffer.
    pub(crate) kernel_params: u32,
    /// Bytes of `.local` variables.
    pub(crate) local_bytes: u32,
    /// True if it names `.shared` variables.
    pub(crate) uses_shared: bool,
    pub(crate) callees: Vec<u32>,
    pub(crate) max_threads: Option<u64>,
    pub(crate) required_shape: Option<[u32; 3]>,
}

/// A decoded module.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) source: String,
    pub(crate) code: Vec<Instr>,
    /// Line of each instruction.
    pub(crate) lines: Vec<u32>,
    pub(crate) vecs: Vec<VecRegs>,
    pub(crate) calls: Vec<CallSite>,
    pub(crate) tables: Vec<Vec<u32>>,
    pub(crate) functions: Vec<Function>,
    /// True if branches and joins are points where lanes meet.
    pub(crate) converge: bool,
    /// Bytes of static `.shared` variables, and so the offset of dynamic shared memory.
    pub(crate) static_shared: u32,
}

impl Program {
    /// Text of a line, for reports.
    pub(crate) fn line_text(&self, line: u32) -> &str {
        self.source
            .lines()
            .nth(line.saturating_sub(1) as usize)
            .unwrap_or_default()
            .trim()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_stay_compact() {
        assert!(size_of::<Op>() <= 24, "{}", size_of::<Op>());
        assert!(size_of::<Instr>() <= 32);
    }
}
