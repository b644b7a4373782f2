//! What fails: receivers that are not ready, wrong keys, messages too long, keys that were invalidated; in both directions.

use warpverbs_wire::cqe::{Completion, CqeOpcode};
use warpverbs_wire::prm::qpc::QpState;
use warpverbs_wire::wqe::{Opcode, SIGNALLED, fetch_add, segment_bytes};

use crate::ends::{Ends, GuestWr, Pair};
use crate::rig::{EVERY_RIGHT, Piece, inline};
use crate::vm::Wc;

/// `enum ibv_wc_status`
const SUCCESS: u32 = 0;
const FLUSHED: u32 = 5;
const REMOTE_INVALID_REQUEST: u32 = 9;
const REMOTE_ACCESS: u32 = 10;
const RNR_RETRY_EXCEEDED: u32 = 13;
/// `enum ibv_wr_opcode`
const WRITE: u32 = 0;
const SEND: u32 = 2;
const READ: u32 = 4;
const FETCH_ADD: u32 = 6;
const SEND_INVALIDATE: u32 = 9;

/// Syndrome of the NIC's next CQE, which is an error's.
#[track_caller]
fn error(ends: &mut Ends) -> u8 {
    match ends.poll(1)[..] {
        [Completion::Failed(cqe)] => cqe.syndrome.code(),
        ref other => panic!("{other:?}"),
    }
}

#[track_caller]
fn success(ends: &mut Ends) {
    assert!(matches!(ends.poll(1)[..], [Completion::Done(_)]));
}

#[track_caller]
fn wc(ends: &mut Ends) -> Wc {
    ends.vm.poll(1)[0]
}

/// SENDs that find no receive are tried again until there is one, or until the retries end.
pub(crate) fn receivers_that_are_not_ready(ends: &mut Ends) {
    ends.fill(4096, 21);
    ends.guest_fill(4096, 22);
    let mut pair = ends.pair(1024, 7);
    let before = ends.rig.nic().stats().rnr_naks;
    let message = ends.mr.piece(0, 3000).local();
    pair.qp.post(&ends.rig, Opcode::Send, SIGNALLED, &message);
    pair.qp.ring(&ends.rig);
    while ends.rig.nic().stats().rnr_naks < before + 3 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    ends.guest_receive(&pair, 1, 0, 3000);
    success(ends);
    let got = wc(ends);
    assert_eq!((got.status, got.bytes), (SUCCESS, 3000));
    ends.guest_check(0, 3000, 21, 0);

    let before = ends.vm.counter("rcvd_rnr_err");
    ends.guest_fill(4096, 23);
    let local = (ends.guest_mr.addr, 3000);
    let send = GuestWr {
        opcode: SEND,
        local,
        ..GuestWr::default()
    };
    ends.guest_send(&pair, 2, send);
    while ends.vm.counter("rcvd_rnr_err") < before + 3 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    pair.rq.post(&ends.rig, &[ends.mr.piece(0, 3000)]);
    assert_eq!(wc(ends).status, SUCCESS);
    success(ends);
    ends.check(0, 3000, 23, 0);
    ends.part(pair);

    let mut pair = ends.pair(1024, 2);
    pair.qp
        .post(&ends.rig, Opcode::Send, SIGNALLED, &inline(&[1; 16]));
    pair.qp.ring(&ends.rig);
    assert_eq!(error(ends), 0x16);
    ends.part(pair);
    let pair = ends.pair(1024, 2);
    ends.guest_send(&pair, 3, send);
    assert_eq!(wc(ends).status, RNR_RETRY_EXCEEDED);
    assert_eq!(ends.rig.state(pair.qp.qpn), QpState::Rts);
    ends.part(pair);
    println!(
        "receivers that are not ready: waited for in both directions, and given up after 2 retries"
    );
}

