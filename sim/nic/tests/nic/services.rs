//! PDs, transport domains, UAR pages, counter sets, ports and addresses, by mailbox; changes to a QP in INIT and RTS.

use warpverbs_sim_nic::{CablePlan, GidKind, LinkLayer, NicConfig, NicError};
use warpverbs_wire::cqe::Syndrome;
use warpverbs_wire::prm::hca_cap::GeneralCaps;
use warpverbs_wire::prm::qpc::{AtomicMode, OptParam, QpState};
use warpverbs_wire::prm::query_hca_cap::Query;
use warpverbs_wire::prm::roce_address::{L3Type, RoceAddress, RoceVersion};
use warpverbs_wire::prm::vport::{PortState, VportState};
use warpverbs_wire::prm::{
    alloc_pd, alloc_q_counter, alloc_transport_domain, alloc_uar, dealloc_pd, dealloc_q_counter,
    dealloc_transport_domain, dealloc_uar, init2init_qp, query_hca_vport_context,
    query_hca_vport_gid, query_hca_vport_pkey, query_nic_vport_context, query_q_counter, query_qp,
    query_roce_address, query_vport_state, rts2rts_qp, set_roce_address,
};
use warpverbs_wire::roce::address::{gid_of_ipv4, link_local_gid};
use warpverbs_wire::wqe::Opcode;

use crate::rig::{ALL_RIGHTS, EVERY_RIGHT, Rig, pattern};

#[test]
fn what_is_allocated_by_mailbox_is_used_and_freed() {
    let mut rig = Rig::new();
    let mut cq = rig.cq(3);
    let live = rig.nic().live_objects();
    let pd = rig.command(alloc_pd::In {}).unwrap().pd;
    let uar = rig.command(alloc_uar::In {}).unwrap().uar;
    let domain = rig.command(alloc_transport_domain::In {}).unwrap();
    let transport_domain = domain.transport_domain;
    assert_eq!(rig.nic().live_objects().len(), live.len() + 3);
    let old = (rig.pd, rig.uar);
    (rig.pd, rig.uar) = (pd, uar);
    let (mut a, b) = rig.pair(&cq, 3);
    let mr = rig.mr(64, ALL_RIGHTS);
    rig.write(mr.addr, &pattern(8, 1));
    a.write(&rig, mr.piece(0, 8), mr.piece(32, 8));
    a.ring(&rig);
    rig.run();
    cq.success(&rig);
    assert_eq!(rig.read(mr.addr + 32, 8), pattern(8, 1));
    for qp in [&a, &b] {
        let qpn = qp.qpn;
        rig.command(warpverbs_wire::prm::destroy_qp::In { qpn })
            .unwrap();
        rig.nic().dereg_umem(qp.umem).unwrap();
    }
    rig.nic().dereg_mr(mr.keys.lkey).unwrap();
    rig.command(dealloc_pd::In { pd }).unwrap();
    rig.command(dealloc_uar::In { uar }).unwrap();
    rig.command(dealloc_transport_domain::In { transport_domain })
        .unwrap();
    (rig.pd, rig.uar) = old;
    assert_eq!(rig.nic().live_objects(), live);
    rig.assert_no_findings();
}

fn counters(rig: &Rig, counter_set_id: u8) -> query_q_counter::Out {
    rig.command(query_q_counter::In {
        counter_set_id,
        ..Default::default()
    })
    .unwrap()
}

fn counter_set(rig: &Rig) -> u8 {
    rig.command(alloc_q_counter::In {}).unwrap().counter_set_id
}

