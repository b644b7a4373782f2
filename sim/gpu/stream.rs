//! Streams and events.
//!
//! Knows: in-order queues of launches and event records; several streams run at once.
//! Must not know: what a launch does.

use std::collections::{BTreeMap, VecDeque};

use crate::counters::LaunchCounters;
use crate::run::machine::Machine;
use crate::run::state::Launch;

enum Work {
    Launch(Box<Launch>),
    /// An event, and which of its records this is.
    Record(u64, u64),
}

#[derive(Default)]
struct Stream {
    queue: VecDeque<Work>,
    running: bool,
    last: Option<LaunchCounters>,
    /// Destroyed with work left: it goes when that is done.
    destroyed: bool,
}

#[derive(Default)]
struct Event {
    /// Number of the last record, and of the last one reached.
    recorded: u64,
    reached: u64,
    /// Stream of the last record.
    stream: Option<u64>,
    /// Of the last launch before the record that was reached last.
    counters: Option<LaunchCounters>,
}

/// All streams and events. Ordered by number, so that the order of work does not depend on hashing.
#[derive(Default)]
pub(crate) struct Streams {
    streams: BTreeMap<u64, Stream>,
    events: BTreeMap<u64, Event>,
    issued: u64,
}

impl Streams {
    pub(crate) fn create_stream(&mut self) -> u64 {
        self.issued += 1;
        self.streams.insert(self.issued, Stream::default());
        self.issued
    }

    pub(crate) fn create_event(&mut self) -> u64 {
        self.issued += 1;
        self.events.insert(self.issued, Event::default());
        self.issued
    }

    fn stream(&mut self, id: u64) -> Option<&mut Stream> {
        self.streams.get_mut(&id).filter(|s| !s.destroyed)
    }

    /// False if there is no such stream.
    pub(crate) fn destroy_stream(&mut self, id: u64) -> bool {
        let Some(stream) = self.stream(id) else {
            return false;
        };
        stream.destroyed = true;
        self.sweep();
        true
    }

    pub(crate) fn destroy_event(&mut self, id: u64) -> bool {
        self.events.remove(&id).is_some()
    }

    pub(crate) fn has_stream(&self, id: u64) -> bool {
        self.streams.get(&id).is_some_and(|s| !s.destroyed)
    }

    pub(crate) fn done(&self, id: u64) -> Option<bool> {
        let stream = self.streams.get(&id).filter(|s| !s.destroyed)?;
        Some(!stream.running && stream.queue.is_empty())
    }

    pub(crate) fn event_done(&self, id: u64) -> Option<bool> {
        self.events.get(&id).map(|e| e.reached == e.recorded)
    }

    /// The stream of an event's last record.
    pub(crate) fn recorded_on(&self, id: u64) -> Option<u64> {
        self.events.get(&id)?.stream
    }

    /// Counters of the last launch before an event's last record, once that is reached.
    pub(crate) fn counters(&self, event: u64) -> Option<LaunchCounters> {
        let event = self.events.get(&event)?;
        event.counters.filter(|_| event.reached == event.recorded)
    }

    /// True if a launch of the module waits in a queue.
    pub(crate) fn holds_module(&self, module: u64) -> bool {
        self.streams
            .values()
            .flat_map(|s| &s.queue)
            .any(|work| matches!(work, Work::Launch(l) if l.module == module))
    }

    pub(crate) fn push_launch(&mut self, launch: Launch) {
        let id = launch.stream;
        if let Some(stream) = self.stream(id) {
            stream.queue.push_back(Work::Launch(Box::new(launch)));
        }
    }

    /// Records an event behind all work of a stream; the caller has checked that both exist.
    pub(crate) fn record(&mut self, event: u64, stream: u64) {
        let Some(e) = self.events.get_mut(&event) else {
            return;
        };
        e.recorded += 1;
        e.stream = Some(stream);
        let record = e.recorded;
        if let Some(stream) = self.stream(stream) {
            stream.queue.push_back(Work::Record(event, record));
        }
    }

    /// A launch has ended.
    pub(crate) fn finished(&mut self, launch: &Launch) {
        if let Some(stream) = self.streams.get_mut(&launch.stream) {
            stream.running = false;
            stream.last = Some(launch.counters);
        }
    }

    /// Begins what can begin: the head of each queue that nothing runs before.
    pub(crate) fn pump(&mut self, machine: &mut Machine) {
        for stream in self.streams.values_mut() {
            while !stream.running {
                match stream.queue.pop_front() {
                    None => break,
                    Some(Work::Record(event, record)) => {
                        // The event may have been destroyed since.
                        if let Some(event) = self.events.get_mut(&event) {
                            event.reached = event.reached.max(record);
                            if event.reached == record {
                                event.counters = stream.last;
                            }
                        }
                    }
                    Some(Work::Launch(launch)) if machine.has_room(&launch) => {
                        machine.begin(*launch);
                        stream.running = true;
                    }
                    Some(launch) => {
                        stream.queue.push_front(launch);
                        break;
                    }
                }
            }
        }
        self.sweep();
    }

    fn sweep(&mut self) {
        self.streams
            .retain(|_, s| !s.destroyed || s.running || !s.queue.is_empty());
    }

    /// Drops all work: the context is dead.
    pub(crate) fn kill(&mut self) {
        for stream in self.streams.values_mut() {
            stream.queue.clear();
            stream.running = false;
        }
        self.sweep();
    }
}
