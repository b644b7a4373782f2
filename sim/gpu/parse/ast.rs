//! The syntax tree of a PTX module. Names borrow from the text.

use crate::counters::Phase;

/// Fundamental types (PTX ISA, "Fundamental Types").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as in the PTX ISA")]
pub(crate) enum Ty {
    B8,
    B16,
    B32,
    B64,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F32,
    F64,
    Pred,
}

impl Ty {
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "b8" => Self::B8,
            "b16" => Self::B16,
            "b32" => Self::B32,
            "b64" => Self::B64,
            "u8" => Self::U8,
            "u16" => Self::U16,
            "u32" => Self::U32,
            "u64" => Self::U64,
            "s8" => Self::S8,
            "s16" => Self::S16,
            "s32" => Self::S32,
            "s64" => Self::S64,
            "f32" => Self::F32,
            "f64" => Self::F64,
            "pred" => Self::Pred,
            _ => return None,
        })
    }

    /// Width in bits; 1 for a predicate.
    pub(crate) fn bits(self) -> u8 {
        match self {
            Self::Pred => 1,
            Self::B8 | Self::U8 | Self::S8 => 8,
            Self::B16 | Self::U16 | Self::S16 => 16,
            Self::B32 | Self::U32 | Self::S32 | Self::F32 => 32,
            Self::B64 | Self::U64 | Self::S64 | Self::F64 => 64,
        }
    }

    /// Size in memory.
    pub(crate) fn bytes(self) -> u8 {
        self.bits().div_ceil(8)
    }

    pub(crate) fn is_signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }

    pub(crate) fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }
}

/// State spaces of declarations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as in the PTX ISA")]
pub(crate) enum VarSpace {
    Global,
    Const,
    Shared,
    Local,
    Param,
}

/// Where a declaration's definition is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Linkage {
    /// Here, for this module only, or visible to others: the same to one module.
    Here,
    /// In another module.
    Extern,
}

/// A variable or parameter.
#[derive(Clone, Debug)]
pub(crate) struct Var<'a> {
    pub(crate) line: u32,
    pub(crate) space: VarSpace,
    pub(crate) linkage: Linkage,
    pub(crate) align: u32,
    pub(crate) ty: Ty,
    pub(crate) name: &'a str,
    /// Bytes; `None` for an array of unspecified size without initialiser.
    pub(crate) bytes: Option<u64>,
    /// Initial elements by index.
    pub(crate) init: Vec<(u64, Init<'a>)>,
}

/// The initial value of one element.
#[derive(Clone, Debug)]
pub(crate) enum Init<'a> {
    /// Its bits.
    Bits(u64),
    /// The address of a symbol; generic if so written.
    Address {
        symbol: &'a str,
        offset: i64,
        generic: bool,
    },
}

/// A kernel or a function.
#[derive(Clone, Debug)]
pub(crate) struct Func<'a> {
    pub(crate) line: u32,
    pub(crate) is_kernel: bool,
    pub(crate) name: &'a str,
    pub(crate) returns: Vec<Var<'a>>,
    pub(crate) params: Vec<Var<'a>>,
    /// `.maxntid`: most threads of a block.
    pub(crate) max_threads: Option<u64>,
    /// `.reqntid`: the block's shape.
    pub(crate) required_shape: Option<[u32; 3]>,
    /// `None` for a prototype.
    pub(crate) body: Option<Vec<Stmt<'a>>>,
}

/// One statement of a body.
#[derive(Clone, Debug)]
pub(crate) struct Stmt<'a> {
    pub(crate) line: u32,
    pub(crate) kind: StmtKind<'a>,
}

#[derive(Clone, Debug)]
pub(crate) enum StmtKind<'a> {
    /// `{`
    Open,
    /// `}`
    Close,
    /// `name:`
    Label(&'a str),
    /// `.reg`: `name<count>` declares `name0 .. name(count-1)`.
    Reg {
        ty: Ty,
        name: &'a str,
        count: Option<u32>,
    },
    /// A variable of the body.
    Var(Var<'a>),
    /// `label: .branchtargets a, b, ...;`
    BranchTargets {
        name: &'a str,
        targets: Vec<&'a str>,
    },
    /// A phase marker.
    Phase(Phase),
    /// An instruction.
    Instr(Instr<'a>),
}

/// An instruction.
#[derive(Clone, Debug)]
pub(crate) struct Instr<'a> {
    /// `@p` or, with `true`, `@!p`.
    pub(crate) guard: Option<(bool, &'a str)>,
    pub(crate) mnemonic: &'a str,
    pub(crate) modifiers: Vec<&'a str>,
    pub(crate) operands: Vec<Operand<'a>>,
}

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand<'a> {
    /// A register, special register (with its component) or symbol.
    Name(&'a str, Option<&'a str>),
    /// `!p`
    Not(&'a str),
    /// An integer; negative ones in two's complement.
    Int(i128),
    /// Bits of an `f32`.
    F32(u32),
    /// Bits of an `f64`.
    F64(u64),
    /// `symbol+offset`
    Offset(&'a str, i64),
    /// `[name+offset]`; without a name, an absolute address.
    Address(Option<&'a str>, i64),
    /// `{a, b, ...}`
    Vector(Vec<Operand<'a>>),
    /// `a|b`
    Pair(&'a str, &'a str),
    /// `(a, b, ...)` of a call.
    List(Vec<Operand<'a>>),
}

/// A module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Module<'a> {
    pub(crate) vars: Vec<Var<'a>>,
    pub(crate) funcs: Vec<Func<'a>>,
}
