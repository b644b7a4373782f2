//! Whole WQEs: built segment by segment as device code does, decoded as the NIC does.

use proptest::prelude::*;
use warpverbs_wire::doorbell::Doorbell;
use warpverbs_wire::wqe::{
    self, Atomic, AtomicOperands, Data, DataPointer, Error, FENCE, INLINE, MASKED_4, MASKED_8,
    MAX_BYTE_COUNT, MAX_INLINE_ONE_WQEBB, MaskedCompareSwap4, MaskedCompareSwap8, MaskedFetchAdd4,
    MaskedFetchAdd8, Opcode, Receive, ReceiveError, SIGNALLED, Segment, Wait, Wqe, compare_swap,
    control, control_head, data, fetch_add, inline_head, inline_segments, masked_compare_swap_4,
    masked_compare_swap_8, masked_fetch_add_4, masked_fetch_add_8, qpn_ds, receive_end, remote,
    segment_bytes, srq_next, wait, with_opmod,
};

fn bytes_of(segments: &[Segment]) -> Vec<u8> {
    segments
        .iter()
        .flat_map(|segment| segment_bytes(*segment))
        .collect()
}

fn head(opcode: Opcode, ds: u32) -> Segment {
    control(control_head(0, opcode, qpn_ds(0x123, ds)), SIGNALLED, 0)
}

fn masked(opcode: Opcode, opmod: u8, ds: u32) -> Segment {
    control(
        with_opmod(control_head(0, opcode, qpn_ds(0x123, ds)), opmod),
        SIGNALLED,
        0,
    )
}

/// An RDMA WRITE of inline bytes, as device code builds it from little-endian loads.
fn inline_write(payload: &[u8]) -> Vec<u8> {
    let len = payload.len() as u32;
    let mut padded = payload.to_vec();
    padded.resize(
        12 + (payload.len().saturating_sub(12)).next_multiple_of(16),
        0,
    );
    let mut bytes = bytes_of(&[
        head(Opcode::RdmaWrite, 2 + inline_segments(len)),
        remote(0x1000, 7),
        inline_head(
            len,
            u32::from_le_bytes(padded[..4].try_into().unwrap()),
            u64::from_le_bytes(padded[4..12].try_into().unwrap()),
        ),
    ]);
    bytes.extend(&padded[12..]);
    bytes
}

#[test]
fn a_write_has_the_bytes_of_the_field_tables() {
    let bytes = bytes_of(&[
        control(
            control_head(0x1_0005, Opcode::RdmaWrite, qpn_ds(0x00_0123, 3)),
            SIGNALLED,
            0,
        ),
        remote(0x1122_3344_5566_7788, 0xaabb_ccdd),
        data(0x0001_0000, 0x0a0b_0c0d, 0x99aa_bbcc_ddee_ff00),
    ]);
    #[rustfmt::skip]
    let golden = [
        0x00, 0x00, 0x05, 0x08, 0x00, 0x01, 0x23, 0x03, 0x00, 0x00, 0x00, 0x08, 0x00, 0x00, 0x00, 0x00,
        0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0xaa, 0xbb, 0xcc, 0xdd, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x01, 0x00, 0x00, 0x0a, 0x0b, 0x0c, 0x0d, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff, 0x00,
    ];
    assert_eq!(bytes, golden);
    let wqe = Wqe::decode(&bytes).unwrap();
    assert_eq!(
        (wqe.control.index, wqe.control.opmod, wqe.control.qpn),
        (5, 0, 0x123)
    );
    assert!(wqe.control.is_signalled());
    assert_eq!(
        wqe.remote.map(|r| (r.address, r.key)),
        Some((0x1122_3344_5566_7788, 0xaabb_ccdd))
    );
    assert_eq!((wqe.byte_count(), wqe.wqebbs()), (0x1_0000, 1));
    // The first word is the doorbell too.
    let doorbell = Doorbell::parse(bytes[..8].try_into().unwrap()).unwrap();
    assert_eq!((doorbell.producer(), doorbell.qpn()), (6, 0x123));
}

