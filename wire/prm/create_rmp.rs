//! CREATE_RMP: creates a receive memory pool, which is what a shared receive queue is.
//!
//! `mlx5_ifc_create_rmp_in_bits`, `mlx5_ifc_create_rmp_out_bits`.

use crate::layout::structure;
use crate::prm::Status;
use crate::prm::rmpc::Rmpc;

structure! {
    /// Creates an RMP in a UMEM, in state [`RmpState::Ready`](crate::prm::rmpc::RmpState::Ready).
    pub struct In: Mlx5Ifc "create_rmp_in", 0x880 bits, opcode 0x90c {
        /// The RMP's context.
        context = "ctx": Rmpc => 0x100, 0x780;
    }
}

structure! {
    /// The answer to [`In`].
    pub struct Out: Mlx5Ifc "create_rmp_out", 0x80 bits {
        /// How the command ended.
        status: Status => 0x00, 8;
        /// Which check of the firmware failed.
        syndrome: u32 => 0x20, 32;
        /// Number of the RMP.
        rmpn: u32 => 0x48, 24;
    }
}

crate::prm::command!(In, Out, "CREATE_RMP");
