//! The exported handle and the kernels' blocks: where each field lies, and that bytes survive.

use proptest::prelude::*;
use warpverbs_wire::abi::{
    BwParams, Descriptor, FaultCause, LatParams, LatSide, Line, LongWqe, Outcome, ProxyRecord,
    QpHandle, RqHandle, State, ThreadResult,
};

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

#[test]
fn handle() {
    let handle = QpHandle {
        version: 1,
        flags: 2,
        sq: 3,
        dbr: 4,
        doorbell: 5,
        sq_depth: 6,
        qpn: 7,
        cq: 8,
        cq_depth: 9,
        log_max_message: 10,
        stop: 11,
        cqn: 17,
        user_index: 18,
        cq_dbr: 19,
        proxy: 20,
        rq: 21,
        rest: [0; 4],
        reserved: Line::new(12),
        turn: Line::new(13),
        completed: Line {
            second: 15,
            ..Line::new(14)
        },
        state: Line::new(16),
    };
    let bytes = handle.to_bytes();
    assert_eq!(bytes.len(), 384);
    for (at, value) in [
        (0, 1),
        (4, 2),
        (32, 6),
        (36, 7),
        (48, 9),
        (52, 10),
        (64, 17),
        (68, 18),
    ] {
        assert_eq!(u32_at(&bytes, at), value, "at {at}");
    }
    for (at, value) in [
        (8, 3),
        (16, 4),
        (24, 5),
        (40, 8),
        (56, 11),
        (72, 19),
        (80, 20),
        (88, 21),
        (128, 12),
        (192, 13),
        (256, 14),
        (264, 15),
        (320, 16),
    ] {
        assert_eq!(u64_at(&bytes, at), value, "at {at}");
    }
    assert_eq!(bytes.iter().filter(|byte| **byte != 0).count(), 21);
    assert_eq!(QpHandle::from_bytes(&bytes), Ok(handle));
    assert!(QpHandle::from_bytes(&bytes[1..]).is_err());
}

#[test]
fn receive_handle() {
    let handle = RqHandle {
        version: 1,
        flags: 2,
        rq: 3,
        dbr: 4,
        rq_depth: 5,
        log_stride: 6,
        cq: 7,
        cq_depth: 8,
        qpn: 9,
        stop: 10,
        cq_dbr: 11,
        reserved: Line::new(12),
        turn: Line::new(13),
        consumer: Line {
            second: 15,
            ..Line::new(14)
        },
        state: Line::new(16),
    };
    let bytes = handle.to_bytes();
    assert_eq!(bytes.len(), 320);
    for (at, value) in [(0, 1), (4, 2), (24, 5), (28, 6), (40, 8), (44, 9)] {
        assert_eq!(u32_at(&bytes, at), value, "at {at}");
    }
    for (at, value) in [
        (8, 3),
        (16, 4),
        (32, 7),
        (48, 10),
        (56, 11),
        (64, 12),
        (128, 13),
        (192, 14),
        (200, 15),
        (256, 16),
    ] {
        assert_eq!(u64_at(&bytes, at), value, "at {at}");
    }
    assert_eq!(RqHandle::from_bytes(&bytes), Ok(handle));
}

#[test]
fn proxy_record_and_descriptor() {
    let record = ProxyRecord {
        producer: 0x0102_0304_0506_0708,
        qpn: 9,
        unused: 0,
        rung: 10,
        rest: [0; 5],
    };
    let bytes = record.to_bytes();
    assert_eq!(bytes.len(), 64);
    assert_eq!(u64_at(&bytes, 0), 0x0102_0304_0506_0708);
    assert_eq!((u32_at(&bytes, 8), u64_at(&bytes, 16)), (9, 10));
    assert_eq!(ProxyRecord::from_bytes(&bytes), Ok(record));
    let descriptor = Descriptor {
        local: 1,
        remote: 2,
        len: 3,
        lkey: 4,
        rkey: 5,
    };
    let bytes = descriptor.to_bytes();
    assert_eq!(bytes.len(), 32);
    for (at, value) in [(0, 1), (8, 2), (16, 3)] {
        assert_eq!(u64_at(&bytes, at), value, "at {at}");
    }
    assert_eq!((u32_at(&bytes, 24), u32_at(&bytes, 28)), (4, 5));
}

#[test]
fn a_long_wqe_is_known_by_the_index_that_its_completion_gives() {
    for index in [0, 1, 0xffff, 1 << 40] {
        for more in 1..=15 {
            let long = LongWqe::new(index, more);
            assert_eq!(long.more(index + 1), u64::from(more));
            assert_eq!((long.more(index), long.more(index + 2)), (0, 0));
        }
    }
    assert_eq!(LongWqe::default().more(0), 0);
}