#[test]
fn a_counter_set_counts_for_its_qps_only_even_where_no_cqe_is_written() {
    let rig = Rig::new();
    let mut cq = rig.cq(5);
    let (set, other) = (counter_set(&rig), counter_set(&rig));
    assert_ne!(set, other);
    let mr = rig.mr(64, ALL_RIGHTS);
    // A write to a key that does not exist, whose cause has no CQE since the record is never written; attached or not.
    for attached in [true, false] {
        let (mut a, b) = (rig.qp(&cq, 4), rig.qp(&cq, 4));
        for (qp, peer) in [(a.qpn, b.qpn), (b.qpn, a.qpn)] {
            let mut request = rig.rst2init(qp);
            request.qpc.counter_set_id = if attached { set } else { 0 };
            rig.command(request).unwrap();
            rig.command(rig.init2rtr(qp, peer)).unwrap();
            rig.command(rig.rtr2rts(qp)).unwrap();
        }
        let mut bad = mr.piece(0, 8);
        bad.key ^= 0x100_0000;
        a.write(&rig, mr.piece(0, 8), mr.piece(8, 8));
        a.write(&rig, mr.piece(0, 8), bad);
        a.doorbell(&rig);
        rig.run();
        cq.success(&rig);
        cq.assert_empty(&rig);
        assert_eq!(rig.state(a.qpn), QpState::Err);
        let counted = counters(&rig, set);
        assert_eq!(
            (
                counted.rx_write_requests,
                counted.req_remote_access_errors,
                counted.resp_remote_access_errors,
                counted.req_cqe_error,
            ),
            (1, 1, 1, 0),
            "attached {attached}"
        );
        if attached {
            // The record releases the CQE, and then it is counted.
            a.dbr(&rig);
            rig.run();
            cq.error(&rig);
            assert_eq!(counters(&rig, set).req_cqe_error, 1);
            let clear = query_q_counter::In {
                counter_set_id: set,
                clear: true,
                ..Default::default()
            };
            assert_eq!(rig.command(clear).unwrap().req_cqe_error, 1);
            assert_eq!(counters(&rig, set), query_q_counter::Out::default());
            // So that the second round finds the same figures if nothing is counted.
            let (mut c, d) = (rig.qp(&cq, 4), rig.qp(&cq, 4));
            for (qp, peer) in [(c.qpn, d.qpn), (d.qpn, c.qpn)] {
                let mut request = rig.rst2init(qp);
                request.qpc.counter_set_id = set;
                rig.command(request).unwrap();
                rig.command(rig.init2rtr(qp, peer)).unwrap();
                rig.command(rig.rtr2rts(qp)).unwrap();
            }
            c.write(&rig, mr.piece(0, 8), mr.piece(8, 8));
            c.write(&rig, mr.piece(0, 8), bad);
            c.doorbell(&rig);
            rig.run();
            cq.success(&rig);
        }
    }
    assert_eq!(counters(&rig, other), query_q_counter::Out::default());
}

#[test]
fn every_kind_of_trouble_has_its_counter() {
    // Without a peer: a timeout for each try.
    let rig = Rig::new();
    let mut cq = rig.cq(5);
    let set = counter_set(&rig);
    let attach = |rig: &Rig, qpn| {
        let mut request = rts2rts_qp::In {
            qpn,
            opt_param_mask: OptParam::COUNTER_SET_ID,
            ..Default::default()
        };
        request.qpc.counter_set_id = set;
        rig.command(request).unwrap();
    };
    let mr = rig.mr(64, EVERY_RIGHT);
    let mut alone = rig.qp(&cq, 4);
    rig.to_rts(alone.qpn, 0xf0_0000);
    attach(&rig, alone.qpn);
    alone.write(&rig, mr.piece(0, 8), mr.piece(8, 8));
    alone.ring(&rig);
    rig.run();
    assert_eq!(cq.error(&rig), (0x15, 0x81, 0));
    let counted = counters(&rig, set);
    assert_eq!(
        (
            counted.local_ack_timeout_err,
            counted.req_transport_retries_exceeded,
            counted.req_cqe_error
        ),
        (8, 1, 1),
        "7 retries"
    );
    // A local error, a flush, and an invalid request.
    let (mut a, _) = rig.pair(&cq, 4);
    attach(&rig, a.qpn);
    a.write(&rig, mr.piece(60, 8), mr.piece(8, 8));
    a.nop(&rig);
    a.ring(&rig);
    rig.run();
    let counted = counters(&rig, set);
    assert_eq!(
        (
            counted.req_local_protection,
            counted.req_cqe_flush_error,
            counted.req_cqe_error
        ),
        (1, 1, 3)
    );
    // Loss and duplicates, seen from both ends.
    let plan = CablePlan {
        drop: [0].into(),
        ..CablePlan::default()
    };
    let (near, far, _) = Rig::joined(NicConfig::default(), plan, 1);
    let (near_cq, far_cq) = (near.cq(5), far.cq(5));
    let (mut a, b) = (near.qp(&near_cq, 4), far.qp(&far_cq, 4));
    let (near_set, far_set) = (counter_set(&near), counter_set(&far));
    near.connect(a.qpn, &far, b.qpn, |_| ());
    far.connect(b.qpn, &near, a.qpn, |_| ());
    attach(&near, a.qpn);
    attach(&far, b.qpn);
    let (here, there) = (near.mr(64, EVERY_RIGHT), far.mr(64, EVERY_RIGHT));
    for _ in 0..3 {
        a.write(&near, here.piece(0, 8), there.piece(0, 8));
    }
    a.post(&near, Opcode::Send, 8, &[]);
    a.ring(&near);
    // No receive is posted: not ready until somebody gives up looking.
    for _ in 0..2000 {
        near.bus.lock().step_device(0);
        near.bus.lock().step_device(1);
    }
    let (near_counted, far_counted) = (counters(&near, near_set), counters(&far, far_set));
    assert!(far_counted.out_of_sequence >= 1, "what came behind the gap");
    assert_eq!(near_counted.packet_seq_err, 1);
    assert_eq!(far_counted.rx_write_requests, 3);
    assert!(far_counted.out_of_buffer > 1, "{far_counted:?}");
    assert_eq!(near_counted.rnr_nak_retry_err, far_counted.out_of_buffer);
}

