//! Writes a capture file with one frame of each opcode over IPv4 and IPv6 to standard output, for another decoder to judge:
//! `cargo run -p warpverbs-wire --example frames > frames.pcap; tshark -V -r frames.pcap`.

use std::io::{self, Write};

use warpverbs_wire::pcap::{FileHeader, RecordHeader};
use warpverbs_wire::roce::address::{gid_of_ipv4, link_local_gid};
use warpverbs_wire::roce::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Ethernet, Extended, Frame, Ieth, ImmDt, Ip,
    MaskedAtomicEth, Opcode, Reth, Syndrome, UNLIMITED_CREDITS,
};

const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];

fn main() -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(&FileHeader::ETHERNET.emit())?;
    let ips = [
        Ip::between(gid_of_ipv4([10, 0, 0, 1]), gid_of_ipv4([10, 0, 0, 2]), 64),
        Ip::between(link_local_gid(MACS[0]), link_local_gid(MACS[1]), 64),
    ];
    let mut psn = 0;
    for opcode in (0..=255).map(Opcode::from_code) {
        let Some(headers) = opcode.headers() else {
            continue;
        };
        for ip in ips {
            let frame = Frame {
                ethernet: Ethernet {
                    destination: MACS[1],
                    source: MACS[0],
                    ..Default::default()
                },
                vlan: None,
                ip,
                source_port: 0xc001,
                bth: Bth {
                    opcode,
                    pkey: 0xffff,
                    destination_qp: 0x11,
                    psn,
                    ..Default::default()
                },
                extended: Extended {
                    reth: headers.reth.then_some(Reth {
                        address: 0x1000,
                        key: 0x2000,
                        length: 16,
                    }),
                    atomic: headers.atomic.then_some(AtomicEth {
                        address: 0x1000,
                        key: 0x2000,
                        swap_or_add: 1,
                        compare: 2,
                    }),
                    masked_atomic: headers.masked_atomic.then(MaskedAtomicEth::default),
                    aeth: headers.aeth.then_some(Aeth {
                        syndrome: Syndrome::Ack {
                            credits: UNLIMITED_CREDITS,
                        },
                        msn: 1,
                    }),
                    atomic_ack: headers.atomic_ack.then_some(AtomicAckEth { original: 3 }),
                    immediate: headers.immediate.then_some(ImmDt { immediate: 4 }),
                    invalidate: headers.invalidate.then_some(Ieth { key: 5 }),
                },
                payload: if headers.payload { &[0xa5; 16] } else { &[] },
            };
            let mut bytes = vec![0; frame.len()];
            frame.emit(&mut bytes).map_err(io::Error::other)?;
            out.write_all(&RecordHeader::new(u64::from(psn) * 1000, bytes.len() as u32).emit())?;
            out.write_all(&bytes)?;
            psn += 1;
        }
    }
    Ok(())
}
