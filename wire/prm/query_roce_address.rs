//! QUERY_ROCE_ADDRESS: reads an entry of the RoCE address table.
//!
//! `mlx5_ifc_query_roce_address_in_bits`, `mlx5_ifc_query_roce_address_out_bits`.

use crate::layout::structure;
use crate::prm::Status;
use crate::prm::roce_address::RoceAddress;

structure! {
    /// Reads an entry.
    pub struct In: Mlx5Ifc "query_roce_address_in", 0x80 bits, opcode 0x760 {
        /// Entry of the port's address table.
        roce_address_index: u16 => 0x40, 16;
        /// Port of the device.
        vhca_port_num: u8 => 0x5c, 4;
    }
}

structure! {
    /// The answer to [`In`].
    pub struct Out: Mlx5Ifc "query_roce_address_out", 0x180 bits {
        /// How the command ended.
        status: Status => 0x00, 8;
        /// Which check of the firmware failed.
        syndrome: u32 => 0x20, 32;
        /// The address.
        address = "roce_address": RoceAddress => 0x80, 0x100;
    }
}

crate::prm::command!(In, Out, "QUERY_ROCE_ADDRESS");
