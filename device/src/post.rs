//! Posting: reserve, fill, publish, ring.
//!
//! Knows: the order of stores, fences and the doorbell, and whose turn it is. Must not know: WQE or CQE bytes.
//!
//! A shared queue is posted to in ticket order (rule O5). Each writer reserves indices, fills its slots, and
//! waits until `turn` is its first index; then it writes the doorbell record, rings, and hands the turn on.
//! So it rings only for WQEs whose writers it has synchronised with (it loads `turn`, which the predecessor
//! released after its ring, and fences), and neither the record nor the doorbell moves backwards. (A
//! compare-and-swap of a ready index would let two writers store the record out of order.)

use warpverbs_wire::abi::{FaultCause, LongWqe, State};

use crate::{
    arch,
    error::Error,
    mode::{CqForm, Doorbell, Sharing},
    op::{Filled, Place, Slot, Work},
    sq::{Sq, Ticket},
    wait::{Wait, Watched},
};

/// WQEBBs within which one post of a lazy queue rings: others in between may leave that to their successors.
const RING_WITHIN: u64 = 16;
/// Most WQEBBs behind the first of a WQE: a completion names its first.
const MOST_MORE: u64 = 15;

/// What a post takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) wqebbs: u32,
    pub(crate) wqes: u32,
}

impl Size {
    #[inline(always)]
    pub(crate) fn of<W: Work>(work: &W) -> Self {
        Self {
            wqebbs: work.wqebbs(),
            wqes: work.wqes(),
        }
    }

    /// WQEs of one WQEBB.
    #[inline(always)]
    const fn short(count: u32) -> Self {
        Self {
            wqebbs: count,
            wqes: count,
        }
    }

    /// WQEBBs that are not a WQE's first: indices without CQE.
    #[inline(always)]
    pub(crate) fn gap(self) -> u64 {
        u64::from(self.wqebbs - self.wqes)
    }
}

/// Reserved, free WQEBBs that are not published yet.
///
/// On a shared queue it is an obligation: until it is published, no later post to the queue reaches the NIC, and their
/// writers end in a latched [`FaultCause::Abandoned`]. On an exclusive one it is void after the owner's next post.
#[must_use = "no later post reaches the NIC until this is published"]
#[derive(Debug)]
pub struct Reservation {
    pub(crate) first: u64,
    count: u64,
}

impl<S: Sharing, D: Doorbell, C: CqForm> Sq<S, D, C> {
    /// Posts an operation: reserves, fills, rings. Waits for room, within the bounds of waits. Nothing to do is a success: a
    /// ticket that is done.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for more WQEBBs than [`Self::max_wqebbs`] (at once: such a wait would never end);
    /// [`Error::Stopped`] and [`Error::Fault`]. An exclusive queue also reports [`Error::Timeout`] with nothing changed. A thread of
    /// a shared queue that must give up after its reserve latches [`FaultCause::Abandoned`], which ends every wait on the QP.
    #[inline(always)]
    pub fn post<W: Work>(&mut self, work: W) -> Result<Ticket, Error> {
        self.post_numbered::<true, false, W>(work, &mut 0)
    }

    /// As [`Self::post`], without ringing: the next post that rings covers it, and so does the end of an exclusive queue's owner.
    /// On a shared queue the doorbell mode must be [`Lazy`](crate::Lazy): anything else does not compile.
    ///
    /// # Errors
    ///
    /// As [`Self::post`]'s.
    #[inline(always)]
    pub fn post_quiet<W: Work>(&mut self, work: W) -> Result<Ticket, Error> {
        const {
            assert!(
                !S::SHARED || D::LAZY,
                "on a shared queue a doorbell that is put off needs the mode Lazy"
            );
        }
        self.post_numbered::<false, false, W>(work, &mut 0)
    }

    /// As [`Self::post`], without waiting for room.
    ///
    /// Do not loop over this on a shared queue: lanes of a warp that succeed may be held until the others have, while these need
    /// the former's completions (rule O13); [`Self::post`] is made for waiting.
    ///
    /// # Errors
    ///
    /// [`Error::NoResource`] if the queue is full, with nothing changed; else as [`Self::post`]'s.
    #[inline(always)]
    pub fn try_post<W: Work>(&mut self, work: W) -> Result<Ticket, Error> {
        let size = Size::of(&work);
        if size.wqebbs == 0 {
            return Ok(self.nothing_to_do());
        }
        arch::phase_post();
        let reservation = self.try_reserve(size.wqebbs)?;
        let filled = work.fill(self.place(reservation.first));
        let posted = self.publish_filled::<true>(reservation, size, filled)?;
        arch::phase_other();
        Ok(posted)
    }

