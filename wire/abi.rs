//! What the host crate writes for a kernel to read: the exported QP handle, kernel parameter blocks, results.
//!
//! Knows: sizes, offsets and meanings of these structures, and their version.
//! Must not know: how a kernel or the host uses them.
//!
//! All fields are little-endian, as both the host and the GPU are. A change of any layout or meaning here changes
//! [`VERSION`]; a kernel refuses a handle or a parameter block of another version, and the host refuses a module whose
//! `wv_device_abi` global differs.

use core::mem::{align_of, offset_of, size_of};

use crate::layout::Error;

/// Version of everything in this module.
pub const VERSION: u32 = 2;
/// Name of the `u32` global by which a PTX module states the version that it was built with.
pub const VERSION_SYMBOL: &str = "wv_device_abi";

/// Alignment of a handle.
pub const HANDLE_ALIGN: u64 = 64;

/// Largest send queue in WQEBBs. A collapsed CQ shows 16 bits of the WQE counter, which name an index unambiguously
/// only while fewer than 2^15 can be outstanding.
pub const MAX_SQ_DEPTH: u32 = 1 << 15;

/// [`QpHandle::flags`]: the CQ is collapsed (`cc`): every completion overwrites CQE 0. Otherwise it is a ring.
pub const FLAG_CQ_COLLAPSED: u32 = 1 << 0;
/// [`QpHandle::flags`]: READ and atomic data may become visible to the GPU after the completion: a DUMP must complete
/// before it is read (rule O14).
pub const FLAG_READ_NEEDS_DUMP: u32 = 1 << 1;
/// [`QpHandle::flags`]: the QP was made without a send doorbell record (`send_dbr_mode`), and the doorbell register is that of
/// such QPs: the record is never written.
pub const FLAG_NO_DBR: u32 = 1 << 2;
/// [`QpHandle::flags`], [`RqHandle::flags`]: the CQ does not ignore overrun, so the consumer is written to its doorbell record.
pub const FLAG_CQ_OVERRUN_CHECKED: u32 = 1 << 3;

/// One QP with its send CQ, as a kernel sees it: 6 lines of 64 bytes in GPU memory. The first two lines never change while
/// the QP is exported. Each word that threads contend for has a line of its own.
///
/// Indices are 64-bit and never wrap in software: SQ indices count WQEBBs, CQ indices count CQEs (rule O11).
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpHandle {
    /// [`VERSION`].
    pub version: u32,
    /// `FLAG_*`.
    pub flags: u32,
    /// Address of WQEBB 0.
    pub sq: u64,
    /// Address of the send doorbell record: the second 32-bit word of the QP's 8-byte record.
    pub dbr: u64,
    /// Address of the doorbell register, as mapped into the GPU.
    pub doorbell: u64,
    /// WQEBBs in the ring: a power of two, at most [`MAX_SQ_DEPTH`]. Devices use one less at a time: the last is the
    /// host's marker (rule O11).
    pub sq_depth: u32,
    /// QP number, 24 bits.
    pub qpn: u32,
    /// Address of CQE 0.
    pub cq: u64,
    /// CQEs in the ring, a power of two; 1 if collapsed.
    pub cq_depth: u32,
    /// log2 of the port's largest message in bytes (rule O12).
    pub log_max_message: u32,
    /// Address of the host-mapped stop word (`u64`): not zero means stop.
    pub stop: u64,

    /// Number of the send CQ, which a WAIT on another QP names.
    pub cqn: u32,
    /// User index of the QP, as its CQEs show it.
    pub user_index: u32,
    /// Address of the send CQ's consumer word ([`FLAG_CQ_OVERRUN_CHECKED`]); zero if it is not written.
    pub cq_dbr: u64,
    /// Address of the QP's [`ProxyRecord`], as mapped into the GPU; zero if no host thread rings for it.
    pub proxy: u64,
    /// Address of the QP's [`RqHandle`]; zero if it has no receive queue.
    pub rq: u64,
    /// Unused, zero.
    pub rest: [u64; 4],

    /// Next SQ index to reserve. Second word: by how much the SQ index of the next WQE is above the number of its CQE, as the CQ
    /// has counted since it was created: by WQEBBs that are not a WQE's first, and by WQEs without CQE.
    pub reserved: Line,
    /// SQ index whose writer may ring next: the turn of the ticket hand-off (rule O5). In the last four words, by index modulo 4:
    /// first indices of filled posts that are about to have their turn.
    pub turn: Line,
    /// SQ index below which all WQEs have completed, and in the second word the CQ consumer index.
    pub completed: Line,
    /// The state word ([`State`]): stop and the first fault (rule O10). Second word: the last WQE of several WQEBBs
    /// ([`LongWqe`]).
    pub state: Line,
}

