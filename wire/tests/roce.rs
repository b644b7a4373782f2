//! Whole frames: written, read back, refused.

use proptest::prelude::*;
use warpverbs_wire::roce::address::{gid_of_ipv4, link_local_gid};
use warpverbs_wire::roce::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Error, EtherType, Ethernet, Extended, Frame, IBA_TRANSPORT,
    Ieth, ImmDt, Ip, Ipv4, Ipv6, Lrh, MaskedAtomicEth, NakCode, Native, Opcode, Reth, Route,
    Syndrome, Vlan, icrc,
};

const V4: ([u8; 16], [u8; 16]) = (gid_of_ipv4([10, 0, 0, 1]), gid_of_ipv4([10, 0, 0, 2]));
const V6: ([u8; 16], [u8; 16]) = (
    link_local_gid([2, 0, 0, 0, 0, 1]),
    link_local_gid([2, 0, 0, 0, 0, 2]),
);

/// Every extended header that the opcode demands, with bytes of their own.
fn extended(opcode: Opcode) -> Extended {
    let headers = opcode.headers().unwrap();
    Extended {
        reth: headers.reth.then_some(Reth {
            address: 0x1000,
            key: 0x55,
            length: 7,
        }),
        atomic: headers.atomic.then_some(AtomicEth {
            address: 0x2000,
            key: 0x66,
            swap_or_add: 1,
            compare: 2,
        }),
        masked_atomic: headers.masked_atomic.then_some(MaskedAtomicEth {
            address: 0x2000,
            length: 4,
            ..Default::default()
        }),
        aeth: headers.aeth.then_some(Aeth {
            syndrome: Syndrome::Nak(NakCode::RemoteAccess),
            msn: 9,
        }),
        atomic_ack: headers
            .atomic_ack
            .then_some(AtomicAckEth { original: 0x77 }),
        immediate: headers.immediate.then_some(ImmDt { immediate: 0x88 }),
        invalidate: headers.invalidate.then_some(Ieth { key: 0x99 }),
    }
}

fn frame(opcode: Opcode, gids: ([u8; 16], [u8; 16]), payload: &[u8]) -> Frame<'_> {
    Frame {
        ethernet: Ethernet {
            destination: [2, 0, 0, 0, 0, 2],
            source: [2, 0, 0, 0, 0, 1],
            ether_type: EtherType::Ipv4,
        },
        vlan: None,
        ip: Ip::between(gids.0, gids.1, 64),
        source_port: 0xc001,
        bth: Bth {
            opcode,
            pkey: 0xffff,
            destination_qp: 0x123,
            psn: 0x45_6789,
            ..Default::default()
        },
        extended: extended(opcode),
        payload,
    }
}

fn bytes_of(frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = vec![0xa5; frame.len()];
    assert_eq!(frame.emit(&mut bytes), Ok(bytes.len()));
    bytes
}

