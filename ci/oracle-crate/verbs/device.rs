//! The device, and how queues are made.

use std::ffi::{c_int, c_void};
use std::io;
use std::ptr::{NonNull, null_mut};

use super::cq::Cq;
use super::qp::Qp;
use super::receive::{Srq, shown};
use crate::ffi::*;
use crate::memory::Memory;
use crate::request::{MOST_INLINE, MOST_POINTERS};

pub(super) fn made<T>(what: &str, pointer: *mut T) -> NonNull<T> {
    NonNull::new(pointer).unwrap_or_else(|| panic!("{what}: {}", io::Error::last_os_error()))
}

/// An opened device, and a PD.
pub struct Device {
    context: NonNull<ibv_context>,
    pd: NonNull<ibv_pd>,
}

/// Queues that are to be made.
#[derive(Clone, Copy, Debug)]
pub struct Caps {
    pub send: u32,
    pub receive: u32,
    pub pointers: u32,
    pub receive_pointers: u32,
    pub inline: u32,
}

impl Default for Caps {
    fn default() -> Self {
        Self {
            send: 64,
            receive: 64,
            pointers: MOST_POINTERS,
            receive_pointers: 1,
            inline: MOST_INLINE,
        }
    }
}

impl Device {
    /// Opens the first device.
    pub fn open() -> Self {
        let mut count: c_int = 0;
        // SAFETY: it fills a number and returns a list, or null.
        let list = made("ibv_get_device_list", unsafe {
            ibv_get_device_list(&raw mut count)
        });
        assert!(count > 0, "no device");
        // SAFETY: the list has a first device.
        let device = unsafe { *list.as_ptr() };
        // SAFETY: a device of a list that is not freed.
        assert!(unsafe { mlx5dv_is_supported(device) }, "not mlx5");
        let mut wanted = mlx5dv_context_attr {
            flags: MLX5DV_CONTEXT_FLAGS_DEVX,
            comp_mask: 0,
        };
        // SAFETY: as above, and attributes that it reads.
        let context = made("open", unsafe {
            mlx5dv_open_device(device, &raw mut wanted)
        });
        // SAFETY: an open context.
        let pd = made("ibv_alloc_pd", unsafe { ibv_alloc_pd(context.as_ptr()) });
        Self { context, pd }
    }

    /// A CQ; `extended` has all fields that libmlx5 reads of RC completions.
    pub fn cq(&self, entries: u32, extended: bool) -> Cq {
        let raw = if extended {
            let mut wanted = ibv_cq_init_attr_ex {
                cqe: entries - 1,
                wc_flags: u64::from(
                    IBV_WC_EX_WITH_BYTE_LEN
                        | IBV_WC_EX_WITH_IMM
                        | IBV_WC_EX_WITH_QP_NUM
                        | IBV_WC_EX_WITH_SRC_QP
                        | IBV_WC_EX_WITH_SLID
                        | IBV_WC_EX_WITH_SL
                        | IBV_WC_EX_WITH_DLID_PATH_BITS
                        | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
                ),
                ..ibv_cq_init_attr_ex::default()
            };
            // SAFETY: an open context, and attributes that it reads.
            let cq = unsafe { ibv_create_cq_ex(self.context.as_ptr(), &raw mut wanted) };
            made("ibv_create_cq_ex", cq).cast::<ibv_cq>()
        } else {
            // SAFETY: an open context; no channel.
            let cq = unsafe {
                ibv_create_cq(
                    self.context.as_ptr(),
                    entries as c_int - 1,
                    null_mut(),
                    null_mut(),
                    0,
                )
            };
            made("ibv_create_cq", cq)
        };
        let mut out = mlx5dv_cq::default();
        let mut object = mlx5dv_obj::default();
        object.cq.in_ = raw.as_ptr();
        object.cq.out = &raw mut out;
        // SAFETY: a CQ of libmlx5, and room for what it says.
        let failed = unsafe { mlx5dv_init_obj(&raw mut object, MLX5DV_OBJ_CQ.into()) };
        assert_eq!(failed, 0);
        assert_eq!((out.cqe_cnt, out.cqe_size), (entries, 64));
        Cq {
            raw,
            extended,
            number: out.cqn,
            entries,
            // SAFETY: what libmlx5 says of a CQ that is never destroyed before the value.
            ring: unsafe { Memory::new(out.buf.cast(), entries as usize * 64) },
            // SAFETY: as above: two words.
            record: unsafe { Memory::new(out.dbrec.cast(), 8) },
            // SAFETY: as above: a doorbell page.
            page: unsafe { Memory::new(out.cq_uar.cast(), 4096) },
        }
    }