/// The last WQE of several WQEBBs, as [`QpHandle::state`]'s second word holds it: completions name its first WQEBB only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LongWqe(pub u64);

impl LongWqe {
    /// The WQE at `index` with `more` WQEBBs behind its first, at most 15.
    pub const fn new(index: u64, more: u32) -> Self {
        Self(index.wrapping_add(1) << 4 | (more & 15) as u64)
    }

    /// WQEBBs behind its first, if the completed index that its completion gives is `completed`; else 0.
    #[inline(always)]
    pub const fn more(self, completed: u64) -> u64 {
        if self.0 >> 4 == completed & (u64::MAX >> 4) {
            self.0 & 15
        } else {
            0
        }
    }
}

/// One receive queue with its CQ, as a kernel sees it: 5 lines of 64 bytes in GPU memory. The first never changes while it is
/// exported.
///
/// Indices are 64-bit: RQ indices count receive WQEs, CQ indices count CQEs.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RqHandle {
    /// [`VERSION`].
    pub version: u32,
    /// [`FLAG_CQ_OVERRUN_CHECKED`].
    pub flags: u32,
    /// Address of receive WQE 0.
    pub rq: u64,
    /// Address of the receive doorbell record: the first 32-bit word of the QP's 8-byte record.
    pub dbr: u64,
    /// Receive WQEs in the ring: a power of two, at most [`MAX_SQ_DEPTH`].
    pub rq_depth: u32,
    /// log2 of the bytes of a receive WQE, 4 to 9: one data pointer of 16 bytes to 32 of them.
    pub log_stride: u32,
    /// Address of CQE 0 of the receive CQ, a ring that no other queue's completions go to.
    pub cq: u64,
    /// CQEs in the ring, a power of two above `rq_depth`.
    pub cq_depth: u32,
    /// QP number, 24 bits.
    pub qpn: u32,
    /// Address of the host-mapped stop word (`u64`): not zero means stop.
    pub stop: u64,
    /// Address of the CQ's consumer word ([`FLAG_CQ_OVERRUN_CHECKED`]); zero if it is not written.
    pub cq_dbr: u64,

    /// Next RQ index to reserve.
    pub reserved: Line,
    /// RQ index whose writer may publish next.
    pub turn: Line,
    /// CQ consumer index: completions that threads have taken. Second word, which does not change: CQEs that the CQ had written before
    /// that of RQ index 0, in an earlier life of the QP.
    pub consumer: Line,
    /// The state word ([`State`]).
    pub state: Line,
}

/// What a GPU thread tells the host thread that rings for a QP (doorbell mode `Proxy`): one line of host memory, mapped into the
/// GPU.
///
/// The GPU stores `producer` behind a release at system scope; the host acquires it, writes the producer to the QP's send doorbell
/// record, and then the doorbell register ([`crate::doorbell::doorbell`]: the form that needs no WQE). It never goes back. The
/// GPU writes no other word.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProxyRecord {
    /// SQ index below which all WQEs may be rung for: 64 bits, never wraps.
    pub producer: u64,
    /// QP number. The host's.
    pub qpn: u32,
    /// Unused.
    pub unused: u32,
    /// The producer that the host has rung for. The host's.
    pub rung: u64,
    /// Unused.
    pub rest: [u64; 5],
}

/// One piece of a transfer that is made of many: `len` bytes between local and remote memory.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Local address, as `lkey` addresses it.
    pub local: u64,
    /// Remote address, as `rkey` addresses it.
    pub remote: u64,
    /// Bytes; 0 is nothing to do.
    pub len: u64,
    /// Local key.
    pub lkey: u32,
    /// Remote key.
    pub rkey: u32,
}