#[test]
fn result() {
    let result = ThreadResult {
        outcome: Outcome::Fault.code(),
        seen_version: 2,
        posted: 3,
        completed: 4,
        state: 5,
        start_ns: 6,
        end_ns: 7,
        rest: [8, 9],
    };
    let bytes = result.to_bytes();
    assert_eq!(bytes.len(), 64);
    assert_eq!((u32_at(&bytes, 0), u32_at(&bytes, 4)), (4, 2));
    for (at, value) in [(8, 3), (16, 4), (24, 5), (32, 6), (40, 7), (48, 8), (56, 9)] {
        assert_eq!(u64_at(&bytes, at), value, "at {at}");
    }
    assert_eq!(ThreadResult::from_bytes(&bytes), Ok(result));
}

#[test]
fn bandwidth_parameters() {
    let params = BwParams {
        version: 1,
        qps: 2,
        handles: 3,
        results: 4,
        local: 5,
        remote: 6,
        lkey: 7,
        rkey: 8,
        size: 9,
        slots: 10,
        iters: 11,
        deadline_ns: 12,
        sharing: 13,
        doorbell: 14,
    };
    let bytes = params.to_bytes();
    assert_eq!(bytes.len(), 80);
    for (at, value) in [
        (0, 1),
        (4, 2),
        (40, 7),
        (44, 8),
        (48, 9),
        (52, 10),
        (72, 13),
        (76, 14),
    ] {
        assert_eq!(u32_at(&bytes, at), value, "at {at}");
    }
    for (at, value) in [(8, 3), (16, 4), (24, 5), (32, 6), (56, 11), (64, 12)] {
        assert_eq!(u64_at(&bytes, at), value, "at {at}");
    }
    assert_eq!(BwParams::from_bytes(&bytes), Ok(params));
}

#[test]
fn latency_parameters() {
    let side = |first: u64| LatSide {
        handle: first,
        local: first + 1,
        remote: first + 2,
        inbox: first + 3,
        outbox: first + 4,
        lkey: first as u32 + 5,
        rkey: first as u32 + 6,
    };
    let params = LatParams {
        version: 1,
        size: 2,
        sides: [side(10), side(20)],
        results: 3,
        iters: 4,
        deadline_ns: 5,
        doorbell: 6,
        form: 0,
    };
    let bytes = params.to_bytes();
    assert_eq!(bytes.len(), 136);
    for (base, first) in [(8, 10), (56, 20)] {
        for field in 0..5 {
            assert_eq!(
                u64_at(&bytes, base + field * 8),
                first + field as u64,
                "side at {base}"
            );
        }
        assert_eq!(
            (u32_at(&bytes, base + 40), u32_at(&bytes, base + 44)),
            (first as u32 + 5, first as u32 + 6)
        );
    }
    assert_eq!(
        (
            u64_at(&bytes, 104),
            u64_at(&bytes, 112),
            u64_at(&bytes, 120)
        ),
        (3, 4, 5)
    );
    assert_eq!((u32_at(&bytes, 128), u32_at(&bytes, 132)), (6, 0));
    assert_eq!(LatParams::from_bytes(&bytes), Ok(params));
}

#[test]
fn a_fault_keeps_what_the_cqe_said() {
    let state = State::fault(FaultCause::Completion, 0x13, 0x88, 0x0d, 0x1_2345_6789);
    assert_eq!(state.0, 0x2345_6789_0d88_1302);
    assert!(state.is_fault() && !state.is_stopped() && !state.is_live());
    assert_eq!(
        (
            state.syndrome(),
            state.vendor_syndrome(),
            state.opcode(),
            state.index()
        ),
        (0x13, 0x88, 0x0d, 0x2345_6789)
    );
    for code in 0..64 {
        let cause = FaultCause::from_code(code);
        assert_eq!(cause.code(), code);
        assert_eq!(State::fault(cause, 0, 0, 0, 0).cause(), cause);
    }
    for code in [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, u32::MAX] {
        assert_eq!(Outcome::from_code(code).code(), code);
    }
}

proptest! {
    #[test]
    fn bytes_survive(words in prop::collection::vec(any::<u8>(), 384)) {
        prop_assert_eq!(&QpHandle::from_bytes(&words).unwrap().to_bytes()[..], &words[..]);
        prop_assert_eq!(&RqHandle::from_bytes(&words).unwrap().to_bytes()[..], &words[..320]);
        prop_assert_eq!(&ThreadResult::from_bytes(&words).unwrap().to_bytes()[..], &words[..64]);
        prop_assert_eq!(&BwParams::from_bytes(&words).unwrap().to_bytes()[..], &words[..80]);
        prop_assert_eq!(&LatParams::from_bytes(&words).unwrap().to_bytes()[..], &words[..136]);
    }
}
