//! A CQ: what lies in it, and what both ways of polling say.

use std::ffi::c_int;
use std::ptr::NonNull;

use crate::ffi::*;
use crate::memory::Memory;

/// A CQ.
pub struct Cq {
    pub(super) raw: NonNull<ibv_cq>,
    pub(super) extended: bool,
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
    let immediate = match wc.wc_flags & IBV_WC_WITH_INV {
        // SAFETY: both members are 32 bits, always valid.
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