/// A line that holds one contended word and, where documented, a second one that the same threads write.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// The contended word.
    pub word: u64,
    /// The word beside it.
    pub second: u64,
    /// Unused.
    pub rest: [u64; 6],
}

impl Line {
    /// A line that holds `word`, and zeroes.
    pub const fn new(word: u64) -> Self {
        Self {
            word,
            second: 0,
            rest: [0; 6],
        }
    }
}

const _: () = {
    assert!(size_of::<QpHandle>() == 384);
    assert!(align_of::<QpHandle>() == 64);
    assert!(offset_of!(QpHandle, stop) == 56);
    assert!(offset_of!(QpHandle, cqn) == 64);
    assert!(offset_of!(QpHandle, reserved) == 128);
    assert!(offset_of!(QpHandle, turn) == 192);
    assert!(offset_of!(QpHandle, completed) == 256);
    assert!(offset_of!(QpHandle, state) == 320);
    assert!(size_of::<RqHandle>() == 320);
    assert!(offset_of!(RqHandle, cq_dbr) == 56);
    assert!(size_of::<ProxyRecord>() == 64);
    assert!(size_of::<Descriptor>() == 32);
};

/// What the state word says. Zero is live.
///
/// | bits | meaning |
/// |---|---|
/// | 0 | stop |
/// | 1 | fault |
/// | 2..8 | [`FaultCause`] |
/// | 8..16 | syndrome |
/// | 16..24 | vendor syndrome |
/// | 24..32 | CQE opcode |
/// | 32..64 | low 32 bits of the SQ index |
///
/// The fault bit is set once, with all fields, by one compare-and-swap; nothing replaces it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State(pub u64);

/// Why a QP is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultCause {
    /// An error completion: syndrome, vendor syndrome and opcode are those of the CQE.
    Completion,
    /// A flush error was found where the cause had been: on a collapsed CQ a later flush overwrote it.
    CauseOverwritten,
    /// A wait between reserve and hand-off ended by deadline or stop: the WQE at the index was never rung.
    Abandoned,
    /// The handle is of another version, or its fields contradict each other.
    BadHandle,
    /// A cause this version does not name.
    Unknown(u8),
}

impl FaultCause {
    /// The code in the state word.
    pub const fn code(self) -> u8 {
        match self {
            Self::Completion => 0,
            Self::CauseOverwritten => 1,
            Self::Abandoned => 2,
            Self::BadHandle => 3,
            Self::Unknown(code) => code & 0x3f,
        }
    }

    /// The cause of a code.
    pub const fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Completion,
            1 => Self::CauseOverwritten,
            2 => Self::Abandoned,
            3 => Self::BadHandle,
            code => Self::Unknown(code),
        }
    }
}

impl State {
    /// The stop bit.
    pub const STOP: u64 = 1;
    /// The fault bit.
    pub const FAULT: u64 = 2;

    /// A fault, with the stop bit clear.
    pub const fn fault(
        cause: FaultCause,
        syndrome: u8,
        vendor: u8,
        opcode: u8,
        index: u64,
    ) -> Self {
        Self(
            Self::FAULT
                | ((cause.code() as u64) << 2)
                | ((syndrome as u64) << 8)
                | ((vendor as u64) << 16)
                | ((opcode as u64) << 24)
                | (index << 32),
        )
    }

    /// True if neither stop nor fault is set.
    pub const fn is_live(self) -> bool {
        self.0 & (Self::STOP | Self::FAULT) == 0
    }

    /// True if stop is set.
    pub const fn is_stopped(self) -> bool {
        self.0 & Self::STOP != 0
    }

    /// True if a fault is recorded.
    pub const fn is_fault(self) -> bool {
        self.0 & Self::FAULT != 0
    }

    /// The recorded cause; meaningful if [`Self::is_fault`].
    pub const fn cause(self) -> FaultCause {
        FaultCause::from_code((self.0 >> 2) as u8 & 0x3f)
    }

