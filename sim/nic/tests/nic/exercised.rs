//! What a NIC did in a test, by the names that docs/nic-coverage.md is made of.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Mutex;

use warpverbs_sim_nic::{Event, NicModel, Trace};
use warpverbs_wire::cqe::CqeOpcode;
use warpverbs_wire::eqe::EventType;
use warpverbs_wire::roce;
use warpverbs_wire::wqe::{CompletionMode, Control, FenceMode, Opcode};

/// Where the tests of a run are to say what they exercised.
pub(crate) const NOTES: &str = "WARPVERBS_NIC_COVERAGE";

/// What a NIC did, while that is asked for.
pub(crate) struct Exercised {
    directory: PathBuf,
    trace: Trace,
    /// What of the trace was taken before the end.
    taken: Mutex<Vec<Event>>,
}

impl Exercised {
    pub(crate) fn of(model: &mut NicModel) -> Option<Self> {
        let directory = std::env::var_os(NOTES)?.into();
        let trace = Trace::new();
        model.trace(&trace);
        Some(Self {
            directory,
            trace,
            taken: Mutex::default(),
        })
    }

    /// The events of a trace that a test put in the place of this one's.
    pub(crate) fn took(&self, events: &[Event]) {
        self.taken.lock().unwrap().extend(events);
    }

    /// Adds to the test's file.
    pub(crate) fn note(self, model: &NicModel) {
        let mut items = BTreeSet::new();
        let taken = self.taken.into_inner().unwrap();
        let events = self.trace.take().into_iter().map(|record| record.event);
        for event in taken.into_iter().chain(events) {
            items.extend(items_of(event));
        }
        for code in model.events_by_type().keys() {
            items.insert(event(EventType::from_code(*code)));
        }
        for name in model.findings_by_kind().keys() {
            items.insert(finding(name));
        }
        for code in model.stats().executed.keys() {
            items.insert(executed(Opcode::from_code(*code)));
        }
        let thread = std::thread::current();
        let test = thread.name().unwrap_or("main").replace("::", ".");
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.directory.join(test))
            .unwrap();
        for item in items {
            writeln!(file, "{item}").unwrap();
        }
    }
}

// The names of items, for those who note them and those who list them.
pub(crate) fn command(opcode: u16) -> String {
    format!("command {opcode:#x}")
}
pub(crate) fn refusal(syndrome: u32) -> String {
    format!("refusal {syndrome:#x}")
}
pub(crate) fn executed(opcode: Opcode) -> String {
    format!("executed {opcode:?}")
}
pub(crate) fn fetched(opcode: Opcode) -> String {
    format!("fetched {opcode:?}")
}
pub(crate) fn variant(opcode: Opcode, opmod: u8) -> String {
    format!("variant {opcode:?} {opmod}")
}
pub(crate) fn fence(mode: FenceMode) -> String {
    format!("fence {mode:?}")
}
pub(crate) fn completion_mode(mode: CompletionMode) -> String {
    format!("mode {mode:?}")
}
pub(crate) fn cqe(opcode: CqeOpcode) -> String {
    format!("cqe {opcode:?}")
}
pub(crate) fn syndrome(syndrome: u8, vendor: u8) -> String {
    format!("syndrome {syndrome:#04x} {vendor:#04x}")
}
pub(crate) fn event(event: EventType) -> String {
    format!("event {event:?}")
}
pub(crate) fn sent(opcode: roce::Opcode) -> String {
    format!("packet {opcode:?}")
}
pub(crate) fn finding(name: &str) -> String {
    format!("finding {name}")
}
pub(crate) fn fault(name: &str) -> String {
    format!("fault {name}")
}

fn items_of(event: Event) -> Vec<String> {
    match event {
        Event::Command {
            opcode, status: 0, ..
        } => vec![command(opcode)],
        Event::Command { syndrome, .. } => vec![refusal(syndrome)],
        Event::Fault { name } => vec![fault(name)],
        Event::Fetch {
            opcode,
            opmod,
            flags,
            ..
        } => {
            let control = Control {
                flags,
                ..Control::default()
            };
            vec![
                fetched(opcode),
                variant(opcode, opmod),
                fence(control.fence_mode()),
                completion_mode(control.completion_mode()),
            ]
        }
        Event::Sent { opcode, .. } => vec![sent(opcode)],
        Event::Completion {
            opcode,
            syndrome: code,
            vendor,
            ..
        } => vec![cqe(opcode), syndrome(code, vendor)],
        _ => vec![],
    }
}
