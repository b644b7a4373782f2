//! What the NIC noticed that real hardware would silently get wrong, or only report as an error code.
//!
//! Knows: kinds of finding and how to say each in one line.
//! Must not know: how they are detected.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use warpverbs_sim_bus::Party;

use crate::objects::ObjectId;

/// How many findings of one kind on one object are kept; later ones are only counted.
const KEPT_PER_OBJECT: u64 = 8;

/// Something that is wrong whatever the outcome of the run looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What is wrong.
    pub kind: FindingKind,
    /// Where.
    pub object: ObjectId,
    /// The 64-bit WQEBB or CQE index concerned, if any.
    pub index: Option<u64>,
    /// What was found, such as the bytes of a WQE; may be empty.
    pub detail: String,
    /// Of a finding about a doorbell or its record: who stored them.
    pub told: Told,
}

/// Who told the NIC of work, as far as the memory model knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Who stored to the doorbell record.
    pub record: Option<Party>,
    /// Who rang.
    pub doorbell: Option<Party>,
}

/// Kinds of finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FindingKind {
    /// A fetched WQE carries the index of another slot or lap: its bytes are stale.
    WqeIndex {
        /// Low 16 bits of the index that was due.
        expected: u16,
        /// What the WQE has.
        found: u16,
    },
    /// A fetched WQE names another QP.
    WqeQpn {
        /// What the WQE has.
        found: u32,
    },
    /// A fetched WQE contradicts itself, or asks for what the QP does not offer.
    WqeMalformed,
    /// A fetched WQE has bytes set that its opcode does not use: they were left over.
    WqeReserved {
        /// Byte of the WQE.
        byte: u16,
    },
    /// A WQE that completes is not the one that was fetched: it was overwritten before it completed, or fetched before it was
    /// written.
    WqeChanged {
        /// The first byte that differs.
        byte: u16,
    },
    /// A fetched WQE ends behind the producer index.
    WqeBeyondProducer {
        /// The producer.
        producer: u64,
    },
    /// A doorbell on a page that is not the QP's.
    DoorbellWrongPage {
        /// The page rung.
        rung: u32,
        /// The QP's page.
        expected: u32,
    },
    /// A doorbell of a QP with a doorbell record on the register of QPs without, or the other way round.
    DoorbellWrongRegister,
    /// A doorbell for a QP or CQ number that was never handed out.
    DoorbellUnknownQp,
    /// A doorbell for a QP that was destroyed.
    DoorbellAfterDestroy,
    /// A doorbell moved backwards.
    DoorbellRegression {
        /// The doorbell before.
        last: u64,
        /// This one.
        rung: u64,
    },
    /// A doorbell for more WQEBBs than the queue has.
    DoorbellBeyondQueue,
    /// A doorbell while the QP could not send: it is lost.
    DoorbellLost,
    /// A WQE lies in the queue of a QP without doorbell record, nobody rang for it, and another QP rang at the same register: in
    /// background mode a register remembers one value, so the doorbell may have been overwritten. Hardware takes each store.
    DoorbellOverwritten,
    /// A store to a send doorbell that is neither of its forms.
    DoorbellMalformed,
    /// A store to a doorbell page that no register takes, of that width there.
    DoorbellRefused {
        /// Byte of the page.
        offset: u16,
        /// Bytes; 0: it was a load.
        width: u8,
    },
    /// The doorbell record did not reach a doorbell by the time the next one came, or by the end.
    DbrBehind {
        /// The doorbell.
        doorbell: u64,
        /// The record.
        dbr: u64,
    },
    /// As `DbrBehind`, and the record's receive word holds what belongs into the send word.
    DbrWrongWord {
        /// The doorbell.
        doorbell: u64,
    },
    /// No doorbell of an index made sure that the record was there when it arrived: nothing orders the store of the record
    /// before the doorbell (rule O3).
    DbrUnordered {
        /// The doorbell.
        doorbell: u64,
        /// The least that the record held for certain.
        record: u64,
    },
    /// The doorbell record covers WQEs that nobody rang for: a NIC may read the record without, but need not (rule O4).
    DbrUnrung {
        /// The last doorbell.
        doorbell: u64,
        /// The record.
        record: u64,
    },
    /// The doorbell record moved backwards.
    DbrRegression {
        /// The value before.
        last: u64,
        /// This one.
        now: u64,
    },
    /// The doorbell record names more WQEBBs than the queue has.
    DbrBeyondQueue {
        /// The value, low 16 bits.
        value: u16,
    },
    /// The doorbell record names more receive WQEs than the queue has.
    ReceiveDbrBeyondQueue {
        /// The value, low 16 bits.
        value: u16,
    },
    /// A fetched receive WQE contradicts itself.
    ReceiveMalformed,
    /// A CQE had no place: software has not consumed the one before it.
    CqOverrun,
    /// The CQ's doorbell record says that software consumed what was never produced.
    CqConsumer {
        /// The value, low 24 bits.
        value: u32,
    },
    /// A work request used a key that was deregistered.
    DeregisteredKey {
        /// The key.
        key: u32,
    },
    /// A DMA access failed on the bus: freed or unmapped memory.
    DmaFault {
        /// Bus address.
        addr: u64,
    },
}

