//! Faults that a test plants in the NIC, to see that they are found.
//!
//! Knows: what to break, where.
//! Must not know: who should notice.

use warpverbs_sim_bus::Rng;
use warpverbs_wire::cqe::Syndrome;
use warpverbs_wire::prm::Status;

/// A fault. Those that name an index act once, when the NIC gets there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InjectedFault {
    /// Inverts the bits of `mask` in one byte of the WQE at a WQEBB index, as it is fetched.
    FlipWqeByte {
        /// The QP.
        qpn: u32,
        /// The WQE's first WQEBB, as a 64-bit index.
        index: u64,
        /// Byte of the WQE.
        byte: u16,
        /// Bits to invert.
        mask: u8,
    },
    /// Inverts the owner bit of a CQE as it is written.
    FlipOwner {
        /// The CQ.
        cqn: u32,
        /// The CQE, as a 64-bit index.
        index: u64,
    },
    /// Completes the WQE at a WQEBB index with an error instead of executing it.
    Fail {
        /// The QP.
        qpn: u32,
        /// The WQE's first WQEBB, as a 64-bit index.
        index: u64,
        /// Syndrome of the CQE.
        syndrome: u8,
        /// Vendor syndrome of the CQE.
        vendor: u8,
    },
    /// The NIC never sees a store to the QP's send doorbell record again.
    DropDbr {
        /// The QP.
        qpn: u32,
    },
    /// Commands with an opcode are refused with a status and a syndrome, so many times; 0 is until the faults are cleared.
    Command {
        /// Opcode of the input mailbox.
        opcode: u16,
        /// Status of the answer, which is not zero.
        status: u8,
        /// Syndrome of the answer.
        syndrome: u32,
        /// How many times.
        times: u32,
    },
    /// Commands with an opcode are not answered, so many times; 0 is until the faults are cleared. A driver gives up after its
    /// deadline (Linux mlx5: 60 s) and does not know whether the command was executed.
    NoAnswer {
        /// Opcode of the input mailbox.
        opcode: u16,
        /// It was.
        executed: bool,
        /// How many times.
        times: u32,
    },
    /// The QP does nothing any more, and takes no packets.
    StuckQp {
        /// The QP.
        qpn: u32,
    },
    /// CQEs of the CQ are not written any more, although the NIC goes on.
    StuckCq {
        /// The CQ.
        cqn: u32,
        /// The first CQE that is not, as a 64-bit index; 0 is all.
        from: u64,
    },
    /// The NIC executes commands, and nothing else.
    Silent,
    /// The NIC is gone from the bus: stores vanish, commands fail. It does not come back.
    Removed,
}

names! {
    InjectedFault:
    FlipWqeByte { .. } => "flip-wqe-byte",
    FlipOwner { .. } => "flip-owner",
    Fail { .. } => "fail-wqe",
    DropDbr { .. } => "drop-dbr",
    Command { .. } => "command-refused",
    NoAnswer { .. } => "command-without-answer",
    StuckQp { .. } => "stuck-qp",
    StuckCq { .. } => "stuck-cq",
    Silent => "silent",
    Removed => "removed",
}

/// Faults that come by themselves, by seed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Seed of the choice.
    pub seed: u64,
    /// Of a million commands, how many are refused with "internal error".
    pub command_ppm: u32,
    /// Of a million commands, how many are executed and not answered.
    pub no_answer_ppm: u32,
    /// Of a million send WQEs, how many fail with a random syndrome of those that requesters have.
    pub wqe_ppm: u32,
}

/// Status of a command that a plan refuses.
const INTERNAL_ERROR: u8 = Status::InternalError.code();
/// Syndrome of a command that a plan refuses: no check has it.
const PLANNED: u32 = 0xff_0001;
/// Syndromes with which a plan fails WQEs: those of IBA 11.6 that a requester of reliable connections has.
const SYNDROMES: [Syndrome; 8] = [
    Syndrome::LocalLength,
    Syndrome::LocalQpOperation,
    Syndrome::LocalProtection,
    Syndrome::BadResponse,
    Syndrome::RemoteInvalidRequest,
    Syndrome::RemoteAccess,
    Syndrome::RemoteOperation,
    Syndrome::TransportRetryExceeded,
];

/// Planted and planned faults.
pub(crate) struct Faults {
    planted: Vec<InjectedFault>,
    plan: FaultPlan,
    rng: Rng,
}

