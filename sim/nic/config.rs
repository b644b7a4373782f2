//! What the simulated NIC is: its configuration, its port and its capabilities.
//!
//! Knows: numbers that a driver can query.
//! Must not know: objects.

use warpverbs_wire::prm::hca_cap::{
    AtomicCaps, GeneralCaps, GeneralCaps2, PortType, RoceCaps, TimestampCap,
};

use warpverbs_wire::roce::address;

use crate::error::NicError;
use crate::faults::FaultPlan;

/// How a [`crate::NicModel`] is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicConfig {
    /// The device's name.
    pub name: String,
    /// Seed of the choice among QPs that have work.
    pub seed: u64,
    /// Index at which the queues of a new or reset QP, a new CQ and a new RMP start. Hardware starts at 0; another value brings a
    /// test near a wrap at once. Doorbell records must hold its low bits (16 of a send or receive queue, 24 of a CQ) from the start.
    /// At most 2^62.
    pub first_index: u64,
    /// Ports of a LAG, of which a QP may be given one; 0 is no LAG. Frames leave by the one port all the same.
    pub lag_ports: u8,
    /// The NIC has a data-direct function. What is reached over it is the same memory here.
    pub data_direct: bool,
    /// What the port is.
    pub link_layer: LinkLayer,
    /// MAC address of the port; GIDs are made from it.
    pub mac: [u8; 6],
    /// LID of the port, if it is InfiniBand.
    pub lid: u16,
    /// The partition key table: from index 0 on, the other entries are 0, which is no partition (IBA 10.9).
    pub pkeys: Vec<u16>,
    /// Active MTU of the port in bytes.
    pub mtu: u32,
    /// log2 of the largest message in bytes.
    pub log_max_message: u8,
    /// log2 of the largest send queue in WQEBBs; at most 15.
    pub log_max_sq_depth: u8,
    /// log2 of the largest CQ.
    pub log_max_cq_depth: u8,
    /// Offers QPs without send doorbell record.
    pub no_dbr: bool,
    /// Faults that come by themselves.
    pub faults: FaultPlan,
    /// Offers work requests that wait for a CQ (core-direct).
    pub core_direct: bool,
    /// An InfiniBand port demands a GRH of every packet.
    pub grh_required: bool,
    /// log2 of the most PDs, UMEMs, MKeys, CQs and QPs, of each; at most 23.
    pub log_max_objects: u8,
    /// What a finding does.
    pub findings: FindingPolicy,
    /// True if it reads each WQE once more when it completes: one that is not what was fetched is a finding. That costs
    /// accesses which hardware does not make.
    pub checks_wqes: bool,
    /// True if immediate data of a WQE whose opcode has none is no finding. libmlx5's `ibv_wr_*` leave there what was in the slot,
    /// as hardware does not look (shown by ci/oracle); this project's posters write zeroes.
    pub ignores_unused_immediates: bool,
    /// True if it may read a doorbell record at any step and act on it without a doorbell. That hardware may do so is
    /// assumed; software that is right does not notice.
    pub reads_records_early: bool,
}

impl Default for NicConfig {
    fn default() -> Self {
        Self {
            name: "sim0".to_owned(),
            seed: 0,
            first_index: 0,
            lag_ports: 0,
            data_direct: false,
            link_layer: LinkLayer::Ethernet,
            mac: [0x02, 0, 0, 0, 0, 0x01],
            lid: 1,
            pkeys: vec![DEFAULT_PKEY],
            mtu: 4096,
            log_max_message: 30,
            log_max_sq_depth: MAX_LOG_SQ_DEPTH,
            log_max_cq_depth: 22,
            no_dbr: false,
            faults: FaultPlan::default(),
            core_direct: true,
            grh_required: false,
            log_max_objects: 18,
            findings: FindingPolicy::Report,
            checks_wqes: false,
            ignores_unused_immediates: false,
            reads_records_early: false,
        }
    }
}

/// What a finding does beside being kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FindingPolicy {
    /// Nothing: the NIC goes on as hardware does.
    #[default]
    Report,
    /// The QP that it concerns, of a CQ all that use it, and of anything else all QPs, go to ERR before the next step, with the
    /// event of a work queue that failed: what software does then rests on nothing that went wrong.
    Fail,
}

