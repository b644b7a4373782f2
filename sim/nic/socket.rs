//! A wire to another process: a datagram socket that carries a frame a datagram.
//!
//! Knows: sockets, real time, frames that wait for room or for their time.
//! Must not know: what a frame says. QEMU's `-netdev dgram` speaks the same.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::capture::Capture;
use crate::config::LinkLayer;
use crate::impair::{CablePlan, CableStats, Impairment};
use crate::link::Link;

/// Most bytes of a frame that is received: more than the largest MTU and all headers.
const MOST: usize = 1 << 14;
/// How long a NIC that waits for a timer rests.
const REST: Duration = Duration::from_micros(20);
/// Frames that wait for room in the socket: a socket of Linux holds ten. What is more is lost.
const QUEUE: usize = 4096;

/// One end of a wire between processes. Simulated time is real time here, so runs over it are not replayed by a seed.
pub struct SocketEnd {
    socket: UnixDatagram,
    begun: Instant,
    buffer: Vec<u8>,
    /// Frames that the socket had no room for.
    queue: VecDeque<Vec<u8>>,
    /// Frames on their way, by time and number: those that leave, and those that have arrived here but are late.
    leaving: BTreeMap<(u64, u64), Vec<u8>>,
    arriving: BTreeMap<(u64, u64), Vec<u8>>,
    wire: Wire,
    /// The NIC waits since then, when its clock had this time.
    waiting: Option<(Instant, u64)>,
}

/// What is between a [`SocketEnd`] and its socket: loss, repetition and delay in both directions, and a capture. Clones
/// are the same wire.
#[derive(Clone)]
pub struct Wire(Arc<Mutex<State>>);

struct State {
    out: Impairment,
    back: Impairment,
    capture: Capture,
    up: bool,
}

impl Wire {
    /// A wire that treats the frames of both directions by `plan`, each direction with chances of its own.
    pub fn new(plan: CablePlan, seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            out: Impairment::new(plan.clone(), seed),
            back: Impairment::new(plan, !seed),
            capture: Capture::default(),
            up: true,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it has done to frames that left, and to frames that came.
    pub fn stats(&self) -> (CableStats, CableStats) {
        let state = self.state();
        (state.out.stats, state.back.stats)
    }

    /// Another plan from now on; the counts begin at 0.
    pub fn set_plan(&self, plan: CablePlan, seed: u64) {
        let mut state = self.state();
        state.out = Impairment::new(plan.clone(), seed);
        state.back = Impairment::new(plan, !seed);
    }

    /// Plugs it in or pulls it out. Frames of both directions are lost while it is out.
    pub fn set_up(&self, up: bool) {
        self.state().up = up;
    }

    /// Writes every frame of both directions from now on, lost ones included, to a pcap file.
    pub fn capture(&self, file: impl Write + Send + 'static) -> io::Result<()> {
        self.state().capture.begin(file)
    }

    /// Ends the capture, and says whether all of it was written.
    pub fn end_capture(&self) -> io::Result<()> {
        self.state().capture.end()
    }
}

impl SocketEnd {
    /// An end over a connected socket.
    pub fn new(socket: UnixDatagram) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            begun: Instant::now(),
            buffer: vec![0; MOST],
            queue: VecDeque::new(),
            leaving: BTreeMap::new(),
            arriving: BTreeMap::new(),
            wire: Wire::new(CablePlan::default(), 0),
            waiting: None,
        })
    }

    /// An end that receives at `local`, which it creates, and sends to `peer`, which exists.
    pub fn bind(local: &Path, peer: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::bind(local)?;
        socket.connect(peer)?;
        Self::new(socket)
    }

    /// The same end behind a wire that loses, repeats and delays.
    pub fn behind(self, wire: &Wire) -> Self {
        Self {
            wire: wire.clone(),
            ..self
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Hands over what is due, in order, as far as there is room.
    fn flush(&mut self, now: u64) {
        while let Some(entry) = self.leaving.first_entry().filter(|e| e.key().0 <= now) {
            let frame = entry.remove();
            self.enqueue(frame);
        }
        while let Some(frame) = self.queue.front() {
            match self.socket.send(frame) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // A peer that is gone, or has not come yet, hears nothing: the transport sends it again.
                _ => self.queue.pop_front(),
            };
        }
    }

    fn enqueue(&mut self, frame: Vec<u8>) {
        if self.queue.len() < QUEUE {
            self.queue.push_back(frame);
        }
    }

    /// Takes what the socket has.
    fn fill(&mut self, now: u64) -> Option<Vec<u8>> {
        loop {
            let len = self.socket.recv(&mut self.buffer).ok()?;
            let frame = self.buffer.get(..len).unwrap_or_default();
            let passage = {
                let mut state = self.wire.state();
                state.capture.record(now, frame);
                let up = state.up;
                state.back.pass(up)
            };
            let Some(passage) = passage else { continue };
            if passage.delay_ns == 0 && passage.copies == 1 {
                return Some(frame.to_vec());
            }
            for copy in 0..passage.copies {
                let arrival = (now + passage.delay_ns, passage.number * 2 + copy);
                self.arriving.insert(arrival, frame.to_vec());
            }
            if let Some(frame) = self.due(now) {
                return Some(frame);
            }
        }
    }

    fn due(&mut self, now: u64) -> Option<Vec<u8>> {
        let entry = self.arriving.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }
}

