//! The trace: what a NIC did, as lines to read and as a file that Perfetto opens.
//!
//! Knows: kinds of event and both forms.
//! Must not know: how an event comes about.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warpverbs_wire::cqe::CqeOpcode;
use warpverbs_wire::{roce, wqe};

/// Something that a NIC did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A mailbox was executed.
    Command {
        /// Its opcode.
        opcode: u16,
        /// Status of the answer; zero is success.
        status: u8,
        /// Syndrome of the answer.
        syndrome: u32,
    },
    /// A fault was planted.
    Fault {
        /// Its name.
        name: &'static str,
    },
    /// A send doorbell was taken.
    Doorbell {
        /// The QP.
        qpn: u32,
        /// The producer that it names, low 16 bits.
        producer: u16,
    },
    /// A send WQE was fetched.
    Fetch {
        /// The QP.
        qpn: u32,
        /// Its first WQEBB.
        index: u64,
        /// What it asks for.
        opcode: wqe::Opcode,
        /// Variant of the opcode.
        opmod: u8,
        /// Fence, completion mode, solicited event.
        flags: u8,
    },
    /// A packet was sent.
    Sent {
        /// The QP that sent it.
        qpn: u32,
        /// What it is.
        opcode: roce::Opcode,
        /// Its sequence number.
        psn: u32,
        /// Bytes of payload.
        bytes: u32,
    },
    /// A packet arrived.
    Arrived {
        /// The QP that it is for.
        qpn: u32,
        /// What it is.
        opcode: roce::Opcode,
        /// Its sequence number.
        psn: u32,
        /// Bytes of payload.
        bytes: u32,
    },
    /// A CQE was written.
    Completion {
        /// The QP.
        qpn: u32,
        /// The CQ.
        cqn: u32,
        /// First WQEBB of a send WQE, number of a receive WQE.
        index: u64,
        /// What the CQE reports.
        opcode: CqeOpcode,
        /// Why it failed; zero is success.
        syndrome: u8,
        /// Vendor syndrome.
        vendor: u8,
    },
    /// A WQE ended: with a CQE or, unsignalled, without.
    Ended {
        /// The QP.
        qpn: u32,
        /// Its first WQEBB.
        index: u64,
    },
    /// A timer of a requester ran out.
    Timer {
        /// The QP.
        qpn: u32,
    },
    /// A QP went to ERR by itself.
    Error {
        /// The QP.
        qpn: u32,
    },
}

impl Event {
    /// A short name that does not change.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Command { .. } => "command",
            Self::Fault { .. } => "fault",
            Self::Doorbell { .. } => "doorbell",
            Self::Fetch { .. } => "fetch",
            Self::Sent { .. } => "sent",
            Self::Arrived { .. } => "arrived",
            Self::Completion { .. } => "completion",
            Self::Ended { .. } => "ended",
            Self::Timer { .. } => "timer",
            Self::Error { .. } => "error",
        }
    }

    const fn qpn(&self) -> u32 {
        match *self {
            Self::Command { .. } | Self::Fault { .. } => 0,
            Self::Doorbell { qpn, .. }
            | Self::Fetch { qpn, .. }
            | Self::Sent { qpn, .. }
            | Self::Arrived { qpn, .. }
            | Self::Completion { qpn, .. }
            | Self::Ended { qpn, .. }
            | Self::Timer { qpn }
            | Self::Error { qpn } => qpn,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<10}", self.name())?;
        match self {
            Self::Command {
                opcode,
                status,
                syndrome,
            } => {
                write!(f, " opcode {opcode:#x} status {status:#x}")?;
                match syndrome {
                    0 => Ok(()),
                    syndrome => write!(f, " syndrome {syndrome:#x}"),
                }
            }
            Self::Fault { name } => write!(f, " {name}"),
            Self::Doorbell { qpn, producer } => write!(f, " QP {qpn:#x} producer {producer:#x}"),
            Self::Fetch {
                qpn,
                index,
                opcode,
                opmod,
                flags,
            } => write!(
                f,
                " QP {qpn:#x} index {index:#x} {opcode:?} opmod {opmod:#x} flags {flags:#04x}"
            ),
            Self::Sent {
                qpn,
                opcode,
                psn,
                bytes,
            }
            | Self::Arrived {
                qpn,
                opcode,
                psn,
                bytes,
            } => write!(f, " QP {qpn:#x} PSN {psn:#08x} {opcode:?}, {bytes} bytes"),
            Self::Completion {
                qpn,
                cqn,
                index,
                opcode,
                syndrome,
                vendor,
            } => write!(
                f,
                " QP {qpn:#x} CQ {cqn:#x} index {index:#x} {opcode:?} syndrome {syndrome:#x}/{vendor:#x}"
            ),
            Self::Ended { qpn, index } => write!(f, " QP {qpn:#x} index {index:#x}"),
            Self::Timer { qpn } | Self::Error { qpn } => write!(f, " QP {qpn:#x}"),
        }
    }
}

