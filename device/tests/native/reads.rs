//! Data that comes in: reads that need a DUMP, messages with sequence numbers.

use warpverbs_device::{
    Collapsed, Db, Error, Exclusive, Ring,
    abi::{FLAG_READ_NEEDS_DUMP, FaultCause},
    message::Sequence,
};

use crate::{LOCAL, open, queue::Queue};

#[test]
fn reads_are_settled_by_a_dump_where_the_handle_says_so() {
    let mut queue = Queue::new(8, false, 0).with(|handle| handle.flags |= FLAG_READ_NEEDS_DUMP);
    let mut sq = open!(queue, Exclusive, Db, Ring).unwrap();
    queue.succeed(0, 0);
    assert_eq!(sq.settle_reads(LOCAL), Ok(()));
    let control = [
        0x00, 0x00, 0x00, 0x23, 0xab, 0xcd, 0xef, 0x02, 0, 0, 0, 0x08, 0, 0, 0, 0,
    ];
    let data = [
        0, 0, 0, 1, 0x01, 0x02, 0x03, 0x04, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88,
    ];
    assert_eq!(queue.wqebb(0)[..16], control);
    assert_eq!(queue.wqebb(0)[16..32], data);
    assert_eq!(queue.doorbell(), control[..8]);
    // It waits for the DUMP's completion.
    sq.set_deadline(1_000_000);
    assert_eq!(sq.settle_reads(LOCAL), Err(Error::Timeout));

    let mut queue = Queue::new(8, false, 0);
    let mut sq = open!(queue, Exclusive, Db, Ring).unwrap();
    assert_eq!(sq.settle_reads(LOCAL), Ok(()));
    assert_eq!(queue.doorbell(), [0; 8]);
}

/// A buffer of 64 bytes at a multiple of 64, and its end.
#[repr(align(64))]
struct Buffer([u8; 64]);

fn sequence(buffer: &mut Buffer, size: u32) -> Sequence {
    let end = buffer.0.as_mut_ptr().expose_provenance() as u64 + 64;
    // SAFETY: the last `size` bytes of a live buffer whose end is a multiple of 8.
    unsafe { Sequence::new(end - u64::from(size), size) }
}

#[test]
fn a_sequence_number_is_the_last_eight_bytes_or_the_last_one() {
    let mut queue = Queue::new(8, true, 0);
    let sq = open!(queue, Exclusive, Db, Collapsed).unwrap();
    for size in [1, 7, 8, 9, 64] {
        let mut buffer = Buffer([0xd1; 64]);
        let sequence = sequence(&mut buffer, size);
        sequence.store(0x0102_0304_0506_0708);
        assert_eq!(sequence.wait(0x0102_0304_0506_0708, &sq), Ok(()));
        if size < 8 {
            // The rest of the number is not there, so this one is the same.
            assert_eq!(sequence.wait(0x08, &sq), Ok(()));
            assert_eq!(
                buffer.0[56..],
                [0xd1, 0xd1, 0xd1, 0xd1, 0xd1, 0xd1, 0xd1, 8]
            );
        } else {
            assert_eq!(buffer.0[56..], [8, 7, 6, 5, 4, 3, 2, 1]);
        }
        assert_eq!(buffer.0[..56], [0xd1; 56]);
    }
}

#[test]
fn a_wait_for_a_message_ends_by_deadline_and_by_fault() {
    let mut queue = Queue::new(8, true, 0);
    let mut sq = open!(queue, Exclusive, Db, Collapsed).unwrap();
    let mut buffer = Buffer([0; 64]);
    let sequence = sequence(&mut buffer, 8);
    sq.set_deadline(1_000_000);
    assert_eq!(sequence.wait(1, &sq), Err(Error::Timeout));
    // Our own message failed, as its wait has found: its answer will never come.
    sq.set_deadline(60_000_000_000);
    let ticket = sq.post_write(LOCAL, crate::REMOTE, 8).unwrap();
    queue.complete(0, 0, 0xd, 0x13, 0x88);
    assert!(matches!(sq.wait(ticket), Err(Error::Fault(_))));
    let Err(Error::Fault(state)) = sequence.wait(1, &sq) else {
        panic!("the error was not seen");
    };
    assert_eq!(
        (state.cause(), state.syndrome()),
        (FaultCause::Completion, 0x13)
    );
}
