//! A program of verbs: a device, queues that libmlx5 makes, and a view of what lies in them.
//!
//! Knows: libibverbs' and libmlx5's calls. Must not know: what is compared.
//!
//! The file with `unsafe`: each call of a C library is. All objects here are of one context and used by one thread; those that are
//! not destroyed live until the process ends.

use std::ffi::{c_int, c_void};
use std::io;
use std::ptr::{NonNull, null_mut};

use crate::ffi::*;
use crate::memory::Memory;
use crate::request::{Kind, MOST_INLINE, MOST_POINTERS, Payload, Pointer, Request};

fn made<T>(what: &str, pointer: *mut T) -> NonNull<T> {
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
        assert_eq!(
            unsafe { mlx5dv_init_obj(&raw mut object, MLX5DV_OBJ_CQ.into()) },
            0
        );
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

/// A CQ.
pub struct Cq {
    raw: NonNull<ibv_cq>,
    extended: bool,
    pub number: u32,
    pub entries: u32,
    pub ring: Memory,
    pub record: Memory,
    pub page: Memory,
}

/// What a poll says of a completion. `None` is what it does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    pub id: u64,
    pub status: u32,
    pub vendor: u32,
    pub qpn: u32,
    /// Opcode, if it succeeded.
    pub opcode: u32,
    pub flags: u32,
    pub bytes: u32,
    /// Immediate data as the wire carries it, or the key that was invalidated.
    pub immediate: u32,
    pub src_qp: u32,
    pub slid: u32,
    pub sl: u8,
    pub path_bits: u8,
    /// By `ibv_poll_cq` alone.
    pub pkey_index: u16,
    /// By `ibv_start_poll` alone.
    pub timestamp: u64,
}

impl Cq {
    /// The next completion, or none; by `ibv_start_poll` of an extended CQ, else by `ibv_poll_cq`. The error is the call's.
    pub fn poll(&self) -> Result<Option<Told>, c_int> {
        if self.extended {
            return self.start_poll();
        }
        let mut wc = ibv_wc::default();
        // SAFETY: a CQ, and room for one completion.
        match unsafe { ibv_poll_cq(self.raw.as_ptr(), 1, &raw mut wc) } {
            0 => Ok(None),
            // SAFETY: both members are 32 bits, always valid.
            1 => Ok(Some(unsafe { told(&wc) })),
            error => Err(error),
        }
    }

    /// Several at once, by `ibv_poll_cq`, or `ibv_start_poll` and `ibv_next_poll`.
    pub fn poll_many(&self, most: usize) -> Result<Vec<Told>, c_int> {
        if !self.extended {
            let mut wcs = vec![ibv_wc::default(); most];
            // SAFETY: a CQ, and room for so many completions.
            let count = unsafe { ibv_poll_cq(self.raw.as_ptr(), most as c_int, wcs.as_mut_ptr()) };
            let count = usize::try_from(count).map_err(|_| count)?;
            // SAFETY: as in `poll`.
            return Ok(wcs[..count].iter().map(|wc| unsafe { told(wc) }).collect());
        }
        let cq = self.raw.as_ptr().cast::<ibv_cq_ex>();
        let mut attributes = ibv_poll_cq_attr::default();
        // SAFETY: an extended CQ.
        let mut found = unsafe { ibv_start_poll(cq, &raw mut attributes) };
        let mut all = Vec::new();
        if found == libc::ENOENT {
            return Ok(all);
        }
        while found == 0 {
            // SAFETY: between `ibv_start_poll` and `ibv_end_poll`.
            all.push(unsafe { read(cq) });
            if all.len() == most {
                break;
            }
            // SAFETY: as above.
            found = unsafe { ibv_next_poll(cq) };
        }
        if all.is_empty() {
            return Err(found);
        }
        // SAFETY: as above: `ibv_start_poll` succeeded.
        unsafe { ibv_end_poll(cq) };
        match found {
            0 | libc::ENOENT => Ok(all),
            error => Err(error),
        }
    }

    fn start_poll(&self) -> Result<Option<Told>, c_int> {
        Ok(self.poll_many(1)?.pop())
    }

    pub fn is_extended(&self) -> bool {
        self.extended
    }

