//! QUERY_HCA_VPORT_PKEY: reads an entry of an InfiniBand port's partition key table.
//!
//! `mlx5_ifc_query_hca_vport_pkey_in_bits`, `mlx5_ifc_query_hca_vport_pkey_out_bits`. The header's answer ends in a list of keys;
//! one is asked for here.

use crate::layout::structure;
use crate::prm::Status;

structure! {
    /// Reads the key at `pkey_index`.
    pub struct In: Mlx5Ifc "query_hca_vport_pkey_in", 0x80 bits, opcode 0x765 {
        /// True: the port is another function's.
        other_vport: bool => 0x40, 1;
        /// Port of the device.
        port_num: u8 => 0x4c, 4;
        /// The other function's port.
        vport_number: u16 => 0x50, 16;
        /// Index in the partition key table.
        pkey_index: u16 => 0x70, 16;
    }
}

structure! {
    /// The answer to [`In`].
    pub struct Out: Mlx5Ifc "query_hca_vport_pkey_out", 0xa0 bits {
        /// How the command ended.
        status: Status => 0x00, 8;
        /// Which check of the firmware failed.
        syndrome: u32 => 0x20, 32;
        /// The key.
        pkey: u16 => 0x90, 16 cited "mlx5_ifc.h: pkey_bits, the low half of 32 bits";
    }
}

crate::prm::command!(In, Out, "QUERY_HCA_VPORT_PKEY");
