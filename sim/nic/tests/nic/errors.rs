//! What fails, how it is reported, and what happens to the rest of the queue.

use warpverbs_sim_nic::{FindingKind, FindingPolicy, InjectedFault, NicConfig, access};
use warpverbs_wire::doorbell::doorbell;
use warpverbs_wire::prm::init2rtr_qp;
use warpverbs_wire::prm::qpc::{Mtu, QpState};
use warpverbs_wire::wqe::{Opcode, SIGNALLED};

use crate::rig::{ALL_RIGHTS, Piece, Rig, TestMr, inline};

/// Posts one WRITE with two NOPs behind it and returns the errors of all three.
#[track_caller]
fn write_fails(
    rig: &Rig,
    from: impl Fn(&TestMr) -> Piece,
    to: impl Fn(&TestMr) -> Piece,
) -> (u8, u8) {
    let mut cq = rig.cq(4);
    let (mut a, b) = rig.pair(&cq, 4);
    let (source, target) = (rig.mr(4096, ALL_RIGHTS), rig.mr(4096, ALL_RIGHTS));
    rig.write(target.addr, &[0xee; 4096]);
    let ok = a.nop(rig);
    let bad = a.write(rig, from(&source), to(&target));
    a.nop(rig);
    a.nop(rig);
    a.ring(rig);
    rig.run();
    assert_eq!(
        cq.success(rig).wqe_counter,
        ok as u16,
        "a success before the error is one"
    );
    let (syndrome, vendor, counter) = cq.error(rig);
    assert_eq!(counter, bad as u16);
    assert_eq!(cq.error(rig), (0x05, 0xf9, bad as u16 + 1));
    assert_eq!(cq.error(rig), (0x05, 0xf9, bad as u16 + 2));
    cq.assert_empty(rig);
    assert_eq!(rig.state(a.qpn), QpState::Err);
    // A refused requester takes the responder along; a local error does not.
    let peer = if (0x12..=0x14).contains(&syndrome) {
        QpState::Err
    } else {
        QpState::Rts
    };
    assert_eq!(rig.state(b.qpn), peer);
    assert_eq!(
        rig.read(target.addr, 4096),
        [0xee; 4096],
        "nothing was written"
    );
    (syndrome, vendor)
}

const REMOTE_ACCESS: (u8, u8) = (0x13, 0x88);
const LOCAL_PROTECTION: (u8, u8) = (0x04, 0x52);

#[test]
fn remote_keys_are_checked_for_existence_pd_rights_and_bounds() {
    let rig = Rig::new();
    let whole = |mr: &TestMr| mr.piece(0, 100);
    let foreign_pd = rig.nic().alloc_pd().unwrap();
    let other = rig.mr(4096, access::LOCAL_WRITE | access::REMOTE_READ);
    let foreign = rig.mr_at(foreign_pd, rig.alloc(4096), 4096, 0x1000, ALL_RIGHTS);
    for to in [
        Piece {
            key: 0xdead_be00,
            ..other.piece(0, 0)
        },
        other.piece(0, 100),
        foreign.piece(0, 100),
    ] {
        assert_eq!(write_fails(&rig, whole, |_| to), REMOTE_ACCESS, "{to:x?}");
    }
    // Out of bounds by one byte, at either end, and around the end of the address space.
    assert_eq!(
        write_fails(&rig, whole, |mr| mr.piece(4096 - 99, 100)),
        REMOTE_ACCESS
    );
    assert_eq!(
        write_fails(&rig, whole, |mr| mr.piece(u64::MAX, 100)),
        REMOTE_ACCESS
    );
    let far = |mr: &TestMr| Piece {
        iova: u64::MAX - 10,
        ..mr.piece(0, 0)
    };
    assert_eq!(write_fails(&rig, whole, far), REMOTE_ACCESS);
    // Another low byte names another key.
    let variant = |mr: &TestMr| Piece {
        key: mr.keys.rkey ^ 1,
        ..mr.piece(0, 100)
    };
    assert_eq!(write_fails(&rig, whole, variant), REMOTE_ACCESS);
    rig.assert_no_findings();
}

