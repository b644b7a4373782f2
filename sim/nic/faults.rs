//! Faults that a test plants in the NIC, to see that they are found.
//!
//! Knows: what to break, where.
//! Must not know: who should notice.

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
}

/// Planted faults.
#[derive(Default)]
pub(crate) struct Faults {
    planted: Vec<InjectedFault>,
}

impl Faults {
    pub(crate) fn plant(&mut self, fault: InjectedFault) {
        self.planted.push(fault);
    }

    pub(crate) fn clear(&mut self) {
        self.planted.clear();
    }

    /// Corrupts a fetched WQE.
    pub(crate) fn on_wqe(&mut self, at_qpn: u32, at_index: u64, bytes: &mut [u8]) {
        self.planted.retain(|fault| match *fault {
            InjectedFault::FlipWqeByte {
                qpn,
                index,
                byte,
                mask,
            } if (qpn, index) == (at_qpn, at_index) => {
                if let Some(byte) = bytes.get_mut(usize::from(byte)) {
                    *byte ^= mask;
                }
                false
            }
            _ => true,
        });
    }

    /// The error to complete a WQE with, if one is planted.
    pub(crate) fn on_execute(&mut self, at_qpn: u32, at_index: u64) -> Option<(u8, u8)> {
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
