//! DEALLOC_Q_COUNTER: frees a set of counters.
//!
//! `mlx5_ifc_dealloc_q_counter_in_bits`, `mlx5_ifc_dealloc_q_counter_out_bits`.

use crate::layout::structure;
use crate::prm::Status;

structure! {
    /// Frees a counter set that no QP counts in.
    pub struct In: Mlx5Ifc "dealloc_q_counter_in", 0x80 bits, opcode 0x772 {
        /// Number of the counter set.
        counter_set_id: u8 => 0x58, 8;
    }
}

structure! {
    /// The answer to [`In`].
    pub struct Out: Mlx5Ifc "dealloc_q_counter_out", 0x80 bits {
        /// How the command ended.
        status: Status => 0x00, 8;
        /// Which check of the firmware failed.
        syndrome: u32 => 0x20, 32;
    }
}

crate::prm::command!(In, Out, "DEALLOC_Q_COUNTER");
