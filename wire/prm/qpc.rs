//! Queue pair context, and the enumerations of its fields.
//!
//! `mlx5_ifc_qpc_bits`. A modify command takes from it only the fields that the transition requires, and those that its
//! `opt_param_mask` names.

use crate::layout::{open_enum, structure};
use crate::prm::ads::Ads;

open_enum! {
    /// State of a QP (`MLX5_QP_STATE_*` of Linux's `mlx5/qp.h`).
    pub enum QpState: u8 {
        /// Reset.
        Rst = 0 as "MLX5_QP_STATE_RST",
        /// Initialised.
        Init = 1 as "MLX5_QP_STATE_INIT",
        /// Ready to receive.
        Rtr = 2 as "MLX5_QP_STATE_RTR",
        /// Ready to send.
        Rts = 3 as "MLX5_QP_STATE_RTS",
        /// Send queue error.
        Sqer = 4 as "MLX5_QP_STATE_SQER",
        /// Send queue drained.
        Sqd = 5 as "MLX5_QP_STATE_SQD",
        /// Error.
        Err = 6 as "MLX5_QP_STATE_ERR",
        /// Send queue draining.
        SqDraining = 7 as "MLX5_QP_STATE_SQ_DRAINING",
        /// Suspended.
        Suspended = 9 as "MLX5_QP_STATE_SUSPENDED",
    }
}

open_enum! {
    /// Transport service.
    pub enum ServiceType: u8 {
        /// Reliable connection.
        Rc = 0 as "MLX5_QPC_ST_RC",
        /// Unreliable connection.
        Uc = 1 as "MLX5_QPC_ST_UC",
        /// Unreliable datagram.
        Ud = 2 as "MLX5_QPC_ST_UD",
        /// Extended reliable connection.
        Xrc = 3 as "MLX5_QPC_ST_XRC",
        /// Initiator of dynamically connected transport.
        Dci = 5 as "MLX5_QPC_ST_DCI",
    }
}

open_enum! {
    /// Path migration state (IBA 17.2).
    pub enum PathMigration: u8 {
        /// Armed.
        Armed = 0 as "MLX5_QPC_PM_STATE_ARMED",
        /// Rearm.
        Rearm = 1 as "MLX5_QPC_PM_STATE_REARM",
        /// Migrated: what a QP without an alternate path has.
        Migrated = 3 as "MLX5_QPC_PM_STATE_MIGRATED",
    }
}

open_enum! {
    /// Path MTU.
    pub enum Mtu: u8 {
        /// 256 bytes.
        Bytes256 = 1 as "MLX5_QPC_MTU_256_BYTES",
        /// 512 bytes.
        Bytes512 = 2 as "MLX5_QPC_MTU_512_BYTES",
        /// 1024 bytes.
        Bytes1024 = 3 as "MLX5_QPC_MTU_1K_BYTES",
        /// 2048 bytes.
        Bytes2048 = 4 as "MLX5_QPC_MTU_2K_BYTES",
        /// 4096 bytes.
        Bytes4096 = 5 as "MLX5_QPC_MTU_4K_BYTES",
    }
}

impl Mtu {
    /// The MTU in bytes; `None` for a value with no name here.
    pub const fn bytes(self) -> Option<u32> {
        match self {
            Self::Unknown(_) => None,
            mtu => Some(128 << mtu.code()),
        }
    }

    /// The MTU of that many bytes.
    pub const fn from_bytes(bytes: u32) -> Option<Self> {
        match bytes {
            256 => Some(Self::Bytes256),
            512 => Some(Self::Bytes512),
            1024 => Some(Self::Bytes1024),
            2048 => Some(Self::Bytes2048),
            4096 => Some(Self::Bytes4096),
            _ => None,
        }
    }
}

open_enum! {
    /// Where receives come from.
    pub enum RqType: u8 {
        /// The QP's own receive queue.
        Regular = 0 as "MLX5_NON_ZERO_RQ",
        /// A shared receive queue.
        Shared = 1 as "MLX5_SRQ_RQ",
        /// None: the QP has no receive queue.
        ZeroSize = 3 as "MLX5_ZERO_LEN_RQ",
    }
}

