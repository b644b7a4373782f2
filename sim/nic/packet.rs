//! Packets between QPs, and the paths that they take.
//!
//! Knows: what of a packet the transport looks at, and how a path turns it into a frame and back.
//! Must not know: what a QP does with a packet.

use warpverbs_sim_bus::DmaAccess;
use warpverbs_wire::prm::ads::Ads;
use warpverbs_wire::prm::qpc::Qpc;
use warpverbs_wire::roce::{Bth, Ethernet, Extended, Frame, Ip, Opcode, Psn, address};

use crate::config::{DEFAULT_PKEY, GidKind, LinkLayer, NicConfig};
use crate::gids::Gids;

/// Where a packet came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// This NIC.
    Here,
    /// Another one, whose GID this is.
    Gid([u8; 16]),
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
    /// Headers of its frames; `None` if it has none: InfiniBand, or RoCE v1, which no wire here carries.
    headers: Option<Headers>,
}

#[derive(Clone, Copy, Debug)]
struct Headers {
    ethernet: Ethernet,
    ip: Ip,
    source_port: u16,
    remote: [u8; 16],
}

impl Path {
    /// The path of a context that INIT2RTR has checked.
    pub(crate) fn new(config: &NicConfig, gids: &Gids, qpn: u32, context: &Qpc) -> Self {
        let path = &context.primary_address_path;
        let source = gids
            .get(u32::from(path.src_addr_index))
            .flatten()
            .filter(|entry| entry.kind == GidKind::RoceV2);
        let headers = source.map(|entry| {
            let mut ip = Ip::between(entry.gid, path.rgid_rip, path.hop_limit.max(1));
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
            Headers {
                ethernet: Ethernet {
                    destination: path.rmac,
                    source: entry.mac,
                    ..Ethernet::default()
                },
                ip,
                source_port: match path.udp_sport {
                    0 => address::source_port(qpn, context.remote_qpn),
                    port => port,
                },
                remote: path.rgid_rip,
            }
        });
        Self {
            loops_back: leads_here(config, gids, path),
            headers,
        }
    }

    /// True if a packet of `source` can have come this way back.
    pub(crate) fn leads_to(&self, source: Source) -> bool {
        match source {
            Source::Here => self.loops_back,
            Source::Gid(gid) => self.headers.is_some_and(|headers| headers.remote == gid),
        }
    }

    /// The MAC address that its frames go to, as a number; `None` if it has no frames.
    pub(crate) fn remote_mac(&self) -> Option<u64> {
        self.headers
            .map(|headers| mac_number(headers.ethernet.destination))
    }

    /// The frame that carries a packet this way; `None` if no frame can.
    pub(crate) fn frame(&self, packet: &Packet) -> Option<Vec<u8>> {
        let headers = self.headers?;
        let frame = Frame {
            ethernet: headers.ethernet,
            vlan: None,
            ip: headers.ip,
            source_port: headers.source_port,
            bth: Bth {
                opcode: packet.opcode,
                solicited: packet.solicited,
                // The state of a QP that never had an alternate path (`pm_state` MIGRATED).
                migration_request: true,
                pkey: DEFAULT_PKEY,
                destination_qp: packet.destination_qp,
                ack_request: packet.ack_request,
                psn: packet.psn.get(),
                ..Bth::default()
            },
            extended: packet.extended,
            payload: &packet.payload,
        };
        let mut bytes = vec![0; frame.len()];
        frame.emit(&mut bytes).ok()?;
        Some(bytes)
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
pub(crate) fn parse(gids: &Gids, bytes: &[u8]) -> Option<Packet> {
    let frame = Frame::parse(bytes).ok()?;
    let (source, destination) = match frame.ip {
        Ip::V4(ip) => (
            address::gid_of_ipv4(ip.source),
            address::gid_of_ipv4(ip.destination),
        ),
        Ip::V6(ip) => (ip.source, ip.destination),
    };
    let is_ours = gids.takes(destination, frame.ethernet.destination)
        // The membership bit apart, partitions must agree (IBA 10.9).
        && frame.bth.pkey & 0x7fff == DEFAULT_PKEY & 0x7fff;
    is_ours.then(|| Packet {
        source: Source::Gid(source),
        opcode: frame.bth.opcode,
        destination_qp: frame.bth.destination_qp,
        psn: Psn::new(frame.bth.psn),
        ack_request: frame.bth.ack_request,
        solicited: frame.bth.solicited,
        extended: frame.extended,
        payload: frame.payload.to_vec(),
        bulk: None,
    })
}
