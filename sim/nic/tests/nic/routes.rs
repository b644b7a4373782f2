//! How packets travel between two NICs: InfiniBand with and without GRH, RoCE v1, RoCE v2; who takes which, partitions, and captures.
//!
//! With `WARPVERBS_PCAPS` naming a folder, a capture of every route is left there for another decoder to judge.

use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use warpverbs_sim_nic::{Cable, CablePlan, LinkLayer, NicConfig, SocketEnd};
use warpverbs_wire::cqe::Completion;
use warpverbs_wire::prm::qpc::{OptParam, QpState, Qpc};
use warpverbs_wire::prm::{init2init_qp, query_hca_vport_pkey};
use warpverbs_wire::roce::{Native, Route};
use warpverbs_wire::wqe::{Opcode, SIGNALLED, fetch_add, segment_bytes};

use crate::rig::Rig;
use crate::transport::{Peer, Shared, connected, run_everything};

/// How packets travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// InfiniBand, LRH alone.
    Lid,
    /// InfiniBand with a GRH.
    Grh,
    /// RoCE, from this entry of the GID table: 0 and 2 are v1, 1 and 3 v2; 2 and 3 are mapped IPv4 addresses.
    Gid(u8),
}

const ROUTES: [By; 6] = [
    By::Lid,
    By::Grh,
    By::Gid(0),
    By::Gid(1),
    By::Gid(2),
    By::Gid(3),
];

impl By {
    fn config(self) -> NicConfig {
        NicConfig {
            link_layer: match self {
                Self::Lid | Self::Grh => LinkLayer::InfiniBand,
                Self::Gid(_) => LinkLayer::Ethernet,
            },
            ..NicConfig::default()
        }
    }

    /// The path to another NIC.
    fn change(self, other: &Rig, qpc: &mut Qpc) {
        let path = &mut qpc.primary_address_path;
        let index = match self {
            Self::Lid => return,
            Self::Grh => 0,
            Self::Gid(index) => index,
        };
        let entry = other.nic().query_gid(1, index.into()).unwrap().unwrap();
        (path.grh, path.src_addr_index) = (self == Self::Grh, index);
        (path.rgid_rip, path.hop_limit) = (entry.gid, 9);
    }
}

fn peers(by: By, plan: CablePlan, seed: u64) -> (Peer, Peer, Cable) {
    let (near, far, cable) = Rig::joined(by.config(), plan, seed);
    let (a, b) = connected(near, far, |other, qpc| by.change(other, qpc));
    (a, b, cable)
}

/// What a cable carries from now on, as a capture file.
fn capture(cable: &Cable) -> Arc<Mutex<Vec<u8>>> {
    let file = Arc::new(Mutex::new(vec![]));
    cable.capture(Shared(file.clone())).unwrap();
    file
}

/// The frames of a capture, which is of a link type.
fn frames(file: &[u8], link_type: u8) -> Vec<Vec<u8>> {
    assert_eq!(file[20..24], [0, 0, 0, link_type]);
    let mut rest = &file[24..];
    let mut frames = vec![];
    while !rest.is_empty() {
        let len = u32::from_be_bytes(rest[8..12].try_into().unwrap()) as usize;
        // InfiniBand's are behind an ERF header.
        let from = if link_type == 197 { 32 } else { 16 };
        frames.push(rest[from..16 + len].to_vec());
        rest = &rest[16 + len..];
    }
    frames
}

#[test]
fn every_operation_reaches_another_nic_by_every_route() {
    for by in ROUTES {
        let (a, b, cable) = peers(by, CablePlan::default(), 1);
        let file = capture(&cable);
        run_everything(a, b, &format!("{by:?}"));
        let stats = cable.stats();
        assert!(stats.lost == 0 && stats.frames > 20, "{by:?}: {stats:?}");
        cable.end_capture().unwrap();
        let bytes = file.lock().unwrap();
        if let Some(folder) = std::env::var_os("WARPVERBS_PCAPS") {
            let name = format!("{by:?}.pcap").replace(['(', ')'], "-");
            std::fs::write(std::path::Path::new(&folder).join(name), &*bytes).unwrap();
        }
        for frame in frames(&bytes, if matches!(by, By::Gid(_)) { 1 } else { 197 }) {
            // Ethernet's type, or what the LRH says follows.
            let (kind, hop_limit) = match by {
                By::Lid => (frame[1] & 3, 9),
                By::Grh => (frame[1] & 3, frame[8 + 7]),
                By::Gid(0 | 2) => (frame[12], frame[14 + 7]),
                By::Gid(1) => (frame[12], frame[14 + 7]),
                By::Gid(_) => (frame[12], frame[14 + 8]),
            };
            let expected = match by {
                By::Lid => 2,
                By::Grh => 3,
                By::Gid(0 | 2) => 0x89,
                By::Gid(1) => 0x86,
                By::Gid(_) => 0x08,
            };
            assert_eq!((kind, hop_limit), (expected, 9), "{by:?}");
        }
    }
}

