//! ALLOC_Q_COUNTER: allocates a set of counters of QPs.
//!
//! `mlx5_ifc_alloc_q_counter_in_bits`, `mlx5_ifc_alloc_q_counter_out_bits`.

use crate::layout::structure;
use crate::prm::Status;

structure! {
    /// Allocates a counter set.
    pub struct In: Mlx5Ifc "alloc_q_counter_in", 0x80 bits, opcode 0x771 {
    }
}

structure! {
    /// The answer to [`In`].
    pub struct Out: Mlx5Ifc "alloc_q_counter_out", 0x80 bits {
        /// How the command ended.
        status: Status => 0x00, 8;
        /// Which check of the firmware failed.
        syndrome: u32 => 0x20, 32;
        /// Number of the counter set.
        counter_set_id: u8 => 0x58, 8;
    }
}

crate::prm::command!(In, Out, "ALLOC_Q_COUNTER");