    /// Syndrome of the error CQE.
    pub const fn syndrome(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// Vendor syndrome of the error CQE.
    pub const fn vendor_syndrome(self) -> u8 {
        (self.0 >> 16) as u8
    }

    /// Opcode of the error CQE.
    pub const fn opcode(self) -> u8 {
        (self.0 >> 24) as u8
    }

    /// Low 32 bits of the SQ index of the WQE at fault.
    pub const fn index(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// How a kernel's use of a QP, or a thread of a provided kernel, ended. [`ThreadResult::outcome`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Never written by a thread.
    NotRun,
    /// All operations completed.
    Done,
    /// A deadline passed.
    Timeout,
    /// The host asked to stop.
    Stopped,
    /// The QP is at fault: [`ThreadResult::state`] says why.
    Fault,
    /// The handle or the parameter block is of another version: [`ThreadResult::seen_version`].
    BadVersion,
    /// A parameter is out of range.
    InvalidArgument,
    /// Not completed yet.
    Pending,
    /// The queue is full; nothing was changed.
    NoResource,
    /// A value this version does not name.
    Unknown(u32),
}

impl Outcome {
    /// The stored value.
    pub const fn code(self) -> u32 {
        match self {
            Self::NotRun => 0,
            Self::Done => 1,
            Self::Timeout => 2,
            Self::Stopped => 3,
            Self::Fault => 4,
            Self::BadVersion => 5,
            Self::InvalidArgument => 6,
            Self::Pending => 7,
            Self::NoResource => 8,
            Self::Unknown(code) => code,
        }
    }

    /// The outcome of a stored value.
    pub const fn from_code(code: u32) -> Self {
        match code {
            0 => Self::NotRun,
            1 => Self::Done,
            2 => Self::Timeout,
            3 => Self::Stopped,
            4 => Self::Fault,
            5 => Self::BadVersion,
            6 => Self::InvalidArgument,
            7 => Self::Pending,
            8 => Self::NoResource,
            code => Self::Unknown(code),
        }
    }
}

/// What one thread of a provided kernel reports: 64 bytes, the thread's own line.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadResult {
    /// [`Outcome::code`].
    pub outcome: u32,
    /// With [`Outcome::BadVersion`], the version found; the kernel's own is in `wv_device_abi`.
    pub seen_version: u32,
    /// Operations posted.
    pub posted: u64,
    /// Operations whose completion was seen.
    pub completed: u64,
    /// The QP's state word when the thread ended.
    pub state: u64,
    /// `%globaltimer` at the first post, in ns.
    pub start_ns: u64,
    /// `%globaltimer` after the last completion, in ns.
    pub end_ns: u64,
    /// Unused.
    pub rest: [u64; 2],
}

/// [`BwParams::sharing`] and `mode`s of kernels: each QP belongs to one thread.
pub const SHARING_EXCLUSIVE: u32 = 0;
/// [`BwParams::sharing`]: threads of one warp share each QP.
pub const SHARING_WARP: u32 = 1;
/// [`BwParams::sharing`]: threads of one block share each QP.
pub const SHARING_CTA: u32 = 2;
/// [`BwParams::sharing`]: threads of the whole GPU share each QP.
pub const SHARING_GPU: u32 = 3;
/// [`BwParams::doorbell`]: fence, DBR, fence, one ring (rule O4).
pub const DOORBELL_DB: u32 = 0;
/// [`BwParams::doorbell`]: fence, ring, DBR, fence, ring (rule O4).
pub const DOORBELL_EARLY: u32 = 1;
/// [`BwParams::doorbell`]: as [`DOORBELL_DB`], and a single WQE of one WQEBB is pushed in eight stores of 8 bytes (rule O4).
pub const DOORBELL_BLUEFLAME: u32 = 2;
/// [`BwParams::doorbell`]: a host thread rings ([`ProxyRecord`]).
pub const DOORBELL_PROXY: u32 = 3;
/// [`BwParams::doorbell`]: fence and one ring, no record ([`FLAG_NO_DBR`]).
pub const DOORBELL_NO_DBR: u32 = 4;

/// Parameters of `wv_write_bw` and `wv_read_bw`, passed by value.
///
/// Thread `t` (of the whole grid) uses QP `t % qps`; with [`SHARING_EXCLUSIVE`] there must be no more threads than QPs.
/// Its operation `i` moves `size` bytes between `local + (t * slots + i % slots) * size` and the same offset from `remote`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BwParams {
    /// [`VERSION`].
    pub version: u32,
    /// Number of QPs.
    pub qps: u32,
    /// Address of an array of `qps` addresses of [`QpHandle`]s.
    pub handles: u64,
    /// Address of an array with one [`ThreadResult`] a thread.
    pub results: u64,
    /// Local buffer, as `lkey` addresses it.
    pub local: u64,
    /// Remote buffer, as `rkey` addresses it.
    pub remote: u64,
    /// Local key.
    pub lkey: u32,
    /// Remote key.
    pub rkey: u32,
    /// Bytes of one operation, not zero, at most 2^`log_max_message`.
    pub size: u32,
    /// Buffers of `size` bytes that a thread uses in turn, not zero.
    pub slots: u32,
    /// Operations of one thread.
    pub iters: u64,
    /// Time that one wait may take, in ns.
    pub deadline_ns: u64,
    /// `SHARING_*`.
    pub sharing: u32,
    /// `DOORBELL_*`.
    pub doorbell: u32,
}