#[test]
fn a_counter_set_is_held_by_its_qps_until_they_leave_it() {
    let rig = Rig::new();
    let cq = rig.cq(3);
    let qp = rig.qp(&cq, 3);
    let (first, second) = (counter_set(&rig), counter_set(&rig));
    let dealloc = |counter_set_id| rig.command(dealloc_q_counter::In { counter_set_id });
    let mut request = rig.rst2init(qp.qpn);
    request.qpc.counter_set_id = first;
    rig.command(request).unwrap();
    assert!(dealloc(first).is_err());
    let mut request = init2init_qp::In {
        qpn: qp.qpn,
        opt_param_mask: OptParam::COUNTER_SET_ID,
        ..Default::default()
    };
    request.qpc.counter_set_id = second;
    rig.command(request).unwrap();
    dealloc(first).unwrap();
    assert_eq!(rig.query_qp(qp.qpn).counter_set_id, second);
    assert!(dealloc(second).is_err());
    rig.to_reset(qp.qpn);
    assert_eq!(rig.query_qp(qp.qpn).counter_set_id, 0);
    dealloc(second).unwrap();
}

#[test]
fn a_qp_is_changed_in_init_and_in_rts() {
    let rig = Rig::new();
    let mut cq = rig.cq(4);
    let (a, mut b) = rig.pair(&cq, 4);
    // In RTS the responder's rights: from now on `a` refuses writes.
    let request = rts2rts_qp::In {
        qpn: a.qpn,
        opt_param_mask: OptParam::RWE | OptParam::RNR_TIMEOUT,
        qpc: warpverbs_wire::prm::qpc::Qpc {
            min_rnr_nak: 9,
            rre: true,
            ..Default::default()
        },
        ..Default::default()
    };
    rig.command(request).unwrap();
    let context = rig.query_qp(a.qpn);
    assert_eq!((context.rwe, context.min_rnr_nak), (false, 9));
    assert_eq!(context.state, QpState::Rts);
    let mr = rig.mr(64, ALL_RIGHTS);
    b.write(&rig, mr.piece(0, 8), mr.piece(8, 8));
    b.ring(&rig);
    rig.run();
    assert_eq!(cq.error(&rig), (0x12, 0x8a, 0));
    // In INIT: partition, port and rights.
    let fresh = rig.qp(&cq, 4);
    rig.command(rig.rst2init(fresh.qpn)).unwrap();
    let mut request = init2init_qp::In {
        qpn: fresh.qpn,
        opt_param_mask: OptParam::RAE | OptParam::RWE | OptParam::PKEY_INDEX | OptParam::PRI_PORT,
        ..Default::default()
    };
    (request.qpc.rae, request.qpc.atomic_mode) = (true, AtomicMode::UpTo8);
    request.qpc.primary_address_path.pkey_index = 5;
    request.qpc.primary_address_path.vhca_port_num = 1;
    rig.command(request).unwrap();
    let context = rig.query_qp(fresh.qpn);
    assert_eq!((context.rae, context.rwe, context.rre), (true, false, true));
    assert_eq!(context.primary_address_path.pkey_index, 5);
    assert_eq!(context.state, QpState::Init);
}

#[test]
fn query_qp_tells_the_error_that_no_cqe_told() {
    let rig = Rig::new();
    let caps = rig.command(Query::<GeneralCaps>::new()).unwrap();
    assert!(caps.qpc_extension && caps.qp_error_syndrome);
    let mut cq = rig.cq(4);
    let (mut a, b) = rig.pair(&cq, 4);
    let error = |qpn| {
        let (out, extension) = rig.command(query_qp::Extended { qpn }).unwrap();
        let error = extension.error_syndrome;
        (out.qpc.state, error.syndrome, error.vendor_syndrome)
    };
    let none = Syndrome::from_code(0);
    assert_eq!(error(a.qpn), (QpState::Rts, none, 0));
    let mr = rig.mr(64, ALL_RIGHTS);
    a.write(&rig, mr.piece(0, 8), mr.piece(60, 8));
    a.doorbell(&rig);
    rig.run();
    cq.assert_empty(&rig);
    assert_eq!(error(a.qpn), (QpState::Err, Syndrome::RemoteAccess, 0x88));
    assert_eq!(
        error(b.qpn),
        (QpState::Err, none, 0),
        "no WQE of the responder failed"
    );
    rig.to_reset(a.qpn);
    assert_eq!(error(a.qpn), (QpState::Rst, none, 0));
    let fresh = rig.qp(&cq, 4);
    assert_eq!(error(fresh.qpn), (QpState::Rst, none, 0));
}