open_enum! {
    /// Clock of the timestamps in CQEs.
    pub enum TimestampFormat: u8 {
        /// The device's free-running clock.
        FreeRunning = 0 as "MLX5_TIMESTAMP_FORMAT_FREE_RUNNING",
        /// The device's default.
        DefaultFormat = 1 as "MLX5_TIMESTAMP_FORMAT_DEFAULT",
        /// Real time.
        RealTime = 2 as "MLX5_TIMESTAMP_FORMAT_REAL_TIME",
    }
}

open_enum! {
    /// Which atomics a QP answers.
    pub enum AtomicMode: u8 {
        /// None.
        None = 0,
        /// As IBA has them: 8 bytes, big-endian.
        IbSpec = 1 as "MLX5_QPC_ATOMIC_MODE_IB_SPEC",
        /// 8 bytes only.
        Only8 = 2 as "MLX5_QPC_ATOMIC_MODE_ONLY_8B",
        /// Up to 8 bytes.
        UpTo8 = 3 as "MLX5_QPC_ATOMIC_MODE_UP_TO_8B",
        /// Up to 16 bytes.
        UpTo16 = 4 as "MLX5_QPC_ATOMIC_MODE_UP_TO_16B",
        /// Up to 32 bytes.
        UpTo32 = 5 as "MLX5_QPC_ATOMIC_MODE_UP_TO_32B",
    }
}

open_enum! {
    /// Whether the device reads the send doorbell record.
    pub enum SendDbrMode: u8 {
        /// It does.
        Dbr = 0,
        /// It does not: the doorbell register alone moves the producer. Needs the capability
        /// `send_dbr_mode_no_dbr_ext`.
        NoDbr = 1,
    }
}

/// Bits of `opt_param_mask` (`MLX5_QP_OPTPAR_*` of Linux's `mlx5/qp.h`).
#[derive(Debug)]
pub enum OptParam {}

