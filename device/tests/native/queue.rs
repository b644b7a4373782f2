//! A QP made by hand: its handle, rings and registers in ordinary memory, and a NIC's hand to write CQEs.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use warpverbs_device::abi::{
    FLAG_CQ_COLLAPSED, FLAG_CQ_OVERRUN_CHECKED, Line, ProxyRecord, QpHandle, VERSION,
};

/// A WQEBB or a CQE: 64 bytes, aligned.
#[repr(C, align(64))]
struct Block([AtomicU8; 64]);

impl Block {
    fn new(fill: u8) -> Self {
        Self(std::array::from_fn(|_| AtomicU8::new(fill)))
    }

    fn bytes(&self) -> [u8; 64] {
        std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed))
    }
}

/// What is in the queue's memory before any post.
pub(crate) const DIRT: u8 = 0xd1;
pub(crate) const QPN: u32 = 0xab_cdef;
pub(crate) const CQN: u32 = 0x12_3456;

pub(crate) struct Queue {
    /// Not moved once made, and accessed through its words only.
    handle: Box<QpHandle>,
    sq: Vec<Block>,
    cq: Vec<Block>,
    dbr: AtomicU64,
    /// The doorbell register, and the buffer that begins with it.
    register: Vec<Block>,
    proxy: Vec<Block>,
    cq_dbr: AtomicU64,
    stop: AtomicU64,
}

impl Queue {
    /// A queue of `depth` whose next index is `first`.
    pub(crate) fn new(depth: u32, collapsed: bool, first: u64) -> Box<Self> {
        let cq_depth = if collapsed { 1 } else { depth * 2 };
        let blocks = |count: u32, fill| (0..count).map(|_| Block::new(fill)).collect::<Vec<_>>();
        let mut queue = Box::new(Self {
            handle: Box::new(QpHandle {
                version: VERSION,
                flags: if collapsed { FLAG_CQ_COLLAPSED } else { 0 },
                sq: 0,
                dbr: 0,
                doorbell: 0,
                sq_depth: depth,
                qpn: QPN,
                cq: 0,
                cq_depth,
                log_max_message: 30,
                stop: 0,
                cqn: CQN,
                user_index: 0,
                cq_dbr: 0,
                proxy: 0,
                rq: 0,
                rest: [0; 4],
                reserved: Line::new(first),
                turn: Line::new(first),
                completed: Line::new(first),
                state: Line::new(0),
            }),
            sq: blocks(depth, DIRT),
            cq: blocks(cq_depth, 0xff),
            dbr: AtomicU64::new(0),
            register: blocks(1, 0),
            proxy: blocks(1, 0),
            cq_dbr: AtomicU64::new(0),
            stop: AtomicU64::new(0),
        });
        queue.handle.sq = queue.sq.as_ptr().expose_provenance() as u64;
        queue.handle.cq = queue.cq.as_ptr().expose_provenance() as u64;
        queue.handle.dbr = (&raw const queue.dbr).expose_provenance() as u64;
        queue.handle.doorbell = queue.register.as_ptr().expose_provenance() as u64;
        queue.handle.stop = (&raw const queue.stop).expose_provenance() as u64;
        queue
    }

    /// Gives it a proxy record.
    pub(crate) fn with_proxy(mut self: Box<Self>) -> Box<Self> {
        self.handle.proxy = self.proxy.as_ptr().expose_provenance() as u64;
        self
    }

    /// Makes its CQ one that does not ignore overrun.
    pub(crate) fn with_overrun_check(mut self: Box<Self>) -> Box<Self> {
        self.handle.flags |= FLAG_CQ_OVERRUN_CHECKED;
        self.handle.cq_dbr = (&raw const self.cq_dbr).expose_provenance() as u64;
        self
    }

    /// Changes the handle before it is used.
    pub(crate) fn with(mut self: Box<Self>, change: impl FnOnce(&mut QpHandle)) -> Box<Self> {
        change(&mut self.handle);
        self
    }

