//! Address path: how a QP reaches the remote end.
//!
//! `mlx5_ifc_ads_bits`. On InfiniBand `rlid`, `sl` and, with `grh`, the GRH fields; on RoCE the GRH fields, `rmac`, `eth_prio`,
//! and for RoCE v2 `dscp` and `udp_sport`.

use crate::layout::structure;

structure! {
    /// An address path.
    pub struct Ads: Mlx5Ifc "ads", 0x160 bits {
        /// Force loopback.
        fl: bool => 0x00, 1;
        /// Free adaptive routing.
        free_ar: bool => 0x01, 1;
        /// Index in the partition key table.
        pkey_index: u16 => 0x10, 16;
        /// True: packets carry a GRH (on InfiniBand; on RoCE it is implied).
        grh: bool => 0x28, 1;
        /// Low bits of the source LID, or of the multicast LID.
        mlid: u8 => 0x29, 7;
        /// Remote LID; on RoCE it is not used.
        rlid: u16 => 0x30, 16;
        /// Local ACK timeout: 4.096 us * 2^this (IBA 9.7); zero never times out.
        ack_timeout: u8 => 0x40, 5;
        /// Index of the source GID.
        src_addr_index: u8 => 0x48, 8;
        /// Static rate; zero is the port's.
        stat_rate: u8 => 0x54, 4;
        /// GRH hop limit, IPv6 hop limit or IPv4 TTL.
        hop_limit: u8 => 0x58, 8;
        /// GRH traffic class.
        tclass: u8 => 0x64, 8;
        /// GRH flow label.
        flow_label: u32 => 0x6c, 20;
        /// Remote GID, in network byte order; an IPv4 address is mapped into it.
        rgid_rip: [u8; 16] => 0x80, 128;
        /// True: `dscp` is valid.
        f_dscp: bool => 0x104, 1;
        /// True: `ecn` is valid.
        f_ecn: bool => 0x105, 1;
        /// True: `eth_prio` is valid.
        f_eth_prio: bool => 0x107, 1;
        /// Explicit congestion notification bits of the IP header.
        ecn: u8 => 0x108, 2;
        /// Differentiated services code point of the IP header.
        dscp: u8 => 0x10a, 6;
        /// UDP source port (RoCE v2).
        udp_sport: u16 => 0x110, 16;
        /// Drop eligible indicator of the VLAN tag.
        dei_cfi: bool => 0x120, 1;
        /// Priority of the VLAN tag.
        eth_prio: u8 => 0x121, 3;
        /// InfiniBand service level.
        sl: u8 => 0x124, 4;
        /// Port of the device, from 1.
        vhca_port_num: u8 => 0x128, 8;
        /// Remote MAC address.
        rmac = "rmac_47_32..rmac_31_0": [u8; 6] => 0x130, 48;
    }
}
