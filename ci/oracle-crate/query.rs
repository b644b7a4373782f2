//! QUERY_QP: what `ibv_query_qp` says in every state is what the QP was told, and so is the context that the firmware shows.

use warpverbs_sim_bus::Rng;
use warpverbs_sim_nic::Link;
use warpverbs_wire::prm::qpc::{QpState, Qpc};

use crate::Tally;
use crate::device::CQES;
use crate::ffi::*;
use crate::request::chance;
use crate::verbs::{Caps, Cq, Device, Qp};

/// What a QP was told so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Known {
    state: u32,
    access: u32,
    port: u8,
    pkey_index: u16,
    mtu: u32,
    peer: u32,
    receive_psn: u32,
    send_psn: u32,
    min_rnr_timer: u8,
    /// As many as are a power of two: the context holds their logarithm.
    reads: u8,
    reads_answered: u8,
    timeout: u8,
    retries: u8,
    rnr_retries: u8,
    gid: [u8; 16],
    gid_index: u8,
    hops: u8,
    class: u8,
    flow: u32,
    level: u8,
}

/// A cable with nobody at its end.
struct Nowhere;

impl Link for Nowhere {
    fn send(&mut self, _now: u64, _frame: &[u8]) {}
    fn receive(&mut self) -> Option<Vec<u8>> {
        None
    }
    fn wait(&mut self, _now: u64, _deadline: Option<u64>) -> Option<u64> {
        None
    }
    fn resume(&mut self) {}
}

/// RoCE v2 entries of the GID table, of an IPv4 and of a link-local address.
const GIDS: [u8; 2] = [1, 3];

pub fn compare(tally: &mut Tally, rng: &mut Rng) {
    let device = Device::open();
    crate::nic::query_after_traffic(tally, rng);
    // So that it has neighbours.
    warpverbs_sim::with_nic(0, |nic| nic.connect(Nowhere)).expect("an opened device");
    let cq = device.cq(CQES, false);
    let wanted = ["RESET", "INIT", "RTR", "RTS", "ERR", "RESET again"];
    while wanted.iter().any(|state| tally.wants(&name(state))) {
        life(&device, &cq, tally, rng);
    }
}

fn name(state: &str) -> String {
    format!("ibv_query_qp in {state}")
}

/// All states of a QP, with attributes by chance.
fn life(device: &Device, cq: &Cq, tally: &mut Tally, rng: &mut Rng) {
    let caps = Caps {
        send: 1 + rng.below(100),
        receive: 1 + rng.below(100),
        pointers: 1 + rng.below(16),
        receive_pointers: 1 + rng.below(16),
        inline: rng.below(400),
    };
    let qp = device.qp(cq, cq, caps, None);
    let mut known = Known::default();
    let mut check = |known: &Known, state: &str| {
        compare_one(&qp, known, &caps, state);
        tally.add(name(state));
    };
    check(&known, "RESET");

    known = Known {
        state: IBV_QPS_INIT,
        access: rights(rng),
        port: 1,
        ..known
    };
    tell(
        &qp,
        &known,
        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
    );
    check(&known, "INIT");
    if chance(rng) {
        known.access = rights(rng);
        tell(&qp, &known, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS);
        check(&known, "INIT");
    }

    known = Known {
        state: IBV_QPS_RTR,
        mtu: 1 + rng.below(5),
        peer: rng.next_u64() as u32 & 0xff_ffff,
        receive_psn: rng.next_u64() as u32 & 0xff_ffff,
        min_rnr_timer: rng.below(32) as u8,
        reads_answered: 1 << rng.below(5),
        gid_index: GIDS[rng.below(2) as usize],
        hops: 1 + rng.below(255) as u8,
        class: rng.below(256) as u8,
        flow: rng.below(1 << 20),
        level: rng.below(8) as u8,
        ..known
    };
    // A neighbour whose address tells its MAC: 10.x.y.z, or fe80::xxxx:xxff:fexx:xxxx.
    known.gid = device.gid(known.gid_index);
    rng.fill(&mut known.gid[13..]);
    let mut mask = IBV_QP_STATE
        | IBV_QP_AV
        | IBV_QP_PATH_MTU
        | IBV_QP_DEST_QPN
        | IBV_QP_RQ_PSN
        | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_MIN_RNR_TIMER;
    if chance(rng) {
        known.access = rights(rng);
        mask |= IBV_QP_ACCESS_FLAGS;
    }
    tell(&qp, &known, mask);
    check(&known, "RTR");

    known = Known {
        state: IBV_QPS_RTS,
        send_psn: rng.next_u64() as u32 & 0xff_ffff,
        reads: 1 << rng.below(5),
        timeout: rng.below(32) as u8,
        retries: rng.below(8) as u8,
        rnr_retries: rng.below(8) as u8,
        ..known
    };
    let mut mask = IBV_QP_STATE
        | IBV_QP_TIMEOUT
        | IBV_QP_RETRY_CNT
        | IBV_QP_RNR_RETRY
        | IBV_QP_SQ_PSN
        | IBV_QP_MAX_QP_RD_ATOMIC;
    if chance(rng) {
        known.min_rnr_timer = rng.below(32) as u8;
        mask |= IBV_QP_MIN_RNR_TIMER;
    }
    tell(&qp, &known, mask);
    check(&known, "RTS");
    if chance(rng) {
        known.access = rights(rng);
        known.min_rnr_timer = rng.below(32) as u8;
        tell(
            &qp,
            &known,
            IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER,
        );
        check(&known, "RTS");
    }

    known.state = IBV_QPS_ERR;
    tell(&qp, &known, IBV_QP_STATE);
    check(&known, "ERR");
    tell(&qp, &Known::default(), IBV_QP_STATE);
    check(&Known::default(), "RESET again");
    qp.destroy();
}