#[test]
fn local_keys_are_checked_before_anything_moves() {
    let rig = Rig::new();
    let whole = |mr: &TestMr| mr.piece(0, 100);
    let foreign_pd = rig.nic().alloc_pd().unwrap();
    let foreign = rig.mr_at(foreign_pd, rig.alloc(4096), 4096, 0x1000, ALL_RIGHTS);
    assert_eq!(
        write_fails(&rig, |_| foreign.piece(0, 100), whole),
        LOCAL_PROTECTION
    );
    let long = |mr: &TestMr| mr.piece(1, 4096);
    assert_eq!(write_fails(&rig, long, whole), LOCAL_PROTECTION);
    let before = |mr: &TestMr| mr.piece(u64::MAX, 2);
    assert_eq!(write_fails(&rig, before, whole), LOCAL_PROTECTION);
    rig.assert_no_findings();
}

#[test]
fn a_read_needs_local_write_and_remote_read() {
    let rig = Rig::new();
    let mut cq = rig.cq(4);
    let (read_only, no_read) = (
        rig.mr(64, 0),
        rig.mr(64, access::LOCAL_WRITE | access::REMOTE_WRITE),
    );
    let good = rig.mr(64, ALL_RIGHTS);
    for (local, remote, expected) in [
        (read_only, good, LOCAL_PROTECTION),
        (good, no_read, REMOTE_ACCESS),
        (good, read_only, REMOTE_ACCESS),
    ] {
        let (mut a, _b) = rig.pair(&cq, 4);
        let segments = [remote.piece(0, 8).remote(), local.piece(0, 8).local()].concat();
        a.post(&rig, Opcode::RdmaRead, SIGNALLED, &segments);
        a.ring(&rig);
        rig.run();
        assert_eq!(cq.error(&rig), (expected.0, expected.1, 0));
    }
    rig.assert_no_findings();
}

#[test]
fn a_deregistered_key_is_an_error_and_a_finding_that_names_it() {
    let rig = Rig::new();
    for (remote, expected) in [(true, REMOTE_ACCESS), (false, LOCAL_PROTECTION)] {
        let gone = rig.mr(4096, ALL_RIGHTS);
        rig.nic().dereg_mr(gone.keys.lkey).unwrap();
        let whole = |mr: &TestMr| mr.piece(0, 100);
        let seen = if remote {
            write_fails(&rig, whole, |_| gone.piece(0, 100))
        } else {
            write_fails(&rig, |_| gone.piece(0, 100), whole)
        };
        assert_eq!(seen, expected);
        let key = gone.keys.lkey;
        assert_eq!(rig.finding_kinds(), [FindingKind::DeregisteredKey { key }]);
        let line = rig.nic().findings()[0].to_string();
        assert!(line.contains(&format!("MKey {:#x}", key >> 8)), "{line}");
        rig.take_findings();
    }
}

#[test]
fn a_key_deregistered_while_its_message_moves_stops_it() {
    let rig = Rig::new();
    let mut cq = rig.cq(4);
    let (mut a, _b) = rig.pair(&cq, 4);
    let (source, target) = (rig.mr(1 << 16, 0), rig.mr(1 << 16, ALL_RIGHTS));
    rig.write(source.addr, &[7; 1 << 16]);
    a.write(&rig, source.piece(0, 1 << 16), target.piece(0, 1 << 16));
    a.ring(&rig);
    for _ in 0..5 {
        rig.bus.lock().step_device(0);
    }
    rig.nic().dereg_mr(target.keys.lkey).unwrap();
    rig.run();
    assert_eq!(cq.error(&rig), (0x13, 0x88, 0));
    assert_eq!(rig.take_findings(), ["deregistered-key"]);
    assert_eq!(
        rig.read(target.addr + (1 << 16) - 1, 1),
        [0],
        "the last byte never came"
    );
}

