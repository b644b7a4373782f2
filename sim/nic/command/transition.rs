//! State transitions of a QP: which fields of the context each takes, and what it demands of them.
//!
//! Required fields are always taken, optional ones where `opt_param_mask` names them (Linux mlx5 qp.c, `opt_mask`).

use warpverbs_wire::eqe::EventType;
use warpverbs_wire::prm::ads::Ads;
use warpverbs_wire::prm::qpc::{AtomicMode, OptParam, PathMigration, QpState, Qpc, RqType};
use warpverbs_wire::prm::{
    init2init_qp, init2rtr_qp, qp_2err, qp_2rst, rst2init_qp, rtr2rts_qp, rts2rts_qp, sqerr2rts_qp,
};
use warpverbs_wire::roce::Psn;

use super::qp::{find, find_mut};
use super::{may_name, require};
use crate::config::{LOG_MAX_READS, LinkLayer, PKEYS, PORTS, SOURCE_PORTS};
use crate::model::NicModel;
use crate::objects::{ObjectId, ObjectKind};
use crate::packet::{Path, leads_here};
use crate::syndrome::Check;

/// Of the optional fields, those that every transition takes alike.
#[derive(Default)]
struct Options {
    read: Option<bool>,
    write: Option<bool>,
    atomic: Option<(bool, AtomicMode)>,
    rnr_timer: Option<u8>,
    pkey_index: Option<u16>,
    port: Option<u8>,
    counter_set: Option<u8>,
    lag_port: Option<u8>,
}

impl Options {
    /// Takes what `mask` names, of what the transition `allows`.
    fn take(
        model: &NicModel,
        uid: u16,
        mask: u32,
        allows: u32,
        given: &Qpc,
    ) -> Result<Self, Check> {
        require(mask & !allows == 0, Check::OptParam)?;
        require(mask & OptParam::ALT_ADDR_PATH == 0, Check::AlternatePath)?;
        let named = |bit| mask & bit != 0;
        let path = &given.primary_address_path;
        let options = Self {
            read: named(OptParam::RRE).then_some(given.rre),
            write: named(OptParam::RWE).then_some(given.rwe),
            atomic: named(OptParam::RAE).then_some((given.rae, given.atomic_mode)),
            rnr_timer: named(OptParam::RNR_TIMEOUT).then_some(given.min_rnr_nak),
            pkey_index: named(OptParam::PKEY_INDEX).then_some(path.pkey_index),
            port: named(OptParam::PRI_PORT).then_some(path.vhca_port_num),
            counter_set: named(OptParam::COUNTER_SET_ID).then_some(given.counter_set_id),
            lag_port: named(OptParam::LAG_TX_AFF).then_some(given.lag_tx_port_affinity),
        };
        if named(OptParam::PM_STATE) {
            check_migration(given)?;
        }
        let lag_ports = model.config().lag_ports;
        require(
            options.lag_port.is_none_or(|port| port <= lag_ports),
            Check::LagAffinity,
        )?;
        if let Some((allowed, mode)) = options.atomic {
            check_atomics(allowed, mode)?;
        }
        if let Some(pkey_index) = options.pkey_index {
            require(pkey_index < PKEYS, Check::PkeyIndex)?;
        }
        if let Some(port) = options.port {
            require((1..=PORTS).contains(&port), Check::Port)?;
        }
        if let Some(set) = options.counter_set {
            check_counter_set(model, uid, set)?;
        }
        Ok(options)
    }

    fn apply(&self, model: &mut NicModel, uid: u16, qpn: u32) -> Result<(), Check> {
        let pkey = self.pkey_index.map(|index| model.config().pkey(index));
        let qp = find_mut(model, uid, qpn)?;
        qp.path.pkey = pkey.unwrap_or(qp.path.pkey);
        let context = &mut qp.context;
        let path = &mut context.primary_address_path;
        path.pkey_index = self.pkey_index.unwrap_or(path.pkey_index);
        path.vhca_port_num = self.port.unwrap_or(path.vhca_port_num);
        context.rre = self.read.unwrap_or(context.rre);
        context.rwe = self.write.unwrap_or(context.rwe);
        context.min_rnr_nak = self.rnr_timer.unwrap_or(context.min_rnr_nak);
        context.lag_tx_port_affinity = self.lag_port.unwrap_or(context.lag_tx_port_affinity);
        if let Some((allowed, mode)) = self.atomic {
            (context.rae, context.atomic_mode) = (allowed, mode);
        }
        match self.counter_set {
            Some(set) => attach(model, uid, qpn, set),
            None => Ok(()),
        }
    }
}

