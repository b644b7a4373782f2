//! Compares what the NIC showed with what the reference allows.
//!
//! Knows: completions as (what, which), memories. Losses and errors of the other direction leave several outcomes possible;
//! each is named here, and nothing else is allowed.
//! Must not know: the NIC.

use crate::reference::{Effect, Outcome, Refusal, Stream, apply};

/// A completion of a send queue: which request, and its syndrome if it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) request: usize,
    pub(crate) bytes: usize,
    pub(crate) error: Option<u8>,
}

/// A completion of a receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) receive: usize,
    pub(crate) bytes: usize,
    pub(crate) immediate: u32,
    pub(crate) error: Option<u8>,
}

/// What was seen of one stream.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) sent: Vec<Sent>,
    pub(crate) received: Vec<Received>,
    /// The requester's memory, and the responder's.
    pub(crate) local: Vec<u8>,
    pub(crate) remote: Vec<u8>,
    /// The requester's and the responder's QPs are in ERR.
    pub(crate) requester_failed: bool,
    pub(crate) responder_failed: bool,
}

/// What besides the stream itself may have ended it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Disturbance {
    /// Frames get lost, or overtaken.
    pub(crate) lossy: bool,
    /// The requester's QP may have been taken to ERR: by its command, or by a refusal that it sent as a responder.
    pub(crate) requester: bool,
    /// The responder's QP may have been taken to ERR, by its command or by its own requests.
    pub(crate) responder: bool,
    /// A message waited for its receive while frames got lost: timeouts end it, for RNR NAKs are no progress that would give
    /// the retries back (IBA 9.7).
    pub(crate) starved: bool,
    /// Both QPs were reset before all was done: whatever happened is a beginning of what would have.
    pub(crate) cut: bool,
}

const FLUSHED: u8 = 0x05;
const RETRY_EXCEEDED: u8 = 0x15;

/// Judges a stream. `signalled` says of each request whether its success is told.
pub(crate) fn judge(
    stream: &Stream,
    signalled: &[bool],
    outcome: &Outcome,
    seen: &Seen,
    by: Disturbance,
) -> Result<(), String> {
    let count = stream.requests.len();
    // How many requests can be executed at all.
    let limit = outcome.effects.len();
    let refusal = outcome.refused.as_ref().map(|(refusal, _)| *refusal);
    let first_error = seen.sent.iter().find(|sent| sent.error.is_some());
    let complete = match first_error {
        Some(sent) => sent.request,
        // Behind the last success whatever was not signalled may be done too.
        None if by.cut => seen.sent.last().map_or(0, |sent| sent.request + 1),
        None => count,
    };
    successes(stream, signalled, seen, complete)?;
    if complete > limit {
        return Err(format!(
            "{complete} requests completed, of which {limit} can be"
        ));
    }
    if let Some(error) = first_error {
        flushes(seen, complete, count, by.cut)?;
        why(stream, error, limit, refusal, by)?;
        if !seen.requester_failed && !by.cut {
            return Err("a request failed, and the QP goes on".to_owned());
        }
    } else if limit < count && !by.cut {
        return Err(format!("request {limit} is to be refused: {refusal:?}"));
    }
    let reason = first_error.and_then(|sent| sent.error);
    let refused_by_peer = matches!(refusal, Some(Refusal::Remote(..)))
        && complete == limit
        && reason == refusal.map(Refusal::syndrome);
    if refused_by_peer && !seen.responder_failed && !by.cut {
        return Err("the responder refused a request, and its QP goes on".to_owned());
    }
    memories(stream, outcome, seen, complete, reason, by)
}

/// All signalled requests before `complete` succeeded, in order, and nothing else did.
fn successes(
    stream: &Stream,
    signalled: &[bool],
    seen: &Seen,
    complete: usize,
) -> Result<(), String> {
    let expected: Vec<usize> = (0..complete).filter(|at| signalled[*at]).collect();
    let found: Vec<usize> = seen
        .sent
        .iter()
        .take_while(|sent| sent.error.is_none())
        .map(|sent| sent.request)
        .collect();
    if found != expected {
        return Err(format!("successes {found:?}, not {expected:?}"));
    }
    for sent in seen.sent.iter().take(expected.len()) {
        let request = &stream.requests[sent.request];
        if request.fetches() && sent.bytes != request.len() {
            return Err(format!("{sent:?} of {request:?}"));
        }
    }
    Ok(())
}

/// Behind the first error all is flushed, signalled or not.
fn flushes(seen: &Seen, first: usize, count: usize, cut: bool) -> Result<(), String> {
    let behind = seen
        .sent
        .iter()
        .skip_while(|sent| sent.error.is_none())
        .skip(1);
    let found: Vec<(usize, Option<u8>)> = behind.map(|sent| (sent.request, sent.error)).collect();
    let expected: Vec<_> = (first + 1..count).map(|at| (at, Some(FLUSHED))).collect();
    if found == expected || (cut && expected.starts_with(&found)) {
        Ok(())
    } else {
        Err(format!("flushes {found:?}, not {expected:?}"))
    }
}

/// The first error is one that can be.
fn why(
    stream: &Stream,
    error: &Sent,
    limit: usize,
    refusal: Option<Refusal>,
    by: Disturbance,
) -> Result<(), String> {
    let own = refusal
        .is_some_and(|refusal| error.request == limit && error.error == Some(refusal.syndrome()));
    // Once a responder has refused, it answers nothing more: what told so may be lost, and before that acknowledgements.
    let unheard = by.lossy && matches!(refusal, Some(Refusal::Remote(..)));
    let possible = match error.error {
        Some(RETRY_EXCEEDED) => {
            let waits = by.starved && stream.requests[error.request].takes_receive();
            by.responder || unheard || waits
        }
        Some(FLUSHED) => by.requester,
        _ => false,
    };
    if own || possible {
        Ok(())
    } else {
        Err(format!(
            "{error:?}, where {refusal:?} at {limit} and {by:?} were possible"
        ))
    }
}

