//! An entry of the RoCE address table: what a source GID index stands for.
//!
//! `mlx5_ifc_roce_addr_layout_bits`.

use crate::layout::{open_enum, structure};

open_enum! {
    /// What carries RoCE packets.
    pub enum RoceVersion: u8 {
        /// Ethernet: version 1.
        V1 = 0 as "MLX5_ROCE_VERSION_1",
        /// UDP: version 2.
        V2 = 2 as "MLX5_ROCE_VERSION_2",
    }
}

open_enum! {
    /// Which IP a GID is an address of.
    pub enum L3Type: u8 {
        /// IPv4, mapped.
        Ipv4 = 0 as "MLX5_ROCE_L3_TYPE_IPV4",
        /// IPv6.
        Ipv6 = 1 as "MLX5_ROCE_L3_TYPE_IPV6",
    }
}

structure! {
    /// An entry of the RoCE address table.
    pub struct RoceAddress: Mlx5Ifc "roce_addr_layout", 0x100 bits {
        /// The GID; an IPv4 address is mapped into it.
        gid = "source_l3_address": [u8; 16] => 0x00, 128;
        /// True: packets carry a VLAN tag.
        vlan_valid: bool => 0x83, 1;
        /// The VLAN.
        vlan_id: u16 => 0x84, 12;
        /// MAC address.
        mac = "source_mac_47_32..source_mac_31_0": [u8; 6] => 0x90, 48;
        /// Which IP the GID is an address of.
        l3_type = "roce_l3_type": L3Type => 0xd4, 4;
        /// What carries packets.
        version = "roce_version": RoceVersion => 0xd8, 8;
    }
}
