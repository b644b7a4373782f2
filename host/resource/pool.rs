//! QPs by the hundred: what they can share, they share.
//!
//! Knows: that one registration, one doorbell page and one query of the port serve all QPs of a pool.
//! Must not know: what becomes of a QP that was created.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::layout::Layout;
use super::path::Gid;
use super::slab::Slab;
use super::{GpuContext, Pd, QpConfig, QueuePair};
use crate::driver::PortInfo;
use crate::error::{Error, Refused, Result};
use crate::teardown::{CloseReport, GRACE, Slot, building, deadline_after};

/// Places for many QPs in one allocation of GPU memory, registered once, with one doorbell page. The QPs are independent
/// of each other and of the pool: each is closed, or refuses to close, by itself, and its place can be taken again once it
/// is destroyed. What they share goes with the last of them.
///
/// ```
/// # #[cfg(feature = "sim")]
/// # fn main() -> warpverbs::Result<()> {
/// # use warpverbs::driver::sim::World;
/// # use warpverbs::{Context, GpuContext, Pd, QpConfig, QpPool, QueuePair};
/// # let world = World::builder().build();
/// # let (nic, gpu) = (Context::open(world.nic())?, GpuContext::open(world.gpu())?);
/// # let pd = Pd::alloc(&nic)?;
/// let pool = QpPool::create(&pd, &gpu, &QpConfig::default(), 100)?;
/// let mut qps = pool.qps(100)?;
/// let infos: Vec<_> = qps.iter().map(QueuePair::local_info).collect();
/// // Here each is connected to itself; two ends exchange their infos.
/// QueuePair::connect_all(&mut qps, &infos)?;
/// let exported = QueuePair::export_all(qps)?;
/// assert_eq!(exported.len(), 100);
/// pool.close()?;
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "sim"))]
/// # fn main() {}
/// ```
pub struct QpPool {
    config: QpConfig,
    port: PortInfo,
    gid: Gid,
    /// Nodes of its QPs, to close them with it.
    members: Mutex<Vec<Weak<dyn Slot>>>,
    slab: Slab,
    pd: Pd,
    gpu: GpuContext,
}

impl QpPool {
    /// Allocates and registers what `places` QPs of these options need.
    pub fn create(pd: &Pd, gpu: &GpuContext, config: &QpConfig, places: u32) -> Result<Self> {
        building(|| Self::build(pd, gpu, config, places))
    }

    fn build(pd: &Pd, gpu: &GpuContext, config: &QpConfig, places: u32) -> Result<Self> {
        let _entered = (pd.context().enter()?, gpu.enter()?);
        if places == 0 {
            return Err(Error::InvalidArgument {
                what: "a pool of 0 places asked for".into(),
                cure: "ask for at least 1 place",
            });
        }
        let context = pd.context();
        let port = context
            .driver()
            .query_port(config.port)
            .map_err(Error::driver("query the port"))?;
        config.check(context, &port)?;
        let gid = Gid::find(context.driver(), config, &port)?;
        let layout = Layout::new(config.depth, config.cq_form, config.doorbell_path, places)
            .with_receives(config.receive_depth);
        let slab = Slab::build(context, gpu, layout, config.first_index)?;
        tracing::debug!(places, bytes = layout.len(), "pool created");
        Ok(Self {
            config: config.clone(),
            port,
            gid,
            members: Mutex::default(),
            slab,
            pd: pd.clone(),
            gpu: gpu.clone(),
        })
    }

    /// Creates a QP in a free place. Connect it, then export it.
    pub fn qp(&self) -> Result<QueuePair> {
        building(|| {
            let _entered = (self.pd.context().enter()?, self.gpu.enter()?);
            self.build_qp()
        })
    }

    /// Creates `count` QPs, or none.
    pub fn qps(&self, count: usize) -> Result<Vec<QueuePair>> {
        building(|| {
            let _entered = (self.pd.context().enter()?, self.gpu.enter()?);
            (0..count).map(|_| self.build_qp()).collect()
        })
    }

    fn build_qp(&self) -> Result<QueuePair> {
        let path = (self.port, self.gid);
        let qp = QueuePair::build(&self.pd, &self.gpu, &self.slab, &self.config, path)?;
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        // Places are taken again: what is gone is not kept in mind.
        if members.len() >= 4 * self.places() as usize {
            members.retain(|member| member.strong_count() > 0);
        }
        members.extend(qp.slots().iter().map(Arc::downgrade));
        Ok(qp)
    }

    /// Its QPs' options.
    pub fn config(&self) -> &QpConfig {
        &self.config
    }

    /// QPs that it has places for.
    pub fn places(&self) -> u32 {
        self.slab.layout().places
    }

    /// Places that are free. A place is taken until its QP and CQ are destroyed.
    pub fn free(&self) -> u32 {
        self.places() - self.slab.taken() as u32
    }

    /// Takes down all QPs of the pool in stages, whoever holds them, and what they share. What refuses stays, with all that
    /// it depends on; siblings go on. Closing again goes on where it stopped.
    ///
    /// An idle QP costs three commands of the NIC. All handles are cleared in one copy.
    #[allow(clippy::result_large_err, reason = "a refusal hands the pool back")]
    pub fn close(self) -> Result<CloseReport, Refused<Self>> {
        self.close_within(GRACE)
    }

    /// As [`Self::close`], with the time that kernels and outstanding work may take.
    #[allow(clippy::result_large_err, reason = "a refusal hands the pool back")]
    pub fn close_within(self, time: Duration) -> Result<CloseReport, Refused<Self>> {
        let mut slots = self.slab.slots().to_vec();
        {
            let members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
            slots.extend(members.iter().filter_map(Weak::upgrade));
        }
        let graph = self.pd.context().graph();
        graph
            .sweep(slots, deadline_after(time))
            .into_result()
            .map_err(|error| Refused { error, value: self })
    }
}

impl Drop for QpPool {
    fn drop(&mut self) {
        self.slab.shut();
    }
}

impl fmt::Debug for QpPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QpPool({:?})", self.slab)
    }
}
