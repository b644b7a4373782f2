//! The NIC, opened, with its capabilities.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use warpverbs_wire::abi::MAX_SQ_DEPTH;
use warpverbs_wire::prm::hca_cap::{GeneralCaps, GeneralCaps2, RoceCaps, TimestampCap};
use warpverbs_wire::prm::query_hca_cap::Query;

use super::gpu::{GpuContext, WeakGpu};
use super::mailbox;
use super::memory_path::MemoryPaths;
use crate::driver::{DriverError, DriverErrorKind, Nic};
use crate::error::{Error, Refused, Result};
use crate::teardown::{CloseReport, Entered, GRACE, Graph, Retained, deadline_after, untold};

/// A NIC, opened. Clones are the same NIC.
#[derive(Clone, Debug)]
pub struct Context(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    nic: Arc<dyn Nic>,
    capabilities: Capabilities,
    /// Of completion vector 0, once asked: it is the device's, and stays.
    event_queue: OnceLock<u32>,
    memory: Mutex<Vec<Reached>>,
    /// By port, once asked.
    counters: Mutex<BTreeMap<u8, Option<u8>>>,
    graph: Graph,
}

/// What was found out about a GPU's memory.
#[derive(Debug)]
struct Reached {
    gpu: WeakGpu,
    paths: MemoryPaths,
}

/// What a NIC can do, of what this crate asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Largest send queue in WQEBBs that this crate builds on the NIC.
    pub max_sq_depth: u32,
    /// Largest CQ in CQEs.
    pub max_cq_depth: u32,
    /// log2 of the RDMA reads that a QP can have outstanding.
    pub log_max_reads: u8,
    /// log2 of the RDMA reads that a QP can answer at a time.
    pub log_max_reads_answered: u8,
    /// Ports.
    pub ports: u8,
    /// QPs can do without send doorbell record ([`crate::DoorbellPath::GpuWithoutRecord`]).
    pub no_dbr: bool,
    /// Timestamps of QPs can be in the device's default format.
    pub(crate) default_timestamps: bool,
    /// First and last UDP source port that RoCE v2 QPs may be given; `None`: the NIC chooses them.
    pub(crate) udp_source_ports: Option<(u16, u16)>,
    /// Entries of a port's partition key table.
    pub(crate) pkeys: u16,
    /// Ports of a LAG that a QP may be given one of ([`crate::QpConfig::lag_port`]); 0: none.
    pub lag_ports: u8,
    /// The NIC has a data-direct function, over which memory of GPUs may be registered.
    pub data_direct: bool,
}

impl Context {
    /// Uses a NIC that a driver opened, and reads its capabilities.
    pub fn open(nic: Arc<dyn Nic>) -> Result<Self> {
        let general: GeneralCaps =
            mailbox::command(&*nic, "query the NIC's capabilities", &Query::new())?;
        if !general.rc || !general.cq_oi || general.cqe_version != 1 {
            return Err(Error::Unsupported {
                what: format!(
                    "NIC {} lacks RC QPs ({}), CQs that ignore overrun ({}) or CQE version 1 ({})",
                    nic.name(),
                    general.rc,
                    general.cq_oi,
                    general.cqe_version
                ),
                cure: "use an mlx5 NIC of ConnectX-5 or later, with current firmware",
            });
        }
        let no_dbr = general.hca_cap_2 && {
            let second: GeneralCaps2 =
                mailbox::command(&*nic, "query the NIC's capabilities", &Query::new())?;
            second.send_dbr_mode_no_dbr_ext
        };
        let mut udp_source_ports = None;
        let default_timestamps = if general.roce {
            let roce: RoceCaps =
                mailbox::command(&*nic, "query the NIC's RoCE capabilities", &Query::new())?;
            if roce.sw_r_roce_src_udp_port {
                udp_source_ports =
                    Some((roce.r_roce_min_src_udp_port, roce.r_roce_max_src_udp_port));
            }
            matches!(
                roce.qp_ts_format,
                TimestampCap::RealTime | TimestampCap::Both
            )
        } else {
            false
        };
        let capabilities = Capabilities {
            max_sq_depth: entries(general.log_max_qp_sz).min(MAX_SQ_DEPTH),
            max_cq_depth: entries(general.log_max_cq_sz),
            log_max_reads: general.log_max_ra_req_qp,
            log_max_reads_answered: general.log_max_ra_res_qp,
            ports: general.num_ports,
            no_dbr,
            default_timestamps,
            udp_source_ports,
            // 128 * 2^code entries up to code 5 (mlx5/device.h `mlx5_to_sw_pkey_sz`); of another code nothing is known.
            pkeys: match general.pkey_table_size {
                code @ 0..=5 => 128 << code,
                _ => u16::MAX,
            },
            lag_ports: if general.lag_tx_port_affinity {
                general.num_lag_ports
            } else {
                0
            },
            data_direct: nic
                .data_direct()
                .map_err(Error::driver("ask for the NIC's data-direct function"))?,
        };
        tracing::info!(nic = nic.name(), ?capabilities, "NIC opened");
        Ok(Self(Arc::new(Shared {
            nic,
            capabilities,
            event_queue: OnceLock::new(),
            memory: Mutex::default(),
            counters: Mutex::default(),
            graph: Graph::new(crate::node_kinds::NIC),
        })))
    }

