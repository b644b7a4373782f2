//! Work requests in the form of `ibv_post_send`.

use std::ffi::c_int;

use super::receive::sges;
use crate::ffi::*;
use crate::request::{Kind, Payload, Request};

pub(super) fn sges_of(data: &Payload) -> Vec<ibv_sge> {
    match data {
        Payload::Pointers(pointers) => sges(pointers),
        Payload::Inline(parts) => parts
            .iter()
            .map(|part| ibv_sge {
                addr: part.as_ptr() as u64,
                length: part.len() as u32,
                lkey: 0,
            })
            .collect(),
    }
}

pub(super) fn send_flags(request: &Request) -> u32 {
    let flag = |set, flag| if set { flag } else { 0 };
    flag(request.signalled, IBV_SEND_SIGNALED)
        | flag(request.solicited, IBV_SEND_SOLICITED)
        | flag(request.fence, IBV_SEND_FENCE)
}

pub(super) fn work_request(request: &Request, list: &mut [ibv_sge]) -> ibv_send_wr {
    let inline = matches!(request.data, Payload::Inline(_));
    let mut wr = ibv_send_wr {
        wr_id: request.id,
        sg_list: list.as_mut_ptr(),
        num_sge: list.len() as c_int,
        opcode: match request.kind {
            Kind::Write => IBV_WR_RDMA_WRITE,
            Kind::WriteImmediate => IBV_WR_RDMA_WRITE_WITH_IMM,
            Kind::Read => IBV_WR_RDMA_READ,
            Kind::Send => IBV_WR_SEND,
            Kind::SendImmediate => IBV_WR_SEND_WITH_IMM,
            Kind::SendInvalidate => IBV_WR_SEND_WITH_INV,
            Kind::CompareSwap => IBV_WR_ATOMIC_CMP_AND_SWP,
            Kind::FetchAdd => IBV_WR_ATOMIC_FETCH_AND_ADD,
        },
        send_flags: send_flags(request) | if inline { IBV_SEND_INLINE } else { 0 },
        ..ibv_send_wr::default()
    };
    match request.kind {
        Kind::WriteImmediate | Kind::SendImmediate => {
            wr.__bindgen_anon_1.imm_data = request.immediate.to_be();
        }
        Kind::SendInvalidate => wr.__bindgen_anon_1.invalidate_rkey = request.immediate,
        _ => {}
    }
    let (address, key) = request.remote;
    if request.kind.is_atomic() {
        let (operand, compare) = request.operands;
        wr.wr.atomic.remote_addr = address;
        wr.wr.atomic.rkey = key;
        (wr.wr.atomic.compare_add, wr.wr.atomic.swap) = match request.kind {
            Kind::CompareSwap => (compare, operand),
            _ => (operand, 0),
        };
    } else if request.kind.opcode().has_remote() {
        wr.wr.rdma.remote_addr = address;
        wr.wr.rdma.rkey = key;
    }
    wr
}