impl Faults {
    pub(crate) fn new(plan: FaultPlan) -> Self {
        Self {
            planted: Vec::new(),
            plan,
            rng: Rng::new(plan.seed),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.planted
            .retain(|fault| matches!(fault, InjectedFault::Removed));
    }

    pub(crate) fn has(&self, fault: InjectedFault) -> bool {
        self.planted.contains(&fault)
    }

    /// True if the CQE at an index is not to be written.
    pub(crate) fn hides_cqe(&self, of: u32, at: u64) -> bool {
        self.planted.iter().any(|fault| {
            matches!(fault, InjectedFault::StuckCq { cqn, from } if *cqn == of && *from <= at)
        })
    }

    fn draws(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.rng.below(1_000_000) < ppm
    }

    /// Status and syndrome with which a command is refused, if it is.
    pub(crate) fn on_command(&mut self, at_opcode: u16) -> Option<(u8, u32)> {
        let at = self.planted.iter().position(
            |fault| matches!(fault, InjectedFault::Command { opcode, .. } if *opcode == at_opcode),
        );
        if let Some(at) = at
            && let Some(InjectedFault::Command {
                status,
                syndrome,
                times,
                ..
            }) = self.planted.get_mut(at)
        {
            let answer = (*status, *syndrome);
            match *times {
                0 => {}
                1 => {
                    self.planted.swap_remove(at);
                }
                _ => *times -= 1,
            }
            return Some(answer);
        }
        self.draws(self.plan.command_ppm)
            .then_some((INTERNAL_ERROR, PLANNED))
    }

    /// Whether a command gets no answer, and if so whether it is executed.
    pub(crate) fn on_answer(&mut self, at_opcode: u16) -> Option<bool> {
        let at = self.planted.iter().position(
            |fault| matches!(fault, InjectedFault::NoAnswer { opcode, .. } if *opcode == at_opcode),
        );
        if let Some(at) = at
            && let Some(InjectedFault::NoAnswer {
                executed, times, ..
            }) = self.planted.get_mut(at)
        {
            let answer = *executed;
            match *times {
                0 => {}
                1 => {
                    self.planted.swap_remove(at);
                }
                _ => *times -= 1,
            }
            return Some(answer);
        }
        self.draws(self.plan.no_answer_ppm).then_some(true)
    }

    pub(crate) fn plant(&mut self, fault: InjectedFault) {
        self.planted.push(fault);
    }

    /// Corrupts the first bytes of a WQE, as far as they are fetched.
    pub(crate) fn on_wqe(&mut self, at_qpn: u32, at_index: u64, bytes: &mut [u8]) {
        self.planted.retain(|fault| match *fault {
            InjectedFault::FlipWqeByte {
                qpn,
                index,
                byte,
                mask,
            } if (qpn, index) == (at_qpn, at_index) => {
                // Kept until the byte has been fetched.
                let Some(byte) = bytes.get_mut(usize::from(byte)) else {
                    return true;
                };
                *byte ^= mask;
                false
            }
            _ => true,
        });
    }

    /// The error to complete a WQE with, if one is planted.
    pub(crate) fn on_execute(&mut self, at_qpn: u32, at_index: u64) -> Option<(u8, u8)> {
        if self.draws(self.plan.wqe_ppm) {
            let at = self.rng.below(SYNDROMES.len() as u32) as usize;
            let syndrome = SYNDROMES.get(at).copied().unwrap_or(Syndrome::LocalLength);
            return Some((syndrome.code(), 0));
        }
        let at = self.planted.iter().position(
            |fault| matches!(fault, InjectedFault::Fail { qpn, index, .. } if (*qpn, *index) == (at_qpn, at_index)),
        )?;
        match self.planted.swap_remove(at) {
            InjectedFault::Fail {
                syndrome, vendor, ..
            } => Some((syndrome, vendor)),
            _ => None,
        }
    }

    /// True if the owner bit of this CQE is to be inverted.
    pub(crate) fn on_cqe(&mut self, at_cqn: u32, at_index: u64) -> bool {
        let before = self.planted.len();
        self.planted.retain(
            |fault| !matches!(fault, InjectedFault::FlipOwner { cqn, index } if (*cqn, *index) == (at_cqn, at_index)),
        );
        before != self.planted.len()
    }

    /// True if the QP's doorbell record is hidden from the NIC.
    pub(crate) fn hides_dbr(&self, at_qpn: u32) -> bool {
        self.planted
            .iter()
            .any(|fault| matches!(fault, InjectedFault::DropDbr { qpn } if *qpn == at_qpn))
    }
}
