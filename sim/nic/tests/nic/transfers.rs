//! RDMA WRITE, inline WRITE, READ, NOP and DUMP between QPs of one NIC.

use warpverbs_sim_bus::Purpose;
use warpverbs_sim_nic::{NicConfig, access};
use warpverbs_wire::prm::query_special_contexts;
use warpverbs_wire::wqe::{FENCE, Opcode, SIGNALLED};

use crate::rig::{ALL_RIGHTS, Piece, Rig, inline, pattern};

const SIZES: [u32; 12] = [1, 2, 3, 7, 64, 255, 1023, 1024, 1025, 4097, 65_536, 100_001];

#[test]
fn a_write_moves_exactly_its_bytes() {
    let rig = Rig::new();
    let mut cq = rig.cq(4);
    let (mut a, _b) = rig.pair(&cq, 4);
    let len = 200_000;
    let (source, target) = (rig.mr(len, 0), rig.mr(len, ALL_RIGHTS));
    rig.write(source.addr, &pattern(len as usize, 1));
    for (n, size) in (0u64..).zip(SIZES) {
        rig.write(target.addr, &vec![0xee; len as usize]);
        let index = a.write(
            &rig,
            source.piece(n + 3, size),
            target.piece(2 * n + 5, size),
        );
        a.ring(&rig);
        rig.run();
        let cqe = cq.success(&rig);
        assert_eq!(
            (cqe.wqe_counter, cqe.qpn, cqe.send_opcode, cqe.srqn_uidx),
            (index as u16, a.qpn, 0x08, 0x12_3456)
        );
        let mut expected = vec![0xee; len as usize];
        let (from, to, size) = ((n + 3) as usize, (2 * n + 5) as usize, size as usize);
        expected[to..to + size].copy_from_slice(&pattern(len as usize, 1)[from..from + size]);
        assert!(
            rig.read(target.addr, len as usize) == expected,
            "{size} bytes"
        );
    }
    let stats = rig.nic().stats().clone();
    let bytes: u64 = SIZES.iter().map(|size| u64::from(*size)).sum();
    assert_eq!((stats.bytes_read, stats.bytes_written), (bytes, bytes));
    assert_eq!(
        (stats.executed[&0x08], stats.cqes),
        (SIZES.len() as u64, SIZES.len() as u64)
    );
    rig.assert_no_findings();
}

#[test]
fn a_read_moves_exactly_its_bytes_and_reports_their_count() {
    let rig = Rig::new();
    let mut cq = rig.cq(4);
    let (mut a, _b) = rig.pair(&cq, 4);
    let len = 200_000;
    let (local, remote) = (rig.mr(len, ALL_RIGHTS), rig.mr(len, ALL_RIGHTS));
    rig.write(remote.addr, &pattern(len as usize, 9));
    for (n, size) in (0u64..).zip(SIZES) {
        rig.write(local.addr, &vec![0xdd; len as usize]);
        let segments = [
            remote.piece(n, size).remote(),
            local.piece(n + 1, size).local(),
        ]
        .concat();
        a.post(&rig, Opcode::RdmaRead, SIGNALLED, &segments);
        a.ring(&rig);
        rig.run();
        assert_eq!(cq.success(&rig).byte_count, size);
        let mut expected = vec![0xdd; len as usize];
        let (at, size) = (n as usize, size as usize);
        expected[at + 1..at + 1 + size].copy_from_slice(&pattern(len as usize, 9)[at..at + size]);
        assert!(
            rig.read(local.addr, len as usize) == expected,
            "{size} bytes"
        );
    }
    rig.assert_no_findings();
}

#[test]
fn inline_data_of_every_size_around_a_segment_and_a_wqebb() {
    let rig = Rig::new();
    let mut cq = rig.cq(4);
    let (mut a, _b) = rig.pair(&cq, 4);
    let target = rig.mr(512, ALL_RIGHTS);
    for size in [0usize, 1, 3, 4, 12, 13, 27, 28, 29, 44, 45, 92, 93, 200] {
        rig.write(target.addr, &[0xee; 512]);
        let data = pattern(size, 7);
        let segments = [target.piece(9, 0).remote(), inline(&data)].concat();
        let index = a.post(&rig, Opcode::RdmaWrite, SIGNALLED, &segments);
        a.ring(&rig);
        rig.run();
        assert_eq!(cq.success(&rig).wqe_counter, index as u16);
        let mut expected = vec![0xee; 512];
        expected[9..9 + size].copy_from_slice(&data);
        assert_eq!(rig.read(target.addr, 512), expected, "{size} bytes");
    }
    rig.assert_no_findings();
}