#[test]
fn freed_memory_is_an_error_and_a_finding() {
    for remote in [true, false] {
        let rig = Rig::new();
        let mut cq = rig.cq(4);
        let (mut a, _b) = rig.pair(&cq, 4);
        let (kept, freed) = (rig.mr(64, ALL_RIGHTS), rig.mr(64, ALL_RIGHTS));
        rig.free(freed.addr);
        let (from, to) = if remote { (kept, freed) } else { (freed, kept) };
        a.write(&rig, from.piece(0, 8), to.piece(0, 8));
        a.ring(&rig);
        rig.run();
        let expected = if remote { (0x14, 0) } else { LOCAL_PROTECTION };
        assert_eq!(cq.error(&rig), (expected.0, expected.1, 0));
        assert_eq!(
            rig.finding_kinds(),
            [FindingKind::DmaFault { addr: freed.addr }]
        );
    }
}

#[test]
fn a_freed_ring_is_reported() {
    let rig = Rig::new();
    let cq = rig.cq(4);
    let (mut a, _b) = rig.pair(&cq, 4);
    a.nop(&rig);
    a.ring(&rig);
    rig.free(a.ring);
    rig.run();
    // The record lies in the same allocation.
    assert_eq!(rig.state(a.qpn), QpState::Err);
    let kinds = rig.take_findings();
    assert!(
        kinds.iter().all(|kind| *kind == "dma-fault") && !kinds.is_empty(),
        "{kinds:?}"
    );
}

#[test]
fn a_qp_that_does_not_allow_an_operation_answers_invalid_request() {
    let rig = Rig::new();
    let mut cq = rig.cq(4);
    let mr = rig.mr(64, ALL_RIGHTS);
    for opcode in [Opcode::RdmaWrite, Opcode::RdmaRead] {
        let (mut a, b) = (rig.qp(&cq, 4), rig.qp(&cq, 4));
        rig.to_rts(a.qpn, b.qpn);
        let mut request = rig.rst2init(b.qpn);
        (request.qpc.rwe, request.qpc.rre) =
            (opcode != Opcode::RdmaWrite, opcode != Opcode::RdmaRead);
        rig.command(request).unwrap();
        rig.command(rig.init2rtr(b.qpn, a.qpn)).unwrap();
        a.post(
            &rig,
            opcode,
            SIGNALLED,
            &[mr.piece(0, 8).remote(), mr.piece(8, 8).local()].concat(),
        );
        a.ring(&rig);
        rig.run();
        assert_eq!(cq.error(&rig), (0x12, 0x8a, 0));
        assert_eq!(rig.state(b.qpn), QpState::Err);
    }
}

/// Connects two QPs with a change to the second's INIT2RTR, and returns the error of a WRITE of `len` bytes.
fn write_to_odd_peer(len: u32, change: impl Fn(&Rig, &mut init2rtr_qp::In)) -> (u8, u8, u16) {
    let rig = Rig::new();
    let mut cq = rig.cq(4);
    let (mut a, b) = (rig.qp(&cq, 4), rig.qp(&cq, 4));
    rig.to_rts(a.qpn, b.qpn);
    rig.command(rig.rst2init(b.qpn)).unwrap();
    let mut request = rig.init2rtr(b.qpn, a.qpn);
    change(&rig, &mut request);
    rig.command(request).unwrap();
    let mr = rig.mr(4096, ALL_RIGHTS);
    a.write(&rig, mr.piece(0, len), mr.piece(0, len));
    a.ring(&rig);
    let steps = rig.run();
    let error = cq.error(&rig);
    if error.0 == 0x15 {
        assert!(steps > 8 * 64, "eight timeouts passed, not {steps} steps");
        assert_eq!(rig.state(b.qpn), QpState::Rtr, "the peer noticed nothing");
    }
    rig.assert_no_findings();
    error
}

