//! A QP: posts, transitions, queries.

use std::ffi::{c_int, c_void};
use std::io;
use std::ptr::{NonNull, null_mut};

use super::peer::Peer;
use super::receive::{post_receives, sges};
use super::send::{send_flags, sges_of, work_request};
use crate::ffi::*;
use crate::memory::Memory;
use crate::request::{Kind, Payload, Pointer, Request};

/// A QP.
pub struct Qp {
    raw: NonNull<ibv_qp>,
    /// The number that the device gave it.
    pub number: u32,
    /// By which CQEs name it.
    pub user_index: u32,
    pub sq: Memory,
    pub rq: Memory,
    pub receive_stride: usize,
    pub record: Memory,
    /// The page's doorbell registers.
    pub registers: Memory,
    /// Where in the page the QP's own are.
    pub register: usize,
    /// Bytes of one BlueFlame buffer; there are two.
    pub blue_flame: usize,
}

impl Qp {
    pub(super) fn new(raw: NonNull<ibv_qp>) -> Self {
        let mut out = mlx5dv_qp::default();
        let mut object = mlx5dv_obj::default();
        object.qp.in_ = raw.as_ptr();
        object.qp.out = &raw mut out;
        // SAFETY: a QP of libmlx5, and room for what it says.
        let failed = unsafe { mlx5dv_init_obj(&raw mut object, MLX5DV_OBJ_QP.into()) };
        assert_eq!(failed, 0);
        let register = out.bf.reg as usize & 0xfff;
        // SAFETY: it lives.
        let number = unsafe { raw.as_ref() }.qp_num;
        let mut qp = Self {
            raw,
            number,
            user_index: 0,
            // SAFETY: what libmlx5 says of a QP that is not destroyed before the value.
            sq: unsafe {
                Memory::new(out.sq.buf.cast(), (out.sq.wqe_cnt * out.sq.stride) as usize)
            },
            // SAFETY: as above.
            rq: unsafe {
                Memory::new(out.rq.buf.cast(), (out.rq.wqe_cnt * out.rq.stride) as usize)
            },
            receive_stride: out.rq.stride as usize,
            // SAFETY: as above: two words.
            record: unsafe { Memory::new(out.dbrec.cast(), 8) },
            // SAFETY: as above: the page of the QP's registers.
            registers: unsafe { Memory::new(out.bf.reg.cast::<u8>().wrapping_sub(register), 4096) },
            register,
            blue_flame: out.bf.size as usize,
        };
        qp.user_index = qp.context().user_index;
        qp
    }

    /// The context as the firmware has it.
    pub fn context(&self) -> warpverbs_wire::prm::qpc::Qpc {
        use warpverbs_wire::prm::{Command, query_qp};
        let query = query_qp::In {
            qpn: self.number,
            ..query_qp::In::default()
        };
        let input = query.encode().expect("a number of 24 bits");
        let mut output = query_qp::In::reply();
        let (input, room): (&[u8], &mut [u8]) = (input.as_ref(), output.as_mut());
        // SAFETY: a QP, and buffers of these lengths.
        let failed = unsafe {
            mlx5dv_devx_qp_query(
                self.raw.as_ptr(),
                input.as_ptr().cast(),
                input.len(),
                room.as_mut_ptr().cast(),
                room.len(),
            )
        };
        assert_eq!(failed, 0, "QUERY_QP");
        query_qp::In::decode(output.as_ref())
            .expect("an answer")
            .qpc
    }

    /// Takes the QP from RESET to RTS.
    pub fn connect(&self, to: &Peer) {
        let [init, rtr, rts] = to.attributes();
        for (state, (attributes, mask)) in [("INIT", init), ("RTR", rtr), ("RTS", rts)] {
            if let Err(error) = self.modify(attributes, mask) {
                panic!("to {state}: {}", io::Error::from_raw_os_error(error));
            }
        }
    }

    /// Takes the QP to RESET: libmlx5 starts again at index 0, and forgets the completions of it that were not polled.
    pub fn reset(&self) {
        let attributes = ibv_qp_attr {
            qp_state: IBV_QPS_RESET,
            ..ibv_qp_attr::default()
        };
        self.modify(attributes, IBV_QP_STATE).expect("RESET");
    }

    /// Has libmlx5 write another number into WQEs from now on: it takes it from this field.
    pub fn call_itself(&self, number: u32) {
        // SAFETY: a QP that no one else uses; libmlx5 reads the field when it posts, and to find the QP in its tables when it is
        // destroyed: who destroys it puts the number back.
        unsafe { (*self.raw.as_ptr()).qp_num = number };
    }

    /// Posts by `ibv_post_send`.
    pub fn post_send(&self, requests: &[Request]) -> c_int {
        let mut lists: Vec<Vec<ibv_sge>> = requests
            .iter()
            .map(|request| sges_of(&request.data))
            .collect();
        let mut wrs: Vec<ibv_send_wr> = requests
            .iter()
            .zip(&mut lists)
            .map(|(request, list)| work_request(request, list))
            .collect();
        let first = wrs.as_mut_ptr();
        for (at, wr) in wrs.iter_mut().enumerate() {
            if at + 1 < requests.len() {
                wr.next = first.wrapping_add(at + 1);
            }
        }
        let mut bad = null_mut();
        // SAFETY: a QP, and a list of requests that ends; inline data lies where the list says.
        unsafe { ibv_post_send(self.raw.as_ptr(), first, &raw mut bad) }
    }

