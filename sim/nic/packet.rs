//! Packets between QPs, and the paths that they take.
//!
//! Knows: what of a packet the transport looks at, and how a path turns it into a frame and back.
//! Must not know: what a QP does with a packet.

use warpverbs_sim_bus::DmaAccess;
use warpverbs_wire::prm::ads::Ads;
use warpverbs_wire::prm::qpc::Qpc;
use warpverbs_wire::roce::{
    Bth, EtherType, Ethernet, Extended, Frame, IBA_TRANSPORT, Ip, Ipv6, Lrh, Native, Opcode, Psn,
    Route, address,
};

use crate::config::{GidKind, LinkLayer, NicConfig};
use crate::gids::Gids;

/// Where a packet came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// This NIC.
    Here,
    /// Another one, by RoCE of a version, whose GID this is.
    Gid(GidKind, [u8; 16]),
    /// Another one, by InfiniBand: its LID, and its GID if the packet has a GRH.
    Lid(u16, Option<[u8; 16]>),
}

/// A MAC address as a number.
pub(crate) fn mac_number(mac: [u8; 6]) -> u64 {
    mac.iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// A packet of the reliable connection service.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) source: Source,
    pub(crate) opcode: Opcode,
    pub(crate) destination_qp: u32,
    /// The sender's partition.
    pub(crate) pkey: u16,
    pub(crate) psn: Psn,
    pub(crate) ack_request: bool,
    pub(crate) solicited: bool,
    pub(crate) extended: Extended,
    pub(crate) payload: Vec<u8>,
    /// What it is instead, if it is several.
    pub(crate) bulk: Option<Bulk>,
}

/// Packets that follow each other inside a WRITE and never leave the NIC: they are one, and what they carry is moved when
/// they arrive, from memory to memory. All are full, and none is the last of its message; the first names them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bulk {
    pub(crate) packets: u32,
    /// Bus address of what they carry.
    pub(crate) source: u64,
    pub(crate) access: DmaAccess,
    pub(crate) len: u64,
}

impl Packet {
    /// How many it stands for.
    pub(crate) fn packets(&self) -> u32 {
        self.bulk.map_or(1, |bulk| bulk.packets)
    }

    /// Bytes of payload.
    pub(crate) fn len(&self) -> u64 {
        self.bulk.map_or(self.payload.len() as u64, |bulk| bulk.len)
    }

    /// The same without the first `packets`, which are fewer than it stands for.
    pub(crate) fn without(&self, packets: u32, mtu: u32) -> Self {
        let bytes = u64::from(packets) * u64::from(mtu);
        Self {
            opcode: Opcode::WriteMiddle,
            psn: self.psn.plus(packets),
            extended: Extended::default(),
            payload: Vec::new(),
            bulk: self.bulk.map(|bulk| Bulk {
                packets: bulk.packets.saturating_sub(packets),
                source: bulk.source.wrapping_add(bytes),
                len: bulk.len.saturating_sub(bytes),
                ..bulk
            }),
            ..*self
        }
    }
}

/// Where a QP's packets go.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Path {
    /// True if the path ends at this NIC.
    pub(crate) loops_back: bool,
    /// The QP's partition.
    pub(crate) pkey: u16,
    /// Headers of its frames; `None` where it has no source address.
    headers: Option<Headers>,
}

#[derive(Clone, Copy, Debug)]
enum Headers {
    /// RoCE v2.
    V2 {
        ethernet: Ethernet,
        ip: Ip,
        source_port: u16,
    },
    /// RoCE v1, or InfiniBand.
    Native(Route),
}

impl Path {
    /// The path of a context that INIT2RTR has checked.
    pub(crate) fn new(config: &NicConfig, gids: &Gids, qpn: u32, context: &Qpc) -> Self {
        let path = &context.primary_address_path;
        Self {
            loops_back: leads_here(config, gids, path),
            pkey: config.pkey(path.pkey_index),
            headers: Headers::new(config, gids, qpn, context),
        }
    }