/// log2 of the deepest send queue whose 16-bit indices are unambiguous.
pub(crate) const MAX_LOG_SQ_DEPTH: u8 = 15;
/// Indices that start here do not overflow in any run's time.
pub(crate) const MAX_FIRST_INDEX: u64 = 1 << 62;
/// Ports of the NIC.
pub(crate) const PORTS: u8 = 1;
/// Completion vectors, with one event queue each.
const VECTORS: u32 = 8;
/// Number of the first event queue.
const FIRST_EQ: u32 = 0x10;
/// `gid_table_size` code: 8 * 2^code entries.
const GID_TABLE_CODE: u16 = 1;
/// Entries of the GID table.
pub(crate) const GIDS: u32 = 8 << GID_TABLE_CODE;
/// `pkey_table_size` code: 128 * 2^code entries.
const PKEY_TABLE_CODE: u16 = 0;
/// Entries of the partition key table.
pub(crate) const PKEYS: u16 = 128 << PKEY_TABLE_CODE;
/// log2 of the reads that a QP may have outstanding, or answer at a time.
pub(crate) const LOG_MAX_READS: u8 = 4;
/// The default partition (IBA 10.9), with full membership.
const DEFAULT_PKEY: u16 = 0xffff;
/// Most counter sets: their numbers have 8 bits, and 0 is none.
const MAX_COUNTER_SETS: u16 = 255;
/// UDP source ports that RoCE v2 takes: the dynamic ones, from which every source port of the specification's is.
pub(crate) const SOURCE_PORTS: std::ops::RangeInclusive<u16> = 0xc000..=0xffff;
/// Most bytes of a send WQE: 16 WQEBBs.
pub(crate) const MAX_WQE_BYTES: u16 = 1024;
/// Most bytes of a receive WQE: `log_rq_stride` has 3 bits.
pub(crate) const MAX_RECEIVE_WQE_BYTES: u16 = 16 << 7;

/// Link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand: addressed by LID.
    InfiniBand,
    /// RoCE: addressed by GID and MAC.
    Ethernet,
}

/// A port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// True if the port is active.
    pub active: bool,
    /// Link layer.
    pub link_layer: LinkLayer,
    /// Active MTU in bytes.
    pub mtu: u32,
    /// log2 of the largest message in bytes.
    pub log_max_message: u8,
    /// LID; zero on Ethernet.
    pub lid: u16,
    /// GID table entries.
    pub gids: u32,
    /// Every packet must carry a GRH.
    pub grh_required: bool,
}

/// Kinds of GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCE v1.
    RoceV1,
    /// RoCE v2.
    RoceV2,
}

/// One entry of the GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The GID, in network byte order.
    pub gid: [u8; 16],
    /// Its kind.
    pub kind: GidKind,
    /// The port's MAC address; zeroes on InfiniBand.
    pub mac: [u8; 6],
}

impl NicConfig {
    /// The port `number`, counted from 1.
    pub(crate) fn port(&self, number: u8) -> Result<PortInfo, NicError> {
        if number != PORTS {
            return Err(NicError::NoPort(number));
        }
        let infiniband = self.link_layer == LinkLayer::InfiniBand;
        Ok(PortInfo {
            active: true,
            link_layer: self.link_layer,
            mtu: self.mtu,
            log_max_message: self.log_max_message,
            lid: if infiniband { self.lid } else { 0 },
            gids: GIDS,
            grh_required: infiniband && self.grh_required,
        })
    }

    /// The MAC address of a neighbour, where its GID tells: one that is made as this NIC's are. Stands for ARP and neighbour
    /// discovery.
    pub(crate) fn neighbour(&self, gid: [u8; 16]) -> Option<[u8; 6]> {
        let [a, b, c, ..] = self.mac;
        match address::ipv4_of(gid) {
            Some([10, d, e, f]) => Some([a, b, c, d, e, f]),
            Some(_) => None,
            None => address::mac_of(gid),
        }
    }

    /// An entry of the partition key table.
    pub(crate) fn pkey(&self, index: u16) -> u16 {
        self.pkeys.get(usize::from(index)).copied().unwrap_or(0)
    }

    /// Event queue number of a completion vector.
    pub(crate) fn event_queue(vector: u32) -> Result<u32, NicError> {
        if vector < VECTORS {
            Ok(FIRST_EQ + vector)
        } else {
            Err(NicError::NoVector(vector))
        }
    }

    /// True if `eqn` is an event queue.
    pub(crate) fn is_event_queue(eqn: u32) -> bool {
        (FIRST_EQ..FIRST_EQ + VECTORS).contains(&eqn)
    }