    /// The handle's address.
    pub(crate) fn address(&mut self) -> u64 {
        (&raw mut *self.handle).expose_provenance() as u64
    }

    fn word(&self, at: *const u64) -> u64 {
        // SAFETY: a word of the live handle, accessed atomically by everyone.
        unsafe { AtomicU64::from_ptr(at.cast_mut()) }.load(Ordering::Acquire)
    }
    pub(crate) fn reserved(&self) -> u64 {
        self.word(&raw const self.handle.reserved.word)
    }
    pub(crate) fn turn(&self) -> u64 {
        self.word(&raw const self.handle.turn.word)
    }
    pub(crate) fn completed(&self) -> u64 {
        self.word(&raw const self.handle.completed.word)
    }
    pub(crate) fn state(&self) -> u64 {
        self.word(&raw const self.handle.state.word)
    }

    /// The bytes of an index's WQEBB.
    pub(crate) fn wqebb(&self, index: u64) -> [u8; 64] {
        self.sq[index as usize % self.sq.len()].bytes()
    }

    /// The send doorbell record, as it lies in memory.
    pub(crate) fn dbr(&self) -> [u8; 4] {
        let bytes = self.dbr.load(Ordering::Acquire).to_le_bytes();
        [bytes[0], bytes[1], bytes[2], bytes[3]]
    }

    /// The last value written to the doorbell register, as it lies on the bus.
    pub(crate) fn doorbell(&self) -> [u8; 8] {
        let register = self.register[0].0.as_ptr().cast::<u64>();
        self.word(register).to_le_bytes()
    }

    /// The buffer that begins with the register.
    pub(crate) fn pushed(&self) -> [u8; 64] {
        self.register[0].bytes()
    }

    /// The register as it is before any doorbell.
    pub(crate) fn clear_register(&self) {
        for byte in &self.register[0].0 {
            byte.store(0, Ordering::Relaxed);
        }
    }

    /// The proxy record.
    pub(crate) fn proxy(&self) -> ProxyRecord {
        ProxyRecord::from_bytes(&self.proxy[0].bytes()).unwrap()
    }

    /// The consumer word of the CQ's doorbell record, as it lies in memory.
    pub(crate) fn cq_dbr(&self) -> [u8; 4] {
        let bytes = self.cq_dbr.load(Ordering::Acquire).to_le_bytes();
        [bytes[0], bytes[1], bytes[2], bytes[3]]
    }

    pub(crate) fn gap(&self) -> u64 {
        self.word(&raw const self.handle.reserved.second)
    }

    /// The bytes of the WQE that begins at an index, whole.
    pub(crate) fn wqe(&self, index: u64) -> Vec<u8> {
        let ds = self.wqebb(index)[7];
        (0..u64::from(ds).div_ceil(4))
            .flat_map(|k| self.wqebb(index + k))
            .take(16 * usize::from(ds))
            .collect()
    }

    pub(crate) fn set_stop(&self) {
        self.stop.store(1, Ordering::Release);
    }

    /// Writes the CQE number `number` for the WQE at `index`: opcode 0 is a success, 13 a requester's error with its
    /// syndrome and vendor syndrome.
    pub(crate) fn complete(&self, number: u64, index: u64, opcode: u8, syndrome: u8, vendor: u8) {
        let lap = number / self.cq.len() as u64;
        let cqe = &self.cq[number as usize % self.cq.len()].0;
        let index = (index as u16).to_be_bytes();
        let bytes = [
            (54, vendor),
            (55, syndrome),
            (60, index[0]),
            (61, index[1]),
            (62, 0),
        ];
        for (at, byte) in bytes {
            cqe[at].store(byte, Ordering::Relaxed);
        }
        // The owner bit last: it makes the CQE valid.
        cqe[63].store(opcode << 4 | (lap & 1) as u8, Ordering::Release);
    }

    /// Writes the CQE of a success.
    pub(crate) fn succeed(&self, number: u64, index: u64) {
        self.complete(number, index, 0, 0, 0);
    }
}
