//! Events: what the NIC raises beside completions.
//!
//! Knows: which events wait to be taken, and when an armed CQ raises one.
//! Must not know: who takes them. Event queues in memory are the driver's: what it would read from them is here.

use std::collections::BTreeMap;

use warpverbs_wire::doorbell::CqArm;
use warpverbs_wire::eqe::Event;

/// Events that wait at most; an event queue that nobody reads overflows on hardware too.
const MOST: usize = 1 << 16;

/// Events that were raised and not taken.
#[derive(Default)]
pub(crate) struct Events {
    waiting: Vec<Event>,
    lost: u64,
    /// How many of each type, by its code.
    by_type: BTreeMap<u8, u64>,
}

impl Events {
    pub(crate) fn raise(&mut self, event: Event) {
        *self.by_type.entry(event.event_type().code()).or_default() += 1;
        if self.waiting.len() < MOST {
            self.waiting.push(event);
        } else {
            self.lost += 1;
        }
    }

    pub(crate) fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.waiting)
    }

    pub(crate) fn by_type(&self) -> &BTreeMap<u8, u64> {
        &self.by_type
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }
}

/// What a CQ was armed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    /// The next completion.
    Any,
    /// The next solicited one, or the next error.
    Solicited,
}

/// How far a CQ's arming is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arming {
    armed: Option<Armed>,
    /// Events raised.
    raised: u64,
}

impl Arming {
    /// Takes an arm command; `producer` CQEs were written. True if the event is raised at once: a completion lies behind the
    /// consumer that the command names. A command of another number than the next event's is void (rdma-core `mlx5_arm_cq`).
    pub(crate) fn arm(&mut self, command: CqArm, producer: u64) -> bool {
        if command.sequence != (self.raised & 3) as u8 {
            return false;
        }
        self.armed = Some(if command.solicited {
            Armed::Solicited
        } else {
            Armed::Any
        });
        let behind = (producer as u32).wrapping_sub(command.consumer) & 0xff_ffff;
        behind != 0 && self.fire(false, !command.solicited)
    }

    /// A completion was written. True if it raises the event.
    pub(crate) fn complete(&mut self, solicited: bool) -> bool {
        self.fire(solicited, false)
    }

    fn fire(&mut self, solicited: bool, any: bool) -> bool {
        let fires = match self.armed {
            None => false,
            Some(Armed::Any) => true,
            Some(Armed::Solicited) => solicited || any,
        };
        if fires {
            self.armed = None;
            self.raised += 1;
        }
        fires
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(sequence: u8, solicited: bool, consumer: u32) -> CqArm {
        CqArm {
            sequence,
            solicited,
            consumer,
        }
    }

    #[test]
    fn an_armed_cq_raises_one_event() {
        let mut cq = Arming::default();
        assert!(!cq.complete(true), "not armed");
        assert!(!cq.arm(command(0, false, 1), 1));
        assert!(cq.complete(false));
        assert!(!cq.complete(false), "once");
        assert!(!cq.arm(command(0, false, 1), 5), "void: event 0 was raised");
        assert!(
            cq.arm(command(1, false, 1), 5),
            "completions lie behind the consumer"
        );
        assert!(!cq.arm(command(2, true, 5), 5));
        assert!(!cq.complete(false));
        assert!(cq.complete(true));
    }
}
