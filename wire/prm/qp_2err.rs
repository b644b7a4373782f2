//! 2ERR_QP: moves a QP to ERR.
//!
//! `mlx5_ifc_qp_2err_in_bits`, `mlx5_ifc_qp_2err_out_bits`.

use crate::layout::structure;
use crate::prm::Status;

structure! {
    /// Moves a QP to ERR: what is posted is flushed.
    pub struct In: Mlx5Ifc "qp_2err_in", 0x80 bits, opcode 0x507 {
        /// QP number.
        qpn: u32 => 0x48, 24;
    }
}

structure! {
    /// The answer to [`In`].
    pub struct Out: Mlx5Ifc "qp_2err_out", 0x80 bits {
        /// How the command ended.
        status: Status => 0x00, 8;
        /// Which check of the firmware failed.
        syndrome: u32 => 0x20, 32;
    }
}

crate::prm::command!(In, Out, "2ERR_QP");
