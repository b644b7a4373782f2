//! CREATE_QP, QUERY_QP, DESTROY_QP.

use warpverbs_wire::prm::qpc::{Qpc, RqType, SendDbrMode, ServiceType, TimestampFormat};
use warpverbs_wire::prm::{create_qp, destroy_qp, query_qp};

use super::{Input, copy, has_pd, has_uar, may_name, named_umem, require};
use crate::model::NicModel;
use crate::objects::{ObjectId, ObjectKind};
use crate::qp::{DBR_BYTES, Qp, QpMemory, WQEBB_BYTES};
use crate::receive::ReceiveQueue;
use crate::syndrome::Check;

pub(super) fn create(
    model: &mut NicModel,
    uid: u16,
    request: create_qp::In,
) -> Result<create_qp::Out, Check> {
    let qpc = request.qpc;
    require(request.input_qpn == 0, Check::QpNumber)?;
    require(qpc.st == ServiceType::Rc, Check::QpService)?;
    require(!qpc.wq_signature, Check::QpSignature)?;
    require(!qpc.rlky, Check::QpReservedKey)?;
    require(qpc.cs_req == 0 && qpc.cs_res == 0, Check::QpScatterToCqe)?;
    require(
        matches!(
            qpc.ts_format,
            TimestampFormat::FreeRunning | TimestampFormat::DefaultFormat
        ),
        Check::QpTimestamp,
    )?;
    let modes = match qpc.send_dbr_mode {
        SendDbrMode::Dbr => true,
        SendDbrMode::NoDbr => model.config().no_dbr,
        SendDbrMode::Unknown(_) => false,
    };
    require(modes, Check::QpDbrMode)?;
    require(
        matches!(
            qpc.rq_type,
            RqType::ZeroSize | RqType::Regular | RqType::Shared
        ),
        Check::QpRqType,
    )?;
    require(!qpc.no_sq, Check::QpNoSq)?;
    require(
        qpc.log_sq_size <= model.config().log_max_sq_depth(),
        Check::QpSqSize,
    )?;
    require(
        qpc.rq_type != RqType::Regular || qpc.log_rq_size <= model.config().log_max_sq_depth(),
        Check::QpRqSize,
    )?;
    require(
        !qpc.cd_slave_send && !qpc.cd_slave_receive,
        Check::QpTriggered,
    )?;
    require(
        !qpc.cd_master || model.config().core_direct,
        Check::QpCoreDirect,
    )?;
    require(has_pd(model, uid, qpc.pd), Check::QpPd)?;
    require(owns_cq(model, uid, qpc.cqn_snd), Check::QpSendCq)?;
    // A queue of length zero completes nothing; firmware still wants a CQ there (rdma-core always names one): assumed.
    require(owns_cq(model, uid, qpc.cqn_rcv), Check::QpReceiveCq)?;
    require(has_uar(model, uid, qpc.uar_page), Check::QpUar)?;
    let shared = qpc.rq_type == RqType::Shared;
    let rmp = model.objects.rmps.get(qpc.srqn_rmpn_xrqn);
    require(
        !shared || rmp.is_some_and(|rmp| may_name(uid, rmp.uid)),
        Check::QpSharedQueue,
    )?;
    // With a UMEM the page size is the UMEM's and log_page_size is ignored (DOCA doca_verbs_cq.cpp says so of CQs).
    require(qpc.page_offset == 0, Check::QpPageOffset)?;
    require(request.wq_umem_valid, Check::QpNoUmem)?;
    let umem = named_umem(model, uid, request.wq_umem_id).ok_or(Check::QpUmem)?;
    require(
        umem.is_queue_offset(request.wq_umem_offset),
        Check::QpUmemOffset,
    )?;
    // The receive queue comes first, then the send queue at its own alignment (rdma-core `mlx5_calc_wq_size`; the
    // alignment assumed).
    let receives = ReceiveQueue::bytes_of_qp(&qpc).next_multiple_of(WQEBB_BYTES);
    let rings = umem
        .at(
            request.wq_umem_offset,
            receives + (WQEBB_BYTES << qpc.log_sq_size),
        )
        .ok_or(Check::QpUmemBounds)?;
    require(qpc.dbr_umem_valid, Check::QpNoDbrUmem)?;
    let dbr_umem = named_umem(model, uid, qpc.dbr_umem_id).ok_or(Check::QpDbrUmem)?;
    let dbr = dbr_umem
        .at(qpc.dbr_addr, DBR_BYTES)
        .ok_or(Check::QpDbrBounds)?;
    require(dbr % DBR_BYTES == 0, Check::QpDbrAlign)?;
    let mut uses = vec![
        ObjectId::new(ObjectKind::Pd, qpc.pd),
        ObjectId::new(ObjectKind::Cq, qpc.cqn_snd),
        ObjectId::new(ObjectKind::Cq, qpc.cqn_rcv),
        ObjectId::new(ObjectKind::Uar, qpc.uar_page),
        ObjectId::new(ObjectKind::Umem, request.wq_umem_id),
        ObjectId::new(ObjectKind::Umem, qpc.dbr_umem_id),
    ];
    if shared {
        uses.push(ObjectId::new(ObjectKind::Rmp, qpc.srqn_rmpn_xrqn));
    }
    let qp = Qp::new(
        uid,
        qpc,
        QpMemory {
            ring: rings + receives,
            receives: rings,
            dbr,
        },
        uses.clone(),
        model.config().first_index,
    );
    let qpn = model
        .objects
        .qps
        .insert(|_| qp)
        .map_err(|_| Check::QpExhausted)?;
    model.objects.retain(&uses);
    model.records.add_qp(qpc.uar_page, qpn);
    Ok(create_qp::Out {
        qpn,
        ..Default::default()
    })
}

