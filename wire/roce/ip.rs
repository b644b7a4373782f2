//! IPv4 (RFC 791) and IPv6 (RFC 8200) headers, without options or extensions.

use crate::layout::structure;

/// The protocol number of UDP (`IPPROTO_UDP`).
pub const UDP_PROTOCOL: u8 = 17;

structure! {
    /// An IPv4 header.
    pub struct Ipv4: Linux "iphdr", 160 bits {
        /// Version: 4.
        version: u8 => 0, 4 cited "RFC 791 section 3.1";
        /// Words of the header: 5 without options.
        header_words = "ihl": u8 => 4, 4 cited "RFC 791 section 3.1";
        /// Differentiated services code point.
        dscp = "tos[7:2]": u8 => 8, 6;
        /// Explicit congestion notification.
        ecn = "tos[1:0]": u8 => 14, 2;
        /// Bytes of header and what follows.
        total_length = "tot_len": u16 => 16, 16;
        /// Names the packet among its fragments.
        identification = "id": u16 => 32, 16;
        /// The packet may not be fragmented.
        do_not_fragment = "frag_off[14:14]": bool => 49, 1;
        /// More fragments follow.
        more_fragments = "frag_off[13:13]": bool => 50, 1;
        /// Where the fragment begins, in 8 bytes.
        fragment_offset = "frag_off[12:0]": u16 => 51, 13;
        /// Hops that are left.
        ttl: u8 => 64, 8;
        /// What follows.
        protocol: u8 => 72, 8;
        /// Checksum of the header.
        checksum = "check": u16 => 80, 16;
        /// Address of the sender.
        source = "saddr": [u8; 4] => 96, 32;
        /// Address of the receiver.
        destination = "daddr": [u8; 4] => 128, 32;
    }
}

impl Ipv4 {
    /// The checksum that the header should have, whatever `checksum` holds (RFC 791 and 1071).
    pub fn checksum_of(&self) -> u16 {
        let bytes = Self {
            checksum: 0,
            ..*self
        }
        .emit();
        // Ten halves of 16 bits: the sum needs no more than one fold of its carries, and one of that fold's.
        let sum: u32 = bytes
            .chunks_exact(2)
            .map(|half| u32::from(half[0]) << 8 | u32::from(half[1]))
            .sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        !((folded & 0xffff) as u16 + (folded >> 16) as u16)
    }
}

structure! {
    /// An IPv6 header.
    pub struct Ipv6: Linux "ipv6hdr", 320 bits {
        /// Version: 6.
        version: u8 => 0, 4 cited "RFC 8200 section 3";
        /// Differentiated services code point.
        dscp: u8 => 4, 6 cited "RFC 8200 section 7";
        /// Explicit congestion notification.
        ecn: u8 => 10, 2 cited "RFC 8200 section 7";
        /// Flow label.
        flow_label: u32 => 12, 20 cited "RFC 8200 section 6";
        /// Bytes of what follows the header.
        payload_length = "payload_len": u16 => 32, 16;
        /// What follows.
        next_header = "nexthdr": u8 => 48, 8;
        /// Hops that are left.
        hop_limit: u8 => 56, 8;
        /// Address of the sender.
        source = "saddr": [u8; 16] => 64, 128;
        /// Address of the receiver.
        destination = "daddr": [u8; 16] => 192, 128;
    }
}

/// The IP header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ip {
    /// IPv4.
    V4(Ipv4),
    /// IPv6.
    V6(Ipv6),
}

impl Ip {
    /// A header from one GID to another: IPv4 if both are mapped addresses of it, IPv6 otherwise (IBA A17.4). Lengths and
    /// checksum are left to [`crate::roce::Frame::emit`].
    pub fn between(source: [u8; 16], destination: [u8; 16], hop_limit: u8) -> Self {
        use super::address::ipv4_of;
        match (ipv4_of(source), ipv4_of(destination)) {
            (Some(source), Some(destination)) => Self::V4(Ipv4 {
                version: 4,
                header_words: 5,
                do_not_fragment: true,
                ttl: hop_limit,
                protocol: UDP_PROTOCOL,
                source,
                destination,
                ..Ipv4::default()
            }),
            _ => Self::V6(Ipv6 {
                version: 6,
                next_header: UDP_PROTOCOL,
                hop_limit,
                source,
                destination,
                ..Ipv6::default()
            }),
        }
    }

    /// Bytes of the header.
    pub const fn len(&self) -> usize {
        match self {
            Self::V4(_) => Ipv4::LEN,
            Self::V6(_) => Ipv6::LEN,
        }
    }

    /// False: a header has bytes.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// The sender's GID.
    pub const fn source_gid(&self) -> [u8; 16] {
        match self {
            Self::V4(ip) => super::address::gid_of_ipv4(ip.source),
            Self::V6(ip) => ip.source,
        }
    }

    /// The receiver's GID.
    pub const fn destination_gid(&self) -> [u8; 16] {
        match self {
            Self::V4(ip) => super::address::gid_of_ipv4(ip.destination),
            Self::V6(ip) => ip.destination,
        }
    }

    /// Sets differentiated services code point and congestion notification.
    #[must_use]
    pub fn with_class(mut self, dscp: u8, ecn: u8) -> Self {
        match &mut self {
            Self::V4(ip) => (ip.dscp, ip.ecn) = (dscp, ecn),
            Self::V6(ip) => (ip.dscp, ip.ecn) = (dscp, ecn),
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_of_ipv4() {
        // 10.0.17.1 to 10.0.18.1, as a ConnectX-4 Lx sent it.
        let ip = Ipv4 {
            version: 4,
            header_words: 5,
            dscp: 0x30,
            ecn: 2,
            total_length: 0x3c,
            identification: 0x718c,
            do_not_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            ttl: 0x40,
            protocol: UDP_PROTOCOL,
            checksum: 0x9161,
            source: [10, 0, 17, 1],
            destination: [10, 0, 18, 1],
        };
        let golden = [
            0x45, 0xc2, 0x00, 0x3c, 0x71, 0x8c, 0x40, 0x00, 0x40, 0x11, 0x91, 0x61, 10, 0, 17, 1,
            10, 0, 18, 1,
        ];
        assert_eq!(ip.emit(), golden);
        assert_eq!(ip.checksum_of(), 0x9161);
    }

    #[test]
    fn golden_bytes_of_ipv6() {
        let ip = Ipv6 {
            version: 6,
            dscp: 0x2a,
            ecn: 1,
            flow_label: 0xb_cdef,
            payload_length: 0x0102,
            next_header: UDP_PROTOCOL,
            hop_limit: 0x40,
            source: [0x11; 16],
            destination: [0x22; 16],
        };
        let bytes = ip.emit();
        assert_eq!(bytes[..8], [0x6a, 0x9b, 0xcd, 0xef, 0x01, 0x02, 0x11, 0x40]);
        assert_eq!(
            (bytes[8..24] == [0x11; 16], bytes[24..] == [0x22; 16]),
            (true, true)
        );
    }

    #[test]
    fn a_checksum_of_many_carries() {
        // The reserved bit beside the flags is not a field, so it counts as zero: eight times 0xffff, and 0x7fff.
        let ones = Ipv4::parse(&[0xff; 20]).unwrap();
        assert_eq!(ones.checksum_of(), 0x8000);
        assert_eq!(Ipv4::default().checksum_of(), 0xffff);
    }
}
