//! Driver calls, references, and leaks.

use warpverbs_sim_nic::{
    DmaRange, GidKind, LinkLayer, NicConfig, NicError, ObjectId, ObjectKind, UarKind, access,
};
use warpverbs_wire::prm::{destroy_cq, destroy_qp};

use crate::rig::{ALL_RIGHTS, PAGE_4K, Rig};

#[test]
fn an_object_in_use_is_not_destroyed_and_a_whole_teardown_leaves_nothing() {
    let rig = Rig::new();
    let cq = rig.cq(4);
    let qp = rig.qp(&cq, 4);
    let mr = rig.mr(64, 0);
    let busy = |kind, id, users| {
        Err(NicError::Busy {
            object: ObjectId::new(kind, id),
            users,
        })
    };
    assert_eq!(
        rig.nic().dealloc_pd(rig.pd),
        busy(ObjectKind::Pd, rig.pd, 2)
    );
    assert_eq!(
        rig.nic().free_uar(rig.uar),
        busy(ObjectKind::Uar, rig.uar, 2)
    );
    assert_eq!(
        rig.nic().dereg_umem(cq.umem),
        busy(ObjectKind::Umem, cq.umem, 2)
    );
    assert_eq!(
        rig.nic().dereg_umem(qp.umem),
        busy(ObjectKind::Umem, qp.umem, 2)
    );
    assert!(rig.command(destroy_cq::In { cqn: cq.cqn }).is_err());
    assert_eq!(rig.nic().live_objects().len(), 7);

    rig.command(destroy_qp::In { qpn: qp.qpn }).unwrap();
    rig.nic().dereg_umem(qp.umem).unwrap();
    assert!(rig.nic().dereg_umem(cq.umem).is_err());
    rig.command(destroy_cq::In { cqn: cq.cqn }).unwrap();
    rig.nic().dereg_umem(cq.umem).unwrap();
    rig.nic().free_uar(rig.uar).unwrap();
    assert!(rig.nic().dealloc_pd(rig.pd).is_err());
    rig.nic().dereg_mr(mr.keys.lkey).unwrap();
    rig.nic().dealloc_pd(rig.pd).unwrap();
    assert_eq!(rig.nic().live_objects(), []);
    let gone = |kind, id| Err(NicError::NoObject(ObjectId::new(kind, id)));
    assert_eq!(rig.nic().dealloc_pd(rig.pd), gone(ObjectKind::Pd, rig.pd));
    assert_eq!(
        rig.nic().dereg_mr(mr.keys.lkey),
        gone(ObjectKind::MKey, mr.keys.lkey >> 8)
    );
}

#[test]
fn driver_calls_refuse_bad_arguments() {
    let rig = Rig::new();
    let range = DmaRange {
        bus_addr: 0x1000,
        len: 64,
        iova: 0x1000,
    };
    let mut nic = rig.nic();
    assert!(matches!(
        nic.reg_mr(0xdead, range, 0),
        Err(NicError::NoObject(_))
    ));
    for bad in [
        DmaRange { len: 0, ..range },
        DmaRange {
            bus_addr: u64::MAX - 2,
            ..range
        },
        DmaRange {
            iova: u64::MAX - 2,
            ..range
        },
    ] {
        assert!(matches!(
            nic.reg_mr(rig.pd, bad, 0),
            Err(NicError::InvalidRange(_))
        ));
        assert!(matches!(
            nic.reg_umem(bad, PAGE_4K, 0),
            Err(NicError::InvalidRange(_))
        ));
    }
    for bad in [access::REMOTE_WRITE, access::REMOTE_ATOMIC, 1 << 9] {
        assert!(matches!(
            nic.reg_mr(rig.pd, range, bad),
            Err(NicError::InvalidAccess { .. })
        ));
    }
    assert_eq!(
        nic.reg_umem(range, 1 << 3, 0),
        Err(NicError::InvalidPageSizes(1 << 3))
    );
    let keys = nic.reg_mr(rig.pd, range, ALL_RIGHTS).unwrap();
    assert!(
        nic.dereg_mr(keys.lkey ^ 1).is_err(),
        "another low byte is another key"
    );
    assert_eq!(nic.query_eqn(8), Err(NicError::NoVector(8)));
    assert_eq!(nic.query_port(2).unwrap_err(), NicError::NoPort(2));
    assert_eq!(nic.query_gid(1, 16), Err(NicError::NoGid(16)));
}

#[test]
fn keys_of_consecutive_registrations_differ_in_index_and_low_byte() {
    let rig = Rig::new();
    let (a, b) = (rig.mr(64, 0), rig.mr(64, 0));
    assert_ne!(a.keys.lkey >> 8, b.keys.lkey >> 8);
    assert_ne!(a.keys.lkey as u8, b.keys.lkey as u8);
    assert_eq!(a.keys.lkey, a.keys.rkey);
}

#[test]
fn uar_pages_are_dense_and_of_every_kind() {
    let rig = Rig::new();
    let kinds = [
        UarKind::NonCached,
        UarKind::BlueFlame,
        UarKind::NonCachedDedicated,
    ];
    let pages: Vec<u32> = kinds
        .iter()
        .map(|kind| rig.nic().alloc_uar(*kind).unwrap())
        .collect();
    assert_eq!(pages, [rig.uar + 1, rig.uar + 2, rig.uar + 3]);
}

#[test]
fn the_port_has_gids_of_its_link_layer() {
    let rig = Rig::new();
    let nic = rig.nic();
    let port = nic.query_port(1).unwrap();
    assert_eq!(
        (port.active, port.link_layer, port.mtu, port.lid, port.gids),
        (true, LinkLayer::Ethernet, 4096, 0, 16)
    );
    let gid = |index| nic.query_gid(1, index).unwrap().unwrap();
    assert_eq!(
        gid(1).gid,
        [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 1],
        "EUI-64 of 02:00:00:00:00:01"
    );
    assert_eq!(
        gid(3).gid,
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]
    );
    assert_eq!(
        [gid(0).kind, gid(1).kind],
        [GidKind::RoceV1, GidKind::RoceV2]
    );
    assert_eq!(nic.query_gid(1, 4), Ok(None));
    assert_eq!(nic.resolve_mac(1, 3, gid(3).gid), Ok([2, 0, 0, 0, 0, 1]));
    let far = [9; 16];
    assert_eq!(nic.resolve_mac(1, 3, far), Err(NicError::Unreachable(far)));
    assert_eq!(nic.resolve_mac(1, 5, gid(3).gid), Err(NicError::NoGid(5)));
    drop(nic);
    let rig = Rig::with(NicConfig {
        link_layer: LinkLayer::InfiniBand,
        ..NicConfig::default()
    });
    assert_eq!(
        rig.nic().query_gid(1, 0).unwrap().unwrap().kind,
        GidKind::InfiniBand
    );
    assert_eq!(rig.nic().query_gid(1, 1), Ok(None));
}

#[test]
fn a_qp_destroyed_with_work_in_its_queue_leaves_none_behind() {
    let rig = Rig::new();
    let mut cq = rig.cq(4);
    let (mut a, b) = rig.pair(&cq, 4);
    a.nop(&rig);
    a.ring(&rig);
    rig.to_error(b.qpn);
    rig.command(destroy_qp::In { qpn: a.qpn }).unwrap();
    rig.command(destroy_qp::In { qpn: b.qpn }).unwrap();
    assert_eq!(rig.run(), 0);
    cq.assert_empty(&rig);
    rig.assert_no_findings();
}
