//! CQEs: bytes seen in public reports, bytes made from the field tables, laps of a ring.

use proptest::prelude::*;
use warpverbs_wire::cqe::{
    CQE, Completion, Cqe, CqeOpcode, ErrorCqe, ErrorWord, FORMAT_INLINE_32, FORMAT_PLAIN, FRESH,
    Syndrome, Tail, inline_scatter, is_new, owner_at, vendor_syndrome,
};

fn word(cqe: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(cqe[offset..offset + 8].try_into().unwrap())
}

/// A CQE of zeroes that ends in these bytes.
fn ending_in(tail: &[u8]) -> [u8; CQE] {
    let mut cqe = [0; CQE];
    cqe[CQE - tail.len()..].copy_from_slice(tail);
    cqe
}

#[test]
fn a_success_has_the_bytes_of_the_field_table() {
    let cqe = Cqe {
        flags_rqpn: 0x0102_0304,
        srqn_uidx: 0x1112_1314,
        immediate: 0x2122_2324,
        byte_count: 0x3132_3334,
        timestamp: 0x4142_4344_4546_4748,
        send_opcode: 0x10,
        qpn: 0xab_cdef,
        wqe_counter: 0x5152,
        signature: 0x61,
        opcode: CqeOpcode::ResponderSend,
        format: 1,
        solicited: true,
        owner: 1,
    };
    let mut golden = [0; CQE];
    golden[24..28].copy_from_slice(&[1, 2, 3, 4]);
    golden[32..36].copy_from_slice(&[0x11, 0x12, 0x13, 0x14]);
    golden[36..40].copy_from_slice(&[0x21, 0x22, 0x23, 0x24]);
    golden[44..48].copy_from_slice(&[0x31, 0x32, 0x33, 0x34]);
    golden[48..56].copy_from_slice(&[0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48]);
    golden[56..60].copy_from_slice(&[0x10, 0xab, 0xcd, 0xef]);
    golden[60..64].copy_from_slice(&[0x51, 0x52, 0x61, 0x27]);
    assert_eq!(cqe.emit(), golden);
    assert_eq!(Completion::parse(&golden), Ok(Completion::Done(cqe)));
}

#[test]
fn error_tails_from_public_reports() {
    // 00008813 10012abe 0dd0c1d3: a READ of QP 0x12abe refused by the remote side.
    let cqe = ending_in(&[
        0x00, 0x00, 0x88, 0x13, 0x10, 0x01, 0x2a, 0xbe, 0x0d, 0xd0, 0xc1, 0xd3,
    ]);
    let Ok(Completion::Failed(error)) = Completion::parse(&cqe) else {
        panic!("an error CQE was not found to be one");
    };
    assert_eq!(
        (error.syndrome, error.vendor_syndrome),
        (Syndrome::RemoteAccess, vendor_syndrome::REMOTE_ACCESS)
    );
    assert_eq!(
        (error.wqe_opcode, error.qpn, error.wqe_counter),
        (0x10, 0x1_2abe, 0x0dd0)
    );
    // The low nibble is not the owner bit alone.
    assert_eq!(
        (error.opcode, error.owner, error.solicited),
        (CqeOpcode::RequesterError, 1, true)
    );
    assert_eq!(error.emit(), cqe);

    // 93005204 0a0019a1 c0921cd2: a SEND of QP 0x19a1 with a bad local key.
    let cqe = ending_in(&[
        0x93, 0x00, 0x52, 0x04, 0x0a, 0x00, 0x19, 0xa1, 0xc0, 0x92, 0x1c, 0xd2,
    ]);
    let Ok(Completion::Failed(error)) = Completion::parse(&cqe) else {
        panic!("an error CQE was not found to be one");
    };
    assert_eq!(
        (error.syndrome, error.vendor_syndrome),
        (Syndrome::LocalProtection, 0x52)
    );
    assert_eq!((error.hw_error_syndrome, error.hw_syndrome_type), (0x93, 0));
    assert_eq!(
        (error.wqe_opcode, error.qpn, error.wqe_counter),
        (0x0a, 0x19a1, 0xc092)
    );
    assert_eq!(
        (error.opcode, error.owner, error.solicited),
        (CqeOpcode::RequesterError, 0, true)
    );
    assert_eq!(error.emit(), cqe);

    // The words that device code loads say the same.
    let tail = Tail(word(&cqe, Tail::OFFSET));
    assert!(tail.is_error() && !tail.is_invalid());
    assert_eq!(
        (
            tail.wqe_counter(),
            tail.qpn(),
            tail.wqe_opcode(),
            tail.owner()
        ),
        (0xc092, 0x19a1, 0x0a, 0)
    );
    let error = ErrorWord(word(&cqe, ErrorWord::OFFSET));
    assert_eq!((error.syndrome(), error.vendor_syndrome()), (0x04, 0x52));
}

#[test]
fn every_listed_syndrome_has_a_name_and_others_are_kept() {
    let named: Vec<u8> = (0..=255)
        .filter(|code| !matches!(Syndrome::from_code(*code), Syndrome::Unknown(_)))
        .collect();
    assert_eq!(
        named,
        [
            0x01, 0x02, 0x04, 0x05, 0x06, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x22
        ]
    );
    assert_eq!(Syndrome::from_code(0x77), Syndrome::Unknown(0x77));
    assert!((0..=255).all(|code| Syndrome::from_code(code).code() == code));
    assert!((0..=255).all(|code| CqeOpcode::from_code(code).code() == code));
}