macro_rules! opt_params {
    ($($(#[$meta:meta])* $name:ident = $bit:literal as $constant:literal,)*) => {
        impl OptParam {
            $($(#[$meta])* pub const $name: u32 = 1 << $bit;)*

            /// Names of the bits in Linux's `mlx5/qp.h`, with their values.
            pub const CONSTANTS: &'static [(&'static str, u64)] = &[$(($constant, 1 << $bit)),*];
        }
    };
}
opt_params! {
    /// `secondary_address_path`
    ALT_ADDR_PATH = 0 as "MLX5_QP_OPTPAR_ALT_ADDR_PATH",
    /// `rre`
    RRE = 1 as "MLX5_QP_OPTPAR_RRE",
    /// `rae` and `atomic_mode`
    RAE = 2 as "MLX5_QP_OPTPAR_RAE",
    /// `rwe`
    RWE = 3 as "MLX5_QP_OPTPAR_RWE",
    /// `primary_address_path.pkey_index`
    PKEY_INDEX = 4 as "MLX5_QP_OPTPAR_PKEY_INDEX",
    /// `q_key`
    Q_KEY = 5 as "MLX5_QP_OPTPAR_Q_KEY",
    /// `min_rnr_nak`
    RNR_TIMEOUT = 6 as "MLX5_QP_OPTPAR_RNR_TIMEOUT",
    /// `primary_address_path`
    PRIMARY_ADDR_PATH = 7 as "MLX5_QP_OPTPAR_PRIMARY_ADDR_PATH",
    /// `log_sra_max`
    SRA_MAX = 8 as "MLX5_QP_OPTPAR_SRA_MAX",
    /// `log_rra_max`
    RRA_MAX = 9 as "MLX5_QP_OPTPAR_RRA_MAX",
    /// `pm_state`
    PM_STATE = 10 as "MLX5_QP_OPTPAR_PM_STATE",
    /// `retry_count`
    RETRY_COUNT = 12 as "MLX5_QP_OPTPAR_RETRY_COUNT",
    /// `rnr_retry`
    RNR_RETRY = 13 as "MLX5_QP_OPTPAR_RNR_RETRY",
    /// `primary_address_path.ack_timeout`
    ACK_TIMEOUT = 14 as "MLX5_QP_OPTPAR_ACK_TIMEOUT",
    /// `lag_tx_port_affinity`
    LAG_TX_AFF = 15 as "MLX5_QP_OPTPAR_LAG_TX_AFF",
    /// `primary_address_path.vhca_port_num`
    PRI_PORT = 16 as "MLX5_QP_OPTPAR_PRI_PORT",
    /// `srqn_rmpn_xrqn`
    SRQN = 18 as "MLX5_QP_OPTPAR_SRQN",
    /// `cqn_rcv`
    CQN_RCV = 19 as "MLX5_QP_OPTPAR_CQN_RCV",
    /// `counter_set_id`
    COUNTER_SET_ID = 25 as "MLX5_QP_OPTPAR_COUNTER_SET_ID",
}

impl OptParam {
    /// What INIT2INIT_QP of an RC QP may name. This and the following are what Linux's mlx5_ib sends (`opt_mask` of its
    /// `qp.c`) with the bits that DOCA GPUNetIO and rdma-core send too; that firmware refuses others is assumed.
    pub const INIT2INIT: u32 = Self::RRE
        | Self::RAE
        | Self::RWE
        | Self::PKEY_INDEX
        | Self::PRI_PORT
        | Self::LAG_TX_AFF
        | Self::COUNTER_SET_ID;
    /// What RST2INIT_QP may name.
    pub const RST2INIT: u32 = Self::INIT2INIT;
    /// What INIT2RTR_QP may name.
    pub const INIT2RTR: u32 = Self::ALT_ADDR_PATH
        | Self::RRE
        | Self::RAE
        | Self::RWE
        | Self::PKEY_INDEX
        | Self::RNR_TIMEOUT
        | Self::PM_STATE
        | Self::LAG_TX_AFF
        | Self::COUNTER_SET_ID;
    /// What RTR2RTS_QP may name.
    pub const RTR2RTS: u32 = Self::ALT_ADDR_PATH
        | Self::RRE
        | Self::RAE
        | Self::RWE
        | Self::PM_STATE
        | Self::RNR_TIMEOUT
        | Self::LAG_TX_AFF
        | Self::COUNTER_SET_ID;
    /// What RTS2RTS_QP may name.
    pub const RTS2RTS: u32 = Self::RRE
        | Self::RAE
        | Self::RWE
        | Self::RNR_TIMEOUT
        | Self::PM_STATE
        | Self::ALT_ADDR_PATH
        | Self::LAG_TX_AFF
        | Self::COUNTER_SET_ID;
    /// What SQERR2RTS_QP may name.
    pub const SQERR2RTS: u32 = Self::RNR_TIMEOUT | Self::RRE | Self::RAE | Self::RWE;
}

structure! {
    /// A queue pair's context.
    pub struct Qpc: Mlx5Ifc "qpc", 0x740 bits {
        /// State.
        state: QpState => 0x00, 4;
        /// Port of a link aggregation that the QP sends through, from 1; zero lets the device choose.
        lag_tx_port_affinity: u8 => 0x04, 4;
        /// Transport service.
        st: ServiceType => 0x08, 8;
        /// Keep the QP's virtual lane and traffic class apart from others'.
        isolate_vl_tc: bool => 0x12, 1;
        /// Path migration state.
        pm_state: PathMigration => 0x13, 2;
        /// WQEs carry signatures.
        wq_signature: bool => 0x20, 1;
        /// PD number.
        pd: u32 => 0x28, 24;
        /// Path MTU.
        mtu: Mtu => 0x40, 3;
        /// log2 of the largest message in bytes.
        log_msg_max: u8 => 0x43, 5;
        /// log2 of the receive queue's WQEs.
        log_rq_size: u8 => 0x49, 4;
        /// log2 of a receive WQE's bytes, less 4.
        log_rq_stride: u8 => 0x4d, 3;
        /// True: there is no send queue.
        no_sq: bool => 0x50, 1;
        /// log2 of the send queue's WQEBBs.
        log_sq_size: u8 => 0x51, 4;
        /// Clock of timestamps.
        ts_format: TimestampFormat => 0x58, 2;
        /// True: the reserved lkey may be used.
        rlky: bool => 0x5b, 1;
        /// Counter set of the port that the QP counts in.
        counter_set_id: u8 => 0x60, 8;
        /// UAR page whose doorbell registers the QP obeys.
        uar_page: u32 => 0x68, 24;
        /// Whether the device reads the send doorbell record.
        send_dbr_mode: SendDbrMode => 0x80, 2 cited "DOCA GPUNetIO mlx5_ifc.h: qpc";
        /// The user's name for the QP, in CQEs of CQE version 1.
        user_index: u32 => 0x88, 24;
        /// log2 of the page size of the work queues, less 12.
        log_page_size: u8 => 0xa3, 5;
        /// Remote QP number.
        remote_qpn: u32 => 0xa8, 24;
        /// The path.
        primary_address_path: Ads => 0xc0, 0x160;
        /// The alternate path.
        secondary_address_path: Ads => 0x220, 0x160;
        /// log2 of how often a packet asks for an acknowledgement.
        log_ack_req_freq: u8 => 0x380, 4;
        /// log2 of the reads and atomics that the QP may have outstanding.
        log_sra_max: u8 => 0x388, 3;
        /// Retries after a timeout or a sequence error.
        retry_count: u8 => 0x38d, 3;
        /// Retries after receiver not ready; 7 is without end.
        rnr_retry: u8 => 0x390, 3;
        /// Fast retransmission.
        fre: bool => 0x394, 1;
        /// `rnr_retry` less those spent.
        cur_rnr_retry: u8 => 0x395, 3;
        /// `retry_count` less those spent.
        cur_retry_count: u8 => 0x398, 3;
        /// PSN of the next packet to send.
        next_send_psn: u32 => 0x3c8, 24;
        /// CQ of the send queue.
        cqn_snd: u32 => 0x3e8, 24;
        /// PSN last acknowledged.
        last_acked_psn: u32 => 0x448, 24;
        /// Send sequence number.
        ssn: u32 => 0x468, 24;
        /// log2 of the reads and atomics that the QP answers at a time.
        log_rra_max: u8 => 0x488, 3;
        /// Which atomics the QP answers.
        atomic_mode: AtomicMode => 0x48c, 4;
        /// Remote reads are allowed.
        rre: bool => 0x490, 1;
        /// Remote writes are allowed.
        rwe: bool => 0x491, 1;
        /// Remote atomics are allowed.
        rae: bool => 0x492, 1;
        /// Offset of the work queues in their page, in 64 bytes.
        page_offset: u8 => 0x494, 6;
        /// Core-direct: the QP is triggered by others when it receives.
        cd_slave_receive: bool => 0x49d, 1;
        /// Core-direct: the QP is triggered by others when it sends.
        cd_slave_send: bool => 0x49e, 1;
        /// Core-direct: the QP triggers others.
        cd_master: bool => 0x49f, 1;
        /// Timer that the QP puts into receiver-not-ready answers (IBA 9.7).
        min_rnr_nak: u8 => 0x4a3, 5;
        /// PSN of the next packet to receive.
        next_rcv_psn: u32 => 0x4a8, 24;
        /// CQ of the receive queue.
        cqn_rcv: u32 => 0x4e8, 24;
        /// Doorbell record: an offset in its UMEM if `dbr_umem_valid`.
        dbr_addr: u64 => 0x500, 64;
        /// Q_Key of a datagram QP.
        q_key: u32 => 0x540, 32;
        /// Where receives come from.
        rq_type: RqType => 0x565, 3;
        /// The shared receive queue.
        srqn_rmpn_xrqn: u32 => 0x568, 24;
        /// Message sequence number of the receiver.
        rmsn: u32 => 0x588, 24;
        /// Send WQEBBs that the device has consumed.
        hw_sq_wqebb_counter: u16 => 0x5a0, 16;
        /// Send WQEBBs that software has posted, as the device knows.
        sw_sq_wqebb_counter: u16 => 0x5b0, 16;
        /// Receive WQEs that the device has consumed.
        hw_rq_counter: u32 => 0x5c0, 32;
        /// Receive WQEs that software has posted, as the device knows.
        sw_rq_counter: u32 => 0x5e0, 32;
        /// Requester scatters small reads to the CQE; zero is off.
        cs_req: u8 => 0x630, 8;
        /// Responder scatters small receives to the CQE; zero is off.
        cs_res: u8 => 0x638, 8;
        /// True: `dbr_addr` is an offset in the UMEM `dbr_umem_id`.
        dbr_umem_valid: bool => 0x683, 1;
        /// The UMEM that holds the doorbell record.
        dbr_umem_id: u32 => 0x720, 32 cited "rdma-core and DOCA GPUNetIO mlx5_ifc.h: qpc";
    }
}