/// An event, with its time and NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Simulated nanoseconds; each event of a trace has a time of its own.
    pub time: u64,
    /// The NIC's name.
    pub nic: Arc<str>,
    /// The event.
    pub event: Event,
}

/// A trace of one or more NICs. Clones are the same trace.
#[derive(Clone, Default)]
pub struct Trace(Arc<Mutex<Vec<Record>>>);

impl Trace {
    /// An empty trace.
    pub fn new() -> Self {
        Self::default()
    }

    fn records(&self) -> MutexGuard<'_, Vec<Record>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, now: u64, nic: &Arc<str>, event: Event) {
        let mut records = self.records();
        // Work takes no simulated time: a nanosecond each keeps events apart and in order.
        let after = records.last().map_or(0, |last| last.time + 1);
        records.push(Record {
            time: now.max(after),
            nic: nic.clone(),
            event,
        });
    }

    /// Takes the events away.
    pub fn take(&self) -> Vec<Record> {
        std::mem::take(&mut self.records())
    }

    /// Writes a line an event.
    pub fn write_text(&self, out: &mut impl io::Write) -> io::Result<()> {
        for Record { time, nic, event } in self.records().iter() {
            writeln!(out, "{time:>14} ns  {nic:<6} {event}")?;
        }
        Ok(())
    }

    /// Writes the trace in the JSON form of Chrome's trace events, which Perfetto opens: a process a NIC, a thread a QP, an
    /// instant an event, and a slice from each WQE's fetch to its end.
    pub fn write_perfetto(&self, out: &mut impl io::Write) -> io::Result<()> {
        let mut processes: BTreeMap<Arc<str>, usize> = BTreeMap::new();
        let mut separator = "";
        write!(out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        for Record { time, nic, event } in self.records().iter() {
            let known = processes.len();
            let pid = *processes.entry(nic.clone()).or_insert(known) + 1;
            if pid > known {
                write!(
                    out,
                    "{separator}\n{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{pid},\"args\":{{\"name\":\"{}\"}}}}",
                    escaped(nic)
                )?;
                separator = ",";
            }
            let (tid, ts) = (event.qpn(), format!("{}.{:03}", time / 1000, time % 1000));
            let head = format!("\"pid\":{pid},\"tid\":{tid},\"ts\":{ts}");
            match event {
                Event::Fetch { index, opcode, .. } => write!(
                    out,
                    "{separator}\n{{\"name\":\"{opcode:?}\",\"cat\":\"wqe\",\"ph\":\"b\",\"id\":\"{tid:x}.{index:x}\",{head}}}"
                )?,
                Event::Ended { index, .. } => write!(
                    out,
                    "{separator}\n{{\"name\":\"WQE\",\"cat\":\"wqe\",\"ph\":\"e\",\"id\":\"{tid:x}.{index:x}\",{head}}}"
                )?,
                _ => {}
            }
            if matches!(event, Event::Fetch { .. } | Event::Ended { .. }) {
                separator = ",";
            }
            let text = event.to_string();
            write!(
                out,
                "{separator}\n{{\"name\":\"{}\",\"ph\":\"i\",\"s\":\"t\",{head},\"args\":{{\"text\":\"{}\"}}}}",
                event.name(),
                escaped(text.trim())
            )?;
            separator = ",";
        }
        writeln!(out, "\n]}}")
    }
}

/// Text inside a JSON string.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => {
                // Writing to a string does not fail.
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trace({} events)", self.records().len())
    }
}