/// One end of `wv_write_lat`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatSide {
    /// Address of the end's [`QpHandle`].
    pub handle: u64,
    /// Buffer that it sends from, as `lkey` addresses it.
    pub local: u64,
    /// Where the other end receives, as `rkey` addresses it.
    pub remote: u64,
    /// Where this end receives, as the GPU addresses it.
    pub inbox: u64,
    /// `local` as the GPU addresses it: the kernel writes the sequence number into its last bytes.
    pub outbox: u64,
    /// Local key.
    pub lkey: u32,
    /// Remote key.
    pub rkey: u32,
}

/// Parameters of `wv_write_lat`, passed by value. Two blocks of one thread, launched cooperatively, since each waits
/// for the other: block 0 sends message `i` and waits for the answer, block 1 waits for it and answers.
///
/// A message is `size` bytes, of which the last 8 (the last 1 if `size` is below 8) are its sequence number `i + 1`,
/// little-endian, truncated. The receiver polls those bytes. `inbox + size` and `outbox + size` must be multiples of 8. That a message's bytes
/// become visible in address order is assumed (as perftest assumes); it holds for memory registered without relaxed
/// ordering.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatParams {
    /// [`VERSION`].
    pub version: u32,
    /// Bytes of one message, not zero.
    pub size: u32,
    /// The two ends.
    pub sides: [LatSide; 2],
    /// Address of two [`ThreadResult`]s.
    pub results: u64,
    /// Round trips.
    pub iters: u64,
    /// Time that one wait may take, in ns.
    pub deadline_ns: u64,
    /// `DOORBELL_*`.
    pub doorbell: u32,
    /// `FORM_*`, of the kernels `wv_write_lat_*`.
    pub form: u32,
}

/// Every WQE has a CQE: the form of the CQ is the handle's.
pub const FORM_EVERY: u32 = 0;
/// One WQE in 16 WQEBBs, and errors.
pub const FORM_ON_ERROR: u32 = 1;

/// Parameters of the kernels `wv_*_bw_*` and `wv_*_rate_*` that only post.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateParams {
    /// What they have in common with [`BwParams`]. `doorbell` is not looked at: each kernel has its own. Of a fetch-and-add,
    /// `local` is where what was found goes, 8 bytes an operation, and `remote` the one counter of all threads. An inline write
    /// has no `local`: its data is [`inline_words`].
    pub common: BwParams,
    /// `FORM_*`.
    pub form: u32,
    /// Zero.
    pub reserved: u32,
    /// What a fetch-and-add adds.
    pub add: u64,
}

