//! The part of libibverbs that the guest needs, loaded at run time.
//!
//! Knows: layouts of `infiniband/verbs.h`, whose ABI (IBVERBS_1.1) does not change; calls and their errors.
//! Must not know: who asks, or why.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}

const RTLD_NOW: c_int = 2;

/// `struct ibv_context`: the functions that `verbs.h` calls inline are in its table.
#[repr(C)]
struct Context {
    device: *mut c_void,
    operations: [*mut c_void; 32],
}

/// Places of functions in the table.
const ALLOC_MW: usize = 7;
const POLL_CQ: usize = 11;
const POST_SEND: usize = 25;
const POST_RECV: usize = 26;

#[repr(C)]
struct RawMr {
    context: *mut Context,
    pd: *mut c_void,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    lkey: u32,
    rkey: u32,
}

#[repr(C)]
struct RawMw {
    context: *mut Context,
    pd: *mut c_void,
    rkey: u32,
    handle: u32,
    kind: c_int,
}

#[repr(C)]
struct RawQp {
    context: *mut Context,
    qp_context: *mut c_void,
    pd: *mut c_void,
    send_cq: *mut c_void,
    recv_cq: *mut c_void,
    srq: *mut c_void,
    handle: u32,
    qp_num: u32,
    state: c_int,
    kind: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct QpCap {
    max_send_wr: u32,
    max_recv_wr: u32,
    max_send_sge: u32,
    max_recv_sge: u32,
    max_inline_data: u32,
}

#[repr(C)]
struct QpInitAttr {
    qp_context: *mut c_void,
    send_cq: *mut c_void,
    recv_cq: *mut c_void,
    srq: *mut c_void,
    cap: QpCap,
    kind: c_int,
    sq_sig_all: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct AhAttr {
    dgid: [u64; 2],
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port_num: u8,
}

#[repr(C)]
#[derive(Default)]
struct QpAttr {
    state: c_int,
    cur_state: c_int,
    path_mtu: c_int,
    path_mig_state: c_int,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    access: c_uint,
    cap: QpCap,
    ah: AhAttr,
    alt_ah: AhAttr,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    rate_limit: u32,
}

#[repr(C)]
struct Sge {
    addr: u64,
    length: u32,
    lkey: u32,
}

/// `struct ibv_send_wr`. Of the unions only what is used: `remote` has the atomic's fields, which an RDMA request's
/// (address, key) share in part, and `bind` is the memory window's.
#[repr(C)]
struct SendWr {
    wr_id: u64,
    next: *mut SendWr,
    sg_list: *mut Sge,
    num_sge: c_int,
    opcode: c_int,
    send_flags: c_uint,
    immediate: u32,
    remote: [u64; 4],
    remote_srqn: u64,
    bind: Bind,
}

#[repr(C)]
struct Bind {
    mw: *mut RawMw,
    rkey: u32,
    mr: *mut RawMr,
    addr: u64,
    length: u64,
    access: c_uint,
}

#[repr(C)]
struct RecvWr {
    wr_id: u64,
    next: *mut RecvWr,
    sg_list: *mut Sge,
    num_sge: c_int,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Wc {
    wr_id: u64,
    status: c_int,
    opcode: c_int,
    vendor_err: u32,
    byte_len: u32,
    immediate: u32,
    qp_num: u32,
    src_qp: u32,
    flags: c_uint,
    pkey_index: u16,
    slid: u16,
    sl: u8,
    dlid_path_bits: u8,
}

// As a C compiler lays out infiniband/verbs.h on x86-64.
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<QpInitAttr>() == 64 && size_of::<AhAttr>() == 32);
    assert!(size_of::<QpAttr>() == 144 && offset_of!(QpAttr, pkey_index) == 120);
    assert!(size_of::<SendWr>() == 128 && offset_of!(SendWr, bind) == 80);
    assert!(size_of::<Wc>() == 48 && offset_of!(RawQp, qp_num) == 52);
    assert!(offset_of!(RawMr, lkey) == 36 && offset_of!(RawMw, rkey) == 16);
};

type GetDeviceList = unsafe extern "C" fn(*mut c_int) -> *mut *mut c_void;
type OpenDevice = unsafe extern "C" fn(*mut c_void) -> *mut Context;
type AllocPd = unsafe extern "C" fn(*mut Context) -> *mut c_void;
type CreateCq =
    unsafe extern "C" fn(*mut Context, c_int, *mut c_void, *mut c_void, c_int) -> *mut c_void;
type RegMr = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int) -> *mut RawMr;
type CreateQp = unsafe extern "C" fn(*mut c_void, *mut QpInitAttr) -> *mut RawQp;
type DestroyQp = unsafe extern "C" fn(*mut RawQp) -> c_int;
type ModifyQp = unsafe extern "C" fn(*mut RawQp, *mut QpAttr, c_int) -> c_int;
type AllocMw = unsafe extern "C" fn(*mut c_void, c_int) -> *mut RawMw;
type PollCq = unsafe extern "C" fn(*mut c_void, c_int, *mut Wc) -> c_int;
type PostSend = unsafe extern "C" fn(*mut RawQp, *mut SendWr, *mut *mut SendWr) -> c_int;
type PostRecv = unsafe extern "C" fn(*mut RawQp, *mut RecvWr, *mut *mut RecvWr) -> c_int;

