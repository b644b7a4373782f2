//! Invariant CRC (IBA 7.8, annexes A16 and A17): the CRC-32 of Ethernet over what no switch or router may change; and InfiniBand's
//! variant CRC, over all of it.
//!
//! It covers IP header, UDP header, BTH and all behind it but itself. Fields that change on the way count as ones, and eight
//! bytes of ones stand for the local route header that a RoCE packet does not have. It lies in the packet with its low byte
//! first.

use crate::roce::{Bth, Ipv4, Ipv6, Lrh, Udp};

/// Bytes of the CRC.
pub(super) const LEN: usize = 4;

/// Bytes of the variant CRC.
pub(super) const VCRC_LEN: usize = 2;
/// The variant CRC's polynomial, 0x100b, bits reversed (IBA 7.8.2).
const VCRC_POLYNOMIAL: u16 = 0xd008;
/// What a byte does to the variant CRC's register.
static VCRC_TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut register = byte as u16;
        let mut bit = 0;
        while bit < 8 {
            register = (register >> 1) ^ (VCRC_POLYNOMIAL & (register & 1).wrapping_neg());
            bit += 1;
        }
        table[byte] = register;
        byte += 1;
    }
    table
};

/// CRC-32's polynomial, bits reversed.
const POLYNOMIAL: u32 = 0xedb8_8320;
/// The register after the eight bytes of ones.
const AFTER_ROUTE_HEADER: u32 = update(!0, &[0xff; 8]);

/// `TABLES[n][b]`: what byte `b` does to the register once `n` more bytes have passed.
#[cfg(any(not(feature = "fast-crc"), test))]
static TABLES: [[u32; 256]; 8] = TABLE_VALUES;
const TABLE_VALUES: [[u32; 256]; 8] = {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut register = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            register = (register >> 1) ^ (POLYNOMIAL & (register & 1).wrapping_neg());
            bit += 1;
        }
        tables[0][byte] = register;
        byte += 1;
    }
    let mut further = 1;
    while further < 8 {
        let mut byte = 0;
        while byte < 256 {
            let register = tables[further - 1][byte];
            tables[further][byte] = (register >> 8) ^ tables[0][(register & 0xff) as usize];
            byte += 1;
        }
        further += 1;
    }
    tables
};

/// The register after `bytes`, one at a time.
const fn update(mut register: u32, bytes: &[u8]) -> u32 {
    let mut index = 0;
    while index < bytes.len() {
        register = (register >> 8) ^ TABLE_VALUES[0][((register as u8) ^ bytes[index]) as usize];
        index += 1;
    }
    register
}

/// The register after `bytes`, as fast as it can be had.
#[cfg(feature = "fast-crc")]
fn update_all(register: u32, bytes: &[u8]) -> u32 {
    // That crate counts in the CRC itself, which is the register's complement.
    let mut hasher = crc32fast::Hasher::new_with_initial(!register);
    hasher.update(bytes);
    !hasher.finalize()
}

/// The register after `bytes`, eight at a time.
#[cfg(any(not(feature = "fast-crc"), test))]
#[cfg_attr(
    feature = "fast-crc",
    allow(dead_code, reason = "what tests compare with")
)]
fn update_by_table(mut register: u32, bytes: &[u8]) -> u32 {
    let (eights, rest) = bytes.as_chunks::<8>();
    for eight in eights {
        let word = u64::from_le_bytes(*eight) ^ register as u64;
        register = (0..8).fold(0, |sum, n| {
            sum ^ TABLES[7 - n][(word >> (8 * n)) as u8 as usize]
        });
    }
    rest.iter().fold(register, |register, byte| {
        (register >> 8) ^ TABLES[0][((register as u8) ^ byte) as usize]
    })
}

/// The invariant CRC of a packet from its IP header to the byte before the CRC. `None` if its first headers are not IPv4
/// without options or IPv6, UDP and BTH.
pub fn icrc(packet: &[u8]) -> Option<u32> {
    let ip = match packet.first()? {
        0x45 => Ipv4::LEN,
        byte if byte >> 4 == 6 => Ipv6::LEN,
        _ => return None,
    };
    let (headers, rest) = packet.split_at_checked(ip + Udp::LEN + Bth::LEN)?;
    let mut masked = [0; Ipv6::LEN + Udp::LEN + Bth::LEN];
    let masked = masked.get_mut(..headers.len())?;
    masked.copy_from_slice(headers);
    if ip == Ipv4::LEN {
        // Type of service, time to live, checksum.
        for index in [1, 8, 10, 11] {
            masked[index] = 0xff;
        }
    } else {
        // Traffic class and flow label, hop limit.
        masked[0] |= 0x0f;
        for index in [1, 2, 3, 7] {
            masked[index] = 0xff;
        }
    }
    // UDP checksum; FECN, BECN and the reserved bits beside them.
    for index in [ip + 6, ip + 7, ip + Udp::LEN + 4] {
        masked[index] = 0xff;
    }
    Some(!update_all(update_all(AFTER_ROUTE_HEADER, masked), rest))
}