#[test]
fn peers_that_are_not_connected_here_do_not_answer() {
    let silent = (0x15, 0x81, 0);
    assert_eq!(
        write_to_odd_peer(8, |_, request| request.qpc.remote_qpn += 1),
        silent
    );
    assert_eq!(
        write_to_odd_peer(8, |_, request| request.qpc.next_rcv_psn = 5),
        silent
    );
}

#[test]
fn peers_with_another_mtu_or_message_size_refuse_what_does_not_fit() {
    let invalid = (0x12, 0x8a, 0);
    assert_eq!(
        write_to_odd_peer(1025, |_, request| request.qpc.mtu = Mtu::Bytes4096),
        invalid
    );
    assert_eq!(
        write_to_odd_peer(257, |_, request| request.qpc.mtu = Mtu::Bytes256),
        invalid
    );
    assert_eq!(
        write_to_odd_peer(33, |_, request| request.qpc.log_msg_max = 5),
        invalid
    );
}

#[test]
fn a_missing_peer_exhausts_the_retries() {
    let rig = Rig::new();
    let mut cq = rig.cq(4);
    let mr = rig.mr(64, ALL_RIGHTS);
    // Never created; another node's GID; in INIT; in ERR; another node's MAC address.
    for case in 0..5 {
        let (mut a, b) = (rig.qp(&cq, 4), rig.qp(&cq, 4));
        let remote = if case == 0 { 0xf0_0000 } else { b.qpn };
        rig.command(rig.rst2init(a.qpn)).unwrap();
        let mut request = rig.init2rtr(a.qpn, remote);
        if case == 1 {
            request.qpc.primary_address_path.rgid_rip[15] ^= 0x40;
        }
        if case == 4 {
            request.qpc.primary_address_path.rmac[5] ^= 0x40;
        }
        rig.command(request).unwrap();
        rig.command(rig.rtr2rts(a.qpn)).unwrap();
        if case != 2 {
            rig.to_rts(b.qpn, a.qpn);
        }
        if case == 3 {
            rig.to_error(b.qpn);
        }
        a.write(&rig, mr.piece(0, 8), mr.piece(8, 8));
        a.nop(&rig);
        a.ring(&rig);
        rig.run();
        assert_eq!(cq.error(&rig), (0x15, 0x81, 0), "case {case}");
        assert_eq!(cq.error(&rig), (0x05, 0xf9, 1), "case {case}");
    }
}

#[test]
fn a_peer_that_comes_in_time_answers_a_retry() {
    let rig = Rig::new();
    let mut cq = rig.cq(4);
    let (mut a, b) = (rig.qp(&cq, 4), rig.qp(&cq, 4));
    let mr = rig.mr(64, ALL_RIGHTS);
    rig.to_rts(a.qpn, b.qpn);
    a.write(&rig, mr.piece(0, 8), mr.piece(8, 8));
    a.ring(&rig);
    for _ in 0..400 {
        assert_eq!(
            rig.bus.lock().step_device(0),
            warpverbs_sim_bus::Step::Progress
        );
    }
    cq.assert_empty(&rig);
    rig.to_rts(b.qpn, a.qpn);
    rig.run();
    cq.success(&rig);
    rig.assert_no_findings();
}