/// Parameters of the kernels `wv_send_bw_*`.
///
/// The first `senders` threads, whole blocks, send as threads of [`RateParams`] write, with immediate data: the number of the
/// buffer, `thread * slots + slot`. The `qps` threads behind them receive, thread `q` from the peer of QP `q`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendParams {
    /// As in [`RateParams`]; `remote` and `rkey` are not used.
    pub common: BwParams,
    /// `FORM_*`.
    pub form: u32,
    /// Threads that send.
    pub senders: u32,
    /// Address of `qps` addresses of [`RqHandle`]s.
    pub receives: u64,
    /// Address of `qps * buffers` words: what landed last in each buffer, its length above, its immediate data below.
    pub landed: u64,
    /// Address of `qps * buffers` buffers of `size` bytes.
    pub into: u64,
    /// Their key.
    pub into_lkey: u32,
    /// Receives that a queue has posted at a time, at most its depth.
    pub buffers: u32,
}

/// Parameters of the kernels `wv_put_signal`, `wv_wait_signal`, `wv_put_list`, `wv_progress` and `wv_drain`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskParams {
    /// As in [`RateParams`]; of regions and counts, what the kernel uses.
    pub common: BwParams,
    /// Where the signal is added, at the peer; the word that is awaited; `count` [`Descriptor`]s.
    pub address: u64,
    /// Descriptors; the value that is awaited; completions that a thread takes at most.
    pub count: u64,
    /// What a signal adds.
    pub add: u64,
    /// Where the values before the signals go, 8 bytes a thread.
    pub fetched: u64,
    /// Key of the signal.
    pub rkey: u32,
    /// Key of `fetched`.
    pub lkey: u32,
    /// Of a list: 0 writes to the peer, 1 reads from it.
    pub direction: u32,
    /// Zero.
    pub reserved: u32,
}

/// Parameters of `wv_fill` and `wv_verify`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataParams {
    /// [`VERSION`].
    pub version: u32,
    /// Zero.
    pub reserved: u32,
    /// Address of a [`ThreadResult`] for each thread.
    pub results: u64,
    /// Address of the data, a multiple of 8.
    pub address: u64,
    /// Its words of 8 bytes.
    pub words: u64,
    /// What it is made of.
    pub seed: u64,
}

/// Word `index` of data of a seed: SplitMix64's finaliser over a counter, so that no two words of a seed are alike.
#[inline(always)]
pub const fn data_word(seed: u64, index: u64) -> u64 {
    let mut word = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// What operation `op` of thread `thread` writes inline: the first bytes of these words, little-endian.
#[inline(always)]
pub const fn inline_words(thread: u64, op: u64) -> [u32; 7] {
    let (low, high, thread) = (op as u32, (op >> 32) as u32, thread as u32);
    [low, thread, high, !low, !thread, low ^ thread, 0x5a5a_5a5a]
}

const _: () = {
    assert!(size_of::<RateParams>() == 96);
    assert!(size_of::<SendParams>() == 120);
    assert!(size_of::<TaskParams>() == 128);
    assert!(size_of::<DataParams>() == 40);
    assert!(size_of::<ThreadResult>() == 64);
    assert!(size_of::<BwParams>() == 80);
    assert!(size_of::<LatSide>() == 48);
    assert!(size_of::<LatParams>() == 136);
};

/// A value as it lies in GPU memory.
trait Stored: Sized {
    fn store(&self, bytes: &mut [u8]);
    fn load(bytes: &[u8]) -> Self;
}

macro_rules! stored_numbers {
    ($($ty:ty),*) => {$(
        impl Stored for $ty {
            fn store(&self, bytes: &mut [u8]) {
                for (to, from) in bytes.iter_mut().zip(self.to_le_bytes()) {
                    *to = from;
                }
            }
            fn load(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<$ty>()];
                for (to, from) in own.iter_mut().zip(bytes) {
                    *to = *from;
                }
                Self::from_le_bytes(own)
            }
        }
    )*};
}
stored_numbers!(u32, u64);

impl<T: Stored, const N: usize> Stored for [T; N] {
    fn store(&self, bytes: &mut [u8]) {
        for (item, bytes) in self.iter().zip(bytes.chunks_mut(size_of::<T>())) {
            item.store(bytes);
        }
    }
    fn load(bytes: &[u8]) -> Self {
        core::array::from_fn(|index| {
            T::load(bytes.get(index * size_of::<T>()..).unwrap_or_default())
        })
    }
}

