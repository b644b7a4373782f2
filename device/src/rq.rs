//! A receive queue with its CQ: posting receives, taking what arrived.
//!
//! Knows: the order of stores, fences and the record, and who takes which completion. Must not know: send queues.
//!
//! Receives are published in ticket order, as posts are (`post`); their doorbell is the record alone. A completion is taken by one
//! thread: it finds the CQE at the consumer index, reads it, and takes it by a compare-and-swap of that index, which fails if
//! another thread was first. Until then the NIC does not write that CQE again: the CQ holds more CQEs than the queue has receives,
//! and a slot of the queue is posted again behind the taking of its completion: receives complete in order, one CQE each, so the
//! consumer index tells which slots are free.

use core::marker::PhantomData;

use warpverbs_wire::{
    abi::{self, FaultCause, State},
    cqe::CqeOpcode,
    doorbell, wqe,
};

use crate::{
    arch,
    error::Error,
    mode::Sharing,
    op::{Length, Local, Piece},
    rq_handle::RqHandle,
    rq_ring::{RqRing, Words},
    scope::Scope,
    wait::{Bounds, LOOK_EVERY, Wait, Watched},
};

/// The receive queue of an exported QP, with its CQ. Modes of sharing are those of [`Sq`](crate::Sq).
#[derive(Debug)]
pub struct Rq<S: Sharing> {
    handle: RqHandle<S::Scope>,
    ring: RqRing,
    depth: u64,
    pieces: u32,
    checked: bool,
    bounds: Bounds,
    /// Exclusive: the next index. Shared: unused.
    reserved: u64,
    /// Exclusive: the CQ consumer index. Shared: as last seen.
    consumer: u64,
    /// CQEs that the CQ had written before that of RQ index 0.
    carried: u64,
    modes: PhantomData<S>,
}

/// A message that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// RQ index of the receive that it took.
    pub index: u64,
    /// What arrived.
    pub kind: ReceivedKind,
    /// Its bytes.
    pub len: u32,
    /// Its immediate data, or the key that it invalidated; meaningful as `kind` says.
    pub immediate: u32,
    /// Number of the local QP.
    pub qpn: u32,
    /// User index of the local QP.
    pub user_index: u32,
}

/// How a message arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceivedKind {
    /// By an RDMA write with immediate data: the receive's buffers are not written.
    WriteImmediate,
    /// By a send.
    Send,
    /// By a send with immediate data.
    SendImmediate,
    /// By a send that invalidates a key.
    SendInvalidate,
}

impl<S: Sharing> Rq<S> {
    /// Loads the receive queue of the handle at `address`.
    ///
    /// # Errors
    ///
    /// As [`Sq::open`](crate::Sq::open)'s.
    ///
    /// # Safety
    ///
    /// As [`Sq::open`](crate::Sq::open)'s, of an [`RqHandle`](abi::RqHandle).
    #[inline(always)]
    #[allow(unsafe_code)] // The door through which the address enters.
    pub unsafe fn open(address: u64) -> Result<Self, Error> {
        // SAFETY: the caller's.
        let (handle, fields) = unsafe { RqHandle::load(address) }?;
        let sound = fields.rq_depth.is_power_of_two()
            && fields.rq_depth <= abi::MAX_SQ_DEPTH
            && fields.cq_depth.is_power_of_two()
            && fields.cq_depth > fields.rq_depth
            && fields.log_stride >= 4
            && fields.log_stride <= 9
            && fields.qpn >> 24 == 0;
        if !sound {
            return Err(Error::Fault(State::fault(
                FaultCause::BadHandle,
                0,
                0,
                0,
                0,
            )));
        }
        // SAFETY: a sound handle's addresses and sizes, by the caller's promise.
        let ring = unsafe { RqRing::new(&fields) };
        Ok(Self {
            handle,
            ring,
            depth: u64::from(fields.rq_depth),
            pieces: 1 << (fields.log_stride - 4),
            checked: fields.flags.overrun_checked(),
            bounds: Bounds::DEFAULT,
            reserved: handle.reserved(),
            consumer: handle.consumer(),
            carried: handle.carried(),
            modes: PhantomData,
        })
    }

    /// Sets the longest time that one wait may take.
    #[inline(always)]
    pub fn set_deadline(&mut self, ns: u64) {
        self.bounds.deadline_ns = ns;
    }

    /// Sets how often one wait may look: see [`Sq::set_spins`](crate::Sq::set_spins).
    #[inline(always)]
    pub fn set_spins(&mut self, spins: u64) {
        self.bounds.spins = spins;
    }

