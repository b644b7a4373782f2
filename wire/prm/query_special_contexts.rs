//! QUERY_SPECIAL_CONTEXTS: reads the reserved keys.
//!
//! `mlx5_ifc_query_special_contexts_in_bits`, `mlx5_ifc_query_special_contexts_out_bits`.

use crate::layout::structure;
use crate::prm::Status;

structure! {
    /// Reads the device's reserved keys.
    pub struct In: Mlx5Ifc "query_special_contexts_in", 0x80 bits, opcode 0x203 {
    }
}

structure! {
    /// The answer to [`In`].
    pub struct Out: Mlx5Ifc "query_special_contexts_out", 0x100 bits {
        /// How the command ended.
        status: Status => 0x00, 8;
        /// Which check of the firmware failed.
        syndrome: u32 => 0x20, 32;
        /// Key for DUMP: reads through it complete and their data goes nowhere.
        dump_fill_mkey: u32 => 0x40, 32;
        /// Reserved local key: all memory, privileged users only.
        resd_lkey: u32 => 0x60, 32;
        /// Key whose reads give zero and whose writes are dropped.
        null_mkey: u32 => 0x80, 32;
        /// Key that ends a scatter list.
        terminate_scatter_list_mkey: u32 => 0xa0, 32;
        /// Key of a repeated pattern.
        repeated_mkey: u32 => 0xc0, 32;
    }
}

crate::prm::command!(In, Out, "QUERY_SPECIAL_CONTEXTS");
