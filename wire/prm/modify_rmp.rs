//! MODIFY_RMP: changes a receive memory pool; setting its limit arms the limit event.
//!
//! `mlx5_ifc_modify_rmp_in_bits`, `mlx5_ifc_modify_rmp_out_bits`.

use crate::layout::structure;
use crate::prm::Status;
use crate::prm::rmpc::{RmpState, Rmpc};

structure! {
    /// Changes an RMP: its state, and what `bitmask` names.
    pub struct In: Mlx5Ifc "modify_rmp_in", 0x880 bits, opcode 0x90d {
        /// State that the RMP is in.
        rmp_state: RmpState => 0x40, 4;
        /// Number of the RMP.
        rmpn: u32 => 0x48, 24;
        /// True: the limit `lwm` of the context is set, and its event armed.
        set_limit = "bitmask.lwm": bool => 0xbf, 1;
        /// The RMP's context.
        context = "ctx": Rmpc => 0x100, 0x780;
    }
}

structure! {
    /// The answer to [`In`].
    pub struct Out: Mlx5Ifc "modify_rmp_out", 0x80 bits {
        /// How the command ended.
        status: Status => 0x00, 8;
        /// Which check of the firmware failed.
        syndrome: u32 => 0x20, 32;
    }
}

crate::prm::command!(In, Out, "MODIFY_RMP");