fn rights(rng: &mut Rng) -> u32 {
    rng.below(8) << 1
}

/// `ibv_modify_qp` of the attributes of `mask`.
fn tell(qp: &Qp, known: &Known, mask: u32) {
    let attributes = ibv_qp_attr {
        qp_state: known.state,
        path_mtu: known.mtu,
        rq_psn: known.receive_psn,
        sq_psn: known.send_psn,
        dest_qp_num: known.peer,
        qp_access_flags: known.access,
        ah_attr: ibv_ah_attr {
            grh: ibv_global_route {
                dgid: ibv_gid { raw: known.gid },
                flow_label: known.flow,
                sgid_index: known.gid_index,
                hop_limit: known.hops,
                traffic_class: known.class,
            },
            sl: known.level,
            is_global: 1,
            port_num: 1,
            ..ibv_ah_attr::default()
        },
        pkey_index: known.pkey_index,
        max_rd_atomic: known.reads,
        max_dest_rd_atomic: known.reads_answered,
        min_rnr_timer: known.min_rnr_timer,
        port_num: known.port,
        timeout: known.timeout,
        retry_cnt: known.retries,
        rnr_retry: known.rnr_retries,
        ..ibv_qp_attr::default()
    };
    if let Err(error) = qp.modify(attributes, mask) {
        panic!("{}: {known:x?}", std::io::Error::from_raw_os_error(error));
    }
}

fn compare_one(qp: &Qp, known: &Known, caps: &Caps, state: &str) {
    let (told, made_with) = qp.query();
    let found = Known {
        state: told.qp_state,
        access: told.qp_access_flags,
        port: told.port_num,
        pkey_index: told.pkey_index,
        mtu: told.path_mtu,
        peer: told.dest_qp_num,
        receive_psn: told.rq_psn,
        send_psn: told.sq_psn,
        min_rnr_timer: told.min_rnr_timer,
        // Of none the kernel says 1: 2 to the power of 0.
        reads: if known.reads == 0 {
            told.max_rd_atomic - 1
        } else {
            told.max_rd_atomic
        },
        reads_answered: if known.reads_answered == 0 {
            told.max_dest_rd_atomic - 1
        } else {
            told.max_dest_rd_atomic
        },
        timeout: told.timeout,
        retries: told.retry_cnt,
        rnr_retries: told.rnr_retry,
        gid: crate::verbs::bytes_of(told.ah_attr.grh.dgid),
        gid_index: told.ah_attr.grh.sgid_index,
        hops: told.ah_attr.grh.hop_limit,
        class: told.ah_attr.grh.traffic_class,
        flow: told.ah_attr.grh.flow_label,
        level: told.ah_attr.sl,
    };
    // A QP that answers no READs yet has the right to WRITE alone (Linux mlx5_ib `to_mlx5_access_flags`).
    let known = &Known {
        access: match known.reads_answered {
            0 => known.access & IBV_ACCESS_REMOTE_WRITE,
            _ => known.access,
        },
        ..*known
    };
    assert_eq!(found, *known, "ibv_query_qp in {state}");
    assert_eq!(told.cur_qp_state, told.qp_state);
    assert_eq!((told.ah_attr.port_num, told.alt_port_num), (known.port, 0));
    assert_eq!(told.path_mig_state, IBV_MIG_MIGRATED);
    // What was asked for, or more.
    let cap = made_with.cap;
    assert!(cap.max_send_wr >= caps.send && cap.max_recv_wr >= caps.receive);
    assert!(cap.max_send_sge >= caps.pointers && cap.max_recv_sge >= caps.receive_pointers);
    assert!(cap.max_inline_data >= caps.inline);
    assert_eq!(made_with.qp_type, IBV_QPT_RC);
    assert_eq!(shown(&qp.context(), known), *known, "QUERY_QP in {state}");
}

/// The same, of a context.
fn shown(context: &Qpc, known: &Known) -> Known {
    let path = &context.primary_address_path;
    let flag = |set, flag| if set { flag } else { 0 };
    let count = |log: u8, known: u8| if known == 0 { (1 << log) - 1 } else { 1 << log };
    Known {
        state: match context.state {
            QpState::Rst => IBV_QPS_RESET,
            QpState::Init => IBV_QPS_INIT,
            QpState::Rtr => IBV_QPS_RTR,
            QpState::Rts => IBV_QPS_RTS,
            QpState::Err => IBV_QPS_ERR,
            other => panic!("state {other:?}"),
        },
        access: flag(context.rwe, IBV_ACCESS_REMOTE_WRITE)
            | flag(context.rre, IBV_ACCESS_REMOTE_READ)
            | flag(context.rae, IBV_ACCESS_REMOTE_ATOMIC),
        port: path.vhca_port_num,
        pkey_index: path.pkey_index,
        mtu: context.mtu.code().into(),
        peer: context.remote_qpn,
        receive_psn: context.next_rcv_psn,
        send_psn: context.next_send_psn,
        min_rnr_timer: context.min_rnr_nak,
        reads: count(context.log_sra_max, known.reads),
        reads_answered: count(context.log_rra_max, known.reads_answered),
        timeout: path.ack_timeout,
        retries: context.retry_count,
        rnr_retries: context.rnr_retry,
        gid: path.rgid_rip,
        gid_index: path.src_addr_index,
        hops: path.hop_limit,
        class: path.tclass,
        flow: path.flow_label,
        level: path.eth_prio,
    }
}
