//! QUERY_VPORT_STATE: reads whether a port is up.
//!
//! `mlx5_ifc_query_vport_state_in_bits`, `mlx5_ifc_query_vport_state_out_bits`.

use crate::layout::structure;
use crate::prm::Status;
use crate::prm::vport::{PortAdminState, VportState};

structure! {
    /// Reads the state of a virtual port.
    pub struct In: Mlx5Ifc "query_vport_state_in", 0x80 bits, opcode 0x750 {
        /// True: the port is another function's.
        other_vport: bool => 0x40, 1;
        /// The other function's port.
        vport_number: u16 => 0x50, 16;
    }
}

structure! {
    /// The answer to [`In`].
    pub struct Out: Mlx5Ifc "query_vport_state_out", 0x80 bits {
        /// How the command ended.
        status: Status => 0x00, 8;
        /// Which check of the firmware failed.
        syndrome: u32 => 0x20, 32;
        /// What the administrator asked for.
        admin_state: PortAdminState => 0x78, 4;
        /// What the port is.
        state: VportState => 0x7c, 4;
    }
}

crate::prm::command!(In, Out, "QUERY_VPORT_STATE");
