//! A whole frame: from bytes to headers that agree with each other, and back.

use core::fmt;

use crate::layout;
use crate::roce::icrc::{self, icrc};
use crate::roce::transport::{Extended, Transport, put, take};
use crate::roce::udp;
use crate::roce::{
    Bth, EtherType, Ethernet, Ip, Ipv4, Ipv6, Opcode, ROCE_PORT, UDP_PROTOCOL, Udp, Vlan,
};

/// A frame whose headers agree with each other and whose CRC is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Ethernet. Its type is written by [`Frame::emit`].
    pub ethernet: Ethernet,
    /// VLAN tag. Its type is written by [`Frame::emit`].
    pub vlan: Option<Vlan>,
    /// IP. Lengths and checksum are written by [`Frame::emit`].
    pub ip: Ip,
    /// UDP source port.
    pub source_port: u16,
    /// BTH. Its pad count is written by [`Frame::emit`].
    pub bth: Bth,
    /// What the opcode demands.
    pub extended: Extended,
    /// Payload, without padding.
    pub payload: &'a [u8],
}

/// Why bytes are not a frame, or a frame cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// There are fewer bytes than a header, or than a header declares.
    Short {
        /// What is cut off.
        header: &'static str,
        /// Bytes needed from its start.
        needed: usize,
        /// Bytes that there are.
        found: usize,
    },
    /// Neither IPv4 nor IPv6, or of a RoCE v1 frame not 0x8915.
    EtherType(EtherType),
    /// What follows the local route header is no packet of InfiniBand's transport.
    NextHeader(u8),
    /// Local and global route header, or these and the packet, disagree on the length.
    RouteLength {
        /// Bytes that a route header declares.
        declared: usize,
        /// Bytes that there are.
        found: usize,
    },
    /// The variant CRC is wrong.
    Vcrc {
        /// The right one.
        needed: u16,
        /// The one found.
        found: u16,
    },
    /// The IP version is not what the Ethernet type says.
    IpVersion(u8),
    /// IPv4 options, or a header shorter than without them.
    HeaderWords(u8),
    /// A fragment.
    Fragment,
    /// The IPv4 header's checksum is wrong.
    Checksum {
        /// The right one.
        needed: u16,
        /// The one found.
        found: u16,
    },
    /// Not UDP.
    Protocol(u8),
    /// Not the port of RoCE v2.
    Port(u16),
    /// UDP and IP disagree on the length.
    Length {
        /// Bytes that IP leaves for UDP.
        ip: usize,
        /// Bytes that UDP declares.
        udp: usize,
    },
    /// The transport version is not zero.
    TransportVersion(u8),
    /// The invariant CRC is wrong.
    Icrc {
        /// The right one.
        needed: u32,
        /// The one found.
        found: u32,
    },
    /// An opcode with no name here: what follows it is not known. Addresses, BTH and CRC are in order.
    Opcode(Bth),
    /// More padding than there are bytes.
    Padding(u8),
    /// Payload behind an opcode that has none.
    Payload {
        /// The opcode.
        opcode: Opcode,
        /// Bytes of payload.
        len: usize,
    },
    /// The extended headers are not those of the opcode.
    Extended(Opcode),
    /// A value does not fit its field.
    Field(layout::Error),
    /// More bytes than the length fields hold.
    TooLong(usize),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Short {
                header,
                needed,
                found,
            } => write!(f, "{header} needs {needed} bytes, found {found}"),
            Self::EtherType(other) => write!(
                f,
                "Ethernet type {:#06x} is neither IPv4 nor IPv6, nor where it may be RoCE v1",
                other.code()
            ),
            Self::NextHeader(next) => {
                write!(f, "next header {next:#x} is not InfiniBand's transport")
            }
            Self::RouteLength { declared, found } => {
                write!(
                    f,
                    "a route header declares {declared} bytes where there are {found}"
                )
            }
            Self::Vcrc { needed, found } => {
                write!(f, "variant CRC {found:#06x}, not {needed:#06x}")
            }
            Self::IpVersion(version) => write!(f, "IP version {version}"),
            Self::HeaderWords(words) => write!(f, "an IPv4 header of {words} words, not 5"),
            Self::Fragment => write!(f, "a fragment"),
            Self::Checksum { needed, found } => {
                write!(f, "IPv4 checksum {found:#06x}, not {needed:#06x}")
            }
            Self::Protocol(protocol) => write!(f, "IP protocol {protocol}, not UDP"),
            Self::Port(port) => write!(f, "UDP port {port}, not {ROCE_PORT}"),
            Self::Length { ip, udp } => write!(f, "UDP declares {udp} bytes where IP leaves {ip}"),
            Self::TransportVersion(version) => write!(f, "transport version {version}, not 0"),
            Self::Icrc { needed, found } => {
                write!(f, "invariant CRC {found:#010x}, not {needed:#010x}")
            }
            Self::Opcode(bth) => write!(f, "opcode {:#04x} is not supported", bth.opcode.code()),
            Self::Padding(count) => write!(f, "{count} bytes of padding in fewer"),
            Self::Payload { opcode, len } => write!(f, "{opcode:?} with {len} bytes of payload"),
            Self::Extended(opcode) => write!(f, "the extended headers are not those of {opcode:?}"),
            Self::Field(error) => write!(f, "{error}"),
            Self::TooLong(len) => write!(f, "{len} bytes are too many for one packet"),
        }
    }
}

