//! Simulated NICs and a simulated GPU on one bus, in this process.
//!
//! Knows: how they are joined, and how to ask them what went wrong.
//! Must not know: what is built on them.

#[allow(unsafe_code)]
mod gpu;
#[allow(unsafe_code)]
mod nic;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use warpverbs_sim_bus::{Bus, bar_base};
use warpverbs_sim_gpu::{GpuModel, memory_of};
use warpverbs_sim_nic::NicModel;

pub use warpverbs_sim_gpu::{
    Check, GpuConfig, OrderReport, Scheduler, Script, explore, kernels as kernels_of,
};
pub use warpverbs_sim_nic::{
    Cable, CablePlan, CableStats, FindingPolicy, InjectedFault, NicConfig, NicStats, Trace,
};

use self::gpu::SimGpu;
use self::nic::SimNic;
use super::{Gpu, Nic, WriteOrdering};

/// Simulated devices, joined by a bus.
///
/// ```
/// use warpverbs::driver::sim::World;
/// use warpverbs::{Context, GpuContext};
///
/// # fn main() -> warpverbs::Result<()> {
/// let world = World::builder().seed(7).build();
/// let nic = Context::open(world.nic())?;
/// let gpu = GpuContext::open(world.gpu())?;
/// drop((nic, gpu));
/// assert!(world.live().is_empty());
/// # Ok(())
/// # }
/// ```
pub struct World {
    bus: Arc<Bus>,
    nics: Vec<SimulatedNic>,
    cable: Option<Cable>,
    gpu: Arc<SimGpu>,
    findings: Mutex<Vec<String>>,
}

struct SimulatedNic {
    model: Arc<Mutex<NicModel>>,
    driver: Arc<SimNic>,
}

/// Options of a [`World`].
#[derive(Clone, Debug)]
#[must_use]
pub struct WorldBuilder {
    nics: usize,
    nic: NicConfig,
    cable: CablePlan,
    gpu: GpuConfig,
    write_ordering: WriteOrdering,
}

impl World {
    /// One NIC and a GPU; change what is to be different.
    pub fn builder() -> WorldBuilder {
        WorldBuilder {
            nics: 1,
            cable: CablePlan::default(),
            nic: NicConfig::default(),
            gpu: GpuConfig::default(),
            write_ordering: WriteOrdering::Owner,
        }
    }

    /// The first NIC.
    pub fn nic(&self) -> Arc<dyn Nic> {
        // `WorldBuilder::build` makes at least one.
        self.nics[0].driver.clone()
    }

    /// NIC number `index`, if there is one.
    pub fn nic_at(&self, index: usize) -> Option<Arc<dyn Nic>> {
        Some(self.nics.get(index)?.driver.clone())
    }

    /// The cable between the first two NICs, if there are two.
    pub fn cable(&self) -> Option<&Cable> {
        self.cable.as_ref()
    }

    /// Adds what the NICs do from now on to a trace.
    pub fn trace(&self, trace: &Trace) {
        for nic in &self.nics {
            let mut model = nic.model.lock().unwrap_or_else(PoisonError::into_inner);
            model.trace(trace);
        }
    }

    /// The GPU.
    pub fn gpu(&self) -> Arc<dyn Gpu> {
        self.gpu.clone()
    }

    /// Lets the devices do what they still have to do, while no kernel runs.
    pub fn settle(&self) {
        self.gpu.advance();
    }

    /// What the NICs and the memory model found wrong so far, one line each. The end of a run is judged too, so ask when
    /// no kernel runs.
    pub fn findings(&self) -> Vec<String> {
        self.settle();
        let mut findings = self.findings.lock().unwrap_or_else(PoisonError::into_inner);
        findings.extend(
            self.gpu
                .order_reports()
                .iter()
                .map(|report| format!("memory order: {report}")),
        );
        for nic in &self.nics {
            let mut model = nic.model.lock().unwrap_or_else(PoisonError::into_inner);
            model.end_of_run();
            for finding in model.take_findings() {
                let line = format!("{}: {finding}", model.config().name);
                // The end of a run can be judged several times.
                if !findings.contains(&line) {
                    findings.push(line);
                }
            }
        }
        findings.clone()
    }

    /// What the first NIC counted.
    pub fn nic_stats(&self) -> NicStats {
        self.with_nic(|model| model.stats().clone())
    }

    /// What NIC number `index` counted, if there is one.
    pub fn nic_stats_at(&self, index: usize) -> Option<NicStats> {
        let model = &self.nics.get(index)?.model;
        let model = model.lock().unwrap_or_else(PoisonError::into_inner);
        Some(model.stats().clone())
    }

