//! QUERY_HCA_VPORT_CONTEXT: reads an InfiniBand port's context.
//!
//! `mlx5_ifc_query_hca_vport_context_in_bits`, `mlx5_ifc_query_hca_vport_context_out_bits`.

use crate::layout::structure;
use crate::prm::Status;
use crate::prm::vport::HcaVport;

structure! {
    /// Reads the context of a virtual port.
    pub struct In: Mlx5Ifc "query_hca_vport_context_in", 0x80 bits, opcode 0x762 {
        /// True: the port is another function's.
        other_vport: bool => 0x40, 1;
        /// Port of the device.
        port_num: u8 => 0x4c, 4;
        /// The other function's port.
        vport_number: u16 => 0x50, 16;
    }
}

structure! {
    /// The answer to [`In`].
    pub struct Out: Mlx5Ifc "query_hca_vport_context_out", 0x1080 bits {
        /// How the command ended.
        status: Status => 0x00, 8;
        /// Which check of the firmware failed.
        syndrome: u32 => 0x20, 32;
        /// The port's context.
        context = "hca_vport_context": HcaVport => 0x80, 0x1000;
    }
}

crate::prm::command!(In, Out, "QUERY_HCA_VPORT_CONTEXT");