/// Some beginning of the requests explains both memories and the receives.
fn memories(
    stream: &Stream,
    outcome: &Outcome,
    seen: &Seen,
    complete: usize,
    reason: Option<u8>,
    by: Disturbance,
) -> Result<(), String> {
    let limit = outcome.effects.len();
    let refusal = outcome.refused.as_ref();
    let told =
        refusal.is_some_and(|(refusal, _)| complete == limit && reason == Some(refusal.syndrome()));
    // Without an error all is executed; with the refusal's own, all before it.
    let whole = reason.is_none() && !by.cut;
    let least = complete;
    let most = if whole || told { complete } else { limit };
    let mtu = stream.rules.mtu;

    let mut remote = stream.remote.clone();
    let mut why = String::from("no beginning of the requests explains the responder's memory");
    let mut explained = false;
    for effect in outcome.effects.iter().take(least) {
        apply(&mut remote, &effect.at_responder, usize::MAX);
    }
    for executed in least..=most {
        if executed > least {
            apply(
                &mut remote,
                &outcome.effects[executed - 1].at_responder,
                usize::MAX,
            );
        }
        let next = outcome
            .effects
            .get(executed)
            .or(refusal.map(|(_, effect)| effect));
        let partial = if whole { None } else { next };
        if explains(&remote, &seen.remote, partial, mtu, |e| &e.at_responder) {
            match receives(stream, outcome, seen, executed, told, by) {
                Ok(()) => {
                    explained = true;
                    break;
                }
                Err(error) => why = format!("{executed} requests executed: {error}"),
            }
        }
    }
    if !explained {
        let differs = remote.iter().zip(&seen.remote).position(|(a, b)| a != b);
        return Err(format!("{why} (first difference at {differs:?})"));
    }

    let mut local = stream.local.clone();
    for effect in outcome.effects.iter().take(complete) {
        apply(&mut local, &effect.at_requester, usize::MAX);
    }
    for answered in complete..=most {
        if answered > complete {
            apply(
                &mut local,
                &outcome.effects[answered - 1].at_requester,
                usize::MAX,
            );
        }
        let next = outcome.effects.get(answered).filter(|_| !whole && !told);
        if explains(&local, &seen.local, next, mtu, |e| &e.at_requester) {
            return Ok(());
        }
    }
    let differs = local.iter().zip(&seen.local).position(|(a, b)| a != b);
    Err(format!(
        "no beginning of the requests explains the requester's memory (first difference at {differs:?} after {most} of {complete} to {most})"
    ))
}

/// `memory`, after some packets of `next`, is what was seen.
fn explains(
    memory: &[u8],
    seen: &[u8],
    next: Option<&Effect>,
    mtu: usize,
    of: impl Fn(&Effect) -> &crate::reference::Changes,
) -> bool {
    if memory == seen {
        return true;
    }
    let Some(changes) = next.map(of) else {
        return false;
    };
    let len: usize = changes.iter().map(|(_, bytes)| bytes.len()).sum();
    (1..=len.div_ceil(mtu)).any(|packets| {
        let mut memory = memory.to_vec();
        apply(&mut memory, changes, packets * mtu);
        memory == seen
    })
}

/// The receives that `executed` requests took are complete, in order; then at most one failed; then all are flushed if the
/// responder is in ERR, and none is otherwise.
fn receives(
    stream: &Stream,
    outcome: &Outcome,
    seen: &Seen,
    executed: usize,
    told: bool,
    by: Disturbance,
) -> Result<(), String> {
    let mut expected: Vec<Received> = vec![];
    for effect in &outcome.effects[..executed] {
        if let Some((bytes, immediate)) = effect.received {
            expected.push(Received {
                receive: expected.len(),
                bytes,
                immediate,
                error: None,
            });
        }
    }
    let found = &seen.received;
    let done = found.iter().take_while(|one| one.error.is_none()).count();
    // A CQE may be behind its data when both QPs are reset.
    if found[..done] != expected[..] {
        return Err(format!("receives {:?}, not {expected:?}", &found[..done]));
    }
    let failed = match outcome.refused {
        Some((Refusal::Remote(_, Some(code)), _)) if executed == outcome.effects.len() => {
            Some(code)
        }
        _ => None,
    };
    let mut rest = &found[done..];
    if let ([first, behind @ ..], Some(code)) = (rest, failed)
        && first.error == Some(code)
    {
        rest = behind;
    } else if let (Some(code), true) = (failed, told && !by.cut) {
        return Err(format!("no receive failed with {code:#x}"));
    }
    let begin = found.len() - rest.len();
    let all = if seen.responder_failed {
        begin..stream.receives.len()
    } else {
        begin..begin
    };
    let flushed: Vec<usize> = all.collect();
    let right = rest.iter().all(|one| one.error == Some(FLUSHED));
    let numbers: Vec<usize> = rest.iter().map(|one| one.receive).collect();
    if right && (numbers == flushed || (by.cut && flushed.starts_with(&numbers))) {
        Ok(())
    } else {
        Err(format!("receives flushed {rest:?}, not {flushed:?}"))
    }
}