names! {
    FindingKind:
    WqeIndex { .. } => "wqe-index",
    WqeQpn { .. } => "wqe-qpn",
    WqeMalformed => "wqe-malformed",
    WqeReserved { .. } => "wqe-reserved",
    WqeChanged { .. } => "wqe-changed",
    WqeBeyondProducer { .. } => "wqe-beyond-producer",
    DoorbellWrongPage { .. } => "doorbell-wrong-page",
    DoorbellWrongRegister => "doorbell-wrong-register",
    DoorbellUnknownQp => "doorbell-unknown-qp",
    DoorbellAfterDestroy => "doorbell-after-destroy",
    DoorbellRegression { .. } => "doorbell-regression",
    DoorbellBeyondQueue => "doorbell-beyond-queue",
    DoorbellLost => "doorbell-lost",
    DoorbellOverwritten => "doorbell-overwritten",
    DoorbellMalformed => "doorbell-malformed",
    DoorbellRefused { .. } => "doorbell-refused",
    DbrBehind { .. } => "dbr-behind",
    DbrWrongWord { .. } => "dbr-wrong-word",
    DbrUnordered { .. } => "dbr-unordered",
    DbrUnrung { .. } => "dbr-unrung",
    DbrRegression { .. } => "dbr-regression",
    DbrBeyondQueue { .. } => "dbr-beyond-queue",
    ReceiveDbrBeyondQueue { .. } => "receive-dbr-beyond-queue",
    ReceiveMalformed => "receive-malformed",
    CqOverrun => "cq-overrun",
    CqConsumer { .. } => "cq-consumer",
    DeregisteredKey { .. } => "deregistered-key",
    DmaFault { .. } => "dma-fault",
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WqeIndex { expected, found } => {
                write!(
                    f,
                    "the WQE carries index {found:#x}, not {expected:#x}: stale bytes"
                )
            }
            Self::WqeQpn { found } => write!(f, "the WQE carries QP number {found:#x}"),
            Self::WqeMalformed => f.write_str("the WQE makes no sense"),
            Self::WqeReserved { byte } => write!(
                f,
                "byte {byte} of the WQE is set, which its opcode does not use"
            ),
            Self::WqeChanged { byte } => write!(
                f,
                "byte {byte} is not what was fetched: the WQE was overwritten before it completed, or fetched before it was written"
            ),
            Self::WqeBeyondProducer { producer } => {
                write!(f, "the WQE ends behind producer {producer:#x}")
            }
            Self::DoorbellWrongPage { rung, expected } => {
                write!(
                    f,
                    "rung on UAR page {rung:#x}, the QP's is {expected:#x}: ignored"
                )
            }
            Self::DoorbellWrongRegister => {
                f.write_str("the register is not that of the QP's doorbell record mode: ignored")
            }
            Self::DoorbellUnknownQp => f.write_str("no such queue was ever created: ignored"),
            Self::DoorbellAfterDestroy => f.write_str("the QP was destroyed: ignored"),
            Self::DoorbellRegression { last, rung } => {
                write!(
                    f,
                    "the doorbell went back from {last:#x} to {rung:#x}: ignored"
                )
            }
            Self::DoorbellBeyondQueue => {
                f.write_str("the doorbell covers more WQEBBs than the queue has: ignored")
            }
            Self::DoorbellLost => f.write_str("the doorbell is lost"),
            Self::DoorbellOverwritten => f.write_str(
                "a WQE that no doorbell came for: another QP without record rings at the same register, which remembers one value in background mode",
            ),
            Self::DoorbellMalformed => f.write_str("the store is no doorbell: ignored"),
            Self::DoorbellRefused { offset, width: 0 } => {
                write!(
                    f,
                    "a load from byte {offset:#x} of a page that is written only"
                )
            }
            Self::DoorbellRefused { offset, width } => {
                write!(
                    f,
                    "a store of {width} bytes at {offset:#x} is no doorbell: ignored"
                )
            }
            Self::DbrBehind { doorbell, dbr } => write!(
                f,
                "the send doorbell record stayed at {dbr:#x} behind doorbell {doorbell:#x}: after an error these WQEs would never complete"
            ),
            Self::DbrWrongWord { doorbell } => write!(
                f,
                "doorbell {doorbell:#x} is in the receive word of the doorbell record (word 0), not in the send word (word 1)"
            ),
            Self::DbrUnordered { doorbell, record } => write!(
                f,
                "doorbell {doorbell:#x} can arrive before the store of its record, of which only {record:#x} is certain then: a fence.acq_rel.sys is missing between the two"
            ),
            Self::DbrUnrung { doorbell, record } => write!(
                f,
                "the send doorbell record is at {record:#x} and the last doorbell at {doorbell:#x}: these WQEs were fetched, if at all, by a NIC that happened to read the record"
            ),
            Self::DbrRegression { last, now } => {
                write!(
                    f,
                    "the send doorbell record went back from {last:#x} to {now:#x}"
                )
            }
            Self::DbrBeyondQueue { value } => {
                write!(
                    f,
                    "the send doorbell record's {value:#x} covers more WQEBBs than the queue has"
                )
            }
            Self::ReceiveDbrBeyondQueue { value } => write!(
                f,
                "the receive doorbell record's {value:#x} covers more WQEs than the queue has"
            ),
            Self::ReceiveMalformed => f.write_str("the receive WQE makes no sense"),
            Self::CqOverrun => f.write_str("a CQE was lost: the CQ is full"),
            Self::CqConsumer { value } => {
                write!(
                    f,
                    "the CQ doorbell record's {value:#x} is not between consumer and producer"
                )
            }
            Self::DeregisteredKey { key } => write!(
                f,
                "the work request uses key {key:#x}, which was deregistered"
            ),
            Self::DmaFault { addr } => write!(f, "DMA at {addr:#x} failed"),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.name(), self.object)?;
        if let Some(index) = self.index {
            write!(f, " index {index:#x}")?;
        }
        write!(f, ": {}", self.kind)?;
        if !self.detail.is_empty() {
            write!(f, " [{}]", self.detail)?;
        }
        Ok(())
    }
}

