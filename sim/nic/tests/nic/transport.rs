//! Packets between two NICs: every operation, loss of every frame, receivers that are not ready, refusals.

use warpverbs_sim_nic::{Cable, CablePlan, Event as Traced, NicConfig};
use warpverbs_wire::cqe::{Completion, Cqe, CqeOpcode};
use warpverbs_wire::eqe::{Event, EventType};
use warpverbs_wire::prm::qpc::{AtomicMode, OptParam, QpState, Qpc, RqType};
use warpverbs_wire::prm::rmpc::RmpState;
use warpverbs_wire::prm::{modify_rmp, qp_2err, query_rmp, rts2rts_qp};
use warpverbs_wire::wqe::{
    Opcode, SIGNALLED, compare_swap, fetch_add, masked_compare_swap_4, masked_compare_swap_8,
    masked_fetch_add_4, masked_fetch_add_8, segment_bytes,
};

use crate::rig::{EVERY_RIGHT, Rig, TestCq, TestMr, TestQp, TestRq, inline, pattern};

/// One end of a connection between two NICs, with memory of its own.
pub(crate) struct Peer {
    pub(crate) rig: Rig,
    pub(crate) cq: TestCq,
    pub(crate) qp: TestQp,
    pub(crate) rq: TestRq,
    pub(crate) mr: TestMr,
}

const SIZE: u64 = 1 << 16;

fn peers_with(plan: CablePlan, seed: u64, change: impl Fn(&mut Qpc)) -> (Peer, Peer, Cable) {
    let (near, far, cable) = Rig::joined(NicConfig::default(), plan, seed);
    let (a, b) = connected(near, far, |_, qpc| change(qpc));
    (a, b, cable)
}

/// A QP of each NIC, connected after a change to its context; the change gets the other NIC.
pub(crate) fn connected(near: Rig, far: Rig, change: impl Fn(&Rig, &mut Qpc)) -> (Peer, Peer) {
    let peer = |rig: Rig| {
        let cq = rig.cq(7);
        let (qp, rq) = rig.qp_with_receives(&cq, 6);
        let mr = rig.mr(SIZE, EVERY_RIGHT);
        Peer {
            rig,
            cq,
            qp,
            rq,
            mr,
        }
    };
    let (a, b) = (peer(near), peer(far));
    for (from, to) in [(&a, &b), (&b, &a)] {
        from.rig
            .connect(from.qp.qpn, &to.rig, to.qp.qpn, |qpc| change(&to.rig, qpc));
    }
    (a, b)
}

fn peers(plan: CablePlan, seed: u64) -> (Peer, Peer, Cable) {
    peers_with(plan, seed, |_| ())
}

impl Peer {
    pub(crate) fn fill(&self, salt: u8) -> Vec<u8> {
        let bytes = pattern(SIZE as usize, salt);
        self.rig.write(self.mr.addr, &bytes);
        bytes
    }

    pub(crate) fn read(&self, at: u64, len: usize) -> Vec<u8> {
        self.rig.read(self.mr.addr + at, len)
    }

    #[track_caller]
    fn received(&mut self) -> Cqe {
        match self.cq.poll(&self.rig) {
            Some(Completion::Done(cqe)) if cqe.opcode != CqeOpcode::Requester => cqe,
            other => panic!("no receive but {other:?}"),
        }
    }
}

