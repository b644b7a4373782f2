//! CREATE_MKEY: creates a memory key.
//!
//! `mlx5_ifc_create_mkey_in_bits`, `mlx5_ifc_create_mkey_out_bits`.

use crate::layout::structure;
use crate::prm::Status;
use crate::prm::mkc::Mkc;

structure! {
    /// Creates an MKey over a UMEM, or over the whole address space (`MkeyAccessMode::Pa`).
    pub struct In: Mlx5Ifc "create_mkey_in", 0x880 bits, opcode 0x200 {
        /// True: the translation table holds pages' access rights.
        pg_access: bool => 0x60, 1;
        /// True: the key covers the UMEM.
        mkey_umem_valid: bool => 0x61, 1;
        /// True: data bypasses the host bridge's usual path (data-direct).
        data_direct: bool => 0x62, 1;
        /// The key's context.
        mkey_context = "memory_key_mkey_entry": Mkc => 0x80, 0x200;
        /// Octwords of the translation table.
        translations_octword_actual_size: u32 => 0x300, 32;
        /// The UMEM that the key covers.
        mkey_umem_id: u32 => 0x320, 32 cited "DPDK mlx5_prm.h: create_mkey_in";
        /// Byte offset of the key's first byte in the UMEM.
        mkey_umem_offset: u64 => 0x340, 64 cited "DPDK mlx5_prm.h: create_mkey_in";
    }
}

structure! {
    /// The answer to [`In`].
    pub struct Out: Mlx5Ifc "create_mkey_out", 0x80 bits {
        /// How the command ended.
        status: Status => 0x00, 8;
        /// Which check of the firmware failed.
        syndrome: u32 => 0x20, 32;
        /// Upper 24 bits of the key; the low 8 are those of the context.
        mkey_index: u32 => 0x48, 24;
    }
}

crate::prm::command!(In, Out, "CREATE_MKEY");
