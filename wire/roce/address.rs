//! GIDs and the addresses that they are made of (IBA 4.1, annex A17; RFC 4291).

/// The GID of an IPv4 address: `::ffff:a.b.c.d`.
pub const fn gid_of_ipv4(address: [u8; 4]) -> [u8; 16] {
    let [a, b, c, d] = address;
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

/// The IPv4 address that a GID maps, if it maps one.
pub const fn ipv4_of(gid: [u8; 16]) -> Option<[u8; 4]> {
    match gid {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => Some([a, b, c, d]),
        _ => None,
    }
}

/// The link-local GID of a MAC address: `fe80::` and its modified EUI-64.
pub const fn link_local_gid(mac: [u8; 6]) -> [u8; 16] {
    let [a, b, c, d, e, f] = mac;
    [
        0xfe,
        0x80,
        0,
        0,
        0,
        0,
        0,
        0,
        a ^ 2,
        b,
        c,
        0xff,
        0xfe,
        d,
        e,
        f,
    ]
}

/// The MAC address in a GID's modified EUI-64, if it has one.
pub const fn mac_of(gid: [u8; 16]) -> Option<[u8; 6]> {
    match gid {
        [_, _, _, _, _, _, _, _, a, b, c, 0xff, 0xfe, d, e, f] => Some([a ^ 2, b, c, d, e, f]),
        _ => None,
    }
}

/// A UDP source port for the packets between two QPs, the same both ways: the convention of Linux
/// (`rdma_calc_flow_label`, `rdma_flow_label_to_udp_sport`).
pub const fn source_port(qpn: u32, other_qpn: u32) -> u16 {
    let mut product = qpn as u64 * other_qpn as u64;
    product ^= product >> 20;
    product ^= product >> 40;
    source_port_of_flow(product as u32 & 0xf_ffff)
}

/// The UDP source port of a 20-bit flow label: 0xc000 to 0xffff.
pub const fn source_port_of_flow(label: u32) -> u16 {
    ((label & 0x3fff) ^ ((label & 0xf_c000) >> 14)) as u16 | 0xc000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_address_survives_its_gid() {
        let gid = gid_of_ipv4([10, 1, 2, 3]);
        assert_eq!(gid, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3]);
        assert_eq!((ipv4_of(gid), mac_of(gid)), (Some([10, 1, 2, 3]), None));
    }

    #[test]
    fn a_mac_address_survives_its_gid() {
        let mac = [0x02, 0x11, 0x22, 0x33, 0x44, 0x55];
        let gid = link_local_gid(mac);
        assert_eq!(
            gid,
            [
                0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x00, 0x11, 0x22, 0xff, 0xfe, 0x33, 0x44, 0x55
            ]
        );
        assert_eq!((mac_of(gid), ipv4_of(gid)), (Some(mac), None));
    }

    #[test]
    fn both_ends_choose_the_same_port() {
        assert_eq!(source_port(0x123, 0x456), source_port(0x456, 0x123));
        // 2^20 folds onto bit 0, and the folds stay in the dynamic range.
        assert_eq!(source_port(1 << 10, 1 << 10), 0xc001);
        assert_eq!(source_port_of_flow(0xf_c001), 0xc03e);
        assert_eq!(source_port(0, 0), 0xc000);
    }
}
