//! The trials: what each does to a queue pair, and what it looks at.
//!
//! Knows: the published trials on ConnectX NICs that docs/hardware-facts.md lists.
//! Must not know: what the outcome should be: it is compared with another NIC's.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};
use warpverbs::wire::cqe::Completion;
use warpverbs::wire::wqe::{Opcode, Segment, data, remote};

use super::rig::{Device, Queue, Shape};
use crate::failure::Failure;

type Result<T> = std::result::Result<T, Failure>;

/// How long completions that must come are waited for: retries of timeout 14 take some seconds.
const LONG: Duration = Duration::from_secs(20);
/// When retries of timeout 14 must have ended: they took up to 3.8 s.
const RETRIED: Duration = Duration::from_secs(6);
/// How long completions are waited for that should not come: released ones came within 73 us.
const SHORT: Duration = Duration::from_millis(50);
/// Between two looks at a collapsed CQ: a trailing flush followed within 60 us.
const BETWEEN: Duration = Duration::from_millis(2);
/// WQEs of a trial.
const WQES: u64 = 4;
const RING: Shape = Shape {
    collapsed: false,
    readable: true,
};

/// Why WQEs fail.
#[derive(Clone, Copy)]
enum Cause {
    /// The QP is moved to ERR while they wait for an answer.
    Local,
    /// The first names a key that the peer does not have.
    RemoteAccess,
    /// The first reads, which the peer does not allow.
    RemoteInvalid,
    /// The first names a local key that does not exist.
    LocalProtection,
    /// The peer does not answer.
    PeerGone,
}

impl Cause {
    const fn name(self) -> &'static str {
        match self {
            Self::Local => "local-2err",
            Self::RemoteAccess => "remote-access",
            Self::RemoteInvalid => "remote-invalid-request",
            Self::LocalProtection => "local-protection",
            Self::PeerGone => "peer-gone",
        }
    }

    /// How often it is tried: what waits for retries takes seconds on hardware.
    const fn times(self, times: u32) -> u32 {
        match self {
            Self::PeerGone => times.div_ceil(10),
            _ => times,
        }
    }

    const fn peer_answers(self) -> bool {
        !matches!(self, Self::Local | Self::PeerGone)
    }
}

/// Runs all trials, each `times`. Outcomes are counts of what was seen; fields that end in `_us` are times.
pub(super) fn all(device: &Device, times: u32) -> Result<Map<String, Value>> {
    let mut report = Map::new();
    report.insert("doorbell-alone".into(), doorbell_alone(device, times)?);
    report.insert("opcodes".into(), opcodes(device)?);
    let mut syndromes = Map::new();
    let causes = [
        Cause::Local,
        Cause::RemoteAccess,
        Cause::RemoteInvalid,
        Cause::LocalProtection,
        Cause::PeerGone,
    ];
    for cause in causes {
        let times = cause.times(times);
        syndromes.insert(cause.name().into(), syndromes_of(device, cause, times)?);
    }
    report.insert("syndromes".into(), syndromes.into());
    let mut records = Map::new();
    for cause in [Cause::Local, Cause::RemoteAccess, Cause::PeerGone] {
        let times = cause.times(times);
        for written in [true, false] {
            let name = format!(
                "{}, record {}",
                cause.name(),
                if written { "written" } else { "not written" }
            );
            records.insert(name, record(device, cause, written, times)?);
        }
    }
    report.insert("records".into(), records.into());
    let mut captures = Map::new();
    for collapsed in [true, false] {
        let name = if collapsed { "collapsed" } else { "ring" };
        captures.insert(name.into(), capture(device, collapsed, times)?);
    }
    report.insert("cause-kept".into(), captures.into());
    report.insert("drain-marker".into(), marker(device, times)?);
    Ok(report)
}

/// What was seen, and how often.
#[derive(Default)]
struct Tally(BTreeMap<String, u64>);

impl Tally {
    fn add(&mut self, what: impl Into<String>) {
        *self.0.entry(what.into()).or_default() += 1;
    }

    fn json(self) -> Value {
        json!(self.0)
    }
}

fn text(completion: &Completion) -> String {
    match completion {
        Completion::Pending => "pending".into(),
        Completion::Done(cqe) => format!("done {:#04x}", cqe.send_opcode),
        Completion::Failed(cqe) => {
            format!("{:#04x}/{:#04x}", cqe.syndrome.code(), cqe.vendor_syndrome)
        }
    }
}

fn texts(completions: &[Completion]) -> String {
    completions.iter().map(text).collect::<Vec<_>>().join(" ")
}

/// A write of 64 bytes by these keys.
fn write(device: &Device, lkey: u32, rkey: u32) -> [Segment; 2] {
    let (_, addr) = device.data();
    [remote(addr + 4096, rkey), data(64, lkey, addr)]
}

/// Posts the WQEs of a trial, the first of which fails for `cause`.
fn post(device: &Device, queue: &mut Queue<'_>, cause: Cause) -> Result<()> {
    let (key, _) = device.data();
    for number in 0..WQES {
        let (opcode, lkey, rkey) = match (number, cause) {
            (0, Cause::RemoteAccess) => (Opcode::RdmaWrite, key, key ^ 0xff),
            (0, Cause::LocalProtection) => (Opcode::RdmaWrite, key ^ 0xff, key),
            (0, Cause::RemoteInvalid) => (Opcode::RdmaRead, key, key),
            _ => (Opcode::RdmaWrite, key, key),
        };
        queue.write(opcode, &write(device, lkey, rkey))?;
    }
    Ok(())
}