    /// True if a packet of `source` can have come this way back (IBA 9.6.1).
    pub(crate) fn leads_to(&self, source: Source) -> bool {
        match (source, self.headers) {
            (Source::Here, _) => self.loops_back,
            (_, None) => false,
            (Source::Gid(kind, gid), Some(Headers::V2 { ip, .. })) => {
                kind == GidKind::RoceV2 && ip.destination_gid() == gid
            }
            (Source::Gid(kind, gid), Some(Headers::Native(Route::RoceV1 { grh, .. }))) => {
                kind == GidKind::RoceV1 && grh.destination == gid
            }
            (Source::Lid(lid, gid), Some(Headers::Native(Route::InfiniBand { lrh, grh }))) => {
                // A path with a GRH takes packets with one, from its GID, and the other way round.
                lrh.destination == lid && grh.map(|grh| grh.destination) == gid
            }
            _ => false,
        }
    }

    /// True if packets of a partition are for this path's: their low 15 bits agree and are not zero, and one of the two is a full
    /// member (IBA 10.9.3).
    pub(crate) fn shares_partition(&self, pkey: u16) -> bool {
        let (own, other) = (self.pkey & 0x7fff, pkey & 0x7fff);
        own != 0 && own == other && (self.pkey | pkey) & 0x8000 != 0
    }

    /// The link's address that its frames go to, as a number: a MAC address, or on InfiniBand a LID. `None` if it has no frames.
    pub(crate) fn remote_address(&self) -> Option<u64> {
        Some(match self.headers? {
            Headers::V2 { ethernet, .. } | Headers::Native(Route::RoceV1 { ethernet, .. }) => {
                mac_number(ethernet.destination)
            }
            Headers::Native(Route::InfiniBand { lrh, .. }) => lrh.destination.into(),
        })
    }

    /// The frame that carries a packet this way; `None` if no frame can.
    pub(crate) fn frame(&self, packet: &Packet) -> Option<Vec<u8>> {
        let bth = Bth {
            opcode: packet.opcode,
            solicited: packet.solicited,
            // The state of a QP that never had an alternate path (`pm_state` MIGRATED).
            migration_request: true,
            pkey: self.pkey,
            destination_qp: packet.destination_qp,
            ack_request: packet.ack_request,
            psn: packet.psn.get(),
            ..Bth::default()
        };
        let (extended, payload) = (packet.extended, &packet.payload);
        match self.headers? {
            Headers::V2 {
                ethernet,
                ip,
                source_port,
            } => {
                let frame = Frame {
                    ethernet,
                    vlan: None,
                    ip,
                    source_port,
                    bth,
                    extended,
                    payload,
                };
                let mut bytes = vec![0; frame.len()];
                frame.emit(&mut bytes).ok()?;
                Some(bytes)
            }
            Headers::Native(route) => {
                let native = Native {
                    route,
                    bth,
                    extended,
                    payload,
                };
                let mut bytes = vec![0; native.len()];
                native.emit(&mut bytes).ok()?;
                Some(bytes)
            }
        }
    }
}