#[test]
fn inline_data_of_the_sizes_around_the_segments() {
    for len in [0, 1, 11, 12, 13, 27, 28, 29, 44, 45] {
        let payload: Vec<u8> = (1..=len).collect();
        let bytes = inline_write(&payload);
        let wqe = Wqe::decode(&bytes).unwrap();
        assert_eq!(
            wqe.data().collect::<Vec<_>>(),
            [Data::Inline(&payload)],
            "{len} bytes"
        );
        assert_eq!(
            bytes.len(),
            wqe.control.ds as usize * wqe::SEGMENT,
            "{len} bytes"
        );
        let one_block = len as u32 <= MAX_INLINE_ONE_WQEBB;
        assert_eq!(wqe.wqebbs() == 1, one_block, "{len} bytes");
    }
}

#[test]
fn a_nop_is_its_control_segment_and_carries_nothing_over() {
    // The slot's old bytes are those of a write; the NOP's ds leaves them out, and its own segment has every byte defined.
    let mut slot = bytes_of(&[head(Opcode::RdmaWrite, 3), remote(!0, !0), data(!0, !0, !0)]);
    slot.iter_mut().for_each(|byte| *byte |= 0x80);
    slot[..16].copy_from_slice(&segment_bytes(control(
        control_head(9, Opcode::Nop, qpn_ds(1, 1)),
        0,
        0,
    )));
    let wqe = Wqe::decode(&slot).unwrap();
    assert_eq!(
        (
            wqe.control.signature,
            wqe.control.immediate,
            wqe.control.flags
        ),
        (0, 0, 0)
    );
    assert_eq!((wqe.remote, wqe.data().count()), (None, 0));
}

#[test]
fn each_fault_has_an_error_that_names_it() {
    let pointer = data(64, 1, 0);
    let inline = inline_head(4, 0, 0);
    let decode = |segments: &[Segment]| Wqe::decode(&bytes_of(segments)).map(|_| ());
    let write = Opcode::RdmaWrite;
    let atomic = Opcode::AtomicFetchAdd;
    let unknown = Opcode::from_code(0x77);
    assert_eq!(
        Wqe::decode(&[0; 15]),
        Err(Error::Short {
            needed: 16,
            found: 15
        })
    );
    assert_eq!(
        decode(&[head(write, 3), remote(0, 0)]),
        Err(Error::Short {
            needed: 48,
            found: 32
        })
    );
    assert_eq!(decode(&[head(write, 0)]), Err(Error::BadDs(0)));
    assert_eq!(decode(&[head(write, 64)]), Err(Error::BadDs(64)));
    assert_eq!(
        decode(&[head(unknown, 1)]),
        Err(Error::UnsupportedOpcode(unknown))
    );
    assert_eq!(
        decode(&[head(atomic, 2), remote(0, 0)]),
        Err(Error::NoOperands(atomic))
    );
    assert_eq!(
        decode(&[head(atomic, 3), remote(0, 0), fetch_add(1)]),
        Err(Error::NoData(atomic))
    );
    let eight = data(8, 1, 0);
    assert_eq!(
        decode(&[head(atomic, 5), remote(0, 0), fetch_add(1), eight, eight]),
        Err(Error::TooManySegments(atomic))
    );
    assert_eq!(
        decode(&[head(atomic, 4), remote(0, 0), fetch_add(1), pointer]),
        Err(Error::AtomicLength {
            needed: 8,
            found: 64
        })
    );
    assert_eq!(
        decode(&[
            head(atomic, 4),
            remote(0, 0),
            fetch_add(1),
            inline_head(8, 0, 0)
        ]),
        Err(Error::InlineNotAllowed(atomic))
    );
    for opmod in [0, 7, 10, 11] {
        let masked = [
            masked(Opcode::AtomicMaskedFetchAdd, opmod, 4),
            remote(0, 0),
            fetch_add(1),
            eight,
        ];
        assert_eq!(decode(&masked), Err(Error::BadOpmod(opmod)));
    }
    let dirty = [
        masked(Opcode::AtomicMaskedFetchAdd, MASKED_4, 4),
        remote(0, 0),
        [0, 1 << 8],
        data(4, 1, 0),
    ];
    assert_eq!(decode(&dirty), Err(Error::ReservedNotZero { byte: 41 }));
    assert_eq!(
        decode(&[head(Opcode::Wait, 1)]),
        Err(Error::NoOperands(Opcode::Wait))
    );
    assert_eq!(
        decode(&[head(Opcode::Wait, 3), wait(1, 2), pointer]),
        Err(Error::TooManySegments(Opcode::Wait))
    );
    assert_eq!(
        decode(&[head(Opcode::Wait, 2), [1, 0]]),
        Err(Error::ReservedNotZero { byte: 16 })
    );
    assert_eq!(
        decode(&[head(write, 1)]),
        Err(Error::NoRemoteAddress(write))
    );
    assert_eq!(
        decode(&[head(Opcode::Dump, 1)]),
        Err(Error::NoData(Opcode::Dump))
    );
    assert_eq!(
        decode(&[head(Opcode::Nop, 2), pointer]),
        Err(Error::TooManySegments(Opcode::Nop))
    );
    assert_eq!(
        decode(&[head(Opcode::Dump, 3), pointer, pointer]),
        Err(Error::TooManySegments(Opcode::Dump))
    );
    assert_eq!(
        decode(&[head(Opcode::RdmaRead, 3), remote(0, 0), inline]),
        Err(Error::InlineNotAllowed(Opcode::RdmaRead))
    );
    assert_eq!(
        decode(&[head(write, 3), remote(0, 0), inline_head(13, 0, 0)]),
        Err(Error::InlineTooLong { len: 13, room: 12 })
    );
    assert_eq!(
        decode(&[head(write, 3), remote(0, 0), inline_head(!INLINE, 0, 0)]),
        Err(Error::InlineTooLong {
            len: !INLINE,
            room: 12
        })
    );
    let mut dirty = bytes_of(&[head(write, 3), remote(0, 0), pointer]);
    dirty[29] = 1;
    assert_eq!(
        Wqe::decode(&dirty),
        Err(Error::ReservedNotZero { byte: 29 })
    );
    let mut opmod = bytes_of(&[head(write, 3), remote(0, 0), pointer]);
    opmod[0] = 1;
    assert_eq!(Wqe::decode(&opmod), Err(Error::BadOpmod(1)));
    // Each has words of its own.
    assert_eq!(Error::BadDs(64).to_string(), "ds is 64, not 1 to 63");
    assert_eq!(
        Error::NoRemoteAddress(write).to_string(),
        "ds leaves no room for the remote-address segment of RdmaWrite"
    );
}

