//! CREATE_MKEY and DESTROY_MKEY.

use warpverbs_wire::prm::mkc::MkeyAccessMode;
use warpverbs_wire::prm::{create_mkey, destroy_mkey};

use super::{has_pd, may_name, named_umem, require};
use crate::keys::{MKey, Rights};
use crate::model::NicModel;
use crate::objects::{ObjectId, ObjectKind};
use crate::syndrome::Check;
use crate::umem::DmaRange;

/// `mkc.qpn` of a key that any QP may use.
const ANY_QP: u32 = 0xff_ffff;

pub(super) fn create(
    model: &mut NicModel,
    uid: u16,
    request: create_mkey::In,
) -> Result<create_mkey::Out, Check> {
    let mkc = request.mkey_context;
    require(!request.data_direct && !request.pg_access, Check::MkeyFlags)?;
    require(!mkc.free && !mkc.umr_en, Check::MkeyUmr)?;
    require(
        mkc.access_mode == MkeyAccessMode::Mtt && mkc.access_mode_4_2 == 0,
        Check::MkeyMode,
    )?;
    require(mkc.qpn == ANY_QP, Check::MkeyQpn)?;
    require(mkc.len != 0 && !mkc.length64, Check::MkeyLength)?;
    require(
        mkc.start_addr.checked_add(mkc.len).is_some(),
        Check::MkeyAddress,
    )?;
    require(mkc.lw || !(mkc.rw || mkc.a), Check::MkeyRights)?;
    require(has_pd(model, uid, mkc.pd), Check::MkeyPd)?;
    require(request.mkey_umem_valid, Check::MkeyNoUmem)?;
    let umem = named_umem(model, uid, request.mkey_umem_id).ok_or(Check::MkeyUmem)?;
    require(umem.is_writable() || !mkc.lw, Check::MkeyUmemAccess)?;
    let bus_addr = umem
        .at(request.mkey_umem_offset, mkc.len)
        .ok_or(Check::MkeyBounds)?;
    let uses = vec![
        ObjectId::new(ObjectKind::Pd, mkc.pd),
        ObjectId::new(ObjectKind::Umem, request.mkey_umem_id),
    ];
    let key = MKey {
        uid,
        variant: mkc.mkey_7_0,
        pd: mkc.pd,
        range: DmaRange {
            bus_addr,
            len: mkc.len,
            iova: mkc.start_addr,
        },
        rights: Rights {
            local_read: mkc.lr,
            local_write: mkc.lw,
            remote_read: mkc.rr,
            remote_write: mkc.rw,
            remote_atomic: mkc.a,
            relaxed_ordering: mkc.relaxed_ordering_write,
        },
        invalidated: false,
        uses: uses.clone(),
    };
    let mkey_index = model
        .objects
        .mkeys
        .insert(|_| key)
        .map_err(|_| Check::MkeyExhausted)?;
    model.objects.retain(&uses);
    Ok(create_mkey::Out {
        mkey_index,
        ..Default::default()
    })
}

/// Not refused for work in flight (docs/hardware-facts.md): a QP that uses the key later fails.
pub(super) fn destroy(
    model: &mut NicModel,
    uid: u16,
    request: destroy_mkey::In,
) -> Result<destroy_mkey::Out, Check> {
    let key = model
        .objects
        .mkeys
        .get(request.mkey_index)
        .ok_or(Check::MkeyNotFound)?;
    require(may_name(uid, key.uid), Check::MkeyUid)?;
    let key = model
        .objects
        .mkeys
        .remove(request.mkey_index)
        .map_err(|_| Check::MkeyNotFound)?;
    model.objects.release(&key.uses);
    Ok(destroy_mkey::Out::default())
}