impl core::error::Error for Error {}

impl From<layout::Error> for Error {
    fn from(error: layout::Error) -> Self {
        match error {
            layout::Error::Short {
                structure,
                needed,
                found,
            } => Self::Short {
                header: structure,
                needed,
                found,
            },
            error => Self::Field(error),
        }
    }
}

impl<'a> Frame<'a> {
    /// Reads a frame and checks all that a receiver's hardware checks before the transport: lengths, checksum, port, CRC, and
    /// that extended headers and payload are those of the opcode. A UDP checksum is not looked at: the CRC covers more.
    /// Bytes behind the packet, as Ethernet pads short ones, are not looked at.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let mut rest = bytes;
        let ethernet = take!(Ethernet, rest);
        let mut ether_type = ethernet.ether_type;
        let mut vlan = None;
        if ether_type == EtherType::Vlan {
            let tag = take!(Vlan, rest);
            ether_type = tag.ether_type;
            vlan = Some(tag);
        }
        let packet = rest;
        let (ip, len) = match ether_type {
            EtherType::Ipv4 => {
                let ip = take!(Ipv4, rest);
                (Ip::V4(ip), (check_ipv4(&ip)?).saturating_sub(Ipv4::LEN))
            }
            EtherType::Ipv6 => {
                let ip = take!(Ipv6, rest);
                (Ip::V6(ip), check_ipv6(&ip)?)
            }
            other => return Err(Error::EtherType(other)),
        };
        let found = rest.len();
        rest = rest.get(..len).ok_or(Error::Short {
            header: "the IP payload",
            needed: len,
            found,
        })?;
        let packet = packet.get(..ip.len() + len).unwrap_or_default();
        let udp = Udp::parse(rest)?;
        if udp.destination != ROCE_PORT {
            return Err(Error::Port(udp.destination));
        }
        if udp.length as usize != len {
            return Err(Error::Length {
                ip: len,
                udp: udp.length as usize,
            });
        }
        let Transport {
            bth,
            extended,
            payload,
        } = Transport::parse(packet, ip.len() + Udp::LEN, icrc)?;
        Ok(Self {
            ethernet,
            vlan,
            ip,
            source_port: udp.source,
            bth,
            extended,
            payload,
        })
    }

    /// Bytes of the frame.
    pub fn len(&self) -> usize {
        let link = Ethernet::LEN + self.vlan.map_or(0, |_| Vlan::LEN);
        link + self.ip.len() + self.udp_len()
    }

    /// False: a frame has headers.
    pub const fn is_empty(&self) -> bool {
        false
    }

    fn transport(&self) -> Transport<'a> {
        Transport {
            bth: self.bth,
            extended: self.extended,
            payload: self.payload,
        }
    }

    fn udp_len(&self) -> usize {
        Udp::LEN + self.transport().len()
    }

    /// Writes the frame to the start of `out` and returns how many bytes that were. Types, lengths, checksum, pad count,
    /// padding and CRC are made here, whatever the headers hold.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let transport = self.transport();
        transport.check()?;
        let (len, found) = (self.len(), out.len());
        let frame = out.get_mut(..len).ok_or(Error::Short {
            header: "the frame",
            needed: len,
            found,
        })?;
        let mut rest = &mut *frame;
        macro_rules! put {
            ($header:expr) => {{
                let header = $header;
                header.check()?;
                put(&mut rest, &header.emit());
            }};
        }
        let length = |bytes: usize| u16::try_from(bytes).map_err(|_| Error::TooLong(bytes));
        let udp_length = length(self.udp_len())?;
        let ip_type = match self.ip {
            Ip::V4(_) => EtherType::Ipv4,
            Ip::V6(_) => EtherType::Ipv6,
        };
        let ether_type = if self.vlan.is_some() {
            EtherType::Vlan
        } else {
            ip_type
        };
        put!(Ethernet {
            ether_type,
            ..self.ethernet
        });
        if let Some(vlan) = self.vlan {
            put!(Vlan {
                ether_type: ip_type,
                ..vlan
            });
        }
        match self.ip {
            Ip::V4(ip) => {
                let mut ip = Ipv4 {
                    total_length: length(Ipv4::LEN + self.udp_len())?,
                    ..ip
                };
                ip.checksum = ip.checksum_of();
                check_ipv4(&ip)?;
                put!(ip);
            }
            Ip::V6(ip) => {
                check_ipv6(&ip)?;
                put!(Ipv6 {
                    payload_length: udp_length,
                    ..ip
                });
            }
        }
        put!(Udp {
            source: self.source_port,
            destination: ROCE_PORT,
            length: udp_length,
            checksum: 0
        });
        transport.put(&mut rest);
        let link = len - self.ip.len() - self.udp_len();
        let crc = icrc(frame.get(link..len - icrc::LEN).unwrap_or_default())
            .ok_or(Error::IpVersion(0))?;
        put(
            &mut frame.get_mut(len - icrc::LEN..).unwrap_or_default(),
            &crc.to_le_bytes(),
        );
        // The invariant CRC takes the UDP checksum as ones, and so may come first.
        if let Ip::V6(ip) = &self.ip {
            let udp = frame.get_mut(len - self.udp_len()..).unwrap_or_default();
            let checksum = udp::checksum_over_ipv6(&ip.source, &ip.destination, udp);
            put(
                &mut udp.get_mut(Udp::LEN - 2..).unwrap_or_default(),
                &checksum.to_be_bytes(),
            );
        }
        Ok(len)
    }
}