#[test]
fn loss_repetition_and_other_orders_change_nothing_on_any_route() {
    for by in ROUTES {
        let mut lost = 0;
        for seed in 0..4 {
            let plan = CablePlan {
                loss_ppm: 60_000,
                duplicate_ppm: 60_000,
                reorder_ppm: 100_000,
                reorder_ns: 30_000,
                ..CablePlan::default()
            };
            let (a, b, cable) = peers(by, plan, seed);
            run_everything(a, b, &format!("{by:?}, seed {seed}"));
            lost += cable.stats().lost;
        }
        assert!(lost > 0, "{by:?}");
    }
}

/// A WRITE of 8 bytes: the first frame, byte by byte.
#[test]
fn golden_bytes_of_a_write_by_lid_and_by_roce_v1() {
    let first = |by: By, link_type| {
        let (mut a, b, cable) = peers(by, CablePlan::default(), 1);
        let file = capture(&cable);
        a.rig.write(a.mr.addr, &[1, 2, 3, 4, 5, 6, 7, 8]);
        a.qp.write(&a.rig, a.mr.piece(0, 8), b.mr.piece(0, 8));
        a.qp.ring(&a.rig);
        a.rig.run();
        a.cq.success(&a.rig);
        let frame = frames(&file.lock().unwrap(), link_type).remove(0);
        (frame, b.qp.qpn as u8, b.mr.iova, b.mr.keys.rkey)
    };
    let behind = |qpn: u8, iova: u64, rkey: u32| {
        [
            // BTH: WRITE_ONLY, migrated, partition, QP, acknowledgement, PSN.
            &[0x0a, 0x40, 0xff, 0xff, 0, 0, 1, qpn, 0x80, 0xff, 0xff, 0xfe][..],
            // RETH.
            &iova.to_be_bytes(),
            &rkey.to_be_bytes(),
            &[0, 0, 0, 8],
            &[1, 2, 3, 4, 5, 6, 7, 8],
        ]
        .concat()
    };
    let (frame, qpn, iova, rkey) = first(By::Lid, 197);
    // 12 words: LRH 8, BTH 12, RETH 16, payload 8, invariant CRC 4. Then the variant CRC.
    assert_eq!(frame.len(), 12 * 4 + 2);
    assert_eq!(frame[..8], [0, 2, 0, 2, 0, 12, 0, 1]);
    assert_eq!(frame[8..44], behind(qpn, iova, rkey));
    let (frame, qpn, iova, rkey) = first(By::Gid(2), 1);
    assert_eq!(frame.len(), 14 + 40 + 36 + 4);
    let macs = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x89, 0x15];
    assert_eq!(frame[..14], macs);
    // GRH: 40 bytes behind it, InfiniBand's transport, nine hops; ::ffff:10.0.0.1 to ::ffff:10.0.0.2.
    assert_eq!(frame[14..22], [0x60, 0, 0, 0, 0, 40, 0x1b, 9]);
    let mapped = |host: u8| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, host];
    assert_eq!(frame[22..54], [mapped(1), mapped(2)].concat());
    assert_eq!(frame[54..90], behind(qpn, iova, rkey));
}

