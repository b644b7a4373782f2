//! What the NIC says of itself through verbs: device, port, GIDs.
//!
//! Knows: how capabilities of the firmware are told (Linux mlx5_ib `mlx5_ib_query_device`, `mlx5_query_port_roce`).
//! Must not know: objects.

use warpverbs_sim_nic::{GidKind, LinkLayer, NicModel, PortInfo};
use warpverbs_wire::prm::Command;
use warpverbs_wire::prm::hca_cap::GeneralCaps;
use warpverbs_wire::prm::query_hca_cap::Query;

use crate::abi::verbs::{GidEntry, QueryDeviceResp, QueryPortResp};
use crate::errno::{Errno, Result};

/// Version of the firmware, which there is none of.
const FIRMWARE: u64 = (28 << 32) | (44 << 16) | 9999;
/// As text.
pub(crate) const FIRMWARE_TEXT: &str = "28.44.9999";
/// Mellanox.
const VENDOR: u32 = 0x02c9;
/// ConnectX-7.
const PART: u32 = 4129;
/// Most data segments of a work request: those of a 1024-byte WQE, less its longest headers.
const MOST_SEGMENTS: u32 = 30;
/// `IB_DEVICE_*`: bad pkey and qkey counters, port active event, system image GUID, RC RNR NAK.
const DEVICE_FLAGS: u32 = (1 << 1) | (1 << 5) | (1 << 10) | (1 << 11) | (1 << 12);
/// `IB_ATOMIC_HCA`
const ATOMIC_HCA: u32 = 1;
/// Completion vectors.
pub(crate) const VECTORS: u32 = 8;
/// `IB_PORT_IP_BASED_GIDS` and `IB_PORT_CM_SUP`
const PORT_FLAGS: u32 = (1 << 26) | (1 << 16);

/// The firmware's general capabilities.
pub(crate) fn capabilities(nic: &mut NicModel) -> Result<GeneralCaps> {
    let query = Query::<GeneralCaps>::new();
    let input = query.encode().map_err(|_| Errno::INVAL)?;
    let mut output = Query::<GeneralCaps>::reply();
    nic.command(input.as_ref(), output.as_mut())
        .map_err(|_| Errno(libc::EIO))?;
    Query::<GeneralCaps>::decode(output.as_ref()).map_err(|_| Errno(libc::EIO))
}

fn guid(nic: &NicModel) -> u64 {
    let [a, b, c, d, e, f] = nic.config().mac;
    u64::from_ne_bytes([a, b, c, 0xff, 0xfe, d, e, f])
}

/// QUERY_DEVICE.
pub(crate) fn query_device(nic: &mut NicModel) -> Result<QueryDeviceResp> {
    let caps = capabilities(nic)?;
    let guid = guid(nic);
    let count = |log: u8| 1u32.checked_shl(log.into()).unwrap_or(u32::MAX);
    Ok(QueryDeviceResp {
        fw_ver: FIRMWARE,
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: u64::MAX,
        page_size_cap: !0xfff,
        vendor_id: VENDOR,
        vendor_part_id: PART,
        hw_ver: 0,
        max_qp: count(caps.log_max_qp),
        max_qp_wr: count(caps.log_max_qp_sz),
        device_cap_flags: DEVICE_FLAGS,
        max_sge: MOST_SEGMENTS,
        max_sge_rd: MOST_SEGMENTS,
        max_cq: count(caps.log_max_cq),
        max_cqe: count(caps.log_max_cq_sz) - 1,
        max_mr: count(caps.log_max_mkey),
        max_pd: count(caps.log_max_pd),
        max_qp_rd_atom: count(caps.log_max_ra_req_qp),
        max_res_rd_atom: count(caps.log_max_qp).saturating_mul(count(caps.log_max_ra_res_qp)),
        max_qp_init_rd_atom: count(caps.log_max_ra_res_qp),
        atomic_cap: if caps.atomic { ATOMIC_HCA } else { 0 },
        max_ah: i32::MAX as u32,
        max_srq: count(caps.log_max_srq),
        max_srq_wr: count(caps.log_max_srq_sz) - 1,
        max_srq_sge: MOST_SEGMENTS,
        max_pkeys: 128,
        local_ca_ack_delay: caps.local_ca_ack_delay,
        phys_port_cnt: caps.num_ports,
    })
}

/// Code of an MTU (`ib_mtu`).
fn mtu_code(bytes: u32) -> u8 {
    bytes.checked_ilog2().map_or(0, |log| log.saturating_sub(7)) as u8
}

/// QUERY_PORT.
pub(crate) fn query_port(port: &PortInfo) -> QueryPortResp {
    let infiniband = port.link_layer == LinkLayer::InfiniBand;
    QueryPortResp {
        port_cap_flags: PORT_FLAGS,
        max_msg_sz: 1u32
            .checked_shl(port.log_max_message.into())
            .unwrap_or(u32::MAX),
        gid_tbl_len: port.gids,
        pkey_tbl_len: 1,
        lid: port.lid,
        sm_lid: 0,
        // IB_PORT_ACTIVE, IB_PORT_DOWN
        state: if port.active { 4 } else { 1 },
        max_mtu: 5,
        active_mtu: mtu_code(port.mtu),
        max_vl_num: 1,
        // Four lanes at EDR's 25 Gb/s.
        active_width: 2,
        active_speed: 32,
        // IB_PORT_PHYS_STATE_LINK_UP, _DISABLED
        phys_state: if port.active { 5 } else { 3 },
        // IBV_LINK_LAYER_INFINIBAND, _ETHERNET
        link_layer: if infiniband { 1 } else { 2 },
        // IB_UVERBS_QPF_GRH_REQUIRED
        flags: u8::from(!infiniband || port.grh_required),
    }
}

/// An entry of the GID table; `None` if it is empty.
pub(crate) fn query_gid(nic: &NicModel, port: u8, index: u32) -> Result<Option<GidEntry>> {
    Ok(nic.query_gid(port, index)?.map(|entry| GidEntry {
        gid: entry.gid,
        gid_index: index,
        port_num: port.into(),
        gid_type: match entry.kind {
            GidKind::InfiniBand => 0,
            GidKind::RoceV1 => 1,
            GidKind::RoceV2 => 2,
        },
        netdev_ifindex: 0,
    }))
}
