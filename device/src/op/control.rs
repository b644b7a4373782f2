//! Operations that move no data over the wire: NOP, DUMP, WAIT.
//!
//! Knows: their segments. Must not know: what they are used for.

use warpverbs_wire::wqe::{self, Opcode};

use super::place::{Filled, Head, Place};
use super::{Fill, Length, Local};

/// Nothing, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nop;

impl Fill for Nop {
    const WQEBBS: u32 = 1;
    #[inline(always)]
    fn fill(self, place: Place) -> Filled {
        place.short(Head::new(Opcode::Nop), [])
    }
}

/// DUMP: the NIC reads local memory and sends nothing. Its PCIe read pushes the writes before it (rule O14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dump {
    local: Local,
    len: Length,
}

impl Dump {
    /// The first `len` bytes of `local`.
    #[inline(always)]
    pub const fn new(local: Local, len: Length) -> Self {
        Self { local, len }
    }
}

impl Fill for Dump {
    const WQEBBS: u32 = 1;
    #[inline(always)]
    fn fill(self, place: Place) -> Filled {
        place.short(
            Head::new(Opcode::Dump),
            [wqe::data(
                self.len.bytes(),
                self.local.lkey,
                self.local.addr,
            )],
        )
    }
}

/// WAIT: the queue goes on once a CQ has produced the CQE of an index. The QP was made for it (`qpc.cd_master`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitCqe {
    cqn: u32,
    index: u32,
}

impl WaitCqe {
    /// The CQE `index`, counted since the CQ `cqn` was created; the NIC looks at its low 24 bits.
    #[inline(always)]
    pub const fn new(cqn: u32, index: u32) -> Self {
        Self { cqn, index }
    }
}

impl Fill for WaitCqe {
    const WQEBBS: u32 = 1;
    #[inline(always)]
    fn fill(self, place: Place) -> Filled {
        place.short(Head::new(Opcode::Wait), [wqe::wait(self.index, self.cqn)])
    }
}
