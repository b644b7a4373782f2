//! ALLOC_TRANSPORT_DOMAIN: allocates a transport domain.
//!
//! `mlx5_ifc_alloc_transport_domain_in_bits`, `mlx5_ifc_alloc_transport_domain_out_bits`.

use crate::layout::structure;
use crate::prm::Status;

structure! {
    /// Allocates a transport domain.
    pub struct In: Mlx5Ifc "alloc_transport_domain_in", 0x80 bits, opcode 0x816 {
    }
}

structure! {
    /// The answer to [`In`].
    pub struct Out: Mlx5Ifc "alloc_transport_domain_out", 0x80 bits {
        /// How the command ended.
        status: Status => 0x00, 8;
        /// Which check of the firmware failed.
        syndrome: u32 => 0x20, 32;
        /// Number of the transport domain.
        transport_domain: u32 => 0x48, 24;
    }
}

crate::prm::command!(In, Out, "ALLOC_TRANSPORT_DOMAIN");
