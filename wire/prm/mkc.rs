//! Memory key context.
//!
//! `mlx5_ifc_mkc_bits`.

use crate::layout::{open_enum, structure};

open_enum! {
    /// Low two bits of a key's access mode.
    pub enum MkeyAccessMode: u8 {
        /// Physical addresses: no translation.
        Pa = 0 as "MLX5_MKC_ACCESS_MODE_PA",
        /// A table of pages.
        Mtt = 1 as "MLX5_MKC_ACCESS_MODE_MTT",
        /// A list of keys, each with its length.
        Klms = 2 as "MLX5_MKC_ACCESS_MODE_KLMS",
        /// A table of keys of one length.
        Ksm = 3 as "MLX5_MKC_ACCESS_MODE_KSM",
    }
}

structure! {
    /// A memory key's context.
    pub struct Mkc: Mlx5Ifc "mkc", 0x200 bits {
        /// True: the key covers nothing until a UMR fills it.
        free: bool => 0x01, 1;
        /// High three bits of the access mode.
        access_mode_4_2: u8 => 0x03, 3;
        /// Writes may carry the PCIe relaxed-ordering bit.
        relaxed_ordering_write: bool => 0x0d, 1;
        /// UMRs may change it.
        umr_en: bool => 0x10, 1;
        /// Remote atomics are allowed.
        a: bool => 0x11, 1;
        /// Remote writes are allowed.
        rw: bool => 0x12, 1;
        /// Remote reads are allowed.
        rr: bool => 0x13, 1;
        /// Local writes are allowed.
        lw: bool => 0x14, 1;
        /// Local reads are allowed.
        lr: bool => 0x15, 1;
        /// Low bits of the access mode.
        access_mode = "access_mode_1_0": MkeyAccessMode => 0x16, 2;
        /// The only QP that may use it; 0xffffff for any.
        qpn: u32 => 0x20, 24;
        /// Low byte of the key: the user's part.
        mkey_7_0: u8 => 0x38, 8;
        /// The key covers all 64 bits of addresses.
        length64: bool => 0x60, 1;
        /// PD number.
        pd: u32 => 0x68, 24;
        /// Address of its first byte.
        start_addr: u64 => 0x80, 64;
        /// Bytes.
        len: u64 => 0xc0, 64;
        /// 16-byte units of the translation table.
        translations_octword_size: u32 => 0x1a0, 32;
        /// Reads may carry the PCIe relaxed-ordering bit.
        relaxed_ordering_read: bool => 0x1d9, 1;
        /// log2 of the page size.
        log_page_size: u8 => 0x1da, 6;
    }
}
