//! DESTROY_RMP: destroys a receive memory pool.
//!
//! `mlx5_ifc_destroy_rmp_in_bits`, `mlx5_ifc_destroy_rmp_out_bits`.

use crate::layout::structure;
use crate::prm::Status;

structure! {
    /// Destroys an RMP that no QP uses.
    pub struct In: Mlx5Ifc "destroy_rmp_in", 0x80 bits, opcode 0x90e {
        /// Number of the RMP.
        rmpn: u32 => 0x48, 24;
    }
}

structure! {
    /// The answer to [`In`].
    pub struct Out: Mlx5Ifc "destroy_rmp_out", 0x80 bits {
        /// How the command ended.
        status: Status => 0x00, 8;
        /// Which check of the firmware failed.
        syndrome: u32 => 0x20, 32;
    }
}

crate::prm::command!(In, Out, "DESTROY_RMP");