/// Gives structures their bytes. The layout has one home, the `repr(C)` declaration: positions come from `offset_of!`, and
/// a structure with padding or with a field missing from its list does not compile.
macro_rules! stored {
    ($($ty:ident { $($field:ident: $value:ty),* $(,)? })*) => {$(
        const _: () = assert!(size_of::<$ty>() == 0 $(+ size_of::<$value>())*);

        impl Stored for $ty {
            fn store(&self, bytes: &mut [u8]) {
                $(
                    if let Some(bytes) = bytes.get_mut(offset_of!($ty, $field)..) {
                        self.$field.store(bytes);
                    }
                )*
            }
            fn load(bytes: &[u8]) -> Self {
                Self {
                    $($field: <$value>::load(bytes.get(offset_of!($ty, $field)..).unwrap_or_default()),)*
                }
            }
        }

        impl $ty {
            /// Size in bytes.
            pub const LEN: usize = size_of::<Self>();

            /// Its bytes in GPU memory.
            pub fn to_bytes(&self) -> [u8; Self::LEN] {
                let mut bytes = [0; Self::LEN];
                self.store(&mut bytes);
                bytes
            }

            /// Reads it from the start of `bytes`.
            pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
                if bytes.len() < Self::LEN {
                    return Err(Error::Short {
                        structure: stringify!($ty),
                        needed: Self::LEN,
                        found: bytes.len(),
                    });
                }
                Ok(Self::load(bytes))
            }
        }
    )*};
}

stored! {
    Line { word: u64, second: u64, rest: [u64; 6] }
    QpHandle {
        version: u32,
        flags: u32,
        sq: u64,
        dbr: u64,
        doorbell: u64,
        sq_depth: u32,
        qpn: u32,
        cq: u64,
        cq_depth: u32,
        log_max_message: u32,
        stop: u64,
        cqn: u32,
        user_index: u32,
        cq_dbr: u64,
        proxy: u64,
        rq: u64,
        rest: [u64; 4],
        reserved: Line,
        turn: Line,
        completed: Line,
        state: Line,
    }
    RqHandle {
        version: u32,
        flags: u32,
        rq: u64,
        dbr: u64,
        rq_depth: u32,
        log_stride: u32,
        cq: u64,
        cq_depth: u32,
        qpn: u32,
        stop: u64,
        cq_dbr: u64,
        reserved: Line,
        turn: Line,
        consumer: Line,
        state: Line,
    }
    ProxyRecord { producer: u64, qpn: u32, unused: u32, rung: u64, rest: [u64; 5] }
    Descriptor { local: u64, remote: u64, len: u64, lkey: u32, rkey: u32 }
    ThreadResult {
        outcome: u32,
        seen_version: u32,
        posted: u64,
        completed: u64,
        state: u64,
        start_ns: u64,
        end_ns: u64,
        rest: [u64; 2],
    }
    BwParams {
        version: u32,
        qps: u32,
        handles: u64,
        results: u64,
        local: u64,
        remote: u64,
        lkey: u32,
        rkey: u32,
        size: u32,
        slots: u32,
        iters: u64,
        deadline_ns: u64,
        sharing: u32,
        doorbell: u32,
    }
    LatSide { handle: u64, local: u64, remote: u64, inbox: u64, outbox: u64, lkey: u32, rkey: u32 }
    LatParams {
        version: u32,
        size: u32,
        sides: [LatSide; 2],
        results: u64,
        iters: u64,
        deadline_ns: u64,
        doorbell: u32,
        form: u32,
    }
    RateParams { common: BwParams, form: u32, reserved: u32, add: u64 }
    SendParams {
        common: BwParams,
        form: u32,
        senders: u32,
        receives: u64,
        landed: u64,
        into: u64,
        into_lkey: u32,
        buffers: u32,
    }
    TaskParams {
        common: BwParams,
        address: u64,
        count: u64,
        add: u64,
        fetched: u64,
        rkey: u32,
        lkey: u32,
        direction: u32,
        reserved: u32,
    }
    DataParams {
        version: u32,
        reserved: u32,
        results: u64,
        address: u64,
        words: u64,
        seed: u64,
    }
}
