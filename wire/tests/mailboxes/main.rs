//! Mailboxes with bytes made by hand from the PRM's field tables.

mod services;

use warpverbs_wire::prm::*;

/// Demands that `bytes` are zero but for these runs.
#[track_caller]
fn only(bytes: &[u8], runs: &[(usize, &[u8])]) {
    let mut golden = vec![0; bytes.len()];
    for (at, run) in runs {
        golden[*at..at + run.len()].copy_from_slice(run);
    }
    for (at, (found, expected)) in bytes.iter().zip(&golden).enumerate() {
        assert_eq!(
            found, expected,
            "byte {at:#x}: found {found:#04x}, expected {expected:#04x}"
        );
    }
}

#[test]
fn create_cq_in_a_umem() {
    let command = create_cq::In {
        cq_context: cqc::Cqc {
            dbr_umem_valid: true,
            cc: true,
            oi: true,
            dbr_umem_id: 0x1112_1314,
            log_cq_size: 9,
            uar_page: 0x21_2223,
            c_eqn: 5,
            dbr_addr: 0x31_3233_3435_3640,
            ..Default::default()
        },
        cq_umem_offset: 0x4142_4344_4546_4740,
        cq_umem_id: 0x5152_5354,
        cq_umem_valid: true,
    };
    let bytes = command.emit();
    assert_eq!(bytes.len(), 272);
    only(
        &bytes,
        &[
            (0, &[0x04, 0x00]),
            (16, &[0x02, 0x12]),             // dbr_umem_valid; cc, oi
            (20, &[0x11, 0x12, 0x13, 0x14]), // dbr_umem_id
            (28, &[0x09, 0x21, 0x22, 0x23]), // log_cq_size, uar_page
            (36, &[0, 0, 0, 5]),             // c_eqn
            (72, &[0, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x40]),
            (80, &[0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x40]),
            (88, &[0x51, 0x52, 0x53, 0x54, 0x80]), // cq_umem_id, cq_umem_valid
        ],
    );
    assert_eq!(create_cq::In::parse(&bytes), Ok(command));
}

#[test]
fn create_qp_in_a_umem() {
    let command = create_qp::In {
        qpc: qpc::Qpc {
            st: qpc::ServiceType::Rc,
            pm_state: qpc::PathMigration::Migrated,
            pd: 0x01_0203,
            log_rq_size: 0xf,
            log_rq_stride: 0,
            no_sq: false,
            log_sq_size: 7,
            ts_format: qpc::TimestampFormat::DefaultFormat,
            uar_page: 0x11_1213,
            send_dbr_mode: qpc::SendDbrMode::NoDbr,
            user_index: 0x21_2223,
            cqn_snd: 0x31_3233,
            cqn_rcv: 0x41_4243,
            dbr_addr: 8,
            rq_type: qpc::RqType::ZeroSize,
            dbr_umem_valid: true,
            dbr_umem_id: 0x5152_5354,
            ..Default::default()
        },
        wq_umem_offset: 0x6162_6364_6566_6700,
        wq_umem_id: 0x7172_7374,
        wq_umem_valid: true,
        ..Default::default()
    };
    let bytes = command.emit();
    assert_eq!(bytes.len(), 272);
    only(
        &bytes,
        &[
            (0, &[0x05, 0x00]),
            (26, &[0x18]),                    // pm_state
            (29, &[0x01, 0x02, 0x03]),        // pd
            (33, &[0x78, 0x38, 0x40]),        // log_rq_size; log_sq_size; ts_format
            (37, &[0x11, 0x12, 0x13]),        // uar_page
            (40, &[0x40, 0x21, 0x22, 0x23]),  // send_dbr_mode, user_index
            (149, &[0x31, 0x32, 0x33]),       // cqn_snd
            (181, &[0x41, 0x42, 0x43]),       // cqn_rcv
            (184, &[0, 0, 0, 0, 0, 0, 0, 8]), // dbr_addr
            (196, &[0x03]),                   // rq_type
            (232, &[0x10]),                   // dbr_umem_valid
            (252, &[0x51, 0x52, 0x53, 0x54]), // dbr_umem_id
            (256, &[0x61, 0x62, 0x63, 0x64, 0x65, 0x66, 0x67, 0x00]),
            (264, &[0x71, 0x72, 0x73, 0x74, 0x80]),
        ],
    );
    assert_eq!(create_qp::In::parse(&bytes), Ok(command));
    // Scatter to CQE is off: both bytes are zero.
    assert_eq!(bytes[222..224], [0, 0]);
}