    fn qp_of(&self, send: &Cq, receive: &Cq, caps: Caps, srq: Option<&Srq>, raw_wqes: bool) -> Qp {
        let mut wanted = ibv_qp_init_attr_ex {
            send_cq: send.raw.as_ptr(),
            recv_cq: receive.raw.as_ptr(),
            srq: srq.map_or(null_mut(), |srq| srq.raw.as_ptr()),
            cap: ibv_qp_cap {
                max_send_wr: caps.send,
                max_recv_wr: if srq.is_some() { 0 } else { caps.receive },
                max_send_sge: caps.pointers,
                max_recv_sge: if srq.is_some() {
                    0
                } else {
                    caps.receive_pointers
                },
                max_inline_data: caps.inline,
            },
            qp_type: IBV_QPT_RC,
            comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            pd: self.pd.as_ptr(),
            send_ops_flags: u64::from(
                IBV_QP_EX_WITH_RDMA_WRITE
                    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
                    | IBV_QP_EX_WITH_SEND
                    | IBV_QP_EX_WITH_SEND_WITH_IMM
                    | IBV_QP_EX_WITH_RDMA_READ
                    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
                    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
                    | IBV_QP_EX_WITH_SEND_WITH_INV,
            ),
            ..ibv_qp_init_attr_ex::default()
        };
        let context = self.context.as_ptr();
        let raw = if raw_wqes {
            let mut more = mlx5dv_qp_init_attr {
                comp_mask: u64::from(MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS),
                send_ops_flags: u64::from(MLX5DV_QP_EX_WITH_RAW_WQE),
                ..mlx5dv_qp_init_attr::default()
            };
            // SAFETY: an open context, and attributes that it reads.
            unsafe { mlx5dv_create_qp(context, &raw mut wanted, &raw mut more) }
        } else {
            // SAFETY: as above.
            unsafe { ibv_create_qp_ex(context, &raw mut wanted) }
        };
        Qp::new(made("create_qp", raw))
    }

    /// An RC QP whose work can be posted by `ibv_post_send` and by `ibv_wr_*`.
    pub fn qp(&self, send: &Cq, receive: &Cq, caps: Caps, srq: Option<&Srq>) -> Qp {
        self.qp_of(send, receive, caps, srq, false)
    }

    /// An RC QP that takes WQEs as they are.
    pub fn raw_qp(&self, cq: &Cq, caps: Caps) -> Qp {
        self.qp_of(cq, cq, caps, None, true)
    }

    pub fn srq(&self, receives: u32, pointers: u32) -> Srq {
        let mut wanted = ibv_srq_init_attr {
            attr: ibv_srq_attr {
                max_wr: receives,
                max_sge: pointers,
                srq_limit: 0,
            },
            ..ibv_srq_init_attr::default()
        };
        // SAFETY: a PD, and attributes that it reads.
        let raw = made("ibv_create_srq", unsafe {
            ibv_create_srq(self.pd.as_ptr(), &raw mut wanted)
        });
        let out = shown(raw);
        let entries = (receives + 1).next_power_of_two();
        Srq {
            raw,
            entries,
            stride: out.stride as usize,
            // SAFETY: what libmlx5 says of an SRQ that is never destroyed before the value.
            ring: unsafe { Memory::new(out.buf.cast(), (entries * out.stride) as usize) },
            // SAFETY: as above.
            record: unsafe { Memory::new(out.dbrec.cast(), 4) },
        }
    }

    /// Registers memory that lives for ever, with all rights. Its local and its remote key.
    pub fn register(&self, memory: &Memory) -> (u32, u32) {
        let rights = IBV_ACCESS_LOCAL_WRITE
            | IBV_ACCESS_REMOTE_WRITE
            | IBV_ACCESS_REMOTE_READ
            | IBV_ACCESS_REMOTE_ATOMIC;
        let at = memory.addr() as *mut c_void;
        // SAFETY: a PD, and memory that stays.
        let mr = made("ibv_reg_mr", unsafe {
            ibv_reg_mr_iova2(self.pd.as_ptr(), at, memory.len(), memory.addr(), rights)
        });
        // SAFETY: it lives.
        let mr = unsafe { mr.as_ref() };
        (mr.lkey, mr.rkey)
    }

    /// As [`Self::register`], until the value is dropped.
    pub fn register_temporarily(&self, memory: &Memory) -> Region {
        let at = memory.addr() as *mut c_void;
        let rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        // SAFETY: a PD, and memory that stays.
        Region(made("ibv_reg_mr", unsafe {
            ibv_reg_mr_iova2(self.pd.as_ptr(), at, 4096, memory.addr(), rights)
        }))
    }

    /// A GID of port 1.
    pub fn gid(&self, index: u8) -> [u8; 16] {
        let mut gid = ibv_gid::default();
        // SAFETY: an open context, and room for a GID.
        let failed = unsafe { ibv_query_gid(self.context.as_ptr(), 1, index.into(), &raw mut gid) };
        assert_eq!(failed, 0);
        // SAFETY: all values of the union are bytes.
        unsafe { gid.raw }
    }
}

/// A registration.
pub struct Region(NonNull<ibv_mr>);

impl Region {
    pub fn rkey(&self) -> u32 {
        // SAFETY: it lives.
        unsafe { self.0.as_ref() }.rkey
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: a registration, once.
        assert_eq!(unsafe { ibv_dereg_mr(self.0.as_ptr()) }, 0, "ibv_dereg_mr");
    }
}
