//! The bytes of every operation.

use warpverbs_device::{
    Collapsed, Db, Error, Exclusive, Gpu, Inline, Local, Remote, Ring,
    op::{
        CompareSwap, Dump, Fenced, FetchAdd, InlineFrom, MaskedCompareSwap4, MaskedCompareSwap8,
        MaskedFetchAdd4, MaskedFetchAdd8, Nop, ReadInto, SendFrom, SendInline, Signalled, Then,
        WaitCqe, Work, Write, WriteFrom, WriteInlineFrom,
    },
};
use warpverbs_wire::wqe::{Data, Wqe};

use crate::{
    LOCAL, REMOTE, open,
    queue::{DIRT, Queue},
};

/// Aligned as an atomic wants it.
const WORD: Remote = Remote {
    addr: 0x99aa_bbcc_ddee_ff00,
    rkey: 0x1122_3344,
};

/// Bytes 16 to 31 of what names [`REMOTE`].
const RADDR: [u8; 16] = [
    0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff, 0x00, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0,
];

/// A segment that points at `len` bytes of [`LOCAL`].
fn pointer(len: u8) -> [u8; 16] {
    [
        0, 0, 0, len, 0x01, 0x02, 0x03, 0x04, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88,
    ]
}

fn control(opmod: u8, opcode: u8, ds: u8, flags: u8, immediate: u32) -> [u8; 16] {
    let imm = immediate.to_be_bytes();
    [
        opmod, 0, 5, opcode, 0xab, 0xcd, 0xef, ds, 0, 0, 0, flags, imm[0], imm[1], imm[2], imm[3],
    ]
}

/// Posts at index 5; the WQE's bytes, behind which nothing was written.
fn bytes<W: Work>(work: W) -> Vec<u8> {
    let mut queue = Queue::new(32, false, 5);
    let mut sq = open!(queue, Gpu, Db, Ring).unwrap();
    let blocks = u64::from(work.blocks());
    let ticket = sq.post(work).unwrap();
    assert_eq!(ticket.index(), 6, "the index behind the first WQEBB");
    drop(sq);
    assert_eq!((queue.reserved(), queue.turn()), (5 + blocks, 5 + blocks));
    assert_eq!(queue.gap(), blocks - 1);
    let wqe = queue.wqe(5);
    assert_eq!(queue.doorbell(), wqe[..8]);
    let all: Vec<u8> = (0..blocks + 1).flat_map(|k| queue.wqebb(5 + k)).collect();
    assert!(
        all[wqe.len()..].iter().all(|byte| *byte == DIRT),
        "written beyond the WQE"
    );
    Wqe::decode(&wqe).expect("a well-formed WQE");
    wqe
}

fn joined<const N: usize>(segments: [[u8; 16]; N]) -> Vec<u8> {
    segments.concat()
}

#[test]
fn messages() {
    let mut queue = Queue::new(32, false, 5);
    let mut sq = open!(queue, Exclusive, Db, Ring).unwrap();
    let all = [
        sq.post_write_imm(LOCAL, REMOTE, 9, 0xa1a2_a3a4),
        sq.post_send(LOCAL, 9),
        sq.post_send_imm(LOCAL, 9, 0xa1a2_a3a4),
        sq.post_nop(),
    ];
    assert!(all.iter().all(Result::is_ok), "{all:?}");
    assert_eq!(
        queue.wqe(5),
        joined([control(0, 0x09, 3, 8, 0xa1a2_a3a4), RADDR, pointer(9)])
    );
    let index = |mut bytes: Vec<u8>, index| {
        bytes[2] = index;
        bytes
    };
    assert_eq!(
        queue.wqe(6),
        index(joined([control(0, 0x0a, 2, 8, 0), pointer(9)]), 6)
    );
    assert_eq!(
        queue.wqe(7),
        index(joined([control(0, 0x0b, 2, 8, 0xa1a2_a3a4), pointer(9)]), 7)
    );
    assert_eq!(queue.wqe(8), index(joined([control(0, 0, 1, 8, 0)]), 8));
    for refused in [
        sq.post_write_imm(LOCAL, REMOTE, 0, 1),
        sq.post_send(LOCAL, 0),
        sq.post_send_imm(LOCAL, (1 << 30) + 1, 1),
    ] {
        assert_eq!(refused, Err(Error::InvalidArgument));
    }
}

