//! State transitions of a QP: which fields of the context each takes, and what it demands of them.
//!
//! Required fields are always taken, optional ones where `opt_param_mask` names them (Linux mlx5 qp.c, `opt_mask`).

use warpverbs_wire::prm::qpc::{AtomicMode, OptParam, PathMigration, QpState, Qpc};
use warpverbs_wire::prm::{init2rtr_qp, qp_2err, qp_2rst, rst2init_qp, rtr2rts_qp};
use warpverbs_wire::roce::Psn;

use super::qp::{find, find_mut};
use super::require;
use crate::config::{LOG_MAX_READS, LinkLayer, NicConfig, PKEYS, PORTS};
use crate::model::NicModel;
use crate::packet::Path;
use crate::syndrome::Check;

const RIGHTS: u32 = OptParam::RRE | OptParam::RWE | OptParam::RAE;
/// What INIT2RTR of an RC QP takes beside the required fields.
const INIT2RTR_OPTIONS: u32 = RIGHTS | OptParam::PKEY_INDEX | OptParam::LAG_TX_AFF;
/// What RTR2RTS of an RC QP takes beside the required fields.
const RTR2RTS_OPTIONS: u32 = RIGHTS | OptParam::PM_STATE | OptParam::RNR_TIMEOUT;

pub(super) fn rst2init(
    model: &mut NicModel,
    uid: u16,
    request: rst2init_qp::In,
) -> Result<rst2init_qp::Out, Check> {
    let given = request.qpc;
    let path = given.primary_address_path;
    require(
        find(model, uid, request.qpn)?.state == QpState::Rst,
        Check::InitState,
    )?;
    require(request.opt_param_mask == 0, Check::OptParam)?;
    require(
        given.pm_state == PathMigration::Migrated,
        Check::PathMigration,
    )?;
    require((1..=PORTS).contains(&path.vhca_port_num), Check::Port)?;
    require(path.pkey_index < PKEYS, Check::PkeyIndex)?;
    require(is_atomic_mode(&given), Check::AtomicMode)?;
    let qp = find_mut(model, uid, request.qpn)?;
    let context = &mut qp.context;
    context.pm_state = given.pm_state;
    context.primary_address_path.vhca_port_num = path.vhca_port_num;
    context.primary_address_path.pkey_index = path.pkey_index;
    context.counter_set_id = given.counter_set_id;
    (context.rre, context.rwe, context.rae) = (given.rre, given.rwe, given.rae);
    context.atomic_mode = given.atomic_mode;
    qp.state = QpState::Init;
    Ok(rst2init_qp::Out::default())
}

pub(super) fn init2rtr(
    model: &mut NicModel,
    uid: u16,
    request: init2rtr_qp::In,
) -> Result<init2rtr_qp::Out, Check> {
    let given = request.qpc;
    let path = given.primary_address_path;
    require(
        find(model, uid, request.qpn)?.state == QpState::Init,
        Check::RtrState,
    )?;
    require(
        request.opt_param_mask & !INIT2RTR_OPTIONS == 0,
        Check::OptParam,
    )?;
    let config = model.config();
    require(
        given.mtu.bytes().is_some_and(|mtu| mtu <= config.mtu),
        Check::Mtu,
    )?;
    require(
        given.log_msg_max <= config.log_max_message,
        Check::MaxMessage,
    )?;
    require(given.log_rra_max <= LOG_MAX_READS, Check::ResponderDepth)?;
    require(path.pkey_index < PKEYS, Check::PkeyIndex)?;
    require(has_source(config, &given), Check::GidIndex)?;
    require(has_destination(config, &given), Check::RemoteAddress)?;
    let rights = rights(request.opt_param_mask, &given)?;
    let qp = find_mut(model, uid, request.qpn)?;
    let context = &mut qp.context;
    let (port, pkey_index) = {
        let old = &context.primary_address_path;
        (old.vhca_port_num, old.pkey_index)
    };
    context.primary_address_path = path;
    context.primary_address_path.vhca_port_num = port;
    if request.opt_param_mask & OptParam::PKEY_INDEX == 0 {
        context.primary_address_path.pkey_index = pkey_index;
    }
    if request.opt_param_mask & OptParam::LAG_TX_AFF != 0 {
        context.lag_tx_port_affinity = given.lag_tx_port_affinity;
    }
    context.mtu = given.mtu;
    context.log_msg_max = given.log_msg_max;
    context.remote_qpn = given.remote_qpn;
    context.next_rcv_psn = given.next_rcv_psn;
    context.log_rra_max = given.log_rra_max;
    context.min_rnr_nak = given.min_rnr_nak;
    rights.apply(context);
    let context = *context;
    qp.responder.expected = Psn::new(given.next_rcv_psn);
    qp.state = QpState::Rtr;
    let path = Path::new(model.config(), request.qpn, &context);
    find_mut(model, uid, request.qpn)?.path = path;
    Ok(init2rtr_qp::Out::default())
}

