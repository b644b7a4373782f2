//! Ethernet header (IEEE 802.3), with a VLAN tag (802.1Q) where there is one.
//!
//! | bits | field |
//! |---|---|
//! | 0..48 | destination |
//! | 48..96 | source |
//! | 96..112 | type of what follows |
//!
//! A tag puts 32 bits in front of the type: the type 0x8100, priority (3), drop eligible (1), VLAN (12).

use crate::layout::{open_enum, structure};

open_enum! {
    /// What follows an Ethernet header (`ETH_P_*` of Linux's `if_ether.h`).
    pub enum EtherType: u16 {
        /// IPv4.
        Ipv4 = 0x0800 as "ETH_P_IP",
        /// A VLAN tag.
        Vlan = 0x8100 as "ETH_P_8021Q",
        /// IPv6.
        Ipv6 = 0x86dd as "ETH_P_IPV6",
        /// A GRH: RoCE v1.
        RoceV1 = 0x8915 as "ETH_P_IBOE",
    }
}

structure! {
    /// An Ethernet header without tag.
    pub struct Ethernet: Linux "ethhdr", 112 bits {
        /// MAC address of the receiver.
        destination = "h_dest": [u8; 6] => 0, 48;
        /// MAC address of the sender.
        source = "h_source": [u8; 6] => 48, 48;
        /// What follows.
        ether_type = "h_proto": EtherType => 96, 16;
    }
}

structure! {
    /// A VLAN tag, as it follows the type [`EtherType::Vlan`].
    pub struct Vlan: Ieee "vlan_tag", 32 bits {
        /// Priority.
        priority: u8 => 0, 3;
        /// The frame may be dropped first.
        drop_eligible: bool => 3, 1;
        /// The VLAN.
        vlan: u16 => 4, 12;
        /// What follows.
        ether_type: EtherType => 16, 16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let ethernet = Ethernet {
            destination: [1, 2, 3, 4, 5, 6],
            source: [0x11, 0x12, 0x13, 0x14, 0x15, 0x16],
            ether_type: EtherType::Vlan,
        };
        assert_eq!(
            ethernet.emit(),
            [
                1, 2, 3, 4, 5, 6, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x81, 0x00
            ]
        );
        let vlan = Vlan {
            priority: 5,
            drop_eligible: true,
            vlan: 0xabc,
            ether_type: EtherType::Ipv6,
        };
        assert_eq!(vlan.emit(), [0xba, 0xbc, 0x86, 0xdd]);
    }
}