    /// Receives that the queue holds.
    #[inline(always)]
    pub const fn depth(&self) -> u64 {
        self.depth
    }

    /// Posts one receive of `len` bytes, 1 to 2^31 - 1. Returns its index.
    ///
    /// # Errors
    ///
    /// As [`Self::post_many`]'s.
    #[inline(always)]
    pub fn post(&mut self, local: Local, len: u32) -> Result<u64, Error> {
        self.post_many(1, |_| (local, len))
    }

    /// Posts `count` receives of one buffer each, with one publication; `buffer` names each one's memory and bytes, 1 to 2^31 - 1.
    /// Returns the first index.
    ///
    /// # Errors
    ///
    /// [`Error::NoResource`] if the queue has no room for all, with nothing changed: completions make room, and who takes them must be
    /// free to; [`Error::InvalidArgument`] for no receives, or more than the queue holds; [`Error::Stopped`] and [`Error::Fault`]. A
    /// buffer of another size ends as one of its low 31 bits does, by the NIC.
    #[inline(always)]
    pub fn post_many(
        &mut self,
        count: u32,
        mut buffer: impl FnMut(u32) -> (Local, u32),
    ) -> Result<u64, Error> {
        self.post_filled(count, |k, ring, index| {
            let (local, len) = buffer(k);
            ring.write(index, 0, wqe::data(len, local.lkey, local.addr));
            1
        })
    }

    /// Posts one receive of several buffers. Returns its index.
    ///
    /// # Errors
    ///
    /// As [`Self::post_many`]'s, and [`Error::InvalidArgument`] for more pieces than a receive of this queue has.
    #[inline(always)]
    pub fn post_pieces<const N: usize>(&mut self, pieces: [Piece; N]) -> Result<u64, Error> {
        if N == 0 || N > self.pieces as usize {
            return Err(Error::InvalidArgument);
        }
        self.post_filled(1, |_, ring, index| {
            let mut n = 0;
            for Piece { local, len } in pieces {
                ring.write(index, n, wqe::data(len.bytes(), local.lkey, local.addr));
                n += 1;
            }
            n
        })
    }

    /// A piece of a receive: `len` is 1 to 2^30 bytes.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for another.
    #[inline(always)]
    pub fn piece(&self, local: Local, len: u32) -> Result<Piece, Error> {
        match Length::new(len, 30) {
            Some(len) => Ok(Piece { local, len }),
            None => Err(Error::InvalidArgument),
        }
    }

    #[inline(always)]
    fn post_filled(
        &mut self,
        count: u32,
        mut fill: impl FnMut(u32, &RqRing, u64) -> u32,
    ) -> Result<u64, Error> {
        let wanted = u64::from(count);
        if count == 0 || wanted > self.depth {
            return Err(Error::InvalidArgument);
        }
        self.check_state()?;
        let mut first = self.next();
        loop {
            if !self.has_room(first + wanted) {
                if S::SHARED {
                    self.consumer = self.handle.consumer();
                }
                if !self.has_room(first + wanted) {
                    return Err(Error::NoResource);
                }
            }
            if !S::SHARED {
                self.reserved = first + wanted;
                break;
            }
            // So that a full queue is left as it was (rule O9).
            if self.handle.reserve_at(first, wanted) {
                break;
            }
            first = self.next();
        }
        for k in 0..count {
            let index = first + u64::from(k);
            let written = fill(k, &self.ring, index);
            if written < self.pieces {
                self.ring.write(index, written, wqe::receive_end());
            }
        }
        let mut wait = Wait::new();
        while S::SHARED && self.handle.turn() != first {
            if let Err(error) = wait.tick(&self.handle, self.bounds) {
                return Err(self.abandon(first, error));
            }
        }
        let end = first + wanted;
        // O2, and between the load of `turn` and the record (O5).
        arch::fence_sys();
        if self.checked {
            // By who has the turn, so that it never goes back. It makes room for what is published: its slots are free by a
            // consumer index that this thread acquired.
            let consumer = if S::SHARED {
                self.handle.consumer()
            } else {
                self.consumer
            };
            self.ring.record_consumer(consumer);
        }
        self.ring.record(doorbell::dbr_word(end));
        if S::SHARED {
            self.handle.hand_off(end);
        }
        Ok(first)
    }

