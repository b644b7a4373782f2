//! A send queue, loaded from its handle into registers.
//!
//! Knows: what is kept in registers, and the state word's meaning. Must not know: how to post (`post`) or
//! poll (`poll`).

use core::marker::PhantomData;

use warpverbs_wire::abi::{self, FaultCause, LongWqe, State};

use crate::{
    arch,
    error::Error,
    group::Group,
    handle::Handle,
    mode::{CqForm, Doorbell, Sharing, Tell},
    op::{Length, Local, Piece, Pieces},
    ring::{Bell, CqRing, SqRing},
    wait::{Bounds, LOOK_EVERY, Watched},
};

/// Longest wait unless [`Sq::set_deadline`] says otherwise. Longer than a QP takes to give up: with timeout 14 and 7
/// retries about 3.6 s (rule O9).
pub const DEFAULT_DEADLINE_NS: u64 = 10_000_000_000;

/// A place in the send queue: done once all WQEs up to and including it have completed.
///
/// It is the index after the WQE's first WQEBB, as completions name a WQE by that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub(crate) u64);

impl Ticket {
    /// The SQ index: 64 bits, never wraps.
    #[inline(always)]
    pub const fn index(self) -> u64 {
        self.0
    }

    /// The ticket of an index that [`Self::index`] gave.
    #[inline(always)]
    pub const fn at(index: u64) -> Self {
        Self(index)
    }
}

/// The send queue of an exported QP with its send CQ.
///
/// All immutable fields live in registers, and with [`Exclusive`](crate::Exclusive) the indices too: they are
/// written back when the value is dropped, for the QP's next user. A value that is forgotten (`mem::forget`)
/// leaves the QP unusable.
#[derive(Debug)]
pub struct Sq<S: Sharing, D: Doorbell, C: CqForm> {
    pub(crate) handle: Handle<S::Scope>,
    pub(crate) ring: SqRing,
    pub(crate) bell: Bell,
    pub(crate) cq: CqRing,
    pub(crate) qpn: u32,
    /// WQEBBs in use at a time: one less than there are; the last is the host's marker (rule O11).
    pub(crate) capacity: u64,
    log_max_message: u32,
    /// READ data needs a DUMP before it is read (rule O14).
    pub(crate) reads_need_dump: bool,
    pub(crate) bounds: Bounds,
    /// Exclusive: the next index. Shared: unused.
    pub(crate) reserved: u64,
    /// Index up to which WQEBBs fit: the completed index, and `capacity`. Kept as the sum, since that is what
    /// a post compares with. Shared: as last seen; it only grows, so an old value is safe.
    room: u64,
    /// Exclusive: CQ consumer index. Shared: unused.
    pub(crate) consumer: u64,
    /// Exclusive: WQEBBs that are posted and not rung for.
    pub(crate) pending: u64,
    /// Exclusive: what this owner adds to the handle's gap.
    pub(crate) gap: u64,
    /// Exclusive: the last WQE of several WQEBBs, if this owner posted one.
    pub(crate) long: LongWqe,
    /// This value writes the words of an exclusive queue back: one member of a group does.
    saves: bool,
    modes: PhantomData<(S, D, C)>,
}

impl<S: Sharing, D: Doorbell, C: CqForm> Sq<S, D, C> {
    /// Loads the queue of the handle at `address`.
    ///
    /// # Errors
    ///
    /// [`Error::BadVersion`] if the handle is of another version, [`Error::Fault`] with
    /// [`FaultCause::BadHandle`] if its fields contradict each other, [`Error::InvalidArgument`] if its CQ
    /// has the other form.
    ///
    /// # Safety
    ///
    /// - `address` is zero, or that of a [`QpHandle`](abi::QpHandle) that stays exported, with all that it names, while the
    ///   value is used; or it is misaligned, which is refused.
    /// - With [`Exclusive`](crate::Exclusive), no other thread uses the QP meanwhile; otherwise every thread
    ///   uses it in the same modes, and is one of those that the sharing names.
    /// - Memory that an operation in flight reads is not written, and memory that it writes is neither read
    ///   nor written, by anyone until the operation has completed.
    #[inline(always)]
    #[allow(unsafe_code)] // The door through which the address enters.
    pub unsafe fn open(address: u64) -> Result<Self, Error> {
        // SAFETY: the caller's.
        unsafe { Self::open_as(address, true) }
    }

