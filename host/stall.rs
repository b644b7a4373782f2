//! Why a wait on a QP saw no completion: what the CQ and the queue's words say.
//!
//! Knows: how a poller decides that a CQE is new, and where it looks.
//! Must not know: kernels.

use std::fmt;

use warpverbs_wire::cqe::{CQE, CqeOpcode, Tail, owner_at};

use crate::error::Result;
use crate::export::{ExportedQp, QpProgress};

/// What the CQ shows where a poller looks next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stall {
    /// Nothing is outstanding.
    None,
    /// Work requests were reserved and never handed to the NIC: their writers left.
    NotRung {
        /// The first of them: an SQ index.
        index: u64,
    },
    /// Work requests were handed to the host thread that rings, and it has not: the QP is in no [`Proxy`](crate::Proxy), or was
    /// taken from it, or its service failed.
    NotServed {
        /// The first of them: an SQ index.
        index: u64,
    },
    /// The NIC has written no completion for the oldest outstanding work request.
    NoCompletion {
        /// Its SQ index.
        index: u64,
    },
    /// A completion names the outstanding work request, but its owner bit is that of another lap: pollers take it for an
    /// old one.
    OwnerBit {
        /// CQ index of the CQE.
        cq_index: u64,
        /// SQ index of the work request that it names.
        index: u64,
        /// The owner bit that it has.
        found: u8,
        /// The owner bit of its lap.
        expected: u8,
    },
    /// A completion is there, and no thread has taken it.
    NotTaken {
        /// SQ index of the work request that it names.
        index: u64,
    },
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::None => f.write_str("nothing is outstanding"),
            Self::NotRung { index } => write!(f, "WQE {index} was reserved and never rung"),
            Self::NotServed { index } => {
                write!(f, "WQE {index} waits for a proxy to ring the doorbell")
            }
            Self::NoCompletion { index } => write!(f, "the NIC has not completed WQE {index}"),
            Self::OwnerBit {
                cq_index,
                index,
                found,
                expected,
            } => write!(
                f,
                "CQE {cq_index} names WQE {index}, which is outstanding, but has owner bit {found} where its lap has \
                 {expected}"
            ),
            Self::NotTaken { index } => {
                write!(f, "no thread has taken the completion of WQE {index}")
            }
        }
    }
}

/// Reads a stalled QP's CQ and judges it. Meant for when no kernel runs: while one does, words are each from some
/// moment.
pub(crate) fn diagnose(qp: &ExportedQp) -> Result<Stall> {
    let progress = qp.progress()?;
    if progress.completed >= progress.handed_off {
        return Ok(if progress.reserved > progress.handed_off {
            Stall::NotRung {
                index: progress.handed_off,
            }
        } else {
            Stall::None
        });
    }
    let queues = qp.qp().queues();
    let depth = queues.cq_depth();
    let cq_index = if depth == 1 { 0 } else { progress.cq_index };
    let mut cqe = [0; CQE];
    queues.read_cqe(cq_index, &mut cqe)?;
    let mut word = [0; 8];
    word.copy_from_slice(&cqe[Tail::OFFSET..]);
    let stall = judge(Tail(u64::from_le_bytes(word)), cq_index, depth, &progress);
    Ok(match (stall, queues.rung_by_host()?) {
        (Stall::NoCompletion { index }, Some(rung)) if rung <= index => {
            Stall::NotServed { index: rung }
        }
        _ => stall,
    })
}

fn judge(tail: Tail, cq_index: u64, depth: u32, progress: &QpProgress) -> Stall {
    let awaited = progress.completed;
    // The index as seen from the oldest outstanding one: of 16 bits, of which a queue uses at most half.
    let ahead = u64::from(tail.wqe_counter().wrapping_sub(awaited as u16));
    let index = awaited + ahead;
    if tail.opcode() == CqeOpcode::Invalid || index >= progress.handed_off {
        return Stall::NoCompletion { index: awaited };
    }
    let (found, expected) = (tail.owner(), owner_at(cq_index, depth));
    if depth > 1 && found != expected {
        return Stall::OwnerBit {
            cq_index,
            index,
            found,
            expected,
        };
    }
    Stall::NotTaken { index }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::QpStatus;

    fn tail(wqe_counter: u16, op_own: u8) -> Tail {
        let counter = wqe_counter.to_be_bytes();
        Tail(u64::from_le_bytes([
            0, 0, 0, 0, counter[0], counter[1], 0, op_own,
        ]))
    }

    #[test]
    fn each_stall_is_told_from_the_others() {
        let progress = QpProgress {
            reserved: 0x1_0004,
            handed_off: 0x1_0004,
            completed: 0xfffe,
            cq_index: 0xfffe,
            status: QpStatus::Live,
        };
        let seen = |counter, op_own| judge(tail(counter, op_own), 0xfffe, 128, &progress);
        // Index 0xfffe of a ring of 128 is in lap 511: owner bit 1.
        assert_eq!(seen(0xfffe, 0x01), Stall::NotTaken { index: 0xfffe });
        assert_eq!(
            seen(0x0001, 0x00),
            Stall::OwnerBit {
                cq_index: 0xfffe,
                index: 0x1_0001,
                found: 0,
                expected: 1
            }
        );
        let none = Stall::NoCompletion { index: 0xfffe };
        assert_eq!(seen(0xfffe, 0xf0), none, "fresh");
        assert_eq!(seen(0xff7e, 0x00), none, "the lap before");
        // A collapsed CQ's owner bit means nothing.
        let collapsed = judge(tail(0xffff, 0x00), 0, 1, &progress);
        assert_eq!(collapsed, Stall::NotTaken { index: 0xffff });
    }
}