/// A request that the responder refuses fails with its code, and what is behind it is flushed.
pub(crate) fn keys_lengths_and_operations(ends: &mut Ends) {
    ends.fill(8192, 31);
    ends.guest_fill(8192, 32);
    let behind = |ends: &mut Ends, pair: &mut Pair| {
        pair.qp.nop(&ends.rig);
        pair.qp.ring(&ends.rig);
    };
    for (opcode, what) in [
        (Opcode::RdmaWrite, "WRITE"),
        (Opcode::RdmaRead, "READ"),
        (Opcode::AtomicFetchAdd, "FETCH_ADD"),
    ] {
        let mut pair = ends.pair(1024, 7);
        let remote = Piece {
            key: ends.guest_mr.rkey ^ 0x0100,
            iova: ends.guest_mr.addr,
            len: 0,
        };
        let mut segments = remote.remote();
        if opcode == Opcode::AtomicFetchAdd {
            segments.extend(segment_bytes(fetch_add(1)));
        }
        segments.extend(ends.mr.piece(0, 8).local());
        pair.qp.post(&ends.rig, opcode, SIGNALLED, &segments);
        behind(ends, &mut pair);
        assert_eq!(error(ends), 0x13, "{what}");
        assert_eq!(error(ends), 0x05, "{what}");
        ends.part(pair);
    }
    for opcode in [WRITE, READ, FETCH_ADD] {
        let pair = ends.pair(1024, 7);
        let wr = GuestWr {
            opcode,
            local: (ends.guest_mr.addr, 8),
            remote: (ends.mr.iova, ends.mr.keys.rkey ^ 0x0100),
            ..GuestWr::default()
        };
        ends.guest_send(&pair, 1, wr);
        assert_eq!(wc(ends).status, REMOTE_ACCESS, "opcode {opcode}");
        ends.guest_send(&pair, 2, wr);
        let flushed = wc(ends);
        assert_eq!((flushed.status, flushed.id), (FLUSHED, 2));
        assert_eq!(ends.rig.state(pair.qp.qpn), QpState::Err);
        ends.part(pair);
    }
    // A message longer than its receive.
    let mut pair = ends.pair(1024, 7);
    ends.guest_receive(&pair, 5, 4096, 2000);
    let message = ends.mr.piece(0, 2001).local();
    pair.qp.post(&ends.rig, Opcode::Send, SIGNALLED, &message);
    pair.qp.ring(&ends.rig);
    // IBA 9.9 asks for Invalid Request; Linux 6.1 answers Remote Operational Error.
    assert!(matches!(error(ends), 0x12 | 0x14));
    assert_ne!(wc(ends).status, SUCCESS);
    ends.part(pair);
    let mut pair = ends.pair(1024, 7);
    pair.rq.post(&ends.rig, &[ends.mr.piece(4096, 2000)]);
    let wr = GuestWr {
        opcode: SEND,
        local: (ends.guest_mr.addr, 2001),
        ..GuestWr::default()
    };
    ends.guest_send(&pair, 6, wr);
    assert_eq!(wc(ends).status, REMOTE_INVALID_REQUEST);
    // A responder's error.
    assert_eq!(error(ends), 0x01);
    ends.part(pair);
    // What was refused left the memories as they were.
    ends.check(0, 4096, 31, 0);
    ends.guest_check(0, 4096, 32, 0);
    println!("wrong keys and messages too long: refused in both directions, with the right codes");
}

/// A SEND that invalidates a key: it is told to the receiver, and the key is good for nothing afterwards.
pub(crate) fn invalidated_keys(ends: &mut Ends) {
    ends.fill(8192, 41);
    ends.guest_fill(8192, 42);
    let mut pair = ends.pair(1024, 7);
    // In rxe only a window can be invalidated by a peer; it lies over the MR's first bytes.
    let [window] = ends.vm.numbers("window");
    let (guest, number) = (pair.guest, ends.guest_mr.number);
    let [rkey] = ends
        .vm
        .numbers(&format!("bind {guest} 1 {window} {number} 4096"));
    let rkey = rkey as u32;
    assert_eq!(wc(ends).status, SUCCESS, "bound");
    let through = Piece {
        key: rkey,
        iova: ends.guest_mr.addr,
        len: 0,
    };
    let write = [through.remote(), ends.mr.piece(0, 1500).local()].concat();
    pair.qp
        .post(&ends.rig, Opcode::RdmaWrite, SIGNALLED, &write);
    pair.qp.ring(&ends.rig);
    success(ends);
    ends.guest_check(0, 1500, 41, 0);
    ends.guest_receive(&pair, 2, 4096, 64);
    pair.qp.post_with(
        &ends.rig,
        |control| control.immediate = rkey,
        Opcode::SendInvalidate,
        &inline(&[7; 16]),
    );
    pair.qp
        .post(&ends.rig, Opcode::RdmaWrite, SIGNALLED, &write);
    pair.qp.ring(&ends.rig);
    success(ends);
    let got = wc(ends);
    // Linux 6.1 does not tell user space which key; that it took the message for what it is shows next.
    assert_eq!((got.status, got.bytes), (SUCCESS, 16));
    assert!([0, rkey].contains(&got.immediate), "{got:?}");
    assert_eq!(error(ends), 0x13);
    ends.part(pair);

    let mut pair = ends.pair(1024, 7);
    let target = ends.rig.mr(4096, EVERY_RIGHT);
    pair.rq.post(&ends.rig, &[ends.mr.piece(4096, 64)]);
    let local = (ends.guest_mr.addr + 2048, 1500);
    let write = GuestWr {
        opcode: WRITE,
        local,
        remote: (target.iova, target.keys.rkey),
        ..GuestWr::default()
    };
    let send = GuestWr {
        opcode: SEND_INVALIDATE,
        local: (ends.guest_mr.addr, 16),
        immediate: target.keys.rkey,
        ..GuestWr::default()
    };
    for (id, wr) in [(1, write), (2, send), (3, write)] {
        ends.guest_send(&pair, id, wr);
    }
    let statuses: Vec<u32> = ends.vm.poll(3).iter().map(|wc| wc.status).collect();
    assert_eq!(statuses, [SUCCESS, SUCCESS, REMOTE_ACCESS]);
    match ends.poll(1)[..] {
        [Completion::Done(cqe)] => assert_eq!(
            (cqe.opcode, cqe.byte_count, cqe.immediate),
            (CqeOpcode::ResponderSendInvalidate, 16, target.keys.rkey)
        ),
        ref other => panic!("{other:?}"),
    }
    ends.part(pair);
    println!("keys invalidated by a send: refused afterwards, in both directions");
}