/// A queue pair whose WQEs will fail for `cause`, and its peer.
fn victim(device: &Device, cause: Cause, collapsed: bool) -> Result<(Queue<'_>, Queue<'_>)> {
    let shape = Shape {
        collapsed,
        readable: !matches!(cause, Cause::RemoteInvalid),
    };
    let (queue, peer) = device.pair(shape)?;
    queue.connect(&peer)?;
    if cause.peer_answers() {
        peer.connect(&queue)?;
    }
    Ok((queue, peer))
}

/// Makes the trial's WQEs fail, with the record written or not.
fn provoke(device: &Device, queue: &mut Queue<'_>, cause: Cause, written: bool) -> Result<()> {
    post(device, queue, cause)?;
    if written {
        queue.record(queue.next)?;
    }
    queue.ring()?;
    if matches!(cause, Cause::Local) {
        // The doorbell and its packets are on their way before the command is.
        std::thread::sleep(Duration::from_millis(1));
        queue.fail()?;
    }
    Ok(())
}

/// In RTS the doorbell's index alone carries traffic, and QUERY_QP tells it.
fn doorbell_alone(device: &Device, times: u32) -> Result<Value> {
    let (key, _) = device.data();
    let mut tally = Tally::default();
    for _ in 0..times {
        let (mut queue, peer) = device.pair(RING)?;
        queue.connect(&peer)?;
        peer.connect(&queue)?;
        queue.write(Opcode::RdmaWrite, &write(device, key, key))?;
        queue.ring()?;
        queue.wait(LONG, |found| !found.is_empty())?;
        let (consumer, producer) = queue.counters()?;
        tally.add(format!(
            "{}, consumer {consumer}, producer {producer}",
            texts(&queue.completions()?)
        ));
    }
    Ok(tally.json())
}

/// What each operation's completion says.
fn opcodes(device: &Device) -> Result<Value> {
    let (key, addr) = device.data();
    let mut seen = Map::new();
    for (name, opcode, segments) in [
        ("nop", Opcode::Nop, vec![]),
        ("write", Opcode::RdmaWrite, write(device, key, key).to_vec()),
        ("read", Opcode::RdmaRead, write(device, key, key).to_vec()),
        ("dump", Opcode::Dump, vec![data(64, key, addr)]),
    ] {
        let (mut queue, peer) = device.pair(RING)?;
        queue.connect(&peer)?;
        peer.connect(&queue)?;
        queue.write(opcode, &segments)?;
        queue.record(queue.next)?;
        queue.ring()?;
        queue.wait(LONG, |found| !found.is_empty())?;
        seen.insert(name.into(), texts(&queue.completions()?).into());
    }
    Ok(seen.into())
}

/// The completions of a failure, in order.
fn syndromes_of(device: &Device, cause: Cause, times: u32) -> Result<Value> {
    let mut tally = Tally::default();
    for _ in 0..times {
        let (mut queue, _peer) = victim(device, cause, false)?;
        provoke(device, &mut queue, cause, true)?;
        queue.wait(LONG, |found| found.len() as u64 == WQES)?;
        tally.add(texts(&queue.completions()?));
    }
    Ok(tally.json())
}

/// How many WQEs complete with the record written or not, and once it is written.
fn record(device: &Device, cause: Cause, written: bool, times: u32) -> Result<Value> {
    let mut tally = Tally::default();
    let mut longest = Duration::ZERO;
    for _ in 0..times {
        let (mut queue, _peer) = victim(device, cause, false)?;
        provoke(device, &mut queue, cause, written)?;
        let all = |found: &[Completion]| found.len() as u64 == WQES;
        let patience = match (written, cause) {
            (true, _) => LONG,
            // Until the retries must have ended.
            (false, Cause::PeerGone) => RETRIED,
            (false, _) => SHORT,
        };
        queue.wait(patience, all)?;
        let before = queue.completions()?.len();
        queue.record(queue.next)?;
        longest = longest.max(queue.wait(LONG, all)?.unwrap_or(LONG));
        tally.add(format!(
            "{before} of {WQES}, then {}",
            queue.completions()?.len()
        ));
    }
    Ok(json!({ "completions": tally.json(), "released_within_us": longest.as_micros() as u64 }))
}

/// Whether the cause of an error can still be read a while after it.
fn capture(device: &Device, collapsed: bool, times: u32) -> Result<Value> {
    let mut tally = Tally::default();
    for _ in 0..times {
        let (mut queue, _peer) = victim(device, Cause::RemoteAccess, collapsed)?;
        provoke(device, &mut queue, Cause::RemoteAccess, true)?;
        queue.wait(LONG, |found| !found.is_empty())?;
        std::thread::sleep(BETWEEN);
        let first = queue.completions()?;
        tally.add(first.first().map_or("nothing".into(), text));
    }
    Ok(tally.json())
}

/// A signalled NOP behind all others, posted in ERR: when it completes, all before it have.
fn marker(device: &Device, times: u32) -> Result<Value> {
    let mut tally = Tally::default();
    let mut longest = Duration::ZERO;
    for _ in 0..times {
        let (mut queue, _peer) = victim(device, Cause::Local, false)?;
        provoke(device, &mut queue, Cause::Local, true)?;
        let index = queue.next as u16;
        queue.write(Opcode::Nop, &[])?;
        queue.record(queue.next)?;
        queue.ring()?;
        let is_marker = |completion: &Completion| match completion {
            Completion::Done(cqe) => cqe.wqe_counter == index,
            Completion::Failed(cqe) => cqe.wqe_counter == index,
            Completion::Pending => false,
        };
        let took = queue.wait(LONG, |found| found.iter().any(is_marker))?;
        longest = longest.max(took.unwrap_or(LONG));
        tally.add(texts(&queue.completions()?));
    }
    Ok(json!({ "completions": tally.json(), "within_us": longest.as_micros() as u64 }))
}
