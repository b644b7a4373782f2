//! What verbs do to a QP or shared receive queue after it was made: transitions and queries.
//!
//! Knows: which attributes a transition needs (IBA 11.2.5.2, Linux core `qp_state_table`), and the commands that the kernel's
//! driver makes of them (Linux mlx5_ib `__mlx5_ib_modify_qp`).
//! Must not know: what the NIC does with a context.

use warpverbs_sim_nic::{GidKind, LinkLayer};
use warpverbs_wire::prm::ads::Ads;
use warpverbs_wire::prm::qpc::{AtomicMode, Mtu, OptParam, PathMigration, QpState, Qpc};
use warpverbs_wire::prm::rmpc::{RmpState, Rmpc, Wq};
use warpverbs_wire::prm::{
    init2init_qp, init2rtr_qp, modify_rmp, qp_2err, qp_2rst, query_qp as query, query_rmp,
    rst2init_qp, rtr2rts_qp, rts2rts_qp,
};

use crate::abi::mlx5::ModifyQpResp;
use crate::abi::verbs::{
    self, ExModifyQpResp, ModifyQp, ModifySrq, QpDest, QueryQp, QueryQpResp, QuerySrq, QuerySrqResp,
};
use crate::context::{Class, Object, Qp, Srq};
use crate::dispatch::Call;
use crate::errno::{Errno, Result};
use crate::write::{IN, OUT};

/// Attributes (`ib_qp_attr_mask`).
mod attr {
    pub(super) const STATE: u32 = 1;
    pub(super) const CUR_STATE: u32 = 1 << 1;
    pub(super) const ACCESS_FLAGS: u32 = 1 << 3;
    pub(super) const PKEY_INDEX: u32 = 1 << 4;
    pub(super) const PORT: u32 = 1 << 5;
    pub(super) const AV: u32 = 1 << 7;
    pub(super) const PATH_MTU: u32 = 1 << 8;
    pub(super) const TIMEOUT: u32 = 1 << 9;
    pub(super) const RETRY_CNT: u32 = 1 << 10;
    pub(super) const RNR_RETRY: u32 = 1 << 11;
    pub(super) const RQ_PSN: u32 = 1 << 12;
    pub(super) const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub(super) const MIN_RNR_TIMER: u32 = 1 << 15;
    pub(super) const SQ_PSN: u32 = 1 << 16;
    pub(super) const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub(super) const PATH_MIG_STATE: u32 = 1 << 18;
    pub(super) const DEST_QPN: u32 = 1 << 20;
}

/// States (`ib_qp_state`).
mod state {
    pub(super) const RESET: u8 = 0;
    pub(super) const INIT: u8 = 1;
    pub(super) const RTR: u8 = 2;
    pub(super) const RTS: u8 = 3;
    pub(super) const SQD: u8 = 4;
    pub(super) const SQE: u8 = 5;
    pub(super) const ERR: u8 = 6;
}

/// Remote access (`ib_access_flags`).
const WRITE: u32 = 1 << 1;
const READ: u32 = 1 << 2;
const ATOMIC: u32 = 1 << 3;
/// `IB_MIG_MIGRATED`
const MIGRATED: u8 = 0;

/// What an RC QP's transition needs, and what else it takes.
fn attributes(from: u8, to: u8) -> Option<(u32, u32)> {
    use attr::*;
    Some(match (from, to) {
        (_, state::RESET | state::ERR) => (0, 0),
        (state::RESET, state::INIT) => (PKEY_INDEX | PORT | ACCESS_FLAGS, 0),
        (state::INIT, state::INIT) => (0, PKEY_INDEX | PORT | ACCESS_FLAGS),
        (state::INIT, state::RTR) => (
            AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
            ACCESS_FLAGS | PKEY_INDEX,
        ),
        (state::RTR, state::RTS) => (
            TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC,
            CUR_STATE | ACCESS_FLAGS | MIN_RNR_TIMER | PATH_MIG_STATE,
        ),
        (state::RTS, state::RTS) => (0, CUR_STATE | ACCESS_FLAGS | MIN_RNR_TIMER | PATH_MIG_STATE),
        _ => return None,
    })
}

/// The optional parameters that attributes stand for (`ib_mask_to_mlx5_opt`).
fn options(mask: u32) -> u32 {
    let rights = OptParam::RWE | OptParam::RRE | OptParam::RAE;
    [
        (attr::ACCESS_FLAGS | attr::MAX_DEST_RD_ATOMIC, rights),
        (attr::PKEY_INDEX, OptParam::PKEY_INDEX),
        (attr::PATH_MIG_STATE, OptParam::PM_STATE),
        (attr::MIN_RNR_TIMER, OptParam::RNR_TIMEOUT),
    ]
    .into_iter()
    .filter(|(attributes, _)| mask & attributes != 0)
    .fold(0, |options, (_, option)| options | option)
}

