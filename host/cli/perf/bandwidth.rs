//! `write-bw` and `read-bw`.

use warpverbs::{Access, Bandwidth, Direction, Mr, QueuePair};

use super::data;
use super::plan::Plan;
use super::report::Outcome;
use super::session::{Ended, Session};
use crate::args::{Doorbell, Sharing, Test};
use crate::failure::Failure;

pub(crate) fn run(plan: &Plan, session: &Session) -> Result<Outcome, Failure> {
    // The far ends only answer; they live as long as the near ones post.
    let (near, _far) = session.pairs(plan, plan.qps)?;
    let near = QueuePair::export_all(near).map_err(warpverbs::Error::from)?;

    let sent = data::source(plan.seed, plan.buffer());
    let from = session.gpu.alloc_copy(&sent, "source")?;
    let to = session
        .gpu
        .alloc_copy(&data::poison(&sent), "destination")?;
    let (local, remote, direction) = match plan.test {
        Test::ReadBw => (
            Mr::register(&session.pd, &to, Access::LOCAL_WRITE)?,
            Mr::register(&session.far_pd, &from, Access::REMOTE_READ)?,
            Direction::Read,
        ),
        _ => (
            Mr::register(&session.pd, &from, Access::LOCAL_READ)?,
            Mr::register(
                &session.far_pd,
                &to,
                Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            )?,
            Direction::Write,
        ),
    };

    let mut run = Bandwidth {
        direction,
        threads: plan.threads,
        block: block(plan.threads),
        sharing: match plan.sharing {
            Sharing::Exclusive => warpverbs::Sharing::Exclusive,
            Sharing::Gpu => warpverbs::Sharing::Gpu,
        },
        doorbell: doorbell(plan.doorbell),
        size: plan.size,
        slots: plan.slots,
        iters: plan.iters,
        ..Bandwidth::default()
    }
    .launch(
        &session.module,
        &session.stream,
        &near,
        &local,
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

pub(crate) fn doorbell(doorbell: Doorbell) -> warpverbs::Doorbell {
    match doorbell {
        Doorbell::Db => warpverbs::Doorbell::Db,
        Doorbell::Early => warpverbs::Doorbell::DbEarly,
    }
}

/// Threads of a block: the largest divisor that makes whole blocks of at most 256.
fn block(threads: u32) -> u32 {
    (1..=threads.min(256))
        .rev()
        .find(|block| threads.is_multiple_of(*block))
        .unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::block;

    #[test]
    fn blocks_are_whole() {
        assert_eq!(
            [1, 64, 256, 512, 300, 257, 1024].map(block),
            [1, 64, 256, 256, 150, 1, 256]
        );
    }
}