#[test]
fn wqes_that_are_not_the_one_due_are_named() {
    let stale = |byte: usize, value: u8| {
        let rig = Rig::new();
        let mut cq = rig.cq(4);
        let (mut a, _b) = rig.pair(&cq, 4);
        let mut bytes = a.control(Opcode::Nop, SIGNALLED, 0).emit();
        bytes[byte] = value;
        a.put(&rig, &bytes);
        a.ring(&rig);
        rig.run();
        let error = cq.error(&rig);
        (error, rig.take_findings())
    };
    let local = (0x02, 0x68, 0);
    assert_eq!(stale(2, 1), (local, vec!["wqe-index"]));
    assert_eq!(stale(1, 1), (local, vec!["wqe-index"]));
    assert_eq!(stale(6, 0xff), (local, vec!["wqe-qpn"]));
    assert_eq!(stale(7, 0), (local, vec!["wqe-malformed"]));
    assert_eq!(stale(7, 2), (local, vec!["wqe-malformed"]));
    assert_eq!(stale(7, 5), (local, vec!["wqe-malformed"]));
    assert_eq!(stale(3, 0x7e), (local, vec!["wqe-malformed"]));
    assert_eq!(stale(3, 0x08), (local, vec!["wqe-malformed"]));
    assert_eq!(stale(0, 1), (local, vec!["wqe-malformed"]));
}

#[test]
fn a_wqe_that_ends_behind_the_producer_is_named() {
    let rig = Rig::new();
    let mut cq = rig.cq(4);
    let (mut a, _b) = rig.pair(&cq, 4);
    let mr = rig.mr(256, ALL_RIGHTS);
    a.post(
        &rig,
        Opcode::RdmaWrite,
        SIGNALLED,
        &[mr.piece(0, 0).remote(), inline(&[1; 40])].concat(),
    );
    // The producer counts one WQE where it should count two WQEBBs.
    a.dbr_at(&rig, 1);
    a.doorbell_at(&rig, 1);
    rig.run();
    assert_eq!(cq.error(&rig), (0x02, 0x68, 0));
    assert_eq!(rig.take_findings(), ["wqe-beyond-producer"]);
}

#[test]
fn bytes_left_over_in_a_slot_are_named_and_harmless() {
    for byte in [8u16, 12] {
        let rig = Rig::new();
        let mut cq = rig.cq(4);
        let (mut a, _b) = rig.pair(&cq, 4);
        let mut bytes = a.control(Opcode::Nop, SIGNALLED, 0).emit();
        bytes[usize::from(byte)] = 0x77;
        a.put(&rig, &bytes);
        a.ring(&rig);
        rig.run();
        cq.success(&rig);
        assert_eq!(rig.finding_kinds(), [FindingKind::WqeReserved { byte }]);
    }
}

/// As libmlx5's `ibv_wr_*` do.
#[test]
fn immediate_data_that_an_opcode_does_not_have_may_be_left_over() {
    for (byte, found) in [
        (8u16, Some(FindingKind::WqeReserved { byte: 8 })),
        (12, None),
    ] {
        let rig = Rig::with(NicConfig {
            ignores_unused_immediates: true,
            ..NicConfig::default()
        });
        let mut cq = rig.cq(4);
        let (mut a, _b) = rig.pair(&cq, 4);
        let mut bytes = a.control(Opcode::Nop, SIGNALLED, 0).emit();
        bytes[usize::from(byte)] = 0x77;
        a.put(&rig, &bytes);
        a.ring(&rig);
        rig.run();
        cq.success(&rig);
        assert_eq!(rig.finding_kinds(), Vec::from_iter(found));
    }
}

#[test]
fn one_flipped_byte_of_a_wqe_is_found() {
    // Control, remote address, data pointer.
    for byte in 0..48u16 {
        for mask in [0xff, 0x02, 0x80] {
            let rig = Rig::new();
            let mut cq = rig.cq(4);
            let (mut a, _b) = rig.pair(&cq, 4);
            let mr = rig.mr(256, ALL_RIGHTS);
            a.nop(&rig);
            a.write(&rig, mr.piece(0, 64), mr.piece(64, 64));
            rig.nic().inject(InjectedFault::FlipWqeByte {
                qpn: a.qpn,
                index: 1,
                byte,
                mask,
            });
            a.ring(&rig);
            rig.run();
            cq.success(&rig);
            assert!(!rig.take_findings().is_empty(), "byte {byte}, {mask:#x}");
        }
    }
}

