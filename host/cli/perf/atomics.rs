//! `atomic-rate`.

use warpverbs::{Access, Mr, Operation, QueuePair};

use super::bandwidth::rate;
use super::data;
use super::plan::Plan;
use super::report::Outcome;
use super::session::{Ended, Session};
use crate::failure::Failure;

pub(crate) fn run(plan: &Plan, session: &Session) -> Result<Outcome, Failure> {
    let (near, _far) = session.pairs(plan, plan.qps)?;
    let near = QueuePair::export_all(near).map_err(warpverbs::Error::from)?;

    // An odd number: what was found tells how many came before.
    let [start, add] = words(plan.seed);
    let add = add | 1;
    let to = session
        .gpu
        .alloc_copy(&vec![0xa5; plan.buffer()], "what was found")?;
    let counter = session.gpu.alloc_copy(&start.to_le_bytes(), "counter")?;
    let local = Mr::register(&session.pd, &to, Access::LOCAL_WRITE)?;
    let remote = Mr::register(
        &session.far_pd,
        &counter,
        Access::LOCAL_WRITE | Access::REMOTE_ATOMIC,
    )?;
    let mut run = rate(plan, Operation::FetchAdd { add }).launch(
        &session.module,
        &session.stream,
        &near,
        Some(&local),
        &remote.remote(),
    )?;
    let ran = match session.wait(plan, &mut run)? {
        Ended::Ran(ran) => ran,
        Ended::Interrupted(outcome) => return Ok(outcome),
    };
    let ops = plan.operations();
    let end = word(&counter.to_vec()?);
    let due = start.wrapping_add(add.wrapping_mul(ops));
    let wrong = (end != due)
        .then(|| format!("the counter is {end:#x}, not {due:#x}"))
        .or(inconsistent(plan, &to.to_vec()?, start, add));
    // What was found, and the counter: 8 bytes each.
    Ok(Outcome::ended(&ran, 8, None, wrong))
}

/// Two words of a seed.
fn words(seed: u64) -> [u64; 2] {
    let bytes = data::source(seed, 16);
    let (words, _) = bytes.as_chunks::<8>();
    [0, 1].map(|at| words.get(at).copied().map_or(0, u64::from_le_bytes))
}

fn word(bytes: &[u8]) -> u64 {
    bytes.first_chunk().copied().map_or(0, u64::from_le_bytes)
}

/// What is wrong with what operations found: each found the counter after as many additions as no other, fewer than there were, and
/// the later ones of a thread after more. Of operations that share a slot the last is seen.
fn inconsistent(plan: &Plan, found: &[u8], start: u64, add: u64) -> Option<String> {
    let inverse = inverse(add);
    let (words, _) = found.as_chunks::<8>();
    let before = |word: &[u8; 8]| {
        u64::from_le_bytes(*word)
            .wrapping_sub(start)
            .wrapping_mul(inverse)
    };
    let mut all: Vec<u64> = words.iter().map(before).collect();
    let slots = plan.slots as usize;
    // Of a thread's slots, the one that its last operation used comes last.
    let newest = ((plan.iters - 1) % u64::from(plan.slots)) as usize;
    for (thread, own) in all.chunks(slots).enumerate() {
        let in_order = (1..=slots).filter_map(|age| own.get((newest + age) % slots));
        if !in_order.is_sorted_by(|earlier, later| earlier < later) {
            return Some(format!(
                "thread {thread}: a later operation found the counter after fewer additions"
            ));
        }
    }
    if let Some(most) = all.iter().find(|count| **count >= plan.operations()) {
        return Some(format!(
            "an operation found the counter after {most} additions, of {}",
            plan.operations()
        ));
    }
    all.sort_unstable();
    let twice = all.windows(2).find(|two| two.first() == two.last());
    twice.map(|two| {
        format!(
            "two operations found the counter after {} additions",
            two[0]
        )
    })
}

/// Of an odd number, modulo 2^64: each step doubles the bits that are right.
fn inverse(odd: u64) -> u64 {
    (0..6).fold(odd, |inverse, _| {
        inverse.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(inverse)))
    })
}

#[cfg(test)]
mod tests {
    use super::inverse;

    #[test]
    fn an_inverse_is_one() {
        for odd in [1, 3, 5, 0x9e37_79b9_7f4a_7c15, u64::MAX] {
            assert_eq!(inverse(odd).wrapping_mul(odd), 1);
        }
    }
}
