//! Where WQEs are written.
//!
//! Knows: how a control segment and others become a WQE in the ring. Must not know: which segments an operation has.

use warpverbs_wire::wqe::{self, Opcode, Segment};

use super::{Dump, Nop, Read, Write, WriteInline};
use super::{Fill, Inline, Length, Local, Remote};
use crate::ring::SqRing;

/// Reserved, free WQEBBs from an index on.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub(crate) ring: SqRing,
    pub(crate) index: u64,
    pub(crate) qpn: u32,
    /// One WQE in so many WQEBBs is signalled, a power of two.
    pub(crate) every: u32,
    /// Fence mode, or'ed into the flags of the first WQE.
    pub(crate) fence: u8,
}

/// Proof that a whole WQE was written: what the doorbell needs of it.
#[derive(Clone, Copy, Debug)]
pub struct Filled {
    /// The first 8 bytes of the control segment, which are the doorbell's value too.
    pub(crate) head: u64,
    /// WQEBBs behind its first.
    pub(crate) more: u32,
}

/// What of a control segment is an operation's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) opcode: Opcode,
    pub(crate) opmod: u8,
    pub(crate) immediate: u32,
}

impl Head {
    #[inline(always)]
    pub(crate) const fn new(opcode: Opcode) -> Self {
        Self {
            opcode,
            opmod: 0,
            immediate: 0,
        }
    }
}

impl Place {
    /// The place `wqebbs` further. A fence stays in front.
    #[inline(always)]
    pub(crate) fn ahead(self, wqebbs: u32) -> Self {
        Self {
            index: self.index.wrapping_add(u64::from(wqebbs)),
            fence: 0,
            ..self
        }
    }

    /// The flags of a WQE of so many WQEBBs that begins here.
    #[inline(always)]
    fn flags(self, wqebbs: u32) -> u8 {
        let every = u64::from(self.every);
        // It covers the last of `every` indices if its own and the one behind it differ above the low bits.
        let behind = self.index.wrapping_add(u64::from(wqebbs));
        let signalled = every == 1 || (self.index ^ behind) & every.wrapping_neg() != 0;
        self.fence | if signalled { wqe::SIGNALLED } else { 0 }
    }

    #[inline(always)]
    fn control(self, head: Head, ds: u32) -> (u64, Segment) {
        let word = wqe::with_opmod(
            wqe::control_head(self.index, head.opcode, wqe::qpn_ds(self.qpn, ds)),
            head.opmod,
        );
        let segment = wqe::control(word, self.flags(wqe::wqebbs(ds)), head.immediate);
        (word, segment)
    }

    /// Writes a WQE of one WQEBB: a control segment and these.
    #[inline(always)]
    pub(crate) fn short<const BEHIND: usize>(
        self,
        head: Head,
        behind: [Segment; BEHIND],
    ) -> Filled {
        let (word, control) = self.control(head, 1 + BEHIND as u32);
        self.ring.wqebb(self.index).write(control, behind);
        Filled {
            head: word,
            more: 0,
        }
    }

    /// Begins a WQE of `ds` segments, whose control segment it writes.
    #[inline(always)]
    pub(crate) fn long(self, head: Head, ds: u32) -> (Segments, Filled) {
        let (word, control) = self.control(head, ds);
        self.ring.write_segment(self.index, 0, control);
        let segments = Segments {
            ring: self.ring,
            index: self.index,
            next: 1,
        };
        let filled = Filled {
            head: word,
            more: wqe::wqebbs(ds) - 1,
        };
        (segments, filled)
    }
}

/// The segments of a WQE behind its control segment, in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segments {
    ring: SqRing,
    index: u64,
    next: u32,
}

impl Segments {
    #[inline(always)]
    pub(crate) fn push(&mut self, segment: Segment) {
        self.ring.write_segment(self.index, self.next, segment);
        self.next += 1;
    }
}

/// A reserved, free WQEBB. Writing a WQE uses it up.
#[derive(Debug)]
pub struct Slot {
    pub(crate) place: Place,
}

impl Slot {
    /// Writes an operation of one WQE that fits one WQEBB: anything else does not compile.
    #[inline(always)]
    pub fn fill<W: super::Work>(self, work: W) -> Filled {
        const { assert!(W::WQEBBS == 1, "the operation is not one WQE of one WQEBB") }
        work.fill(self.place)
    }

    /// RDMA write.
    #[inline(always)]
    pub fn write(self, local: Local, remote: Remote, len: Length) -> Filled {
        Write::new(local, remote, len).fill(self.place)
    }

    /// RDMA read.
    #[inline(always)]
    pub fn read(self, local: Local, remote: Remote, len: Length) -> Filled {
        Read::new(local, remote, len).fill(self.place)
    }

    /// RDMA write of bytes held in registers: three segments up to 12 bytes, four beyond.
    #[inline(always)]
    pub fn write_inline(self, remote: Remote, data: Inline) -> Filled {
        WriteInline::new(remote, data).fill(self.place)
    }

    /// DUMP: the NIC reads local memory and sends nothing. Its PCIe read pushes the writes before it (rule O14).
    #[inline(always)]
    pub fn dump(self, local: Local, len: Length) -> Filled {
        Dump::new(local, len).fill(self.place)
    }

    /// Nothing, in order.
    #[inline(always)]
    pub fn nop(self) -> Filled {
        Nop.fill(self.place)
    }
}