/// The flags alone: nothing else tells that a completion will never come.
#[test]
fn a_flipped_flag_is_found_when_the_wqe_ends() {
    let rig = Rig::new();
    let mut cq = rig.cq(4);
    let (mut a, _b) = rig.pair(&cq, 4);
    a.nop(&rig);
    rig.nic().inject(InjectedFault::FlipWqeByte {
        qpn: a.qpn,
        index: 0,
        byte: 11,
        mask: SIGNALLED,
    });
    a.ring(&rig);
    rig.run();
    cq.assert_empty(&rig);
    assert_eq!(rig.finding_kinds(), [FindingKind::WqeChanged { byte: 11 }]);
}

/// A WQE of exactly 65,536 slots ago carries the right index: what it asks for is done, and found to be stale.
#[test]
fn a_stale_wqe_of_the_right_index_is_found_when_it_ends() {
    for first_index in [1 << 16, (1u64 << 32) + 5] {
        let rig = Rig::with(NicConfig {
            first_index,
            ..NicConfig::default()
        });
        let mut cq = rig.cq(4);
        let (mut a, _b) = rig.pair(&cq, 4);
        let mr = rig.mr(256, ALL_RIGHTS);
        let mut old = a.clone();
        old.next -= 1 << 16;
        old.write(&rig, mr.piece(0, 8), mr.piece(64, 8));
        // The NIC fetches before the new WQE is there, which then comes.
        a.next += 1;
        a.ring(&rig);
        while rig.nic().stats().wqes_fetched == 0 {
            rig.bus.lock().step_device(0);
        }
        a.next -= 1;
        a.write(&rig, mr.piece(0, 8), mr.piece(128, 8));
        rig.run();
        cq.success(&rig);
        assert_eq!(rig.finding_kinds(), [FindingKind::WqeChanged { byte: 23 }]);
    }
}

#[test]
fn a_wqe_that_is_overwritten_before_it_completes_is_found() {
    let rig = Rig::new();
    let mut cq = rig.cq(4);
    let (mut a, _b) = rig.pair(&cq, 4);
    let mr = rig.mr(1 << 16, ALL_RIGHTS);
    let first = a.clone();
    a.write(&rig, mr.piece(0, 30_000), mr.piece(32_000, 30_000));
    a.ring(&rig);
    while rig.nic().stats().packets_sent == 0 {
        rig.bus.lock().step_device(0);
    }
    // The slot is not free yet.
    let mut too_early = first;
    too_early.nop(&rig);
    rig.run();
    cq.success(&rig);
    assert_eq!(rig.finding_kinds(), [FindingKind::WqeChanged { byte: 3 }]);
}

#[test]
fn with_the_policy_fail_what_has_a_finding_fails() {
    let fail = NicConfig {
        findings: FindingPolicy::Fail,
        ..NicConfig::default()
    };
    // Bytes left over are harmless by themselves.
    for (policy, states) in [
        (FindingPolicy::Report, [QpState::Rts, QpState::Rts]),
        (FindingPolicy::Fail, [QpState::Err, QpState::Rts]),
    ] {
        let rig = Rig::with(NicConfig {
            findings: policy,
            ..NicConfig::default()
        });
        let cq = rig.cq(4);
        let (mut a, _b) = rig.pair(&cq, 4);
        let (c, _d) = rig.pair(&cq, 4);
        a.post(&rig, Opcode::Nop, SIGNALLED | 1, &[]);
        a.nop(&rig);
        a.ring(&rig);
        rig.run();
        assert_eq!([rig.state(a.qpn), rig.state(c.qpn)], states);
        assert_eq!(rig.take_findings(), ["wqe-reserved"]);
        let failed = rig.nic().take_events().len();
        assert_eq!(failed, usize::from(policy == FindingPolicy::Fail));
    }
    // A CQ fails its QPs, a doorbell of nobody all.
    let rig = Rig::with(fail);
    let (cq, other_cq) = (rig.cq(1), rig.cq(4));
    let (mut a, b) = rig.pair(&cq, 4);
    let (c, d) = rig.pair(&other_cq, 4);
    for _ in 0..3 {
        a.nop(&rig);
    }
    a.ring(&rig);
    rig.run();
    assert_eq!(rig.take_findings(), ["cq-overrun"]);
    assert_eq!(rig.state(b.qpn), QpState::Err);
    assert_eq!(rig.state(c.qpn), QpState::Rts);
    rig.mmio(rig.uar, 0x800, &doorbell(1, 0xf0_0000).to_le_bytes())
        .unwrap();
    rig.mmio(rig.uar, 0x800, &[0, 0, 1, 8, 0, 0, 7, 0]).unwrap();
    rig.run();
    assert_eq!(
        [rig.state(c.qpn), rig.state(d.qpn)],
        [QpState::Err, QpState::Err]
    );
}

