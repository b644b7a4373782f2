//! The counter set that the kernel has given a port, learned from a queue pair of verbs.
//!
//! Knows: that mlx5_ib attaches every QP of verbs to the set that `hw_counters` in sysfs shows, when it goes to INIT (Linux
//! mlx5_ib `set_stat`, `__mlx5_ib_modify_qp`), and that nothing else names the set.
//! Must not know: who is attached to it then.
//!
//! One of the files with `unsafe`: every call of a C library is.

use std::ffi::c_int;
use std::ptr::NonNull;

use warpverbs_wire::prm::{Command, query_qp};

use super::error::{errno, of_command, of_errno};
use crate::driver::DriverError;
use crate::ffi::{self, Functions};

const CALL: &str = "port_counter_set";

/// A PD, CQ and QP, destroyed when they are dropped. All or part of them are there.
struct Throwaway<'a> {
    functions: &'a Functions,
    pd: *mut ffi::ibv_pd,
    cq: *mut ffi::ibv_cq,
    qp: *mut ffi::ibv_qp,
}

impl Drop for Throwaway<'_> {
    fn drop(&mut self) {
        // SAFETY: each takes an object that nobody else uses, once, users before what they use.
        let failed: c_int = unsafe {
            let mut failed = 0;
            if !self.qp.is_null() {
                failed |= (self.functions.ibv_destroy_qp)(self.qp);
            }
            if !self.cq.is_null() {
                failed |= (self.functions.ibv_destroy_cq)(self.cq);
            }
            if !self.pd.is_null() {
                failed |= (self.functions.ibv_dealloc_pd)(self.pd);
            }
            failed
        };
        if failed != 0 {
            tracing::error!(errno = errno(), "a QP that told of its counter set is left");
        }
    }
}

/// The set of a port; `None` if it has none.
///
/// # Safety
///
/// `context` is open, and stays so.
pub(super) unsafe fn of_port(
    functions: &Functions,
    context: *mut ffi::ibv_context,
    port: u8,
) -> Result<Option<u8>, DriverError> {
    let mut made = Throwaway {
        functions,
        pd: std::ptr::null_mut(),
        cq: std::ptr::null_mut(),
        qp: std::ptr::null_mut(),
    };
    // SAFETY: it takes an open context.
    made.pd = unsafe { (functions.ibv_alloc_pd)(context) };
    check(made.pd)?;
    // SAFETY: as above; no channel, vector 0.
    made.cq = unsafe {
        (functions.ibv_create_cq)(context, 1, std::ptr::null_mut(), std::ptr::null_mut(), 0)
    };
    check(made.cq)?;
    let mut wanted = ffi::ibv_qp_init_attr {
        send_cq: made.cq,
        recv_cq: made.cq,
        cap: ffi::ibv_qp_cap {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            ..Default::default()
        },
        qp_type: ffi::IBV_QPT_RC,
        ..Default::default()
    };
    // SAFETY: it takes a PD and attributes that it reads, and writes what it made of the sizes.
    made.qp = unsafe { (functions.ibv_create_qp)(made.pd, &raw mut wanted) };
    check(made.qp)?;
    let mut attr = ffi::ibv_qp_attr {
        qp_state: ffi::IBV_QPS_INIT,
        port_num: port,
        ..Default::default()
    };
    let mask =
        ffi::IBV_QP_STATE | ffi::IBV_QP_PKEY_INDEX | ffi::IBV_QP_PORT | ffi::IBV_QP_ACCESS_FLAGS;
    // SAFETY: it takes a QP and attributes that it reads.
    let number = unsafe { (functions.ibv_modify_qp)(made.qp, &raw mut attr, mask as c_int) };
    if number != 0 {
        return Err(of_errno(CALL, number));
    }
    // SAFETY: it was made just now, and its number is a plain field.
    let qpn = NonNull::new(made.qp).map_or(0, |qp| unsafe { qp.as_ref().qp_num });
    let query = query_qp::In {
        qpn,
        ..query_qp::In::default()
    };
    let wrong = |error: &dyn std::fmt::Display| {
        let mut wrong = of_errno(CALL, libc::EINVAL);
        wrong.text = error.to_string();
        wrong
    };
    let input = query.encode().map_err(|error| wrong(&error))?;
    let mut output = query_qp::In::reply();
    let answer = output.as_mut();
    // SAFETY: it takes a QP and two buffers of these lengths.
    let number = unsafe {
        (functions.mlx5dv_devx_qp_query)(
            made.qp,
            input.as_ref().as_ptr().cast(),
            input.as_ref().len(),
            answer.as_mut_ptr().cast(),
            answer.len(),
        )
    };
    if number != 0 {
        return Err(of_command(CALL, number, answer));
    }
    let told = query_qp::In::decode(answer).map_err(|error| wrong(&error))?;
    Ok(Some(told.qpc.counter_set_id).filter(|set| *set != 0))
}

fn check<T>(made: *mut T) -> Result<(), DriverError> {
    if made.is_null() {
        Err(of_errno(CALL, errno()))
    } else {
        Ok(())
    }
}