    /// Posts by `ibv_wr_*`; `one` uses the calls for one buffer where there is one.
    pub fn post_wr(&self, requests: &[Request], one: bool) -> c_int {
        // SAFETY: a QP that was made with the operations.
        unsafe {
            let qp = ibv_qp_to_qp_ex(self.raw.as_ptr());
            ibv_wr_start(qp);
            for request in requests {
                (*qp).wr_id = request.id;
                (*qp).wr_flags = send_flags(request);
                let (address, key) = request.remote;
                let (operand, compare) = request.operands;
                match request.kind {
                    Kind::Write => ibv_wr_rdma_write(qp, key, address),
                    Kind::WriteImmediate => {
                        ibv_wr_rdma_write_imm(qp, key, address, request.immediate.to_be());
                    }
                    Kind::Read => ibv_wr_rdma_read(qp, key, address),
                    Kind::Send => ibv_wr_send(qp),
                    Kind::SendImmediate => ibv_wr_send_imm(qp, request.immediate.to_be()),
                    Kind::SendInvalidate => ibv_wr_send_inv(qp, request.immediate),
                    Kind::CompareSwap => ibv_wr_atomic_cmp_swp(qp, key, address, compare, operand),
                    Kind::FetchAdd => ibv_wr_atomic_fetch_add(qp, key, address, operand),
                }
                match &request.data {
                    Payload::Pointers(pointers) => match pointers.as_slice() {
                        [pointer] if one || request.kind.is_atomic() => {
                            let len = if request.kind.is_atomic() {
                                8
                            } else {
                                pointer.len
                            };
                            ibv_wr_set_sge(qp, pointer.key, pointer.addr, len);
                        }
                        several => {
                            let list = sges(several);
                            ibv_wr_set_sge_list(qp, list.len(), list.as_ptr());
                        }
                    },
                    Payload::Inline(parts) => match parts.as_slice() {
                        [part] if one => {
                            ibv_wr_set_inline_data(qp, part.as_ptr() as *mut c_void, part.len());
                        }
                        several => {
                            let list: Vec<ibv_data_buf> = several
                                .iter()
                                .map(|part| ibv_data_buf {
                                    addr: part.as_ptr() as *mut c_void,
                                    length: part.len(),
                                })
                                .collect();
                            ibv_wr_set_inline_data_list(qp, list.len(), list.as_ptr());
                        }
                    },
                }
            }
            ibv_wr_complete(qp)
        }
    }

    /// Posts WQEs as they are, by `mlx5dv_wr_raw_wqe`.
    pub fn post_raw(&self, ids: u64, wqes: &[Vec<u8>]) -> c_int {
        // SAFETY: a QP that takes them; each has the bytes that its second word declares, at an address that is a multiple of 8.
        unsafe {
            let qp = ibv_qp_to_qp_ex(self.raw.as_ptr());
            let raw = mlx5dv_qp_ex_from_ibv_qp_ex(qp);
            ibv_wr_start(qp);
            for (at, wqe) in wqes.iter().enumerate() {
                (*qp).wr_id = ids + at as u64;
                let words: Vec<u64> = wqe
                    .chunks_exact(8)
                    .map(|word| u64::from_ne_bytes(word.try_into().expect("8 bytes")))
                    .collect();
                mlx5dv_wr_raw_wqe(raw, words.as_ptr().cast());
            }
            ibv_wr_complete(qp)
        }
    }

    pub fn post_receives(&self, receives: &[(u64, Vec<Pointer>)]) {
        post_receives(receives, |first| {
            let mut bad = null_mut();
            // SAFETY: a QP, and a list of requests that ends.
            unsafe { ibv_post_recv(self.raw.as_ptr(), first, &raw mut bad) }
        });
    }

    /// `ibv_modify_qp`; the error is errno's.
    pub fn modify(&self, mut attributes: ibv_qp_attr, mask: u32) -> Result<(), c_int> {
        // SAFETY: a QP, and attributes that it reads.
        match unsafe { ibv_modify_qp(self.raw.as_ptr(), &raw mut attributes, mask as c_int) } {
            0 => Ok(()),
            error => Err(error),
        }
    }

    /// `ibv_query_qp` with all attributes.
    pub fn query(&self) -> (ibv_qp_attr, ibv_qp_init_attr) {
        let mut attributes = ibv_qp_attr::default();
        let mut made_with = ibv_qp_init_attr::default();
        // SAFETY: a QP, and room for both.
        let failed = unsafe {
            ibv_query_qp(
                self.raw.as_ptr(),
                &raw mut attributes,
                (1 << 21) - 1,
                &raw mut made_with,
            )
        };
        assert_eq!(failed, 0, "ibv_query_qp");
        (attributes, made_with)
    }

    pub fn destroy(self) {
        // SAFETY: a QP, once.
        let failed = unsafe { ibv_destroy_qp(self.raw.as_ptr()) };
        assert_eq!(failed, 0, "ibv_destroy_qp");
    }
}