impl Link for SocketEnd {
    fn carries(&mut self, layer: LinkLayer) {
        self.wire.state().capture.carries(layer);
    }

    fn send(&mut self, _: u64, frame: &[u8]) {
        let now = self.now();
        let passage = {
            let mut state = self.wire.state();
            state.capture.record(now, frame);
            let up = state.up;
            state.out.pass(up)
        };
        if let Some(passage) = passage {
            for copy in 0..passage.copies {
                if passage.delay_ns == 0 {
                    self.enqueue(frame.to_vec());
                } else {
                    let departure = (now + passage.delay_ns, passage.number * 2 + copy);
                    self.leaving.insert(departure, frame.to_vec());
                }
            }
        }
        self.flush(now);
    }

    fn receive(&mut self) -> Option<Vec<u8>> {
        let now = self.now();
        if !self.queue.is_empty() || !self.leaving.is_empty() {
            self.flush(now);
        }
        self.due(now).or_else(|| self.fill(now))
    }

    /// The NIC's clock runs with real time, but only while the NIC waits: neither its work nor an idle hour bring a timer
    /// closer that starts after it. Without a deadline the NIC is idle: whoever steps it looks again for frames.
    fn wait(&mut self, now: u64, deadline: Option<u64>) -> Option<u64> {
        let (since, then) = *self.waiting.get_or_insert_with(|| (Instant::now(), now));
        deadline?;
        std::thread::sleep(REST);
        let waited = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        // Later than `now`, so that waiting counts as progress.
        Some(then.saturating_add(waited).max(now.saturating_add(1)))
    }

    fn resume(&mut self) {
        self.waiting = None;
    }
}

impl std::fmt::Debug for SocketEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SocketEnd({:?})", self.socket)
    }
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Wire({:?})", self.stats())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(plan: CablePlan) -> (SocketEnd, SocketEnd, Wire) {
        let (a, b) = UnixDatagram::pair().unwrap();
        let wire = Wire::new(plan, 1);
        let a = SocketEnd::new(a).unwrap().behind(&wire);
        (a, SocketEnd::new(b).unwrap(), wire)
    }

    /// Receives until `count` frames have come; the first bytes of each.
    fn received(from: &mut SocketEnd, end: &mut SocketEnd, count: usize) -> Vec<u8> {
        let mut all = vec![];
        while all.len() < count {
            from.receive();
            match end.receive() {
                Some(frame) => all.push(frame[0]),
                None => std::thread::yield_now(),
            }
        }
        all
    }

    #[test]
    fn frames_wait_for_room_and_keep_their_order() {
        let (mut a, mut b, _) = ends(CablePlan::default());
        for n in 0..200 {
            a.send(0, &[n; 4000]);
        }
        let expected: Vec<u8> = (0..200).collect();
        assert_eq!(received(&mut a, &mut b, 200), expected);
    }

    #[test]
    fn both_directions_lose_repeat_and_delay() {
        let plan = CablePlan {
            drop: [1].into(),
            duplicate_ppm: 1_000_000,
            delay_ns: 2_000_000,
            ..CablePlan::default()
        };
        let (mut a, mut b, wire) = ends(plan);
        for n in 0..3 {
            a.send(0, &[n]);
        }
        assert_eq!(b.receive(), None, "on its way");
        assert_eq!(received(&mut a, &mut b, 4), [0, 0, 2, 2]);
        for n in 5..8 {
            b.send(0, &[n]);
        }
        assert_eq!(received(&mut b, &mut a, 4), [5, 5, 7, 7]);
        let (out, back) = wire.stats();
        assert_eq!((out.frames, out.lost, out.duplicated), (3, 1, 2));
        assert_eq!((back.frames, back.lost, back.duplicated), (3, 1, 2));
        wire.set_up(false);
        b.send(0, &[9]);
        assert_eq!(a.receive(), None);
    }

    #[test]
    fn work_and_idle_hours_take_no_time_of_the_nic() {
        let (mut a, _b, _) = ends(CablePlan::default());
        let rest = Duration::from_millis(5);
        assert_eq!(a.wait(100, None), None, "idle");
        std::thread::sleep(rest);
        a.resume();
        std::thread::sleep(rest);
        let begun = Instant::now();
        let first = a.wait(100, Some(u64::MAX)).unwrap();
        assert!(first > 100 && first - 100 <= begun.elapsed().as_nanos() as u64);
        std::thread::sleep(rest);
        let second = a.wait(first, Some(u64::MAX)).unwrap();
        assert!(second >= first + 5_000_000, "it waits");
    }

    #[test]
    fn a_peer_that_is_gone_hears_nothing() {
        let (mut a, b, _) = ends(CablePlan::default());
        drop(b);
        for n in 0..100 {
            a.send(0, &[n]);
        }
        assert!(a.queue.is_empty());
        assert_eq!(a.receive(), None);
    }
}
