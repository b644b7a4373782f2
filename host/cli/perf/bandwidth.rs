//! `write-bw`, `read-bw`, `post-rate`.

use warpverbs::wire::abi::inline_words;
use warpverbs::{Access, Mr, Operation, QueuePair, Rate};

use super::plan::Plan;
use super::report::Outcome;
use super::session::{Ended, Session};
use super::{data, mode};
use crate::args::Test;
use crate::failure::Failure;

pub(crate) fn run(plan: &Plan, session: &Session) -> Result<Outcome, Failure> {
    // The far ends only answer; they live as long as the near ones post.
    let (near, _far) = session.pairs(plan, plan.qps)?;
    let near = QueuePair::export_all(near).map_err(warpverbs::Error::from)?;

    let sent = match plan.test {
        Test::PostRate => last_words(plan),
        _ => data::source(plan.seed, plan.buffer()),
    };
    let to = session
        .gpu
        .alloc_copy(&data::poison(&sent), "destination")?;
    let written = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let (local, remote, operation) = match plan.test {
        Test::PostRate => {
            let remote = Mr::register(&session.far_pd, &to, written)?;
            (None, remote, Operation::WriteInline)
        }
        Test::ReadBw => {
            let from = session.gpu.alloc_copy(&sent, "source")?;
            let local = Mr::register(&session.pd, &to, Access::LOCAL_WRITE)?;
            let remote = Mr::register(&session.far_pd, &from, Access::REMOTE_READ)?;
            (Some(local), remote, Operation::Read)
        }
        _ => {
            let from = session.gpu.alloc_copy(&sent, "source")?;
            let local = Mr::register(&session.pd, &from, Access::LOCAL_READ)?;
            let remote = Mr::register(&session.far_pd, &to, written)?;
            (Some(local), remote, Operation::Write)
        }
    };
    let mut run = rate(plan, operation).launch(
        &session.module,
        &session.stream,
        &near,
        local.as_ref(),
        &remote.remote(),
    )?;
    let ran = match session.wait(plan, &mut run)? {
        Ended::Ran(ran) => ran,
        Ended::Interrupted(outcome) => return Ok(outcome),
    };
    Ok(Outcome::ended(
        &ran,
        plan.size,
        session.bytes_moved(),
        data::difference("destination", &to.to_vec()?, &sent),
    ))
}

/// What a plan has in common for all operations.
pub(crate) fn rate(plan: &Plan, operation: Operation) -> Rate {
    Rate {
        operation,
        threads: plan.threads,
        block: plan.block,
        sharing: mode::sharing(plan.sharing),
        doorbell: mode::doorbell(plan.doorbell),
        order: mode::order(plan.order),
        completions: mode::completions(plan.cq),
        size: plan.size,
        slots: plan.slots,
        iters: plan.iters,
        ..Rate::default()
    }
}

/// What `post-rate` leaves: in each slot of a thread the last words that it wrote there.
fn last_words(plan: &Plan) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(plan.buffer());
    let slots = u64::from(plan.slots);
    for thread in 0..u64::from(plan.threads) {
        for slot in 0..slots {
            // The last operation whose number is the slot's, modulo the number of slots.
            let op = plan.iters - 1 - (plan.iters - 1 - slot) % slots;
            let words = inline_words(thread, op);
            let words = words.iter().flat_map(|word| word.to_le_bytes());
            bytes.extend(words.take(plan.size as usize));
        }
    }
    bytes
}
