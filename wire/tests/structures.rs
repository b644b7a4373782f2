//! What holds of every structure: its fields have bits of their own, and reading undoes writing.

use proptest::prelude::*;
use warpverbs_wire::cqe::{Cqe, ErrorCqe};
use warpverbs_wire::eqe;
use warpverbs_wire::fields;
use warpverbs_wire::layout::{Error, Field};
use warpverbs_wire::pcap;
use warpverbs_wire::prm::*;
use warpverbs_wire::roce;
use warpverbs_wire::wqe::{self, Control, DataPointer, InlineHeader, RemoteAddress};

/// Checks `$ty` against random bytes: what `parse` reads, `emit` writes back to the same bits; no reserved bit is written;
/// and every bit of a field is read.
macro_rules! bits_survive {
    ($bytes:expr, $($ty:ty),*) => {$(
        // The bits that its fields cover, from an emission of all ones; the opcode of a command stays what it is.
        let mut ones = vec![0xff; <$ty>::LEN];
        let mut random = $bytes[..<$ty>::LEN].to_vec();
        if <$ty>::LAYOUT.fields[0].name == "opcode" && <$ty>::LAYOUT.name.ends_with("_in") {
            let opcode = <$ty>::default().emit()[..2].to_vec();
            ones[..2].copy_from_slice(&opcode);
            random[..2].copy_from_slice(&opcode);
        }
        let covered = <$ty>::parse(&ones).unwrap().emit();
        let value = <$ty>::parse(&random).unwrap();
        let emitted = value.emit();
        let expected: Vec<u8> = random.iter().zip(covered).map(|(byte, mask)| byte & mask).collect();
        prop_assert_eq!(&emitted[..], &expected[..], "{}", <$ty>::LAYOUT.name);
        prop_assert_eq!(<$ty>::parse(&emitted), Ok(value), "{}", <$ty>::LAYOUT.name);
        prop_assert_eq!(value.check(), Ok(()), "{}", <$ty>::LAYOUT.name);
        prop_assert_eq!(<$ty>::reserved_nonzero(&emitted), None, "{}", <$ty>::LAYOUT.name);
        prop_assert!(<$ty>::parse(&random[1..]).is_err(), "{}", <$ty>::LAYOUT.name);
    )*};
}

