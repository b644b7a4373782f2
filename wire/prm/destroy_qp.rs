//! DESTROY_QP: destroys a queue pair.
//!
//! `mlx5_ifc_destroy_qp_in_bits`, `mlx5_ifc_destroy_qp_out_bits`.

use crate::layout::structure;
use crate::prm::Status;

structure! {
    /// Destroys a QP, in whatever state.
    pub struct In: Mlx5Ifc "destroy_qp_in", 0x80 bits, opcode 0x501 {
        /// QP number.
        qpn: u32 => 0x48, 24;
    }
}

structure! {
    /// The answer to [`In`].
    pub struct Out: Mlx5Ifc "destroy_qp_out", 0x80 bits {
        /// How the command ended.
        status: Status => 0x00, 8;
        /// Which check of the firmware failed.
        syndrome: u32 => 0x20, 32;
    }
}

crate::prm::command!(In, Out, "DESTROY_QP");
