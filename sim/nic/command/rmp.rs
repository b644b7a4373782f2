//! CREATE_RMP, MODIFY_RMP, QUERY_RMP, DESTROY_RMP.

use warpverbs_wire::prm::rmpc::{RmpState, Rmpc, Wq, WqType};
use warpverbs_wire::prm::{create_rmp, destroy_rmp, modify_rmp, query_rmp};

use super::{has_pd, may_name, named_umem, require};
use crate::model::NicModel;
use crate::objects::{ObjectId, ObjectKind};
use crate::qp::DBR_BYTES;
use crate::receive::{ReceiveQueue, Shape};
use crate::rmp::Rmp;
use crate::syndrome::Check;

/// log2 of the smallest and the largest receive WQE in bytes.
const LOG_STRIDES: std::ops::RangeInclusive<u8> = 4..=11;

pub(super) fn create(
    model: &mut NicModel,
    uid: u16,
    request: create_rmp::In,
) -> Result<create_rmp::Out, Check> {
    let context = request.context;
    let wq = context.wq;
    require(context.state == RmpState::Ready, Check::RmpState)?;
    let shape = match wq.wq_type {
        WqType::LinkedList => Shape::List(0),
        WqType::Cyclic => Shape::Ring(!context.basic_cyclic_rcv_wqe),
        _ => return Err(Check::RmpType),
    };
    require(
        wq.log_wq_sz <= model.config().log_max_sq_depth()
            && LOG_STRIDES.contains(&wq.log_wq_stride),
        Check::RmpSize,
    )?;
    require(has_pd(model, uid, wq.pd), Check::RmpPd)?;
    require(wq.wq_umem_valid && wq.dbr_umem_valid, Check::RmpNoUmem)?;
    let umem = named_umem(model, uid, wq.wq_umem_id).ok_or(Check::RmpUmem)?;
    let dbr_umem = named_umem(model, uid, wq.dbr_umem_id).ok_or(Check::RmpUmem)?;
    require(
        umem.is_queue_offset(wq.wq_umem_offset),
        Check::RmpUmemOffset,
    )?;
    let ring = umem
        .at(wq.wq_umem_offset, 1 << (wq.log_wq_sz + wq.log_wq_stride))
        .ok_or(Check::RmpUmemBounds)?;
    let dbr = dbr_umem
        .at(wq.dbr_addr, DBR_BYTES)
        .filter(|dbr| dbr % DBR_BYTES == 0)
        .ok_or(Check::RmpDbr)?;
    let first = model.config().first_index;
    let uses = vec![
        ObjectId::new(ObjectKind::Pd, wq.pd),
        ObjectId::new(ObjectKind::Umem, wq.wq_umem_id),
        ObjectId::new(ObjectKind::Umem, wq.dbr_umem_id),
    ];
    let rmp = Rmp {
        uid,
        context,
        queue: ReceiveQueue {
            shape,
            pd: wq.pd,
            ring,
            dbr,
            stride: 1 << wq.log_wq_stride,
            depth: 1 << wq.log_wq_sz,
            consumer: first,
            producer: first,
            dbr_due: false,
        },
        limit: wq.lwm,
        uses: uses.clone(),
    };
    let rmpn = model
        .objects
        .rmps
        .insert(|_| rmp)
        .map_err(|_| Check::RmpExhausted)?;
    model.objects.retain(&uses);
    Ok(create_rmp::Out {
        rmpn,
        ..Default::default()
    })
}

fn find(model: &NicModel, uid: u16, rmpn: u32) -> Result<&Rmp, Check> {
    let rmp = model.objects.rmps.get(rmpn).ok_or(Check::RmpNotFound)?;
    require(may_name(uid, rmp.uid), Check::RmpUid)?;
    Ok(rmp)
}

/// Sets the limit and arms its event; the state stays as it is.
pub(super) fn modify(
    model: &mut NicModel,
    uid: u16,
    request: modify_rmp::In,
) -> Result<modify_rmp::Out, Check> {
    find(model, uid, request.rmpn)?;
    require(
        request.rmp_state == RmpState::Ready && request.context.state == RmpState::Ready,
        Check::RmpState,
    )?;
    if request.set_limit
        && let Some(rmp) = model.objects.rmps.get_mut(request.rmpn)
    {
        rmp.limit = request.context.wq.lwm;
    }
    Ok(modify_rmp::Out::default())
}

pub(super) fn query(
    model: &mut NicModel,
    uid: u16,
    request: query_rmp::In,
) -> Result<query_rmp::Out, Check> {
    let rmp = find(model, uid, request.rmpn)?;
    Ok(query_rmp::Out {
        context: Rmpc {
            wq: Wq {
                lwm: rmp.limit,
                hw_counter: rmp.queue.consumer as u32,
                sw_counter: rmp.queue.producer as u32,
                ..rmp.context.wq
            },
            ..rmp.context
        },
        ..Default::default()
    })
}

pub(super) fn destroy(
    model: &mut NicModel,
    uid: u16,
    request: destroy_rmp::In,
) -> Result<destroy_rmp::Out, Check> {
    find(model, uid, request.rmpn)?;
    let rmp = model
        .objects
        .rmps
        .remove(request.rmpn)
        .map_err(|_| Check::RmpBusy)?;
    model.objects.release(&rmp.uses);
    Ok(destroy_rmp::Out::default())
}