#[test]
fn rst2init_takes_port_key_and_rights() {
    let command = rst2init_qp::In {
        qpn: 0xab_cdef,
        opt_param_mask: qpc::OptParam::COUNTER_SET_ID | qpc::OptParam::LAG_TX_AFF,
        qpc: qpc::Qpc {
            lag_tx_port_affinity: 2,
            pm_state: qpc::PathMigration::Migrated,
            counter_set_id: 0x7e,
            primary_address_path: ads::Ads {
                pkey_index: 0x0102,
                vhca_port_num: 2,
                ..Default::default()
            },
            atomic_mode: qpc::AtomicMode::UpTo8,
            rre: true,
            rwe: true,
            rae: true,
            ..Default::default()
        },
        ..Default::default()
    };
    let bytes = command.emit();
    assert_eq!(bytes.len(), 272);
    only(
        &bytes,
        &[
            (0, &[0x05, 0x02]),
            (9, &[0xab, 0xcd, 0xef]),
            (16, &[0x02, 0x00, 0x80, 0x00]), // bits 25 and 15
            (24, &[0x02]),                   // lag_tx_port_affinity
            (26, &[0x18]),                   // pm_state
            (36, &[0x7e]),                   // counter_set_id
            (50, &[0x01, 0x02]),             // pkey_index
            (85, &[0x02]),                   // vhca_port_num
            (169, &[0x03, 0xe0]),            // atomic_mode; rre, rwe, rae
        ],
    );
    assert_eq!(rst2init_qp::In::parse(&bytes), Ok(command));
}

#[test]
fn init2rtr_on_roce_takes_the_whole_path() {
    let command = init2rtr_qp::In {
        qpn: 1,
        qpc: qpc::Qpc {
            mtu: qpc::Mtu::Bytes4096,
            log_msg_max: 30,
            remote_qpn: 0x12_3456,
            primary_address_path: ads::Ads {
                grh: true,
                src_addr_index: 3,
                hop_limit: 64,
                tclass: 0xa5,
                flow_label: 0x1_2345,
                rgid_rip: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1],
                f_dscp: true,
                f_eth_prio: true,
                dscp: 0x29,
                udp_sport: 0xc0de,
                eth_prio: 5,
                vhca_port_num: 1,
                rmac: [0x02, 0x11, 0x22, 0x33, 0x44, 0x55],
                ..Default::default()
            },
            log_rra_max: 4,
            min_rnr_nak: 12,
            next_rcv_psn: 0x65_4321,
            ..Default::default()
        },
        ..Default::default()
    };
    let bytes = command.emit();
    only(
        &bytes,
        &[
            (0, &[0x05, 0x03]),
            (11, &[0x01]),
            (32, &[0xbe]),                     // mtu 5, log_msg_max 30
            (45, &[0x12, 0x34, 0x56]),         // remote_qpn
            (53, &[0x80]),                     // grh
            (57, &[0x03]),                     // src_addr_index
            (59, &[64]),                       // hop_limit
            (60, &[0x0a, 0x51, 0x23, 0x45]),   // tclass, flow_label
            (74, &[0xff, 0xff, 192, 0, 2, 1]), // rgid_rip
            (80, &[0x09, 0x29, 0xc0, 0xde]),   // f_dscp, f_eth_prio; dscp; udp_sport
            (84, &[0x50, 0x01]),               // eth_prio; vhca_port_num
            (86, &[0x02, 0x11, 0x22, 0x33, 0x44, 0x55]),
            (169, &[0x80]),                   // log_rra_max
            (172, &[0x0c, 0x65, 0x43, 0x21]), // min_rnr_nak, next_rcv_psn
        ],
    );
    assert_eq!(init2rtr_qp::In::parse(&bytes), Ok(command));
}

