//! Data that travels in the WQE.
//!
//! Knows: how bytes are packed behind the inline header. Must not know: who reads them.
#![allow(unsafe_code)] // Reads the caller's memory.

use warpverbs_wire::wqe::{self, Opcode, SEGMENTS_PER_WQEBB, Segment};

use super::place::{Filled, Head, Place};
use super::{Fill, Remote};
use crate::arch::{self, Global};
use crate::error::Error;

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

    #[inline(always)]
    fn segments(self) -> (Segment, Segment) {
        let join = |low: u32, high: u32| u64::from(low) | (u64::from(high) << 32);
        let w = self.words;
        (
            wqe::inline_head(self.len, w[0], join(w[1], w[2])),
            [join(w[3], w[4]), join(w[5], w[6])],
        )
    }

    #[inline(always)]
    const fn is_short(self) -> bool {
        self.len <= wqe::INLINE_HEAD_BYTES
    }
}

/// RDMA write of bytes held in registers: three segments up to 12 bytes, four beyond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteInline {
    remote: Remote,
    data: Inline,
}

impl WriteInline {
    /// `data` to `remote`.
    #[inline(always)]
    pub const fn new(remote: Remote, data: Inline) -> Self {
        Self { remote, data }
    }
}

impl Fill for WriteInline {
    const WQEBBS: u32 = 1;
    #[inline(always)]
    fn fill(self, place: Place) -> Filled {
        let remote = wqe::remote(self.remote.addr, self.remote.rkey);
        let (head, rest) = self.data.segments();
        let kind = Head::new(Opcode::RdmaWrite);
        if self.data.is_short() {
            place.short(kind, [remote, head])
        } else {
            place.short(kind, [remote, head, rest])
        }
    }
}

/// Send of bytes held in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendInline {
    data: Inline,
    immediate: Option<u32>,
}

impl SendInline {
    /// `data`, with immediate data if there is some.
    #[inline(always)]
    pub const fn new(data: Inline, immediate: Option<u32>) -> Self {
        Self { data, immediate }
    }
}

impl Fill for SendInline {
    const WQEBBS: u32 = 1;
    #[inline(always)]
    fn fill(self, place: Place) -> Filled {
        let (head, rest) = self.data.segments();
        let kind = match self.immediate {
            Some(immediate) => Head {
                immediate,
                ..Head::new(Opcode::SendImmediate)
            },
            None => Head::new(Opcode::Send),
        };
        if self.data.is_short() {
            place.short(kind, [head])
        } else {
            place.short(kind, [head, rest])
        }
    }
}

/// Bytes in this GPU's memory that will travel in the WQE.
#[derive(Clone, Copy, Debug)]
pub struct InlineFrom {
    at: Global,
    len: u32,
}

impl InlineFrom {
    /// Most bytes: what a WQE of 63 segments, as many as its 6 bits count, leaves beside control and remote-address segments and
    /// the inline header.
    pub const MAX: u32 = wqe::inline_room(wqe::MAX_DS as u32 - 2);

    /// The `len` bytes at `address`, at any alignment.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for none and for more than [`Self::MAX`].
    ///
    /// # Safety
    ///
    /// They are live global memory, and nobody writes them until the value was posted.
    #[inline(always)]
    pub unsafe fn new(address: u64, len: u32) -> Result<Self, Error> {
        if len == 0 || len > Self::MAX {
            return Err(Error::InvalidArgument);
        }
        Ok(Self {
            at: Global::new(address),
            len,
        })
    }

    /// The 4 bytes from `offset` on; zeroes beyond the end.
    #[inline(always)]
    fn word(self, offset: u32) -> u64 {
        if offset >= self.len {
            return 0;
        }
        let at = self.at.offset(u64::from(offset));
        let left = self.len - offset;
        if left >= 4 && at.is_aligned::<4>() {
            // SAFETY: `new`: live; aligned, and within the length.
            return u64::from(unsafe { arch::load_weak_u32(at) });
        }
        let mut word = 0;
        for byte in 0..if left < 4 { left } else { 4 } {
            // SAFETY: `new`: live, and within the length.
            let value = unsafe { arch::load_weak_u8(at.offset(u64::from(byte))) };
            word |= u64::from(value) << (8 * byte);
        }
        word
    }

    #[inline(always)]
    fn two_words(self, offset: u32) -> u64 {
        self.word(offset) | self.word(offset + 4) << 32
    }
}

/// RDMA write of bytes in memory that are copied into the WQE: 1 to [`InlineFrom::MAX`] of them, 1 to 16 WQEBBs.
#[derive(Clone, Copy, Debug)]
pub struct WriteInlineFrom {
    remote: Remote,
    data: InlineFrom,
    immediate: Option<u32>,
}

impl WriteInlineFrom {
    /// `data` to `remote`, with immediate data if there is some.
    #[inline(always)]
    pub const fn new(remote: Remote, data: InlineFrom, immediate: Option<u32>) -> Self {
        Self {
            remote,
            data,
            immediate,
        }
    }

    #[inline(always)]
    fn ds(&self) -> u32 {
        2 + wqe::inline_segments(self.data.len)
    }
}

impl Fill for WriteInlineFrom {
    const WQEBBS: u32 = 0;
    const SHORT: bool = false;
    #[inline(always)]
    fn wqebbs(&self) -> u32 {
        self.ds().div_ceil(SEGMENTS_PER_WQEBB)
    }
    #[inline(always)]
    fn fill(self, place: Place) -> Filled {
        let kind = match self.immediate {
            Some(immediate) => Head {
                immediate,
                ..Head::new(Opcode::RdmaWriteImmediate)
            },
            None => Head::new(Opcode::RdmaWrite),
        };
        let (mut segments, filled) = place.long(kind, self.ds());
        segments.push(wqe::remote(self.remote.addr, self.remote.rkey));
        let data = self.data;
        segments.push(wqe::inline_head(
            data.len,
            data.word(0) as u32,
            data.two_words(4),
        ));
        let mut offset = wqe::INLINE_HEAD_BYTES;
        while offset < data.len {
            segments.push([data.two_words(offset), data.two_words(offset + 8)]);
            offset += 16;
        }
        filled
    }
}