    /// A ticket that is done already.
    #[inline(always)]
    pub(crate) fn nothing_to_do(&self) -> Ticket {
        Ticket(self.completed())
    }

    /// As [`Self::post`]. `NUMBERED`: `cqe` becomes the number of the last WQE's CQE, as the CQ counts since it was created.
    #[inline(always)]
    pub(crate) fn post_numbered<const RING: bool, const NUMBERED: bool, W: Work>(
        &mut self,
        work: W,
        cqe: &mut u64,
    ) -> Result<Ticket, Error> {
        if W::WQEBBS == 1 {
            // Any queue takes one.
            return self
                .submit_checked::<RING, NUMBERED>(Size::short(1), cqe, |place| work.fill(place));
        }
        let size = Size::of(&work);
        if size.wqebbs == 0 {
            return Ok(self.nothing_to_do());
        }
        if size.wqebbs > self.max_wqebbs() {
            return Err(Error::InvalidArgument);
        }
        self.submit_checked::<RING, NUMBERED>(size, cqe, |place| work.fill(place))
    }

    /// Posts `count` WQEs of one WQEBB with one reserve and one ring: waits for room, calls `fill` for each slot in order,
    /// waits for its turn, and rings. The ticket is the last WQE's.
    ///
    /// # Errors
    ///
    /// As [`Self::post`]'s, and [`Error::InvalidArgument`] for no WQEs.
    #[inline(always)]
    pub fn submit(
        &mut self,
        count: u32,
        mut fill: impl FnMut(u32, Slot) -> Filled,
    ) -> Result<Ticket, Error> {
        if count == 0 || count > self.max_wqebbs() {
            return Err(Error::InvalidArgument);
        }
        self.submit_checked::<true, false>(Size::short(count), &mut 0, |place| {
            fill_each(count, place, &mut fill)
        })
    }

    /// As [`Self::submit`], for a size that the queue takes.
    #[inline(always)]
    fn submit_checked<const RING: bool, const NUMBERED: bool>(
        &mut self,
        size: Size,
        cqe: &mut u64,
        fill: impl FnMut(Place) -> Filled,
    ) -> Result<Ticket, Error> {
        arch::phase_post();
        let ticket = if S::SHARED {
            self.submit_shared::<RING, NUMBERED>(size, cqe, fill)
        } else {
            self.submit_exclusive::<RING, NUMBERED>(size, cqe, fill)
        }?;
        arch::phase_other();
        Ok(ticket)
    }

    #[inline(always)]
    fn submit_exclusive<const RING: bool, const NUMBERED: bool>(
        &mut self,
        size: Size,
        cqe: &mut u64,
        mut fill: impl FnMut(Place) -> Filled,
    ) -> Result<Ticket, Error> {
        self.check_state()?;
        let first = self.reserved;
        let count = u64::from(size.wqebbs);
        let end = first + count;
        if Self::looks_for_stop(first, count) {
            arch::cold();
            if self.handle.look_for_stop() {
                return Err(Error::Stopped);
            }
        }
        if !self.has_room(end) {
            arch::cold();
            // Nothing is reserved yet, as nobody else can see our index: a wait that ends here changes nothing.
            self.wait_for_room::<RING>(end)?;
            arch::phase_post();
        }
        let filled = fill(self.place(first));
        Ok(self.finish_exclusive::<RING, NUMBERED>(size, filled, cqe))
    }

    /// Finds room for a post of an exclusive queue by a group, from the index `reserved` on, as `submit_exclusive` does.
    #[inline(always)]
    pub(crate) fn reserve_exclusive(&mut self, count: u32) -> Result<(), Error> {
        self.check_state()?;
        let end = self.reserved + u64::from(count);
        if Self::looks_for_stop(self.reserved, u64::from(count)) && self.handle.look_for_stop() {
            return Err(Error::Stopped);
        }
        if !self.has_room(end) {
            // Other members fill before the leader fences: what frees the slots is acquired at once.
            self.wait_for_room::<false>(end)?;
        }
        Ok(())
    }

