//! Commands beside CQs, QPs and MKeys: shared receive queues, counter sets, addresses, ports; and QP transitions that change
//! a QP in place.

use warpverbs_wire::cqe::Syndrome;
use warpverbs_wire::prm::*;

use crate::only;

#[test]
fn create_rmp_in_a_umem() {
    let command = create_rmp::In {
        context: rmpc::Rmpc {
            state: rmpc::RmpState::Ready,
            basic_cyclic_rcv_wqe: true,
            wq: rmpc::Wq {
                wq_type: rmpc::WqType::Cyclic,
                page_offset: 0x1f,
                lwm: 0x0102,
                pd: 0x11_1213,
                uar_page: 0x21_2223,
                dbr_addr: 0x31_3233_3435_3640,
                log_wq_stride: 5,
                log_wq_pg_sz: 9,
                log_wq_sz: 10,
                dbr_umem_valid: true,
                wq_umem_valid: true,
                dbr_umem_id: 0x4142_4344,
                wq_umem_id: 0x5152_5354,
                wq_umem_offset: 0x6162_6364_6566_6700,
                ..Default::default()
            },
        },
    };
    let bytes = command.emit();
    assert_eq!(bytes.len(), 272);
    // The context begins at byte 32, its work queue at byte 80.
    only(
        &bytes,
        &[
            (0, &[0x09, 0x0c]),
            (33, &[0x10]),                                     // state
            (36, &[0x80]),                                     // basic_cyclic_rcv_wqe
            (80, &[0x10]),                                     // wq_type
            (85, &[0x1f, 0x01, 0x02]),                         // page_offset, lwm
            (89, &[0x11, 0x12, 0x13]),                         // pd
            (93, &[0x21, 0x22, 0x23]),                         // uar_page
            (97, &[0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x40]), // dbr_addr
            (113, &[0x05, 0x09, 0x0a, 0xc0]), // log_wq_stride, log_wq_pg_sz, log_wq_sz; UMEMs valid
            (120, &[0x41, 0x42, 0x43, 0x44, 0x51, 0x52, 0x53, 0x54]),
            (128, &[0x61, 0x62, 0x63, 0x64, 0x65, 0x66, 0x67, 0x00]),
        ],
    );
    assert_eq!(create_rmp::In::parse(&bytes), Ok(command));
}

#[test]
fn arming_an_rmp_sets_its_limit() {
    let mut command = modify_rmp::In {
        rmp_state: rmpc::RmpState::Ready,
        rmpn: 0x01_0203,
        set_limit: true,
        ..Default::default()
    };
    command.context.wq.lwm = 0x1112;
    only(
        &command.emit(),
        &[
            (0, &[0x09, 0x0d]),
            (8, &[0x10, 1, 2, 3]),
            (23, &[0x01]),
            (86, &[0x11, 0x12]),
        ],
    );
}

#[test]
fn a_reply_that_only_names_an_object() {
    for (bytes, name) in [
        (
            create_rmp::Out {
                rmpn: 0x01_0203,
                ..Default::default()
            }
            .emit(),
            "RMP",
        ),
        (
            alloc_transport_domain::Out {
                transport_domain: 0x01_0203,
                ..Default::default()
            }
            .emit(),
            "TD",
        ),
    ] {
        let mut golden = [0; 16];
        golden[9..12].copy_from_slice(&[1, 2, 3]);
        assert_eq!(bytes, golden, "{name}");
    }
    let set = alloc_q_counter::Out {
        counter_set_id: 0x7e,
        ..Default::default()
    }
    .emit();
    only(&set, &[(11, &[0x7e])]);
}

#[test]
fn commands_that_only_name_an_object() {
    only(
        &destroy_rmp::In { rmpn: 0x01_0203 }.emit(),
        &[(0, &[0x09, 0x0e]), (9, &[1, 2, 3])],
    );
    only(
        &query_rmp::In { rmpn: 0x01_0203 }.emit(),
        &[(0, &[0x09, 0x0f]), (9, &[1, 2, 3])],
    );
    only(&alloc_transport_domain::In {}.emit(), &[(0, &[0x08, 0x16])]);
    only(
        &dealloc_transport_domain::In {
            transport_domain: 0x01_0203,
        }
        .emit(),
        &[(0, &[0x08, 0x17]), (9, &[1, 2, 3])],
    );
    only(&alloc_q_counter::In {}.emit(), &[(0, &[0x07, 0x71])]);
    only(
        &dealloc_q_counter::In {
            counter_set_id: 0x7e,
        }
        .emit(),
        &[(0, &[0x07, 0x72]), (11, &[0x7e])],
    );
}

#[test]
fn transitions_in_place_name_what_they_take() {
    let opt_param_mask = qpc::OptParam::RNR_TIMEOUT | qpc::OptParam::COUNTER_SET_ID;
    let mut qpc = qpc::Qpc::default();
    (qpc.min_rnr_nak, qpc.counter_set_id) = (12, 0x7e);
    // The context begins at byte 24: counter_set_id at its byte 12, min_rnr_nak in its byte 148.
    let runs = |opcode| {
        [
            (0, vec![0x05, opcode]),
            (9, vec![1, 2, 3]),
            (16, vec![0x02, 0, 0, 0x40]),
            (36, vec![0x7e]),
            (172, vec![0x0c]),
        ]
    };
    let check = |bytes: &[u8], opcode| {
        let runs = runs(opcode);
        let runs: Vec<_> = runs.iter().map(|(at, run)| (*at, run.as_slice())).collect();
        only(bytes, &runs);
    };
    let qpn = 0x01_0203;
    check(
        &rts2rts_qp::In {
            qpn,
            opt_param_mask,
            ece: 0,
            qpc,
        }
        .emit(),
        0x05,
    );
    check(
        &sqerr2rts_qp::In {
            qpn,
            opt_param_mask,
            qpc,
        }
        .emit(),
        0x06,
    );
    check(
        &init2init_qp::In {
            qpn,
            opt_param_mask,
            ece: 0,
            qpc,
        }
        .emit(),
        0x0e,
    );
}

