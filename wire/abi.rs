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
pub const VERSION: u32 = 1;
/// Name of the `u32` global by which a PTX module states the version that it was built with.
pub const VERSION_SYMBOL: &str = "wv_device_abi";

/// Largest send queue in WQEBBs. A collapsed CQ shows 16 bits of the WQE counter, which name an index unambiguously
/// only while fewer than 2^15 can be outstanding.
pub const MAX_SQ_DEPTH: u32 = 1 << 15;

/// [`QpHandle::flags`]: the CQ is collapsed (`cc`): every completion overwrites CQE 0. Otherwise it is a ring.
pub const FLAG_CQ_COLLAPSED: u32 = 1 << 0;
/// [`QpHandle::flags`]: READ and atomic data may become visible to the GPU after the completion: a DUMP must complete
/// before it is read (rule O14).
pub const FLAG_READ_NEEDS_DUMP: u32 = 1 << 1;

/// One QP with its send CQ, as a kernel sees it: 5 lines of 64 bytes in GPU memory. The first line never changes while
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

    /// Next SQ index to reserve.
    pub reserved: Line,
    /// SQ index whose writer may ring next: the turn of the ticket hand-off (rule O5).
    pub turn: Line,
    /// SQ index below which all WQEs have completed, and in the second word the CQ consumer index.
    pub completed: Line,
    /// The state word ([`State`]): stop and the first fault (rule O10).
    pub state: Line,
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
    assert!(size_of::<QpHandle>() == 320);
    assert!(align_of::<QpHandle>() == 64);
    assert!(offset_of!(QpHandle, stop) == 56);
    assert!(offset_of!(QpHandle, reserved) == 64);
    assert!(offset_of!(QpHandle, turn) == 128);
    assert!(offset_of!(QpHandle, completed) == 192);
    assert!(offset_of!(QpHandle, state) == 256);
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
/// [`BwParams::sharing`]: threads of the whole GPU share each QP.
pub const SHARING_GPU: u32 = 3;
/// [`BwParams::doorbell`]: fence, DBR, fence, one ring (rule O4).
pub const DOORBELL_DB: u32 = 0;
/// [`BwParams::doorbell`]: fence, ring, DBR, fence, ring (rule O4).
pub const DOORBELL_EARLY: u32 = 1;

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
    /// Unused, zero.
    pub reserved: u32,
}

const _: () = {
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
        reserved: Line,
        turn: Line,
        completed: Line,
        state: Line,
    }
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
        reserved: u32,
    }
}
