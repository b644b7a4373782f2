//! Handing QPs to the GPU.
//!
//! Knows: that handles of neighbours are written in one copy, and the way back when one fails.
//! Must not know: what a launch needs.

use super::QueuePair;
use super::slab::Slab;
use crate::error::{Error, Result};
use crate::teardown::{GRACE, Wait, attach};

/// Makes kernels take the handles of all of `qps`, or of none.
pub(crate) fn hand_over(qps: &[QueuePair]) -> Result<()> {
    let _devices = qps
        .iter()
        .map(|qp| Ok((qp.context().enter()?, qp.gpu().enter()?)))
        .collect::<Result<Vec<_>>>()?;
    let pins = qps.iter().map(QueuePair::pin).collect::<Result<Vec<_>>>()?;
    // Their owner is here, so nobody else takes several of them.
    let wait = Wait::within(GRACE);
    let _ones = pins
        .iter()
        .map(|pin| pin.exclusive(wait))
        .collect::<Result<Vec<_>>>()?;
    for pin in &pins {
        pin.require_live("export it")?;
        pin.welcome()?;
    }
    let groups = by_slab(qps);
    for (at, (slab, members)) in groups.iter().enumerate() {
        // Before the QPs' own, without which nobody finds them.
        let receives = members.iter().try_for_each(|qp| {
            let handle = qp.queues().receive_handle(qp.qpn());
            handle.map_or(Ok(()), |handle| {
                slab.write_receive_handle(qp.queues().place(), &handle)
            })
        });
        if let Err(error) = receives {
            return Err(groups.iter().take(at + 1).fold(error, take_back));
        }
        let handles: Vec<_> = members
            .iter()
            .map(|qp| {
                let handle = qp.queues().handle(qp.qpn(), qp.log_max_message());
                (qp.queues().place(), handle)
            })
            .collect();
        if let Err(error) = slab.write_handles(&handles, wait) {
            return Err(groups.iter().take(at + 1).fold(error, take_back));
        }
    }
    Ok(())
}

/// QPs by slab, in the order of their places.
fn by_slab(qps: &[QueuePair]) -> Vec<(&Slab, Vec<&QueuePair>)> {
    let mut groups: Vec<(&Slab, Vec<&QueuePair>)> = Vec::new();
    for qp in qps {
        let slab = qp.queues().slab();
        // Neighbours come together.
        match groups.iter_mut().rev().find(|(known, _)| known.is(slab)) {
            Some((_, members)) => members.push(qp),
            None => groups.push((slab, vec![qp])),
        }
    }
    for (_, members) in &mut groups {
        members.sort_unstable_by_key(|qp| qp.queues().place());
    }
    groups
}

/// Makes kernels refuse them again. A copy that failed may have written some.
fn take_back(first: Error, (slab, members): &(&Slab, Vec<&QueuePair>)) -> Error {
    let places: Vec<u32> = members.iter().map(|qp| qp.queues().place()).collect();
    match slab.clear_handles(&places, Wait::within(GRACE)) {
        Ok(()) => first,
        Err(later) => attach(first, "exported handle", later),
    }
}