#[test]
fn each_atomic_has_its_operands_and_one_buffer() {
    let decode = |segments: &[Segment]| {
        let bytes = bytes_of(segments);
        let wqe = Wqe::decode(&bytes).unwrap();
        assert_eq!(wqe.data().count(), 1);
        (wqe.atomic.unwrap(), wqe.byte_count(), wqe.wqebbs())
    };
    let to = remote(0x1000, 7);
    let plain = AtomicOperands {
        swap_or_add: 1,
        compare: 2,
    };
    assert_eq!(
        decode(&[
            head(Opcode::AtomicCompareSwap, 4),
            to,
            compare_swap(1, 2),
            data(8, 1, 0)
        ]),
        (Atomic::Plain(plain), 8, 1)
    );
    assert_eq!(
        decode(&[
            head(Opcode::AtomicFetchAdd, 4),
            to,
            fetch_add(1),
            data(8, 1, 0)
        ]),
        (
            Atomic::Plain(AtomicOperands {
                compare: 0,
                ..plain
            }),
            8,
            1
        )
    );
    let four = MaskedCompareSwap4 {
        swap: 1,
        compare: 2,
        swap_mask: 3,
        compare_mask: 4,
    };
    assert_eq!(
        decode(&[
            masked(Opcode::AtomicMaskedCompareSwap, MASKED_4, 4),
            to,
            masked_compare_swap_4(1, 2, 3, 4),
            data(4, 1, 0)
        ]),
        (Atomic::CompareSwap4(four), 4, 1)
    );
    let eight = MaskedCompareSwap8 {
        swap: 1,
        compare: 2,
        swap_mask: 3,
        compare_mask: 4,
    };
    let [first, second] = masked_compare_swap_8(1, 2, 3, 4);
    assert_eq!(
        decode(&[
            masked(Opcode::AtomicMaskedCompareSwap, MASKED_8, 5),
            to,
            first,
            second,
            data(8, 1, 0)
        ]),
        (Atomic::CompareSwap8(eight), 8, 2)
    );
    assert_eq!(
        decode(&[
            masked(Opcode::AtomicMaskedFetchAdd, MASKED_4, 4),
            to,
            masked_fetch_add_4(1, 2),
            data(4, 1, 0)
        ]),
        (
            Atomic::FetchAdd4(MaskedFetchAdd4 {
                add: 1,
                boundary: 2
            }),
            4,
            1
        )
    );
    assert_eq!(
        decode(&[
            masked(Opcode::AtomicMaskedFetchAdd, MASKED_8, 4),
            to,
            masked_fetch_add_8(1, 2),
            data(8, 1, 0)
        ]),
        (
            Atomic::FetchAdd8(MaskedFetchAdd8 {
                add: 1,
                boundary: 2
            }),
            8,
            1
        )
    );
}