#[test]
fn several_data_segments_are_joined_and_split() {
    let rig = Rig::new();
    let mut cq = rig.cq(4);
    let (mut a, _b) = rig.pair(&cq, 4);
    let (local, remote) = (rig.mr(8192, ALL_RIGHTS), rig.mr(8192, ALL_RIGHTS));
    let other = rig.mr(8192, ALL_RIGHTS);
    rig.write(local.addr, &pattern(8192, 1));
    rig.write(other.addr, &pattern(8192, 2));
    // 5 data segments: 7 segments in all, two WQEBBs.
    let pieces = [
        (local, 100, 1),
        (other, 7, 1500),
        (local, 3, 33),
        (other, 4000, 2000),
        (local, 0, 5),
    ];
    let mut joined = vec![];
    let mut segments = remote.piece(11, 0).remote();
    for (mr, offset, len) in pieces {
        segments.extend(mr.piece(offset, len).local());
        joined.extend(rig.read(mr.addr + offset, len as usize));
    }
    a.post(&rig, Opcode::RdmaWrite, SIGNALLED, &segments);
    a.ring(&rig);
    rig.run();
    cq.success(&rig);
    assert_eq!(rig.read(remote.addr + 11, joined.len()), joined);

    // And back: READ scatters the same bytes over cleared memory.
    rig.write(local.addr, &[0; 8192]);
    rig.write(other.addr, &[0; 8192]);
    let index = a.post(&rig, Opcode::RdmaRead, SIGNALLED, &segments);
    a.ring(&rig);
    rig.run();
    assert_eq!(cq.success(&rig).wqe_counter, index as u16);
    assert_eq!(index, 2, "the first WQE took two WQEBBs");
    let back: Vec<u8> = pieces
        .iter()
        .flat_map(|(mr, offset, len)| rig.read(mr.addr + offset, *len as usize))
        .collect();
    assert_eq!(back, joined);
    rig.assert_no_findings();
}

#[test]
fn a_write_of_no_bytes_looks_at_no_key() {
    let rig = Rig::new();
    let mut cq = rig.cq(4);
    let (mut a, _b) = rig.pair(&cq, 4);
    let mut nowhere = rig.mr(64, 0).piece(0, 0);
    nowhere.key = 0xdead_beef;
    for opcode in [Opcode::RdmaWrite, Opcode::RdmaRead] {
        a.post(&rig, opcode, SIGNALLED, &nowhere.remote());
        a.ring(&rig);
        rig.run();
        assert_eq!(cq.success(&rig).byte_count, 0);
    }
    rig.assert_no_findings();
}

#[test]
fn a_byte_count_of_zero_means_two_gib() {
    let rig = Rig::new();
    let mut cq = rig.cq(4);
    let (mut a, _b) = rig.pair(&cq, 4);
    let mr = rig.mr(64, ALL_RIGHTS);
    let index = a.write(&rig, mr.piece(0, 0), mr.piece(0, 0));
    a.ring(&rig);
    rig.run();
    assert_eq!(cq.error(&rig), (0x01, 0, index as u16));
    assert_eq!(rig.take_findings(), ["wqe-malformed"]);
}

#[test]
fn a_qp_connected_to_itself_loops_back() {
    let rig = Rig::new();
    let mut cq = rig.cq(4);
    let mut qp = rig.qp(&cq, 4);
    rig.to_rts(qp.qpn, qp.qpn);
    let (source, target) = (rig.mr(5000, 0), rig.mr(5000, ALL_RIGHTS));
    rig.write(source.addr, &pattern(5000, 3));
    for _ in 0..3 {
        qp.write(&rig, source.piece(0, 5000), target.piece(0, 5000));
    }
    qp.ring(&rig);
    rig.run();
    for _ in 0..3 {
        cq.success(&rig);
    }
    assert_eq!(rig.read(target.addr, 5000), pattern(5000, 3));
    rig.assert_no_findings();
}

