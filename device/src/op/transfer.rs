//! Data that moves by pointer: write, read, send.
//!
//! Knows: segments of these operations. Must not know: how several become one request.

use warpverbs_wire::wqe::{self, Opcode};

use super::place::{Filled, Head, Place};
use super::{Fill, Length, Local, Remote};

macro_rules! one_sided {
    ($(#[$doc:meta])* $name:ident, $opcode:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            local: Local,
            remote: Remote,
            len: Length,
        }

        impl $name {
            /// `len` bytes between `local` and `remote`.
            #[inline(always)]
            pub const fn new(local: Local, remote: Remote, len: Length) -> Self {
                Self { local, remote, len }
            }
        }

        impl Fill for $name {
            const WQEBBS: u32 = 1;
            #[inline(always)]
            fn fill(self, place: Place) -> Filled {
                place.short(
                    Head::new(Opcode::$opcode),
                    [
                        wqe::remote(self.remote.addr, self.remote.rkey),
                        wqe::data(self.len.bytes(), self.local.lkey, self.local.addr),
                    ],
                )
            }
        }
    };
}
one_sided! {
    /// RDMA write.
    Write, RdmaWrite
}
one_sided! {
    /// RDMA read. Its completion may not prove that the data is visible to this GPU (rule O14).
    Read, RdmaRead
}

/// RDMA write with immediate data, which takes a receive at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteImm {
    write: Write,
    immediate: u32,
}

impl WriteImm {
    /// The write, and the immediate data.
    #[inline(always)]
    pub const fn new(write: Write, immediate: u32) -> Self {
        Self { write, immediate }
    }
}

impl Fill for WriteImm {
    const WQEBBS: u32 = 1;
    #[inline(always)]
    fn fill(self, place: Place) -> Filled {
        let Write { local, remote, len } = self.write;
        place.short(
            Head {
                immediate: self.immediate,
                ..Head::new(Opcode::RdmaWriteImmediate)
            },
            [
                wqe::remote(remote.addr, remote.rkey),
                wqe::data(len.bytes(), local.lkey, local.addr),
            ],
        )
    }
}

/// Send, which takes a receive at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Send {
    local: Local,
    len: Length,
}

impl Send {
    /// `len` bytes of `local`.
    #[inline(always)]
    pub const fn new(local: Local, len: Length) -> Self {
        Self { local, len }
    }
}

impl Fill for Send {
    const WQEBBS: u32 = 1;
    #[inline(always)]
    fn fill(self, place: Place) -> Filled {
        place.short(
            Head::new(Opcode::Send),
            [wqe::data(
                self.len.bytes(),
                self.local.lkey,
                self.local.addr,
            )],
        )
    }
}

/// Send with immediate data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendImm {
    send: Send,
    immediate: u32,
}

impl SendImm {
    /// The send, and the immediate data.
    #[inline(always)]
    pub const fn new(send: Send, immediate: u32) -> Self {
        Self { send, immediate }
    }
}

impl Fill for SendImm {
    const WQEBBS: u32 = 1;
    #[inline(always)]
    fn fill(self, place: Place) -> Filled {
        let Send { local, len } = self.send;
        place.short(
            Head {
                immediate: self.immediate,
                ..Head::new(Opcode::SendImmediate)
            },
            [wqe::data(len.bytes(), local.lkey, local.addr)],
        )
    }
}

/// Which way one-sided data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the peer.
    Put,
    /// From the peer.
    Get,
}

/// A transfer of any size, in messages of at most the port's largest (rule O12): one WQE each, none for no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks {
    pub(crate) local: Local,
    pub(crate) remote: Remote,
    pub(crate) len: u64,
    pub(crate) log_max: u32,
    pub(crate) direction: Direction,
}

impl Chunks {
    /// How many messages `len` bytes are: at most `u32::MAX`, which no queue takes.
    #[inline(always)]
    pub(crate) fn count(len: u64, log_max: u32) -> u32 {
        let max = 1u64 << log_max;
        let count = (len >> log_max) + u64::from(len & (max - 1) != 0);
        if count > u64::from(u32::MAX) {
            u32::MAX
        } else {
            count as u32
        }
    }

    /// The first message, and the rest. There are bytes.
    #[inline(always)]
    pub(crate) fn split(self) -> (Length, Self) {
        let first = Length::first_of(self.len, self.log_max);
        let bytes = u64::from(first.bytes());
        let rest = Self {
            local: self.local.offset(bytes),
            remote: self.remote.offset(bytes),
            len: self.len - bytes,
            ..self
        };
        (first, rest)
    }

    #[inline(always)]
    pub(crate) fn fill_one(self, len: Length, place: Place) -> Filled {
        match self.direction {
            Direction::Put => Write::new(self.local, self.remote, len).fill(place),
            Direction::Get => Read::new(self.local, self.remote, len).fill(place),
        }
    }
}

impl Fill for Chunks {
    const WQEBBS: u32 = 0;
    const SHORT: bool = true;
    #[inline(always)]
    fn wqebbs(&self) -> u32 {
        Self::count(self.len, self.log_max)
    }
    #[inline(always)]
    fn fill(self, mut place: Place) -> Filled {
        let mut left = self;
        loop {
            let (len, rest) = left.split();
            let filled = left.fill_one(len, place);
            if rest.len == 0 {
                return filled;
            }
            left = rest;
            place = place.ahead(1);
        }
    }
}
