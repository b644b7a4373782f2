//! 2RST_QP: moves a QP to RST.
//!
//! `mlx5_ifc_qp_2rst_in_bits`, `mlx5_ifc_qp_2rst_out_bits`.

use crate::layout::structure;
use crate::prm::Status;

structure! {
    /// Moves a QP to RST: what is posted is forgotten.
    pub struct In: Mlx5Ifc "qp_2rst_in", 0x80 bits, opcode 0x50a {
        /// QP number.
        qpn: u32 => 0x48, 24;
    }
}

structure! {
    /// The answer to [`In`].
    pub struct Out: Mlx5Ifc "qp_2rst_out", 0x80 bits {
        /// How the command ended.
        status: Status => 0x00, 8;
        /// Which check of the firmware failed.
        syndrome: u32 => 0x20, 32;
    }
}

crate::prm::command!(In, Out, "2RST_QP");
