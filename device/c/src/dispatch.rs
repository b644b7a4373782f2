//! From numbers to modes.
//!
//! Knows: what `mode` and a handle's flags say. Must not know: what is done in a mode.

use warpverbs_device::{
    Collapsed, CqForm, Db, Doorbell, Error, Exclusive, Flags, Gpu, NoDbr, Proxy, Ring, Sharing, Sq,
    abi::Outcome,
    group::{Block, Group, Lanes, Thread},
};

/// Bits 0 and 1 of `mode`: who shares the queue. 0: nobody; else threads of the GPU, of which a warp and a block are some.
pub(crate) const SHARING: u32 = 3;
/// Bits 8 and 9 of `mode`: who makes the call together.
const SCOPE: u32 = 3 << 8;
const THREAD: u32 = 0;
const WARP: u32 = 1 << 8;
const BLOCK: u32 = 2 << 8;

/// This thread's place among those that make the call together, and how many they are.
#[inline(always)]
pub(crate) fn share(mode: u32) -> (u64, u64) {
    match mode & SCOPE {
        WARP => Lanes::all().scan(1, 1),
        BLOCK => Block.scan(1, 1),
        _ => (0, 1),
    }
}

/// What is done with a queue that is open.
pub(crate) trait Action {
    /// By a group.
    fn run<S: Sharing, D: Doorbell, C: CqForm, G: Group>(
        &self,
        sq: &mut Sq<S, D, C>,
        group: G,
    ) -> Result<Outcome, Error>;
}

/// Opens the queue in the modes that `mode` and its handle say, and acts.
///
/// # Safety
///
/// As `Sq::open_by`'s.
#[inline(always)]
pub(crate) unsafe fn dispatch(qp: u64, mode: u32, action: &impl Action) -> u32 {
    if mode & !(SHARING | SCOPE) != 0 {
        return Outcome::InvalidArgument.code();
    }
    // SAFETY: the caller's.
    let done = unsafe {
        match mode & SCOPE {
            THREAD => by_sharing(qp, mode, Thread, action),
            WARP => by_sharing(qp, mode, Lanes::all(), action),
            BLOCK => by_sharing(qp, mode, Block, action),
            _ => Err(Error::InvalidArgument),
        }
    };
    done.unwrap_or_else(Error::outcome).code()
}

/// # Safety
///
/// As `dispatch`'s.
#[inline(always)]
unsafe fn by_sharing<G: Group>(
    qp: u64,
    mode: u32,
    group: G,
    action: &impl Action,
) -> Result<Outcome, Error> {
    // SAFETY: the caller's.
    unsafe {
        if mode & SHARING == 0 {
            by_handle::<Exclusive, G>(qp, group, action)
        } else {
            by_handle::<Gpu, G>(qp, group, action)
        }
    }
}

/// # Safety
///
/// As `dispatch`'s.
#[inline(always)]
unsafe fn by_handle<S: Sharing, G: Group>(
    qp: u64,
    group: G,
    action: &impl Action,
) -> Result<Outcome, Error> {
    // SAFETY: the caller's.
    unsafe {
        let flags = Flags::load(qp)?;
        match (flags.no_dbr(), Flags::has_proxy(qp), flags.collapsed()) {
            (true, _, false) => act::<S, NoDbr, Ring, G>(qp, group, action),
            (true, _, true) => act::<S, NoDbr, Collapsed, G>(qp, group, action),
            (false, true, false) => act::<S, Proxy, Ring, G>(qp, group, action),
            (false, true, true) => act::<S, Proxy, Collapsed, G>(qp, group, action),
            (false, false, false) => act::<S, Db, Ring, G>(qp, group, action),
            (false, false, true) => act::<S, Db, Collapsed, G>(qp, group, action),
        }
    }
}

/// # Safety
///
/// As `dispatch`'s.
#[inline(always)]
unsafe fn act<S: Sharing, D: Doorbell, C: CqForm, G: Group>(
    qp: u64,
    group: G,
    action: &impl Action,
) -> Result<Outcome, Error> {
    // SAFETY: the caller's.
    let mut sq = unsafe { Sq::<S, D, C>::open_by(group, qp) }?;
    action.run(&mut sq, group)
}