    pub(crate) fn log_max_sq_depth(&self) -> u8 {
        self.log_max_sq_depth.min(MAX_LOG_SQ_DEPTH)
    }

    pub(crate) fn log_max_cq_depth(&self) -> u8 {
        // 24-bit indices tell a full CQ from an empty one up to 2^23 entries.
        self.log_max_cq_depth.min(23)
    }

    pub(crate) fn log_max_objects(&self) -> u8 {
        self.log_max_objects.min(23)
    }

    pub(crate) fn general_caps(&self) -> GeneralCaps {
        GeneralCaps {
            hca_cap_2: true,
            lag_tx_port_affinity: self.lag_ports != 0,
            num_lag_ports: self.lag_ports,
            log_max_qp_sz: self.log_max_sq_depth(),
            log_max_qp: self.log_max_objects(),
            log_max_srq_sz: self.log_max_sq_depth(),
            log_max_srq: self.log_max_objects(),
            log_max_rmp: self.log_max_objects(),
            log_max_cq_sz: self.log_max_cq_depth(),
            log_max_cq: self.log_max_objects(),
            relaxed_ordering_write: true,
            log_max_mkey: self.log_max_objects(),
            dump_fill_mkey: true,
            null_mkey: true,
            log_max_ra_req_qp: LOG_MAX_READS,
            log_max_ra_res_qp: LOG_MAX_READS,
            gid_table_size: GID_TABLE_CODE,
            pkey_table_size: PKEY_TABLE_CODE,
            local_ca_ack_delay: 16,
            port_type: match self.link_layer {
                LinkLayer::InfiniBand => PortType::InfiniBand,
                LinkLayer::Ethernet => PortType::Ethernet,
            },
            num_ports: PORTS,
            log_max_msg: self.log_max_message,
            cqe_version: 1,
            compact_address_vector: true,
            roce: self.link_layer == LinkLayer::Ethernet,
            atomic: true,
            cq_oi: true,
            rc: true,
            uar_4k: true,
            // 256 MiB of UAR space: the BAR.
            uar_sz: 8,
            log_pg_sz: 12,
            bf: true,
            log_bf_reg_size: 9,
            qp_error_syndrome: true,
            qpc_extension: true,
            max_qp_cnt: MAX_COUNTER_SETS.min(1 << self.log_max_objects().min(8)),
            out_of_seq_cnt: true,
            retransmission_q_counters: true,
            enhanced_error_q_counters: true,
            rts2rts_qp_counters_set_id: true,
            log_max_transport_domain: self.log_max_objects(),
            basic_cyclic_rcv_wqe: true,
            max_wqe_sz_rq: MAX_RECEIVE_WQE_BYTES,
            log_max_mrw_sz: 63,
            cd: self.core_direct,
            max_wqe_sz_sq: MAX_WQE_BYTES,
            log_max_pd: self.log_max_objects(),
            sq_ts_format: TimestampCap::FreeRunning,
            rq_ts_format: TimestampCap::FreeRunning,
            log_max_uctx: 16,
            log_max_umem: self.log_max_objects(),
            device_frequency_khz: 1_000_000,
            ..GeneralCaps::default()
        }
    }

    pub(crate) fn general_caps_2(&self) -> GeneralCaps2 {
        GeneralCaps2 {
            send_dbr_mode_no_dbr_ext: self.no_dbr,
        }
    }

    pub(crate) fn roce_caps(&self) -> RoceCaps {
        RoceCaps {
            sw_r_roce_src_udp_port: true,
            fl_rc_qp_when_roce_enabled: true,
            qp_ts_format: TimestampCap::FreeRunning,
            roce_version: 0b101,
            l3_type: 0b110,
            r_roce_dest_udp_port: 4791,
            r_roce_max_src_udp_port: *SOURCE_PORTS.end(),
            r_roce_min_src_udp_port: *SOURCE_PORTS.start(),
            roce_address_table_size: GIDS as u16,
            ..RoceCaps::default()
        }
    }

    pub(crate) fn atomic_caps(&self) -> AtomicCaps {
        AtomicCaps {
            // Values in memory are in the host's byte order (Linux mlx5 `get_atomic_caps`).
            atomic_req_8b_endianness_mode: 1,
            atomic_operations: 0b1111,
            atomic_size_qp: 4 | 8,
            ..AtomicCaps::default()
        }
    }
}
