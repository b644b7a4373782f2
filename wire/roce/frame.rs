//! A whole frame: from bytes to headers that agree with each other, and back.

use core::fmt;

use crate::layout;
use crate::roce::icrc::{self, icrc};
use crate::roce::udp;
use crate::roce::{
    Aeth, AtomicAckEth, AtomicEth, Bth, EtherType, Ethernet, Headers, Ieth, ImmDt, Ip, Ipv4, Ipv6,
    MaskedAtomicEth, Opcode, ROCE_PORT, Reth, UDP_PROTOCOL, Udp, Vlan,
};

/// The extended headers of a packet; which of them it has, its opcode says ([`Opcode::headers`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extended {
    /// RDMA.
    pub reth: Option<Reth>,
    /// Atomic.
    pub atomic: Option<AtomicEth>,
    /// Masked atomic.
    pub masked_atomic: Option<MaskedAtomicEth>,
    /// Acknowledgement.
    pub aeth: Option<Aeth>,
    /// Original value of an atomic.
    pub atomic_ack: Option<AtomicAckEth>,
    /// Immediate data.
    pub immediate: Option<ImmDt>,
    /// Key to invalidate.
    pub invalidate: Option<Ieth>,
}

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
    /// Neither IPv4 nor IPv6.
    EtherType(EtherType),
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
                "Ethernet type {:#06x} is neither IPv4 nor IPv6",
                other.code()
            ),
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

/// Takes a header of `LEN` bytes off the front.
macro_rules! take {
    ($ty:ty, $rest:ident) => {{
        let header = <$ty>::parse($rest)?;
        $rest = $rest.get(<$ty>::LEN..).unwrap_or_default();
        header
    }};
}

impl Extended {
    fn headers(&self) -> Headers {
        Headers {
            reth: self.reth.is_some(),
            atomic: self.atomic.is_some(),
            masked_atomic: self.masked_atomic.is_some(),
            aeth: self.aeth.is_some(),
            atomic_ack: self.atomic_ack.is_some(),
            immediate: self.immediate.is_some(),
            invalidate: self.invalidate.is_some(),
            payload: false,
        }
    }

    /// Bytes of all headers.
    pub fn len(&self) -> usize {
        macro_rules! sum {
            ($($field:ident: $ty:ty),*) => { 0 $(+ self.$field.map_or(0, |_| <$ty>::LEN))* };
        }
        sum!(reth: Reth, atomic: AtomicEth, masked_atomic: MaskedAtomicEth, aeth: Aeth, atomic_ack: AtomicAckEth,
            immediate: ImmDt, invalidate: Ieth)
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
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
        let udp = take!(Udp, rest);
        if udp.destination != ROCE_PORT {
            return Err(Error::Port(udp.destination));
        }
        if udp.length as usize != len {
            return Err(Error::Length {
                ip: len,
                udp: udp.length as usize,
            });
        }
        let bth = take!(Bth, rest);
        if bth.version != 0 {
            return Err(Error::TransportVersion(bth.version));
        }
        let found = rest.len();
        let short = Error::Short {
            header: "icrc",
            needed: icrc::LEN,
            found,
        };
        let (rest_before, crc) = rest.split_last_chunk::<{ icrc::LEN }>().ok_or(short)?;
        rest = rest_before;
        let found = u32::from_le_bytes(*crc);
        let covered = packet.get(..packet.len() - icrc::LEN).unwrap_or_default();
        match icrc(covered) {
            Some(needed) if needed != found => return Err(Error::Icrc { needed, found }),
            Some(_) => {}
            None => return Err(short),
        }
        let headers = bth.opcode.headers().ok_or(Error::Opcode(bth))?;
        macro_rules! take_if {
            ($present:expr, $ty:ty) => {
                if $present {
                    Some(take!($ty, rest))
                } else {
                    None
                }
            };
        }
        let extended = Extended {
            reth: take_if!(headers.reth, Reth),
            atomic: take_if!(headers.atomic, AtomicEth),
            masked_atomic: take_if!(headers.masked_atomic, MaskedAtomicEth),
            aeth: take_if!(headers.aeth, Aeth),
            atomic_ack: take_if!(headers.atomic_ack, AtomicAckEth),
            immediate: take_if!(headers.immediate, ImmDt),
            invalidate: take_if!(headers.invalidate, Ieth),
        };
        let len = rest
            .len()
            .checked_sub(bth.pad_count as usize)
            .ok_or(Error::Padding(bth.pad_count))?;
        let payload = rest.get(..len).unwrap_or_default();
        if !headers.payload && !rest.is_empty() {
            return Err(Error::Payload {
                opcode: bth.opcode,
                len: rest.len(),
            });
        }
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

    fn padding(&self) -> usize {
        self.payload.len().wrapping_neg() % 4
    }

    fn udp_len(&self) -> usize {
        Udp::LEN + Bth::LEN + self.extended.len() + self.payload.len() + self.padding() + icrc::LEN
    }

    /// Writes the frame to the start of `out` and returns how many bytes that were. Types, lengths, checksum, pad count,
    /// padding and CRC are made here, whatever the headers hold.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let opcode = self.bth.opcode;
        let headers = opcode.headers().ok_or(Error::Opcode(self.bth))?;
        if self.extended.headers()
            != (Headers {
                payload: false,
                ..headers
            })
        {
            return Err(Error::Extended(opcode));
        }
        if !headers.payload && !self.payload.is_empty() {
            return Err(Error::Payload {
                opcode,
                len: self.payload.len(),
            });
        }
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
        put!(Bth {
            pad_count: self.padding() as u8,
            ..self.bth
        });
        macro_rules! put_some {
            ($($field:ident),*) => {$(
                if let Some(header) = self.extended.$field {
                    put!(header);
                }
            )*};
        }
        put_some!(
            reth,
            atomic,
            masked_atomic,
            aeth,
            atomic_ack,
            immediate,
            invalidate
        );
        put(&mut rest, self.payload);
        put(&mut rest, [0; 3].get(..self.padding()).unwrap_or_default());
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

/// Writes `bytes` to the front of `rest`, which has room for them, and leaves what is behind.
fn put(rest: &mut &mut [u8], bytes: &[u8]) {
    if let Some((front, behind)) = core::mem::take(rest).split_at_mut_checked(bytes.len()) {
        front.copy_from_slice(bytes);
        *rest = behind;
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
        write!(f, "\nsource port {}\n{}", self.source_port, self.bth)?;
        macro_rules! show {
            ($($field:ident),*) => {$(
                if let Some(header) = &self.extended.$field {
                    write!(f, "\n{header}")?;
                }
            )*};
        }
        show!(
            reth,
            atomic,
            masked_atomic,
            aeth,
            atomic_ack,
            immediate,
            invalidate
        );
        write!(f, "\npayload of {} bytes", self.payload.len())
    }
}