pub(super) fn rtr2rts(
    model: &mut NicModel,
    uid: u16,
    request: rtr2rts_qp::In,
) -> Result<rtr2rts_qp::Out, Check> {
    let given = request.qpc;
    require(
        find(model, uid, request.qpn)?.state == QpState::Rtr,
        Check::RtsState,
    )?;
    require(
        request.opt_param_mask & !RTR2RTS_OPTIONS == 0,
        Check::OptParam,
    )?;
    require(given.log_sra_max <= LOG_MAX_READS, Check::RequesterDepth)?;
    let pm_state = request.opt_param_mask & OptParam::PM_STATE != 0;
    require(
        !pm_state || given.pm_state == PathMigration::Migrated,
        Check::PathMigration,
    )?;
    let rights = rights(request.opt_param_mask, &given)?;
    let qp = find_mut(model, uid, request.qpn)?;
    let context = &mut qp.context;
    context.next_send_psn = given.next_send_psn;
    context.log_sra_max = given.log_sra_max;
    context.retry_count = given.retry_count;
    context.rnr_retry = given.rnr_retry;
    context.log_ack_req_freq = given.log_ack_req_freq;
    context.primary_address_path.ack_timeout = given.primary_address_path.ack_timeout;
    if request.opt_param_mask & OptParam::RNR_TIMEOUT != 0 {
        context.min_rnr_nak = given.min_rnr_nak;
    }
    rights.apply(context);
    qp.requester.start(&qp.context);
    qp.state = QpState::Rts;
    Ok(rtr2rts_qp::Out::default())
}

/// From any state. What happens to work in the queue is `flush`'s.
pub(super) fn to_error(
    model: &mut NicModel,
    uid: u16,
    request: qp_2err::In,
) -> Result<qp_2err::Out, Check> {
    let state = find(model, uid, request.qpn)?.state;
    if state != QpState::Err {
        find_mut(model, uid, request.qpn)?.enter_error_by_command();
        model.wake(request.qpn);
    }
    Ok(qp_2err::Out::default())
}

/// From any state. Work in the queue is dropped, and indices start over: the QP can be used again.
pub(super) fn to_reset(
    model: &mut NicModel,
    uid: u16,
    request: qp_2rst::In,
) -> Result<qp_2rst::Out, Check> {
    let first = model.config().first_index;
    find_mut(model, uid, request.qpn)?.reset(first);
    model.forget(request.qpn);
    Ok(qp_2rst::Out::default())
}

/// Access rights that a transition changes.
struct RemoteRights {
    read: Option<bool>,
    write: Option<bool>,
    atomic: Option<(bool, AtomicMode)>,
}

impl RemoteRights {
    fn apply(&self, context: &mut Qpc) {
        context.rre = self.read.unwrap_or(context.rre);
        context.rwe = self.write.unwrap_or(context.rwe);
        if let Some((allowed, mode)) = self.atomic {
            (context.rae, context.atomic_mode) = (allowed, mode);
        }
    }
}

fn rights(mask: u32, given: &Qpc) -> Result<RemoteRights, Check> {
    let atomic = mask & OptParam::RAE != 0;
    require(!atomic || is_atomic_mode(given), Check::AtomicMode)?;
    Ok(RemoteRights {
        read: (mask & OptParam::RRE != 0).then_some(given.rre),
        write: (mask & OptParam::RWE != 0).then_some(given.rwe),
        atomic: atomic.then_some((given.rae, given.atomic_mode)),
    })
}

fn is_atomic_mode(given: &Qpc) -> bool {
    !given.rae
        || matches!(
            given.atomic_mode,
            AtomicMode::IbSpec | AtomicMode::Only8 | AtomicMode::UpTo8
        )
}

/// True if packets carry GIDs.
fn has_gids(config: &NicConfig, given: &Qpc) -> bool {
    config.link_layer == LinkLayer::Ethernet || given.primary_address_path.grh
}

fn has_source(config: &NicConfig, given: &Qpc) -> bool {
    let index = u32::from(given.primary_address_path.src_addr_index);
    !has_gids(config, given) || matches!(config.gid(PORTS, index), Ok(Some(_)))
}

fn has_destination(config: &NicConfig, given: &Qpc) -> bool {
    let path = &given.primary_address_path;
    match config.link_layer {
        LinkLayer::Ethernet => path.rgid_rip != [0; 16] && path.rmac != [0; 6],
        LinkLayer::InfiniBand => path.rlid != 0 || path.grh,
    }
}