#[test]
fn a_planted_syndrome_reaches_the_cqe() {
    let rig = Rig::new();
    let mut cq = rig.cq(4);
    let (mut a, _b) = rig.pair(&cq, 4);
    rig.nic().inject(InjectedFault::Fail {
        qpn: a.qpn,
        index: 1,
        syndrome: 0x77,
        vendor: 0x99,
    });
    a.nop(&rig);
    a.nop(&rig);
    a.ring(&rig);
    rig.run();
    cq.success(&rig);
    assert_eq!(cq.error(&rig), (0x77, 0x99, 1));
}

#[test]
fn by_command_the_head_is_flushed_with_a_vendor_syndrome_of_its_own() {
    let rig = Rig::new();
    let mut cq = rig.cq(4);
    let (mut a, _b) = rig.pair(&cq, 4);
    let mr = rig.mr(1 << 16, ALL_RIGHTS);
    a.nop(&rig);
    a.write(&rig, mr.piece(0, 1 << 15), mr.piece(1 << 15, 1 << 15));
    // Unsignalled WQEs are flushed with a CQE too.
    a.post(&rig, Opcode::Nop, 0, &[]);
    a.nop(&rig);
    a.ring(&rig);
    for _ in 0..10 {
        rig.bus.lock().step_device(0);
    }
    rig.to_error(a.qpn);
    rig.run();
    assert_eq!(cq.success(&rig).wqe_counter, 0);
    assert_eq!(cq.error(&rig), (0x05, 0xf5, 1));
    assert_eq!(cq.error(&rig), (0x05, 0xf9, 2));
    assert_eq!(cq.error(&rig), (0x05, 0xf9, 3));
    cq.assert_empty(&rig);
    let qpc = rig.query_qp(a.qpn);
    assert_eq!(
        (qpc.hw_sq_wqebb_counter, qpc.sw_sq_wqebb_counter),
        (4, 4),
        "drained"
    );
    rig.assert_no_findings();
}

#[test]
fn in_error_the_record_alone_decides_what_completes() {
    let rig = Rig::new();
    let mut cq = rig.cq(4);
    let (mut a, _b) = rig.pair(&cq, 4);
    let mr = rig.mr(64, ALL_RIGHTS);
    let mut bad = mr.piece(0, 8);
    bad.key ^= 0x100_0000;
    a.nop(&rig);
    a.write(&rig, mr.piece(0, 8), bad);
    a.nop(&rig);
    a.nop(&rig);
    // All are rung, the record stays behind: not even the cause completes.
    a.doorbell(&rig);
    rig.run();
    assert_eq!(cq.success(&rig).wqe_counter, 0);
    cq.assert_empty(&rig);
    assert_eq!(rig.state(a.qpn), QpState::Err);
    a.doorbell(&rig);
    rig.run();
    cq.assert_empty(&rig);
    // Equal to the failed WQE's index: still none.
    a.dbr_at(&rig, 1);
    rig.run();
    cq.assert_empty(&rig);
    assert_eq!(rig.bus.lock().step_device(0), warpverbs_sim_bus::Step::Idle);
    // Later records release exactly what they cover, without a doorbell.
    a.dbr_at(&rig, 3);
    rig.run();
    assert_eq!(cq.error(&rig), (0x13, 0x88, 1));
    assert_eq!(cq.error(&rig), (0x05, 0xf9, 2));
    cq.assert_empty(&rig);
    // A marker behind all: record written, then drained.
    let marker = a.nop(&rig);
    a.dbr(&rig);
    rig.run();
    assert_eq!(cq.error(&rig), (0x05, 0xf9, 3));
    assert_eq!(cq.error(&rig), (0x05, 0xf9, marker as u16));
    cq.assert_empty(&rig);
    rig.assert_no_findings();
}

