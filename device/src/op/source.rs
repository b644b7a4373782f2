//! Where the messages of a request come from: one transfer, equal blocks at distances, a list in memory.
//!
//! Knows: how a request is walked. Must not know: how its messages are posted.
#![allow(unsafe_code)] // Reads the caller's list.

use core::mem::offset_of;

use warpverbs_wire::abi::Descriptor;

use super::{Chunks, Direction, Length, Local, Remote};
use crate::arch::Global;
use crate::error::Error;
use crate::scope::{Plain, Scope};

/// Messages in order. Values of this crate only.
pub trait Source: Copy + super::sealed::Listed {
    /// The next message: what is left from its start on, and its length.
    fn next(&mut self) -> Option<(Chunks, Length)>;
}

impl super::sealed::Listed for Chunks {}
impl Source for Chunks {
    #[inline(always)]
    fn next(&mut self) -> Option<(Chunks, Length)> {
        if self.len == 0 {
            return None;
        }
        let whole = *self;
        let (len, rest) = self.split();
        *self = rest;
        Some((whole, len))
    }
}

/// `count` blocks, each a transfer as large as the first, at distances. Made of the first by [`Chunks::strided`].
#[derive(Clone, Copy, Debug)]
pub struct Strided {
    block: Chunks,
    now: Chunks,
    local_stride: u64,
    remote_stride: u64,
    left: u64,
}

impl Chunks {
    /// `count` blocks like this one, each so many bytes behind the one before.
    #[inline(always)]
    pub const fn strided(self, local_stride: u64, remote_stride: u64, count: u64) -> Strided {
        Strided {
            block: self,
            now: Self { len: 0, ..self },
            local_stride,
            remote_stride,
            left: if self.len == 0 { 0 } else { count },
        }
    }
}

impl super::sealed::Listed for Strided {}
impl Source for Strided {
    #[inline(always)]
    fn next(&mut self) -> Option<(Chunks, Length)> {
        if self.now.len == 0 {
            if self.left == 0 {
                return None;
            }
            self.left -= 1;
            self.now = self.block;
            self.block.local = self.block.local.offset(self.local_stride);
            self.block.remote = self.block.remote.offset(self.remote_stride);
        }
        self.now.next()
    }
}

/// The transfers of a list of [`Descriptor`]s in this GPU's memory, or every so many of them. Made by
/// [`Sq::list`](crate::Sq::list).
#[derive(Clone, Copy, Debug)]
pub struct List {
    at: Global,
    next: u64,
    count: u64,
    step: u64,
    now: Chunks,
}

impl List {
    /// # Safety
    ///
    /// As `Sq::list`'s.
    #[inline(always)]
    pub(crate) unsafe fn new(
        address: u64,
        (first, step, count): (u64, u64, u64),
        log_max: u32,
        direction: Direction,
    ) -> Result<Self, Error> {
        let at = Global::new(address);
        if !at.is_aligned::<8>() || step == 0 {
            return Err(Error::InvalidArgument);
        }
        Ok(Self {
            at,
            next: first,
            count,
            step,
            now: Chunks {
                local: Local { addr: 0, lkey: 0 },
                remote: Remote { addr: 0, rkey: 0 },
                len: 0,
                log_max,
                direction,
            },
        })
    }
}

impl super::sealed::Listed for List {}
impl Source for List {
    #[inline(always)]
    fn next(&mut self) -> Option<(Chunks, Length)> {
        // Descriptors of no bytes are passed over.
        while self.now.len == 0 {
            if self.next >= self.count {
                return None;
            }
            let at = self.at.offset(self.next * Descriptor::LEN as u64);
            self.next = self.next.saturating_add(self.step);
            // SAFETY: `new`: a live descriptor, aligned, that nobody writes.
            let (local, remote, len, keys) = unsafe {
                (
                    Plain::load_relaxed::<{ offset_of!(Descriptor, local) }>(at),
                    Plain::load_relaxed::<{ offset_of!(Descriptor, remote) }>(at),
                    Plain::load_relaxed::<{ offset_of!(Descriptor, len) }>(at),
                    Plain::load_relaxed::<{ offset_of!(Descriptor, lkey) }>(at),
                )
            };
            self.now = Chunks {
                local: Local {
                    addr: local,
                    lkey: keys as u32,
                },
                remote: Remote {
                    addr: remote,
                    rkey: (keys >> 32) as u32,
                },
                len,
                ..self.now
            };
        }
        self.now.next()
    }
}
