//! QUERY_CQ: reads a completion queue's context.
//!
//! `mlx5_ifc_query_cq_in_bits`, `mlx5_ifc_query_cq_out_bits`.

use crate::layout::structure;
use crate::prm::Status;
use crate::prm::cqc::Cqc;

structure! {
    /// Reads the context of a CQ.
    pub struct In: Mlx5Ifc "query_cq_in", 0x80 bits, opcode 0x402 {
        /// CQ number.
        cqn: u32 => 0x48, 24;
    }
}

structure! {
    /// The answer to [`In`].
    pub struct Out: Mlx5Ifc "query_cq_out", 0x880 bits {
        /// How the command ended.
        status: Status => 0x00, 8;
        /// Which check of the firmware failed.
        syndrome: u32 => 0x20, 32;
        /// The CQ's context.
        cq_context: Cqc => 0x80, 0x200;
    }
}

crate::prm::command!(In, Out, "QUERY_CQ");