/// Attaches a QP to a counter set, or with 0 to none, and detaches it from the one before.
fn attach(model: &mut NicModel, uid: u16, qpn: u32, set: u8) -> Result<(), Check> {
    let qp = find_mut(model, uid, qpn)?;
    let name = |set: u8| ObjectId::new(ObjectKind::CounterSet, set.into());
    let old = name(std::mem::replace(&mut qp.context.counter_set_id, set));
    qp.uses.retain(|used| *used != old);
    if set != 0 {
        qp.uses.push(name(set));
    }
    // Number 0 names no set, so nothing is counted for it.
    model.objects.retain(&[name(set)]);
    model.objects.release(&[old]);
    Ok(())
}

fn check_counter_set(model: &NicModel, uid: u16, set: u8) -> Result<(), Check> {
    let found = model.objects.counters.get(set.into());
    require(
        // The driver's own sets (uid 0), one a port, are everyone's.
        set == 0 || found.is_some_and(|set| set.uid == 0 || may_name(uid, set.uid)),
        Check::CounterSet,
    )
}

fn check_migration(given: &Qpc) -> Result<(), Check> {
    require(
        given.pm_state == PathMigration::Migrated,
        Check::PathMigration,
    )
}

fn check_atomics(allowed: bool, mode: AtomicMode) -> Result<(), Check> {
    let known = matches!(
        mode,
        AtomicMode::IbSpec | AtomicMode::Only8 | AtomicMode::UpTo8
    );
    require(!allowed || known, Check::AtomicMode)
}

fn check_state(
    model: &NicModel,
    uid: u16,
    qpn: u32,
    state: QpState,
    check: Check,
) -> Result<(), Check> {
    require(find(model, uid, qpn)?.state == state, check)
}

pub(super) fn rst2init(
    model: &mut NicModel,
    uid: u16,
    request: rst2init_qp::In,
) -> Result<rst2init_qp::Out, Check> {
    let (qpn, given) = (request.qpn, request.qpc);
    let path = given.primary_address_path;
    check_state(model, uid, qpn, QpState::Rst, Check::InitState)?;
    // All that it takes is required, so naming a field changes nothing.
    let options = Options::take(
        model,
        uid,
        request.opt_param_mask,
        OptParam::RST2INIT,
        &given,
    )?;
    check_migration(&given)?;
    require((1..=PORTS).contains(&path.vhca_port_num), Check::Port)?;
    require(path.pkey_index < PKEYS, Check::PkeyIndex)?;
    check_atomics(given.rae, given.atomic_mode)?;
    check_counter_set(model, uid, given.counter_set_id)?;
    let qp = find_mut(model, uid, qpn)?;
    let context = &mut qp.context;
    context.pm_state = given.pm_state;
    context.primary_address_path.vhca_port_num = path.vhca_port_num;
    context.primary_address_path.pkey_index = path.pkey_index;
    (context.rre, context.rwe, context.rae) = (given.rre, given.rwe, given.rae);
    context.atomic_mode = given.atomic_mode;
    qp.state = QpState::Init;
    attach(model, uid, qpn, given.counter_set_id)?;
    options.apply(model, uid, qpn)?;
    Ok(rst2init_qp::Out::default())
}

pub(super) fn init2init(
    model: &mut NicModel,
    uid: u16,
    request: init2init_qp::In,
) -> Result<init2init_qp::Out, Check> {
    let (qpn, mask) = (request.qpn, request.opt_param_mask);
    check_state(model, uid, qpn, QpState::Init, Check::Init2InitState)?;
    let options = Options::take(model, uid, mask, OptParam::INIT2INIT, &request.qpc)?;
    options.apply(model, uid, qpn)?;
    Ok(init2init_qp::Out::default())
}

/// What INIT2RTR demands of an address path.
fn check_path(model: &NicModel, path: &Ads) -> Result<(), Check> {
    let config = model.config();
    let ethernet = config.link_layer == LinkLayer::Ethernet;
    let source = model.gids.get(path.src_addr_index.into()).flatten();
    require(
        ethernet || path.grh || !config.grh_required,
        Check::GrhRequired,
    )?;
    // On RoCE every packet carries GIDs.
    require(source.is_some() || !(ethernet || path.grh), Check::GidIndex)?;
    let destination = if ethernet {
        path.rgid_rip != [0; 16] && path.rmac != [0; 6]
    } else {
        path.rlid != 0 || path.grh
    };
    require(destination || path.fl, Check::RemoteAddress)?;
    require(path.stat_rate == 0, Check::StaticRate)?;
    require(
        path.udp_sport == 0 || SOURCE_PORTS.contains(&path.udp_sport),
        Check::SourcePort,
    )?;
    // A router's LID, or a subnet manager's answer, is the caller's to know.
    require(
        ethernet || path.rlid != 0 || leads_here(config, &model.gids, path),
        Check::RemoteLid,
    )
}