#[test]
fn the_null_key_reads_zeroes_and_drops_what_is_written() {
    let rig = Rig::new();
    let null = rig
        .command(query_special_contexts::In {})
        .unwrap()
        .null_mkey;
    let mut cq = rig.cq(4);
    let (mut a, _b) = rig.pair(&cq, 4);
    let mr = rig.mr(64, ALL_RIGHTS);
    rig.write(mr.addr, &[0xee; 64]);
    let nothing = Piece {
        key: null,
        iova: 0xdead_0000,
        len: 16,
    };
    a.write(&rig, nothing, mr.piece(0, 16));
    let segments = [
        mr.piece(32, 8).remote(),
        Piece { len: 8, ..nothing }.local(),
    ]
    .concat();
    a.post(&rig, Opcode::RdmaRead, SIGNALLED, &segments);
    a.ring(&rig);
    rig.run();
    cq.success(&rig);
    cq.success(&rig);
    assert_eq!(rig.read(mr.addr, 16), [0; 16]);
    assert_eq!(rig.read(mr.addr + 16, 48), [0xee; 48]);
    rig.assert_no_findings();
    // It is no remote key.
    a.write(&rig, mr.piece(0, 16), nothing);
    a.ring(&rig);
    rig.run();
    assert_eq!(cq.error(&rig), (0x13, 0x88, 2));
}

/// `ads.fl`: the path ends at this NIC whatever address it has, or without any.
#[test]
fn a_path_with_force_loopback_needs_no_address() {
    for (gid, mac) in [([0; 16], [0; 6]), ([9; 16], [4; 6])] {
        let rig = Rig::new();
        let mut cq = rig.cq(4);
        let (mut a, b) = (rig.qp(&cq, 4), rig.qp(&cq, 4));
        for (qpn, peer) in [(a.qpn, b.qpn), (b.qpn, a.qpn)] {
            rig.command(rig.rst2init(qpn)).unwrap();
            let mut request = rig.init2rtr(qpn, peer);
            let path = &mut request.qpc.primary_address_path;
            (path.fl, path.rgid_rip, path.rmac) = (true, gid, mac);
            rig.command(request).unwrap();
            rig.command(rig.rtr2rts(qpn)).unwrap();
        }
        let mr = rig.mr(64, ALL_RIGHTS);
        rig.write(mr.addr, &pattern(8, 1));
        a.write(&rig, mr.piece(0, 8), mr.piece(32, 8));
        a.ring(&rig);
        rig.run();
        cq.success(&rig);
        assert_eq!(rig.read(mr.addr + 32, 8), pattern(8, 1));
        rig.assert_no_findings();
    }
}

#[test]
fn nop_and_dump_complete_in_order_and_move_nothing() {
    let rig = Rig::new();
    let mut cq = rig.cq(4);
    let (mut a, _b) = rig.pair(&cq, 4);
    let mr = rig.mr(4096, 0);
    let fill = rig
        .command(query_special_contexts::In {})
        .unwrap()
        .dump_fill_mkey;
    let mut through_fill = mr.piece(0, 64);
    through_fill.key = fill;
    let first = a.nop(&rig);
    a.post(&rig, Opcode::Dump, SIGNALLED, &mr.piece(1, 3000).local());
    a.post(&rig, Opcode::Dump, SIGNALLED | FENCE, &through_fill.local());
    a.ring(&rig);
    rig.run();
    let counters: Vec<u16> = (0..3).map(|_| cq.success(&rig).wqe_counter).collect();
    assert_eq!(counters, [first as u16, first as u16 + 1, first as u16 + 2]);
    assert_eq!(rig.nic().stats().bytes_read, 3000);
    assert_eq!(rig.nic().stats().bytes_written, 0);
    rig.assert_no_findings();
}

#[test]
fn unsignalled_successes_give_no_cqe() {
    let rig = Rig::new();
    let mut cq = rig.cq(4);
    let (mut a, _b) = rig.pair(&cq, 4);
    let (source, target) = (rig.mr(64, 0), rig.mr(64, ALL_RIGHTS));
    let segments = [target.piece(0, 64).remote(), source.piece(0, 64).local()].concat();
    for flags in [0, 0, SIGNALLED, 0] {
        a.post(&rig, Opcode::RdmaWrite, flags, &segments);
    }
    a.ring(&rig);
    rig.run();
    assert_eq!(cq.success(&rig).wqe_counter, 2);
    cq.assert_empty(&rig);
    let qpc = rig.query_qp(a.qpn);
    assert_eq!((qpc.hw_sq_wqebb_counter, qpc.sw_sq_wqebb_counter), (4, 4));
    rig.assert_no_findings();
}