/// One of everything that has an effect at the far end, then a check of all of it.
#[track_caller]
pub(crate) fn run_everything(mut a: Peer, mut b: Peer, what: &str) {
    let (here, there) = (a.fill(1), b.fill(2));
    let counter = 0x8000;
    b.rig.write(b.mr.addr + counter, &100u64.to_le_bytes());
    b.rq.post(&b.rig, &[b.mr.piece(0x4000, 700), b.mr.piece(0x5000, 9000)]);
    b.rq.post(&b.rig, &[b.mr.piece(0x7000, 16)]);
    b.rq.post(&b.rig, &[b.mr.piece(0x7100, 16)]);
    let extra = b.rig.mr(64, EVERY_RIGHT);
    let (rig, qp) = (&a.rig, &mut a.qp);
    let to_from =
        |at, len, from| [b.mr.piece(at, len).remote(), a.mr.piece(from, len).local()].concat();
    qp.post(rig, Opcode::RdmaWrite, SIGNALLED, &to_from(0, 3000, 0));
    qp.post(
        rig,
        Opcode::RdmaRead,
        SIGNALLED,
        &to_from(0x2000, 5000, 0x2000),
    );
    qp.post(
        rig,
        Opcode::Send,
        SIGNALLED,
        &a.mr.piece(0x100, 2500).local(),
    );
    let add = |n| {
        [
            b.mr.piece(counter, 8).remote(),
            segment_bytes(fetch_add(n)).to_vec(),
            a.mr.piece(0x9000 + 8 * n, 8).local(),
        ]
        .concat()
    };
    for n in [1, 2, 3] {
        qp.post(rig, Opcode::AtomicFetchAdd, SIGNALLED, &add(n));
    }
    qp.post_with(
        rig,
        |control| control.immediate = 0xdead_beef,
        Opcode::RdmaWriteImmediate,
        &to_from(0xa000, 1100, 0xa000),
    );
    qp.post_with(
        rig,
        |control| control.immediate = extra.keys.rkey,
        Opcode::SendInvalidate,
        &inline(&[7; 16]),
    );
    let swap = [
        b.mr.piece(counter, 8).remote(),
        segment_bytes(compare_swap(9, 106)).to_vec(),
        a.mr.piece(0x9100, 8).local(),
    ]
    .concat();
    qp.post(rig, Opcode::AtomicCompareSwap, SIGNALLED, &swap);
    qp.ring(rig);
    rig.run();
    for _ in 0..9 {
        a.cq.success(&a.rig);
    }
    a.cq.assert_empty(&a.rig);
    let mut expected = there.clone();
    expected[..3000].copy_from_slice(&here[..3000]);
    expected[0x4000..0x4000 + 700].copy_from_slice(&here[0x100..0x100 + 700]);
    expected[0x5000..0x5000 + 1800].copy_from_slice(&here[0x100 + 700..0x100 + 2500]);
    expected[0xa000..0xa000 + 1100].copy_from_slice(&here[0xa000..0xa000 + 1100]);
    expected[0x7100..0x7110].copy_from_slice(&[7; 16]);
    expected[counter as usize..counter as usize + 8].copy_from_slice(&9u64.to_le_bytes());
    assert!(
        b.read(0, SIZE as usize) == expected,
        "{what}: the far memory"
    );
    assert_eq!(a.read(0x2000, 5000), there[0x2000..0x2000 + 5000], "{what}");
    let originals: Vec<u64> = [0x9008, 0x9010, 0x9018, 0x9100]
        .map(|at| u64::from_le_bytes(a.read(at, 8).try_into().unwrap()))
        .to_vec();
    assert_eq!(originals, [100, 101, 103, 106], "{what}: exactly once");
    let send = b.received();
    assert_eq!(
        (send.opcode, send.byte_count, send.wqe_counter),
        (CqeOpcode::ResponderSend, 2500, 0)
    );
    let write = b.received();
    assert_eq!(
        (write.opcode, write.byte_count, write.immediate),
        (CqeOpcode::ResponderWriteImmediate, 1100, 0xdead_beef)
    );
    let invalidate = b.received();
    assert_eq!(
        (
            invalidate.opcode,
            invalidate.immediate,
            invalidate.wqe_counter
        ),
        (CqeOpcode::ResponderSendInvalidate, extra.keys.rkey, 2)
    );
    b.cq.assert_empty(&b.rig);
    for peer in [&a, &b] {
        peer.rig.assert_no_findings();
        assert_eq!(peer.rig.state(peer.qp.qpn), QpState::Rts, "{what}");
    }
}

#[test]
fn every_operation_reaches_another_nic() {
    let (a, b, cable) = peers(CablePlan::default(), 1);
    run_everything(a, b, "a clean cable");
    let stats = cable.stats();
    assert_eq!(stats.lost, 0);
    assert!(stats.frames > 20, "{stats:?}");
}

