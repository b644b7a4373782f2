//! The kernels that post as fast as the queue takes it: writes, reads, fetch-and-adds, writes of data in the WQE.
//!
//! Knows: their parameter block, and what must hold before it is given to them.
//! Must not know: what a thread reports.
//!
//! One of the files that call `unsafe` functions.

use std::time::Duration;

use warpverbs_wire::abi::{self, BwParams, RateParams};
use warpverbs_wire::wqe::MAX_INLINE_ONE_WQEBB;

use super::mode::{Completions, Doorbell, Order, Sharing, check_modes, suffix};
use super::run::{Results, Run};
use super::{DEFAULT_WAIT_DEADLINE, check_qps, nanos, wrong};
use crate::driver::LaunchShape;
use crate::error::Result;
use crate::export::ExportedQp;
use crate::launch::{Stream, View};
use crate::module::Module;
use crate::resource::{GpuContext, Mr, RemoteMr};

/// What a [`Rate`] kernel's threads post.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Operation {
    /// RDMA write: from the local region to the remote one.
    #[default]
    Write,
    /// RDMA read: from the remote region to the local one.
    Read,
    /// Fetch and add of 8 bytes: all threads add to the first 8 bytes of the remote region, and what each operation found goes to
    /// 8 bytes of the local region.
    FetchAdd {
        /// What is added.
        add: u64,
    },
    /// RDMA write of up to 28 bytes that travel in the WQE, of no local region: [`abi::inline_words`]. Threads that share a queue
    /// as a warp or a block post together: one reserve and one ring for all.
    WriteInline,
}

/// A run of one of the kernels that post as fast as the queue takes it, in any mode.
///
/// Thread `t`'s operation `i` moves `size` bytes at offset `(t * slots + i % slots) * size` of each region; of a fetch-and-add,
/// 8 bytes at that place of the local region alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rate {
    /// What threads post.
    pub operation: Operation,
    /// Threads, in blocks of [`Self::block`].
    pub threads: u32,
    /// Threads of a block.
    pub block: u32,
    /// Which threads share a QP.
    pub sharing: Sharing,
    /// How the doorbell is rung.
    pub doorbell: Doorbell,
    /// Scope of the WQEs' fence.
    pub order: Order,
    /// Which WQEs complete.
    pub completions: Completions,
    /// Bytes of one operation.
    pub size: u32,
    /// Buffers that a thread uses in turn.
    pub slots: u32,
    /// Operations of one thread.
    pub iters: u64,
    /// Time that one wait of a thread may take.
    pub wait_deadline: Duration,
}

impl Default for Rate {
    /// One thread writes 4,096 bytes 1,000 times.
    fn default() -> Self {
        Self {
            operation: Operation::Write,
            threads: 1,
            block: 1024,
            sharing: Sharing::Exclusive,
            doorbell: Doorbell::Db,
            order: Order::Sys,
            completions: Completions::Every,
            size: 4096,
            slots: 1,
            iters: 1000,
            wait_deadline: DEFAULT_WAIT_DEADLINE,
        }
    }
}

impl Rate {
    /// Bytes that the local region must have.
    pub fn local_len(&self) -> Option<u64> {
        match self.operation {
            Operation::Write | Operation::Read => self.slots_len(self.size),
            Operation::FetchAdd { .. } => self.slots_len(8),
            Operation::WriteInline => Some(0),
        }
    }

    /// Bytes that the remote region must have.
    pub fn remote_len(&self) -> Option<u64> {
        match self.operation {
            Operation::FetchAdd { .. } => Some(8),
            _ => self.slots_len(self.size),
        }
    }

    fn slots_len(&self, size: u32) -> Option<u64> {
        u64::from(self.threads)
            .checked_mul(self.slots.into())?
            .checked_mul(size.into())
    }

    /// True if one of the kernels that have only the usual modes does it.
    fn is_usual(&self) -> bool {
        matches!(self.operation, Operation::Write | Operation::Read)
            && matches!(self.sharing, Sharing::Exclusive | Sharing::Gpu)
            && matches!(self.doorbell, Doorbell::Db | Doorbell::DbEarly)
            && self.order == Order::Sys
            && self.completions == Completions::Every
    }