#[test]
fn init2rtr_on_infiniband_takes_lid_and_sl() {
    let command = init2rtr_qp::In {
        qpc: qpc::Qpc {
            primary_address_path: ads::Ads {
                mlid: 0x7f,
                rlid: 0xbeef,
                stat_rate: 0xa,
                sl: 9,
                ..Default::default()
            },
            ..Default::default()
        },
        ..Default::default()
    };
    only(
        &command.emit(),
        &[
            (0, &[0x05, 0x03]),
            (53, &[0x7f, 0xbe, 0xef]),
            (58, &[0x0a]),
            (84, &[0x09]),
        ],
    );
}

#[test]
fn rtr2rts_takes_what_sending_needs() {
    let command = rtr2rts_qp::In {
        qpn: 0xff_ffff,
        qpc: qpc::Qpc {
            primary_address_path: ads::Ads {
                ack_timeout: 14,
                ..Default::default()
            },
            log_ack_req_freq: 8,
            log_sra_max: 4,
            retry_count: 7,
            rnr_retry: 7,
            next_send_psn: 0xab_cdef,
            ..Default::default()
        },
        ..Default::default()
    };
    let bytes = command.emit();
    only(
        &bytes,
        &[
            (0, &[0x05, 0x04]),
            (9, &[0xff, 0xff, 0xff]),
            (56, &[0x70]),              // ack_timeout 14 in the high five bits
            (136, &[0x80, 0x87, 0xe0]), // log_ack_req_freq; log_sra_max, retry_count; rnr_retry
            (145, &[0xab, 0xcd, 0xef]), // next_send_psn
        ],
    );
    assert_eq!(rtr2rts_qp::In::parse(&bytes), Ok(command));
}

#[test]
fn query_qp_tells_state_and_counters() {
    let mut bytes = [0; query_qp::Out::LEN];
    bytes[24] = 0x60;
    bytes[204..208].copy_from_slice(&[0x12, 0x34, 0x56, 0x78]);
    let out = query_qp::Out::parse(&bytes).unwrap();
    assert_eq!(out.status, Status::Ok);
    assert_eq!(out.qpc.state, qpc::QpState::Err);
    assert_eq!(
        (out.qpc.hw_sq_wqebb_counter, out.qpc.sw_sq_wqebb_counter),
        (0x1234, 0x5678)
    );
    assert_eq!(query_qp::Out::LEN, 272);
}