/// log2 of how many reads; 0 of none.
fn log_reads(count: u8) -> u8 {
    count.checked_ilog2().unwrap_or(0) as u8
}

impl Call<'_> {
    fn qp(&mut self, handle: u32) -> Result<&mut Qp> {
        match self.context_mut()?.objects.get_mut(&handle) {
            Some(Object::Qp(qp)) => Ok(qp),
            _ => Err(Errno::NOENT),
        }
    }

    fn srq(&mut self, handle: u32) -> Result<&mut Srq> {
        match self.context_mut()?.objects.get_mut(&handle) {
            Some(Object::Srq(srq)) => Ok(srq),
            _ => Err(Errno::NOENT),
        }
    }

    /// The path to a destination (`mlx5_set_path`).
    fn path(&self, port: u8, dest: &QpDest) -> Result<Ads> {
        let nic = self.world.nic(self.context()?.nic)?;
        let nic = nic.lock();
        let ethernet = nic.query_port(port)?.link_layer == LinkLayer::Ethernet;
        if ethernet && dest.is_global == 0 {
            return Err(Errno::INVAL);
        }
        let mut ads = Ads {
            stat_rate: dest.static_rate,
            vhca_port_num: port,
            ..Ads::default()
        };
        if dest.is_global != 0 {
            let gid = nic
                .query_gid(port, dest.sgid_index.into())?
                .ok_or(Errno::INVAL)?;
            ads.src_addr_index = dest.sgid_index;
            ads.hop_limit = dest.hop_limit;
            ads.tclass = dest.traffic_class;
            ads.flow_label = dest.flow_label & 0xf_ffff;
            ads.rgid_rip = dest.dgid;
            if gid.kind == GidKind::RoceV2 {
                ads.dscp = dest.traffic_class >> 2;
                ads.udp_sport = udp_source_port(dest.flow_label);
            }
        }
        if ethernet {
            ads.rmac = nic.resolve_mac(port, dest.sgid_index.into(), dest.dgid)?;
            ads.eth_prio = dest.sl & 7;
        } else {
            ads.grh = dest.is_global != 0;
            ads.rlid = dest.dlid;
            ads.mlid = dest.src_path_bits & 0x7f;
            ads.sl = dest.sl & 0xf;
        }
        Ok(ads)
    }
}

/// The source port that a flow label stands for (`rdma_flow_label_to_udp_sport`); of no label some port, always the same here.
fn udp_source_port(flow_label: u32) -> u16 {
    const BASE: u16 = 0xc000;
    let (low, high) = (flow_label & 0x3fff, (flow_label & 0xf_c000) >> 14);
    BASE | (low ^ high) as u16
}