    /// Launches it. `local` may be left out where no local region is used.
    pub fn launch(
        &self,
        module: &Module,
        stream: &Stream,
        qps: &[ExportedQp],
        local: Option<&Mr>,
        remote: &RemoteMr,
    ) -> Result<Run> {
        self.check(module.gpu(), qps, local, remote)?;
        let family = match self.operation {
            Operation::Write => "wv_write_bw",
            Operation::Read => "wv_read_bw",
            Operation::FetchAdd { .. } => "wv_atomic_rate",
            Operation::WriteInline => "wv_post_rate",
        };
        let name = if self.is_usual() {
            family.to_owned()
        } else {
            format!("{family}_{}", suffix(self.doorbell, self.order))
        };
        let kernel = module.kernel(&name)?;
        let gpu = module.gpu();
        let handles = super::addresses(gpu, qps.iter().map(ExportedQp::handle))?;
        let results = Results::alloc(gpu, self.threads)?;
        let common = BwParams {
            version: abi::VERSION,
            qps: qps.len() as u32,
            handles: handles.addr(),
            results: results.memory.addr(),
            local: local.map_or(0, Mr::addr),
            remote: remote.addr,
            lkey: local.map_or(0, Mr::lkey),
            rkey: remote.rkey,
            size: self.size,
            slots: self.slots,
            iters: self.iters,
            deadline_ns: nanos(self.wait_deadline),
            sharing: self.sharing.code(),
            doorbell: self.doorbell.code(),
        };
        let params = if self.is_usual() {
            common.to_bytes().to_vec()
        } else {
            let add = match self.operation {
                Operation::FetchAdd { add } => add,
                _ => 0,
            };
            let params = RateParams {
                common,
                form: self.completions.code(),
                reserved: 0,
                add,
            };
            params.to_bytes().to_vec()
        };
        let view = qps
            .iter()
            .fold(View::new(), self.sharing.view())
            .memory(&handles)
            .memory(&results.memory);
        let view = local.into_iter().fold(view, View::mr);
        let block = self.block.min(self.threads);
        let shape = LaunchShape::linear(self.threads.div_ceil(block), block);
        // SAFETY: `Stream::launch` demands
        // - parameters as the kernel declares them: the module has this crate's ABI version, and
        //   the block is that version's;
        // - that the kernel accesses only memory that the view keeps and no Rust reference covers:
        //   it accesses the handles, queues and stop words of the QPs, the address array and the
        //   results, all GPU or host-mapped memory that the view keeps; message data is accessed by
        //   the NIC, which checks the keys.
        let launch = unsafe { stream.launch(&kernel, shape, &params, view) }?;
        Ok(Run {
            kernel: name.into(),
            expected: self.iters,
            launch,
            results,
        })
    }

    fn check(
        &self,
        gpu: &GpuContext,
        qps: &[ExportedQp],
        local: Option<&Mr>,
        remote: &RemoteMr,
    ) -> Result<()> {
        super::check_geometry(
            (self.threads, self.block, self.sharing),
            (self.size, self.slots, self.iters),
            qps,
        )?;
        let each: Vec<_> = qps.iter().collect();
        check_qps(gpu, &each, self.size)?;
        check_modes(
            &each,
            self.doorbell,
            self.order,
            self.completions,
            self.sharing,
        )?;
        match self.operation {
            Operation::FetchAdd { .. } => {
                let local = local.map_or(0, Mr::addr);
                if self.size != 8 || !(local | remote.addr).is_multiple_of(8) {
                    return wrong(
                        "a fetch-and-add is of 8 bytes at multiples of 8".into(),
                        "choose a size of 8, and regions that begin at a multiple of 8",
                    );
                }
            }
            Operation::WriteInline => {
                if self.size > MAX_INLINE_ONE_WQEBB {
                    return wrong(
                        format!(
                            "{} bytes do not fit a WQE of one WQEBB, which takes {MAX_INLINE_ONE_WQEBB}",
                            self.size
                        ),
                        "write less at a time",
                    );
                }
                let is_group = matches!(self.sharing, Sharing::Warp | Sharing::Cta);
                if is_group && self.completions == Completions::OnError {
                    return wrong(
                        "no provided kernel posts together with completions of errors alone".into(),
                        "let every WQE complete, or choose the sharing Exclusive or Gpu",
                    );
                }
                let together = self.block.min(self.threads);
                let shallow = qps.iter().find(|qp| qp.qp().depth() <= together);
                if let (true, Some(qp)) = (is_group, shallow) {
                    return wrong(
                        format!(
                            "{together} threads that post together need more WQEBBs than QP {:#x} has, {}",
                            qp.qpn(),
                            qp.qp().depth()
                        ),
                        "make the QPs deeper than a block has threads",
                    );
                }
            }
            Operation::Write | Operation::Read => {}
        }
        for (which, needed, len) in [
            ("local", self.local_len(), local.map_or(0, Mr::len)),
            ("remote", self.remote_len(), remote.len),
        ] {
            if needed.is_none_or(|needed| needed > len) {
                return wrong(
                    format!(
                        "{} threads with {} slots of {} bytes do not fit the {which} region of {len} bytes",
                        self.threads, self.slots, self.size
                    ),
                    "register larger regions, or move less",
                );
            }
        }
        Ok(())
    }
}