#[test]
fn sends_of_bytes_in_registers() {
    let short = bytes(SendInline::new(
        Inline::from_u64(0x0807_0605_0403_0201),
        None,
    ));
    let head = [0x80, 0, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0];
    assert_eq!(short, joined([control(0, 0x0a, 2, 8, 0), head]));
    let data = Inline::new([1, 2, 3, 4, 5, 6, 7], 28).unwrap();
    let long = bytes(SendInline::new(data, Some(7)));
    assert_eq!(long[..16], control(0, 0x0b, 3, 8, 7));
    assert_eq!(long[16..20], [0x80, 0, 0, 28]);
    assert_eq!((long[20], long[44]), (1, 7));
}

#[test]
fn atomics() {
    let big = |value: u64| value.to_be_bytes();
    let two = |a: u64, b: u64| -> [u8; 16] { [big(a), big(b)].concat().try_into().unwrap() };
    let four = |a: u32, b: u32, c: u32, d: u32| -> [u8; 16] {
        [a, b, c, d]
            .map(u32::to_be_bytes)
            .concat()
            .try_into()
            .unwrap()
    };
    let (a, b, c, d) = (
        0x0102_0304_0506_0708,
        0x1112_1314_1516_1718,
        0x2122_2324_2526_2728,
        0x3132_3334_3536_3738,
    );
    assert_eq!(
        bytes(FetchAdd::new(LOCAL, WORD, a).unwrap()),
        joined([control(0, 0x12, 4, 8, 0), RADDR, two(a, 0), pointer(8)])
    );
    assert_eq!(
        bytes(CompareSwap::new(LOCAL, WORD, b, a).unwrap()),
        joined([control(0, 0x11, 4, 8, 0), RADDR, two(a, b), pointer(8)]),
        "swap before compare"
    );
    assert_eq!(
        bytes(MaskedFetchAdd4::new(LOCAL, WORD, 0x0102_0304, 0x8080_8080).unwrap()),
        joined([
            control(8, 0x15, 4, 8, 0),
            RADDR,
            four(0x0102_0304, 0x8080_8080, 0, 0),
            pointer(4)
        ])
    );
    assert_eq!(
        bytes(MaskedFetchAdd8::new(LOCAL, WORD, a, b).unwrap()),
        joined([control(9, 0x15, 4, 8, 0), RADDR, two(a, b), pointer(8)])
    );
    assert_eq!(
        bytes(MaskedCompareSwap4::new(LOCAL, WORD, 1, 2, 3, 4).unwrap()),
        joined([
            control(8, 0x14, 4, 8, 0),
            RADDR,
            four(3, 1, 4, 2),
            pointer(4)
        ]),
        "swap, compare, swap mask, compare mask"
    );
    assert_eq!(
        bytes(MaskedCompareSwap8::new(LOCAL, WORD, a, b, c, d).unwrap()),
        joined([
            control(9, 0x14, 5, 8, 0),
            RADDR,
            two(c, a),
            two(d, b),
            pointer(8)
        ])
    );
}

#[test]
fn atomics_of_addresses_that_are_not_aligned_are_refused() {
    let at = |offset| (LOCAL.offset(offset), WORD.offset(offset));
    for offset in 0..8 {
        let (local, remote) = at(offset);
        for (l, r) in [(local, WORD), (LOCAL, remote)] {
            assert_eq!(FetchAdd::new(l, r, 1).is_ok(), offset == 0);
            assert_eq!(CompareSwap::new(l, r, 1, 2).is_ok(), offset == 0);
            assert_eq!(MaskedFetchAdd8::new(l, r, 1, 2).is_ok(), offset == 0);
            assert_eq!(
                MaskedCompareSwap8::new(l, r, 1, 2, 3, 4).is_ok(),
                offset == 0
            );
            assert_eq!(MaskedFetchAdd4::new(l, r, 1, 2).is_ok(), offset % 4 == 0);
            assert_eq!(
                MaskedCompareSwap4::new(l, r, 1, 2, 3, 4).is_ok(),
                offset % 4 == 0
            );
        }
    }
}