    /// Ends a post of an exclusive queue.
    #[inline(always)]
    pub(crate) fn finish_exclusive<const RING: bool, const NUMBERED: bool>(
        &mut self,
        size: Size,
        filled: Filled,
        cqe: &mut u64,
    ) -> Ticket {
        let first = self.reserved;
        let end = first + u64::from(size.wqebbs);
        self.reserved = end;
        if RING {
            self.ring(filled.head, end, alone(first, size));
            self.pending = 0;
        } else {
            self.pending += u64::from(size.wqebbs);
        }
        if NUMBERED {
            *cqe = number(first, size, self.handle.gap().wrapping_add(self.gap));
        }
        self.gap += size.gap();
        if filled.more != 0 {
            self.long = LongWqe::new(end - 1 - u64::from(filled.more), filled.more);
        }
        Ticket(end - u64::from(filled.more))
    }

    /// Waits for room for the WQEBBs of an exclusive queue up to `end`.
    ///
    /// A slot may be written when the NIC has read the WQE that was in it, so behind an acquire of that WQE's completion, or of
    /// a later one. For one WQEBB the previous post has acquired it. A queue of `d` slots takes `d - 1` WQEBBs: index `n`
    /// waits for the completion of `n - d + 1`, but has the slot of `n - d`, whose completion index `n - 1` waited for, in front
    /// of its own fence (O2). What is seen here without a fence is acquired by the fence of this post, which follows: with one
    /// WQEBB missing, a wait that saw a completion is a wait that succeeds. (A QP's first post finds an empty queue, or what
    /// its last user acquired, behind a launch.) Of several WQEBBs only the first has the previous post's assurance, and a post
    /// that does not ring has no fence.
    #[inline(always)]
    fn wait_for_room<const RING: bool>(&mut self, end: u64) -> Result<(), Error> {
        // Who waits for room rings first (rule O13).
        self.ring_pending();
        let index = end - self.capacity;
        if RING && C::EVERY == 1 && end - self.reserved == 1 {
            self.look_until::<false>(index)
        } else {
            self.look_for_room(end)
        }
    }

    #[inline(always)]
    fn look_for_room(&mut self, end: u64) -> Result<(), Error> {
        arch::phase_poll();
        let mut wait = Wait::new();
        loop {
            let looked = self.look::<true>();
            if self.has_room(end) || self.has_room_behind_long(end, end - self.reserved) {
                return Ok(());
            }
            looked?;
            arch::phase_spin();
            wait.tick(&self.handle, self.bounds)?;
        }
    }

    /// One loop for room, fill, turn, ring and hand-off, left only after hand-off, and without any `.sync` in
    /// it (rule O13): lanes of a warp wait for each other's turn, so a lane that has handed off is all that
    /// may wait for others. With a loop for each, lanes that have room could be held at the end of the first
    /// until lanes that need their completions have room too.
    #[inline(always)]
    fn submit_shared<const RING: bool, const NUMBERED: bool>(
        &mut self,
        size: Size,
        cqe: &mut u64,
        mut fill: impl FnMut(Place) -> Filled,
    ) -> Result<Ticket, Error> {
        self.check_state()?;
        let count = u64::from(size.wqebbs);
        let first = self.handle.reserve(count);
        let end = first + count;
        if Self::looks_for_stop(first, count) {
            arch::cold();
            // Copied for the posts after this one; this one has its indices and goes on to its hand-off.
            self.handle.look_for_stop();
        }
        let mut wait = Wait::new();
        let mut filled: Option<Filled> = None;
        let mut rung = false;
        let mut marked = false;
        loop {
            if filled.is_none() {
                if !self.has_room(end) {
                    arch::cold();
                    if wait.is_fresh() {
                        arch::phase_poll();
                    }
                    if D::LAZY && !rung && self.handle.turn() == first {
                        self.ring_left(first);
                        rung = true;
                    }
                    // Whoever waits for room polls: nobody else might (rule O13).
                    self.look::<true>()?;
                }
                if self.has_room(end) || self.has_room_behind_long(end, count) {
                    arch::phase_post();
                    filled = Some(fill(self.place(first)));
                }
            }
            if let Some(filled) = filled {
                let turn = self.handle.turn();
                if turn == first {
                    arch::phase_post();
                    return Ok(
                        self.finish_shared::<RING, NUMBERED>(first, size, filled, marked, cqe)
                    );
                }
                if D::LAZY && RING && !marked {
                    // A promise to ring, which a quiet post does not make: for those before, who may leave it to us.
                    marked = self.handle.mark_ready(first, turn);
                }
            }
            arch::cold();
            arch::phase_spin();
            if let Err(error) = wait.tick(&self.handle, self.bounds) {
                return Err(self.abandon(first, error));
            }
        }
    }

