//! QUERY_HCA_VPORT_GID: reads an entry of an InfiniBand port's GID table.
//!
//! `mlx5_ifc_query_hca_vport_gid_in_bits`, `mlx5_ifc_query_hca_vport_gid_out_bits`. The header's answer ends in a list of GIDs;
//! one is asked for here.

use crate::layout::structure;
use crate::prm::Status;

structure! {
    /// Reads the GID at `gid_index`.
    pub struct In: Mlx5Ifc "query_hca_vport_gid_in", 0x80 bits, opcode 0x764 {
        /// True: the port is another function's.
        other_vport: bool => 0x40, 1;
        /// Port of the device.
        port_num: u8 => 0x4c, 4;
        /// The other function's port.
        vport_number: u16 => 0x50, 16;
        /// Index in the GID table.
        gid_index: u16 => 0x70, 16;
    }
}

structure! {
    /// The answer to [`In`].
    pub struct Out: Mlx5Ifc "query_hca_vport_gid_out", 0x100 bits {
        /// How the command ended.
        status: Status => 0x00, 8;
        /// Which check of the firmware failed.
        syndrome: u32 => 0x20, 32;
        /// GIDs that follow.
        gids_num: u16 => 0x60, 16;
        /// The first of them.
        gid: [u8; 16] => 0x80, 128 cited "mlx5_ifc.h: query_hca_vport_gid_out, its list";
    }
}

crate::prm::command!(In, Out, "QUERY_HCA_VPORT_GID");