/// MODIFY_QP
pub(crate) fn modify_qp(call: &mut Call<'_>, extended: bool) -> Result<()> {
    let wanted = ModifyQp::parse(&call.request.input(IN)?);
    let mask = wanted.attr_mask;
    let qp = call.qp(wanted.qp_handle)?;
    let (qpn, from) = (qp.qpn, qp.state);
    if mask & attr::CUR_STATE != 0 && wanted.cur_qp_state != from {
        return Err(Errno::INVAL);
    }
    let to = if mask & attr::STATE != 0 {
        wanted.qp_state
    } else {
        from
    };
    let (needed, optional) = attributes(from, to).ok_or(Errno::INVAL)?;
    let given = mask & !attr::STATE;
    if given & needed != needed || given & !(needed | optional | attr::CUR_STATE) != 0 {
        return Err(Errno::INVAL);
    }
    let pm_state = PathMigration::Migrated;
    if mask & attr::PATH_MIG_STATE != 0 && wanted.path_mig_state != MIGRATED {
        return Err(Errno::INVAL);
    }
    // Rights count only as far as reads are answered (`set_qpc` of access flags: `to_mlx5_access_flags`).
    let access = if mask & attr::ACCESS_FLAGS != 0 {
        wanted.qp_access_flags
    } else {
        qp.access
    };
    let reads_answered = if mask & attr::MAX_DEST_RD_ATOMIC != 0 {
        wanted.max_dest_rd_atomic
    } else {
        qp.reads_answered
    };
    let port = if mask & attr::PORT != 0 {
        wanted.port_num
    } else {
        qp.port
    };
    let effective = if reads_answered == 0 {
        access & WRITE
    } else {
        access
    };
    let rights = |qpc: Qpc| Qpc {
        rre: effective & READ != 0,
        rwe: effective & WRITE != 0,
        rae: effective & ATOMIC != 0,
        atomic_mode: if effective & ATOMIC != 0 {
            AtomicMode::IbSpec
        } else {
            AtomicMode::None
        },
        ..qpc
    };
    let options = options(mask);
    let world = call.world;
    let context = call.context()?;
    match (from, to) {
        (_, state::RESET) => world.execute(context, &qp_2rst::In { qpn }).map(drop),
        (_, state::ERR) => world.execute(context, &qp_2err::In { qpn }).map(drop),
        (state::RESET | state::INIT, state::INIT) => {
            let qpc = rights(Qpc {
                pm_state,
                counter_set_id: world.port_counters(context.nic)?,
                primary_address_path: Ads {
                    vhca_port_num: port,
                    pkey_index: wanted.pkey_index,
                    ..Ads::default()
                },
                ..Qpc::default()
            });
            if from == state::RESET {
                let command = rst2init_qp::In {
                    qpn,
                    qpc,
                    ..rst2init_qp::In::default()
                };
                world.execute(context, &command).map(drop)
            } else {
                let command = init2init_qp::In {
                    qpn,
                    opt_param_mask: options & OptParam::INIT2INIT,
                    qpc,
                    ..init2init_qp::In::default()
                };
                world.execute(context, &command).map(drop)
            }
        }
        (state::INIT, state::RTR) => {
            let log_msg_max = {
                let nic = world.nic(context.nic)?;
                nic.lock().query_port(port)?.log_max_message
            };
            let mut path = call.path(port, &wanted.dest)?;
            path.pkey_index = wanted.pkey_index;
            let qpc = rights(Qpc {
                pm_state,
                mtu: Mtu::from_code(wanted.path_mtu),
                log_msg_max,
                remote_qpn: wanted.dest_qp_num & 0xff_ffff,
                next_rcv_psn: wanted.rq_psn & 0xff_ffff,
                log_rra_max: log_reads(reads_answered),
                min_rnr_nak: wanted.min_rnr_timer & 0x1f,
                primary_address_path: path,
                ..Qpc::default()
            });
            let command = init2rtr_qp::In {
                qpn,
                opt_param_mask: options & OptParam::INIT2RTR & !OptParam::RNR_TIMEOUT,
                qpc,
                ..init2rtr_qp::In::default()
            };
            world.execute(context, &command).map(drop)
        }
        (state::RTR, state::RTS) => {
            let qpc = rights(Qpc {
                pm_state,
                next_send_psn: wanted.sq_psn & 0xff_ffff,
                log_sra_max: log_reads(wanted.max_rd_atomic),
                retry_count: wanted.retry_cnt & 7,
                rnr_retry: wanted.rnr_retry & 7,
                // Every 2^8 packets (mlx5_ib `MLX5_IB_ACK_REQ_FREQ`).
                log_ack_req_freq: 8,
                min_rnr_nak: wanted.min_rnr_timer & 0x1f,
                primary_address_path: Ads {
                    ack_timeout: wanted.timeout & 0x1f,
                    ..Ads::default()
                },
                ..Qpc::default()
            });
            let command = rtr2rts_qp::In {
                qpn,
                opt_param_mask: options & OptParam::RTR2RTS,
                qpc,
                ..rtr2rts_qp::In::default()
            };
            world.execute(context, &command).map(drop)
        }
        // Nothing is to change.
        (state::RTS, state::RTS) if options == 0 => Ok(()),
        (state::RTS, state::RTS) => {
            let command = rts2rts_qp::In {
                qpn,
                opt_param_mask: options & OptParam::RTS2RTS,
                qpc: rights(Qpc {
                    pm_state,
                    min_rnr_nak: wanted.min_rnr_timer & 0x1f,
                    ..Qpc::default()
                }),
                ..rts2rts_qp::In::default()
            };
            world.execute(context, &command).map(drop)
        }
        _ => Err(Errno::INVAL),
    }?;
    let qp = call.qp(wanted.qp_handle)?;
    qp.state = to;
    (qp.access, qp.reads_answered, qp.port) = match to {
        state::RESET => (0, 0, 0),
        _ => (access, reads_answered, port),
    };
    if extended {
        let answer = ExModifyQpResp {
            comp_mask: 0,
            response_length: ExModifyQpResp::SIZE as u32,
        };
        call.request.output(OUT, &answer.emit())?;
        let driver = ModifyQpResp {
            response_length: ModifyQpResp::SIZE as u32,
            ..ModifyQpResp::default()
        };
        call.request.output(verbs::UHW_OUT, &driver.emit())?;
    }
    Ok(())
}