pub(super) fn init2rtr(
    model: &mut NicModel,
    uid: u16,
    request: init2rtr_qp::In,
) -> Result<init2rtr_qp::Out, Check> {
    let (qpn, given) = (request.qpn, request.qpc);
    let path = given.primary_address_path;
    check_state(model, uid, qpn, QpState::Init, Check::RtrState)?;
    let mask = request.opt_param_mask;
    let options = Options::take(model, uid, mask, OptParam::INIT2RTR, &given)?;
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
    check_path(model, &path)?;
    let qp = find_mut(model, uid, qpn)?;
    let context = &mut qp.context;
    // Port and partition are INIT's; the latter can be changed here, as an option.
    let old = context.primary_address_path;
    context.primary_address_path = path;
    context.primary_address_path.vhca_port_num = old.vhca_port_num;
    context.primary_address_path.pkey_index = old.pkey_index;
    context.mtu = given.mtu;
    context.log_msg_max = given.log_msg_max;
    context.remote_qpn = given.remote_qpn;
    context.next_rcv_psn = given.next_rcv_psn;
    context.log_rra_max = given.log_rra_max;
    context.min_rnr_nak = given.min_rnr_nak;
    qp.responder.expected = Psn::new(given.next_rcv_psn);
    qp.state = QpState::Rtr;
    options.apply(model, uid, qpn)?;
    let context = find(model, uid, qpn)?.context;
    let path = Path::new(model.config(), &model.gids, qpn, &context);
    find_mut(model, uid, qpn)?.path = path;
    Ok(init2rtr_qp::Out::default())
}

pub(super) fn rtr2rts(
    model: &mut NicModel,
    uid: u16,
    request: rtr2rts_qp::In,
) -> Result<rtr2rts_qp::Out, Check> {
    let (qpn, given) = (request.qpn, request.qpc);
    check_state(model, uid, qpn, QpState::Rtr, Check::RtsState)?;
    let mask = request.opt_param_mask;
    let options = Options::take(model, uid, mask, OptParam::RTR2RTS, &given)?;
    require(given.log_sra_max <= LOG_MAX_READS, Check::RequesterDepth)?;
    let context = &mut find_mut(model, uid, qpn)?.context;
    context.next_send_psn = given.next_send_psn;
    context.log_sra_max = given.log_sra_max;
    context.retry_count = given.retry_count;
    context.rnr_retry = given.rnr_retry;
    context.log_ack_req_freq = given.log_ack_req_freq;
    context.primary_address_path.ack_timeout = given.primary_address_path.ack_timeout;
    options.apply(model, uid, qpn)?;
    let qp = find_mut(model, uid, qpn)?;
    qp.requester.start(&qp.context);
    qp.state = QpState::Rts;
    Ok(rtr2rts_qp::Out::default())
}

pub(super) fn rts2rts(
    model: &mut NicModel,
    uid: u16,
    request: rts2rts_qp::In,
) -> Result<rts2rts_qp::Out, Check> {
    let (qpn, mask) = (request.qpn, request.opt_param_mask);
    check_state(model, uid, qpn, QpState::Rts, Check::Rts2RtsState)?;
    let options = Options::take(model, uid, mask, OptParam::RTS2RTS, &request.qpc)?;
    options.apply(model, uid, qpn)?;
    Ok(rts2rts_qp::Out::default())
}

/// An RC QP never is in SQER (IBA 10.3: an error of its send queue takes it to ERR), so this is always refused.
pub(super) fn sqerr2rts(
    model: &mut NicModel,
    uid: u16,
    request: sqerr2rts_qp::In,
) -> Result<sqerr2rts_qp::Out, Check> {
    check_state(model, uid, request.qpn, QpState::Sqer, Check::SqErrState)?;
    Ok(sqerr2rts_qp::Out::default())
}

/// From any state. What happens to work in the queue is `flush`'s.
pub(super) fn to_error(
    model: &mut NicModel,
    uid: u16,
    request: qp_2err::In,
) -> Result<qp_2err::Out, Check> {
    let state = find(model, uid, request.qpn)?.state;
    if state != QpState::Err {
        let qp = find_mut(model, uid, request.qpn)?;
        qp.enter_error_by_command();
        let shared = qp.context.rq_type == RqType::Shared;
        model.wake(request.qpn);
        // As of every way to error: software waits for it before it destroys the QP (Linux `__ib_drain_srq`).
        if shared {
            model.raise(request.qpn, EventType::SrqLastWqe);
        }
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
    find(model, uid, request.qpn)?;
    // Back to what CREATE_QP left.
    attach(model, uid, request.qpn, 0)?;
    find_mut(model, uid, request.qpn)?.reset(first);
    model.forget(request.qpn);
    Ok(qp_2rst::Out::default())
}