proptest! {
    #[test]
    fn reading_undoes_writing(bytes in prop::collection::vec(any::<u8>(), 600)) {
        bits_survive!(bytes, Control, RemoteAddress, DataPointer, InlineHeader, Cqe, ErrorCqe, header::Reply);
        bits_survive!(bytes, roce::Ethernet, roce::Vlan, roce::Ipv4, roce::Ipv6, roce::Udp, roce::Lrh, roce::Bth, roce::Reth);
        bits_survive!(bytes, roce::Aeth, roce::AtomicEth, roce::AtomicAckEth, roce::MaskedAtomicEth, roce::ImmDt, roce::Ieth);
        bits_survive!(bytes, wqe::AtomicOperands, wqe::MaskedCompareSwap4, wqe::MaskedCompareSwap8);
        bits_survive!(bytes, wqe::MaskedFetchAdd4, wqe::MaskedFetchAdd8, wqe::Wait, wqe::SrqNext);
        bits_survive!(bytes, eqe::Eqe, eqe::CompletionData, eqe::QpData, eqe::CqErrorData, eqe::PortData);
        bits_survive!(bytes, pcap::FileHeader, pcap::RecordHeader, pcap::ErfHeader);
        bits_survive!(bytes, alloc_q_counter::In, alloc_q_counter::Out, alloc_transport_domain::In, alloc_transport_domain::Out);
        bits_survive!(bytes, create_rmp::In, create_rmp::Out, dealloc_q_counter::In, dealloc_q_counter::Out);
        bits_survive!(bytes, dealloc_transport_domain::In, dealloc_transport_domain::Out, destroy_rmp::In, destroy_rmp::Out);
        bits_survive!(bytes, init2init_qp::In, init2init_qp::Out, modify_rmp::In, modify_rmp::Out);
        bits_survive!(bytes, query_hca_vport_context::In, query_hca_vport_context::Out, query_hca_vport_gid::In, query_hca_vport_gid::Out);
        bits_survive!(bytes, query_hca_vport_pkey::In, query_hca_vport_pkey::Out, query_nic_vport_context::In, query_nic_vport_context::Out);
        bits_survive!(bytes, query_q_counter::In, query_q_counter::Out, query_rmp::In, query_rmp::Out);
        bits_survive!(bytes, query_roce_address::In, query_roce_address::Out, query_vport_state::In, query_vport_state::Out);
        bits_survive!(bytes, rts2rts_qp::In, rts2rts_qp::Out, set_roce_address::In, set_roce_address::Out);
        bits_survive!(bytes, sqerr2rts_qp::In, sqerr2rts_qp::Out);
        bits_survive!(bytes, rmpc::Wq, rmpc::Rmpc, roce_address::RoceAddress, vport::HcaVport, vport::MacAddress, vport::NicVport);
        bits_survive!(bytes, query_qp::ErrorSyndrome, query_qp::Extension);
        bits_survive!(bytes, ads::Ads, qpc::Qpc, cqc::Cqc, mkc::Mkc);
        bits_survive!(bytes, hca_cap::GeneralCaps, hca_cap::GeneralCaps2, hca_cap::RoceCaps, hca_cap::AtomicCaps);
        bits_survive!(bytes, query_hca_cap::In, create_cq::In, destroy_cq::In, query_cq::In, create_qp::In, destroy_qp::In);
        bits_survive!(bytes, query_qp::In, rst2init_qp::In, init2rtr_qp::In, rtr2rts_qp::In, qp_2err::In, qp_2rst::In);
        bits_survive!(bytes, create_mkey::In, destroy_mkey::In, query_special_contexts::In);
        bits_survive!(bytes, alloc_pd::In, dealloc_pd::In, alloc_uar::In, dealloc_uar::In);
        bits_survive!(bytes, query_hca_cap::Out, create_cq::Out, destroy_cq::Out, query_cq::Out, create_qp::Out, destroy_qp::Out);
        bits_survive!(bytes, query_qp::Out, rst2init_qp::Out, init2rtr_qp::Out, rtr2rts_qp::Out, qp_2err::Out, qp_2rst::Out);
        bits_survive!(bytes, create_mkey::Out, destroy_mkey::Out, query_special_contexts::Out);
        bits_survive!(bytes, alloc_pd::Out, dealloc_pd::Out, alloc_uar::Out, dealloc_uar::Out);
    }

    #[test]
    fn a_field_is_read_as_written_and_touches_no_neighbour(
        background: [u8; 24],
        // Whole words are read in another way than other fields.
        (offset, width) in prop_oneof![
            (0u32..128, 1u32..=64),
            (0u32..16, prop::sample::select(vec![8, 16, 24, 32, 64])).prop_map(|(byte, width)| (byte * 8, width)),
        ],
        value: u64,
    ) {
        let field = Field { name: "field", offset, width, cited: None, nested: None };
        let mut bytes = background;
        prop_assert!(field.set(&mut bytes, value));
        let low = value & (u64::MAX >> (64 - width));
        prop_assert_eq!(field.get(&bytes), Some(low));
        for bit in (0..192).filter(|bit| !(offset..offset + width).contains(bit)) {
            let at = |bytes: &[u8]| bytes[bit as usize / 8] & (0x80 >> (bit % 8));
            prop_assert_eq!(at(&bytes), at(&background));
        }
    }
}

#[test]
fn fields_are_big_endian_with_bit_0_first() {
    let bytes = [0b1010_0000, 0x12, 0x34, 0x56];
    let field = |offset, width| Field {
        name: "field",
        offset,
        width,
        cited: None,
        nested: None,
    };
    assert_eq!(field(0, 1).get(&bytes), Some(1));
    assert_eq!(field(1, 2).get(&bytes), Some(0b01));
    assert_eq!(field(8, 24).get(&bytes), Some(0x12_3456));
    assert_eq!(field(12, 8).get(&bytes), Some(0x23));
}

