//! QUERY_RMP: reads a receive memory pool's context.
//!
//! `mlx5_ifc_query_rmp_in_bits`, `mlx5_ifc_query_rmp_out_bits`.

use crate::layout::structure;
use crate::prm::Status;
use crate::prm::rmpc::Rmpc;

structure! {
    /// Reads the context of an RMP.
    pub struct In: Mlx5Ifc "query_rmp_in", 0x80 bits, opcode 0x90f {
        /// Number of the RMP.
        rmpn: u32 => 0x48, 24;
    }
}

structure! {
    /// The answer to [`In`].
    pub struct Out: Mlx5Ifc "query_rmp_out", 0x880 bits {
        /// How the command ended.
        status: Status => 0x00, 8;
        /// Which check of the firmware failed.
        syndrome: u32 => 0x20, 32;
        /// The RMP's context.
        context = "rmp_context": Rmpc => 0x100, 0x780;
    }
}

crate::prm::command!(In, Out, "QUERY_RMP");