#[test]
fn ports_say_what_they_are() {
    let rig = Rig::new();
    let state = |rig: &Rig| rig.command(query_vport_state::In::default()).unwrap().state;
    assert_eq!(state(&rig), VportState::Up);
    rig.nic().set_link_up(false);
    assert_eq!(state(&rig), VportState::Down);
    let request = query_nic_vport_context::In::default();
    let context = rig.command(request).unwrap().context;
    assert!(context.roce_en && context.mtu > 4096);
    assert_eq!(context.permanent_address.address, NicConfig::default().mac);

    let rig = Rig::with(NicConfig {
        link_layer: LinkLayer::InfiniBand,
        lid: 7,
        grh_required: true,
        ..NicConfig::default()
    });
    assert!(rig.nic().query_port(1).unwrap().grh_required);
    let request = query_hca_vport_context::In::default();
    let context = rig.command(request).unwrap().context;
    assert_eq!(
        (context.lid, context.grh_required, context.vport_state),
        (7, true, PortState::Active)
    );
    let gid = |gid_index| {
        let request = query_hca_vport_gid::In {
            gid_index,
            ..Default::default()
        };
        rig.command(request).unwrap().gid
    };
    assert_eq!(gid(0), link_local_gid(NicConfig::default().mac));
    assert_eq!(gid(0)[8..], context.port_guid.to_be_bytes());
    assert_eq!(gid(1), [0; 16]);
    let pkey = |pkey_index| {
        let request = query_hca_vport_pkey::In {
            pkey_index,
            ..Default::default()
        };
        rig.command(request).unwrap().pkey
    };
    assert_eq!((pkey(0), pkey(1)), (0xffff, 0));
}

#[test]
fn an_address_that_is_added_carries_packets() {
    let (near, far, _) = Rig::joined(NicConfig::default(), CablePlan::default(), 1);
    let (gid, mac) = (gid_of_ipv4([192, 168, 7, 2]), [2, 0, 0, 0, 7, 2]);
    let address = RoceAddress {
        gid,
        mac,
        l3_type: L3Type::Ipv4,
        version: RoceVersion::V2,
        ..RoceAddress::default()
    };
    let set = |address| set_roce_address::In {
        roce_address_index: 9,
        vhca_port_num: 1,
        address,
    };
    far.command(set(address)).unwrap();
    let query = query_roce_address::In {
        roce_address_index: 9,
        vhca_port_num: 1,
    };
    assert_eq!(far.command(query).unwrap().address, address);
    let entry = far.nic().query_gid(1, 9).unwrap().unwrap();
    assert_eq!(
        (entry.gid, entry.kind, entry.mac),
        (gid, GidKind::RoceV2, mac)
    );
    assert_eq!(far.nic().resolve_mac(1, 3, gid), Ok(mac));
    assert_eq!(
        near.nic().resolve_mac(1, 3, gid),
        Err(NicError::Unreachable(gid)),
        "nothing tells its MAC address"
    );
    let mut cq = near.cq(4);
    let far_cq = far.cq(4);
    let (mut a, b) = (near.qp(&cq, 4), far.qp(&far_cq, 4));
    near.connect(a.qpn, &far, b.qpn, |qpc| {
        let path = &mut qpc.primary_address_path;
        if path.rgid_rip != [0; 16] {
            (path.rgid_rip, path.rmac) = (gid, mac);
        }
    });
    far.connect(b.qpn, &near, a.qpn, |qpc| {
        qpc.primary_address_path.src_addr_index = 9;
    });
    let (here, there) = (near.mr(64, EVERY_RIGHT), far.mr(64, EVERY_RIGHT));
    near.write(here.addr, &pattern(8, 1));
    a.write(&near, here.piece(0, 8), there.piece(0, 8));
    a.ring(&near);
    near.run();
    cq.success(&near);
    assert_eq!(far.read(there.addr, 8), pattern(8, 1));
    // Without the address, its frames are not this NIC's.
    far.command(set(RoceAddress::default())).unwrap();
    assert_eq!(far.nic().query_gid(1, 9), Ok(None));
    a.write(&near, here.piece(0, 8), there.piece(0, 8));
    a.ring(&near);
    near.run();
    assert_eq!(cq.error(&near), (0x15, 0x81, 1));
}