    /// `ibv_req_notify_cq`
    pub fn arm(&self, solicited: bool) {
        // SAFETY: a CQ.
        let failed = unsafe { ibv_req_notify_cq(self.raw.as_ptr(), solicited.into()) };
        assert_eq!(failed, 0);
    }

    /// The CQE at an index.
    pub fn cqe(&self, index: u64) -> Vec<u8> {
        self.ring.get(self.slot(index), 64)
    }

    pub fn slot(&self, index: u64) -> usize {
        (index % u64::from(self.entries)) as usize * 64
    }
}

/// # Safety
///
/// It was filled by `ibv_poll_cq`.
unsafe fn told(wc: &ibv_wc) -> Told {
    // Of a failure nothing else is said (ibv_poll_cq(3)).
    let done = wc.status == IBV_WC_SUCCESS;
    let receive = done && wc.opcode & IBV_WC_RECV != 0;
    // SAFETY: both members are 32 bits, always valid.
    let immediate = match wc.wc_flags & IBV_WC_WITH_INV {
        0 => u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data }),
        // SAFETY: as above.
        _ => unsafe { wc.__bindgen_anon_1.invalidated_rkey },
    };
    let has_immediate = receive && wc.wc_flags & (IBV_WC_WITH_IMM | IBV_WC_WITH_INV) != 0;
    let of_receive = |value: u32| if receive { value } else { 0 };
    Told {
        id: wc.wr_id,
        status: wc.status,
        vendor: if done { 0 } else { wc.vendor_err },
        qpn: wc.qp_num,
        opcode: if done { wc.opcode } else { 0 },
        flags: of_receive(wc.wc_flags),
        bytes: if receive || done && has_length(wc.opcode) {
            wc.byte_len
        } else {
            0
        },
        immediate: if has_immediate { immediate } else { 0 },
        src_qp: of_receive(wc.src_qp),
        slid: of_receive(wc.slid.into()),
        sl: of_receive(wc.sl.into()) as u8,
        path_bits: of_receive(wc.dlid_path_bits.into()) as u8,
        pkey_index: of_receive(wc.pkey_index.into()) as u16,
        timestamp: 0,
    }
}

/// A send completion says how many bytes it was of READs and atomics alone.
fn has_length(opcode: u32) -> bool {
    matches!(
        opcode,
        IBV_WC_RDMA_READ | IBV_WC_COMP_SWAP | IBV_WC_FETCH_ADD
    )
}

/// # Safety
///
/// A completion of the CQ is being read.
unsafe fn read(cq: *mut ibv_cq_ex) -> Told {
    // SAFETY: the caller's.
    unsafe {
        let status = (*cq).status;
        let done = status == IBV_WC_SUCCESS;
        let opcode = if done { ibv_wc_read_opcode(cq) } else { 0 };
        let receive = done && opcode & IBV_WC_RECV != 0;
        let flags = if receive { ibv_wc_read_wc_flags(cq) } else { 0 };
        Told {
            id: (*cq).wr_id,
            status,
            vendor: if done { 0 } else { ibv_wc_read_vendor_err(cq) },
            qpn: ibv_wc_read_qp_num(cq),
            opcode,
            flags,
            bytes: match opcode {
                // Of atomics this way of polling gives the field as it stands.
                _ if receive || done && has_length(opcode) => ibv_wc_read_byte_len(cq),
                _ => 0,
            },
            immediate: if flags & IBV_WC_WITH_INV != 0 {
                ibv_wc_read_invalidated_rkey(cq)
            } else if flags & IBV_WC_WITH_IMM != 0 {
                u32::from_be(ibv_wc_read_imm_data(cq))
            } else {
                0
            },
            src_qp: if receive { ibv_wc_read_src_qp(cq) } else { 0 },
            slid: if receive { ibv_wc_read_slid(cq) } else { 0 },
            sl: if receive { ibv_wc_read_sl(cq) } else { 0 },
            path_bits: if receive {
                ibv_wc_read_dlid_path_bits(cq)
            } else {
                0
            },
            pkey_index: 0,
            timestamp: if done {
                ibv_wc_read_completion_ts(cq)
            } else {
                0
            },
        }
    }
}

/// A shared receive queue.
pub struct Srq {
    raw: NonNull<ibv_srq>,
    pub entries: u32,
    pub stride: usize,
    pub ring: Memory,
    pub record: Memory,
}