/// Bytes that the header declares to follow it; an error unless it is IPv6 with UDP.
fn check_ipv6(ip: &Ipv6) -> Result<usize, Error> {
    match (ip.version, ip.next_header) {
        (6, UDP_PROTOCOL) => Ok(ip.payload_length as usize),
        (6, protocol) => Err(Error::Protocol(protocol)),
        (version, _) => Err(Error::IpVersion(version)),
    }
}

/// Bytes that the header declares, itself included; an error unless it is IPv4 with UDP, whole and right.
fn check_ipv4(ip: &Ipv4) -> Result<usize, Error> {
    if ip.version != 4 {
        return Err(Error::IpVersion(ip.version));
    }
    if ip.header_words != 5 {
        return Err(Error::HeaderWords(ip.header_words));
    }
    if ip.more_fragments || ip.fragment_offset != 0 {
        return Err(Error::Fragment);
    }
    if ip.protocol != UDP_PROTOCOL {
        return Err(Error::Protocol(ip.protocol));
    }
    let needed = ip.checksum_of();
    if ip.checksum != needed {
        return Err(Error::Checksum {
            needed,
            found: ip.checksum,
        });
    }
    Ok(ip.total_length as usize)
}

impl fmt::Display for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.ethernet)?;
        if let Some(vlan) = &self.vlan {
            write!(f, "\n{vlan}")?;
        }
        match &self.ip {
            Ip::V4(ip) => write!(f, "\n{ip}")?,
            Ip::V6(ip) => write!(f, "\n{ip}")?,
        }
        write!(
            f,
            "\nsource port {}\n{}",
            self.source_port,
            self.transport()
        )
    }
}
