//! Operations on several pieces of local memory: gather for write and send, scatter for read.
//!
//! Knows: how many pieces a WQE takes. Must not know: where the pieces come from.

use warpverbs_wire::wqe::{self, MAX_DS, Opcode, SEGMENTS_PER_WQEBB};

use super::place::{Filled, Head, Place};
use super::{Fill, Length, Local, Remote};
use crate::error::Error;

/// A piece of local memory: not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins.
    pub local: Local,
    /// Its bytes.
    pub len: Length,
}

/// Several pieces of local memory that together are one message. Made by [`Sq::pieces`](crate::Sq::pieces).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pieces<const N: usize>([Piece; N]);

impl<const N: usize> Pieces<N> {
    /// Pieces whose sum is one message.
    #[inline(always)]
    pub(crate) fn new(pieces: [Piece; N], log_max: u32) -> Result<Self, Error> {
        const {
            assert!(
                N >= 1 && N + 2 <= MAX_DS as usize,
                "a WQE takes 1 to 61 pieces"
            );
        }
        let mut sum = 0;
        for piece in &pieces {
            sum += u64::from(piece.len.bytes());
        }
        if sum > 1 << log_max {
            return Err(Error::InvalidArgument);
        }
        Ok(Self(pieces))
    }

    #[inline(always)]
    fn fill(self, place: Place, head: Head, remote: Option<Remote>) -> Filled {
        let (mut segments, filled) = place.long(head, ds(N, remote.is_some()));
        if let Some(remote) = remote {
            segments.push(wqe::remote(remote.addr, remote.rkey));
        }
        for piece in self.0 {
            segments.push(wqe::data(
                piece.len.bytes(),
                piece.local.lkey,
                piece.local.addr,
            ));
        }
        filled
    }
}

const fn ds(pieces: usize, remote: bool) -> u32 {
    1 + remote as u32 + pieces as u32
}

macro_rules! one_sided {
    ($(#[$doc:meta])* $name:ident, $opcode:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name<const N: usize> {
            pieces: Pieces<N>,
            remote: Remote,
        }

        impl<const N: usize> $name<N> {
            /// The pieces, one after the other, and `remote`.
            #[inline(always)]
            pub const fn new(pieces: Pieces<N>, remote: Remote) -> Self {
                Self { pieces, remote }
            }
        }

        impl<const N: usize> Fill for $name<N> {
            const WQEBBS: u32 = ds(N, true).div_ceil(SEGMENTS_PER_WQEBB);
            #[inline(always)]
            fn fill(self, place: Place) -> Filled {
                self.pieces.fill(place, Head::new(Opcode::$opcode), Some(self.remote))
            }
        }
    };
}
one_sided! {
    /// RDMA write of several pieces.
    WriteFrom, RdmaWrite
}
one_sided! {
    /// RDMA read into several pieces.
    ReadInto, RdmaRead
}

/// Send of several pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendFrom<const N: usize> {
    pieces: Pieces<N>,
    immediate: Option<u32>,
}

impl<const N: usize> SendFrom<N> {
    /// The pieces, one after the other, with immediate data if there is some.
    #[inline(always)]
    pub const fn new(pieces: Pieces<N>, immediate: Option<u32>) -> Self {
        Self { pieces, immediate }
    }
}

impl<const N: usize> Fill for SendFrom<N> {
    const WQEBBS: u32 = ds(N, false).div_ceil(SEGMENTS_PER_WQEBB);
    #[inline(always)]
    fn fill(self, place: Place) -> Filled {
        let head = match self.immediate {
            Some(immediate) => Head {
                immediate,
                ..Head::new(Opcode::SendImmediate)
            },
            None => Head::new(Opcode::Send),
        };
        self.pieces.fill(place, head, None)
    }
}