#[test]
fn a_wait_names_a_queue_and_an_index() {
    let bytes = bytes_of(&[head(Opcode::Wait, 2), wait(5, 0x77)]);
    let wqe = Wqe::decode(&bytes).unwrap();
    assert_eq!(
        wqe.wait,
        Some(Wait {
            index: 5,
            cqn: 0x77
        })
    );
    assert_eq!((wqe.data().count(), wqe.wqebbs()), (0, 1));
    assert!(
        wqe.to_string()
            .ends_with("doca_gpunetio_ib_mlx5_wqe_wait_seg\n  max_index: 0x5\n  qpn_cqn: 0x77"),
        "{wqe}"
    );
}

#[test]
fn a_receive_ends_at_the_terminator_or_at_its_stride() {
    let list = |receive: Receive<'_>| {
        receive
            .data()
            .map(|p| (p.byte_count, p.key, p.address))
            .collect::<Vec<_>>()
    };
    let bytes = bytes_of(&[data(5, 6, 7), data(8, 9, 10), receive_end(), data(1, 1, 1)]);
    let receive = Receive::decode(&bytes, false).unwrap();
    assert_eq!(
        (list(receive), receive.byte_count(), receive.next),
        (vec![(5, 6, 7), (8, 9, 10)], 13, None)
    );
    let bytes = bytes_of(&[srq_next(0x1234), data(5, 6, 7)]);
    let receive = Receive::decode(&bytes, true).unwrap();
    assert_eq!(
        (list(receive), receive.next.map(|next| next.next)),
        (vec![(5, 6, 7)], Some(0x1234))
    );
    assert!(
        receive
            .to_string()
            .starts_with("receive of 5 bytes\nmlx5_wqe_srq_next_seg\n"),
        "{receive}"
    );
    let bytes = bytes_of(&[receive_end()]);
    assert_eq!(
        Receive::decode(&bytes, false).map(|receive| receive.byte_count()),
        Ok(0)
    );
}

#[test]
fn each_fault_of_a_receive_has_an_error_that_names_it() {
    assert_eq!(
        Receive::decode(&[0; 17], false),
        Err(ReceiveError::Length(17))
    );
    assert_eq!(Receive::decode(&[], true), Err(ReceiveError::Length(0)));
    let inline = bytes_of(&[srq_next(0), data(1, 1, 1), inline_head(4, 0, 0)]);
    assert_eq!(
        Receive::decode(&inline, true),
        Err(ReceiveError::Inline { byte: 32 })
    );
    assert_eq!(
        Receive::decode(&bytes_of(&[[0, 1]]), true),
        Err(ReceiveError::ReservedNotZero { byte: 8 })
    );
    // Behind the terminator nothing is looked at.
    let bytes = bytes_of(&[receive_end(), inline_head(4, 0, 0)]);
    assert!(Receive::decode(&bytes, false).is_ok());
}

#[test]
fn several_pointers_and_the_two_gib_one() {
    let bytes = bytes_of(&[
        head(Opcode::RdmaRead, 4),
        remote(0, 0),
        data(5, 1, 0),
        [0, 0],
    ]);
    let wqe = Wqe::decode(&bytes).unwrap();
    assert_eq!(wqe.byte_count(), 5 + (1 << 31));
    assert_eq!(
        wqe.data().nth(1),
        Some(Data::Pointer(DataPointer::default()))
    );
}

#[test]
fn a_pointer_behind_inline_data_begins_at_the_next_segment() {
    let bytes = bytes_of(&[
        head(Opcode::Send, 3),
        inline_head(2, 0x0201, 0),
        data(5, 6, 7),
    ]);
    let pointer = DataPointer {
        byte_count: 5,
        key: 6,
        address: 7,
    };
    let wqe = Wqe::decode(&bytes).unwrap();
    assert_eq!(
        wqe.data().collect::<Vec<_>>(),
        [Data::Inline(&[1, 2]), Data::Pointer(pointer)]
    );
    assert_eq!(wqe.byte_count(), 7);
}

