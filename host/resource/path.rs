//! How a QP reaches its peer: the local GID, and the address path.
//!
//! Knows: what each kind of port puts into an address path. Must not know: a QP's state.

use std::collections::HashMap;

use warpverbs_wire::prm::ads::Ads;

use super::{Context, QpConfig};
use crate::connect::ConnectInfo;
use crate::driver::{GidEntry, GidKind, LinkLayer, Nic, NicHandle, PortInfo};
use crate::error::{Error, Result};

/// The GID that a QP sends from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gid {
    pub(super) index: u8,
    pub(super) entry: GidEntry,
}

impl Gid {
    pub(super) fn find(nic: &dyn Nic, config: &QpConfig, port: &PortInfo) -> Result<Self> {
        let query = |index: u8| -> Result<Option<Self>> {
            let entry = nic
                .query_gid(config.port, index.into())
                .map_err(Error::driver("query the GID table"))?;
            Ok(entry.map(|entry| Self { index, entry }))
        };
        if config.gid_index.is_none() && port.link_layer == LinkLayer::Ethernet {
            let mut other = None;
            // `ads.src_addr_index` has 8 bits.
            for index in 0..port.gids.min(256) {
                match query(index as u8)? {
                    Some(gid) if gid.entry.kind != GidKind::RoceV2 => {}
                    Some(gid) if is_routable(&gid.entry.gid) => return Ok(gid),
                    Some(gid) => {
                        other.get_or_insert(gid);
                    }
                    None => {}
                }
            }
            if let Some(gid) = other {
                return Ok(gid);
            }
        }
        let index = config.gid_index.unwrap_or(0);
        query(index)?.ok_or_else(|| Error::InvalidArgument {
            what: format!("GID {index} of port {} is empty", config.port),
            cure: "choose a GID index that is in use",
        })
    }
}

/// True of an address that reaches beyond its link: not fe80::/10 (RFC 4291), nor 169.254/16 as an IPv4-mapped address (RFC 3927), nor none.
fn is_routable(gid: &[u8; 16]) -> bool {
    const IPV4_MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    let link_local = gid[0] == 0xfe && gid[1] & 0xc0 == 0x80;
    let link_local_4 = gid[..12] == IPV4_MAPPED && gid[12..14] == [169, 254];
    !link_local && !link_local_4 && *gid != [0; 16]
}

/// MAC addresses of peers, each resolved once in a call that connects several QPs.
#[derive(Default)]
pub(super) struct Neighbours(HashMap<(NicHandle, u8, u8, [u8; 16]), [u8; 6]>);

impl Neighbours {
    fn resolve(&mut self, path: &Local<'_>, remote: [u8; 16]) -> Result<[u8; 6]> {
        let (port, index) = (path.config.port, path.gid.index);
        // A PD's handle is its NIC's: another NIC's may be the same number, so one call connects QPs of one NIC.
        let key = (path.pd, port, index, remote);
        if let Some(known) = self.0.get(&key) {
            return Ok(*known);
        }
        let found = path
            .context
            .driver()
            .resolve_mac(path.pd, port, index.into(), remote)
            .map_err(Error::driver("resolve the remote MAC address"))?;
        self.0.insert(key, found);
        Ok(found)
    }
}

/// The local end of a path.
pub(super) struct Local<'a> {
    pub(super) context: &'a Context,
    pub(super) pd: NicHandle,
    pub(super) config: &'a QpConfig,
    pub(super) port: &'a PortInfo,
    pub(super) gid: Gid,
    pub(super) qpn: u32,
}

impl Local<'_> {
    /// What is known of it before the peer is.
    pub(super) fn own(&self) -> Ads {
        Ads {
            vhca_port_num: self.config.port,
            pkey_index: self.config.pkey_index,
            ..Ads::default()
        }
    }

    /// The path to a remote end. On InfiniBand it is within the subnet, with a GRH if the port demands one.
    pub(super) fn to(&self, remote: &ConnectInfo, neighbours: &mut Neighbours) -> Result<Ads> {
        let config = self.config;
        let grh = Ads {
            rgid_rip: remote.gid,
            src_addr_index: self.gid.index,
            hop_limit: config.hop_limit,
            tclass: config.traffic_class,
            ..self.own()
        };
        Ok(match self.port.link_layer {
            LinkLayer::InfiniBand => Ads {
                rlid: remote.lid,
                sl: config.service_level,
                grh: self.port.grh_required,
                ..if self.port.grh_required {
                    grh
                } else {
                    self.own()
                }
            },
            LinkLayer::Ethernet => Ads {
                rmac: neighbours.resolve(self, remote.gid)?,
                eth_prio: config.service_level & 7,
                // RoCE v2 has an IP header and a UDP port; RoCE v1 has a GRH only.
                dscp: if self.is_roce_v2() {
                    config.traffic_class >> 2
                } else {
                    0
                },
                udp_sport: if self.is_roce_v2() {
                    self.udp_source_port()
                } else {
                    0
                },
                ..grh
            },
        })
    }

    fn is_roce_v2(&self) -> bool {
        self.gid.entry.kind == GidKind::RoceV2
    }

    /// Switches choose a path by it: each QP has its own, as far as there are ports.
    fn udp_source_port(&self) -> u16 {
        match self.context.capabilities().udp_source_ports {
            None => 0,
            Some((first, last)) => self.config.udp_source_port.unwrap_or_else(|| {
                let ports = u32::from(last.saturating_sub(first)) + 1;
                // Within the range, which has at most 2^16 ports.
                (u32::from(first) + self.qpn % ports) as u16
            }),
        }
    }
}
