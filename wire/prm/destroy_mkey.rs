//! DESTROY_MKEY: destroys a memory key.
//!
//! `mlx5_ifc_destroy_mkey_in_bits`, `mlx5_ifc_destroy_mkey_out_bits`.

use crate::layout::structure;
use crate::prm::Status;

structure! {
    /// Destroys an MKey, whatever work still names it.
    pub struct In: Mlx5Ifc "destroy_mkey_in", 0x80 bits, opcode 0x202 {
        /// Upper 24 bits of the key.
        mkey_index: u32 => 0x48, 24;
    }
}

structure! {
    /// The answer to [`In`].
    pub struct Out: Mlx5Ifc "destroy_mkey_out", 0x80 bits {
        /// How the command ended.
        status: Status => 0x00, 8;
        /// Which check of the firmware failed.
        syndrome: u32 => 0x20, 32;
    }
}

crate::prm::command!(In, Out, "DESTROY_MKEY");
