//! What `mlx5dv.h` itself writes into segments and reads in CQEs.

use crate::ffi::*;
use crate::request::Pointer;

/// The header's own writers of segments.
pub fn header_control(fields: &warpverbs_wire::wqe::Control) -> [u8; 16] {
    let mut segment = mlx5_wqe_ctrl_seg::default();
    // SAFETY: it writes a segment.
    unsafe {
        mlx5dv_set_ctrl_seg(
            &raw mut segment,
            fields.index,
            fields.opcode.code(),
            fields.opmod,
            fields.qpn,
            fields.flags,
            fields.ds,
            fields.signature,
            // Which it stores as it is.
            fields.immediate.to_be(),
        );
    }
    // SAFETY: both are 16 bytes without padding.
    unsafe { std::mem::transmute(segment) }
}

/// As [`header_control`].
pub fn header_data(pointer: Pointer) -> [u8; 16] {
    let mut segment = mlx5_wqe_data_seg::default();
    // SAFETY: it writes a segment.
    unsafe {
        mlx5dv_set_data_seg(
            &raw mut segment,
            pointer.len,
            pointer.key,
            pointer.addr as usize,
        )
    };
    // SAFETY: both are 16 bytes without padding.
    unsafe { std::mem::transmute(segment) }
}

/// Opcode, format, solicited event and owner, by the header's own readers.
pub fn header_cqe(bytes: &[u8]) -> (u8, u8, u8, u8) {
    let bytes: [u8; 64] = bytes.try_into().expect("64 bytes");
    // SAFETY: both are 64 bytes, and all values are valid.
    let mut cqe: mlx5_cqe64 = unsafe { std::mem::transmute(bytes) };
    let cqe = &raw mut cqe;
    // SAFETY: they read a CQE.
    unsafe {
        (
            mlx5dv_get_cqe_opcode(cqe),
            mlx5dv_get_cqe_format(cqe),
            mlx5dv_get_cqe_se(cqe),
            mlx5dv_get_cqe_owner(cqe),
        )
    }
}

/// A GID's bytes.
pub fn bytes_of(gid: ibv_gid) -> [u8; 16] {
    // SAFETY: all values of the union are bytes.
    unsafe { gid.raw }
}
