//! The send kernels.
//!
//! Knows: their parameter block, and what must hold before it is given to them.
//! Must not know: what a thread reports.
//!
//! One of the files that call `unsafe` functions.

use std::time::Duration;

use warpverbs_wire::abi::{self, BwParams, SendParams};

use super::mode::{Completions, Doorbell, Order, Sharing, check_modes, suffix};
use super::run::{Results, Run};
use super::{DEFAULT_WAIT_DEADLINE, check_qps, nanos, wrong};
use crate::driver::LaunchShape;
use crate::error::Result;
use crate::export::ExportedQp;
use crate::launch::{Stream, View};
use crate::module::Module;
use crate::resource::{GpuContext, GpuMemory, Mr};

/// A run of one of the kernels `wv_send_bw_*`: threads send as fast as queue and receiver take it, and behind them one thread a QP
/// takes what arrives at its peer, and posts the buffer again.
///
/// Thread `t`'s message `i` is the `size` bytes at offset `(t * slots + i % slots) * size` of the local region, with
/// `t * slots + i % slots` as its immediate data. Peer `q` receives into buffers `q * buffers` to `q * buffers + buffers - 1` of the
/// other region, in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sends {
    /// Threads that send, in blocks of [`Self::block`].
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
    /// Bytes of a message.
    pub size: u32,
    /// Buffers that a thread sends from in turn.
    pub slots: u32,
    /// Buffers that a peer receives into in turn: at most its receive queue's depth.
    pub buffers: u32,
    /// Messages of one thread.
    pub iters: u64,
    /// Time that one wait of a thread may take.
    pub wait_deadline: Duration,
}

/// The end of a message's way, by its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Landed {
    /// Bytes that arrived; `u32::MAX` of what was no send with immediate data.
    pub len: u32,
    /// Their immediate data.
    pub immediate: u32,
}

/// Where the receiving threads note what arrived.
#[derive(Debug)]
pub struct LandedLog(GpuMemory);

impl LandedLog {
    /// What arrived last in each buffer; where nothing did, 0 bytes.
    pub fn read(&self) -> Result<Vec<Landed>> {
        let bytes = self.0.to_vec()?;
        let (words, _) = bytes.as_chunks::<8>();
        let landed = |word: &[u8; 8]| {
            let word = u64::from_le_bytes(*word);
            Landed {
                len: (word >> 32) as u32,
                immediate: word as u32,
            }
        };
        Ok(words.iter().map(landed).collect())
    }
}

impl Default for Sends {
    /// One thread sends 4,096 bytes 1,000 times, to a peer with 64 buffers.
    fn default() -> Self {
        Self {
            threads: 1,
            block: 1024,
            sharing: Sharing::Exclusive,
            doorbell: Doorbell::Db,
            order: Order::Sys,
            completions: Completions::Every,
            size: 4096,
            slots: 1,
            buffers: 64,
            iters: 1000,
            wait_deadline: DEFAULT_WAIT_DEADLINE,
        }
    }
}

impl Sends {
    /// Threads of the launch: a report has those that send first, then one a QP, then some that did nothing.
    pub fn launched(&self, qps: usize) -> u32 {
        let block = self.block.min(self.threads);
        let receivers = u32::try_from(qps).unwrap_or(u32::MAX);
        let blocks = receivers.div_ceil(block.max(1));
        self.threads.saturating_add(blocks.saturating_mul(block))
    }