    /// Shared: reserves for a group, whoever else does, and waits for room. Who waits rings first for what others have left, and
    /// polls (rule O13). A wait that ends latches.
    #[inline(always)]
    pub(crate) fn reserve_shared(&mut self, count: u32) -> Result<u64, Error> {
        self.check_state()?;
        let count = u64::from(count);
        let first = self.handle.reserve(count);
        let end = first + count;
        if Self::looks_for_stop(first, count) {
            arch::cold();
            self.handle.look_for_stop();
        }
        let mut wait = Wait::new();
        let mut rung = false;
        while !self.has_room(end) && !self.has_room_behind_long(end, count) {
            arch::cold();
            if D::LAZY && !rung && self.handle.turn() == first {
                self.ring_left(first);
                rung = true;
            }
            self.look::<true>()?;
            if self.has_room(end) {
                break;
            }
            if let Err(error) = wait.tick(&self.handle, self.bounds) {
                return Err(self.abandon(first, error));
            }
        }
        Ok(first)
    }

    /// True if a post of several WQEBBs up to `end` has room once all before it are complete, the last of which has several.
    #[inline(always)]
    pub(crate) fn has_room_behind_long(&self, end: u64, count: u64) -> bool {
        if count <= 1 || count + MOST_MORE <= self.capacity {
            return false;
        }
        arch::cold();
        let long = if !S::SHARED && self.long != LongWqe(0) {
            self.long
        } else {
            self.handle.long()
        };
        self.has_room(end - long.more(self.completed()))
    }

    /// Ends a post of a shared queue, in its turn.
    #[inline(always)]
    pub(crate) fn finish_shared<const RING: bool, const NUMBERED: bool>(
        &mut self,
        first: u64,
        size: Size,
        filled: Filled,
        contended: bool,
        cqe: &mut u64,
    ) -> Ticket {
        let count = u64::from(size.wqebbs);
        let end = first + count;
        // To leave it to a successor is safe: that one has filled its slots, so it waits for nothing but this hand-off. It is
        // bounded: a post that covers the last of so many indices rings.
        let leaves = !RING
            || D::LAZY
                && contended
                && (first ^ end) & RING_WITHIN.wrapping_neg() == 0
                && self.handle.is_ready(end);
        if leaves {
            // What was before the turn, and this post's WQEs, come before the hand-off: the next that rings does so for them.
            fence::<S>();
        } else {
            self.ring(filled.head, end, alone(first, size));
        }
        if NUMBERED || size.gap() != 0 {
            let gap = self.handle.gap();
            if NUMBERED {
                *cqe = number(first, size, gap);
            }
            if size.gap() != 0 {
                self.handle.set_gap(gap.wrapping_add(size.gap()));
            }
        }
        if filled.more != 0 {
            self.handle
                .set_long(LongWqe::new(end - 1 - u64::from(filled.more), filled.more));
        }
        self.handle.hand_off(end);
        Ticket(end - u64::from(filled.more))
    }

    /// Reserves `count` free WQEBBs if there are as many, without waiting.
    ///
    /// For those who write WQEs in several places before one ring. Do not loop over this on a shared queue:
    /// lanes of a warp that succeed may be held until the others have, while these need the former's
    /// completions (rule O13); [`Self::submit`] is made for waiting.
    ///
    /// # Errors
    ///
    /// [`Error::NoResource`] if the queue is full, with nothing changed; [`Error::InvalidArgument`] for no
    /// WQEBBs or more than the queue takes; [`Error::Stopped`] and [`Error::Fault`].
    #[inline(always)]
    pub fn try_reserve(&mut self, count: u32) -> Result<Reservation, Error> {
        if count == 0 || count > self.max_wqebbs() {
            return Err(Error::InvalidArgument);
        }
        let count = u64::from(count);
        self.check_state()?;
        let mut first = if S::SHARED {
            self.handle.reserved()
        } else {
            self.reserved
        };
        if Self::looks_for_stop(first, count) && self.handle.look_for_stop() {
            return Err(Error::Stopped);
        }
        loop {
            if !self.has_room(first + count) {
                if !S::SHARED {
                    self.ring_pending();
                } else if D::LAZY && self.handle.turn() == first {
                    self.ring_left(first);
                }
                self.look::<true>()?;
                if !self.has_room(first + count) && !self.has_room_behind_long(first + count, count)
                {
                    return Err(Error::NoResource);
                }
            }
            if !S::SHARED {
                // Nobody else reserves: `publish` moves the index, so that only the next in order can be rung (rule O5).
                break;
            }
            // Compare-and-swap and not fetch-and-add, so that a full queue is left as it was (rule O9).
            if self.handle.reserve_at(first, count) {
                break;
            }
            // Another thread's reserve succeeded meanwhile.
            first = self.handle.reserved();
        }
        Ok(Reservation { first, count })
    }

