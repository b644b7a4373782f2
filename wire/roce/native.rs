//! Packets without IP and UDP: InfiniBand's own, and RoCE v1 frames, which carry a global route header in Ethernet (IBA annex A16).
//!
//! An InfiniBand packet is local route header (LRH), global route header (GRH) where there is one, BTH and what follows, invariant
//! CRC, variant CRC. A RoCE v1 frame is Ethernet of type 0x8915, GRH, BTH and what follows, invariant CRC. A GRH is laid
//! out as an IPv6 header (IBA 8.3).

use core::fmt;

use crate::roce::frame::Error;
use crate::roce::icrc::{self, VCRC_LEN, icrc_global, icrc_local, vcrc};
use crate::roce::lrh::{NEXT_BTH, NEXT_GRH};
use crate::roce::transport::{Extended, Transport, put, take};
use crate::roce::{Bth, EtherType, Ethernet, Ipv6, Lrh};

/// `next_header` of a GRH: InfiniBand's transport (IBA 8.3).
pub const IBA_TRANSPORT: u8 = 0x1b;

/// How a packet travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// As a RoCE v1 frame. Ethernet type and GRH lengths are written by [`Native::emit`].
    RoceV1 {
        /// Ethernet.
        ethernet: Ethernet,
        /// GRH.
        grh: Ipv6,
    },
    /// On InfiniBand. Lengths and what follows are written by [`Native::emit`].
    InfiniBand {
        /// LRH.
        lrh: Lrh,
        /// GRH, if there is one.
        grh: Option<Ipv6>,
    },
}

/// A packet whose headers agree with each other and whose CRCs are right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Native<'a> {
    /// How it travels.
    pub route: Route,
    /// BTH. Its pad count is written by [`Native::emit`].
    pub bth: Bth,
    /// What the opcode demands.
    pub extended: Extended,
    /// Payload, without padding.
    pub payload: &'a [u8],
}

impl<'a> Native<'a> {
    /// Reads a RoCE v1 frame. Bytes behind the packet, as Ethernet pads short ones, are not looked at.
    pub fn parse_roce_v1(bytes: &'a [u8]) -> Result<Self, Error> {
        let mut rest = bytes;
        let ethernet = take!(Ethernet, rest);
        if ethernet.ether_type != EtherType::RoceV1 {
            return Err(Error::EtherType(ethernet.ether_type));
        }
        let packet = rest;
        let grh = Ipv6::parse(packet)?;
        let len = Ipv6::LEN + check_grh(&grh)?;
        let found = packet.len();
        let packet = packet.get(..len).ok_or(Error::RouteLength {
            declared: len,
            found,
        })?;
        let transport = Transport::parse(packet, Ipv6::LEN, icrc_global)?;
        Ok(Self::of(Route::RoceV1 { ethernet, grh }, transport))
    }

    /// Reads an InfiniBand packet, from LRH to variant CRC.
    pub fn parse_infiniband(bytes: &'a [u8]) -> Result<Self, Error> {
        let lrh = Lrh::parse(bytes)?;
        if lrh.version != 0 {
            return Err(Error::TransportVersion(lrh.version));
        }
        let len = lrh.words as usize * 4;
        if bytes.len() != len + VCRC_LEN {
            return Err(Error::RouteLength {
                declared: len + VCRC_LEN,
                found: bytes.len(),
            });
        }
        let (packet, crc) = bytes.split_at_checked(len).unwrap_or_default();
        let (needed, found) = (
            vcrc(packet),
            crc.first_chunk().map_or(0, |crc| u16::from_le_bytes(*crc)),
        );
        if needed != found {
            return Err(Error::Vcrc { needed, found });
        }
        if lrh.next == NEXT_BTH {
            let transport = Transport::parse(packet, Lrh::LEN, icrc_local)?;
            return Ok(Self::of(Route::InfiniBand { lrh, grh: None }, transport));
        }
        if lrh.next != NEXT_GRH {
            return Err(Error::NextHeader(lrh.next));
        }
        let packet = packet.get(Lrh::LEN..).unwrap_or_default();
        let mut rest = packet;
        let grh = take!(Ipv6, rest);
        let declared = check_grh(&grh)?;
        if declared != rest.len() {
            let found = rest.len();
            return Err(Error::RouteLength { declared, found });
        }
        let transport = Transport::parse(packet, Ipv6::LEN, icrc_global)?;
        let grh = Some(grh);
        Ok(Self::of(Route::InfiniBand { lrh, grh }, transport))
    }

