//! Completion queue elements (`mlx5_cqe64`, `mlx5_err_cqe`).
//!
//! Knows: the 64 bytes of a CQE, its opcodes and syndromes, and when a CQE is new.
//! Must not know: where a CQ lies or what a completion means to its reader.
//!
//! The last byte, `op_own`, is written last by the device: opcode in the high four bits, format in two, solicited event
//! in one, owner in the lowest. A reader that finds the CQE new may read the rest (rule O6). Only the owner bit may be
//! compared: error CQEs with other low bits set are on record.

use core::fmt;

use crate::layout::{Error, open_enum, structure};

/// Bytes of a CQE.
pub const CQE: usize = 64;
/// What each byte of a CQ is set to before the device gets it: opcode [`CqeOpcode::Invalid`] in every CQE.
pub const FRESH: u8 = 0xff;

/// [`Cqe::format`]: the data lies in memory.
pub const FORMAT_PLAIN: u8 = 0;
/// [`Cqe::format`]: at most 32 bytes of data lie in the CQE's first 32 bytes (`MLX5_INLINE_SCATTER_32`, which counts from
/// bit 0 of `op_own`).
pub const FORMAT_INLINE_32: u8 = 1;
/// [`Cqe::format`]: at most 64 bytes of data lie in the 64 bytes before a CQE of 128 (`MLX5_INLINE_SCATTER_64`).
pub const FORMAT_INLINE_64: u8 = 2;
/// [`Cqe::format`]: the CQE stands for several.
pub const FORMAT_COMPRESSED: u8 = 3;
/// Most bytes of data in a CQE of 64 bytes.
pub const MAX_INLINE_SCATTER: usize = 32;

open_enum! {
    /// What a CQE reports (`MLX5_CQE_*`).
    pub enum CqeOpcode: u8 {
        /// A send WQE completed.
        Requester = 0x0 as "MLX5_CQE_REQ",
        /// RDMA WRITE with immediate data arrived.
        ResponderWriteImmediate = 0x1 as "MLX5_CQE_RESP_WR_IMM",
        /// A send arrived.
        ResponderSend = 0x2 as "MLX5_CQE_RESP_SEND",
        /// A send with immediate data arrived.
        ResponderSendImmediate = 0x3 as "MLX5_CQE_RESP_SEND_IMM",
        /// A send that invalidates a key arrived.
        ResponderSendInvalidate = 0x4 as "MLX5_CQE_RESP_SEND_INV",
        /// The CQ was resized.
        Resize = 0x5 as "MLX5_CQE_RESIZE_CQ",
        /// No packet.
        NoPacket = 0x6 as "MLX5_CQE_NO_PACKET",
        /// A data signature did not match.
        SignatureError = 0xc as "MLX5_CQE_SIG_ERR",
        /// A send WQE failed.
        RequesterError = 0xd as "MLX5_CQE_REQ_ERR",
        /// A receive WQE failed.
        ResponderError = 0xe as "MLX5_CQE_RESP_ERR",
        /// No CQE was written here yet.
        Invalid = 0xf as "MLX5_CQE_INVALID",
    }
}

open_enum! {
    /// Why a WQE failed (`MLX5_CQE_SYNDROME_*`; IBA 11.6 has the same list as completion return status).
    pub enum Syndrome: u8 {
        /// Local length error: a message longer than the local buffers or than the port allows.
        LocalLength = 0x01 as "MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR",
        /// Local QP operation error: a WQE that contradicts itself.
        LocalQpOperation = 0x02 as "MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR",
        /// Local protection error: a local key that does not cover the data.
        LocalProtection = 0x04 as "MLX5_CQE_SYNDROME_LOCAL_PROT_ERR",
        /// Flushed: the QP was in error before the WQE was processed. Vendor syndrome 0xf5 was seen on the WQE at the head,
        /// 0xf9 on later ones.
        Flushed = 0x05 as "MLX5_CQE_SYNDROME_WR_FLUSH_ERR",
        /// Memory window bind error.
        MemoryWindowBind = 0x06 as "MLX5_CQE_SYNDROME_MW_BIND_ERR",
        /// Bad response: a response of an unexpected opcode.
        BadResponse = 0x10 as "MLX5_CQE_SYNDROME_BAD_RESP_ERR",
        /// Local access error: a protection error in the memory of a receive with immediate data.
        LocalAccess = 0x11 as "MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR",
        /// Remote invalid request. Vendor syndrome 0x8a was seen.
        RemoteInvalidRequest = 0x12 as "MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR",
        /// Remote access error: a remote key that does not cover the data or allow the operation. Vendor syndrome 0x88
        /// was seen.
        RemoteAccess = 0x13 as "MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR",
        /// Remote operation error: the responder failed.
        RemoteOperation = 0x14 as "MLX5_CQE_SYNDROME_REMOTE_OP_ERR",
        /// Transport retries exceeded: no answer. Vendor syndromes 0x81 and 0x83 were seen.
        TransportRetryExceeded = 0x15 as "MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR",
        /// Receiver-not-ready retries exceeded.
        RnrRetryExceeded = 0x16 as "MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR",
        /// Remote aborted.
        RemoteAborted = 0x22 as "MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR",
    }
}