#[test]
fn control_operations_and_flags() {
    let mut queue = Queue::new(8, false, 0);
    let sq = open!(queue, Exclusive, Db, Ring).unwrap();
    let one = sq.length(1).unwrap();
    assert_eq!(
        bytes(Dump::new(LOCAL, one)),
        joined([control(0, 0x23, 2, 8, 0), pointer(1)])
    );
    let mut wait = [0; 16];
    wait[8..].copy_from_slice(&[0, 0, 1, 2, 0, 0x12, 0x34, 0x56]);
    assert_eq!(
        bytes(WaitCqe::new(0x12_3456, 0x0102)),
        joined([control(0, 0x0f, 2, 8, 0), wait])
    );
    // Fence modes 4 (reads and atomics) and 3 (all), in the high three bits.
    assert_eq!(
        bytes(Fenced::reads(Nop)),
        joined([control(0, 0, 1, 0x88, 0)])
    );
    assert_eq!(bytes(Fenced::all(Nop)), joined([control(0, 0, 1, 0x68, 0)]));
    assert_eq!(bytes(Signalled(Nop)), joined([control(0, 0, 1, 0x08, 0)]));
}

/// Bytes that the WQE takes from memory, at every size and some alignments; across the ring's end.
#[test]
fn inline_data_from_memory_of_every_size() {
    let source: Vec<u8> = (0..1100u32).map(|i| (i * 7 + i / 256 + 1) as u8).collect();
    let address = source.as_ptr().expose_provenance() as u64;
    for len in 1..=InlineFrom::MAX {
        for (offset, first) in [(0, 0), (1, 20), (3, 31)] {
            if offset != 0 && len % 37 > 2 && len < 960 {
                continue;
            }
            let mut queue = Queue::new(32, true, first);
            let mut sq = open!(queue, Exclusive, Db, Collapsed).unwrap();
            // SAFETY: the bytes are live, and nobody writes them.
            let data = unsafe { InlineFrom::new(address + offset, len) }.unwrap();
            let work = WriteInlineFrom::new(REMOTE, data, (len % 2 == 0).then_some(len));
            let blocks = u64::from(work.blocks());
            sq.post(work).unwrap();
            drop(sq);
            assert_eq!(queue.reserved(), first + blocks, "{len}");
            let bytes = queue.wqe(first);
            let wqe = Wqe::decode(&bytes).unwrap();
            assert_eq!(
                wqe.control.immediate,
                if len % 2 == 0 { len } else { 0 },
                "{len}"
            );
            let mut segments = wqe.data();
            let Some(Data::Inline(found)) = segments.next() else {
                panic!("{len}: not inline");
            };
            let expected = &source[offset as usize..][..len as usize];
            assert_eq!(found, expected, "{len} bytes at {offset}");
            assert!(segments.next().is_none());
            let padding = &bytes[36 + len as usize..];
            assert!(padding.iter().all(|byte| *byte == 0), "{len}: stale bytes");
        }
    }
    assert_eq!(InlineFrom::MAX, 972);
    for len in [0, 973, u32::MAX] {
        // SAFETY: as above; the length is refused.
        let refused = unsafe { InlineFrom::new(address, len) };
        assert_eq!(refused.err(), Some(Error::InvalidArgument), "{len}");
    }
}

#[test]
fn several_pieces_are_one_message() {
    fn check<const N: usize>() {
        let mut queue = Queue::new(32, false, 30);
        let mut sq = open!(queue, Gpu, Db, Ring).unwrap();
        let pieces: [(Local, u32); N] =
            std::array::from_fn(|k| (LOCAL.offset(k as u64 * 100), k as u32 + 1));
        let pieces = sq.pieces(pieces).unwrap();
        let write = sq.post(WriteFrom::new(pieces, REMOTE)).unwrap();
        assert_eq!(write.index(), 31);
        let bytes = queue.wqe(30);
        let wqe = Wqe::decode(&bytes).unwrap();
        assert_eq!(wqe.remote.unwrap().address, REMOTE.addr);
        let found: Vec<_> = wqe
            .data()
            .map(|data| match data {
                Data::Pointer(pointer) => (pointer.address, pointer.byte_count),
                Data::Inline(_) => panic!("inline"),
            })
            .collect();
        let expected: Vec<_> = (0..N as u64)
            .map(|k| (LOCAL.addr + k * 100, k as u32 + 1))
            .collect();
        assert_eq!(found, expected);
    }
    check::<1>();
    check::<2>();
    check::<3>();
    check::<30>();
    check::<61>();

    let mut queue = Queue::new(8, false, 0);
    let sq = open!(queue, Exclusive, Db, Ring).unwrap();
    assert_eq!(
        sq.pieces([(LOCAL, 1 << 30), (LOCAL, 1)]).err(),
        Some(Error::InvalidArgument)
    );
    assert_eq!(
        sq.pieces([(LOCAL, 1), (LOCAL, 0)]).err(),
        Some(Error::InvalidArgument)
    );
    let pieces = sq.pieces([(LOCAL, 4), (LOCAL, 5)]).unwrap();
    assert_eq!(
        bytes(ReadInto::new(pieces, REMOTE)),
        joined([control(0, 0x10, 4, 8, 0), RADDR, pointer(4), pointer(5)])
    );
    assert_eq!(
        bytes(SendFrom::new(pieces, Some(3))),
        joined([control(0, 0x0b, 3, 8, 3), pointer(4), pointer(5)])
    );
    assert_eq!(
        bytes(SendFrom::new(pieces, None)),
        joined([control(0, 0x0a, 3, 8, 0), pointer(4), pointer(5)])
    );
}