/// QUERY_QP
pub(crate) fn query_qp(call: &mut Call<'_>) -> Result<()> {
    let handle = QueryQp::parse(&call.request.input(IN)?).qp_handle;
    let qp = call.qp(handle)?;
    let (qpn, cap, signals_all) = (qp.qpn, qp.cap, qp.signals_all);
    let qpc = call
        .world
        .execute(
            call.context()?,
            &query::In {
                qpc_ext: false,
                qpn,
            },
        )?
        .qpc;
    let qp_state = match qpc.state {
        QpState::Rst => state::RESET,
        QpState::Init => state::INIT,
        QpState::Rtr => state::RTR,
        QpState::Rts => state::RTS,
        QpState::Sqer => state::SQE,
        QpState::Sqd | QpState::SqDraining => state::SQD,
        _ => state::ERR,
    };
    // The NIC may have moved it to error by itself.
    call.qp(handle)?.state = qp_state;
    let path = qpc.primary_address_path;
    let ethernet = call
        .world
        .nic(call.context()?.nic)?
        .lock()
        .query_port(1)?
        .link_layer
        == LinkLayer::Ethernet;
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    let reads = |log: u8| 1u8.checked_shl(log.into()).unwrap_or(u8::MAX);
    let answer = QueryQpResp {
        dest: QpDest {
            dgid: path.rgid_rip,
            flow_label: path.flow_label,
            dlid: path.rlid,
            sgid_index: path.src_addr_index,
            hop_limit: path.hop_limit,
            traffic_class: path.tclass,
            sl: if ethernet { path.eth_prio } else { path.sl },
            src_path_bits: path.mlid,
            static_rate: path.stat_rate,
            is_global: u8::from(path.grh || ethernet),
            port_num: path.vhca_port_num,
        },
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
        rq_psn: qpc.next_rcv_psn,
        sq_psn: qpc.next_send_psn,
        dest_qp_num: qpc.remote_qpn,
        qp_access_flags: flag(qpc.rre, READ) | flag(qpc.rwe, WRITE) | flag(qpc.rae, ATOMIC),
        pkey_index: path.pkey_index,
        qp_state,
        cur_qp_state: qp_state,
        path_mtu: qpc.mtu.code(),
        path_mig_state: MIGRATED,
        sq_draining: u8::from(qpc.state == QpState::SqDraining),
        max_rd_atomic: reads(qpc.log_sra_max),
        max_dest_rd_atomic: reads(qpc.log_rra_max),
        min_rnr_timer: qpc.min_rnr_nak,
        port_num: path.vhca_port_num,
        timeout: path.ack_timeout,
        retry_cnt: qpc.retry_count,
        rnr_retry: qpc.rnr_retry,
        sq_sig_all: u8::from(signals_all),
        ..QueryQpResp::default()
    };
    call.request.output(OUT, &answer.emit())
}

/// MODIFY_SRQ
pub(crate) fn modify_srq(call: &mut Call<'_>) -> Result<()> {
    /// `IB_SRQ_LIMIT`
    const LIMIT: u32 = 1 << 1;
    let wanted = ModifySrq::parse(&call.request.input(IN)?);
    // Queues are not resized.
    if wanted.attr_mask & !LIMIT != 0 {
        return Err(Errno::INVAL);
    }
    let srq = call.srq(wanted.srq_handle)?;
    if wanted.attr_mask & LIMIT == 0 {
        return Ok(());
    }
    if wanted.srq_limit > srq.max_wr {
        return Err(Errno::INVAL);
    }
    let (rmpn, pd) = (srq.rmpn, srq.pdn);
    let command = modify_rmp::In {
        rmp_state: RmpState::Ready,
        rmpn,
        set_limit: true,
        context: Rmpc {
            state: RmpState::Ready,
            wq: Wq {
                pd,
                lwm: u16::try_from(wanted.srq_limit).map_err(|_| Errno::INVAL)?,
                ..Wq::default()
            },
            ..Rmpc::default()
        },
    };
    call.world.execute(call.context()?, &command)?;
    call.srq(wanted.srq_handle)?.limit = wanted.srq_limit;
    Ok(())
}

/// QUERY_SRQ
pub(crate) fn query_srq(call: &mut Call<'_>) -> Result<()> {
    let handle = QuerySrq::parse(&call.request.input(IN)?).srq_handle;
    call.context()?.object(handle, Class::Srq)?;
    let srq = call.srq(handle)?;
    let (rmpn, max_wr, max_sge) = (srq.rmpn, srq.max_wr, srq.max_sge);
    let limit = call
        .world
        .execute(call.context()?, &query_rmp::In { rmpn })?
        .context
        .wq
        .lwm;
    let answer = QuerySrqResp {
        max_wr,
        max_sge,
        srq_limit: limit.into(),
    };
    call.request.output(OUT, &answer.emit())
}