/// Posts a WRITE: true if it completes, false if its retries are exhausted.
fn reaches(mut a: Peer, b: &Peer) -> bool {
    a.fill(1);
    a.qp.write(&a.rig, a.mr.piece(0, 8), b.mr.piece(0, 8));
    a.qp.ring(&a.rig);
    a.rig.run();
    match a.cq.poll(&a.rig) {
        Some(Completion::Done(_)) => true,
        Some(Completion::Failed(cqe)) => {
            assert_eq!((cqe.syndrome.code(), cqe.vendor_syndrome), (0x15, 0x81));
            assert_eq!(b.read(0, 8), [0; 8], "the packet was taken");
            false
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn packets_of_another_address_route_or_version_are_not_taken() {
    type Change = fn(&mut Qpc);
    let cases: &[(By, bool, Change)] = &[
        (By::Lid, true, |_| ()),
        // Nobody has the LID, or the GID.
        (By::Lid, false, |qpc| qpc.primary_address_path.rlid = 7),
        (By::Grh, false, |qpc| qpc.primary_address_path.rlid = 7),
        (By::Grh, false, |qpc| {
            qpc.primary_address_path.rgid_rip[15] ^= 0x40
        }),
        // The responder's path has a GRH, and this one not; and the other way round.
        (By::Grh, false, |qpc| qpc.primary_address_path.grh = false),
        (By::Lid, false, |qpc| {
            let path = &mut qpc.primary_address_path;
            (path.grh, path.rgid_rip) = (true, [0xfe; 16]);
        }),
        // RoCE v1 and v2 of the same GIDs do not meet.
        (By::Gid(0), false, |qpc| {
            qpc.primary_address_path.src_addr_index = 1
        }),
        (By::Gid(1), false, |qpc| {
            qpc.primary_address_path.src_addr_index = 0
        }),
        (By::Gid(2), false, |qpc| {
            qpc.primary_address_path.src_addr_index = 3
        }),
        (By::Gid(0), false, |qpc| {
            qpc.primary_address_path.rmac[5] = 7
        }),
        (By::Gid(0), false, |qpc| {
            qpc.primary_address_path.rgid_rip[15] ^= 0x40
        }),
    ];
    for (number, (by, taken, change)) in cases.iter().enumerate() {
        let (near, far, _cable) = Rig::joined(by.config(), CablePlan::default(), 1);
        let near_mac = near.nic().config().mac;
        let (a, b) = connected(near, far, |other, qpc| {
            by.change(other, qpc);
            // The near NIC's path alone.
            if other.nic().config().mac != near_mac {
                change(qpc);
            }
        });
        assert_eq!(reaches(a, &b), *taken, "case {number}: {by:?}");
    }
}

#[test]
fn a_port_that_demands_a_grh_takes_no_packet_without() {
    // The far port demands it; the near one's driver does not know.
    for (by, taken) in [(By::Lid, false), (By::Grh, true)] {
        let (near, _, _) = Rig::joined(by.config(), CablePlan::default(), 1);
        let far = Rig::with(NicConfig {
            grh_required: true,
            lid: 2,
            mac: [2, 0, 0, 0, 0, 2],
            ..by.config()
        });
        assert!(far.nic().query_port(1).unwrap().grh_required);
        let (_cable, one, two) = Cable::new(CablePlan::default(), 1);
        near.nic().connect(one);
        far.nic().connect(two);
        let (mut a, b) = connected(near, far, |other, qpc| {
            // A path of the far NIC has a GRH in any case: it refuses others.
            let of_far = other.nic().config().lid == 1;
            if of_far { By::Grh } else { by }.change(other, qpc);
        });
        a.qp.write(&a.rig, a.mr.piece(0, 8), b.mr.piece(0, 8));
        a.qp.ring(&a.rig);
        let completion = loop {
            let steps = a.rig.run() + b.rig.run();
            if let Some(completion) = a.cq.poll(&a.rig) {
                break completion;
            }
            assert!(steps > 0, "nothing happens");
        };
        assert_eq!(matches!(completion, Completion::Done(_)), taken, "{by:?}");
    }
}

#[test]
fn packets_stay_in_their_partition() {
    let full = [0xffff];
    for (near, far, index, taken) in [
        (&full[..], &full[..], 0, true),
        (&[0x7fff], &full, 0, true),
        (&full, &[0x7fff], 0, true),
        // Two limited members.
        (&[0x7fff], &[0x7fff], 0, false),
        (&[0x8001], &full, 0, false),
        // Zero is none, whatever the membership.
        (&[0x8000], &[0x8000], 0, false),
        (&[0xffff, 0x8002], &[0xffff, 0x0002], 1, true),
        (&[0xffff, 0x8002], &[0xffff, 0x8003], 1, false),
        // An empty entry is no partition.
        (&full, &full, 5, false),
    ] {
        for by in ROUTES {
            let config = |pkeys: &[u16], host: u8| NicConfig {
                pkeys: pkeys.to_vec(),
                mac: [2, 0, 0, 0, 0, host],
                lid: host.into(),
                ..by.config()
            };
            let (mut rigs, cable) = joined_with(config(near, 1), config(far, 2));
            let far_rig = rigs.pop().unwrap();
            let near_rig = rigs.pop().unwrap();
            let file = capture(&cable);
            let (a, b) = connected(near_rig, far_rig, |other, qpc| {
                by.change(other, qpc);
                qpc.primary_address_path.pkey_index = index;
            });
            for (peer, pkeys) in [(&a, near), (&b, far)] {
                if by == By::Lid {
                    let request = query_hca_vport_pkey::In {
                        port_num: 1,
                        pkey_index: index,
                        ..Default::default()
                    };
                    let told = peer.rig.command(request).unwrap().pkey;
                    assert_eq!(told, pkeys.get(usize::from(index)).copied().unwrap_or(0));
                }
            }
            let what = format!("{near:x?} to {far:x?}, {index}, {by:?}");
            assert_eq!(reaches_apart(a, &b), taken, "{what}");
            let sent = near.get(usize::from(index)).copied().unwrap_or(0);
            if by == By::Lid {
                let frame = frames(&file.lock().unwrap(), 197).remove(0);
                assert_eq!(frame[10..12], sent.to_be_bytes(), "{what}");
            }
        }
    }
}

/// As [`reaches`], of NICs on buses of their own.
fn reaches_apart(mut a: Peer, b: &Peer) -> bool {
    a.qp.write(&a.rig, a.mr.piece(0, 8), b.mr.piece(0, 8));
    a.qp.ring(&a.rig);
    loop {
        let steps = a.rig.run() + b.rig.run();
        match a.cq.poll(&a.rig) {
            Some(Completion::Done(_)) => return true,
            Some(Completion::Failed(cqe)) => {
                assert_eq!((cqe.syndrome.code(), cqe.vendor_syndrome), (0x15, 0x81));
                return false;
            }
            Some(other) => panic!("{other:?}"),
            None => assert!(steps > 0, "nothing happens"),
        }
    }
}

fn joined_with(near: NicConfig, far: NicConfig) -> (Vec<Rig>, Cable) {
    let (cable, one, two) = Cable::new(CablePlan::default(), 1);
    let rigs = vec![Rig::with(near), Rig::with(far)];
    rigs[0].nic().connect(one);
    rigs[1].nic().connect(two);
    (rigs, cable)
}

/// The partition is INIT's; INIT2INIT and INIT2RTR change it where they name it (Linux mlx5 `opt_mask`).
#[test]
fn the_partition_of_init_holds_unless_it_is_changed_by_name() {
    let cases = [
        (0, None, None, true),
        (1, None, None, false),
        (1, Some(0), None, true),
        (1, None, Some(0), true),
        (0, Some(1), None, false),
        (0, None, Some(1), false),
    ];
    for (init, again, rtr, taken) in cases {
        let config = NicConfig {
            pkeys: vec![0xffff, 0x8002],
            ..By::Lid.config()
        };
        let (near, far, _cable) = Rig::joined(config, CablePlan::default(), 1);
        let (a, b) = connected(near, far, |_, _| ());
        // The same QP anew.
        a.rig.to_reset(a.qp.qpn);
        let mut request = a.rig.rst2init(a.qp.qpn);
        request.qpc.primary_address_path.pkey_index = init;
        a.rig.command(request).unwrap();
        if let Some(index) = again {
            let mut request = init2init_qp::In {
                qpn: a.qp.qpn,
                opt_param_mask: OptParam::PKEY_INDEX,
                ..Default::default()
            };
            request.qpc.primary_address_path.pkey_index = index;
            a.rig.command(request).unwrap();
        }
        let mut request = a.rig.init2rtr(a.qp.qpn, b.qp.qpn);
        request.qpc.primary_address_path = a.rig.path_to(&b.rig);
        // Not named, it is not looked at.
        request.qpc.primary_address_path.pkey_index = rtr.unwrap_or(9);
        if rtr.is_some() {
            request.opt_param_mask = OptParam::PKEY_INDEX;
        }
        a.rig.command(request).unwrap();
        a.rig.command(a.rig.rtr2rts(a.qp.qpn)).unwrap();
        let what = format!("{init}, {again:?}, {rtr:?}");
        assert_eq!(reaches(a, &b), taken, "{what}");
    }
}

/// No byte of a frame can change without the frame being dropped, but for those that may change on the way.
#[test]
fn a_frame_with_any_byte_changed_cut_off_or_added_is_dropped_or_the_same() {
    for by in ROUTES {
        let (mut a, b, cable) = peers(by, CablePlan::default(), 1);
        let file = capture(&cable);
        a.qp.write(&a.rig, a.mr.piece(0, 5), b.mr.piece(0, 5));
        a.qp.ring(&a.rig);
        a.rig.run();
        let infiniband = !matches!(by, By::Gid(_));
        let frame = frames(&file.lock().unwrap(), if infiniband { 197 } else { 1 }).remove(0);
        for at in 0..frame.len() {
            for bits in [1, 0x80, 0xff] {
                let mut changed = frame.clone();
                changed[at] ^= bits;
                if infiniband {
                    // The variant CRC covers all.
                    assert!(Native::parse_infiniband(&changed).is_err(), "{by:?}: {at}");
                } else if let Ok(native) = Native::parse_roce_v1(&changed) {
                    // MAC addresses; traffic class, flow label, hop limit; reserved bits of the BTH.
                    let free = at < 12 || (14..18).contains(&at) || [21, 58].contains(&at);
                    assert!(free, "{by:?}: {at}");
                    let original = Native::parse_roce_v1(&frame).unwrap();
                    assert_eq!(native.payload, original.payload);
                    assert!(matches!(native.route, Route::RoceV1 { .. }));
                }
            }
            let cut = &frame[..at];
            assert!(Native::parse_infiniband(cut).is_err() && Native::parse_roce_v1(cut).is_err());
        }
        let longer = [&frame[..], &[0; 4]].concat();
        assert!(Native::parse_infiniband(&longer).is_err());
    }
}

#[test]
fn infiniband_and_roce_v1_go_over_a_socket_too() {
    for by in [By::Lid, By::Grh, By::Gid(0)] {
        let config = |host: u8| NicConfig {
            mac: [2, 0, 0, 0, 0, host],
            lid: host.into(),
            ..by.config()
        };
        let (near, far) = (Rig::with(config(1)), Rig::with(config(2)));
        let (one, two) = UnixDatagram::pair().unwrap();
        near.nic().connect(SocketEnd::new(one).unwrap());
        far.nic().connect(SocketEnd::new(two).unwrap());
        let (mut a, b) = connected(near, far, |other, qpc| {
            by.change(other, qpc);
            qpc.primary_address_path.ack_timeout = 15;
        });
        let bytes = a.fill(1);
        b.fill(2);
        b.rig.write(b.mr.addr + 0x8000, &41u64.to_le_bytes());
        a.qp.write(&a.rig, a.mr.piece(0, 10_000), b.mr.piece(0, 10_000));
        let read = [
            b.mr.piece(0, 5000).remote(),
            a.mr.piece(0xa000, 5000).local(),
        ]
        .concat();
        a.qp.post(&a.rig, Opcode::RdmaRead, SIGNALLED, &read);
        let add = [
            b.mr.piece(0x8000, 8).remote(),
            segment_bytes(fetch_add(1)).to_vec(),
            a.mr.piece(0x9000, 8).local(),
        ];
        a.qp.post(&a.rig, Opcode::AtomicFetchAdd, SIGNALLED, &add.concat());
        a.qp.ring(&a.rig);
        let begun = Instant::now();
        let mut done = 0;
        while done < 3 {
            a.rig.bus.lock().run_devices(1000);
            b.rig.bus.lock().run_devices(1000);
            match a.cq.poll(&a.rig) {
                Some(Completion::Done(_)) => done += 1,
                Some(other) => panic!("{by:?}: {other:?}"),
                None => assert!(begun.elapsed() < Duration::from_secs(60), "{by:?}"),
            }
        }
        assert_eq!(b.read(0, 10_000), bytes[..10_000]);
        assert_eq!(a.read(0xa000, 5000), bytes[..5000]);
        assert_eq!(a.read(0x9000, 8), 41u64.to_le_bytes());
        assert_eq!(b.read(0x8000, 8), 42u64.to_le_bytes());
        assert_eq!(b.rig.state(b.qp.qpn), QpState::Rts);
    }
}
