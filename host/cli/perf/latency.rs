//! `write-lat`.

use warpverbs::{Access, GpuMemory, Latency, LatencyEnd, Mr, Pd, QueuePair};

use super::data;
use super::mode;
use super::plan::Plan;
use super::report::Outcome;
use super::session::{Ended, Session};
use crate::failure::Failure;

/// Buffers of one end. Messages end at a multiple of 8, where the kernel keeps the sequence number.
struct End {
    outbox: (GpuMemory, Mr),
    inbox: (GpuMemory, Mr),
}

pub(crate) fn run(plan: &Plan, session: &Session) -> Result<Outcome, Failure> {
    let size = plan.size as usize;
    let start = size.next_multiple_of(8) - size;
    let messages = [
        data::source(plan.seed, size),
        data::source(!plan.seed, size),
    ];
    let (near, far) = session.pairs(plan, 1)?;
    let ends = near.into_iter().chain(far).collect();
    let qps = QueuePair::export_all(ends).map_err(warpverbs::Error::from)?;

    let buffer = |pd: &Pd,
                  contents: &[u8],
                  label: &str,
                  access: Access|
     -> Result<(GpuMemory, Mr), Failure> {
        let memory = session
            .gpu
            .alloc_copy(&[&vec![0; start], contents].concat(), label)?;
        let mr = Mr::register_range(pd, &memory, start as u64..(start + size) as u64, access)?;
        Ok((memory, mr))
    };
    let end = |pd: &Pd, own: &[u8], others: &[u8]| -> Result<End, Failure> {
        Ok(End {
            outbox: buffer(pd, own, "outbox", Access::LOCAL_READ)?,
            inbox: buffer(
                pd,
                &inbox_poison(others),
                "inbox",
                Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            )?,
        })
    };
    let ends = [
        end(&session.pd, &messages[0], &messages[1])?,
        end(&session.far_pd, &messages[1], &messages[0])?,
    ];
    let of = |at: usize| LatencyEnd {
        qp: &qps[at],
        outbox: &ends[at].outbox.1,
        inbox: &ends[at].inbox.1,
    };
    let mut run = Latency {
        size: plan.size,
        iters: plan.iters,
        doorbell: mode::doorbell(plan.doorbell),
        order: mode::order(plan.order),
        completions: mode::completions(plan.cq),
        ..Latency::default()
    }
    .launch(&session.module, &session.stream, [of(0), of(1)])?;
    let ran = match session.wait(plan, &mut run)? {
        Ended::Ran(ran) => ran,
        Ended::Interrupted(outcome) => return Ok(outcome),
    };

    let mut difference = None;
    for (at, place) in [
        (0, "inbox of the first end"),
        (1, "inbox of the second end"),
    ] {
        let expected = last_message(&messages[1 - at], plan.iters);
        let arrived = ends[at].inbox.0.to_vec()?.split_off(start);
        difference = difference.or(data::difference(place, &arrived, &expected));
    }
    Ok(Outcome::ended(
        &ran,
        plan.size,
        session.bytes_moved(),
        difference,
    ))
}

/// Bytes of the sequence number at a message's end.
fn sequence_len(message: &[u8]) -> usize {
    if message.len() < 8 { 1 } else { 8 }
}

/// The message of round trip `iters`: the last that arrives.
fn last_message(message: &[u8], iters: u64) -> Vec<u8> {
    let len = sequence_len(message);
    let mut bytes = message.to_vec();
    let at = bytes.len() - len;
    bytes[at..].copy_from_slice(&iters.to_le_bytes()[..len]);
    bytes
}

/// Poison whose sequence number is 0: no message's, so that the receiver waits for the first.
fn inbox_poison(message: &[u8]) -> Vec<u8> {
    let mut bytes = data::poison(message);
    let at = bytes.len() - sequence_len(message);
    bytes[at..].fill(0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_number_is_the_messages_end() {
        assert_eq!(
            last_message(&[9; 10], 0x0102),
            [9, 9, 2, 1, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(last_message(&[9; 3], 0x0102), [9, 9, 2]);
        assert_eq!(inbox_poison(&[0xf0; 9]), [0x0f, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