impl Headers {
    fn new(config: &NicConfig, gids: &Gids, qpn: u32, context: &Qpc) -> Option<Self> {
        let path = &context.primary_address_path;
        let source = gids.get(u32::from(path.src_addr_index)).flatten();
        let grh = |source: [u8; 16]| Ipv6 {
            version: 6,
            dscp: path.tclass >> 2,
            ecn: path.tclass & 3,
            flow_label: path.flow_label,
            next_header: IBA_TRANSPORT,
            hop_limit: path.hop_limit.max(1),
            source,
            destination: path.rgid_rip,
            ..Ipv6::default()
        };
        if config.link_layer == LinkLayer::InfiniBand {
            let lrh = Lrh {
                service_level: path.sl,
                destination: path.rlid,
                source: config.lid,
                ..Lrh::default()
            };
            let grh = match (path.grh, source) {
                (false, _) => None,
                (true, Some(source)) => Some(grh(source.gid)),
                (true, None) => return None,
            };
            return Some(Self::Native(Route::InfiniBand { lrh, grh }));
        }
        let source = source?;
        let ethernet = Ethernet {
            destination: path.rmac,
            source: source.mac,
            ..Ethernet::default()
        };
        if source.kind == GidKind::RoceV1 {
            let grh = grh(source.gid);
            return Some(Self::Native(Route::RoceV1 { ethernet, grh }));
        }
        let mut ip = Ip::between(source.gid, path.rgid_rip, path.hop_limit.max(1));
        // Either field of the context gives the code point (Linux mlx5 qp.c: `dscp` from the traffic class).
        let dscp = if path.f_dscp {
            path.dscp
        } else {
            path.tclass >> 2
        };
        match &mut ip {
            Ip::V4(ip) => ip.dscp = dscp,
            Ip::V6(ip) => (ip.dscp, ip.flow_label) = (dscp, path.flow_label),
        }
        Some(Self::V2 {
            ethernet,
            ip,
            source_port: match path.udp_sport {
                0 => address::source_port(qpn, context.remote_qpn),
                port => port,
            },
        })
    }
}

/// True if an address path ends at this NIC.
pub(crate) fn leads_here(config: &NicConfig, gids: &Gids, path: &Ads) -> bool {
    let own = gids.mac_of(path.rgid_rip);
    // Force loopback needs no address.
    match config.link_layer {
        _ if path.fl => true,
        LinkLayer::Ethernet => own == Some(path.rmac),
        LinkLayer::InfiniBand => path.rlid == config.lid || (path.grh && own.is_some()),
    }
}

/// The packet in a frame for this NIC; `None` if the frame is for another, or none that hardware would take.
pub(crate) fn parse(config: &NicConfig, gids: &Gids, bytes: &[u8]) -> Option<Packet> {
    if config.link_layer == LinkLayer::InfiniBand {
        let native = Native::parse_infiniband(bytes).ok()?;
        let Route::InfiniBand { lrh, grh } = native.route else {
            return None;
        };
        // One without GRH, where the port demands one, finds no QP: the paths of all have one.
        let is_ours = lrh.destination == config.lid
            && grh.is_none_or(|grh| gids.mac_of(grh.destination).is_some());
        let source = Source::Lid(lrh.source, grh.map(|grh| grh.source));
        return is_ours.then(|| packet(source, native.bth, native.extended, native.payload));
    }
    let ethernet = Ethernet::parse(bytes).ok()?;
    if ethernet.ether_type == EtherType::RoceV1 {
        let native = Native::parse_roce_v1(bytes).ok()?;
        let Route::RoceV1 { ethernet, grh } = native.route else {
            return None;
        };
        let source = Source::Gid(GidKind::RoceV1, grh.source);
        let is_ours = gids.takes(GidKind::RoceV1, grh.destination, ethernet.destination);
        return is_ours.then(|| packet(source, native.bth, native.extended, native.payload));
    }
    let frame = Frame::parse(bytes).ok()?;
    let destination = frame.ip.destination_gid();
    let source = Source::Gid(GidKind::RoceV2, frame.ip.source_gid());
    let is_ours = gids.takes(GidKind::RoceV2, destination, frame.ethernet.destination);
    is_ours.then(|| packet(source, frame.bth, frame.extended, frame.payload))
}

fn packet(source: Source, bth: Bth, extended: Extended, payload: &[u8]) -> Packet {
    Packet {
        source,
        opcode: bth.opcode,
        destination_qp: bth.destination_qp,
        pkey: bth.pkey,
        psn: Psn::new(bth.psn),
        ack_request: bth.ack_request,
        solicited: bth.solicited,
        extended,
        payload: payload.to_vec(),
        bulk: None,
    }
}
