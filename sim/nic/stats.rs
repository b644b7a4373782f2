//! What the NIC counts.

use std::collections::BTreeMap;

/// Counters since the NIC was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NicStats {
    /// Send doorbells that named a QP of the page.
    pub doorbells: u64,
    /// Stores to the CQ doorbell.
    pub cq_arms: u64,
    /// Reads of send doorbell records.
    pub dbr_reads: u64,
    /// WQEs fetched, those flushed included.
    pub wqes_fetched: u64,
    /// Receive WQEs fetched, those flushed excluded.
    pub receives_fetched: u64,
    /// Packets sent, repeated ones included.
    pub packets_sent: u64,
    /// Packets that no wire took.
    pub packets_lost: u64,
    /// Requests that came again.
    pub duplicates: u64,
    /// Answers that made the requester send again.
    pub repeats: u64,
    /// Timeouts after which a requester sent again.
    pub timeouts: u64,
    /// Answers of a receiver that was not ready.
    pub rnr_naks: u64,
    /// WQEs that completed with success, by opcode.
    pub executed: BTreeMap<u8, u64>,
    /// CQEs written, error CQEs included.
    pub cqes: u64,
    /// Error CQEs that are no flush.
    pub error_cqes: u64,
    /// Flush CQEs.
    pub flush_cqes: u64,
    /// Payload bytes read from memory.
    pub bytes_read: u64,
    /// Payload bytes written to memory.
    pub bytes_written: u64,
    /// Mailboxes executed.
    pub commands: u64,
    /// Mailboxes refused.
    pub refused_commands: u64,
}

impl NicStats {
    /// WQEs that completed with success.
    pub fn executed_total(&self) -> u64 {
        self.executed.values().sum()
    }
}
