//! CREATE_QP: creates a queue pair in a UMEM.
//!
//! `mlx5_ifc_create_qp_in_bits`, `mlx5_ifc_create_qp_out_bits`.

use crate::layout::structure;
use crate::prm::Status;
use crate::prm::qpc::Qpc;

structure! {
    /// Creates a QP whose work queues lie in a UMEM. It begins in state RST.
    pub struct In: Mlx5Ifc "create_qp_in", 0x880 bits, opcode 0x500 {
        /// QP number to use; zero lets the device choose.
        input_qpn: u32 => 0x48, 24;
        /// Which optional fields of the context the command takes: [`OptParam`](crate::prm::qpc::OptParam).
        opt_param_mask: u32 => 0x80, 32;
        /// Enhanced connection establishment options; zero for none.
        ece: u32 => 0xa0, 32;
        /// The QP's context.
        qpc: Qpc => 0xc0, 0x740;
        /// Byte offset of the work queues in the UMEM: the receive queue first, then the send queue.
        wq_umem_offset: u64 => 0x800, 64;
        /// The UMEM that holds the work queues.
        wq_umem_id: u32 => 0x840, 32;
        /// True: the work queues lie in the UMEM; otherwise at the page addresses that follow the mailbox.
        wq_umem_valid: bool => 0x860, 1;
    }
}

structure! {
    /// The answer to [`In`].
    pub struct Out: Mlx5Ifc "create_qp_out", 0x80 bits {
        /// How the command ended.
        status: Status => 0x00, 8;
        /// Which check of the firmware failed.
        syndrome: u32 => 0x20, 32;
        /// QP number.
        qpn: u32 => 0x48, 24;
        /// Enhanced connection establishment options that took effect.
        ece: u32 => 0x60, 32;
    }
}

crate::prm::command!(In, Out, "CREATE_QP");