#[test]
fn commands_that_only_name_an_object() {
    only(
        &qp_2err::In { qpn: 0x01_0203 }.emit(),
        &[(0, &[0x05, 0x07]), (9, &[1, 2, 3])],
    );
    only(
        &qp_2rst::In { qpn: 0x01_0203 }.emit(),
        &[(0, &[0x05, 0x0a]), (9, &[1, 2, 3])],
    );
    only(
        &query_qp::In {
            qpn: 0x01_0203,
            ..Default::default()
        }
        .emit(),
        &[(0, &[0x05, 0x0b]), (9, &[1, 2, 3])],
    );
    only(
        &destroy_qp::In { qpn: 0x01_0203 }.emit(),
        &[(0, &[0x05, 0x01]), (9, &[1, 2, 3])],
    );
    only(
        &destroy_cq::In { cqn: 0x01_0203 }.emit(),
        &[(0, &[0x04, 0x01]), (9, &[1, 2, 3])],
    );
    only(
        &query_cq::In { cqn: 0x01_0203 }.emit(),
        &[(0, &[0x04, 0x02]), (9, &[1, 2, 3])],
    );
    only(
        &destroy_mkey::In {
            mkey_index: 0x01_0203,
        }
        .emit(),
        &[(0, &[0x02, 0x02]), (9, &[1, 2, 3])],
    );
    only(
        &dealloc_pd::In { pd: 0x01_0203 }.emit(),
        &[(0, &[0x08, 0x01]), (9, &[1, 2, 3])],
    );
    only(
        &dealloc_uar::In { uar: 0x01_0203 }.emit(),
        &[(0, &[0x08, 0x03]), (9, &[1, 2, 3])],
    );
    only(&alloc_pd::In {}.emit(), &[(0, &[0x08, 0x00])]);
    only(&alloc_uar::In {}.emit(), &[(0, &[0x08, 0x02])]);
    only(&query_special_contexts::In {}.emit(), &[(0, &[0x02, 0x03])]);
    assert_eq!(destroy_qp::In::LEN, 16);
}

#[test]
fn create_mkey_over_a_umem() {
    let command = create_mkey::In {
        mkey_umem_valid: true,
        data_direct: true,
        mkey_context: mkc::Mkc {
            relaxed_ordering_write: true,
            a: false,
            rw: true,
            rr: true,
            lw: true,
            lr: true,
            access_mode: mkc::MkeyAccessMode::Mtt,
            qpn: 0xff_ffff,
            mkey_7_0: 0x42,
            pd: 0x01_0203,
            start_addr: 0x1112_1314_1516_1718,
            len: 0x10_0000,
            translations_octword_size: 0x80,
            relaxed_ordering_read: true,
            log_page_size: 12,
            ..Default::default()
        },
        translations_octword_actual_size: 0x80,
        mkey_umem_id: 7,
        mkey_umem_offset: 0x200,
        ..Default::default()
    };
    let bytes = command.emit();
    assert_eq!(bytes.len(), 272);
    only(
        &bytes,
        &[
            (0, &[0x02, 0x00]),
            (12, &[0x60]),                   // mkey_umem_valid, data_direct
            (17, &[0x04]),                   // relaxed_ordering_write
            (18, &[0x3d]),                   // rw, rr, lw, lr, access_mode 1
            (20, &[0xff, 0xff, 0xff, 0x42]), // qpn, mkey_7_0
            (29, &[0x01, 0x02, 0x03]),       // pd
            (32, &[0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]),
            (40, &[0, 0, 0, 0, 0, 0x10, 0, 0]), // len
            (68, &[0, 0, 0, 0x80]),             // translations_octword_size
            (75, &[0x4c]),                      // relaxed_ordering_read, log_page_size
            (96, &[0, 0, 0, 0x80]),             // translations_octword_actual_size
            (100, &[0, 0, 0, 7]),               // mkey_umem_id
            (104, &[0, 0, 0, 0, 0, 0, 2, 0]),   // mkey_umem_offset
        ],
    );
    assert_eq!(create_mkey::In::parse(&bytes), Ok(command));
}

