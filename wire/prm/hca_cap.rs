//! Sets of capabilities that QUERY_HCA_CAP reads.
//!
//! `mlx5_ifc_cmd_hca_cap_bits`, `mlx5_ifc_cmd_hca_cap_2_bits`, `mlx5_ifc_roce_cap_bits`, `mlx5_ifc_atomic_caps_bits`: the
//! fields that anything here uses.

use crate::layout::{open_enum, structure};

open_enum! {
    /// What the device's ports are.
    pub enum PortType: u8 {
        /// InfiniBand.
        InfiniBand = 0 as "MLX5_CAP_PORT_TYPE_IB",
        /// Ethernet: RoCE.
        Ethernet = 1 as "MLX5_CAP_PORT_TYPE_ETH",
    }
}

open_enum! {
    /// Which clocks a queue's timestamps can come from.
    pub enum TimestampCap: u8 {
        /// The free-running clock.
        FreeRunning = 0 as "MLX5_TIMESTAMP_FORMAT_CAP_FREE_RUNNING",
        /// Real time.
        RealTime = 1 as "MLX5_TIMESTAMP_FORMAT_CAP_REAL_TIME",
        /// Both.
        Both = 2 as "MLX5_TIMESTAMP_FORMAT_CAP_FREE_RUNNING_AND_REAL_TIME",
    }
}

structure! {
    /// General capabilities.
    pub struct GeneralCaps: Mlx5Ifc "cmd_hca_cap", 0x800 bits {
        /// True: [`GeneralCaps2`] can be asked for.
        hca_cap_2: bool => 0x20, 1;
        /// log2 of the most WQEs that a shared receive queue can have.
        log_max_srq_sz: u8 => 0x80, 8;
        /// log2 of the most WQEBBs that a send queue can have.
        log_max_qp_sz: u8 => 0x88, 8;
        /// log2 of the most QPs.
        log_max_qp: u8 => 0x9b, 5;
        /// Enhanced connection establishment.
        ece_support: bool => 0xa3, 1;
        /// log2 of the most shared receive queues.
        log_max_srq: u8 => 0xab, 5;
        /// log2 of the most CQEs that a CQ can have.
        log_max_cq_sz: u8 => 0xc8, 8;
        /// log2 of the most CQs.
        log_max_cq: u8 => 0xdb, 5;
        /// MKeys may ask for relaxed-ordering writes.
        relaxed_ordering_write: bool => 0xe8, 1;
        /// log2 of the most MKeys.
        log_max_mkey: u8 => 0xea, 6;
        /// DUMP and its key exist.
        dump_fill_mkey: bool => 0xf8, 1;
        /// log2 of the most bytes that a key covers.
        log_max_mrw_sz: u8 => 0x109, 7;
        /// The null key exists.
        null_mkey: bool => 0x119, 1;
        /// QUERY_QP can extend its answer.
        qpc_extension: bool => 0x122, 1;
        /// log2 of the most reads and atomics that a QP can have outstanding.
        log_max_ra_req_qp: u8 => 0x14a, 6;
        /// log2 of the most reads and atomics that a QP can answer at a time.
        log_max_ra_res_qp: u8 => 0x15a, 6;
        /// RTS2RTS_QP can change the counter set.
        rts2rts_qp_counters_set_id: bool => 0x169, 1;
        /// Entries of a port's GID table, as a code: 8 * 2^this.
        gid_table_size: u16 => 0x170, 16;
        /// Counter sets count packets out of sequence.
        out_of_seq_cnt: bool => 0x180, 1;
        /// Counter sets count retransmissions.
        retransmission_q_counters: bool => 0x182, 1;
        /// Most counter sets.
        max_qp_cnt: u16 => 0x186, 10;
        /// Entries of a port's partition key table, as a code: 128 * 2^this.
        pkey_table_size: u16 => 0x190, 16;
        /// InfiniBand ports are virtual.
        ib_virt: bool => 0x1a2, 1;
        /// Delay that the device adds to acknowledgements: 4.096 us * 2^this.
        local_ca_ack_delay: u8 => 0x1ab, 5;
        /// Counter sets count errors.
        enhanced_error_q_counters: bool => 0x1b1, 1;
        /// What the ports are.
        port_type: PortType => 0x1b6, 2;
        /// Ports.
        num_ports: u8 => 0x1b8, 8;
        /// log2 of the largest message in bytes.
        log_max_msg: u8 => 0x1c3, 5;
        /// Static rates that an address path can ask for, a bit each.
        stat_rate_support: u16 => 0x1e0, 16;
        /// CQE version: 1 has the user index in CQEs.
        cqe_version: u8 => 0x1fc, 4;
        /// Compact address vectors.
        compact_address_vector: bool => 0x200, 1;
        /// Small data can be scattered to the CQE.
        sctr_data_cqe: bool => 0x215, 1;
        /// Dynamically connected transport.
        dct: bool => 0x21a, 1;
        /// RoCE.
        roce: bool => 0x21d, 1;
        /// Atomics.
        atomic: bool => 0x21e, 1;
        /// CQs can ignore overrun.
        cq_oi: bool => 0x220, 1;
        /// CQs can be resized.
        cq_resize: bool => 0x221, 1;
        /// Events of CQs can be moderated.
        cq_moderation: bool => 0x222, 1;
        /// Core-direct: WAIT and its kind.
        cd: bool => 0x22c, 1;
        /// Automatic path migration.
        apm: bool => 0x22e, 1;
        /// Packets with a wrong Q_Key are counted.
        qkv: bool => 0x236, 1;
        /// Packets with a wrong partition key are counted.
        pkv: bool => 0x237, 1;
        /// Extended reliable connections.
        xrc: bool => 0x23c, 1;
        /// Unreliable datagrams.
        ud: bool => 0x23d, 1;
        /// Unreliable connections.
        uc: bool => 0x23e, 1;
        /// RC QPs.
        rc: bool => 0x23f, 1;
        /// UAR pages have 4 KiB whatever the system's page size.
        uar_4k: bool => 0x240, 1;
        /// log2 of the UAR space in MiB.
        uar_sz: u8 => 0x24a, 6;
        /// log2 of the smallest page in bytes.
        log_pg_sz: u8 => 0x258, 8;
        /// BlueFlame.
        bf: bool => 0x260, 1;
        /// log2 of a BlueFlame register's bytes; it holds two buffers of half of them.
        log_bf_reg_size: u8 => 0x26b, 5;
        /// QUERY_QP tells the syndrome of a QP in error.
        qp_error_syndrome: bool => 0x273, 1;
        /// QPs can be bound to a port of a link aggregation.
        lag_tx_port_affinity: bool => 0x278, 1;
        /// Ports of the link aggregation.
        num_lag_ports: u8 => 0x27c, 4;
        /// Most bytes of a send WQE.
        max_wqe_sz_sq: u16 => 0x290, 16;
        /// Most bytes of a receive WQE.
        max_wqe_sz_rq: u16 => 0x2b0, 16;
        /// log2 of the most transport domains.
        log_max_transport_domain: u8 => 0x323, 5;
        /// log2 of the most PDs.
        log_max_pd: u8 => 0x32b, 5;
        /// WQEs of a cyclic receive memory pool need no next segment.
        basic_cyclic_rcv_wqe: bool => 0x380, 1;
        /// log2 of the most receive memory pools.
        log_max_rmp: u8 => 0x383, 5;
        /// Clocks of send queues.
        sq_ts_format: TimestampCap => 0x440, 2;
        /// Clocks of receive queues.
        rq_ts_format: TimestampCap => 0x442, 2;
        /// log2 of the most user contexts; zero: no DevX.
        log_max_uctx: u8 => 0x463, 5;
        /// log2 of the most UMEMs.
        log_max_umem: u8 => 0x46b, 5;
        /// log2 of the UAR page size in bytes, less 12.
        log_uar_page_sz: u16 => 0x490, 16;
        /// Frequency of the free-running clock in kHz.
        device_frequency_khz: u32 => 0x4e0, 32;
        /// CQEs of 128 bytes can be compressed.
        cqe_compression_128: bool => 0x5be, 1;
        /// CQEs can be compressed.
        cqe_compression: bool => 0x5bf, 1;
        /// Data-direct access.
        data_direct: bool => 0x752, 1;
    }
}

