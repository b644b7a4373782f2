//! CREATE_CQ: creates a completion queue in a UMEM.
//!
//! `mlx5_ifc_create_cq_in_bits`, `mlx5_ifc_create_cq_out_bits`.

use crate::layout::structure;
use crate::prm::Status;
use crate::prm::cqc::Cqc;

structure! {
    /// Creates a CQ whose entries lie in a UMEM.
    pub struct In: Mlx5Ifc "create_cq_in", 0x880 bits, opcode 0x400 {
        /// The CQ's context.
        cq_context: Cqc => 0x80, 0x200;
        /// Byte offset of CQE 0 in the UMEM.
        cq_umem_offset: u64 => 0x280, 64 cited "DOCA GPUNetIO mlx5_prm.h: create_cq_in";
        /// The UMEM that holds the CQEs.
        cq_umem_id: u32 => 0x2c0, 32 cited "DOCA GPUNetIO mlx5_prm.h: create_cq_in";
        /// True: the CQEs lie in the UMEM; otherwise at the page addresses that follow the mailbox.
        cq_umem_valid: bool => 0x2e0, 1;
    }
}

structure! {
    /// The answer to [`In`].
    pub struct Out: Mlx5Ifc "create_cq_out", 0x80 bits {
        /// How the command ended.
        status: Status => 0x00, 8;
        /// Which check of the firmware failed.
        syndrome: u32 => 0x20, 32;
        /// CQ number.
        cqn: u32 => 0x48, 24;
    }
}

crate::prm::command!(In, Out, "CREATE_CQ");