fn owns_cq(model: &NicModel, uid: u16, cqn: u32) -> bool {
    let cq = model.objects.cqs.get(cqn);
    cq.is_some_and(|cq| may_name(uid, cq.uid))
}

pub(super) fn find(model: &NicModel, uid: u16, qpn: u32) -> Result<&Qp, Check> {
    let qp = model.objects.qps.get(qpn).ok_or(Check::QpNotFound)?;
    require(may_name(uid, qp.uid), Check::QpUid)?;
    Ok(qp)
}

pub(super) fn find_mut(model: &mut NicModel, uid: u16, qpn: u32) -> Result<&mut Qp, Check> {
    find(model, uid, qpn)?;
    model.objects.qps.get_mut(qpn).ok_or(Check::QpNotFound)
}

/// `sw_sq_wqebb_counter` is the producer as the NIC knows it: the doorbell's index in RTS (docs/hardware-facts.md), the doorbell
/// record's in ERR; `hw_sq_wqebb_counter` is the consumer.
pub(super) fn query(
    model: &mut NicModel,
    input: &Input<'_>,
    output: &mut [u8],
) -> Result<(), Check> {
    let request = parse!(input, query_qp)?;
    // The extension follows the answer.
    let len = if request.qpc_ext {
        query_qp::EXTENSION_OFFSET + query_qp::Extension::LEN
    } else {
        query_qp::Out::LEN
    };
    require(output.len() >= len, Check::OutputLength)?;
    let qp = find(model, input.request.uid, request.qpn)?;
    copy(&answer(qp).emit(), output);
    if request.qpc_ext {
        let error = qp.last_error.map(|error| query_qp::ErrorSyndrome {
            vendor_syndrome: error.vendor,
            syndrome: error.syndrome,
            ..query_qp::ErrorSyndrome::default()
        });
        let extension = query_qp::Extension {
            error_syndrome: error.unwrap_or_default(),
        };
        let room = output
            .get_mut(query_qp::EXTENSION_OFFSET..)
            .unwrap_or_default();
        copy(&extension.emit(), room);
    }
    Ok(())
}

fn answer(qp: &Qp) -> query_qp::Out {
    query_qp::Out {
        qpc: Qpc {
            state: qp.state,
            next_send_psn: qp.send_psn().get(),
            next_rcv_psn: qp.responder.expected.get(),
            last_acked_psn: qp.requester.oldest.get(),
            rmsn: qp.responder.msn,
            hw_rq_counter: qp
                .receives
                .as_ref()
                .map_or(0, |queue| queue.consumer as u32),
            sw_rq_counter: qp
                .receives
                .as_ref()
                .map_or(0, |queue| queue.producer as u32),
            hw_sq_wqebb_counter: qp.indices.consumer as u16,
            sw_sq_wqebb_counter: qp.indices.producer as u16,
            ..qp.context
        },
        ..Default::default()
    }
}

/// Allowed in every state (IBA 10.2): outstanding work is dropped without completion.
pub(super) fn destroy(
    model: &mut NicModel,
    uid: u16,
    request: destroy_qp::In,
) -> Result<destroy_qp::Out, Check> {
    find(model, uid, request.qpn)?;
    let qp = model
        .objects
        .qps
        .remove(request.qpn)
        .map_err(|_| Check::QpNotFound)?;
    model.objects.release(&qp.uses);
    model.records.remove_qp(qp.context.uar_page, request.qpn);
    model.forget(request.qpn);
    Ok(destroy_qp::Out::default())
}
