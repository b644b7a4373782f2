//! QUERY_NIC_VPORT_CONTEXT: reads an Ethernet port's context.
//!
//! `mlx5_ifc_query_nic_vport_context_in_bits`, `mlx5_ifc_query_nic_vport_context_out_bits`.

use crate::layout::structure;
use crate::prm::Status;
use crate::prm::vport::NicVport;

structure! {
    /// Reads the context of a virtual port.
    pub struct In: Mlx5Ifc "query_nic_vport_context_in", 0x80 bits, opcode 0x754 {
        /// True: the port is another function's.
        other_vport: bool => 0x40, 1;
        /// The other function's port.
        vport_number: u16 => 0x50, 16;
        /// Which list of addresses is asked for.
        allowed_list_type: u8 => 0x65, 3;
    }
}

structure! {
    /// The answer to [`In`].
    pub struct Out: Mlx5Ifc "query_nic_vport_context_out", 0x880 bits {
        /// How the command ended.
        status: Status => 0x00, 8;
        /// Which check of the firmware failed.
        syndrome: u32 => 0x20, 32;
        /// The port's context.
        context = "nic_vport_context": NicVport => 0x80, 0x800;
    }
}

crate::prm::command!(In, Out, "QUERY_NIC_VPORT_CONTEXT");