#[test]
fn a_peer_in_error_flushes_its_own_queue() {
    let rig = Rig::new();
    let mut cq = rig.cq(5);
    let (mut a, mut b) = rig.pair(&cq, 4);
    let mr = rig.mr(64, ALL_RIGHTS);
    let mut bad = mr.piece(0, 8);
    bad.key ^= 0x100_0000;
    a.write(&rig, mr.piece(0, 8), bad);
    a.ring(&rig);
    rig.run();
    assert_eq!(cq.error(&rig), (0x13, 0x88, 0));
    assert_eq!(rig.state(b.qpn), QpState::Err);
    b.nop(&rig);
    b.nop(&rig);
    b.ring(&rig);
    rig.run();
    assert_eq!(cq.error(&rig), (0x05, 0xf9, 0));
    assert_eq!(cq.error(&rig), (0x05, 0xf9, 1));
}

#[test]
fn a_reset_qp_starts_over() {
    for first_index in [0, (1 << 16) - 2] {
        let rig = Rig::with(NicConfig {
            first_index,
            ..NicConfig::default()
        });
        let mut cq = rig.cq(4);
        let mut a = rig.qp(&cq, 4);
        let b = rig.qp(&cq, 4);
        let created = rig.query_qp(a.qpn);
        rig.to_rts(a.qpn, b.qpn);
        rig.to_rts(b.qpn, a.qpn);
        for _ in 0..5 {
            a.nop(&rig);
        }
        a.ring(&rig);
        rig.run();
        for _ in 0..5 {
            cq.success(&rig);
        }
        a.nop(&rig);
        a.ring(&rig);
        // Work that is rung but not done is dropped, with no completion.
        rig.to_reset(a.qpn);
        assert_eq!(rig.run(), 0);
        cq.assert_empty(&rig);
        assert_eq!(
            rig.query_qp(a.qpn),
            created,
            "what it was told is forgotten"
        );
        a.next = first_index;
        a.dbr(&rig);
        rig.to_reset(b.qpn);
        rig.to_rts(a.qpn, b.qpn);
        rig.to_rts(b.qpn, a.qpn);
        for index in 0..5u64 {
            a.nop(&rig);
            a.ring(&rig);
            rig.run();
            assert_eq!(cq.success(&rig).wqe_counter, (first_index + index) as u16);
        }
        rig.assert_no_findings();
    }
}

#[test]
fn by_command_wqes_that_were_recorded_but_never_rung_are_flushed() {
    let rig = Rig::new();
    let mut cq = rig.cq(4);
    let (mut a, _b) = rig.pair(&cq, 4);
    a.nop(&rig);
    a.nop(&rig);
    a.dbr(&rig);
    a.nop(&rig);
    rig.to_error(a.qpn);
    rig.run();
    assert_eq!(cq.error(&rig), (0x05, 0xf5, 0));
    assert_eq!(cq.error(&rig), (0x05, 0xf9, 1));
    cq.assert_empty(&rig);
    rig.assert_no_findings();
}