    /// As [`Self::open`], for one member of a group.
    ///
    /// # Errors
    ///
    /// As [`Self::open`]'s: all members get the same.
    ///
    /// # Safety
    ///
    /// As [`Self::open`]'s. With [`Exclusive`](crate::Exclusive) every member of the group, the same ones each time, makes every
    /// call on the queue together with the others; a value is dropped before the group opens the QP again.
    #[inline(always)]
    #[allow(unsafe_code)] // As `open`.
    pub unsafe fn open_by<G: Group>(group: G, address: u64) -> Result<Self, Error> {
        // An exclusive queue's words are read behind the write of the group's last value, and all have read them before the next.
        if !S::SHARED {
            group.sync();
        }
        // SAFETY: the caller's.
        let opened = unsafe { Self::open_as(address, group.is_leader()) };
        if !S::SHARED {
            group.sync();
        }
        opened
    }

    #[inline(always)]
    #[allow(unsafe_code)] // As `open`.
    unsafe fn open_as(address: u64, saves: bool) -> Result<Self, Error> {
        // SAFETY: the caller's.
        let (handle, fields) = unsafe { Handle::load(address) }?;
        let collapsed = fields.flags.collapsed();
        let sound = fields.sq_depth.is_power_of_two()
            && fields.sq_depth >= 2
            && fields.sq_depth <= abi::MAX_SQ_DEPTH
            && fields.cq_depth.is_power_of_two()
            // The host creates CQs with overrun-ignore, so that the CQ's own doorbell record need not be
            // written; a ring with room for every WQE in flight, and one more, cannot overrun (see `poll`).
            && (if collapsed { fields.cq_depth == 1 } else { fields.cq_depth > fields.sq_depth })
            && fields.log_max_message <= 30
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
        const {
            assert!(
                C::EVERY.is_power_of_two(),
                "one in so many is a power of two"
            );
        }
        let no_dbr = !D::RECORD && matches!(D::TELL, Tell::Register);
        if collapsed != C::COLLAPSED
            || fields.flags.no_dbr() != no_dbr
            || fields.flags.overrun_checked() != C::CHECKED
            || (C::EVERY > 1 && fields.sq_depth / 2 < C::EVERY)
        {
            return Err(Error::InvalidArgument);
        }
        let record = if matches!(D::TELL, Tell::Host) {
            let proxy = handle.proxy();
            if proxy == 0 {
                return Err(Error::InvalidArgument);
            }
            proxy
        } else {
            fields.dbr
        };
        let cq_record = if C::CHECKED { handle.cq_dbr() } else { 0 };
        // SAFETY: a sound handle's addresses and depths, by the caller's promise.
        let (ring, bell, cq) = unsafe {
            (
                SqRing::new(fields.sq, fields.sq_depth - 1),
                Bell::new(record, fields.doorbell),
                CqRing::new(fields.cq, fields.cq_depth - 1, cq_record),
            )
        };
        let capacity = u64::from(fields.sq_depth - 1);
        Ok(Self {
            handle,
            ring,
            bell,
            cq,
            qpn: fields.qpn,
            capacity,
            log_max_message: fields.log_max_message,
            reads_need_dump: fields.flags.reads_need_dump(),
            reserved: if S::SHARED { 0 } else { handle.reserved() },
            room: handle.completed() + capacity,
            consumer: if S::SHARED { 0 } else { handle.consumer() },
            pending: 0,
            gap: 0,
            long: LongWqe(0),
            saves,
            bounds: Bounds::DEFAULT,
            modes: PhantomData,
        })
    }

    /// Sets the longest time that one wait may take.
    #[inline(always)]
    pub fn set_deadline(&mut self, ns: u64) {
        self.bounds.deadline_ns = ns;
    }

    /// Sets how often one wait may look, `u64::MAX` being without end: a wait also ends by that, with [`Error::Timeout`]. A
    /// poster of a shared queue who gives up so between reserve and hand-off latches [`FaultCause::Abandoned`], as with the
    /// deadline.
    #[inline(always)]
    pub fn set_spins(&mut self, spins: u64) {
        self.bounds.spins = spins;
    }