structure! {
    /// General capabilities, second set.
    pub struct GeneralCaps2: Mlx5Ifc "cmd_hca_cap_2", 0x800 bits {
        /// [`crate::prm::qpc::SendDbrMode::NoDbr`] is supported.
        send_dbr_mode_no_dbr_ext: bool => 0x2e1, 1 cited "DOCA GPUNetIO mlx5_ifc.h: cmd_hca_cap_2";
    }
}

structure! {
    /// RoCE capabilities.
    pub struct RoceCaps: Mlx5Ifc "roce_cap", 0x800 bits {
        /// Software may choose the UDP source port.
        sw_r_roce_src_udp_port: bool => 0x04, 1;
        /// Force loopback works on RC QPs while RoCE is disabled.
        fl_rc_qp_when_roce_disabled: bool => 0x05, 1;
        /// Force loopback works on RC QPs while RoCE is enabled.
        fl_rc_qp_when_roce_enabled: bool => 0x06, 1;
        /// Clocks of QPs.
        qp_ts_format: TimestampCap => 0x1e, 2;
        /// Bit set of GIDs' kinds: bit 1 IPv4, bit 2 IPv6.
        l3_type: u8 => 0x8c, 4;
        /// Bit set of RoCE versions: bit 0 v1, bit 2 v2.
        roce_version: u8 => 0x98, 8;
        /// UDP destination port of RoCE v2.
        r_roce_dest_udp_port: u16 => 0xb0, 16;
        /// Largest UDP source port.
        r_roce_max_src_udp_port: u16 => 0xc0, 16;
        /// Smallest UDP source port.
        r_roce_min_src_udp_port: u16 => 0xd0, 16;
        /// Entries of the RoCE address table.
        roce_address_table_size: u16 => 0xf0, 16;
    }
}

structure! {
    /// Atomic capabilities.
    pub struct AtomicCaps: Mlx5Ifc "atomic_caps", 0x800 bits {
        /// Byte order of 8-byte atomics in effect: zero is the order of IBA.
        atomic_req_8b_endianness_mode = "atomic_req_8B_endianness_mode": u8 => 0x40, 2;
        /// Big-endian operands of 8-byte atomics can be asked for.
        supported_atomic_req_8b_endianness_mode_1 = "supported_atomic_req_8B_endianness_mode_1": bool => 0x46, 1;
        /// Bit set of operations: bit 0 compare-and-swap, 1 fetch-and-add, 2 and 3 their masked forms.
        atomic_operations: u16 => 0x90, 16;
        /// Bit set of operand sizes of QPs: bit n is 2^n bytes.
        atomic_size_qp: u16 => 0xb0, 16;
    }
}
