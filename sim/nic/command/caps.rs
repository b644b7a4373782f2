//! QUERY_HCA_CAP and QUERY_SPECIAL_CONTEXTS.

use warpverbs_wire::prm::header::Reply;
use warpverbs_wire::prm::query_hca_cap::{CAPABILITY_OFFSET, CapSet, In, OUT_LEN};
use warpverbs_wire::prm::{Status, query_special_contexts};

use super::{Input, copy, require};
use crate::keys::{DUMP_FILL_MKEY, NULL_MKEY, RESERVED_LKEY};
use crate::model::NicModel;
use crate::syndrome::Check;

/// The largest values and those in effect are the same on this NIC, so bit 0 of `op_mod` makes no difference.
pub(super) fn query_hca_cap(
    model: &NicModel,
    input: &Input<'_>,
    output: &mut [u8],
) -> Result<(), Check> {
    let request = In::parse(input.bytes).map_err(|_| Check::InputLength)?;
    require(output.len() >= OUT_LEN, Check::OutputLength)?;
    require(
        In::reserved_nonzero(input.bytes).is_none(),
        Check::ReservedBits,
    )?;
    require(
        !request.other_function && request.function_id == 0,
        Check::CapOtherFunction,
    )?;
    let config = model.config();
    let set = output
        .get_mut(CAPABILITY_OFFSET..)
        .ok_or(Check::OutputLength)?;
    match CapSet::from_op_mod(input.request.op_mod).0 {
        CapSet::General => copy(&config.general_caps().emit(), set),
        CapSet::General2 => copy(&config.general_caps_2().emit(), set),
        CapSet::Roce => copy(&config.roce_caps().emit(), set),
        CapSet::Atomic => copy(&config.atomic_caps().emit(), set),
        CapSet::Unknown(_) => return Err(Check::CapSet),
    }
    let reply = Reply {
        status: Status::Ok,
        syndrome: 0,
    };
    copy(&reply.emit(), output);
    Ok(())
}

pub(super) fn special_contexts(
    _: &mut NicModel,
    _uid: u16,
    _: query_special_contexts::In,
) -> Result<query_special_contexts::Out, Check> {
    Ok(query_special_contexts::Out {
        dump_fill_mkey: DUMP_FILL_MKEY,
        resd_lkey: RESERVED_LKEY,
        null_mkey: NULL_MKEY,
        ..Default::default()
    })
}
