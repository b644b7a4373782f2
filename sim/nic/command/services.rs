//! ALLOC_PD, ALLOC_TRANSPORT_DOMAIN, ALLOC_UAR, ALLOC_Q_COUNTER, and what undoes and reads them.

use warpverbs_wire::prm::{
    alloc_pd, alloc_q_counter, alloc_transport_domain, alloc_uar, dealloc_pd, dealloc_q_counter,
    dealloc_transport_domain, dealloc_uar, query_q_counter,
};

use super::{may_name, require};
use crate::counters::CounterSet;
use crate::model::NicModel;
use crate::syndrome::Check;
use crate::uar::UarKind;

pub(super) fn alloc_pd(
    model: &mut NicModel,
    uid: u16,
    _: alloc_pd::In,
) -> Result<alloc_pd::Out, Check> {
    let pd = model.objects.pds.insert(|_| uid);
    Ok(alloc_pd::Out {
        pd: pd.map_err(|_| Check::PdExhausted)?,
        ..Default::default()
    })
}

pub(super) fn dealloc_pd(
    model: &mut NicModel,
    uid: u16,
    request: dealloc_pd::In,
) -> Result<dealloc_pd::Out, Check> {
    let owner = model.objects.pds.get(request.pd);
    require(
        may_name(uid, *owner.ok_or(Check::PdNotFound)?),
        Check::PdUid,
    )?;
    let removed = model.objects.pds.remove(request.pd);
    removed.map_err(|_| Check::PdBusy)?;
    Ok(dealloc_pd::Out::default())
}

pub(super) fn alloc_transport_domain(
    model: &mut NicModel,
    uid: u16,
    _: alloc_transport_domain::In,
) -> Result<alloc_transport_domain::Out, Check> {
    let domain = model.objects.transport_domains.insert(|_| uid);
    Ok(alloc_transport_domain::Out {
        transport_domain: domain.map_err(|_| Check::TdExhausted)?,
        ..Default::default()
    })
}

pub(super) fn dealloc_transport_domain(
    model: &mut NicModel,
    uid: u16,
    request: dealloc_transport_domain::In,
) -> Result<dealloc_transport_domain::Out, Check> {
    let domains = &mut model.objects.transport_domains;
    let owner = domains.get(request.transport_domain);
    require(
        may_name(uid, *owner.ok_or(Check::TdNotFound)?),
        Check::TdUid,
    )?;
    // Nothing that this NIC has uses one.
    let removed = domains.remove(request.transport_domain);
    removed.map_err(|_| Check::TdNotFound)?;
    Ok(dealloc_transport_domain::Out::default())
}

pub(super) fn alloc_uar(
    model: &mut NicModel,
    uid: u16,
    _: alloc_uar::In,
) -> Result<alloc_uar::Out, Check> {
    let page = model.alloc_uar_of(uid, UarKind::NonCached);
    Ok(alloc_uar::Out {
        uar: page.map_err(|_| Check::UarExhausted)?,
        ..Default::default()
    })
}

pub(super) fn dealloc_uar(
    model: &mut NicModel,
    uid: u16,
    request: dealloc_uar::In,
) -> Result<dealloc_uar::Out, Check> {
    let owner = model.objects.uars.get(request.uar);
    require(
        may_name(uid, owner.ok_or(Check::UarNotFound)?.uid),
        Check::UarUid,
    )?;
    model.free_uar(request.uar).map_err(|_| Check::UarBusy)?;
    Ok(dealloc_uar::Out::default())
}

pub(super) fn alloc_q_counter(
    model: &mut NicModel,
    uid: u16,
    _: alloc_q_counter::In,
) -> Result<alloc_q_counter::Out, Check> {
    let set = model.objects.counters.insert(|_| CounterSet {
        uid,
        values: Default::default(),
    });
    // The table ends where 8 bits do.
    let set = set.ok().and_then(|set| u8::try_from(set).ok());
    Ok(alloc_q_counter::Out {
        counter_set_id: set.ok_or(Check::CounterExhausted)?,
        ..Default::default()
    })
}

fn find_set(model: &mut NicModel, uid: u16, set: u8) -> Result<&mut CounterSet, Check> {
    let set = model.objects.counters.get_mut(set.into());
    let set = set.ok_or(Check::CounterNotFound)?;
    require(may_name(uid, set.uid), Check::CounterUid)?;
    Ok(set)
}

pub(super) fn dealloc_q_counter(
    model: &mut NicModel,
    uid: u16,
    request: dealloc_q_counter::In,
) -> Result<dealloc_q_counter::Out, Check> {
    find_set(model, uid, request.counter_set_id)?;
    let removed = model.objects.counters.remove(request.counter_set_id.into());
    removed.map_err(|_| Check::CounterBusy)?;
    Ok(dealloc_q_counter::Out::default())
}

pub(super) fn query_q_counter(
    model: &mut NicModel,
    uid: u16,
    request: query_q_counter::In,
) -> Result<query_q_counter::Out, Check> {
    let own = !request.other_vport && request.vport_number == 0;
    require(own && !request.aggregate, Check::CounterVport)?;
    let set = find_set(model, uid, request.counter_set_id)?;
    let values = set.values;
    if request.clear {
        set.values = Default::default();
    }
    Ok(values)
}