#[test]
fn printed_with_fields_and_bytes() {
    let bytes = bytes_of(&[
        control(
            control_head(5, Opcode::RdmaWrite, qpn_ds(0x123, 3)),
            SIGNALLED | FENCE,
            0,
        ),
        remote(0x1000, 7),
        inline_head(2, 0x0201, 0),
    ]);
    let text = Wqe::decode(&bytes).unwrap().to_string();
    assert_eq!(
        text,
        "  0: 00 00 05 08 00 01 23 03 00 00 00 88 00 00 00 00 mlx5_wqe_ctrl_seg\n  \
           pi: 0x5\n  \
           opcode: 0x8 (RdmaWrite)\n  \
           qp_num: 0x123\n  \
           ds: 0x3\n  \
           fm_ce_se: 0x88\n \
         16: 00 00 00 00 00 00 10 00 00 00 00 07 00 00 00 00 mlx5_wqe_raddr_seg\n  \
           raddr: 0x1000\n  \
           rkey: 0x7\n \
         32: inline, 2 bytes: 01 02"
    );
}

proptest! {
    #[test]
    fn what_builders_write_decode_reads(
        index: u64, qpn in 0u32..1 << 24, flags: u8, immediate: u32, opcode in prop_oneof![
            Just(Opcode::RdmaWrite), Just(Opcode::RdmaRead), Just(Opcode::RdmaWriteImmediate),
        ],
        raddr: u64, rkey: u32, pointers in prop::collection::vec((1..=MAX_BYTE_COUNT, any::<u32>(), any::<u64>()), 1..8),
    ) {
        let ds = 2 + pointers.len() as u32;
        let mut segments = vec![control(control_head(index, opcode, qpn_ds(qpn, ds)), flags, immediate), remote(raddr, rkey)];
        segments.extend(pointers.iter().map(|(len, lkey, address)| data(*len, *lkey, *address)));
        let bytes = bytes_of(&segments);
        let wqe = Wqe::decode(&bytes).unwrap();
        prop_assert_eq!(wqe.control.index, index as u16);
        prop_assert_eq!((wqe.control.opmod, wqe.control.opcode, wqe.control.qpn), (0, opcode, qpn));
        prop_assert_eq!((wqe.control.ds as u32, wqe.control.flags, wqe.control.immediate), (ds, flags, immediate));
        prop_assert_eq!(wqe.remote.map(|r| (r.address, r.key)), Some((raddr, rkey)));
        let read: Vec<_> = wqe.data().map(|data| match data {
            Data::Pointer(p) => (p.byte_count, p.key, p.address),
            Data::Inline(_) => panic!("a pointer became inline data"),
        }).collect();
        prop_assert_eq!(&read, &pointers);
        let doorbell = Doorbell::parse(bytes[..8].try_into().unwrap()).unwrap();
        prop_assert_eq!(doorbell.producer(), (index as u16).wrapping_add(wqe.wqebbs() as u16));
    }

    #[test]
    fn inline_data_survives(payload in prop::collection::vec(any::<u8>(), 0..200)) {
        let bytes = inline_write(&payload);
        let wqe = Wqe::decode(&bytes).unwrap();
        prop_assert_eq!(wqe.data().collect::<Vec<_>>(), [Data::Inline(payload.as_slice())]);
    }

    #[test]
    fn any_bytes_are_a_wqe_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..1100), opcode in 0u8..0x30, ds in 0u8..70) {
        let mut bytes = bytes;
        if let Some(first) = bytes.get_mut(..8) {
            // Opmods 8 and 9 are the masked atomics', 0 all others'.
            let opmod = if matches!(opcode, 0x14 | 0x15) { 8 | first[0] & 1 } else { 0 };
            (first[0], first[3], first[7]) = (opmod, opcode, ds);
        }
        for shared in [false, true] {
            if let Ok(receive) = Receive::decode(&bytes, shared) {
                prop_assert!(receive.data().count() * 16 <= bytes.len());
            }
        }
        if let Ok(wqe) = Wqe::decode(&bytes) {
            // What was accepted is consistent: data never leaves the segments that ds declares.
            let room = wqe.control.ds as u64 * 16;
            let inline: u64 = wqe.data().filter(|d| matches!(d, Data::Inline(_))).map(|d| d.len()).sum();
            prop_assert!(inline < room);
            prop_assert!(!wqe.to_string().is_empty());
        }
    }
}