    /// Looks at, or changes, the model of the first NIC: to inject faults, for example. Make no
    /// driver call meanwhile.
    pub fn with_nic<T>(&self, look: impl FnOnce(&mut NicModel) -> T) -> T {
        let mut model = self.nics[0]
            .model
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        look(&mut model)
    }

    /// The bus, to look at memory behind the drivers' back.
    pub fn bus(&self) -> &Arc<Bus> {
        &self.bus
    }

    /// Everything that is allocated, registered or open, one line each. Empty: nothing leaks.
    pub fn live(&self) -> Vec<String> {
        let mut live = self.gpu.live();
        for nic in &self.nics {
            let model = nic.model.lock().unwrap_or_else(PoisonError::into_inner);
            let name = &model.config().name;
            live.extend(
                model
                    .live_objects()
                    .iter()
                    .map(|object| format!("{name} {object}")),
            );
        }
        let open = self.bus.lock().dmabufs.open();
        if open > 0 {
            live.push(format!("{open} dmabuf descriptor(s)"));
        }
        live
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "World({} NICs)", self.nics.len())
    }
}

impl WorldBuilder {
    /// The seed that every choice of the simulation comes from: the same seed, the same run.
    pub fn seed(mut self, seed: u64) -> Self {
        self.nic.seed = seed;
        self.gpu.seed = seed;
        self
    }

    /// How many NICs, at least one. QPs of one NIC reach each other; a cable joins the first two NICs.
    pub fn nics(mut self, nics: usize) -> Self {
        self.nics = nics.max(1);
        self
    }

    /// What the cable does to frames: nothing, unless the plan says so.
    pub fn cable(mut self, plan: CablePlan) -> Self {
        self.cable = plan;
        self
    }

    /// How GPU threads are scheduled.
    pub fn scheduler(mut self, scheduler: Scheduler) -> Self {
        self.gpu.scheduler = scheduler;
        self
    }

    /// How memory is modelled and judged.
    pub fn check(mut self, check: Check) -> Self {
        self.gpu.check = check;
        self
    }

    /// Where the indices of new QPs and CQs start; tell [`crate::QpConfig::first_index`] the same.
    pub fn first_index(mut self, index: u64) -> Self {
        self.nic.first_index = index;
        self
    }

    /// Ports are InfiniBand, addressed by LID. Without this they are RoCE v2.
    pub fn infiniband(mut self) -> Self {
        self.nic.link_layer = warpverbs_sim_nic::LinkLayer::InfiniBand;
        self
    }

    /// How far the GPU says that it orders the NIC's writes.
    pub fn write_ordering(mut self, ordering: WriteOrdering) -> Self {
        self.write_ordering = ordering;
        self
    }

    /// What a NIC's finding does beside being kept: nothing, or the QPs that it concerns fail.
    pub fn on_finding(mut self, policy: FindingPolicy) -> Self {
        self.nic.findings = policy;
        self
    }

    /// Changes other options of the NICs.
    pub fn nic_config(mut self, change: impl FnOnce(&mut NicConfig)) -> Self {
        change(&mut self.nic);
        self
    }

    /// Changes other options of the GPU.
    pub fn gpu_config(mut self, change: impl FnOnce(&mut GpuConfig)) -> Self {
        change(&mut self.gpu);
        self
    }

    /// Builds the devices. NIC `n` is called `sim<n>`.
    pub fn build(self) -> World {
        let bus = Bus::new(memory_of(&self.gpu));
        let nics: Vec<SimulatedNic> = (0..self.nics)
            .map(|number| {
                let mut config = self.nic.clone();
                config.name = format!("sim{number}");
                // The last byte tells the NICs apart, and so their GIDs.
                // Software that is right does not notice, but there is nothing to be found in flat memory.
                config.reads_records_early |= self.gpu.check != Check::Fast;
                config.checks_wqes |= self.gpu.check != Check::Fast;
                config.mac[5] = config.mac[5].wrapping_add(number as u8);
                let model = Arc::new(Mutex::new(NicModel::new(config)));
                let device = bus.attach(model.clone());
                let driver = Arc::new(SimNic::new(model.clone(), bus.clone(), bar_base(device)));
                SimulatedNic { model, driver }
            })
            .collect();
        let cable = match nics.as_slice() {
            [first, second, ..] => {
                let (cable, near, far) = Cable::new(self.cable, self.nic.seed);
                for (nic, end) in [(first, near), (second, far)] {
                    let mut model = nic.model.lock().unwrap_or_else(PoisonError::into_inner);
                    model.connect(end);
                }
                Some(cable)
            }
            _ => None,
        };
        let gpu = Arc::new(SimGpu::new(
            GpuModel::new(self.gpu, bus.clone()),
            bus.clone(),
            self.write_ordering,
        ));
        World {
            bus,
            nics,
            cable,
            gpu,
            findings: Mutex::default(),
        }
    }
}