/// The invariant CRC of a packet with a GRH (InfiniBand's, or RoCE v1's) from the GRH to the byte before the CRC. Ones stand for the
/// local route header, of which a router makes another. `None` if there are fewer bytes than GRH and BTH.
pub(super) fn icrc_global(packet: &[u8]) -> Option<u32> {
    let (headers, rest) = packet.split_at_checked(Ipv6::LEN + Bth::LEN)?;
    let mut masked = <[u8; Ipv6::LEN + Bth::LEN]>::try_from(headers).ok()?;
    // Traffic class and flow label, hop limit.
    masked[0] |= 0x0f;
    for index in [1, 2, 3, 7, Ipv6::LEN + 4] {
        masked[index] = 0xff;
    }
    Some(!update_all(update_all(AFTER_ROUTE_HEADER, &masked), rest))
}

/// The invariant CRC of an InfiniBand packet without GRH from the LRH, of which the virtual lane counts as ones, to the byte before
/// the CRC. `None` if there are fewer bytes than LRH and BTH.
pub(super) fn icrc_local(packet: &[u8]) -> Option<u32> {
    let (headers, rest) = packet.split_at_checked(Lrh::LEN + Bth::LEN)?;
    let mut masked = <[u8; Lrh::LEN + Bth::LEN]>::try_from(headers).ok()?;
    masked[0] |= 0xf0;
    masked[Lrh::LEN + 4] = 0xff;
    Some(!update_all(update_all(!0, &masked), rest))
}

/// The variant CRC of an InfiniBand packet from the LRH to the invariant CRC.
pub(super) fn vcrc(packet: &[u8]) -> u16 {
    let register = packet.iter().fold(!0u16, |register, byte| {
        (register >> 8) ^ VCRC_TABLE[(register as u8 ^ byte) as usize]
    });
    !register
}