/// Vendor syndromes whose meaning is on record; the vendor publishes no list.
pub mod vendor_syndrome {
    /// Flushed at the head of the queue: with [`super::Syndrome::Flushed`].
    pub const FLUSHED_HEAD: u8 = 0xf5;
    /// Flushed behind the head: with [`super::Syndrome::Flushed`].
    pub const FLUSHED: u8 = 0xf9;
    /// With [`super::Syndrome::RemoteAccess`].
    pub const REMOTE_ACCESS: u8 = 0x88;
    /// With [`super::Syndrome::RemoteInvalidRequest`].
    pub const REMOTE_INVALID_REQUEST: u8 = 0x8a;
    /// With [`super::Syndrome::TransportRetryExceeded`].
    pub const RETRY_EXCEEDED: u8 = 0x81;
    /// With [`super::Syndrome::RemoteAborted`]: a page fault of on-demand paging
    /// (`MLX5_CQE_VENDOR_SYNDROME_ODP_PFAULT`).
    pub const PAGE_FAULT: u8 = 0x93;
}

structure! {
    /// A CQE that reports no error. On RC it carries no valid source QP number: the QP's own number and user index name it.
    pub struct Cqe: Mlx5dv "mlx5_cqe64", 512 bits {
        /// GRH flag and remote QP number; not valid on RC.
        flags_rqpn: u32 => 192, 32;
        /// Shared receive queue, or with CQE version 1 the user index of the QP.
        srqn_uidx: u32 => 256, 32;
        /// Immediate data, key invalidated, or partition key index.
        immediate = "imm_inval_pkey": u32 => 288, 32;
        /// Bytes transferred (of READs, atomics and receives).
        byte_count = "byte_cnt": u32 => 352, 32;
        /// Time of completion by the QP's clock.
        timestamp: u64 => 384, 64;
        /// Opcode of the send WQE.
        send_opcode = "sop_drop_qpn[31:24]": u8 => 448, 8 cited "rdma-core providers/mlx5/cq.c: sop_drop_qpn >> 24";
        /// QP number.
        qpn = "sop_drop_qpn[23:0]": u32 => 456, 24 cited "rdma-core providers/mlx5/cq.c: sop_drop_qpn & 0xffffff";
        /// Index of the WQE's first WQEBB.
        wqe_counter: u16 => 480, 16;
        /// Signature of the CQE.
        signature: u8 => 496, 8;
        /// What the CQE reports.
        opcode: CqeOpcode => 504, 4 cited "mlx5dv.h: mlx5dv_get_cqe_opcode";
        /// Format: 0 no inline data, 1 inline data in 32 bytes, 2 in 64 bytes, 3 compressed.
        format: u8 => 508, 2 cited "mlx5dv.h: mlx5dv_get_cqe_format";
        /// Solicited event.
        solicited = "se": bool => 510, 1 cited "mlx5dv.h: mlx5dv_get_cqe_se";
        /// Owner: changes with each lap of the ring.
        owner: u8 => 511, 1 cited "mlx5dv.h: mlx5dv_get_cqe_owner";
    }
}