#[test]
fn capabilities_are_asked_for_by_op_mod() {
    use query_hca_cap::{CAPABILITY_OFFSET, CapSet, OUT_LEN, Query};
    let general = Query::<hca_cap::GeneralCaps>::new().encode().unwrap();
    only(&general, &[(0, &[0x01, 0x00]), (6, &[0x00, 0x01])]);
    let roce = Query::<hca_cap::RoceCaps>::new().encode().unwrap();
    only(&roce, &[(0, &[0x01, 0x00]), (6, &[0x00, 0x09])]);
    let atomic = Query::<hca_cap::AtomicCaps>::new().encode().unwrap();
    assert_eq!(atomic[6..8], [0x00, 0x07]);
    let second = Query::<hca_cap::GeneralCaps2>::new().encode().unwrap();
    assert_eq!(second[6..8], [0x00, 0x41]);
    assert_eq!(CapSet::from_op_mod(0x41), (CapSet::General2, true));
    assert_eq!(CapSet::from_op_mod(0x08), (CapSet::Roce, false));
    assert_eq!(CapSet::from_op_mod(0x0f), (CapSet::Unknown(7), true));

    let mut reply = [0; OUT_LEN];
    assert_eq!((OUT_LEN, CAPABILITY_OFFSET), (4112, 16));
    reply[16 + 0x11] = 15; // log_max_qp_sz
    reply[16 + 0x38] = 30; // log_max_msg
    reply[16 + 0x36] = 0x01; // port_type
    reply[16 + 0x37] = 2; // num_ports
    reply[16 + 0x3f] = 0x01; // cqe_version
    reply[16 + 0x43] = 0x06; // roce, atomic
    let caps = Query::<hca_cap::GeneralCaps>::decode(&reply).unwrap();
    assert_eq!(
        (
            caps.log_max_qp_sz,
            caps.log_max_msg,
            caps.num_ports,
            caps.cqe_version
        ),
        (15, 30, 2, 1)
    );
    assert_eq!(
        (caps.port_type, caps.roce, caps.atomic),
        (hca_cap::PortType::Ethernet, true, true)
    );
    assert!(Query::<hca_cap::GeneralCaps>::decode(&reply[..200]).is_err());
    assert!(Query::<hca_cap::GeneralCaps>::decode(&[]).is_err());
}

#[test]
fn a_refusal_carries_status_and_syndrome() {
    let bytes = header::Reply {
        status: Status::BadResourceState,
        syndrome: 0x0012_3456,
    }
    .emit();
    assert_eq!(bytes, [0x09, 0, 0, 0, 0x00, 0x12, 0x34, 0x56]);
    let refused = header::Reply::parse(&bytes)
        .unwrap()
        .into_result()
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "status 0x9 (BadResourceState), syndrome 0x123456"
    );
    assert_eq!(header::Reply::default().into_result(), Ok(()));
    assert_eq!(Status::from_code(0x77), Status::Unknown(0x77));
    assert_eq!(
        [
            Status::BadInputLength.code(),
            Status::BadOutputLength.code()
        ],
        [0x50, 0x51]
    );
}

#[test]
fn a_mailbox_of_another_command_or_too_short_is_an_error() {
    let bytes = qp_2err::In { qpn: 1 }.emit();
    assert_eq!(
        qp_2rst::In::parse(&bytes),
        Err(Error::Opcode {
            structure: "qp_2rst_in",
            needed: 0x50a,
            found: 0x507
        })
    );
    assert_eq!(
        qp_2err::In::parse(&bytes[..15]),
        Err(Error::Short {
            structure: "qp_2err_in",
            needed: 16,
            found: 15
        })
    );
    assert!(header::Request::parse(&bytes[..7]).is_err());
}

#[test]
fn mtus() {
    for (bytes, code) in [(256, 1), (512, 2), (1024, 3), (2048, 4), (4096, 5)] {
        let mtu = qpc::Mtu::from_bytes(bytes).unwrap();
        assert_eq!((mtu.code(), mtu.bytes()), (code, Some(bytes)));
    }
    assert_eq!(qpc::Mtu::from_bytes(1500), None);
    assert_eq!(qpc::Mtu::from_code(0).bytes(), None);
}

#[test]
fn printed_without_what_is_zero() {
    let mut command = init2rtr_qp::In {
        qpn: 7,
        ..Default::default()
    };
    command.qpc.primary_address_path.rmac = [2, 0, 0, 0, 0, 1];
    assert_eq!(
        command.to_string(),
        "init2rtr_qp_in\n  qpn: 0x7\n  qpc: qpc\n    primary_address_path: ads\n      rmac_47_32..rmac_31_0: 020000000001"
    );
}
