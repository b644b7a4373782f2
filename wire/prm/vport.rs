//! Contexts of a function's port, InfiniBand and Ethernet.
//!
//! `mlx5_ifc_hca_vport_context_bits`, `mlx5_ifc_nic_vport_context_bits`: the fields that anything here uses.

use crate::layout::{open_enum, structure};

open_enum! {
    /// Whether a port is up (`QUERY_VPORT_STATE`).
    pub enum VportState: u8 {
        /// Down.
        Down = 0 as "MLX5_QUERY_VPORT_STATE_OUT_STATE_DOWN",
        /// Up.
        Up = 1 as "MLX5_QUERY_VPORT_STATE_OUT_STATE_UP",
    }
}

open_enum! {
    /// What an administrator asked of a port (`MLX5_VPORT_ADMIN_STATE_*` of Linux's `mlx5/device.h`).
    pub enum PortAdminState: u8 {
        /// Down.
        Down = 0 as "MLX5_VPORT_ADMIN_STATE_DOWN",
        /// Up.
        Up = 1 as "MLX5_VPORT_ADMIN_STATE_UP",
        /// As the physical port is.
        Auto = 2 as "MLX5_VPORT_ADMIN_STATE_AUTO",
    }
}

open_enum! {
    /// Logical state of an InfiniBand port (IBA 14.2, PortInfo:PortState).
    pub enum PortState: u8 {
        /// Down.
        Down = 1,
        /// Up, and not yet configured by the subnet manager.
        Initialize = 2,
        /// Configured, and not yet active.
        Armed = 3,
        /// Active.
        Active = 4,
    }
}

structure! {
    /// Context of an InfiniBand port.
    pub struct HcaVport: Mlx5Ifc "hca_vport_context", 0x1000 bits {
        /// True: every packet must carry a GRH.
        grh_required: bool => 0x103, 1;
        /// Physical state (IBA 14.2): 5 is link up.
        port_physical_state: u8 => 0x110, 4;
        /// Logical state of the physical port.
        port_state: PortState => 0x118, 4;
        /// Logical state of the virtual port.
        vport_state: PortState => 0x11c, 4;
        /// GUID of the system.
        system_image_guid: u64 => 0x140, 64;
        /// GUID of the port.
        port_guid: u64 => 0x180, 64;
        /// GUID of the node.
        node_guid: u64 => 0x1c0, 64;
        /// PortInfo:CapabilityMask.
        cap_mask1: u32 => 0x200, 32;
        /// Local identifier.
        lid: u16 => 0x300, 16;
        /// Low bits of the local identifier that vary.
        lmc: u8 => 0x318, 3;
        /// Timeout of the subnet manager: 4.096 us * 2^this.
        subnet_timeout: u8 => 0x31b, 5;
        /// Local identifier of the subnet manager.
        sm_lid: u16 => 0x320, 16;
        /// Service level of the subnet manager.
        sm_sl: u8 => 0x330, 4;
        /// Packets with a wrong Q_Key.
        qkey_violation_counter: u16 => 0x340, 16;
        /// Packets with a wrong partition key.
        pkey_violation_counter: u16 => 0x350, 16;
    }
}

structure! {
    /// A MAC address.
    pub struct MacAddress: Mlx5Ifc "mac_address_layout", 0x40 bits {
        /// The address.
        address = "mac_addr_47_32..mac_addr_31_0": [u8; 6] => 0x10, 48;
    }
}

structure! {
    /// Context of an Ethernet port.
    pub struct NicVport: Mlx5Ifc "nic_vport_context", 0x800 bits {
        /// RoCE is enabled.
        roce_en: bool => 0x1f, 1;
        /// Largest Ethernet frame.
        mtu: u16 => 0x130, 16;
        /// GUID of the system.
        system_image_guid: u64 => 0x140, 64;
        /// GUID of the port.
        port_guid: u64 => 0x180, 64;
        /// GUID of the node.
        node_guid: u64 => 0x1c0, 64;
        /// Packets with a wrong Q_Key.
        qkey_violation_counter: u16 => 0x340, 16;
        /// The port's MAC address.
        permanent_address: MacAddress => 0x7a0, 0x40;
    }
}