/// Makes the CRC right again after a byte was changed.
fn reseal(bytes: &mut [u8]) {
    let at = bytes.len() - 4;
    let crc = icrc(&bytes[14..at]).unwrap();
    bytes[at..].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn an_acknowledgement_has_the_bytes_of_the_field_tables() {
    let mut frame = frame(Opcode::Acknowledge, V4, &[]);
    frame.extended.aeth = Some(Aeth {
        syndrome: Syndrome::Ack { credits: 0x1f },
        msn: 3,
    });
    let bytes = bytes_of(&frame);
    #[rustfmt::skip]
    let golden = [
        2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00,
        0x45, 0, 0, 48, 0, 0, 0x40, 0, 64, 17, 0x26, 0xbb, 10, 0, 0, 1, 10, 0, 0, 2,
        0xc0, 0x01, 0x12, 0xb7, 0, 28, 0, 0,
        0x11, 0x00, 0xff, 0xff, 0x00, 0x00, 0x01, 0x23, 0x00, 0x45, 0x67, 0x89,
        0x1f, 0, 0, 3,
    ];
    assert_eq!(bytes[..golden.len()], golden);
    assert_eq!(bytes.len(), golden.len() + 4);
}

#[test]
fn a_frame_captured_from_hardware_is_read() {
    // A congestion notification of a ConnectX-4 Lx (scapy test/contrib/roce.uts).
    #[rustfmt::skip]
    let bytes = [
        0xe4, 0x1d, 0x2d, 0xab, 0x2b, 0xc2, 0x7c, 0xfe, 0x90, 0x64, 0x3b, 0x32, 0x08, 0x00,
        0x45, 0xc2, 0x00, 0x3c, 0x71, 0x8c, 0x40, 0x00, 0x40, 0x11, 0x91, 0x61, 10, 0, 17, 1, 10, 0, 18, 1,
        0x00, 0x00, 0x12, 0xb7, 0x00, 0x28, 0x00, 0x00,
        0x81, 0x00, 0xff, 0xff, 0x40, 0x00, 0x01, 0x18, 0x00, 0x00, 0x00, 0x00,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0x82, 0xfd, 0x00, 0x2a,
    ];
    let frame = Frame::parse(&bytes).unwrap();
    assert_eq!(
        (frame.bth.opcode, frame.bth.becn, frame.bth.destination_qp),
        (Opcode::CongestionNotification, true, 0x118)
    );
    assert_eq!(frame.ip.destination_gid(), gid_of_ipv4([10, 0, 18, 1]));
    assert_eq!(frame.payload, [0; 16]);
    assert_eq!(bytes_of(&frame), bytes);
}

#[test]
fn each_opcode_survives_over_ipv4_and_ipv6_with_and_without_a_tag() {
    let payload: Vec<u8> = (0..13).collect();
    let mut seen = 0;
    for opcode in (0..=255).map(Opcode::from_code) {
        let Some(headers) = opcode.headers() else {
            continue;
        };
        for gids in [V4, V6, (V4.0, V6.1)] {
            for vlan in [
                None,
                Some(Vlan {
                    priority: 3,
                    vlan: 7,
                    ..Default::default()
                }),
            ] {
                let payload = if headers.payload {
                    payload.as_slice()
                } else {
                    &[]
                };
                let mut sent = frame(opcode, gids, payload);
                sent.vlan = vlan;
                let bytes = bytes_of(&sent);
                let read = Frame::parse(&bytes).unwrap();
                assert_eq!(
                    (read.extended, read.payload, read.source_port),
                    (sent.extended, payload, 0xc001),
                    "{opcode:?}"
                );
                assert_eq!(
                    read.bth.pad_count,
                    if headers.payload { 3 } else { 0 },
                    "{opcode:?}"
                );
                assert_eq!((read.ip.source_gid(), read.ip.destination_gid()), gids);
                assert_eq!(
                    read.vlan.map(|tag| (tag.priority, tag.vlan)),
                    vlan.map(|tag| (tag.priority, tag.vlan))
                );
                assert_eq!(bytes_of(&read), bytes, "{opcode:?}");
                seen += 1;
            }
        }
    }
    assert_eq!(seen, 26 * 6);
}

#[test]
fn a_short_frame_may_be_padded_by_ethernet() {
    let mut bytes = bytes_of(&frame(Opcode::SendOnly, V4, &[]));
    assert_eq!(bytes.len(), 58);
    bytes.resize(60, 0);
    assert_eq!(Frame::parse(&bytes).map(|frame| frame.payload.len()), Ok(0));
}

#[test]
fn each_fault_has_an_error_that_names_it() {
    let good = bytes_of(&frame(Opcode::WriteOnly, V4, &[1, 2, 3, 4]));
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let error = |bytes: &[u8]| Frame::parse(bytes).unwrap_err();
    assert_eq!(
        error(&changed(12, 9)),
        Error::EtherType(EtherType::Unknown(0x0900))
    );
    assert_eq!(error(&changed(14, 0x65)), Error::IpVersion(6));
    assert_eq!(error(&changed(14, 0x46)), Error::HeaderWords(6));
    assert_eq!(error(&changed(20, 0x20)), Error::Fragment);
    assert_eq!(error(&changed(23, 6)), Error::Protocol(6));
    assert_eq!(
        error(&changed(22, 63)),
        Error::Checksum {
            needed: 0x27ab,
            found: 0x26ab
        }
    );
    assert_eq!(error(&changed(37, 0)), Error::Port(0x1200));
    assert_eq!(error(&changed(39, 0)), Error::Length { ip: 44, udp: 0 });
    assert_eq!(error(&changed(43, 1)), Error::TransportVersion(1));
    assert!(matches!(error(&changed(50, 1)), Error::Icrc { .. }));
    assert_eq!(
        error(&good[..13]),
        Error::Short {
            header: "ethhdr",
            needed: 14,
            found: 13
        }
    );
    assert_eq!(
        error(&good[..77]),
        Error::Short {
            header: "the IP payload",
            needed: 44,
            found: 43
        }
    );
    let resealed = |at: usize, byte: u8| {
        let mut bytes = changed(at, byte);
        reseal(&mut bytes);
        bytes
    };
    assert!(
        matches!(error(&resealed(42, 0x15)), Error::Opcode(bth) if bth.opcode == Opcode::Unknown(0x15))
    );
    assert_eq!(
        error(&resealed(42, 0x0c)),
        Error::Payload {
            opcode: Opcode::ReadRequest,
            len: 4
        }
    );
    // Immediate data leaves nothing to pad.
    let mut bytes = resealed(42, 0x0b);
    bytes[43] = 0x10;
    reseal(&mut bytes);
    assert_eq!(error(&bytes), Error::Padding(1));
    assert_eq!(
        error(&resealed(42, 0x13)),
        Error::Short {
            header: "atomic_eth",
            needed: 28,
            found: 20
        }
    );
    // IPv6's own.
    let good = bytes_of(&frame(Opcode::Acknowledge, V6, &[]));
    let mut bytes = good.clone();
    bytes[14] = 0x40;
    assert_eq!(error(&bytes), Error::IpVersion(4));
    let mut bytes = good;
    bytes[20] = 58;
    assert_eq!(error(&bytes), Error::Protocol(58));
    assert_eq!(Error::Port(80).to_string(), "UDP port 80, not 4791");
}

#[test]
fn lengths_that_end_inside_the_headers_are_errors() {
    // IP and UDP agree on ever fewer bytes.
    let good = bytes_of(&frame(Opcode::Acknowledge, V6, &[]));
    for len in 0..28u8 {
        let mut bytes = good.clone();
        (bytes[19], bytes[59]) = (len, len);
        assert!(Frame::parse(&bytes).is_err(), "{len}");
    }
}

#[test]
fn what_cannot_be_written_is_an_error() {
    let mut out = [0; 200];
    let mut wrong = frame(Opcode::SendOnly, V4, &[]);
    wrong.extended.aeth = Some(Aeth::default());
    assert_eq!(wrong.emit(&mut out), Err(Error::Extended(Opcode::SendOnly)));
    let mut missing = frame(Opcode::WriteOnly, V4, &[]);
    missing.extended.reth = None;
    assert_eq!(
        missing.emit(&mut out),
        Err(Error::Extended(Opcode::WriteOnly))
    );
    let payload = frame(Opcode::Acknowledge, V4, &[1]);
    assert_eq!(
        payload.emit(&mut out),
        Err(Error::Payload {
            opcode: Opcode::Acknowledge,
            len: 1
        })
    );
    let fits = frame(Opcode::SendOnly, V4, &[]);
    assert_eq!(
        fits.emit(&mut out[..57]),
        Err(Error::Short {
            header: "the frame",
            needed: 58,
            found: 57
        })
    );
    let long = vec![0; 65536];
    let mut out = vec![0; 70000];
    assert!(matches!(
        frame(Opcode::SendOnly, V4, &long).emit(&mut out),
        Err(Error::TooLong(_))
    ));
    let mut wide = fits;
    wide.bth.psn = 1 << 24;
    assert!(matches!(wide.emit(&mut out), Err(Error::Field(_))));
    let mut options = fits;
    options.ip = Ip::V4(Ipv4 {
        version: 4,
        header_words: 6,
        ..Ipv4::default()
    });
    assert_eq!(options.emit(&mut out), Err(Error::HeaderWords(6)));
}

#[test]
fn printed_with_names() {
    let text = frame(Opcode::Acknowledge, V4, &[]).to_string();
    assert!(text.contains("\n  opcode: 0x11 (Acknowledge)\n"), "{text}");
    assert!(
        text.contains("\n  syndrome: 0x62 (Nak(RemoteAccess))\n"),
        "{text}"
    );
}

proptest! {
    #[test]
    fn any_payload_survives(payload in prop::collection::vec(any::<u8>(), 0..300), v6: bool, psn in 0u32..1 << 24) {
        let mut sent = frame(Opcode::WriteLastImmediate, if v6 { V6 } else { V4 }, &payload);
        sent.bth.psn = psn;
        let bytes = bytes_of(&sent);
        let read = Frame::parse(&bytes).unwrap();
        prop_assert_eq!((read.payload, read.bth.psn), (payload.as_slice(), psn));
        prop_assert_eq!((bytes.len() - if v6 { 54 } else { 34 }) % 4, 0);
    }

    #[test]
    fn any_bytes_are_a_frame_or_an_error(
        bytes in prop::collection::vec(any::<u8>(), 0..120), opcode: u8, v6: bool, changes in prop::collection::vec((14usize..100, any::<u8>()), 0..4),
    ) {
        prop_assert!(Frame::parse(&bytes).is_err());
        // From a good frame with some bytes changed and the CRC right.
        let mut bytes = bytes_of(&frame(Opcode::WriteOnly, if v6 { V6 } else { V4 }, &bytes));
        bytes[if v6 { 62 } else { 42 }] = opcode;
        for (at, byte) in changes {
            if let Some(old) = bytes.get_mut(at) {
                *old = byte;
            }
        }
        let at = bytes.len() - 4;
        if let Some(crc) = icrc(&bytes[14..at]) {
            bytes[at..].copy_from_slice(&crc.to_le_bytes());
        }
        if let Ok(frame) = Frame::parse(&bytes) {
            prop_assert!(frame.len() <= bytes.len());
            prop_assert!(!frame.to_string().is_empty());
        }
    }

    #[test]
    fn native_packets_of_any_payload_survive_and_any_bytes_are_one_or_an_error(
        payload in prop::collection::vec(any::<u8>(), 0..300), route in 0..3, psn in 0u32..1 << 24,
        change in any::<(prop::sample::Index, u8)>(),
    ) {
        let grh = Ipv6 { version: 6, next_header: IBA_TRANSPORT, hop_limit: 3, source: V6.0, destination: V6.1, ..Ipv6::default() };
        let lrh = Lrh { destination: 2, source: 1, service_level: 5, ..Lrh::default() };
        let v1 = frame(Opcode::WriteLastImmediate, V6, &payload);
        let sent = Native {
            route: match route {
                0 => Route::RoceV1 { ethernet: v1.ethernet, grh },
                1 => Route::InfiniBand { lrh, grh: None },
                _ => Route::InfiniBand { lrh, grh: Some(grh) },
            },
            bth: Bth { psn, ..v1.bth },
            extended: v1.extended,
            payload: &payload,
        };
        let mut bytes = vec![0; sent.len() + 3];
        prop_assert_eq!(sent.emit(&mut bytes), Ok(sent.len()));
        bytes.truncate(sent.len());
        let read = match route {
            0 => Native::parse_roce_v1(&bytes),
            _ => Native::parse_infiniband(&bytes),
        }.unwrap();
        prop_assert_eq!((read.payload, read.bth.psn, read.extended), (payload.as_slice(), psn, sent.extended));
        prop_assert!(!read.to_string().is_empty());
        prop_assert!(sent.emit(&mut vec![0; sent.len() - 1]).is_err());
        // A byte changed is an error where a CRC covers it: on InfiniBand everywhere.
        let (at, value) = (change.0.index(bytes.len()), change.1);
        if route > 0 && bytes[at] != value {
            bytes[at] = value;
            prop_assert!(Native::parse_infiniband(&bytes).is_err());
        }
        prop_assert!(Native::parse_roce_v1(&payload).is_err() && Native::parse_infiniband(&payload).is_err());
    }
}
