//! A cable between two ports, in one process: it loses, repeats, delays and reorders frames by plan and by seed.
//!
//! Knows: two ends, frames on their way, simulated time that passes only while both ends wait.
//! Must not know: what a frame says.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::capture::Capture;
use crate::config::LinkLayer;
use crate::impair::{CablePlan, CableStats, Impairment};
use crate::link::Link;
use crate::time::IDLE_STEP_NS;

/// A cable. Clones are the same cable.
#[derive(Clone)]
pub struct Cable(Arc<Mutex<State>>);

/// One end of a [`Cable`].
pub struct CableEnd {
    cable: Cable,
    side: usize,
}

struct State {
    impairment: Impairment,
    up: bool,
    now: u64,
    sides: [Side; 2],
    capture: Capture,
}

#[derive(Default)]
struct Side {
    /// Frames to this side, by arrival time and number.
    flying: BTreeMap<(u64, u64), Vec<u8>>,
    /// Frames that have arrived while time did not pass.
    arrived: VecDeque<Vec<u8>>,
    /// It waits, until then if that is known.
    waiting: Option<Option<u64>>,
}

impl Side {
    fn next(&self) -> Option<u64> {
        self.flying.first_key_value().map(|((time, _), _)| *time)
    }
}

impl Cable {
    /// A cable and its two ends.
    pub fn new(plan: CablePlan, seed: u64) -> (Self, CableEnd, CableEnd) {
        let cable = Self(Arc::new(Mutex::new(State {
            impairment: Impairment::new(plan, seed),
            up: true,
            now: 0,
            sides: Default::default(),
            capture: Capture::default(),
        })));
        let end = |side| CableEnd {
            cable: cable.clone(),
            side,
        };
        (cable.clone(), end(0), end(1))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it has done so far.
    pub fn stats(&self) -> CableStats {
        self.state().impairment.stats
    }

    /// Plugs it in or pulls it out. Frames that are sent while it is out are lost.
    pub fn set_up(&self, up: bool) {
        self.state().up = up;
    }

    /// Writes every frame that is sent from now on, lost ones included, to a pcap file.
    pub fn capture(&self, file: impl Write + Send + 'static) -> io::Result<()> {
        self.state().capture.begin(file)
    }

    /// Ends the capture, and says whether all of it was written.
    pub fn end_capture(&self) -> io::Result<()> {
        self.state().capture.end()
    }
}

impl State {
    fn send(&mut self, side: usize, frame: &[u8]) {
        self.capture.record(self.now, frame);
        let Some(passage) = self.impairment.pass(self.up) else {
            return;
        };
        let Some(to) = self.sides.get_mut(1 - side) else {
            return;
        };
        for copy in 0..passage.copies {
            if passage.delay_ns == 0 {
                to.arrived.push_back(frame.to_vec());
            } else {
                let arrival = (self.now + passage.delay_ns, passage.number * 2 + copy);
                to.flying.insert(arrival, frame.to_vec());
            }
        }
    }

    fn receive(&mut self, side: usize) -> Option<Vec<u8>> {
        let side = self.sides.get_mut(side)?;
        if let Some(frame) = side.arrived.pop_front() {
            return Some(frame);
        }
        if side.next()? > self.now {
            return None;
        }
        side.flying.pop_first().map(|(_, frame)| frame)
    }

    fn wait(&mut self, side: usize, now: u64, deadline: Option<u64>) -> Option<u64> {
        if let Some(side) = self.sides.get_mut(side) {
            side.waiting = Some(deadline);
        }
        if now < self.now {
            return Some(self.now);
        }
        let mut next: Option<u64> = None;
        for side in &self.sides {
            // Someone works, or will: no time passes.
            let deadline = side.waiting?;
            if !side.arrived.is_empty() {
                return None;
            }
            next = [next, deadline, side.next()].into_iter().flatten().min();
        }
        let most = self.now.saturating_add(IDLE_STEP_NS);
        self.now = self.now.max(next?.min(most));
        Some(self.now)
    }
}

impl Link for CableEnd {
    fn carries(&mut self, layer: LinkLayer) {
        self.cable.state().capture.carries(layer);
    }

    fn send(&mut self, _: u64, frame: &[u8]) {
        self.cable.state().send(self.side, frame);
    }

    fn receive(&mut self) -> Option<Vec<u8>> {
        self.cable.state().receive(self.side)
    }

    fn wait(&mut self, now: u64, deadline: Option<u64>) -> Option<u64> {
        self.cable.state().wait(self.side, now, deadline)
    }

    fn resume(&mut self) {
        if let Some(side) = self.cable.state().sides.get_mut(self.side) {
            side.waiting = None;
        }
    }

    fn set_time(&mut self, now: u64) {
        let mut state = self.cable.state();
        state.now = state.now.max(now);
    }
}

impl std::fmt::Debug for Cable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cable({:?})", self.stats())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(end: &mut CableEnd) -> Vec<u8> {
        std::iter::from_fn(|| end.receive()).flatten().collect()
    }

    #[test]
    fn frames_arrive_in_order_at_once_unless_the_plan_says_otherwise() {
        let (cable, mut a, mut b) = Cable::new(CablePlan::default(), 1);
        for n in 0..5 {
            a.send(0, &[n]);
        }
        assert_eq!(received(&mut b), [0, 1, 2, 3, 4]);
        cable.set_up(false);
        a.send(0, &[9]);
        assert_eq!(received(&mut b), [0u8; 0]);
        assert_eq!((cable.stats().frames, cable.stats().lost), (6, 1));
    }

    #[test]
    fn time_passes_only_while_both_ends_wait() {
        let plan = CablePlan {
            delay_ns: 700,
            drop: [1].into(),
            ..CablePlan::default()
        };
        let (_, mut a, mut b) = Cable::new(plan, 1);
        a.send(0, &[1]);
        a.send(0, &[2]);
        assert_eq!(received(&mut b), [0u8; 0]);
        assert_eq!(a.wait(0, Some(5000)), None, "the other end works");
        assert_eq!(b.wait(0, None), Some(700), "the frame comes first");
        assert_eq!(received(&mut b), [1]);
        b.resume();
        assert_eq!(a.wait(0, Some(5000)), Some(700), "the clocks agree");
        assert_eq!(a.wait(700, Some(5000)), None);
        assert_eq!(b.wait(700, None), Some(5000));
        assert_eq!(a.wait(5000, None), None, "nothing will happen");
    }

    #[test]
    fn a_seed_replays_what_the_cable_does() {
        let run = |seed| {
            let plan = CablePlan {
                loss_ppm: 200_000,
                duplicate_ppm: 200_000,
                reorder_ppm: 200_000,
                reorder_ns: 10,
                ..CablePlan::default()
            };
            let (cable, mut a, mut b) = Cable::new(plan, seed);
            for n in 0..100 {
                a.send(0, &[n]);
            }
            let mut bytes = received(&mut b);
            a.wait(0, None);
            b.wait(0, None);
            bytes.extend(received(&mut b));
            let stats = cable.stats();
            assert!(stats.lost > 5 && stats.duplicated > 5 && stats.reordered > 5);
            assert_eq!(bytes.len() as u64, 100 - stats.lost + stats.duplicated);
            bytes
        };
        assert_eq!(run(3), run(3));
        assert_ne!(run(3), run(4));
    }
}