#[test]
fn a_fresh_cq_is_pending_on_every_lap() {
    let cqe = [FRESH; CQE];
    assert_eq!(Completion::parse(&cqe), Ok(Completion::Pending));
    let tail = Tail(word(&cqe, Tail::OFFSET));
    assert!(tail.is_invalid() && !tail.is_error());
    for index in [0, 1, 7, 8, 15, 16, 0xffff_fff8] {
        assert!(!tail.is_new(index, 8), "{index}");
    }
    // After index 0 completes, it is done and the next is still pending.
    assert!(is_new(0x00, 0, 8));
    assert!(!is_new(FRESH, 1, 8));
}

#[test]
fn the_owner_bit_changes_with_each_lap_across_16_24_and_32_bits() {
    for base in [0, 1 << 16, 1 << 24, 1 << 32] {
        for depth in [1, 2, 8, 32768] {
            let depth_in = depth as u64;
            for (index, owner) in [
                (base, 0),
                (base + depth_in - 1, 0),
                (base + depth_in, 1),
                (base + 2 * depth_in - 1, 1),
                (base + 2 * depth_in, 0),
            ] {
                assert_eq!(
                    owner_at(index, depth),
                    owner,
                    "index {index:#x}, depth {depth}"
                );
            }
        }
    }
    assert_eq!(owner_at((1 << 32) - 1, 8), 1);
}

#[test]
fn a_cqe_of_the_lap_before_is_not_new() {
    // The slot of index 10 of 8 holds what was written at index 2, whose owner bit was 0.
    assert!(is_new(0x00, 2, 8));
    assert!(!is_new(0x00, 10, 8));
    assert!(is_new(0x01, 10, 8));
    // Other bits of the low nibble change nothing.
    assert!(is_new(0xd3, 10, 8) && !is_new(0xd2, 10, 8) && is_new(0xd2, 2, 8));
}

#[test]
fn small_data_lies_in_the_cqe() {
    let cqe = |format, byte_count| {
        let mut bytes = Cqe {
            srqn_uidx: 0xff01_0203,
            byte_count,
            opcode: CqeOpcode::ResponderSend,
            format,
            ..Default::default()
        }
        .emit();
        bytes[..32].fill(0xa5);
        bytes
    };
    assert_eq!(
        inline_scatter(&cqe(FORMAT_INLINE_32, 8)),
        Some(&[0xa5; 8][..])
    );
    assert_eq!(
        inline_scatter(&cqe(FORMAT_INLINE_32, 32)),
        Some(&[0xa5; 32][..])
    );
    assert_eq!(inline_scatter(&cqe(FORMAT_INLINE_32, 33)), None);
    assert_eq!(inline_scatter(&cqe(FORMAT_PLAIN, 8)), None);
    assert_eq!(
        Cqe::parse(&cqe(FORMAT_PLAIN, 8)).map(|cqe| cqe.user_index()),
        Ok(0x01_0203)
    );
}

#[test]
fn too_few_bytes_are_an_error() {
    assert!(Completion::parse(&[0; 63]).is_err());
    assert!(ErrorCqe::parse(&[]).is_err());
}

#[test]
fn printed_with_names() {
    let cqe = ending_in(&[
        0x00, 0x00, 0x88, 0x13, 0x10, 0x01, 0x2a, 0xbe, 0x0d, 0xd0, 0xc1, 0xd3,
    ]);
    let text = Completion::parse(&cqe).unwrap().to_string();
    assert!(
        text.contains("\n  syndrome: 0x13 (RemoteAccess)\n"),
        "{text}"
    );
    assert!(text.contains("\n  vendor_err_synd: 0x88\n"), "{text}");
    assert!(
        text.contains("\n  opcode: 0xd (RequesterError)\n"),
        "{text}"
    );
}

proptest! {
    #[test]
    fn words_and_structures_agree(bytes: [[u8; 32]; 2]) {
        let bytes = bytes.concat();
        let cqe = Cqe::parse(&bytes).unwrap();
        let tail = Tail(word(&bytes, Tail::OFFSET));
        prop_assert_eq!(tail.opcode(), cqe.opcode);
        prop_assert_eq!(tail.owner(), cqe.owner);
        prop_assert_eq!(tail.op_own(), bytes[63]);
        prop_assert_eq!(tail.wqe_counter(), cqe.wqe_counter);
        prop_assert_eq!(tail.qpn(), cqe.qpn);
        prop_assert_eq!(tail.wqe_opcode(), cqe.send_opcode);
        prop_assert_eq!(tail.is_error(), matches!(Completion::parse(&bytes), Ok(Completion::Failed(_))));
        prop_assert_eq!(tail.is_invalid(), matches!(Completion::parse(&bytes), Ok(Completion::Pending)));
        let error = ErrorCqe::parse(&bytes).unwrap();
        let words = ErrorWord(word(&bytes, ErrorWord::OFFSET));
        prop_assert_eq!(words.syndrome(), error.syndrome.code());
        prop_assert_eq!(words.vendor_syndrome(), error.vendor_syndrome);
    }
}