/// An opened device with a PD and a CQ. Lives as long as the process.
pub(crate) struct Verbs {
    context: *mut Context,
    pd: *mut c_void,
    cq: *mut c_void,
    reg_mr: RegMr,
    create_qp: CreateQp,
    destroy_qp: DestroyQp,
    modify_qp: ModifyQp,
}

/// Registered memory. Lives as long as the process.
#[derive(Clone, Copy)]
pub(crate) struct Mr {
    raw: *mut RawMr,
    pub(crate) addr: u64,
    pub(crate) len: usize,
}

/// A memory window of type 2.
#[derive(Clone, Copy)]
pub(crate) struct Mw(*mut RawMw);

/// A queue pair.
#[derive(Clone, Copy)]
pub(crate) struct Qp(*mut RawQp);

/// How a QP is connected.
pub(crate) struct Connection {
    pub(crate) remote_qpn: u32,
    pub(crate) remote_gid: [u8; 16],
    pub(crate) gid_index: u8,
    pub(crate) mtu: u32,
    pub(crate) psn: u32,
    pub(crate) remote_psn: u32,
    pub(crate) timeout: u8,
    pub(crate) rnr_retry: u8,
}

/// A work request: `opcode` is `enum ibv_wr_opcode`, `flags` `enum ibv_send_flags`.
pub(crate) struct Request {
    pub(crate) id: u64,
    pub(crate) opcode: i32,
    pub(crate) flags: u32,
    pub(crate) local: (u64, u32, u32),
    pub(crate) remote: (u64, u32),
    pub(crate) immediate: u32,
    pub(crate) operands: (u64, u64),
}

/// A completion.
pub(crate) struct Completion {
    pub(crate) id: u64,
    pub(crate) status: i32,
    pub(crate) opcode: i32,
    pub(crate) bytes: u32,
    /// Immediate data, or the key that was invalidated; zero if there is neither.
    pub(crate) immediate: u32,
    pub(crate) qpn: u32,
}

const ACCESS: c_int = 0b1_1111;
const QPT_RC: c_int = 2;
const WRITE_WITH_IMM: i32 = 1;
const SEND_WITH_IMM: i32 = 3;
const ATOMIC_CMP_AND_SWP: i32 = 5;
const ATOMIC_FETCH_AND_ADD: i32 = 6;
const BIND_MW: i32 = 8;
const SIGNALED: u32 = 2;
/// Flags of a completion.
const WITH_IMM: c_uint = 1 << 1;
const WITH_INV: c_uint = 1 << 3;

fn os_error(what: &str) -> String {
    format!("{what}: {}", std::io::Error::last_os_error())
}

fn checked(what: &str, code: c_int) -> Result<(), String> {
    match code {
        0 => Ok(()),
        code => Err(format!(
            "{what}: {}",
            std::io::Error::from_raw_os_error(code.abs())
        )),
    }
}

