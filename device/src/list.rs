//! Requests made of many pieces: strided blocks and lists of descriptors.
//!
//! Knows: how members of a group share a list. Must not know: how its messages are posted.
#![allow(unsafe_code)] // Opens the caller's list.

use crate::{
    error::Error,
    group::{Group, Thread},
    mode::{CqForm, Doorbell, Sharing},
    op::{Chunks, Direction, List},
    sq::{Sq, Ticket},
};

impl<S: Sharing, D: Doorbell, C: CqForm> Sq<S, D, C> {
    /// Transfers `count` blocks like `block`, each so many bytes behind the one before.
    ///
    /// # Errors
    ///
    /// As [`Self::put`]'s.
    #[inline(always)]
    pub fn strided(
        &mut self,
        block: Chunks,
        local_stride: u64,
        remote_stride: u64,
        count: u64,
    ) -> Result<Ticket, Error> {
        self.stream_by(Thread, block.strided(local_stride, remote_stride, count))
    }

    /// As [`Self::strided`], by a group, whose members bring the same request and share its blocks.
    ///
    /// # Errors
    ///
    /// As [`Self::put`]'s.
    #[inline(always)]
    pub fn strided_by<G: Group>(
        &mut self,
        group: G,
        block: Chunks,
        local_stride: u64,
        remote_stride: u64,
        count: u64,
    ) -> Result<Ticket, Error> {
        let (rank, members) = group.scan(1, 1);
        let own = Chunks {
            local: block.local.offset(local_stride.wrapping_mul(rank)),
            remote: block.remote.offset(remote_stride.wrapping_mul(rank)),
            ..block
        };
        let blocks = count / members + u64::from(count % members > rank);
        self.stream_by(
            group,
            own.strided(
                local_stride.wrapping_mul(members),
                remote_stride.wrapping_mul(members),
                blocks,
            ),
        )
    }

    /// Transfers what the `count` descriptors at `address` say, all in one `direction`; those of no bytes are passed over.
    ///
    /// # Errors
    ///
    /// As [`Self::put`]'s, and [`Error::InvalidArgument`] for an address that is not a multiple of 8.
    ///
    /// # Safety
    ///
    /// `address` is that of `count` live [`Descriptor`](warpverbs_wire::abi::Descriptor)s in global memory, which nobody writes
    /// during the call; or it is misaligned, which is refused.
    #[inline(always)]
    pub unsafe fn list(
        &mut self,
        direction: Direction,
        address: u64,
        count: u64,
    ) -> Result<Ticket, Error> {
        // SAFETY: the caller's.
        unsafe { self.list_by(Thread, direction, address, count) }
    }

    /// As [`Self::list`], by a group, whose members bring the same request and share its descriptors.
    ///
    /// # Errors
    ///
    /// As [`Self::list`]'s.
    ///
    /// # Safety
    ///
    /// As [`Self::list`]'s.
    #[inline(always)]
    pub unsafe fn list_by<G: Group>(
        &mut self,
        group: G,
        direction: Direction,
        address: u64,
        count: u64,
    ) -> Result<Ticket, Error> {
        let (rank, members) = group.scan(1, 1);
        // SAFETY: the caller's.
        let list = unsafe {
            List::new(
                address,
                (rank, members, count),
                self.log_max_message(),
                direction,
            )
        }?;
        self.stream_by(group, list)
    }
}