#[cfg(not(feature = "fast-crc"))]
use update_by_table as update_all;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_give_the_same_register() {
        let bytes: [u8; 1500] = core::array::from_fn(|n| ((n * n) >> 3) as u8);
        for len in (0..300).chain([511, 512, 1023, 1500]) {
            for start in [!0, 0, AFTER_ROUTE_HEADER, 0x1234_5678] {
                let part = &bytes[bytes.len() - len..];
                assert_eq!(
                    update_all(start, part),
                    update_by_table(start, part),
                    "{len}"
                );
                assert_eq!(update_by_table(start, part), update(start, part), "{len}");
            }
        }
    }

    #[test]
    fn crc_32_of_its_check_string() {
        assert_eq!(!update_all(!0, b"123456789"), 0xcbf4_3926);
        assert_eq!(!update(!0, b"123456789"), 0xcbf4_3926);
        // What Linux's rdma_rxe starts from.
        assert_eq!(AFTER_ROUTE_HEADER, 0xdebb_20e3);
    }

    #[test]
    fn a_connectx_frame_has_the_crc_that_was_captured_with_it() {
        // A congestion notification of a ConnectX-4 Lx (scapy test/contrib/roce.uts): IPv4, UDP, BTH, 16 reserved bytes.
        #[rustfmt::skip]
        let packet = [
            0x45, 0xc2, 0x00, 0x3c, 0x71, 0x8c, 0x40, 0x00, 0x40, 0x11, 0x91, 0x61, 10, 0, 17, 1, 10, 0, 18, 1,
            0x00, 0x00, 0x12, 0xb7, 0x00, 0x28, 0x00, 0x00,
            0x81, 0x00, 0xff, 0xff, 0x40, 0x00, 0x01, 0x18, 0x00, 0x00, 0x00, 0x00,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(
            icrc(&packet).map(u32::to_le_bytes),
            Some([0x82, 0xfd, 0x00, 0x2a])
        );
    }

    #[test]
    fn a_send_has_the_crc_that_was_captured_with_it() {
        // An unreliable connection's send of 18 bytes, padded (scapy test/contrib/roce.uts).
        #[rustfmt::skip]
        let packet = [
            0x45, 0x01, 0x00, 0x40, 0x04, 0x78, 0x40, 0x00, 0x40, 0x11, 0xb4, 0xd5, 192, 168, 0, 7, 192, 168, 0, 7,
            0xc0, 0x00, 0x12, 0xb7, 0x00, 0x2c, 0xac, 0xa2,
            0x24, 0x60, 0xff, 0xff, 0x00, 0x00, 0x00, 0xd3, 0x00, 0xcf, 0x17, 0x10,
            0x46, 0x30, 0x81, 0x8b, 0xe2, 0x89, 0x35, 0xd9, 0x0e, 0x9a, 0x95, 0x50, 0x54, 0x01, 0xbe, 0x88,
            0x5e, 0x50, 0x00, 0x00,
        ];
        assert_eq!(
            icrc(&packet).map(u32::to_le_bytes),
            Some([0x78, 0xf3, 0x53, 0xf3])
        );
    }

    /// The packet that InfiniBand tools check themselves with (Mellanox's MPGA library has it, with this invariant CRC).
    #[rustfmt::skip]
    const SAMPLE: [u8; 52] = [
        0x70, 0x12, 0x37, 0x5c, 0x00, 0x0e, 0x17, 0xd2,
        0x0a, 0x20, 0x24, 0x87, 0x00, 0x87, 0xb1, 0xb3, 0x00, 0x0d, 0xec, 0x2a,
        0x01, 0x71, 0x0a, 0x1c, 0x01, 0x5d, 0x40, 0x02, 0x38, 0xf2, 0x7a, 0x05, 0x00, 0x00, 0x00, 0x0e,
        0xbb, 0x88, 0x4d, 0x85, 0xfd, 0x5c, 0xfb, 0xa4, 0x72, 0x8b, 0xc0, 0x69, 0x0e, 0xd4, 0x00, 0x00,
    ];

    #[test]
    fn the_sample_packet_has_its_invariant_crc() {
        assert_eq!(
            icrc_local(&SAMPLE).map(u32::to_le_bytes),
            Some([0x96, 0x25, 0xb7, 0x5a])
        );
        assert_eq!(
            (icrc_local(&SAMPLE[..19]), icrc_global(&SAMPLE[..51])),
            (None, None)
        );
    }

    #[test]
    fn what_changes_on_the_way_of_infiniband_does_not_count_and_all_else_does() {
        let mut global = [0; 80];
        global[0] = 0x60;
        let mut local = SAMPLE;
        local[0] ^= 0xf0;
        assert_eq!(icrc_local(&local), icrc_local(&SAMPLE), "virtual lane");
        for (varies, index) in (0..52).map(|index| (index == 12, index)) {
            let mut packet = SAMPLE;
            packet[index] ^= 1;
            assert_eq!(
                icrc_local(&packet) == icrc_local(&SAMPLE),
                varies,
                "byte {index}"
            );
        }
        let mut class = global;
        class[0] = 0x6f;
        assert_eq!(icrc_global(&class), icrc_global(&global));
        for index in 1..80 {
            let mut packet = global;
            packet[index] ^= 1;
            let varies = [1, 2, 3, 7, 44].contains(&index);
            assert_eq!(
                icrc_global(&packet) == icrc_global(&global),
                varies,
                "byte {index}"
            );
        }
    }

    #[test]
    fn the_variant_crc_is_its_polynomials() {
        // One bit through sixteen zeroes is the polynomial; entries as published (the same library's table).
        assert_eq!(
            (VCRC_TABLE[1], VCRC_TABLE[0x80], VCRC_TABLE[0xff]),
            (0x1ba1, 0xd008, 0x0960)
        );
        // Any packet followed by its CRC leaves the same rest.
        let rest = |packet: &[u8]| {
            let mut whole = [0; 60];
            whole[..packet.len()].copy_from_slice(packet);
            whole[packet.len()..packet.len() + 2].copy_from_slice(&vcrc(packet).to_le_bytes());
            vcrc(&whole[..packet.len() + 2])
        };
        for len in 1..52 {
            assert_eq!(rest(&SAMPLE[..len]), rest(b"another"));
        }
        for bit in 0..SAMPLE.len() * 8 {
            let mut packet = SAMPLE;
            packet[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(vcrc(&packet), vcrc(&SAMPLE), "bit {bit}");
        }
    }

    #[test]
    fn what_changes_on_the_way_does_not_count_and_all_else_does() {
        for (version, ip, varies) in [
            (0x45, Ipv4::LEN, &[1, 8, 10, 11, 26, 27, 32][..]),
            (0x60, Ipv6::LEN, &[1, 2, 3, 7, 46, 47, 52][..]),
        ] {
            let mut packet = [0; 90];
            packet[0] = version;
            let crc = icrc(&packet).unwrap();
            for index in 1..ip + 50 - 20 {
                packet[index] ^= 0x11;
                assert_eq!(
                    icrc(&packet) == Some(crc),
                    varies.contains(&index),
                    "{version:#x}: byte {index}"
                );
                packet[index] ^= 0x11;
            }
        }
        // The traffic class' high half lies beside the version.
        let mut packet = [0; 60];
        packet[0] = 0x60;
        let crc = icrc(&packet);
        packet[0] = 0x6f;
        assert_eq!(icrc(&packet), crc);
    }

    #[test]
    fn what_is_no_packet_has_none() {
        assert_eq!(
            (
                icrc(&[]),
                icrc(&[0x46; 80]),
                icrc(&[0x45; 39]),
                icrc(&[0x60; 59])
            ),
            (None, None, None, None)
        );
    }
}