fn symbol(library: *mut c_void, name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the library is open and the name is a C string.
    let found = unsafe { dlsym(library, name.as_ptr()) };
    if found.is_null() {
        Err(format!("libibverbs has no {name:?}"))
    } else {
        Ok(found)
    }
}

/// A function pointer of type `F` at an address that is known to be one.
macro_rules! function {
    ($kind:ty, $address:expr) => {{
        let address: *mut c_void = $address;
        // SAFETY: `address` is the function of this name in libibverbs, or of this place in the table of operations, which
        // has this type; function and data pointers have one size here.
        unsafe { std::mem::transmute::<*mut c_void, $kind>(address) }
    }};
}

impl Verbs {
    /// Opens the first RDMA device.
    pub(crate) fn open() -> Result<Self, String> {
        // SAFETY: a C string and a valid flag.
        let library = unsafe { dlopen(c"libibverbs.so.1".as_ptr(), RTLD_NOW) };
        if library.is_null() {
            // SAFETY: after a failed dlopen this is a C string.
            let said = unsafe { CStr::from_ptr(dlerror()) };
            return Err(said.to_string_lossy().into_owned());
        }
        let list = function!(GetDeviceList, symbol(library, c"ibv_get_device_list")?);
        let open = function!(OpenDevice, symbol(library, c"ibv_open_device")?);
        let alloc_pd = function!(AllocPd, symbol(library, c"ibv_alloc_pd")?);
        let create_cq = function!(CreateCq, symbol(library, c"ibv_create_cq")?);
        // SAFETY: the count may be null; the list ends with a null and is never freed.
        let first = unsafe {
            let devices = list(null_mut());
            if devices.is_null() || (*devices).is_null() {
                return Err("no RDMA device".to_owned());
            }
            *devices
        };
        // SAFETY: a device of the list; then objects made a line before, each checked for null.
        let (context, pd, cq) = unsafe {
            let context = open(first);
            if context.is_null() {
                return Err(os_error("open"));
            }
            let pd = alloc_pd(context);
            let cq = create_cq(context, 4096, null_mut(), null_mut(), 0);
            if pd.is_null() || cq.is_null() {
                return Err(os_error("PD or CQ"));
            }
            (context, pd, cq)
        };
        Ok(Self {
            context,
            pd,
            cq,
            reg_mr: function!(RegMr, symbol(library, c"ibv_reg_mr")?),
            create_qp: function!(CreateQp, symbol(library, c"ibv_create_qp")?),
            destroy_qp: function!(DestroyQp, symbol(library, c"ibv_destroy_qp")?),
            modify_qp: function!(ModifyQp, symbol(library, c"ibv_modify_qp")?),
        })
    }

    fn operation(&self, place: usize) -> *mut c_void {
        // SAFETY: the context is open; the driver fills its table before it is returned.
        unsafe { (&(*self.context).operations)[place] }
    }

    /// Registers new zeroed memory with every right.
    pub(crate) fn register(&self, len: usize) -> Result<Mr, String> {
        let memory = Box::leak(vec![0u64; len.div_ceil(8)].into_boxed_slice());
        let addr = memory.as_mut_ptr().cast::<c_void>();
        // SAFETY: the PD is live, the memory is never freed, and the bits are access flags (windows may be bound to it).
        let raw = unsafe { (self.reg_mr)(self.pd, addr, len, ACCESS) };
        if raw.is_null() {
            return Err(os_error("MR"));
        }
        Ok(Mr {
            raw,
            addr: addr as u64,
            len,
        })
    }

    /// Allocates a memory window of type 2.
    pub(crate) fn window(&self) -> Result<Mw, String> {
        let alloc = function!(AllocMw, self.operation(ALLOC_MW));
        // SAFETY: the PD is live, 2 is `IBV_MW_TYPE_2`.
        let raw = unsafe { alloc(self.pd, 2) };
        if raw.is_null() {
            return Err(os_error("MW"));
        }
        Ok(Mw(raw))
    }

