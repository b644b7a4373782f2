//! Receives, of a QP and of a shared receive queue.

use std::ffi::c_int;
use std::ptr::{NonNull, null_mut};

use crate::ffi::*;
use crate::memory::Memory;
use crate::request::Pointer;

/// A shared receive queue.
pub struct Srq {
    pub(super) raw: NonNull<ibv_srq>,
    pub entries: u32,
    pub stride: usize,
    pub ring: Memory,
    pub record: Memory,
}

/// What libmlx5 says of a shared receive queue.
pub(super) fn shown(raw: NonNull<ibv_srq>) -> mlx5dv_srq {
    let mut out = mlx5dv_srq::default();
    let mut object = mlx5dv_obj::default();
    object.srq.in_ = raw.as_ptr();
    object.srq.out = &raw mut out;
    // SAFETY: an SRQ of libmlx5, and room for what it says.
    let failed = unsafe { mlx5dv_init_obj(&raw mut object, MLX5DV_OBJ_SRQ.into()) };
    assert_eq!(failed, 0);
    out
}

impl Srq {
    /// The WQE that it gives out next.
    pub fn head(&self) -> u16 {
        shown(self.raw).head as u16
    }

    pub fn post(&self, receives: &[(u64, Vec<Pointer>)]) {
        post_receives(receives, |first| {
            let mut bad = null_mut();
            // SAFETY: an SRQ, and a list of requests that ends.
            unsafe { ibv_post_srq_recv(self.raw.as_ptr(), first, &raw mut bad) }
        });
    }
}

pub(super) fn post_receives(
    receives: &[(u64, Vec<Pointer>)],
    post: impl FnOnce(*mut ibv_recv_wr) -> c_int,
) {
    let mut lists: Vec<Vec<ibv_sge>> = receives
        .iter()
        .map(|(_, pointers)| sges(pointers))
        .collect();
    let mut requests: Vec<ibv_recv_wr> = receives
        .iter()
        .zip(&mut lists)
        .map(|((id, _), list)| ibv_recv_wr {
            wr_id: *id,
            next: null_mut(),
            sg_list: list.as_mut_ptr(),
            num_sge: list.len() as c_int,
        })
        .collect();
    let first = requests.as_mut_ptr();
    for (at, request) in requests.iter_mut().enumerate() {
        if at + 1 < receives.len() {
            request.next = first.wrapping_add(at + 1);
        }
    }
    assert_eq!(post(first), 0, "a receive is refused");
}

pub(super) fn sges(pointers: &[Pointer]) -> Vec<ibv_sge> {
    pointers
        .iter()
        .map(|pointer| ibv_sge {
            addr: pointer.addr,
            length: pointer.len,
            lkey: pointer.key,
        })
        .collect()
}
