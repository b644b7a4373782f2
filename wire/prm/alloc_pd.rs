//! ALLOC_PD: allocates a protection domain.
//!
//! `mlx5_ifc_alloc_pd_in_bits`, `mlx5_ifc_alloc_pd_out_bits`.

use crate::layout::structure;
use crate::prm::Status;

structure! {
    /// Allocates a PD.
    pub struct In: Mlx5Ifc "alloc_pd_in", 0x80 bits, opcode 0x800 {
    }
}

structure! {
    /// The answer to [`In`].
    pub struct Out: Mlx5Ifc "alloc_pd_out", 0x80 bits {
        /// How the command ended.
        status: Status => 0x00, 8;
        /// Which check of the firmware failed.
        syndrome: u32 => 0x20, 32;
        /// PD number.
        pd: u32 => 0x48, 24;
    }
}

crate::prm::command!(In, Out, "ALLOC_PD");