    /// True if receives up to `end` fit, as far as is known.
    #[inline(always)]
    fn has_room(&self, end: u64) -> bool {
        end <= self.consumer.wrapping_sub(self.carried) + self.depth
    }

    #[inline(always)]
    fn next(&self) -> u64 {
        if S::SHARED {
            self.handle.reserved()
        } else {
            self.reserved
        }
    }

    /// Takes a message that has arrived, if there is one. What its sender did before happens before what follows.
    ///
    /// # Errors
    ///
    /// [`Error::Fault`] if a receive failed: the first error stays.
    #[inline(always)]
    pub fn try_receive(&mut self) -> Result<Option<Received>, Error> {
        arch::phase_poll();
        let received = self.take();
        arch::phase_other();
        received
    }

    /// Waits for a message.
    ///
    /// # Errors
    ///
    /// [`Error::Fault`], [`Error::Timeout`] and [`Error::Stopped`]; the latter two take nothing.
    #[inline(always)]
    pub fn receive(&mut self) -> Result<Received, Error> {
        arch::phase_poll();
        let mut wait = Wait::new();
        loop {
            if let Some(received) = self.take()? {
                arch::phase_other();
                return Ok(received);
            }
            arch::phase_spin();
            wait.tick(&self.handle, self.bounds)?;
        }
    }

    #[inline(always)]
    fn take(&mut self) -> Result<Option<Received>, Error> {
        loop {
            let consumer = if S::SHARED {
                self.handle.consumer()
            } else {
                self.consumer
            };
            // O6: opcode, owner bit and WQE counter by one strong load; the rest only after the fence.
            let tail = self.ring.tail(consumer);
            if !self.ring.is_new(tail, consumer) {
                if S::SHARED {
                    // A fault that another thread found is ours too.
                    let state = self.handle.state();
                    if state.is_fault() {
                        return Err(Error::Fault(state));
                    }
                }
                return Ok(None);
            }
            arch::fence_sys();
            let kind = match CqeOpcode::from_code(tail.opcode_bits()) {
                CqeOpcode::ResponderWriteImmediate => ReceivedKind::WriteImmediate,
                CqeOpcode::ResponderSend => ReceivedKind::Send,
                CqeOpcode::ResponderSendImmediate => ReceivedKind::SendImmediate,
                CqeOpcode::ResponderSendInvalidate => ReceivedKind::SendInvalidate,
                // An error, or what a receive CQ does not carry, which is recorded just the same. It is not taken.
                _ => {
                    arch::cold();
                    let error = self.ring.error(consumer);
                    let index = consumer.wrapping_sub(self.carried);
                    let fault = State::fault(
                        FaultCause::Completion,
                        error.syndrome(),
                        error.vendor_syndrome(),
                        tail.opcode_bits(),
                        index,
                    );
                    return Err(Error::Fault(self.handle.latch(fault)));
                }
            };
            let words = self.ring.words(consumer);
            if S::SHARED {
                // The loads above come before the taking: who acquires it lets the NIC write the CQE again.
                <S::Scope as Scope>::fence();
                if !self.handle.take_at(consumer) {
                    // Another thread took it.
                    continue;
                }
            }
            self.consumer = consumer + 1;
            let index = consumer.wrapping_sub(self.carried);
            let Words {
                user_index,
                immediate,
                len,
            } = words;
            return Ok(Some(Received {
                index,
                kind,
                len,
                immediate,
                qpn: tail.qpn(),
                user_index,
            }));
        }
    }

    /// The state word as it stands.
    #[inline(always)]
    pub fn state(&self) -> State {
        self.handle.state()
    }

    #[inline(always)]
    fn check_state(&self) -> Result<(), Error> {
        let state = self.handle.state();
        if state.is_fault() {
            return Err(Error::Fault(state));
        }
        if state.is_stopped()
            || (self.reserved.is_multiple_of(LOOK_EVERY) && self.handle.look_for_stop())
        {
            return Err(Error::Stopped);
        }
        Ok(())
    }

    /// As a send queue's (rule O9).
    #[inline]
    fn abandon(&self, index: u64, error: Error) -> Error {
        match error {
            Error::Timeout | Error::Stopped => {
                let fault = State::fault(FaultCause::Abandoned, 0, 0, 0, index);
                Error::Fault(self.handle.latch(fault))
            }
            other => other,
        }
    }
}

impl<S: Sharing> Drop for Rq<S> {
    #[inline(always)]
    fn drop(&mut self) {
        if !S::SHARED {
            self.handle.save(self.reserved, self.consumer);
        }
    }
}