/// The text of a pretty-printed structure on one line.
pub(crate) fn one_line(text: impl fmt::Display) -> String {
    let text = text.to_string();
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    lines.join(" | ")
}

/// The findings of a run.
#[derive(Default)]
pub(crate) struct Findings {
    kept: Vec<Finding>,
    counts: BTreeMap<(ObjectId, &'static str), u64>,
    total: u64,
    /// How many of each kind, those that were taken away included.
    by_kind: BTreeMap<&'static str, u64>,
    /// Where findings were added since somebody looked.
    fresh: BTreeSet<ObjectId>,
}

impl Findings {
    /// Adds a finding. Of one kind on one object only the first few are kept.
    pub(crate) fn add(
        &mut self,
        object: ObjectId,
        index: Option<u64>,
        kind: FindingKind,
        detail: impl FnOnce() -> String,
    ) {
        self.add_told(object, index, kind, Told::default(), detail);
    }

    /// Adds a finding about a doorbell or its record.
    pub(crate) fn add_told(
        &mut self,
        object: ObjectId,
        index: Option<u64>,
        kind: FindingKind,
        told: Told,
        detail: impl FnOnce() -> String,
    ) {
        self.total += 1;
        *self.by_kind.entry(kind.name()).or_default() += 1;
        self.fresh.insert(object);
        let count = self.counts.entry((object, kind.name())).or_default();
        *count += 1;
        if *count <= KEPT_PER_OBJECT {
            self.kept.push(Finding {
                kind,
                object,
                index,
                detail: detail(),
                told,
            });
        }
    }

    pub(crate) fn kept(&self) -> &[Finding] {
        &self.kept
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn by_kind(&self) -> &BTreeMap<&'static str, u64> {
        &self.by_kind
    }

    /// Objects with findings that were added since the last call.
    pub(crate) fn take_fresh(&mut self) -> BTreeSet<ObjectId> {
        std::mem::take(&mut self.fresh)
    }

    pub(crate) fn take(&mut self) -> Vec<Finding> {
        self.counts.clear();
        std::mem::take(&mut self.kept)
    }
}