structure! {
    /// A CQE that reports an error: opcode [`CqeOpcode::RequesterError`] or [`CqeOpcode::ResponderError`].
    pub struct ErrorCqe: Mlx5dv "mlx5_err_cqe", 512 bits {
        /// Shared receive queue; seen to hold the user index of the QP.
        srqn_uidx = "srqn": u32 => 256, 32;
        /// Undocumented syndrome of the hardware.
        hw_error_syndrome = "hw_err_synd": u8 => 416, 8 cited "DOCA GPUNetIO doca_gpunetio_verbs_def.h: mlx5_err_cqe_ex";
        /// Type of `hw_error_syndrome`.
        hw_syndrome_type = "hw_synd_type": u8 => 424, 8 cited "DOCA GPUNetIO doca_gpunetio_verbs_def.h: mlx5_err_cqe_ex";
        /// Undocumented syndrome of the vendor: [`vendor_syndrome`].
        vendor_syndrome = "vendor_err_synd": u8 => 432, 8;
        /// Why the WQE failed.
        syndrome: Syndrome => 440, 8;
        /// Opcode of the WQE.
        wqe_opcode = "s_wqe_opcode_qpn[31:24]": u8 => 448, 8 cited "mlx5dv.h names the pair; the parts as in sop_drop_qpn";
        /// QP number.
        qpn = "s_wqe_opcode_qpn[23:0]": u32 => 456, 24 cited "mlx5dv.h names the pair; the parts as in sop_drop_qpn";
        /// Index of the WQE's first WQEBB.
        wqe_counter: u16 => 480, 16;
        /// Signature of the CQE.
        signature: u8 => 496, 8;
        /// What the CQE reports.
        opcode: CqeOpcode => 504, 4 cited "mlx5dv.h: mlx5dv_get_cqe_opcode";
        /// As [`Cqe::format`].
        format: u8 => 508, 2 cited "mlx5dv.h: mlx5dv_get_cqe_format";
        /// Solicited event.
        solicited = "se": bool => 510, 1 cited "mlx5dv.h: mlx5dv_get_cqe_se";
        /// Owner: changes with each lap of the ring.
        owner: u8 => 511, 1 cited "mlx5dv.h: mlx5dv_get_cqe_owner";
    }
}

impl Cqe {
    /// The user index of the QP, with CQE version 1.
    pub const fn user_index(&self) -> u32 {
        self.srqn_uidx & 0xff_ffff
    }
}

/// The data that a CQE of 64 bytes holds (of a receive, READ or atomic): its first `byte_count` bytes. `None` if the format
/// is another, or they are more than fit. Of the fields that lie there, such as `flags_rqpn`, nothing is left.
pub fn inline_scatter(bytes: &[u8]) -> Option<&[u8]> {
    let cqe = Cqe::parse(bytes).ok()?;
    match (cqe.format, cqe.byte_count as usize) {
        (FORMAT_INLINE_32, len @ 0..=MAX_INLINE_SCATTER) => bytes.get(..len),
        _ => None,
    }
}

/// What a CQE's bytes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// No CQE was written here yet.
    Pending,
    /// A success, or an opcode that is neither success nor error here: see [`Cqe::opcode`].
    Done(Cqe),
    /// An error.
    Failed(ErrorCqe),
}

impl Completion {
    /// Reads a CQE. Whether it is new, [`is_new`] says.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let cqe = Cqe::parse(bytes)?;
        Ok(match cqe.opcode {
            CqeOpcode::Invalid => Self::Pending,
            CqeOpcode::RequesterError | CqeOpcode::ResponderError => {
                Self::Failed(ErrorCqe::parse(bytes)?)
            }
            _ => Self::Done(cqe),
        })
    }
}

impl fmt::Display for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pending => write!(f, "no CQE yet"),
            Self::Done(cqe) => write!(f, "{cqe}"),
            Self::Failed(cqe) => write!(f, "{cqe}"),
        }
    }
}

/// The owner bit of the CQE that the device writes at `index` of a ring of `depth` CQEs, a power of two: 0 on the first
/// lap, 1 on the second, and so on.
#[inline(always)]
pub const fn owner_at(index: u64, depth: u32) -> u8 {
    (index & depth as u64 != 0) as u8
}