    /// Sets for how long a wait sleeps after each 64th look, at most; it begins with 32 ns and doubles. 0: it never does.
    #[inline(always)]
    pub fn set_back_off(&mut self, ns: u32) {
        self.bounds.back_off_ns = ns;
    }

    /// A message length that this QP's port can carry.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for 0 and for more than the port's largest message (rule O12).
    #[inline(always)]
    pub fn length(&self, bytes: u32) -> Result<Length, Error> {
        match Length::new(bytes, self.log_max_message) {
            Some(len) => Ok(len),
            None => Err(Error::InvalidArgument),
        }
    }

    /// Pieces of local memory that together are one message: their addresses and bytes.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if one is empty, or all are more than the port's largest message.
    #[inline(always)]
    pub fn pieces<const N: usize>(&self, pieces: [(Local, u32); N]) -> Result<Pieces<N>, Error> {
        let mut checked = [Piece {
            local: Local { addr: 0, lkey: 0 },
            len: Length::FOUR,
        }; N];
        for (to, (local, len)) in checked.iter_mut().zip(pieces) {
            *to = Piece {
                local,
                len: self.length(len)?,
            };
        }
        Pieces::new(checked, self.log_max_message)
    }

    /// log2 of the port's largest message.
    #[inline(always)]
    pub fn log_max_message(&self) -> u32 {
        self.log_max_message
    }

    /// Most WQEBBs of one post: what the queue takes. Where not every WQE is signalled, the completions of those that are not come
    /// with later ones, so a post must leave them room.
    #[inline(always)]
    pub fn max_wqebbs(&self) -> u32 {
        self.capacity as u32 - (C::EVERY - 1)
    }

    /// Index below which all WQEs are known to have completed.
    #[inline(always)]
    pub fn completed(&self) -> u64 {
        self.room - self.capacity
    }

    /// Takes a new completed index.
    #[inline(always)]
    pub(crate) fn set_completed(&mut self, completed: u64) {
        self.room = completed + self.capacity;
    }

    /// Data of reads and atomics needs a DUMP before it is read (rule O14).
    #[inline(always)]
    pub fn reads_need_dump(&self) -> bool {
        self.reads_need_dump
    }

    /// The state word as it stands.
    #[inline(always)]
    pub fn state(&self) -> State {
        self.handle.state()
    }

    /// Fails if the QP is at fault or stopped: one load a post (rule O10).
    #[inline(always)]
    pub(crate) fn check_state(&self) -> Result<(), Error> {
        let state = self.handle.state();
        // Zero is live: nothing else is ever set without stop or fault.
        if state == State::default() {
            return Ok(());
        }
        arch::cold();
        Err(if state.is_fault() {
            Error::Fault(state)
        } else {
            Error::Stopped
        })
    }

    /// True if a post of `count` WQEBBs from `index` looks at the host's stop word: if it covers a 64th index (rule
    /// O10), that is, if its last index is less than `count` past one.
    #[inline(always)]
    pub(crate) fn looks_for_stop(index: u64, count: u64) -> bool {
        (index + count - 1) % LOOK_EVERY < count
    }

    /// True if WQEBBs up to `end` fit, as far as is known.
    #[inline(always)]
    pub(crate) fn has_room(&self, end: u64) -> bool {
        end <= self.room
    }
}

impl<S: Sharing, D: Doorbell, C: CqForm> Drop for Sq<S, D, C> {
    #[inline(always)]
    fn drop(&mut self) {
        if S::SHARED || !self.saves {
            return;
        }
        // A doorbell that was put off, and that no post has rung since.
        self.ring_pending();
        self.handle
            .save(self.reserved, self.completed(), self.consumer);
        if self.gap != 0 {
            self.handle
                .set_gap(self.handle.gap().wrapping_add(self.gap));
        }
        if self.long != LongWqe(0) {
            self.handle.set_long(self.long);
        }
    }
}

/// The state word of the QP whose handle is at `address`, as threads of the GPU see it.
///
/// # Safety
///
/// `address` is that of an exported handle of this version.
#[inline(always)]
#[allow(unsafe_code)] // As `Sq::open`.
pub unsafe fn state_of(address: u64) -> State {
    // SAFETY: the caller's: only its state word is used.
    unsafe { Handle::<crate::scope::Gpu>::at(address) }.state()
}
