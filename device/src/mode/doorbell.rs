//! How the NIC is told of new WQEs.
//!
//! Knows: which steps each way has. Must not know: their order or their stores.

use super::sealed::Sealed;

/// Where the news goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tell {
    /// To the doorbell register, by one store of 8 bytes.
    Register,
    /// As [`Self::Register`], but a WQE that is a post of its own and fits one WQEBB is pushed whole, by eight stores.
    Push,
    /// To a host thread, which rings.
    Host,
}

/// How the NIC is told of new WQEs.
pub trait Doorbell: Sealed {
    /// True if the doorbell is also rung before the doorbell record is written.
    const EARLY: bool = false;
    /// True if the doorbell record is written.
    const RECORD: bool = true;
    /// Where the news goes.
    const TELL: Tell = Tell::Register;
    /// True if a poster of a shared queue may leave the ring to a later post.
    const LAZY: bool = false;
    /// True if the WQEs' fence (rule O2) is at the GPU's scope.
    const GPU_ORDER: bool = false;
}

/// Fence, doorbell record, fence, one ring.
#[derive(Clone, Copy, Debug)]
pub struct Db;

/// Fence, ring, doorbell record, fence, ring: the NIC starts to fetch a fence earlier.
#[derive(Clone, Copy, Debug)]
pub struct DbEarly;

/// As [`Db`], but a post of one WQE that fits one WQEBB is pushed to the register whole, so that the NIC need not fetch it.
#[derive(Clone, Copy, Debug)]
pub struct BlueFlame;

/// A host thread writes the record and rings: the GPU stores the producer to the QP's
/// [`ProxyRecord`](warpverbs_wire::abi::ProxyRecord).
#[derive(Clone, Copy, Debug)]
pub struct Proxy;

/// Fence, one ring: for QPs that were made without doorbell record
/// ([`FLAG_NO_DBR`](warpverbs_wire::abi::FLAG_NO_DBR)).
#[derive(Clone, Copy, Debug)]
pub struct NoDbr;

/// As `D`, and a poster of a shared queue may leave the ring to a later post: by [`Sq::post_quiet`](crate::Sq::post_quiet), and
/// under contention to a successor that has filled its slot and waits for its turn, for at most 16 WQEBBs together. Every
/// thread that shares the queue uses it so: one that waits for room then rings for what others have left.
#[derive(Clone, Copy, Debug)]
pub struct Lazy<D>(core::marker::PhantomData<D>);

/// As `D`, which rings itself, with the WQEs' fence (rule O2) at the GPU's scope. Only where ring, record and all data of the queue
/// lie in this GPU's memory: that a NIC which reads that memory is an observer at the GPU's scope is assumed, and nothing but a
/// measurement can show it. `--check gpu` judges it.
#[derive(Clone, Copy, Debug)]
pub struct InGpu<D>(core::marker::PhantomData<D>);

impl Sealed for Db {}
impl Doorbell for Db {}
impl Sealed for DbEarly {}
impl Doorbell for DbEarly {
    const EARLY: bool = true;
}
impl Sealed for BlueFlame {}
impl Doorbell for BlueFlame {
    const TELL: Tell = Tell::Push;
}
impl Sealed for Proxy {}
impl Doorbell for Proxy {
    const RECORD: bool = false;
    const TELL: Tell = Tell::Host;
}
impl Sealed for NoDbr {}
impl Doorbell for NoDbr {
    const RECORD: bool = false;
}
impl<D: Doorbell> Sealed for Lazy<D> {}
impl<D: Doorbell> Doorbell for Lazy<D> {
    const EARLY: bool = D::EARLY;
    const RECORD: bool = D::RECORD;
    const TELL: Tell = D::TELL;
    const LAZY: bool = true;
    const GPU_ORDER: bool = D::GPU_ORDER;
}
impl<D: Doorbell> Sealed for InGpu<D> {}
impl<D: Doorbell> Doorbell for InGpu<D> {
    const EARLY: bool = D::EARLY;
    const RECORD: bool = D::RECORD;
    const TELL: Tell = D::TELL;
    const LAZY: bool = D::LAZY;
    const GPU_ORDER: bool = true;
}