    /// Launches it, cooperatively: `peers` are those of `qps`, in the same order.
    pub fn launch(
        &self,
        module: &Module,
        stream: &Stream,
        qps: &[ExportedQp],
        peers: &[ExportedQp],
        from: &Mr,
        into: &Mr,
    ) -> Result<(Run, LandedLog)> {
        let receives = self.check(module.gpu(), qps, peers, from, into)?;
        let name = format!("wv_send_bw_{}", suffix(self.doorbell, self.order));
        let kernel = module.kernel(&name)?;
        let gpu = module.gpu();
        let handles = super::addresses(gpu, qps.iter().map(ExportedQp::handle))?;
        let receives = super::addresses(gpu, receives.into_iter())?;
        let launched = self.launched(qps.len());
        let results = Results::alloc(gpu, launched)?;
        let words = qps.len() * self.buffers as usize;
        let landed = gpu.alloc_copy(&vec![0; words * 8], "landed messages")?;
        let params = SendParams {
            common: BwParams {
                version: abi::VERSION,
                qps: qps.len() as u32,
                handles: handles.addr(),
                results: results.memory.addr(),
                local: from.addr(),
                remote: 0,
                lkey: from.lkey(),
                rkey: 0,
                size: self.size,
                slots: self.slots,
                iters: self.iters,
                deadline_ns: nanos(self.wait_deadline),
                sharing: self.sharing.code(),
                doorbell: self.doorbell.code(),
            },
            form: self.completions.code(),
            senders: self.threads,
            receives: receives.addr(),
            landed: landed.addr(),
            into: into.addr(),
            into_lkey: into.lkey(),
            buffers: self.buffers,
        };
        let view = qps.iter().fold(View::new(), self.sharing.view());
        let view = peers
            .iter()
            .fold(view, View::qp)
            .mr(from)
            .mr(into)
            .memory(&handles)
            .memory(&receives)
            .memory(&landed)
            .memory(&results.memory);
        let block = self.block.min(self.threads);
        // Senders and receivers wait for each other, so all must be resident.
        let shape = LaunchShape::linear(launched / block, block).cooperative();
        // SAFETY: `Stream::launch` demands
        // - parameters as the kernel declares them: the module has this crate's ABI version, and
        //   the block is that version's;
        // - that the kernel accesses only memory that the view keeps and no Rust reference covers:
        //   it accesses the handles, queues and stop words of the QPs and their peers, the address
        //   arrays, the log and the results, all GPU or host-mapped memory that the view keeps;
        //   message data is accessed by the NIC, which checks the keys.
        let launch = unsafe { stream.launch(&kernel, shape, &params.to_bytes(), view) }?;
        let run = Run {
            kernel: name.into(),
            expected: self.iters,
            launch,
            results,
        };
        Ok((run, LandedLog(landed)))
    }

    /// The receive queues' handles.
    fn check(
        &self,
        gpu: &GpuContext,
        qps: &[ExportedQp],
        peers: &[ExportedQp],
        from: &Mr,
        into: &Mr,
    ) -> Result<Vec<u64>> {
        super::check_geometry(
            (self.threads, self.block, self.sharing),
            (self.size, self.slots, self.iters),
            qps,
        )?;
        if qps.len() != peers.len() {
            return wrong(
                format!("{} QPs and {} peers", qps.len(), peers.len()),
                "give each QP's peer",
            );
        }
        let all: Vec<_> = qps.iter().chain(peers).collect();
        check_qps(gpu, &all, self.size)?;
        let senders: Vec<_> = qps.iter().collect();
        check_modes(
            &senders,
            self.doorbell,
            self.order,
            self.completions,
            self.sharing,
        )?;
        let mut receives = Vec::new();
        for peer in peers {
            let depth = peer.qp().config().receives();
            match peer.receive_handle() {
                Some(handle) if (1..=depth).contains(&self.buffers) => receives.push(handle),
                _ => {
                    return wrong(
                        format!(
                            "{} buffers at a time do not fit the receive queue of QP {:#x}, of depth {depth}",
                            self.buffers,
                            peer.qpn()
                        ),
                        "create the peers with QpConfig::receive_depth, and give 1 to as many buffers",
                    );
                }
            }
        }
        let slots = u64::from(self.threads).checked_mul(self.slots.into());
        if slots.is_none_or(|slots| slots > 1 << 32) {
            return wrong(
                "threads times slots is more than immediate data can number".into(),
                "use fewer slots",
            );
        }
        let needs =
            |count: Option<u64>| count.and_then(|count| count.checked_mul(self.size.into()));
        let buffers = (qps.len() as u64).checked_mul(self.buffers.into());
        for (which, needed, len) in [
            ("local", needs(slots), from.len()),
            ("receiving", needs(buffers), into.len()),
        ] {
            if needed.is_none_or(|needed| needed > len) {
                return wrong(
                    format!(
                        "buffers of {} bytes do not fit the {which} region of {len} bytes",
                        self.size
                    ),
                    "register larger regions, or move less",
                );
            }
        }
        Ok(receives)
    }
}
