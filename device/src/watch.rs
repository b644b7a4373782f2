//! The state word of a queue and the host's stop word (rule O10).
//!
//! Knows: how a fault is recorded and a stop is noticed. Must not know: whose queue it is.
#![allow(unsafe_code)]

use core::marker::PhantomData;

use warpverbs_wire::abi::State;

use crate::{
    arch::Global,
    scope::{Scope, Sys},
    wait::Watched,
};

/// Both words. The state word, at a byte offset `STATE` of the handle, is accessed at the scope `W`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch<W, const STATE: usize> {
    handle: Global,
    stop: Global,
    scope: PhantomData<W>,
}

impl<W: Scope, const STATE: usize> Watch<W, STATE> {
    /// # Safety
    ///
    /// `handle` is that of a live handle, whose word at `STATE` only this type accesses while the value is used, and only this thread
    /// if `W` is `Plain`; `stop` is the address of the host's word.
    #[inline(always)]
    pub(crate) unsafe fn new(handle: Global, stop: Global) -> Self {
        Self {
            handle,
            stop,
            scope: PhantomData,
        }
    }

    /// The state word. Relaxed: it carries no data but itself.
    #[inline(always)]
    fn state_word(&self) -> State {
        // SAFETY: `new`.
        State(unsafe { W::load_relaxed::<STATE>(self.handle) })
    }

    /// Records a fault unless one is recorded, keeping the stop bit; returns the state that stands (rule O10: the first
    /// fault stays). One compare-and-swap changes the whole record, so no reader sees half of one.
    #[inline]
    pub(crate) fn latch(&self, fault: State) -> State {
        let mut found = self.state_word();
        loop {
            if found.is_fault() {
                return found;
            }
            let wanted = State(found.0 | fault.0);
            // SAFETY: `new`.
            let old = unsafe { W::cas_relaxed::<STATE>(self.handle, found.0, wanted.0) };
            if old == found.0 {
                return wanted;
            }
            // Another thread set stop or a fault, each at most once: the loop ends.
            found = State(old);
        }
    }
}

impl<W: Scope, const STATE: usize> Watched for Watch<W, STATE> {
    #[inline(always)]
    fn state(&self) -> State {
        self.state_word()
    }

    /// Looks at the host's stop word and copies it into the state word (rule O10). True if it says stop.
    #[inline(always)]
    fn look_for_stop(&self) -> bool {
        // SAFETY: `new`; the host's word. Relaxed: it carries no data but itself.
        let stop = unsafe { Sys::load_relaxed::<0>(self.stop) } != 0;
        if stop {
            // SAFETY: `new`.
            unsafe { W::or_relaxed::<STATE>(self.handle, State::STOP) }
        }
        stop
    }
}
