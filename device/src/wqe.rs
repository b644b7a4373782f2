//! What a caller asks for, and the WQEBB that it is written to.
//!
//! Knows: which segments each operation has (their bytes are `wire`'s). Must not know: indices beyond its
//! own, ordering.

use warpverbs_wire::wqe::{self, Opcode, Segment};

use crate::ring::Wqebb;

/// Local memory, as the NIC addresses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// Address.
    pub addr: u64,
    /// Key.
    pub lkey: u32,
}

/// The peer's memory, as its NIC addresses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address.
    pub addr: u64,
    /// Key.
    pub rkey: u32,
}

/// Bytes of one message: not zero, at most the port's largest (rule O12), so never `byte_count`'s bit 31.
///
/// Made by [`Sq::length`](crate::Sq::length).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Length(u32);

impl Length {
    /// A length of at most `2^log_max` bytes.
    #[inline(always)]
    pub(crate) fn new(bytes: u32, log_max: u32) -> Option<Self> {
        // One comparison for both ends: 0 wraps to the top. `log_max` was checked to be at most 30 when the
        // queue was opened.
        (bytes.wrapping_sub(1) < 1 << log_max).then_some(Self(bytes))
    }
}

/// Up to 28 bytes that travel in the WQE itself, held in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inline {
    words: [u32; 7],
    len: u32,
}

impl Inline {
    /// Most bytes: what the WQEBB leaves beside the control and remote-address segments and the inline header.
    pub const MAX: u32 = wqe::MAX_INLINE_ONE_WQEBB;

    /// The first `len` bytes of `words`, little-endian: 1 to 28, else `None`.
    #[inline(always)]
    pub const fn new(words: [u32; 7], len: u32) -> Option<Self> {
        if len == 0 || len > Self::MAX {
            None
        } else {
            Some(Self { words, len })
        }
    }

    /// Four bytes, little-endian.
    #[inline(always)]
    pub const fn from_u32(value: u32) -> Self {
        Self {
            words: [value, 0, 0, 0, 0, 0, 0],
            len: 4,
        }
    }

    /// Eight bytes, little-endian.
    #[inline(always)]
    pub const fn from_u64(value: u64) -> Self {
        Self {
            words: [value as u32, (value >> 32) as u32, 0, 0, 0, 0, 0],
            len: 8,
        }
    }
}

/// A reserved, free WQEBB. Writing a WQE uses it up.
#[derive(Debug)]
pub struct Slot {
    pub(crate) wqebb: Wqebb,
    pub(crate) index: u64,
    pub(crate) qpn: u32,
}

/// Proof that a slot holds a whole WQE: what the doorbell needs of it.
#[derive(Debug)]
pub struct Filled {
    /// The first 8 bytes of the control segment, which are the doorbell's value too.
    pub(crate) head: u64,
}

impl Slot {
    /// RDMA write.
    #[inline(always)]
    pub fn write(self, local: Local, remote: Remote, len: Length) -> Filled {
        self.transfer(Opcode::RdmaWrite, local, remote, len)
    }

    /// RDMA read.
    #[inline(always)]
    pub fn read(self, local: Local, remote: Remote, len: Length) -> Filled {
        self.transfer(Opcode::RdmaRead, local, remote, len)
    }

    /// RDMA write of bytes held in registers: three segments up to 12 bytes, four beyond.
    #[inline(always)]
    pub fn write_inline(self, remote: Remote, data: Inline) -> Filled {
        let join = |low: u32, high: u32| u64::from(low) | (u64::from(high) << 32);
        let w = data.words;
        let remote = wqe::remote(remote.addr, remote.rkey);
        let head = wqe::inline_head(data.len, w[0], join(w[1], w[2]));
        if data.len <= wqe::INLINE_HEAD_BYTES {
            self.whole(Opcode::RdmaWrite, [remote, head])
        } else {
            self.whole(
                Opcode::RdmaWrite,
                [remote, head, [join(w[3], w[4]), join(w[5], w[6])]],
            )
        }
    }

    /// DUMP: the NIC reads local memory and sends nothing. Its PCIe read pushes the writes before it (rule O14).
    #[inline(always)]
    pub fn dump(self, local: Local, len: Length) -> Filled {
        self.whole(Opcode::Dump, [wqe::data(len.0, local.lkey, local.addr)])
    }

    #[inline(always)]
    fn transfer(self, opcode: Opcode, local: Local, remote: Remote, len: Length) -> Filled {
        self.whole(
            opcode,
            [
                wqe::remote(remote.addr, remote.rkey),
                wqe::data(len.0, local.lkey, local.addr),
            ],
        )
    }

    /// Writes a WQE of a control segment and these. Every WQE is signalled: the completed index, and with it
    /// the room in the queue, moves by completions alone.
    #[inline(always)]
    fn whole<const BEHIND: usize>(self, opcode: Opcode, segments: [Segment; BEHIND]) -> Filled {
        let qpn_ds = wqe::qpn_ds(self.qpn, 1 + BEHIND as u32);
        let head = wqe::control_head(self.index, opcode, qpn_ds);
        self.wqebb
            .write(wqe::control(head, wqe::SIGNALLED, 0), segments);
        Filled { head }
    }
}
