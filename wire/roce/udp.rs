//! UDP header (RFC 768).
//!
//! | bits | field |
//! |---|---|
//! | 0..16 | source port |
//! | 16..32 | destination port |
//! | 32..48 | bytes of header and data |
//! | 48..64 | checksum; zero: none, as RoCE v2 sends it over IPv4 |

use crate::layout::structure;
use crate::roce::UDP_PROTOCOL;

/// The destination port of RoCE v2 (IBA A17.4; `ROCE_V2_UDP_DPORT` of Linux).
pub const ROCE_PORT: u16 = 4791;

structure! {
    /// A UDP header.
    pub struct Udp: Linux "udphdr", 64 bits {
        /// Port of the sender: tells flows apart on the way.
        source: u16 => 0, 16;
        /// Port of the receiver.
        destination = "dest": u16 => 16, 16;
        /// Bytes of header and data.
        length = "len": u16 => 32, 16;
        /// Checksum; zero for none, which IPv6 does not allow without agreement (RFC 8200 8.1).
        checksum = "check": u16 => 48, 16;
    }
}

/// The checksum of a UDP packet over IPv6 whose checksum field is zero: of addresses, length, protocol and all its bytes
/// (RFC 8200 8.1).
pub(super) fn checksum_over_ipv6(source: &[u8; 16], destination: &[u8; 16], packet: &[u8]) -> u16 {
    let sum =
        sum(source) + sum(destination) + packet.len() as u64 + UDP_PROTOCOL as u64 + sum(packet);
    let folded = (0..4).fold(sum, |sum, _| (sum & 0xffff) + (sum >> 16));
    match !(folded as u16) {
        // Zero would say that there is none.
        0 => 0xffff,
        checksum => checksum,
    }
}

/// The sum of big-endian halves of 16 bits; an odd last byte is the high one.
fn sum(bytes: &[u8]) -> u64 {
    let (pairs, last) = bytes.as_chunks::<2>();
    let last = last.first().map_or(0, |byte| u64::from(*byte) << 8);
    pairs
        .iter()
        .fold(last, |sum, pair| sum + u64::from(u16::from_be_bytes(*pair)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_makes_the_sum_all_ones() {
        let (source, destination) = ([0x11; 16], [0xf2; 16]);
        for len in [8, 9, 64] {
            let mut packet = [0xd3; 64];
            packet[6..8].fill(0);
            let packet = &mut packet[..len];
            let checksum = checksum_over_ipv6(&source, &destination, packet);
            packet[6..8].copy_from_slice(&checksum.to_be_bytes());
            // With the right checksum in place the sum folds to ones, whose complement is the forbidden zero.
            assert_eq!(
                checksum_over_ipv6(&source, &destination, packet),
                0xffff,
                "{len} bytes"
            );
        }
    }

    #[test]
    fn golden_checksum() {
        // 0x0001 (source) + 0x0002 (destination) + 8 + 17 + 0xc001 + 0x12b7 + 0x0008 (the header) = 0xd2dc.
        let (mut source, mut destination) = ([0; 16], [0; 16]);
        (source[15], destination[15]) = (1, 2);
        let packet = [0xc0, 0x01, 0x12, 0xb7, 0, 8, 0, 0];
        assert_eq!(checksum_over_ipv6(&source, &destination, &packet), !0xd2dc);
    }
}
