//! `send-bw`.

use warpverbs::{Access, Landed, Mr, QueuePair, Sends};

use super::plan::Plan;
use super::report::Outcome;
use super::session::{Ended, Session};
use super::{data, mode};
use crate::failure::Failure;

pub(crate) fn run(plan: &Plan, session: &Session) -> Result<Outcome, Failure> {
    let (near, far) = session.pairs(plan, plan.qps)?;
    let near = QueuePair::export_all(near).map_err(warpverbs::Error::from)?;
    let far = QueuePair::export_all(far).map_err(warpverbs::Error::from)?;

    let sent = data::source(plan.seed, plan.buffer());
    let from = session.gpu.alloc_copy(&sent, "source")?;
    let buffers = u64::from(plan.qps) * u64::from(plan.receives);
    let poison = data::poison(&data::source(
        plan.seed,
        (buffers * u64::from(plan.size)) as usize,
    ));
    let to = session.gpu.alloc_copy(&poison, "receive buffers")?;
    let local = Mr::register(&session.pd, &from, Access::LOCAL_READ)?;
    let into = Mr::register(&session.far_pd, &to, Access::LOCAL_WRITE)?;
    let sends = Sends {
        threads: plan.threads,
        block: plan.block,
        sharing: mode::sharing(plan.sharing),
        doorbell: mode::doorbell(plan.doorbell),
        order: mode::order(plan.order),
        completions: mode::completions(plan.cq),
        size: plan.size,
        slots: plan.slots,
        buffers: plan.receives,
        iters: plan.iters,
        ..Sends::default()
    };
    let (mut run, log) =
        sends.launch(&session.module, &session.stream, &near, &far, &local, &into)?;
    let mut ran = match session.wait(plan, &mut run)? {
        Ended::Ran(ran) => ran,
        Ended::Interrupted(outcome) => return Ok(outcome),
    };
    let failed = ran.check().err();
    // Senders come first; what others posted are receives.
    let receivers = ran.threads.split_off(plan.threads as usize);
    let received: u64 = receivers.iter().map(|thread| thread.completed).sum();
    let wrong = failed
        .map(|error| crate::failure::one_line(&error))
        .or_else(|| {
            (received != plan.operations())
                .then(|| format!("{received} messages were received of {}", plan.operations()))
        })
        .or(misplaced(plan, &sent, &to.to_vec()?, &poison, &log.read()?));
    Ok(Outcome::ended(
        &ran,
        plan.size,
        session.bytes_moved(),
        wrong,
    ))
}

/// What is wrong with a receive buffer: each holds the message that its completion named, whole, from a thread that uses its QP; of
/// messages that share a buffer the last. Where no message landed, nothing was written.
fn misplaced(
    plan: &Plan,
    sent: &[u8],
    arrived: &[u8],
    poison: &[u8],
    log: &[Landed],
) -> Option<String> {
    let size = plan.size as usize;
    for qp in 0..plan.qps {
        let messages = u64::from(threads_of(plan, qp)) * plan.iters;
        for buffer in 0..plan.receives {
            let at = (qp * plan.receives + buffer) as usize;
            let place = format!("receive buffer {buffer} of queue pair {qp}");
            let (found, before) = (
                arrived.get(at * size..(at + 1) * size)?,
                poison.get(at * size..(at + 1) * size)?,
            );
            let landed = log.get(at)?;
            if u64::from(buffer) >= messages {
                if landed.len != 0 {
                    return Some(format!("{place}: {landed:?} where no message should land"));
                }
                if let Some(text) = data::difference(&place, found, before) {
                    return Some(text);
                }
                continue;
            }
            if landed.len != plan.size {
                return Some(format!("{place}: {landed:?}, not {size} bytes"));
            }
            let slot = landed.immediate as usize;
            let is_its_own = uses(plan, landed.immediate / plan.slots, qp);
            let Some(message) = sent
                .get(slot * size..(slot + 1) * size)
                .filter(|_| is_its_own)
            else {
                return Some(format!(
                    "{place}: {landed:?}, from no thread that sends there"
                ));
            };
            // Of a queue with one sender it is known which message came last.
            if threads_of(plan, qp) == 1 {
                let receives = u64::from(plan.receives);
                let last = messages - 1 - (messages - 1 - u64::from(buffer)) % receives;
                let expected = u64::from(landed.immediate / plan.slots * plan.slots)
                    + last % u64::from(plan.slots);
                if u64::from(landed.immediate) != expected {
                    return Some(format!(
                        "{place}: {landed:?}, where {expected} was sent last"
                    ));
                }
            }
            if let Some(text) = data::difference(&place, found, message) {
                return Some(text);
            }
        }
    }
    None
}

/// True if a thread sends on a queue pair.
fn uses(plan: &Plan, thread: u32, qp: u32) -> bool {
    use crate::args::Sharing;
    thread < plan.threads
        && match plan.sharing {
            Sharing::Warp | Sharing::Cta => thread / plan.block == qp,
            Sharing::Exclusive | Sharing::Gpu => thread % plan.qps == qp,
        }
}

fn threads_of(plan: &Plan, qp: u32) -> u32 {
    (0..plan.threads)
        .filter(|thread| uses(plan, *thread, qp))
        .count() as u32
}