/// Immediate data and a key to invalidate, in messages of one packet and of several; and from both ends at a time.
#[test]
fn immediate_data_and_keys_come_with_messages_of_any_length_in_both_directions() {
    for len in [8u32, 3000] {
        let (mut a, mut b, _) = peers(CablePlan::default(), 1);
        let bytes = a.fill(3);
        b.fill(4);
        let keys = [a.rig.mr(64, EVERY_RIGHT), b.rig.mr(64, EVERY_RIGHT)];
        let post = |from: &mut Peer, to: &mut Peer, key: TestMr| {
            for _ in 0..3 {
                to.rq.post(&to.rig, &[to.mr.piece(0x8000, len)]);
            }
            let local = from.mr.piece(0, len).local();
            let write = [to.mr.piece(0x4000, len).remote(), local.clone()].concat();
            for (opcode, immediate, segments) in [
                (Opcode::SendImmediate, 0x0102_0304, &local),
                (Opcode::RdmaWriteImmediate, 0xfffe_fdfc, &write),
                (Opcode::SendInvalidate, key.keys.rkey, &local),
            ] {
                from.qp
                    .post_with(&from.rig, |c| c.immediate = immediate, opcode, segments);
            }
            from.qp.ring(&from.rig);
        };
        post(&mut a, &mut b, keys[1]);
        post(&mut b, &mut a, keys[0]);
        a.rig.run();
        for (peer, key) in [(&mut a, keys[0]), (&mut b, keys[1])] {
            let mut sent = 0;
            let mut received = vec![];
            while let Some(completion) = peer.cq.poll(&peer.rig) {
                match completion {
                    Completion::Done(cqe) if cqe.opcode == CqeOpcode::Requester => sent += 1,
                    Completion::Done(cqe) => {
                        received.push((cqe.opcode, cqe.immediate, cqe.byte_count));
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(sent, 3);
            assert_eq!(
                received,
                [
                    (CqeOpcode::ResponderSendImmediate, 0x0102_0304, len),
                    (CqeOpcode::ResponderWriteImmediate, 0xfffe_fdfc, len),
                    (CqeOpcode::ResponderSendInvalidate, key.keys.rkey, len),
                ]
            );
            peer.rig.assert_no_findings();
        }
        assert_eq!(b.read(0x4000, len as usize), bytes[..len as usize]);
        assert_eq!(b.read(0x8000, len as usize), bytes[..len as usize]);
    }
}

#[test]
fn the_loss_of_any_one_frame_changes_nothing() {
    let (a, b, cable) = peers(CablePlan::default(), 1);
    run_everything(a, b, "no loss");
    for frame in 0..cable.stats().frames {
        let plan = CablePlan {
            drop: [frame].into(),
            ..CablePlan::default()
        };
        let (a, b, cable) = peers(plan, 1);
        run_everything(a, b, &format!("frame {frame} lost"));
        assert_eq!(cable.stats().lost, 1);
    }
}

#[test]
fn answers_show_a_loss_before_the_timer_does() {
    // A READ of one packet and a WRITE behind it: request and data of the READ, the WRITE, its acknowledgement. The WRITE shows
    // the loss of the first two; nothing shows that of the last two.
    let timeouts = |frame| {
        let plan = CablePlan {
            drop: [frame].into(),
            ..CablePlan::default()
        };
        let (mut a, b, cable) = peers(plan, 1);
        let read = [b.mr.piece(0, 64).remote(), a.mr.piece(0, 64).local()].concat();
        a.qp.post(&a.rig, Opcode::RdmaRead, SIGNALLED, &read);
        a.qp.write(&a.rig, a.mr.piece(128, 64), b.mr.piece(128, 64));
        a.qp.ring(&a.rig);
        a.rig.run();
        a.cq.success(&a.rig);
        a.cq.success(&a.rig);
        assert_eq!(cable.stats().lost, 1);
        let stats = a.rig.nic().stats().clone();
        stats.timeouts
    };
    let mut seen: Vec<u64> = (0..4).map(timeouts).collect();
    seen.sort_unstable();
    assert_eq!(seen, [0, 0, 1, 1]);
}

#[test]
fn duplicates_reordering_and_loss_change_nothing() {
    let twice = CablePlan {
        duplicate_ppm: 1_000_000,
        ..CablePlan::default()
    };
    let (a, b, _) = peers(twice, 1);
    run_everything(a, b, "every frame twice");
    for seed in 0..40 {
        let plan = CablePlan {
            loss_ppm: 50_000,
            duplicate_ppm: 50_000,
            reorder_ppm: 100_000,
            reorder_ns: 3_000,
            delay_ns: 1_000,
            ..CablePlan::default()
        };
        let (a, b, _) = peers(plan, seed);
        run_everything(a, b, &format!("seed {seed}"));
    }
}

#[test]
fn the_same_seed_gives_the_same_frames() {
    let frames = |seed| {
        let plan = CablePlan {
            loss_ppm: 100_000,
            ..CablePlan::default()
        };
        let (a, b, cable) = peers(plan, seed);
        run_everything(a, b, "replay");
        cable.stats()
    };
    assert_eq!(frames(7), frames(7));
}

#[test]
fn a_receiver_that_is_not_ready_is_asked_again_after_its_timer() {
    let (mut a, mut b, _) = peers(CablePlan::default(), 1);
    a.fill(1);
    a.qp.post(
        &a.rig,
        Opcode::Send,
        SIGNALLED,
        &a.mr.piece(0, 3000).local(),
    );
    a.qp.write(&a.rig, a.mr.piece(0, 8), b.mr.piece(0x8000, 8));
    a.qp.ring(&a.rig);
    for _ in 0..1000 {
        a.rig.bus.lock().run_devices(10);
    }
    a.cq.assert_empty(&a.rig);
    assert_eq!(b.read(0x8000, 8), [0; 8], "nothing overtakes the send");
    assert!(a.rig.nic().stats().rnr_naks > 2);
    b.rq.post(&b.rig, &[b.mr.piece(0, 4096)]);
    a.rig.run();
    a.cq.success(&a.rig);
    a.cq.success(&a.rig);
    assert_eq!(b.received().byte_count, 3000);
    assert_eq!(b.read(0, 3000), a.read(0, 3000));
}

#[test]
fn receiver_not_ready_retries_end() {
    let (mut a, b, _) = peers_with(CablePlan::default(), 1, |qpc| qpc.rnr_retry = 2);
    a.qp.post(&a.rig, Opcode::Send, SIGNALLED, &a.mr.piece(0, 8).local());
    a.qp.ring(&a.rig);
    a.rig.run();
    assert_eq!(a.cq.error(&a.rig), (0x16, 0, 0));
    assert_eq!(a.rig.nic().stats().rnr_naks, 3);
    assert_eq!(b.rig.state(b.qp.qpn), QpState::Rts, "the receiver goes on");
}

#[test]
fn a_cable_that_is_out_exhausts_the_retries_and_one_that_comes_back_in_time_does_not() {
    for back in [true, false] {
        let (mut a, b, cable) = peers(CablePlan::default(), 1);
        cable.set_up(false);
        a.qp.write(&a.rig, a.mr.piece(0, 8), b.mr.piece(0, 8));
        a.qp.ring(&a.rig);
        a.rig.bus.lock().run_devices(200);
        cable.set_up(back);
        a.rig.run();
        if back {
            a.cq.success(&a.rig);
            assert!(a.rig.nic().stats().timeouts > 0);
        } else {
            assert_eq!(a.cq.error(&a.rig), (0x15, 0x81, 0));
        }
    }
}

#[test]
fn a_send_longer_than_its_receive_fails_on_both_sides() {
    let (mut a, mut b, _) = peers(CablePlan::default(), 1);
    b.rq.post(&b.rig, &[b.mr.piece(0, 2000)]);
    b.rq.post(&b.rig, &[b.mr.piece(0, 2000)]);
    a.qp.post(
        &a.rig,
        Opcode::Send,
        SIGNALLED,
        &a.mr.piece(0, 2001).local(),
    );
    a.qp.ring(&a.rig);
    a.rig.run();
    assert_eq!(a.cq.error(&a.rig), (0x12, 0x8a, 0));
    let errors: Vec<_> = std::iter::from_fn(|| b.cq.poll(&b.rig))
        .map(|completion| match completion {
            Completion::Failed(cqe) => {
                assert_eq!(cqe.opcode, CqeOpcode::ResponderError);
                (cqe.syndrome.code(), cqe.wqe_counter)
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        errors,
        [(0x01, 0), (0x05, 1)],
        "length error, then the rest is flushed"
    );
    assert_eq!(b.rig.state(b.qp.qpn), QpState::Err);
}

#[test]
fn masked_atomics_touch_their_bytes_only() {
    let (mut a, b, _) = peers(CablePlan::default(), 1);
    b.rig.write(b.mr.addr, &[0xff; 64]);
    b.rig.write(b.mr.addr + 8, &511u32.to_le_bytes());
    b.rig.write(b.mr.addr + 16, &0x01ff_u64.to_le_bytes());
    b.rig.write(b.mr.addr + 24, &0xaabb_u64.to_le_bytes());
    let mut post = |opcode, opmod, operands: Vec<u8>, at, len| {
        let segments = [
            b.mr.piece(at, len).remote(),
            operands,
            a.mr.piece(at, len).local(),
        ]
        .concat();
        a.qp.post_with(&a.rig, |control| control.opmod = opmod, opcode, &segments);
    };
    a.rig.write(a.mr.addr, &[0xee; 64]);
    post(
        Opcode::AtomicMaskedFetchAdd,
        8,
        segment_bytes(masked_fetch_add_4(1, 0)).to_vec(),
        8,
        4,
    );
    post(
        Opcode::AtomicMaskedFetchAdd,
        9,
        segment_bytes(masked_fetch_add_8(0x0101, 0x8080)).to_vec(),
        16,
        8,
    );
    let swap = masked_compare_swap_8(0x1122, 0xaa00, 0xff, 0xff00);
    post(
        Opcode::AtomicMaskedCompareSwap,
        9,
        swap.iter().flat_map(|half| segment_bytes(*half)).collect(),
        24,
        8,
    );
    post(
        Opcode::AtomicMaskedCompareSwap,
        8,
        segment_bytes(masked_compare_swap_4(7, 512, !0, !0)).to_vec(),
        8,
        4,
    );
    a.qp.ring(&a.rig);
    a.rig.run();
    for _ in 0..4 {
        a.cq.success(&a.rig);
    }
    assert_eq!(b.read(8, 8), [7, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    assert_eq!(b.read(16, 8), 0x0200_u64.to_le_bytes());
    assert_eq!(b.read(24, 8), 0xaa22_u64.to_le_bytes());
    assert_eq!(
        a.read(8, 8),
        [0, 2, 0, 0, 0xee, 0xee, 0xee, 0xee],
        "the last original, 4 bytes"
    );
    assert_eq!(
        a.read(16, 16),
        [0x01ff_u64.to_le_bytes(), 0xaabb_u64.to_le_bytes()].concat()
    );
}

/// Every atomic, of 4 and of 8 bytes, from either end: what it finds, what it leaves, and its neighbours.
#[test]
fn every_atomic_in_both_directions_returns_what_it_found() {
    let (mut a, mut b, _) = peers(CablePlan::default(), 1);
    let swap_8 = masked_compare_swap_8(0x1122, 511, !0, !0);
    let operands_8: Vec<u8> = swap_8
        .iter()
        .flat_map(|half| segment_bytes(*half))
        .collect();
    let cases: [(Opcode, u8, Vec<u8>, u32, u64); 8] = [
        (
            Opcode::AtomicFetchAdd,
            0,
            segment_bytes(fetch_add(2)).to_vec(),
            8,
            513,
        ),
        (
            Opcode::AtomicCompareSwap,
            0,
            segment_bytes(compare_swap(9, 511)).to_vec(),
            8,
            9,
        ),
        (
            Opcode::AtomicCompareSwap,
            0,
            segment_bytes(compare_swap(9, 512)).to_vec(),
            8,
            511,
        ),
        (
            Opcode::AtomicMaskedFetchAdd,
            9,
            segment_bytes(masked_fetch_add_8(1, 0)).to_vec(),
            8,
            512,
        ),
        // No carry leaves the low byte.
        (
            Opcode::AtomicMaskedFetchAdd,
            9,
            segment_bytes(masked_fetch_add_8(1, 0x80)).to_vec(),
            8,
            0x100,
        ),
        (Opcode::AtomicMaskedCompareSwap, 9, operands_8, 8, 0x1122),
        (
            Opcode::AtomicMaskedFetchAdd,
            8,
            segment_bytes(masked_fetch_add_4(1, 0)).to_vec(),
            4,
            512,
        ),
        (
            Opcode::AtomicMaskedCompareSwap,
            8,
            segment_bytes(masked_compare_swap_4(0xabcd, 511, 0xff, !0)).to_vec(),
            4,
            0x1cd,
        ),
    ];
    let run = |from: &mut Peer, to: &mut Peer| {
        for (opcode, opmod, operands, size, left) in &cases {
            let (len, at) = (*size as usize, 0x100);
            for rig in [(&from.rig, from.mr.addr), (&to.rig, to.mr.addr)] {
                rig.0.write(rig.1 + at - 8, &[0xee; 32]);
            }
            let value = 511u64.to_le_bytes();
            to.rig.write(to.mr.addr + at, &value[..len]);
            let segments = [
                to.mr.piece(at, 0).remote(),
                operands.clone(),
                from.mr.piece(at, *size).local(),
            ]
            .concat();
            from.qp.post_with(
                &from.rig,
                |control| control.opmod = *opmod,
                *opcode,
                &segments,
            );
            from.qp.ring(&from.rig);
            from.rig.run();
            let cqe = from.cq.success(&from.rig);
            assert_eq!(cqe.byte_count, *size);
            for (peer, inside) in [(&*from, 511u64), (&*to, *left)] {
                let mut expected = [0xee; 32];
                expected[8..8 + len].copy_from_slice(&inside.to_le_bytes()[..len]);
                assert_eq!(peer.read(at - 8, 32), expected, "{opcode:?} {opmod}");
            }
        }
        from.rig.assert_no_findings();
    };
    run(&mut a, &mut b);
    run(&mut b, &mut a);
}

/// The requester never has more READs and atomics outstanding than its own depth, whatever the responder would take.
#[test]
fn a_requester_keeps_to_its_own_depth() {
    for depth in [0u8, 1, 2] {
        let plan = CablePlan {
            delay_ns: 1000,
            ..CablePlan::default()
        };
        let (mut a, b, _) = peers_with(plan, 1, |qpc| {
            (qpc.log_sra_max, qpc.log_rra_max) = (depth, 4);
        });
        for n in 0..8u64 {
            let (remote, local) = (b.mr.piece(n * 64, 8), a.mr.piece(n * 64, 8));
            if n % 2 == 0 {
                let segments = [remote.remote(), local.local()].concat();
                a.qp.post(&a.rig, Opcode::RdmaRead, SIGNALLED, &segments);
            } else {
                let operands = segment_bytes(fetch_add(1)).to_vec();
                let segments = [remote.remote(), operands, local.local()].concat();
                a.qp.post(&a.rig, Opcode::AtomicFetchAdd, SIGNALLED, &segments);
            }
        }
        let trace = a.rig.watch();
        a.qp.ring(&a.rig);
        a.rig.run();
        let (mut outstanding, mut most) = (0i32, 0);
        for event in a.rig.take_events(&trace) {
            match event {
                Traced::Sent { opcode, .. } if opcode.is_request() => outstanding += 1,
                Traced::Arrived { opcode, .. } if opcode.is_response() => outstanding -= 1,
                _ => {}
            }
            most = most.max(outstanding);
        }
        assert_eq!(most, 1 << depth, "and it uses all of it");
        for _ in 0..8 {
            a.cq.success(&a.rig);
        }
    }
}

/// An atomic takes a place as a READ does.
#[test]
fn an_atomic_beyond_the_responders_depth_is_refused() {
    let (mut a, b, _) = peers_with(CablePlan::default(), 1, |qpc| {
        (qpc.log_sra_max, qpc.log_rra_max) = (2, 0);
    });
    let segments = [b.mr.piece(0, 61440).remote(), a.mr.piece(0, 61440).local()].concat();
    a.qp.post(&a.rig, Opcode::RdmaRead, 0, &segments);
    let operands = segment_bytes(fetch_add(1)).to_vec();
    let (remote, local) = (b.mr.piece(61440, 8), a.mr.piece(61440, 8));
    let segments = [remote.remote(), operands, local.local()].concat();
    a.qp.post(&a.rig, Opcode::AtomicFetchAdd, SIGNALLED, &segments);
    a.qp.ring(&a.rig);
    a.rig.run();
    assert_eq!(a.rig.state(b.qp.qpn), QpState::Err);
    let first = a.cq.poll(&a.rig);
    assert!(matches!(first, Some(Completion::Failed(cqe)) if cqe.syndrome.code() == 0x12));
}

/// Receive queues of a QP, and shared ones, whose indices start anywhere.
#[test]
fn receive_indices_start_anywhere() {
    for first_index in [0xfffe, (1 << 24) - 1, (1u64 << 32) - 2] {
        let config = NicConfig {
            first_index,
            ..NicConfig::default()
        };
        let (near, far, _) = Rig::joined(config, CablePlan::default(), 1);
        let (mut near_cq, mut far_cq) = (near.cq(6), far.cq(6));
        let (request, mut srq) = far.rmp_request(3);
        let rmpn = far.command(request).unwrap().rmpn;
        let mr = far.mr(4096, EVERY_RIGHT);
        for shared in [false, true] {
            let mut a = near.qp(&near_cq, 4);
            let (b, mut own) = if shared {
                let (mut request, mut b) = far.qp_request(&far_cq, 4);
                (request.qpc.rq_type, request.qpc.srqn_rmpn_xrqn) = (RqType::Shared, rmpn);
                b.qpn = far.command(request).unwrap().qpn;
                (b, None)
            } else {
                let (b, own) = far.qp_with_receives(&far_cq, 3);
                (b, Some(own))
            };
            near.connect(a.qpn, &far, b.qpn, |_| ());
            far.connect(b.qpn, &near, a.qpn, |_| ());
            for n in 0..20u8 {
                let piece = mr.piece(u64::from(n) * 64, 64);
                let number = match &mut own {
                    Some(queue) => {
                        queue.post(&far, &[piece]);
                        (first_index as u16).wrapping_add(n.into())
                    }
                    None => srq.post(&far, piece),
                };
                a.post(&near, Opcode::Send, SIGNALLED, &inline(&[n + 1; 9]));
                a.ring(&near);
                near.run();
                near_cq.success(&near);
                match far_cq.poll(&far) {
                    Some(Completion::Done(cqe)) => {
                        assert_eq!((cqe.wqe_counter, cqe.byte_count), (number, 9));
                        // Also of a shared queue: the user index of the QP (rdma-core get_resp_ctx_v1).
                        assert_eq!(cqe.user_index(), 0x12_3456);
                    }
                    other => panic!("{other:?}"),
                }
                assert_eq!(far.read(mr.addr + u64::from(n) * 64, 9), [n + 1; 9]);
            }
            // 20 posted, 20 used, as the commands tell.
            let end = first_index as u32;
            let counters = if shared {
                let wq = far.command(query_rmp::In { rmpn }).unwrap().context.wq;
                (wq.hw_counter, wq.sw_counter)
            } else {
                let context = far.query_qp(b.qpn);
                (context.hw_rq_counter, context.sw_rq_counter)
            };
            assert_eq!(counters, (end.wrapping_add(20), end.wrapping_add(20)));
        }
        far.assert_no_findings();
    }
}

/// Each RoCE v2 address of the table: IPv6 and IPv4.
#[test]
fn packets_go_by_either_kind_of_address() {
    for (index, ether_type) in [(1u8, [0x86, 0xdd]), (3, [0x08, 0x00])] {
        let (near, far, cable) = Rig::joined(NicConfig::default(), CablePlan::default(), 1);
        let file = std::sync::Arc::new(std::sync::Mutex::new(vec![]));
        cable.capture(Shared(file.clone())).unwrap();
        let (mut cq, far_cq) = (near.cq(4), far.cq(4));
        let (mut a, b) = (near.qp(&cq, 4), far.qp(&far_cq, 4));
        for (rig, qpn, other, remote) in [(&near, a.qpn, &far, b.qpn), (&far, b.qpn, &near, a.qpn)]
        {
            let gid = other.nic().query_gid(1, index.into()).unwrap().unwrap();
            rig.connect(qpn, other, remote, |qpc| {
                let path = &mut qpc.primary_address_path;
                (path.src_addr_index, path.rgid_rip) = (index, gid.gid);
            });
        }
        let (here, there) = (near.mr(64, EVERY_RIGHT), far.mr(64, EVERY_RIGHT));
        near.write(here.addr, &pattern(64, 3));
        a.write(&near, here.piece(0, 64), there.piece(0, 64));
        a.ring(&near);
        near.run();
        cq.success(&near);
        assert_eq!(far.read(there.addr, 64), pattern(64, 3));
        cable.end_capture().unwrap();
        // Behind the file's header, a record's, and two MAC addresses.
        let bytes = file.lock().unwrap();
        assert_eq!(bytes[24 + 16 + 12..][..2], ether_type);
    }
}

/// A file that a test can read.
pub(crate) struct Shared(pub(crate) std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn atomics_of_4_bytes_need_the_mode_that_has_them() {
    for (mode, expected) in [
        (AtomicMode::UpTo8, None),
        (AtomicMode::Only8, Some((0x12, 0x8a, 0))),
        (AtomicMode::IbSpec, Some((0x12, 0x8a, 0))),
    ] {
        let (mut a, b, _) = peers(CablePlan::default(), 1);
        let mut request = rts2rts_qp::In {
            qpn: b.qp.qpn,
            opt_param_mask: OptParam::RAE,
            ..Default::default()
        };
        (request.qpc.rae, request.qpc.atomic_mode) = (true, mode);
        b.rig.command(request).unwrap();
        let segments = [
            b.mr.piece(0, 4).remote(),
            segment_bytes(masked_fetch_add_4(1, 0)).to_vec(),
            a.mr.piece(0, 4).local(),
        ]
        .concat();
        let masked = Opcode::AtomicMaskedFetchAdd;
        a.qp.post_with(&a.rig, |control| control.opmod = 8, masked, &segments);
        a.qp.ring(&a.rig);
        a.rig.run();
        match expected {
            None => {
                a.cq.success(&a.rig);
            }
            Some(expected) => assert_eq!(a.cq.error(&a.rig), expected, "{mode:?}"),
        }
    }
}

#[test]
fn atomics_need_alignment_and_the_right() {
    for (at, mask, expected) in [(4u64, 0, (0x12, 0x8a, 0)), (8, 1 << 3, (0x13, 0x88, 0))] {
        let (mut a, b, _) = peers(CablePlan::default(), 1);
        let target = b.rig.mr(64, EVERY_RIGHT & !mask);
        let segments = [
            target.piece(at, 8).remote(),
            segment_bytes(fetch_add(1)).to_vec(),
            a.mr.piece(0, 8).local(),
        ]
        .concat();
        a.qp.post(&a.rig, Opcode::AtomicFetchAdd, SIGNALLED, &segments);
        a.qp.ring(&a.rig);
        a.rig.run();
        assert_eq!(a.cq.error(&a.rig), expected);
        assert_eq!(a.rig.read(target.addr, 64), [0; 64]);
    }
}

#[test]
fn an_invalidated_key_is_refused() {
    let (mut a, mut b, _) = peers(CablePlan::default(), 1);
    let target = b.rig.mr(64, EVERY_RIGHT);
    b.rq.post(&b.rig, &[b.mr.piece(0, 16)]);
    a.qp.write(&a.rig, a.mr.piece(0, 8), target.piece(0, 8));
    a.qp.post_with(
        &a.rig,
        |control| control.immediate = target.keys.rkey,
        Opcode::SendInvalidate,
        &[],
    );
    a.qp.write(&a.rig, a.mr.piece(0, 8), target.piece(0, 8));
    a.qp.ring(&a.rig);
    a.rig.run();
    a.cq.success(&a.rig);
    a.cq.success(&a.rig);
    assert_eq!(a.cq.error(&a.rig), (0x13, 0x88, 2));
    assert_eq!(b.received().byte_count, 0);
}

#[test]
fn reads_and_atomics_beyond_the_responders_depth_are_refused_and_within_are_not() {
    for (depth, fails) in [(2, false), (0, true)] {
        let (mut a, b, _) = peers_with(CablePlan::default(), 1, |qpc| qpc.log_rra_max = depth);
        for n in 0..6u64 {
            let segments = [
                b.mr.piece(n * 8192, 8192).remote(),
                a.mr.piece(n * 8192, 8192).local(),
            ];
            a.qp.post(&a.rig, Opcode::RdmaRead, SIGNALLED, &segments.concat());
        }
        a.qp.ring(&a.rig);
        a.rig.run();
        if fails {
            let first = a.cq.poll(&a.rig).unwrap();
            assert!(
                matches!(first, Completion::Failed(cqe) if cqe.syndrome.code() == 0x12)
                    || matches!(first, Completion::Done(_)),
            );
            assert_eq!(a.rig.state(a.qp.qpn), QpState::Err);
        } else {
            for _ in 0..6 {
                a.cq.success(&a.rig);
            }
        }
    }
}

#[test]
fn queue_pairs_share_a_receive_queue_and_its_limit_raises_one_event() {
    let (near, far, _) = Rig::joined(NicConfig::default(), CablePlan::default(), 1);
    let (mut near_cq, mut far_cq) = (near.cq(6), far.cq(6));
    let (mut request, mut srq) = far.rmp_request(3);
    request.context.wq.lwm = 3;
    let rmpn = far.command(request).unwrap().rmpn;
    let mr = far.mr(4096, EVERY_RIGHT);
    let mut senders = vec![];
    let mut receivers = vec![];
    for _ in 0..2 {
        let a = near.qp(&near_cq, 4);
        let (mut request, mut b) = far.qp_request(&far_cq, 4);
        (request.qpc.rq_type, request.qpc.srqn_rmpn_xrqn) = (RqType::Shared, rmpn);
        b.qpn = far.command(request).unwrap().qpn;
        near.connect(a.qpn, &far, b.qpn, |_| ());
        far.connect(b.qpn, &near, a.qpn, |_| ());
        senders.push(a);
        receivers.push(b);
    }
    let numbers: Vec<u16> = (0..4)
        .map(|n| srq.post(&far, mr.piece(n * 64, 64)))
        .collect();
    assert_eq!(numbers, [0, 7, 6, 5], "a list, not a ring");
    for (n, at) in [0, 1, 1, 0].into_iter().enumerate() {
        senders[at].post(&near, Opcode::Send, SIGNALLED, &inline(&[n as u8 + 1; 8]));
        senders[at].ring(&near);
        near.run();
        near_cq.success(&near);
        match far_cq.poll(&far) {
            Some(Completion::Done(cqe)) => assert_eq!(
                (cqe.opcode, cqe.qpn, cqe.wqe_counter),
                (CqeOpcode::ResponderSend, receivers[at].qpn, numbers[n])
            ),
            other => panic!("{other:?}"),
        }
        assert_eq!(far.read(mr.addr + n as u64 * 64, 8), [n as u8 + 1; 8]);
    }
    let limit = Event::Queue {
        event: EventType::SrqLimit,
        number: rmpn,
    };
    assert_eq!(far.nic().take_events(), [limit]);
    let context = far.command(query_rmp::In { rmpn }).unwrap().context;
    assert_eq!((context.wq.hw_counter, context.wq.sw_counter), (4, 4));
    // The limit is armed again, and a QP in ERR says that it takes no more.
    far.command(modify_rmp::In {
        rmpn,
        rmp_state: RmpState::Ready,
        set_limit: true,
        context: request.context,
    })
    .unwrap();
    srq.post(&far, mr.piece(0, 8));
    senders[0].post(&near, Opcode::Send, SIGNALLED, &inline(&[9; 9]));
    senders[0].ring(&near);
    near.run();
    assert_eq!(near_cq.error(&near), (0x12, 0x8a, 2));
    let number = receivers[0].qpn;
    let of = |event| Event::Queue { event, number };
    assert_eq!(
        far.nic().take_events(),
        [
            limit,
            of(EventType::WqInvalidRequest),
            of(EventType::SrqLastWqe)
        ]
    );
    // By command too, once.
    let number = receivers[1].qpn;
    for _ in 0..2 {
        far.command(qp_2err::In { qpn: number }).unwrap();
    }
    let last = Event::Queue {
        event: EventType::SrqLastWqe,
        number,
    };
    assert_eq!(far.nic().take_events(), [last]);
}

/// Not a check: prints how many small WRITEs a second the stepping mode executes. Run it in release, with `--ignored`.
#[test]
#[ignore = "prints a rate"]
fn rate_of_small_writes() {
    let rate = |rig: &Rig,
                nic: &Rig,
                qp: &mut TestQp,
                cq: &mut TestCq,
                from: TestMr,
                to: TestMr,
                name: &str| {
        let begun = std::time::Instant::now();
        let rounds = 4000;
        let mut posting = std::time::Duration::ZERO;
        for _ in 0..rounds {
            let before = std::time::Instant::now();
            for _ in 0..63 {
                qp.post(
                    rig,
                    Opcode::RdmaWrite,
                    0,
                    &[to.piece(0, 64).remote(), from.piece(0, 64).local()].concat(),
                );
            }
            qp.write(rig, from.piece(0, 64), to.piece(0, 64));
            qp.ring(rig);
            posting += before.elapsed();
            rig.run();
            cq.success(rig);
            nic.take_trace();
        }
        let seconds = (begun.elapsed() - posting).as_secs_f64();
        eprintln!(
            "{name}: {:.0} WRITEs of 64 bytes a second",
            rounds as f64 * 64.0 / seconds
        );
    };
    let rig = Rig::new();
    let mut cq = rig.cq(7);
    let (mut a, _b) = rig.pair(&cq, 7);
    let mr = rig.mr(4096, EVERY_RIGHT);
    rate(&rig, &rig, &mut a, &mut cq, mr, mr, "one NIC");
    let (mut a, b, _) = peers(CablePlan::default(), 1);
    rate(&a.rig, &a.rig, &mut a.qp, &mut a.cq, a.mr, b.mr, "two NICs");
}
