//! Completion queue context.
//!
//! `mlx5_ifc_cqc_bits`; the UMEM fields are missing there and come from DOCA GPUNetIO's `mlx5_prm.h`, which agrees with it on
//! every other field used here.

use crate::layout::{open_enum, structure};

open_enum! {
    /// Size of a CQE.
    pub enum CqeSize: u8 {
        /// 64 bytes.
        Bytes64 = 0 as "MLX5_CQC_CQE_SZ_64_BYTES",
        /// 128 bytes, of which the last 64 are the CQE.
        Bytes128 = 1 as "MLX5_CQC_CQE_SZ_128_BYTES",
    }
}

open_enum! {
    /// Whether a CQ is in error.
    pub enum CqStatus: u8 {
        /// It works.
        Ok = 0x0 as "MLX5_CQC_STATUS_OK",
        /// It overflowed: the device wrote no CQE over one that was not consumed, and stopped.
        Overflow = 0x9 as "MLX5_CQC_STATUS_CQ_OVERFLOW",
        /// Writing a CQE failed.
        WriteFailed = 0xa as "MLX5_CQC_STATUS_CQ_WRITE_FAIL",
    }
}

structure! {
    /// A completion queue's context.
    pub struct Cqc: Mlx5Ifc "cqc", 0x200 bits {
        /// Whether the CQ is in error.
        status: CqStatus => 0x00, 4;
        /// True: `dbr_addr` is an offset in the UMEM `dbr_umem_id`.
        dbr_umem_valid: bool => 0x06, 1;
        /// CQE size.
        cqe_sz: CqeSize => 0x08, 3;
        /// Collapsed: every completion is written to CQE 0.
        cc: bool => 0x0b, 1;
        /// Overrun ignore: the device does not compare its producer with the consumer in the doorbell record.
        oi: bool => 0x0e, 1;
        /// What restarts event moderation.
        cq_period_mode: u8 => 0x0f, 2;
        /// CQE compression; zero is off.
        cqe_comp_en: bool => 0x11, 1;
        /// Event state: 6 solicited armed, 9 armed, 0xa fired.
        st: u8 => 0x14, 4;
        /// The UMEM that holds the doorbell record.
        dbr_umem_id: u32 => 0x20, 32 cited "DOCA GPUNetIO mlx5_prm.h: cqc";
        /// Offset of CQE 0 in its page, in 64 bytes.
        page_offset: u8 => 0x54, 6;
        /// log2 of the number of CQEs.
        log_cq_size: u8 => 0x63, 5;
        /// UAR page by which the CQ is armed.
        uar_page: u32 => 0x68, 24;
        /// Moderation: microseconds.
        cq_period: u16 => 0x84, 12;
        /// Moderation: completions.
        cq_max_count: u16 => 0x90, 16;
        /// Event queue number.
        c_eqn = "c_eqn_or_apu_element": u32 => 0xa0, 32;
        /// log2 of the page size, less 12.
        log_page_size: u8 => 0xc3, 5;
        /// Consumer when the last event was raised.
        last_notified_index: u32 => 0x108, 24;
        /// Producer of the last solicited completion.
        last_solicit_index: u32 => 0x128, 24;
        /// Consumer that the device last read from the doorbell record.
        consumer_counter: u32 => 0x148, 24;
        /// Producer.
        producer_counter: u32 => 0x168, 24;
        /// Doorbell record: an offset in its UMEM if `dbr_umem_valid`.
        dbr_addr: u64 => 0x1c0, 64;
    }
}