#[test]
fn a_field_outside_the_bytes_is_neither_read_nor_written() {
    let field = Field {
        name: "field",
        offset: 30,
        width: 4,
        cited: None,
        nested: None,
    };
    let mut bytes = [0; 4];
    assert_eq!(field.get(&bytes), None);
    assert!(!field.set(&mut bytes, 0xf));
    assert_eq!(bytes, [0; 4]);
    let wide = Field {
        offset: 0,
        width: 65,
        ..field
    };
    assert_eq!(wide.get(&[0; 16]), None);
    let far = Field {
        offset: u32::MAX,
        ..field
    };
    assert_eq!(far.get(&[0; 16]), None);
}

#[test]
fn a_value_too_wide_is_named_and_spoils_no_neighbour() {
    let mut command = create_qp::In::default();
    command.qpc.log_sq_size = 0x1f;
    assert_eq!(
        command.check(),
        Err(Error::OutOfRange {
            structure: "create_qp_in",
            field: "log_sq_size",
            width: 4
        })
    );
    assert!(command.encode().is_err());
    // no_sq lies right before it.
    let parsed = create_qp::In::parse(&command.emit()).unwrap();
    assert_eq!((parsed.qpc.log_sq_size, parsed.qpc.no_sq), (0xf, false));
    command.qpc.log_sq_size = 0xf;
    command.qpc.primary_address_path.flow_label = 1 << 20;
    assert_eq!(
        command.check().map_err(|error| error.to_string()),
        Err("the value of create_qp_in.flow_label does not fit its 20 bits".to_owned())
    );
    command.qpc.primary_address_path.flow_label = 0xf_ffff;
    assert_eq!(command.check(), Ok(()));
}

#[test]
fn reserved_bits_are_found_inside_contexts_too() {
    let clean = create_qp::In::default().emit();
    assert_eq!(create_qp::In::reserved_nonzero(&clean), None);
    // Bit 0x15 of the QP context lies between pm_state and the next field; the context begins at 0xc0.
    let mut bytes = clean;
    bytes[(0xc0 + 0x15) / 8] |= 0x80 >> ((0xc0 + 0x15) % 8);
    assert_eq!(create_qp::In::reserved_nonzero(&bytes), Some(0xc0 + 0x15));
    // uid and op_mod are the header's, not reserved.
    let mut bytes = clean;
    bytes[2..4].copy_from_slice(&[1, 2]);
    bytes[6..8].copy_from_slice(&[3, 4]);
    assert_eq!(create_qp::In::reserved_nonzero(&bytes), None);
    let request = header::Request::parse(&bytes).unwrap();
    assert_eq!(
        (request.opcode, request.uid, request.op_mod),
        (0x500, 0x102, 0x304)
    );
}

#[test]
fn fields_are_found_by_path() {
    let layout = create_qp::In::LAYOUT;
    assert_eq!(
        layout.field("qpc.log_sq_size").map(|f| (f.offset, f.width)),
        Some((0xc0 + 0x51, 4))
    );
    let sport = layout.field("qpc.primary_address_path.udp_sport");
    assert_eq!(
        sport.map(|f| (f.offset, f.width)),
        Some((0xc0 + 0xc0 + 0x110, 16))
    );
    assert!(
        qpc::Qpc::LAYOUT
            .field("primary_address_path.rmac_47_32..rmac_31_0")
            .is_some()
    );
    assert_eq!(layout.field("qpc.no_such_field"), None);
    assert_eq!(layout.field("op_mod.state"), None);
}

#[test]
fn the_table_has_every_structure_once() {
    let names: std::collections::BTreeSet<_> =
        fields::all().iter().map(|layout| layout.name).collect();
    assert_eq!(names.len(), fields::all().len());
    // 38 commands with two mailboxes each, 16 contexts and sets of capabilities, the reply's header, 13 of WQEs and CQEs,
    // 14 of packets, 3 of capture files, 5 of events.
    assert_eq!(names.len(), 2 * 38 + 16 + 1 + 13 + 14 + 3 + 5);
    let opcodes: std::collections::BTreeSet<_> = fields::commands()
        .iter()
        .map(|(_, opcode)| opcode)
        .collect();
    assert_eq!(opcodes.len(), 38);
}
