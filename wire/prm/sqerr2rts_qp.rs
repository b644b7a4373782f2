//! SQERR2RTS_QP: moves a QP from SQER to RTS.
//!
//! `mlx5_ifc_sqerr2rts_qp_in_bits`, `mlx5_ifc_sqerr2rts_qp_out_bits`.

use crate::layout::structure;
use crate::prm::Status;
use crate::prm::qpc::Qpc;

structure! {
    /// Lets the send queue go on after an error that did not stop the receive queue.
    pub struct In: Mlx5Ifc "sqerr2rts_qp_in", 0x880 bits, opcode 0x506 {
        /// QP number.
        qpn: u32 => 0x48, 24;
        /// Which optional fields of the context the command takes: [`OptParam`](crate::prm::qpc::OptParam).
        opt_param_mask: u32 => 0x80, 32;
        /// The QP's context.
        qpc: Qpc => 0xc0, 0x740;
    }
}

structure! {
    /// The answer to [`In`].
    pub struct Out: Mlx5Ifc "sqerr2rts_qp_out", 0x80 bits {
        /// How the command ended.
        status: Status => 0x00, 8;
        /// Which check of the firmware failed.
        syndrome: u32 => 0x20, 32;
    }
}

crate::prm::command!(In, Out, "SQERR2RTS_QP");
