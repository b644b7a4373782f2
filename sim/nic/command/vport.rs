//! What a port says of itself: QUERY_VPORT_STATE, QUERY_HCA_VPORT_*, QUERY_NIC_VPORT_CONTEXT, and its RoCE address table.

use warpverbs_wire::prm::roce_address::{L3Type, RoceAddress, RoceVersion};
use warpverbs_wire::prm::vport::{
    HcaVport, MacAddress, NicVport, PortAdminState, PortState, VportState,
};
use warpverbs_wire::prm::{
    query_hca_vport_context, query_hca_vport_gid, query_hca_vport_pkey, query_nic_vport_context,
    query_roce_address, query_vport_state, set_roce_address,
};
use warpverbs_wire::roce::address;

use super::require;
use crate::config::{GidEntry, GidKind, LinkLayer, PKEYS, PORTS};
use crate::model::NicModel;
use crate::syndrome::Check;

/// PortInfo:PortPhysicalState: link up, and disabled (IBA 14.2).
const LINK_UP: u8 = 5;
const LINK_DOWN: u8 = 3;

fn own(other_vport: bool, vport_number: u16) -> Result<(), Check> {
    require(!other_vport && vport_number == 0, Check::VportOther)
}

/// Ports count from 1; 0 is this function's only one (mlx5 `mlx5_query_hca_vport_context` passes the port where there are
/// two).
fn port(number: u8) -> Result<(), Check> {
    require(number <= PORTS, Check::VportPort)
}

fn layer(model: &NicModel, layer: LinkLayer) -> Result<(), Check> {
    require(model.config().link_layer == layer, Check::VportLinkLayer)
}

/// GUID of port and node: the low half of the link-local GID.
fn guid(model: &NicModel) -> u64 {
    let [_, _, _, _, _, _, _, _, guid @ ..] = address::link_local_gid(model.config().mac);
    u64::from_be_bytes(guid)
}

pub(super) fn state(
    model: &mut NicModel,
    _: u16,
    request: query_vport_state::In,
) -> Result<query_vport_state::Out, Check> {
    own(request.other_vport, request.vport_number)?;
    Ok(query_vport_state::Out {
        admin_state: PortAdminState::Auto,
        state: if model.is_link_up() {
            VportState::Up
        } else {
            VportState::Down
        },
        ..Default::default()
    })
}

pub(super) fn hca_context(
    model: &mut NicModel,
    _: u16,
    request: query_hca_vport_context::In,
) -> Result<query_hca_vport_context::Out, Check> {
    own(request.other_vport, request.vport_number)?;
    port(request.port_num)?;
    layer(model, LinkLayer::InfiniBand)?;
    let up = model.is_link_up();
    let state = if up {
        PortState::Active
    } else {
        PortState::Down
    };
    let guid = guid(model);
    Ok(query_hca_vport_context::Out {
        context: HcaVport {
            grh_required: model.config().grh_required,
            port_physical_state: if up { LINK_UP } else { LINK_DOWN },
            port_state: state,
            vport_state: state,
            system_image_guid: guid,
            port_guid: guid,
            node_guid: guid,
            lid: model.config().lid,
            sm_lid: 1,
            ..HcaVport::default()
        },
        ..Default::default()
    })
}

pub(super) fn hca_gid(
    model: &mut NicModel,
    _: u16,
    request: query_hca_vport_gid::In,
) -> Result<query_hca_vport_gid::Out, Check> {
    own(request.other_vport, request.vport_number)?;
    port(request.port_num)?;
    layer(model, LinkLayer::InfiniBand)?;
    let entry = model.gids.get(request.gid_index.into());
    Ok(query_hca_vport_gid::Out {
        gids_num: 1,
        gid: entry
            .ok_or(Check::VportGid)?
            .map_or([0; 16], |entry| entry.gid),
        ..Default::default()
    })
}

pub(super) fn hca_pkey(
    model: &mut NicModel,
    _: u16,
    request: query_hca_vport_pkey::In,
) -> Result<query_hca_vport_pkey::Out, Check> {
    own(request.other_vport, request.vport_number)?;
    port(request.port_num)?;
    layer(model, LinkLayer::InfiniBand)?;
    require(request.pkey_index < PKEYS, Check::VportPkey)?;
    Ok(query_hca_vport_pkey::Out {
        pkey: model.config().pkey(request.pkey_index),
        ..Default::default()
    })
}

pub(super) fn nic_context(
    model: &mut NicModel,
    _: u16,
    request: query_nic_vport_context::In,
) -> Result<query_nic_vport_context::Out, Check> {
    own(request.other_vport, request.vport_number)?;
    layer(model, LinkLayer::Ethernet)?;
    // Lists of addresses and VLANs are for Ethernet traffic, which this NIC has none of.
    require(request.allowed_list_type == 0, Check::VportList)?;
    let guid = guid(model);
    Ok(query_nic_vport_context::Out {
        context: NicVport {
            roce_en: true,
            mtu: ETHERNET_MTU,
            system_image_guid: guid,
            port_guid: guid,
            node_guid: guid,
            permanent_address: MacAddress {
                address: model.config().mac,
            },
            ..NicVport::default()
        },
        ..Default::default()
    })
}

/// What a RoCE MTU of 4096 needs: the usual jumbo frame.
const ETHERNET_MTU: u16 = 9000;

pub(super) fn query_roce(
    model: &mut NicModel,
    _: u16,
    request: query_roce_address::In,
) -> Result<query_roce_address::Out, Check> {
    require(request.vhca_port_num <= PORTS, Check::RocePort)?;
    layer(model, LinkLayer::Ethernet)?;
    let entry = model.gids.get(request.roce_address_index.into());
    let address = entry.ok_or(Check::RoceIndex)?.map(|entry| RoceAddress {
        gid: entry.gid,
        mac: entry.mac,
        l3_type: l3_type(entry.gid),
        version: match entry.kind {
            GidKind::RoceV2 => RoceVersion::V2,
            _ => RoceVersion::V1,
        },
        ..RoceAddress::default()
    });
    Ok(query_roce_address::Out {
        address: address.unwrap_or_default(),
        ..Default::default()
    })
}

fn l3_type(gid: [u8; 16]) -> L3Type {
    match address::ipv4_of(gid) {
        Some(_) => L3Type::Ipv4,
        None => L3Type::Ipv6,
    }
}

/// Of the kernel alone: users may only read (Linux `devx.c`, `devx_is_general_cmd`).
pub(super) fn set_roce(
    model: &mut NicModel,
    uid: u16,
    request: set_roce_address::In,
) -> Result<set_roce_address::Out, Check> {
    require(uid == 0, Check::RocePrivileged)?;
    require(request.vhca_port_num <= PORTS, Check::RocePort)?;
    layer(model, LinkLayer::Ethernet)?;
    let given = request.address;
    require(!given.vlan_valid && given.vlan_id == 0, Check::RoceVlan)?;
    let kind = match given.version {
        RoceVersion::V1 => GidKind::RoceV1,
        RoceVersion::V2 => GidKind::RoceV2,
        RoceVersion::Unknown(_) => return Err(Check::RoceVersion),
    };
    let cleared = given.gid == [0; 16];
    require(
        cleared || kind == GidKind::RoceV1 || given.l3_type == l3_type(given.gid),
        Check::RoceL3Type,
    )?;
    let entry = (!cleared).then_some(GidEntry {
        gid: given.gid,
        kind,
        mac: given.mac,
    });
    let index = request.roce_address_index.into();
    require(model.gids.set(index, entry), Check::RoceIndex)?;
    Ok(set_roce_address::Out::default())
}