    /// The `k`th slot of a reservation; `None` beyond its end, and of a void one. Each slot is to be filled
    /// once, before [`Self::publish`].
    #[inline(always)]
    pub fn slot(&self, reservation: &Reservation, k: u32) -> Option<Slot> {
        (u64::from(k) < reservation.count && !self.is_void(reservation.first)).then(|| Slot {
            place: self.place(reservation.first + u64::from(k)),
        })
    }

    /// True if the owner of an exclusive queue has posted since it reserved from `first`.
    #[inline(always)]
    fn is_void(&self, first: u64) -> bool {
        !S::SHARED && first != self.reserved
    }

    /// Makes a reservation's WQEs visible to the NIC: waits for its turn, rings, hands the turn on. `last` is
    /// what filling the last slot gave.
    ///
    /// # Errors
    ///
    /// On a shared queue, [`Error::Fault`]: of [`Error::Timeout`] or a stop, it latches [`FaultCause::Abandoned`].
    /// On an exclusive one, [`Error::InvalidArgument`] if the reservation is void; nothing is rung then.
    #[inline(always)]
    pub fn publish(&mut self, reservation: Reservation, last: Filled) -> Result<Ticket, Error> {
        // Each slot has a WQE of one WQEBB.
        let size = Size::short(reservation.count as u32);
        self.publish_filled::<true>(reservation, size, last)
    }

    #[inline(always)]
    fn publish_filled<const RING: bool>(
        &mut self,
        reservation: Reservation,
        size: Size,
        last: Filled,
    ) -> Result<Ticket, Error> {
        let first = reservation.first;
        if S::SHARED {
            let waited = self.wait_for_turn::<RING>(first)?;
            return Ok(self.finish_shared::<RING, false>(first, size, last, waited, &mut 0));
        }
        if self.is_void(first) {
            return Err(Error::InvalidArgument);
        }
        Ok(self.finish_exclusive::<RING, false>(size, last, &mut 0))
    }

    /// Shared: waits for the turn of the filled post from `first`; true if it was not there at once.
    #[inline(always)]
    pub(crate) fn wait_for_turn<const RING: bool>(&mut self, first: u64) -> Result<bool, Error> {
        let mut wait = Wait::new();
        let mut marked = false;
        loop {
            let turn = self.handle.turn();
            if turn == first {
                break;
            }
            if D::LAZY && RING && !marked {
                marked = self.handle.mark_ready(first, turn);
            }
            if let Err(error) = wait.tick(&self.handle, self.bounds) {
                return Err(self.abandon(first, error));
            }
        }
        Ok(!wait.is_fresh())
    }

    #[inline(always)]
    pub(crate) fn place(&self, index: u64) -> Place {
        Place {
            ring: self.ring,
            index,
            qpn: self.qpn,
            every: C::EVERY,
            fence: 0,
        }
    }

    /// Gives up between reserve and hand-off: latches the fault that ends every wait on this QP (rule O9).
    /// The turn stays where it is, so no later WQE is ever rung.
    #[inline]
    pub(crate) fn abandon(&self, index: u64, error: Error) -> Error {
        match error {
            Error::Timeout | Error::Stopped => {
                Error::Fault(
                    self.handle
                        .latch(State::fault(FaultCause::Abandoned, 0, 0, 0, index)),
                )
            }
            other => other,
        }
    }
}

/// The number of the last WQE's CQE, of a post from `first` on.
#[inline(always)]
fn number(first: u64, size: Size, gap: u64) -> u64 {
    first
        .wrapping_sub(gap)
        .wrapping_add(u64::from(size.wqes) - 1)
}

/// The index of a post that is one WQE of one WQEBB.
#[inline(always)]
fn alone(first: u64, size: Size) -> Option<u64> {
    (size.wqebbs == 1).then_some(first)
}

/// Fills the slots from a place on; returns what the last gave.
#[inline(always)]
fn fill_each(count: u32, place: Place, fill: &mut impl FnMut(u32, Slot) -> Filled) -> Filled {
    let mut last = Filled { head: 0, more: 0 };
    for k in 0..count {
        last = fill(
            k,
            Slot {
                place: place.ahead(k),
            },
        );
    }
    last
}

/// A fence at the scope of a queue's users.
#[inline(always)]
fn fence<S: Sharing>() {
    <S::Scope as crate::scope::Scope>::fence();
}
