//! Receive memory pool context, and the context of its work queue.
//!
//! `mlx5_ifc_rmpc_bits`, `mlx5_ifc_wq_bits`. A shared receive queue is an RMP that QPs name in `srqn_rmpn_xrqn`.

use crate::layout::{open_enum, structure};

open_enum! {
    /// State of an RMP.
    pub enum RmpState: u8 {
        /// It takes receive WQEs.
        Ready = 1 as "MLX5_RMPC_STATE_RDY",
        /// It is in error.
        Error = 3 as "MLX5_RMPC_STATE_ERR",
    }
}

open_enum! {
    /// How a work queue's WQEs follow each other.
    pub enum WqType: u8 {
        /// Each names the next: [`crate::wqe::SrqNext`].
        LinkedList = 0 as "MLX5_WQ_TYPE_LINKED_LIST",
        /// As a ring.
        Cyclic = 1 as "MLX5_WQ_TYPE_CYCLIC",
        /// As a list, each WQE taking several packets.
        LinkedListStriding = 2 as "MLX5_WQ_TYPE_LINKED_LIST_STRIDING_RQ",
        /// As a ring, each WQE taking several packets.
        CyclicStriding = 3 as "MLX5_WQ_TYPE_CYCLIC_STRIDING_RQ",
    }
}

structure! {
    /// A receive work queue.
    pub struct Wq: Mlx5Ifc "wq", 0x600 bits {
        /// How WQEs follow each other.
        wq_type: WqType => 0x00, 4;
        /// WQEs carry signatures.
        wq_signature: bool => 0x04, 1;
        /// Padding of the data's end; zero is none.
        end_padding_mode: u8 => 0x05, 2;
        /// Core-direct: the queue is triggered by others.
        cd_slave: bool => 0x07, 1;
        /// Offset of the WQEs in their page, in 64 bytes.
        page_offset: u8 => 0x2b, 5;
        /// Limit: an event is raised when fewer WQEs are left; zero is never.
        lwm: u16 => 0x30, 16;
        /// PD number.
        pd: u32 => 0x48, 24;
        /// UAR page.
        uar_page: u32 => 0x68, 24;
        /// Doorbell record: an offset in its UMEM if `dbr_umem_valid`.
        dbr_addr: u64 => 0x80, 64;
        /// WQEs that the device has consumed.
        hw_counter: u32 => 0xc0, 32;
        /// WQEs that software has posted, as the device knows.
        sw_counter: u32 => 0xe0, 32;
        /// log2 of a WQE's bytes.
        log_wq_stride: u8 => 0x10c, 4;
        /// log2 of the page size, less 12.
        log_wq_pg_sz: u8 => 0x113, 5;
        /// log2 of the number of WQEs.
        log_wq_sz: u8 => 0x11b, 5;
        /// True: `dbr_addr` is an offset in the UMEM `dbr_umem_id`.
        dbr_umem_valid: bool => 0x120, 1;
        /// True: the WQEs lie in the UMEM `wq_umem_id`.
        wq_umem_valid: bool => 0x121, 1;
        /// The UMEM that holds the doorbell record.
        dbr_umem_id: u32 => 0x140, 32;
        /// The UMEM that holds the WQEs.
        wq_umem_id: u32 => 0x160, 32;
        /// Byte offset of the WQEs in the UMEM.
        wq_umem_offset: u64 => 0x180, 64;
    }
}

structure! {
    /// A receive memory pool's context.
    pub struct Rmpc: Mlx5Ifc "rmpc", 0x780 bits {
        /// State.
        state: RmpState => 0x08, 4;
        /// True: WQEs of a ring have no next segment.
        basic_cyclic_rcv_wqe: bool => 0x20, 1;
        /// The work queue.
        wq: Wq => 0x180, 0x600;
    }
}