    fn of(route: Route, transport: Transport<'a>) -> Self {
        let Transport {
            bth,
            extended,
            payload,
        } = transport;
        Self {
            route,
            bth,
            extended,
            payload,
        }
    }

    fn transport(&self) -> Transport<'a> {
        Transport {
            bth: self.bth,
            extended: self.extended,
            payload: self.payload,
        }
    }

    /// Bytes of the packet.
    pub fn len(&self) -> usize {
        let route = match self.route {
            Route::RoceV1 { .. } => Ethernet::LEN + Ipv6::LEN,
            Route::InfiniBand { grh, .. } => Lrh::LEN + grh.map_or(0, |_| Ipv6::LEN) + VCRC_LEN,
        };
        route + self.transport().len()
    }

    /// False: a packet has headers.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Writes the packet to the start of `out` and returns how many bytes that were. Types, lengths, pad count, padding and CRCs
    /// are made here, whatever the headers hold.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let transport = self.transport();
        transport.check()?;
        let (len, found) = (self.len(), out.len());
        let all = out.get_mut(..len).ok_or(Error::Short {
            header: "the packet",
            needed: len,
            found,
        })?;
        let behind = transport.len();
        let payload_length = u16::try_from(behind).map_err(|_| Error::TooLong(behind))?;
        let whole = |grh: Ipv6| {
            let grh = Ipv6 {
                payload_length,
                ..grh
            };
            check_grh(&grh)?;
            grh.check()?;
            Ok::<Ipv6, Error>(grh)
        };
        let mut rest = &mut *all;
        // Where the invariant CRC's part begins, and where it ends.
        let (from, to) = match self.route {
            Route::RoceV1 { ethernet, grh } => {
                let ethernet = Ethernet {
                    ether_type: EtherType::RoceV1,
                    ..ethernet
                };
                put(&mut rest, &ethernet.emit());
                put(&mut rest, &whole(grh)?.emit());
                (Ethernet::LEN, len - icrc::LEN)
            }
            Route::InfiniBand { lrh, grh } => {
                let words = (len - VCRC_LEN) / 4;
                let lrh = Lrh {
                    next: if grh.is_some() { NEXT_GRH } else { NEXT_BTH },
                    words: u16::try_from(words).map_err(|_| Error::TooLong(len))?,
                    ..lrh
                };
                lrh.check()?;
                put(&mut rest, &lrh.emit());
                if let Some(grh) = grh {
                    put(&mut rest, &whole(grh)?.emit());
                }
                let global = grh.map_or(0, |_| Lrh::LEN);
                (global, len - VCRC_LEN - icrc::LEN)
            }
        };
        transport.put(&mut rest);
        let covered = all.get(from..to).unwrap_or_default();
        let crc = match self.route {
            Route::InfiniBand { grh: None, .. } => icrc_local(covered),
            _ => icrc_global(covered),
        };
        let crc = crc.ok_or(Error::NextHeader(0))?;
        let mut place = all.get_mut(to..).unwrap_or_default();
        put(&mut place, &crc.to_le_bytes());
        if let Route::InfiniBand { .. } = self.route {
            let end = to + icrc::LEN;
            let crc = vcrc(all.get(..end).unwrap_or_default());
            let mut place = all.get_mut(end..).unwrap_or_default();
            put(&mut place, &crc.to_le_bytes());
        }
        Ok(len)
    }
}

/// Bytes that a GRH declares to follow it; an error unless it leads to InfiniBand's transport.
fn check_grh(grh: &Ipv6) -> Result<usize, Error> {
    match (grh.version, grh.next_header) {
        (6, IBA_TRANSPORT) => Ok(grh.payload_length as usize),
        (6, next) => Err(Error::NextHeader(next)),
        (version, _) => Err(Error::IpVersion(version)),
    }
}

impl fmt::Display for Native<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.route {
            Route::RoceV1 { ethernet, grh } => write!(f, "{ethernet}\n{grh}")?,
            Route::InfiniBand { lrh, grh } => {
                write!(f, "{lrh}")?;
                if let Some(grh) = grh {
                    write!(f, "\n{grh}")?;
                }
            }
        }
        write!(f, "\n{}", self.transport())
    }
}