    /// The NIC's name.
    pub fn name(&self) -> String {
        self.0.nic.name()
    }

    /// The driver behind this NIC.
    pub fn driver(&self) -> &dyn Nic {
        &*self.0.nic
    }

    /// What it can do.
    pub fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    /// Closes the NIC for all who hold it: calls under way end and later ones fail, QPs are stopped, drained and taken
    /// from the GPU, and everything that was built on the NIC is destroyed, whoever still holds it. After a refusal the
    /// rest goes on; closing again resumes with what is left.
    pub fn close(self) -> Result<CloseReport, Refused<Self>> {
        self.close_within(GRACE)
    }

    /// As [`Self::close`], with the time that kernels and outstanding work may take.
    pub fn close_within(self, time: Duration) -> Result<CloseReport, Refused<Self>> {
        let report = self.0.graph.close(deadline_after(time));
        report
            .into_result()
            .map_err(|error| Refused { error, value: self })
    }

    /// What could not be destroyed when it was dropped, or when the NIC was closed.
    pub fn retained(&self) -> Vec<Retained> {
        self.0.graph.retained()
    }

    /// Tries to destroy what is retained, and returns what still is.
    pub fn retry_retained(&self) -> Vec<Retained> {
        self.0.graph.retry(deadline_after(GRACE))
    }

    /// How this NIC reaches memory of a GPU, as far as registrations have found out.
    pub fn memory_paths(&self, gpu: &GpuContext) -> MemoryPaths {
        let memory = self.0.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory
            .iter()
            .find(|reached| reached.gpu.is(gpu))
            .map_or_else(MemoryPaths::default, |reached| reached.paths.clone())
    }

    /// Notes what a registration has found out.
    pub(super) fn note_memory(&self, gpu: &GpuContext, note: impl FnOnce(&mut MemoryPaths)) {
        let mut memory = self.0.memory.lock().unwrap_or_else(PoisonError::into_inner);
        // Of GPUs that are closed nothing is known any more: another may lie where one lay.
        memory.retain(|reached| reached.gpu.is_open());
        let at = match memory.iter().position(|reached| reached.gpu.is(gpu)) {
            Some(at) => at,
            None => {
                memory.push(Reached {
                    gpu: gpu.downgrade(),
                    paths: MemoryPaths::default(),
                });
                memory.len() - 1
            }
        };
        if let Some(reached) = memory.get_mut(at) {
            note(&mut reached.paths);
        }
    }

    /// The event queue that CQs name.
    pub(super) fn event_queue(&self) -> Result<u32> {
        if let Some(known) = self.0.event_queue.get() {
            return Ok(*known);
        }
        let asked = self
            .driver()
            .query_eqn(0)
            .map_err(Error::driver("query an event queue"))?;
        Ok(*self.0.event_queue.get_or_init(|| asked))
    }

    /// The counter set of a port's `hw_counters`, asked once.
    pub(super) fn counter_set(&self, port: u8) -> Result<Option<u8>> {
        let known = || {
            self.0
                .counters
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        if let Some(known) = known().get(&port) {
            return Ok(*known);
        }
        let asked = match self.driver().port_counter_set(port) {
            // QPs work without.
            Err(refusal) if refusal.kind == DriverErrorKind::Unsupported => {
                tracing::info!(nic = self.name(), port, %refusal, "hw_counters will not count QPs");
                None
            }
            asked => asked.map_err(Error::driver("learn the port's counter set"))?,
        };
        known().insert(port, asked);
        Ok(asked)
    }

    /// Undoes a driver call. On a NIC that is gone there is nothing to undo.
    pub(crate) fn undo(
        &self,
        doing: &'static str,
        call: impl FnOnce(&dyn Nic) -> Result<(), DriverError>,
    ) -> Result<()> {
        match call(&*self.0.nic) {
            Err(refusal) if refusal.kind == DriverErrorKind::DeviceLost => {
                untold(format!("NIC {}: {doing}", self.name()));
                Ok(())
            }
            done => done.map_err(Error::driver(doing)),
        }
    }

    pub(crate) fn graph(&self) -> &Graph {
        &self.0.graph
    }

    /// True if both are the same NIC, opened once.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Begins a call; fails if the NIC is closed.
    pub(crate) fn enter(&self) -> Result<Entered> {
        self.0.graph.enter()
    }
}

/// 2^`log`, or the most that fits.
fn entries(log: u8) -> u32 {
    1u32.checked_shl(log.into()).unwrap_or(u32::MAX)
}