#[test]
fn operations_in_one_post_follow_each_other() {
    let mut queue = Queue::new(32, false, 0);
    let mut sq = open!(queue, Gpu, Db, Ring).unwrap();
    let len = sq.length(3).unwrap();
    let write = |k: u64| Write::new(LOCAL, REMOTE.offset(k), len);
    let swap = MaskedCompareSwap8::new(LOCAL, WORD, 1, 2, 3, 4).unwrap();
    let ticket = sq
        .post(Then(
            Then([write(0), write(1)], None::<Nop>),
            Then(Some(Fenced::all(swap)), Nop),
        ))
        .unwrap();
    assert_eq!(ticket.index(), 5);
    let opcodes = [0, 1, 2, 4].map(|index| queue.wqebb(index)[3]);
    assert_eq!(opcodes, [0x08, 0x08, 0x14, 0x00]);
    let fences = [0, 1, 2, 4].map(|index| queue.wqebb(index)[11]);
    assert_eq!(fences, [8, 8, 0x68, 8]);
    assert_eq!(queue.wqebb(4)[2], 4, "its own index");
    assert_eq!(queue.dbr(), [0, 0, 0, 5]);
    assert_eq!(queue.doorbell()[..4], [0, 0, 4, 0]);
    // Nothing at all.
    let ticket = sq.post(None::<Nop>).unwrap();
    assert!(sq.test(ticket));
    assert_eq!(queue.reserved(), 5);
}

/// A completion names the first WQEBB of a WQE: the rest is free with it where it matters.
#[test]
fn a_long_wqe_keeps_no_batch_waiting() {
    macro_rules! body {
        ($sharing:ident) => {
            let mut queue = Queue::new(8, false, 0);
            let swap = MaskedCompareSwap8::new(LOCAL, WORD, 1, 2, 3, 4).unwrap();
            let mut sq = open!(queue, $sharing, Db, Ring).unwrap();
            let first = sq.post(swap).unwrap();
            queue.succeed(0, 0);
            assert_eq!(sq.wait(first), Ok(()));
            assert_eq!(sq.completed(), 1);
            // All 7 WQEBBs, one of which the completed index does not cover.
            sq.set_deadline(1_000_000);
            let last = sq.post([Nop; 7]).unwrap();
            assert_eq!(last.index(), 9);
            assert_eq!(sq.try_post(Nop).err(), Some(Error::NoResource));
            for index in 2..9 {
                queue.succeed(index - 1, index);
            }
            assert_eq!(sq.poll_many(u32::MAX), Ok(9));
            // The same by another owner, who did not post it.
            sq.post(swap).unwrap();
            queue.succeed(8, 9);
            drop(sq);
            let mut sq = open!(queue, $sharing, Db, Ring).unwrap();
            sq.set_deadline(1_000_000);
            assert!(sq.try_post([Nop; 7]).is_ok());
        };
    }
    body!(Exclusive);
    body!(Gpu);
}

#[test]
fn more_wqebbs_than_the_queue_has_are_refused() {
    let mut queue = Queue::new(8, false, 0);
    let source = [0u8; 972];
    // SAFETY: live bytes.
    let data = unsafe { InlineFrom::new(source.as_ptr().expose_provenance() as u64, 972) }.unwrap();
    let work = WriteInlineFrom::new(REMOTE, data, None);
    assert_eq!(work.blocks(), 16);
    let mut sq = open!(queue, Gpu, Db, Ring).unwrap();
    assert_eq!(sq.post(work).err(), Some(Error::InvalidArgument));
    assert_eq!(sq.try_post(work).err(), Some(Error::InvalidArgument));
    assert_eq!(sq.post([Nop; 8]).err(), Some(Error::InvalidArgument));
    assert_eq!((queue.reserved(), queue.doorbell()), (0, [0; 8]));
}