/// True if the CQE with this `op_own` byte, found at the slot of `index`, is the one that the device writes at `index`
/// and not an older one: the owner bit is that of the lap, and the opcode is not [`CqeOpcode::Invalid`].
#[inline(always)]
pub const fn is_new(op_own: u8, index: u64, depth: u32) -> bool {
    op_own & 1 == owner_at(index, depth) && op_own >> 4 != CqeOpcode::Invalid.code()
}

/// The last 8 bytes of a CQE, as one little-endian load gives them: QP number and opcode of the WQE, WQE counter,
/// signature, `op_own`. One load of this word takes a CQE (rule O6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail(pub u64);

impl Tail {
    /// Where the word lies in a CQE.
    pub const OFFSET: usize = 56;

    /// The last byte.
    #[inline(always)]
    pub const fn op_own(self) -> u8 {
        (self.0 >> 56) as u8
    }

    /// The owner bit.
    #[inline(always)]
    pub const fn owner(self) -> u8 {
        self.op_own() & 1
    }

    /// The opcode's four bits.
    #[inline(always)]
    pub const fn opcode_bits(self) -> u8 {
        (self.0 >> 60) as u8
    }

    /// What the CQE reports.
    pub const fn opcode(self) -> CqeOpcode {
        CqeOpcode::from_code(self.opcode_bits())
    }

    /// True if the opcode is an error's.
    #[inline(always)]
    pub const fn is_error(self) -> bool {
        // 0xd and 0xe, requester's and responder's.
        self.opcode_bits() == CqeOpcode::RequesterError.code()
            || self.opcode_bits() == CqeOpcode::ResponderError.code()
    }

    /// True if no CQE was written here yet.
    #[inline(always)]
    pub const fn is_invalid(self) -> bool {
        self.opcode_bits() == CqeOpcode::Invalid.code()
    }

    /// As [`is_new`].
    #[inline(always)]
    pub const fn is_new(self, index: u64, depth: u32) -> bool {
        is_new(self.op_own(), index, depth)
    }

    /// True if it is new ([`Self::is_new`]) and the success of a send WQE ([`CqeOpcode::Requester`]): one comparison.
    #[inline(always)]
    pub const fn is_success(self, index: u64, depth: u32) -> bool {
        const _: () = assert!(CqeOpcode::Requester.code() == 0);
        self.0 & (0xf1 << 56) == (owner_at(index, depth) as u64) << 56
    }

    /// Index of the WQE's first WQEBB, low 16 bits.
    #[inline(always)]
    pub const fn wqe_counter(self) -> u16 {
        ((self.0 >> 32) as u16).swap_bytes()
    }

    /// QP number.
    #[inline(always)]
    pub const fn qpn(self) -> u32 {
        (self.0 as u32).swap_bytes() & 0xff_ffff
    }

    /// Opcode of the WQE.
    #[inline(always)]
    pub const fn wqe_opcode(self) -> u8 {
        self.0 as u8
    }
}

/// Bytes 32 to 47 of a CQE without error, as two little-endian loads give them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MiddleWords(pub [u64; 2]);

impl MiddleWords {
    /// Where the words lie in a CQE.
    pub const OFFSET: usize = 32;

    /// As [`Cqe::user_index`].
    #[inline(always)]
    pub const fn user_index(self) -> u32 {
        (self.0[0] as u32).swap_bytes() & 0xff_ffff
    }

    /// As [`Cqe::immediate`].
    #[inline(always)]
    pub const fn immediate(self) -> u32 {
        ((self.0[0] >> 32) as u32).swap_bytes()
    }

    /// As [`Cqe::byte_count`].
    #[inline(always)]
    pub const fn byte_count(self) -> u32 {
        ((self.0[1] >> 32) as u32).swap_bytes()
    }
}

/// Bytes 48 to 55 of an error CQE, as one little-endian load gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorWord(pub u64);

impl ErrorWord {
    /// Where the word lies in a CQE.
    pub const OFFSET: usize = 48;

    /// Undocumented syndrome of the vendor.
    #[inline(always)]
    pub const fn vendor_syndrome(self) -> u8 {
        (self.0 >> 48) as u8
    }

    /// Code of the [`Syndrome`].
    #[inline(always)]
    pub const fn syndrome(self) -> u8 {
        (self.0 >> 56) as u8
    }
}