#[test]
fn query_qp_with_extension_tells_why_it_failed() {
    let command = query_qp::Extended { qpn: 0x01_0203 };
    only(
        &command.encode().unwrap(),
        &[(0, &[0x05, 0x0b]), (8, &[0x80, 1, 2, 3])],
    );
    let mut reply = query_qp::Extended::reply();
    assert_eq!(reply.len(), 272 + 192);
    reply[272 + 12..272 + 16].copy_from_slice(&[0x93, 0x50, 0x88, 0x13]);
    let (out, extension) = query_qp::Extended::decode(&reply).unwrap();
    assert_eq!(out, query_qp::Out::default());
    let why = query_qp::ErrorSyndrome {
        hw_error_syndrome: 0x93,
        hw_syndrome_type: 5,
        vendor_syndrome: 0x88,
        syndrome: Syndrome::RemoteAccess,
    };
    assert_eq!(extension.error_syndrome, why);
    assert!(query_qp::Extended::decode(&reply[..272]).is_err());
}

#[test]
fn counters_lie_where_the_table_has_them() {
    let query = query_q_counter::In {
        clear: true,
        counter_set_id: 0x7e,
        ..Default::default()
    };
    only(
        &query.emit(),
        &[(0, &[0x07, 0x73]), (24, &[0x80]), (31, &[0x7e])],
    );
    let out = query_q_counter::Out {
        rx_write_requests: 1,
        out_of_buffer: 2,
        local_ack_timeout_err: 3,
        req_remote_access_errors: 4,
        req_cqe_flush_error: 5,
        ..Default::default()
    };
    let bytes = out.emit();
    assert_eq!(bytes.len(), 256);
    only(
        &bytes,
        &[(19, &[1]), (51, &[2]), (99, &[3]), (171, &[4]), (195, &[5])],
    );
}

#[test]
fn a_roce_address_is_gid_tag_and_mac() {
    let command = set_roce_address::In {
        roce_address_index: 0x0102,
        vhca_port_num: 1,
        address: roce_address::RoceAddress {
            gid: [0x11; 16],
            vlan_valid: true,
            vlan_id: 0xabc,
            mac: [1, 2, 3, 4, 5, 6],
            l3_type: roce_address::L3Type::Ipv6,
            version: roce_address::RoceVersion::V2,
        },
    };
    let bytes = command.emit();
    only(
        &bytes,
        &[
            (0, &[0x07, 0x61]),
            (8, &[1, 2, 0, 1]),
            (16, &[0x11; 16]),
            (32, &[0x1a, 0xbc, 1, 2, 3, 4, 5, 6]),
            (42, &[0x01, 0x02]),
        ],
    );
    let reply = query_roce_address::Out {
        address: command.address,
        ..Default::default()
    }
    .emit();
    assert_eq!(reply[16..], bytes[16..]);
}

#[test]
fn ports_tell_state_and_identifiers() {
    let state = query_vport_state::Out {
        admin_state: vport::PortAdminState::Auto,
        state: vport::VportState::Up,
        ..Default::default()
    };
    only(&state.emit(), &[(15, &[0x21])]);
    let mut infiniband = query_hca_vport_context::Out::default();
    infiniband.context.grh_required = true;
    infiniband.context.port_physical_state = 5;
    infiniband.context.vport_state = vport::PortState::Active;
    infiniband.context.port_guid = 0x0102_0304_0506_0708;
    (infiniband.context.lid, infiniband.context.lmc) = (0x1112, 3);
    let bytes = infiniband.emit();
    assert_eq!(bytes.len(), 16 + 512);
    only(
        &bytes,
        &[
            (16 + 32, &[0x10]),
            (16 + 34, &[0x50, 0x04]),
            (16 + 48, &[1, 2, 3, 4, 5, 6, 7, 8]),
            (16 + 96, &[0x11, 0x12]),
            (16 + 99, &[0x60]),
        ],
    );
    let mut ethernet = query_nic_vport_context::Out::default();
    (ethernet.context.roce_en, ethernet.context.mtu) = (true, 9000);
    ethernet.context.permanent_address.address = [1, 2, 3, 4, 5, 6];
    only(
        &ethernet.emit(),
        &[
            (16 + 3, &[0x01]),
            (16 + 38, &[0x23, 0x28]),
            (16 + 246, &[1, 2, 3, 4, 5, 6]),
        ],
    );
    let gid = query_hca_vport_gid::Out {
        gids_num: 1,
        gid: [0x11; 16],
        ..Default::default()
    };
    only(&gid.emit(), &[(12, &[0, 1]), (16, &[0x11; 16])]);
    let pkey = query_hca_vport_pkey::Out {
        pkey: 0xffff,
        ..Default::default()
    };
    only(&pkey.emit(), &[(18, &[0xff, 0xff])]);
    let query = query_hca_vport_gid::In {
        port_num: 1,
        gid_index: 0x0102,
        ..Default::default()
    };
    only(
        &query.emit(),
        &[(0, &[0x07, 0x64]), (9, &[0x01]), (14, &[1, 2])],
    );
}