    /// Creates a QP.
    pub(crate) fn qp(&self) -> Result<Qp, String> {
        let mut attributes = QpInitAttr {
            qp_context: null_mut(),
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: null_mut(),
            cap: QpCap {
                max_send_wr: 256,
                max_recv_wr: 256,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 0,
            },
            kind: QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: the PD and the CQs are live; the attributes outlive the call.
        let raw = unsafe { (self.create_qp)(self.pd, &mut attributes) };
        if raw.is_null() {
            return Err(os_error("QP"));
        }
        Ok(Qp(raw))
    }

    /// Destroys a QP.
    pub(crate) fn destroy(&self, qp: Qp) -> Result<(), String> {
        // SAFETY: a QP of this device; the caller forgets it.
        checked("destroy", unsafe { (self.destroy_qp)(qp.0) })
    }

    /// Brings a fresh QP to RTS.
    pub(crate) fn connect(&self, qp: Qp, to: &Connection) -> Result<(), String> {
        let modify = |what, attributes: &mut QpAttr, mask| {
            // SAFETY: a live QP; the attributes outlive the call.
            checked(what, unsafe { (self.modify_qp)(qp.0, attributes, mask) })
        };
        let mut init = QpAttr {
            state: 1,
            access: ACCESS as c_uint & 0b1111,
            port_num: 1,
            ..QpAttr::default()
        };
        // STATE | ACCESS_FLAGS | PKEY_INDEX | PORT
        modify("INIT", &mut init, 1 | 1 << 3 | 1 << 4 | 1 << 5)?;
        let (head, tail) = to.remote_gid.split_at(8);
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        let mut rtr = QpAttr {
            state: 2,
            path_mtu: (to.mtu.trailing_zeros() as c_int) - 7,
            rq_psn: to.remote_psn,
            dest_qp_num: to.remote_qpn,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 12,
            ah: AhAttr {
                dgid: [word(head), word(tail)],
                sgid_index: to.gid_index,
                hop_limit: 64,
                is_global: 1,
                port_num: 1,
                ..AhAttr::default()
            },
            ..QpAttr::default()
        };
        // STATE | AV | PATH_MTU | MIN_RNR_TIMER | RQ_PSN | MAX_DEST_RD_ATOMIC | DEST_QPN
        let mask = 1 | 1 << 7 | 1 << 8 | 1 << 15 | 1 << 12 | 1 << 17 | 1 << 20;
        modify("RTR", &mut rtr, mask)?;
        let mut rts = QpAttr {
            state: 3,
            sq_psn: to.psn,
            timeout: to.timeout,
            retry_cnt: 7,
            rnr_retry: to.rnr_retry,
            max_rd_atomic: 4,
            ..QpAttr::default()
        };
        // STATE | TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC
        let mask = 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 16 | 1 << 13;
        modify("RTS", &mut rts, mask)
    }

    /// Posts to the send queue, signalled.
    pub(crate) fn send(&self, qp: Qp, request: &Request) -> Result<(), String> {
        let (address, key) = request.remote;
        let (a, b) = request.operands;
        let remote = match request.opcode {
            ATOMIC_CMP_AND_SWP | ATOMIC_FETCH_AND_ADD => [address, a, b, key.into()],
            _ => [address, key.into(), 0, 0],
        };
        let bind = Bind {
            mw: null_mut(),
            rkey: 0,
            mr: null_mut(),
            addr: 0,
            length: 0,
            access: 0,
        };
        self.post(qp, request, remote, bind)
    }

    /// Binds a window to part of an MR, and returns its new key.
    pub(crate) fn bind(&self, qp: Qp, id: u64, mw: Mw, mr: Mr, len: u64) -> Result<u32, String> {
        // SAFETY: a live window.
        let old = unsafe { (*mw.0).rkey };
        // `ibv_inc_rkey`
        let rkey = (old & !0xff) | (old.wrapping_add(1) & 0xff);
        let request = Request {
            id,
            opcode: BIND_MW,
            flags: 0,
            local: (0, 0, 0),
            remote: (0, 0),
            immediate: 0,
            operands: (0, 0),
        };
        let bind = Bind {
            mw: mw.0,
            rkey,
            mr: mr.raw,
            addr: mr.addr,
            length: len,
            access: ACCESS as c_uint & 0b1110,
        };
        self.post(qp, &request, [0; 4], bind)?;
        Ok(rkey)
    }

    fn post(&self, qp: Qp, request: &Request, remote: [u64; 4], bind: Bind) -> Result<(), String> {
        let (addr, length, lkey) = request.local;
        let mut sge = Sge { addr, length, lkey };
        let mut wr = SendWr {
            wr_id: request.id,
            next: null_mut(),
            sg_list: &mut sge,
            num_sge: (length > 0).into(),
            opcode: request.opcode,
            send_flags: request.flags | SIGNALED,
            immediate: match request.opcode {
                WRITE_WITH_IMM | SEND_WITH_IMM => request.immediate.to_be(),
                _ => request.immediate,
            },
            remote,
            remote_srqn: 0,
            bind,
        };
        let mut bad = null_mut();
        let post = function!(PostSend, self.operation(POST_SEND));
        // SAFETY: a live QP; the request and its list outlive the call, which copies them.
        checked("post", unsafe { post(qp.0, &mut wr, &mut bad) })
    }

    /// Posts a receive.
    pub(crate) fn receive(
        &self,
        qp: Qp,
        id: u64,
        (addr, length, lkey): (u64, u32, u32),
    ) -> Result<(), String> {
        let mut sge = Sge { addr, length, lkey };
        let mut wr = RecvWr {
            wr_id: id,
            next: null_mut(),
            sg_list: &mut sge,
            num_sge: (length > 0).into(),
        };
        let mut bad = null_mut();
        let post = function!(PostRecv, self.operation(POST_RECV));
        // SAFETY: as for a send.
        checked("post receive", unsafe { post(qp.0, &mut wr, &mut bad) })
    }

    /// Takes a completion, if there is one.
    pub(crate) fn poll(&self) -> Result<Option<Completion>, String> {
        let mut wc = Wc::default();
        let poll = function!(PollCq, self.operation(POLL_CQ));
        // SAFETY: a live CQ, room for one completion.
        match unsafe { poll(self.cq, 1, &mut wc) } {
            0 => Ok(None),
            1 => Ok(Some(Completion {
                id: wc.wr_id,
                status: wc.status,
                opcode: wc.opcode,
                bytes: wc.byte_len,
                immediate: match wc.flags & (WITH_IMM | WITH_INV) {
                    0 => 0,
                    WITH_IMM => u32::from_be(wc.immediate),
                    _ => wc.immediate,
                },
                qpn: wc.qp_num,
            })),
            code => Err(format!("poll: {code}")),
        }
    }
}

impl Mr {
    pub(crate) fn lkey(self) -> u32 {
        // SAFETY: live as long as the process.
        unsafe { (*self.raw).lkey }
    }

    pub(crate) fn rkey(self) -> u32 {
        // SAFETY: live as long as the process.
        unsafe { (*self.raw).rkey }
    }

    /// Bytes from `at` on; the device may write them at any time, so they are read one by one.
    pub(crate) fn read(self, at: usize, len: usize) -> Vec<u8> {
        let end = at.saturating_add(len).min(self.len);
        (at..end)
            // SAFETY: within the registered memory, which is never freed.
            .map(|at| unsafe { ((self.addr as usize + at) as *const u8).read_volatile() })
            .collect()
    }

    /// Writes bytes from `at` on.
    pub(crate) fn write(self, at: usize, bytes: &[u8]) {
        for (at, byte) in (at..self.len).zip(bytes) {
            // SAFETY: within the registered memory, which is never freed.
            unsafe { ((self.addr as usize + at) as *mut u8).write_volatile(*byte) }
        }
    }
}

impl Qp {
    pub(crate) fn number(self) -> u32 {
        // SAFETY: a QP that was not destroyed.
        unsafe { (*self.0).qp_num }
    }
}
