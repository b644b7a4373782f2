//! Sequence numbers in message buffers: how the two ends of a ping-pong see each other's messages.
//!
//! Knows: where a message's sequence number stands and how it is loaded and stored. Must not know: queues,
//! except to end a wait.
#![allow(unsafe_code)]

use crate::{
    arch::{self, Global},
    error::Error,
    mode::{CqForm, Doorbell, Sharing},
    scope::{Plain, Scope, Sys},
    sq::Sq,
    wait::Wait,
};

/// The last 8 bytes of a message buffer, or its last byte if it is shorter: a little-endian sequence number, truncated.
#[derive(Clone, Copy, Debug)]
pub struct Sequence {
    at: Global,
    narrow: bool,
}

impl Sequence {
    /// The sequence number of the buffer of `size` bytes at `buffer`, as the GPU addresses it.
    ///
    /// # Safety
    ///
    /// The buffer is live while the value is used, `size` is not 0, and `buffer + size` is a multiple of 8.
    #[inline(always)]
    pub unsafe fn new(buffer: u64, size: u32) -> Self {
        let narrow = size < 8;
        let width = if narrow { 1 } else { 8 };
        Self {
            at: Global::new(buffer.wrapping_add(u64::from(size)).wrapping_sub(width)),
            narrow,
        }
    }

    /// Writes it. The next post publishes it to the NIC (rule O2): a plain store does. No message from the buffer may be in
    /// flight.
    #[inline(always)]
    pub fn store(&self, value: u64) {
        // SAFETY: `new`: live and aligned.
        unsafe {
            if self.narrow {
                arch::store_u8(self.at, value as u8);
            } else {
                Plain::store_relaxed::<0>(self.at, value);
            }
        }
    }

    #[inline(always)]
    fn shows(&self, value: u64) -> bool {
        // SAFETY: `new`: live and aligned.
        unsafe {
            if self.narrow {
                arch::load_relaxed_sys_u8(self.at) == value as u8
            } else {
                Sys::load_relaxed::<0>(self.at) == value
            }
        }
    }

    /// Waits until the NIC has written `value`, within the bounds of `sq`'s waits. Whoever waits for an answer waits for the
    /// completion of the message first: one that failed gets none.
    ///
    /// This orders nothing: whoever reads the rest of the message calls [`acquire`] first. An answer needs no more than the fence
    /// of its post (rule O2).
    ///
    /// # Errors
    ///
    /// [`Error::Fault`], [`Error::Timeout`] and [`Error::Stopped`].
    #[inline(always)]
    pub fn wait<S: Sharing, D: Doorbell, C: CqForm>(
        &self,
        value: u64,
        sq: &Sq<S, D, C>,
    ) -> Result<(), Error> {
        arch::phase_poll();
        let mut wait = Wait::new();
        while !self.shows(value) {
            arch::phase_spin();
            wait.tick(&sq.handle, sq.bounds)?;
        }
        arch::phase_other();
        Ok(())
    }
}

/// Waits until the word at `address` is as wanted, within the bounds of `sq`'s waits; acquires.
///
/// # Errors
///
/// As [`Sequence::wait`]'s, and [`Error::InvalidArgument`] for an address that is not a multiple of 8.
///
/// # Safety
///
/// A live word of global memory, or misaligned, and nobody but NICs and strong operations writes it.
#[inline(always)]
pub(crate) unsafe fn wait_until<S: Sharing, D: Doorbell, C: CqForm>(
    address: u64,
    sq: &Sq<S, D, C>,
    wanted: impl Fn(u64) -> bool,
) -> Result<(), Error> {
    let at = Global::new(address);
    if !at.is_aligned::<8>() {
        return Err(Error::InvalidArgument);
    }
    arch::phase_poll();
    let mut wait = Wait::new();
    // SAFETY: the caller's; aligned.
    while !wanted(unsafe { Sys::load_relaxed::<0>(at) }) {
        arch::phase_spin();
        wait.tick(&sq.handle, sq.bounds)?;
    }
    arch::fence_sys();
    arch::phase_other();
    Ok(())
}

/// What was written before a sequence number that [`Sequence::wait`] has seen, and what its sender did before, happens before
/// what follows: the load was strong and at system scope.
#[inline(always)]
pub fn acquire() {
    arch::fence_sys();
}