/// What libmlx5 says of a shared receive queue.
fn shown(raw: NonNull<ibv_srq>) -> mlx5dv_srq {
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

fn post_receives(receives: &[(u64, Vec<Pointer>)], post: impl FnOnce(*mut ibv_recv_wr) -> c_int) {
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

fn sges(pointers: &[Pointer]) -> Vec<ibv_sge> {
    pointers
        .iter()
        .map(|pointer| ibv_sge {
            addr: pointer.addr,
            length: pointer.len,
            lkey: pointer.key,
        })
        .collect()
}

/// Whom a QP is to be connected to, and how.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    pub qpn: u32,
    pub gid: [u8; 16],
    pub access: u32,
    pub receive_psn: u32,
    pub send_psn: u32,
    pub timeout: u8,
    pub retries: u8,
    pub rnr_retries: u8,
    pub mtu: u32,
}

/// Index of the GID in use: RoCE v2, of an IPv4 address.
pub const GID: u8 = 3;

impl Peer {
    /// With all rights, and timeouts that nothing here reaches.
    pub fn new(qpn: u32, gid: [u8; 16]) -> Self {
        Self {
            qpn,
            gid,
            access: IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
            receive_psn: 0,
            send_psn: 0,
            timeout: 20,
            retries: 7,
            rnr_retries: 7,
            mtu: IBV_MTU_1024,
        }
    }

    /// Attributes of the transitions to INIT, RTR and RTS.
    fn attributes(&self) -> [(ibv_qp_attr, u32); 3] {
        let any = ibv_qp_attr::default();
        let init = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            qp_access_flags: self.access,
            port_num: 1,
            ..any
        };
        let rtr = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: self.mtu,
            dest_qp_num: self.qpn,
            rq_psn: self.receive_psn,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 1,
            ah_attr: ibv_ah_attr {
                grh: ibv_global_route {
                    dgid: ibv_gid { raw: self.gid },
                    sgid_index: GID,
                    hop_limit: 64,
                    ..ibv_global_route::default()
                },
                is_global: 1,
                port_num: 1,
                ..ibv_ah_attr::default()
            },
            ..any
        };
        let rts = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            sq_psn: self.send_psn,
            timeout: self.timeout,
            retry_cnt: self.retries,
            rnr_retry: self.rnr_retries,
            max_rd_atomic: 16,
            ..any
        };
        [
            (
                init,
                IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
            ),
            (
                rtr,
                IBV_QP_STATE
                    | IBV_QP_AV
                    | IBV_QP_PATH_MTU
                    | IBV_QP_DEST_QPN
                    | IBV_QP_RQ_PSN
                    | IBV_QP_MAX_DEST_RD_ATOMIC
                    | IBV_QP_MIN_RNR_TIMER,
            ),
            (
                rts,
                IBV_QP_STATE
                    | IBV_QP_TIMEOUT
                    | IBV_QP_RETRY_CNT
                    | IBV_QP_RNR_RETRY
                    | IBV_QP_SQ_PSN
                    | IBV_QP_MAX_QP_RD_ATOMIC,
            ),
        ]
    }
}

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
    fn new(raw: NonNull<ibv_qp>) -> Self {
        let mut out = mlx5dv_qp::default();
        let mut object = mlx5dv_obj::default();
        object.qp.in_ = raw.as_ptr();
        object.qp.out = &raw mut out;
        // SAFETY: a QP of libmlx5, and room for what it says.
        assert_eq!(
            unsafe { mlx5dv_init_obj(&raw mut object, MLX5DV_OBJ_QP.into()) },
            0
        );
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
        assert_eq!(
            unsafe { ibv_destroy_qp(self.raw.as_ptr()) },
            0,
            "ibv_destroy_qp"
        );
    }
}

fn sges_of(data: &Payload) -> Vec<ibv_sge> {
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

fn send_flags(request: &Request) -> u32 {
    let flag = |set, flag| if set { flag } else { 0 };
    flag(request.signalled, IBV_SEND_SIGNALED)
        | flag(request.solicited, IBV_SEND_SOLICITED)
        | flag(request.fence, IBV_SEND_FENCE)
}

fn work_request(request: &Request, list: &mut [ibv_sge]) -> ibv_send_wr {
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
