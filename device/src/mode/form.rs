//! The form of the completion queue, and which WQEs have a CQE.
//!
//! Knows: what each form promises. Must not know: how a CQE is read.

use super::sealed::Sealed;

/// The form of the completion queue.
pub trait CqForm: Sealed {
    /// True if every completion overwrites CQE 0.
    const COLLAPSED: bool = false;
    /// One WQE in so many WQEBBs is signalled, a power of two; 1: every WQE is.
    const EVERY: u32 = 1;
    /// True if the CQ does not ignore overrun, so that the consumer is written to its doorbell record.
    const CHECKED: bool = false;
}

/// A form in which every WQE has a CQE, so that the number of a WQE's CQE is known when it is posted.
pub trait EverySignalled: CqForm {}

/// A ring of CQEs, which keeps the cause of an error.
#[derive(Clone, Copy, Debug)]
pub struct Ring;

/// One CQE, overwritten by every completion: no consumer index, but a late reader may lose the cause of an error.
#[derive(Clone, Copy, Debug)]
pub struct Collapsed;

/// A ring of CQEs, where only errors and the WQE at each `EVERY`th WQEBB have one. A wait for a WQE behind the last of these posts
/// a signalled NOP. `EVERY` is a power of two, and the queue has at least twice as many WQEBBs.
#[derive(Clone, Copy, Debug)]
pub struct OnError<const EVERY: u32 = 16>;

/// As `C`, a ring, for a CQ that does not ignore overrun
/// ([`FLAG_CQ_OVERRUN_CHECKED`](warpverbs_wire::abi::FLAG_CQ_OVERRUN_CHECKED)).
#[derive(Clone, Copy, Debug)]
pub struct Checked<C>(core::marker::PhantomData<C>);

impl Sealed for Ring {}
impl CqForm for Ring {}
impl EverySignalled for Ring {}
impl Sealed for Collapsed {}
impl CqForm for Collapsed {
    const COLLAPSED: bool = true;
}
impl EverySignalled for Collapsed {}
impl<const EVERY: u32> Sealed for OnError<EVERY> {}
impl<const EVERY: u32> CqForm for OnError<EVERY> {
    const EVERY: u32 = EVERY;
}
impl<C: CqForm> Sealed for Checked<C> {}
impl<C: CqForm> CqForm for Checked<C> {
    const COLLAPSED: bool = C::COLLAPSED;
    const EVERY: u32 = C::EVERY;
    const CHECKED: bool = true;
}
impl<C: EverySignalled> EverySignalled for Checked<C> {}