/// Rings wrap many times, WQEs of two WQEBBs straddle the end, and indices cross 16, 24 and 32 bits.
#[test]
fn many_laps_from_every_first_index() {
    for first_index in [
        0,
        (1 << 16) - 9,
        (1 << 24) - 9,
        (1u64 << 32) - 9,
        (1u64 << 40) + 5,
    ] {
        let rig = Rig::with(NicConfig {
            first_index,
            ..NicConfig::default()
        });
        let mut cq = rig.cq(2);
        let (mut a, _b) = rig.pair(&cq, 3);
        assert_eq!(a.next, first_index);
        let target = rig.mr(256, ALL_RIGHTS);
        for round in 0..200u32 {
            let data = pattern(29 + (round % 2) as usize * 15, round as u8);
            let long = [target.piece(0, 0).remote(), inline(&data)].concat();
            // 5 segments: two WQEBBs; the odd NOP moves the boundary.
            let index = a.post(&rig, Opcode::RdmaWrite, SIGNALLED, &long);
            let nop = (round % 3 == 0).then(|| a.nop(&rig));
            a.ring(&rig);
            rig.run();
            assert_eq!(cq.success(&rig).wqe_counter, index as u16);
            if let Some(nop) = nop {
                assert_eq!(cq.success(&rig).wqe_counter, nop as u16);
            }
            cq.assert_empty(&rig);
            assert_eq!(rig.read(target.addr, data.len()), data);
        }
        assert!(a.next - first_index > 20 * a.depth);
        rig.assert_no_findings();
    }
}

#[test]
fn the_same_seed_gives_the_same_order_and_another_may_not() {
    let order = |seed| {
        let rig = Rig::with(NicConfig {
            seed,
            ..NicConfig::default()
        });
        let mut cq = rig.cq(7);
        let mut qps: Vec<_> = (0..4).map(|_| rig.pair(&cq, 5).0).collect();
        for qp in &mut qps {
            for _ in 0..16 {
                qp.nop(&rig);
            }
            qp.ring(&rig);
        }
        rig.run();
        rig.assert_no_findings();
        std::iter::from_fn(|| cq.poll(&rig)).collect::<Vec<_>>()
    };
    let first = order(1);
    assert_eq!(first.len(), 64);
    assert_eq!(first, order(1));
    assert_ne!(first, order(2));
}

#[test]
fn queues_may_start_inside_a_umem_at_a_multiple_of_64_bytes() {
    let rig = Rig::new();
    let mut cq = rig.cq(4);
    let (mut request, mut a) = rig.qp_request(&cq, 4);
    // The ring crosses a page of the UMEM.
    let (umem, base) = rig.umem(3 * 4096);
    request.wq_umem_id = umem;
    request.wq_umem_offset = 4096 - 5 * 64;
    a.ring = base + request.wq_umem_offset;
    a.qpn = rig.command(request).unwrap().qpn;
    rig.to_rts(a.qpn, a.qpn);
    for _ in 0..16 {
        a.nop(&rig);
    }
    a.ring(&rig);
    rig.run();
    for index in 0..16 {
        assert_eq!(cq.success(&rig).wqe_counter, index);
    }
    rig.assert_no_findings();
}

#[test]
fn payload_comes_before_the_cqe_and_its_last_word_last() {
    for rights in [ALL_RIGHTS, ALL_RIGHTS | access::RELAXED_ORDERING] {
        let rig = Rig::new();
        let mut cq = rig.cq(4);
        let (mut a, _b) = rig.pair(&cq, 4);
        let (source, target) = (rig.mr(4096, 0), rig.mr(4096, rights));
        a.write(&rig, source.piece(0, 1500), target.piece(0, 1500));
        a.ring(&rig);
        rig.take_trace();
        rig.run();
        let seen: Vec<_> = rig
            .take_trace()
            .iter()
            .map(|access| {
                (
                    access.write,
                    access.purpose,
                    access.relaxed_ordering,
                    access.addr,
                    access.len,
                )
            })
            .collect();
        let relaxed = rights & access::RELAXED_ORDERING != 0;
        assert_eq!(
            seen,
            [
                (false, Purpose::Dbr, false, a.dbr + 4, 4),
                // Declared segments only.
                (false, Purpose::Wqe, false, a.ring, 16),
                (false, Purpose::Wqe, false, a.ring + 16, 32),
                // The path MTU is 1024.
                (false, Purpose::Payload, false, source.addr, 1024),
                (true, Purpose::Payload, relaxed, target.addr, 1024),
                (false, Purpose::Payload, false, source.addr + 1024, 476),
                (true, Purpose::Payload, relaxed, target.addr + 1024, 476),
                // Once more, to see that it is what was fetched.
                (false, Purpose::Wqe, false, a.ring, 48),
                (true, Purpose::Cqe, false, cq.ring, 56),
                (true, Purpose::Cqe, false, cq.ring + 56, 8),
            ]
        );
        cq.success(&rig);
    }
}
