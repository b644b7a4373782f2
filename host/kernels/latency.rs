//! The latency kernel.
//!
//! Knows: its parameter block, and what must hold before it is given to it.
//! Must not know: what a thread reports.
//!
//! One of the files that call `unsafe` functions.

use std::time::Duration;

use warpverbs_wire::abi::{self, LatParams, LatSide};

use super::mode::{Completions, Doorbell, Order, Sharing, check_modes, suffix};
use super::run::{Results, Run};
use super::{DEFAULT_WAIT_DEADLINE, check_qps, nanos};
use crate::driver::LaunchShape;
use crate::error::{Error, Result};
use crate::export::ExportedQp;
use crate::launch::{Stream, View};
use crate::module::Module;
use crate::resource::{GpuContext, Mr};

/// One end of a [`Latency`] run.
#[derive(Clone, Copy, Debug)]
pub struct LatencyEnd<'a> {
    /// The end's QP, connected to the other end's.
    pub qp: &'a ExportedQp,
    /// GPU memory that it sends from.
    pub outbox: &'a Mr,
    /// GPU memory that the other end writes to.
    pub inbox: &'a Mr,
}

/// A run of one of the kernels `wv_write_lat*`: two blocks send each other messages in turn.
///
/// A message is the first `size` bytes of an outbox and arrives in the first `size` bytes of the
/// other end's inbox; these end at a multiple of 8. Its last 8 bytes (its last byte, if it is
/// shorter) are the sequence number, from 1, by which the receiver sees that it has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latency {
    /// Bytes of a message.
    pub size: u32,
    /// Round trips.
    pub iters: u64,
    /// How the doorbell is rung.
    pub doorbell: Doorbell,
    /// Scope of the WQEs' fence.
    pub order: Order,
    /// Which WQEs complete.
    pub completions: Completions,
    /// Time that one wait of a thread may take.
    pub wait_deadline: Duration,
}

impl Default for Latency {
    /// 1,000 round trips of 8 bytes.
    fn default() -> Self {
        Self {
            size: 8,
            iters: 1000,
            doorbell: Doorbell::Db,
            order: Order::Sys,
            completions: Completions::Every,
            wait_deadline: DEFAULT_WAIT_DEADLINE,
        }
    }
}

impl Latency {
    /// Launches it.
    pub fn launch(
        &self,
        module: &Module,
        stream: &Stream,
        ends: [LatencyEnd<'_>; 2],
    ) -> Result<Run> {
        self.check(module.gpu(), &ends)?;
        let usual = matches!(self.doorbell, Doorbell::Db | Doorbell::DbEarly)
            && self.order == Order::Sys
            && self.completions == Completions::Every;
        let name = if usual {
            "wv_write_lat".to_owned()
        } else {
            format!("wv_write_lat_{}", suffix(self.doorbell, self.order))
        };
        let kernel = module.kernel(&name)?;
        let gpu = module.gpu();
        let results = Results::alloc(gpu, 2)?;
        let side = |own: &LatencyEnd<'_>, other: &LatencyEnd<'_>| LatSide {
            handle: own.qp.handle(),
            local: own.outbox.addr(),
            remote: other.inbox.addr(),
            inbox: own.inbox.addr(),
            outbox: own.outbox.addr(),
            lkey: own.outbox.lkey(),
            rkey: other.inbox.remote().rkey,
        };
        let params = LatParams {
            version: abi::VERSION,
            size: self.size,
            sides: [side(&ends[0], &ends[1]), side(&ends[1], &ends[0])],
            results: results.memory.addr(),
            iters: self.iters,
            deadline_ns: nanos(self.wait_deadline),
            doorbell: self.doorbell.code(),
            form: self.completions.code(),
        };
        let view = ends
            .iter()
            .fold(View::new(), |view, end| {
                view.qp(end.qp).mr(end.outbox).mr(end.inbox)
            })
            .memory(&results.memory);
        // Each block waits for the other, so both must be resident.
        let shape = LaunchShape::linear(2, 1).cooperative();
        // SAFETY: `Stream::launch` demands
        // - parameters as the kernel declares them: the module has this crate's ABI version, and
        //   the block is that version's;
        // - that the kernel accesses only memory that the view keeps and no Rust reference covers:
        //   it accesses the QPs' memory and the results, which the view keeps, and the first `size`
        //   bytes of the regions, which `check` has found to be GPU memory of that size; regions of
        //   GPU memory are never referenced by host code.
        let launch = unsafe { stream.launch(&kernel, shape, &params.to_bytes(), view) }?;
        Ok(Run {
            kernel: name.into(),
            expected: self.iters,
            launch,
            results,
        })
    }

    fn check(&self, gpu: &GpuContext, ends: &[LatencyEnd<'_>; 2]) -> Result<()> {
        if self.size == 0 || self.iters == 0 {
            return Err(Error::InvalidArgument {
                what: "size and iters must not be 0".into(),
                cure: "give each at least 1",
            });
        }
        let qps = [ends[0].qp, ends[1].qp];
        check_qps(gpu, &qps, self.size)?;
        check_modes(
            &qps,
            self.doorbell,
            self.order,
            self.completions,
            Sharing::Exclusive,
        )?;
        for mr in ends.iter().flat_map(|end| [end.outbox, end.inbox]) {
            if !mr.is_on(gpu) || mr.len() < u64::from(self.size) {
                return Err(Error::InvalidArgument {
                    what: format!(
                        "an inbox or outbox is not {} bytes of this GPU's memory",
                        self.size
                    ),
                    cure: "register enough GPU memory",
                });
            }
            if !(mr.addr() + u64::from(self.size)).is_multiple_of(8) {
                return Err(Error::InvalidArgument {
                    what: format!(
                        "a message of {} bytes does not end at a multiple of 8",
                        self.size
                    ),
                    cure: "register regions whose first `size` bytes end at a multiple of 8",
                });
            }
        }
        Ok(())
    }
}
