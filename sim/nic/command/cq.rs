//! CREATE_CQ, QUERY_CQ, DESTROY_CQ.

use warpverbs_wire::prm::cqc::{CqStatus, Cqc, CqeSize};
use warpverbs_wire::prm::{create_cq, destroy_cq, query_cq};

use super::{has_uar, may_name, named_umem, require};
use crate::config::NicConfig;
use crate::cq::{CQE_BYTES, Cq};
use crate::model::NicModel;
use crate::objects::{ObjectId, ObjectKind};
use crate::qp::DBR_BYTES;
use crate::syndrome::Check;

pub(super) fn create(
    model: &mut NicModel,
    uid: u16,
    request: create_cq::In,
) -> Result<create_cq::Out, Check> {
    let cqc = request.cq_context;
    require(!cqc.cqe_comp_en, Check::CqCompression)?;
    require(cqc.cqe_sz == CqeSize::Bytes64, Check::CqCqeSize)?;
    require(
        cqc.log_cq_size <= model.config().log_max_cq_depth(),
        Check::CqSize,
    )?;
    require(
        cqc.cq_period == 0 && cqc.cq_max_count == 0,
        Check::CqModeration,
    )?;
    require(has_uar(model, uid, cqc.uar_page), Check::CqUar)?;
    require(NicConfig::is_event_queue(cqc.c_eqn), Check::CqEqn)?;
    // With a UMEM the page size is the UMEM's and log_page_size is ignored (DOCA doca_verbs_cq.cpp says so).
    require(cqc.page_offset == 0, Check::CqPageOffset)?;
    require(request.cq_umem_valid, Check::CqNoUmem)?;
    let umem = named_umem(model, uid, request.cq_umem_id).ok_or(Check::CqUmem)?;
    require(umem.is_writable(), Check::CqUmemAccess)?;
    require(
        umem.is_queue_offset(request.cq_umem_offset),
        Check::CqUmemOffset,
    )?;
    let ring = umem
        .at(request.cq_umem_offset, CQE_BYTES << cqc.log_cq_size)
        .ok_or(Check::CqUmemBounds)?;
    require(cqc.dbr_umem_valid, Check::CqNoDbrUmem)?;
    let dbr_umem = named_umem(model, uid, cqc.dbr_umem_id).ok_or(Check::CqDbrUmem)?;
    let dbr = dbr_umem
        .at(cqc.dbr_addr, DBR_BYTES)
        .ok_or(Check::CqDbrBounds)?;
    require(dbr % DBR_BYTES == 0, Check::CqDbrAlign)?;
    let uses = vec![
        ObjectId::new(ObjectKind::Uar, cqc.uar_page),
        ObjectId::new(ObjectKind::Umem, request.cq_umem_id),
        ObjectId::new(ObjectKind::Umem, cqc.dbr_umem_id),
    ];
    let first = model.config().first_index;
    let cq = Cq::new(uid, cqc, ring, dbr, uses.clone(), first);
    let cqn = model
        .objects
        .cqs
        .insert(|_| cq)
        .map_err(|_| Check::CqExhausted)?;
    model.objects.retain(&uses);
    model.records.add_cq(cqc.uar_page, cqn);
    Ok(create_cq::Out {
        cqn,
        ..Default::default()
    })
}

fn find(model: &NicModel, uid: u16, cqn: u32) -> Result<&Cq, Check> {
    let cq = model.objects.cqs.get(cqn).ok_or(Check::CqNotFound)?;
    require(may_name(uid, cq.uid), Check::CqUid)?;
    Ok(cq)
}

pub(super) fn query(
    model: &mut NicModel,
    uid: u16,
    request: query_cq::In,
) -> Result<query_cq::Out, Check> {
    let cq = find(model, uid, request.cqn)?;
    Ok(query_cq::Out {
        cq_context: Cqc {
            status: cq.failed.unwrap_or(CqStatus::Ok),
            consumer_counter: (cq.consumer & 0xff_ffff) as u32,
            producer_counter: (cq.producer & 0xff_ffff) as u32,
            ..cq.context
        },
        ..Default::default()
    })
}

pub(super) fn destroy(
    model: &mut NicModel,
    uid: u16,
    request: destroy_cq::In,
) -> Result<destroy_cq::Out, Check> {
    find(model, uid, request.cqn)?;
    let mut cq = model
        .objects
        .cqs
        .remove(request.cqn)
        .map_err(|_| Check::CqBusy)?;
    model.objects.release(&cq.uses);
    model.records.remove_cq(cq.context.uar_page, request.cqn);
    // What waits for it finds that it is gone.
    for qpn in cq.take_waiting() {
        model.release_wait(qpn);
    }
    Ok(destroy_cq::Out::default())
}
