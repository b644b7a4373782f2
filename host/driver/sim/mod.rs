//! Simulated NICs on one bus in this process, with a simulated GPU, or with the host as one.
//!
//! Knows: how they are joined, and how to ask them what went wrong.
//! Must not know: what is built on them.

#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
mod beside;
mod driven;
#[allow(unsafe_code)]
mod gpu;
#[allow(unsafe_code)]
mod nic;
mod turns;

use std::fmt::{self, Write as _};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use warpverbs_sim_bus::{Bus, bar_base};
use warpverbs_sim_gpu::{GpuModel, memory_of};
use warpverbs_sim_nic::{Background, NicModel};
use warpverbs_wire::doorbell::UAR_PAGE;

pub use warpverbs_sim_gpu::{
    Check, GpuConfig, OrderReport, Scheduler, Script, explore, kernels as kernels_of,
};
pub use warpverbs_sim_nic::Event as NicEvent;
pub use warpverbs_sim_nic::{
    Cable, CablePlan, CableStats, FindingPolicy, InjectedFault, NicConfig, NicStats, ObjectId,
    ObjectKind, Trace,
};

pub use self::driven::{Drive as DriveNic, Driven, Simulated};
use self::gpu::SimGpu;
use self::nic::{Drive, SimNic};
pub use self::turns::Beside;
use self::turns::Schedule;
use super::host_gpu::HostGpu;
use super::{Gpu, Nic, WriteOrdering};

/// How long NICs that run by themselves may take to come to rest.
const REST: Duration = Duration::from_secs(10);

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
    nics: Vec<Arc<SimNic>>,
    /// Who drives them, if others than these do.
    driven: Vec<Arc<dyn Driven>>,
    cable: Option<Cable>,
    processor: Processor,
    findings: Mutex<Vec<String>>,
}

/// A simulated GPU beside NICs of the system: its memory is files, which a simulated NIC behind the kernel's ABI takes for dmabufs.
/// `is_page` knows the NICs' doorbell pages.
#[cfg(target_os = "linux")]
pub(crate) fn gpu_beside_nics(
    seed: u64,
    is_page: impl Fn(u64) -> bool + Send + Sync + 'static,
) -> Arc<dyn Gpu> {
    /// Steps without progress of a GPU whose NICs take real time: what waits for them has deadlines of its own.
    const PATIENCE: u64 = 20_000_000_000;
    let memory = beside::SharedMemory::new();
    let arena = memory.arena.clone();
    let bus = Bus::new(Box::new(memory));
    let doorbells = Arc::new(Mutex::new(beside::Doorbells::default()));
    let bar = bar_base(bus.attach(doorbells.clone()));
    let config = GpuConfig {
        seed,
        step_budget: PATIENCE,
        ..GpuConfig::default()
    };
    let registers = move |page: u64| {
        is_page(page).then(|| {
            let mut doorbells = doorbells.lock().unwrap_or_else(PoisonError::into_inner);
            bar + doorbells.place(page, &is_page)
        })
    };
    let model = GpuModel::new(config, bus.clone());
    let beside = Arc::new(Schedule::new(seed));
    let gpu = SimGpu::new(
        model,
        bus,
        beside,
        WriteOrdering::Owner,
        Box::new(registers),
    );
    Arc::new(gpu.in_files(arena))
}

/// Who runs kernels, and with that who drives the NICs.
enum Processor {
    /// Simulated: it and the NICs take steps in turn.
    Simulated(Arc<SimGpu>),
    /// The host's CPUs: the NICs have a thread.
    Host(Arc<HostGpu>, Arc<Background>),
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
    drive: Option<DriveNic>,
    one_page: bool,
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
            drive: None,
            one_page: false,
        }
    }

    /// The first NIC.
    pub fn nic(&self) -> Arc<dyn Nic> {
        match self.driven.first() {
            Some(driven) => driven.clone(),
            // `WorldBuilder::build` makes at least one.
            None => self.nics[0].clone(),
        }
    }

    /// NIC number `index`, if there is one.
    pub fn nic_at(&self, index: usize) -> Option<Arc<dyn Nic>> {
        if let Some(driven) = self.driven.get(index) {
            return Some(driven.clone());
        }
        Some(self.nics.get(index)?.clone())
    }

    /// The cable between the first two NICs, if there are two.
    pub fn cable(&self) -> Option<&Cable> {
        self.cable.as_ref()
    }

    /// Adds what the NICs do from now on to a trace.
    pub fn trace(&self, trace: &Trace) {
        for nic in &self.nics {
            nic.model().trace(trace);
        }
    }

    /// The GPU.
    pub fn gpu(&self) -> Arc<dyn Gpu> {
        match &self.processor {
            Processor::Simulated(gpu) => gpu.clone(),
            Processor::Host(gpu, _) => gpu.clone(),
        }
    }

    /// Runs work of a host thread, such as [`crate::Proxy::step`], in the seeded schedule of the simulated GPU and the NICs,
    /// until the value is dropped: `work` is called again and again, and says whether it did something. Calls of drivers that
    /// it makes let GPU and NICs get a little further. Host threads are one agent to the memory model: they share locks. `None`
    /// where threads are real: start one.
    pub fn run_beside(&self, work: impl FnMut() -> bool + Send + 'static) -> Option<Beside> {
        match &self.processor {
            Processor::Simulated(gpu) => Some(gpu.beside().add(Box::new(work))),
            Processor::Host(..) => None,
        }
    }

    /// Lets the devices do what they still have to do, while no kernel runs.
    pub fn settle(&self) {
        match &self.processor {
            Processor::Simulated(gpu) => gpu.advance(),
            Processor::Host(_, nics) => {
                if !nics.quiesce(REST) {
                    tracing::debug!("the NICs do not come to rest");
                }
            }
        }
    }

    /// What the NICs and the memory model found wrong so far, one line each. The end of a run is judged too, so ask when
    /// no kernel runs.
    pub fn findings(&self) -> Vec<String> {
        self.settle();
        let mut findings = self.findings.lock().unwrap_or_else(PoisonError::into_inner);
        match &self.processor {
            Processor::Simulated(gpu) => findings.extend(
                gpu.order_reports()
                    .iter()
                    .map(|report| format!("memory order: {report}")),
            ),
            Processor::Host(_, nics) if !nics.is_running() => {
                findings.push("the NICs' thread has died".to_owned());
            }
            Processor::Host(..) => {}
        }
        for nic in &self.nics {
            let (name, found) = {
                let mut model = nic.model();
                model.end_of_run();
                (model.config().name.clone(), model.take_findings())
            };
            // A GPU is locked before a NIC, so names are looked up when the NIC is free.
            for finding in found {
                let mut line = format!("{name}: {finding}");
                let stores = [
                    ("record", finding.told.record),
                    ("doorbell", finding.told.doorbell),
                ];
                if let Processor::Simulated(gpu) = &self.processor {
                    for (what, by) in stores
                        .into_iter()
                        .filter_map(|(what, by)| Some((what, by?)))
                    {
                        let _ = write!(line, "; the {what}: {}", gpu.access(by));
                    }
                }
                // The end of a run can be judged several times.
                if !findings.contains(&line) {
                    findings.push(line);
                }
            }
        }
        let mut lines = findings.clone();
        if let Processor::Simulated(gpu) = &self.processor
            && let left_out @ 1.. = gpu.order_reports_left_out()
        {
            lines.push(format!(
                "memory order: {left_out} more, of other pairs of instructions"
            ));
        }
        lines
    }

    /// What the first NIC counted.
    pub fn nic_stats(&self) -> NicStats {
        self.with_nic(|model| model.stats().clone())
    }

    /// What NIC number `index` counted, if there is one.
    pub fn nic_stats_at(&self, index: usize) -> Option<NicStats> {
        Some(self.nics.get(index)?.model().stats().clone())
    }

    /// Looks at, or changes, the model of the first NIC: to inject faults, for example. Make no
    /// driver call meanwhile.
    pub fn with_nic<T>(&self, look: impl FnOnce(&mut NicModel) -> T) -> T {
        look(&mut self.nics[0].model())
    }

    /// The bus, to look at memory behind the drivers' back.
    pub fn bus(&self) -> &Arc<Bus> {
        &self.bus
    }

    /// Everything that is allocated, registered or open, one line each. Empty: nothing leaks.
    pub fn live(&self) -> Vec<String> {
        let mut live = match &self.processor {
            Processor::Simulated(gpu) => gpu.live(),
            Processor::Host(gpu, _) => gpu.live(),
        };
        for (number, nic) in self.nics.iter().enumerate() {
            let (name, mut objects) = {
                let model = nic.model();
                (model.config().name.clone(), model.live_objects())
            };
            objects = match self.driven.get(number) {
                Some(driven) => driven.of_user(objects),
                None => nic.of_user(objects),
            };
            live.extend(objects.iter().map(|object| format!("{name} {object}")));
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

    /// Ports are InfiniBand, addressed by LID: NIC `n` has LID `1 + n`. Without this they are RoCE, v2 or v1 by the GID that a QP
    /// uses ([`crate::QpConfig::gid_index`]).
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

    /// Doorbell pages that are not cached are one page of the NIC, for all who ask for one, and it is kept: as libmlx5 has it where
    /// it knows no dedicated pages. Without this each has its own.
    pub fn one_doorbell_page(mut self) -> Self {
        self.one_page = true;
        self
    }

    /// Has another driver stand between the NICs and whoever uses them.
    pub fn drive(mut self, drive: DriveNic) -> Self {
        self.drive = Some(drive);
        self
    }

    /// Builds the devices. NIC `n` is called `sim<n>`.
    pub fn build(self) -> World {
        let mut parts = self.parts();
        parts.lend(self.drive, None);
        let beside = Arc::new(Schedule::new(self.gpu.seed));
        let gpu = GpuModel::new(self.gpu, parts.bus.clone());
        let drivers = parts.driven.clone();
        let registers = move |addr: u64| {
            drivers.iter().enumerate().find_map(|(number, driven)| {
                let page = driven.page_at(addr)?;
                Some(bar_base(number) + u64::from(page) * UAR_PAGE as u64)
            })
        };
        let gpu = SimGpu::new(
            gpu,
            parts.bus.clone(),
            beside,
            self.write_ordering,
            Box::new(registers),
        );
        let drive = |number: usize| Drive::Stepped {
            bar: bar_base(number),
        };
        parts.join(drive, Processor::Simulated(Arc::new(gpu)))
    }

    /// Builds NICs that run by themselves, on one thread, in real time and over the process's own memory; the GPU is the
    /// host, whose CPUs run the native build of the embedded kernels. A seed does not replay such a run, and what
    /// [`Self::scheduler`], [`Self::check`] and [`Self::gpu_config`] say is of no use here.
    pub fn build_on_host(self) -> io::Result<World> {
        let mut parts = self.parts();
        let nics = parts.models.iter().cloned().enumerate().collect();
        let thread = Arc::new(Background::start(&parts.bus, nics)?);
        parts.lend(self.drive, Some(&thread));
        let pages = thread.clone();
        let drivers = parts.driven.clone();
        let is_page = move |addr| {
            pages.is_page(addr) || drivers.iter().any(|driven| driven.page_at(addr).is_some())
        };
        let gpu = HostGpu::new(parts.bus.clone(), self.write_ordering, is_page);
        let running = thread.clone();
        let drive = move |number| Drive::Background {
            thread: running.clone(),
            number,
        };
        Ok(parts.join(drive, Processor::Host(Arc::new(gpu), thread)))
    }

    fn parts(&self) -> Parts {
        let bus = Bus::new(memory_of(&self.gpu));
        let models: Vec<Arc<Mutex<NicModel>>> = (0..self.nics)
            .map(|number| {
                let mut config = self.nic.clone();
                config.name = format!("sim{number}");
                // Software that is right does not notice, but there is nothing to be found in flat memory.
                config.reads_records_early |= self.gpu.check != Check::Fast;
                config.checks_wqes |= self.gpu.check != Check::Fast;
                // The last byte tells the NICs apart, and so their GIDs; on InfiniBand, their LIDs do.
                config.lid = config.lid.wrapping_add(number as u16);
                config.mac[5] = config.mac[5].wrapping_add(number as u8);
                let model = Arc::new(Mutex::new(NicModel::new(config)));
                bus.attach(model.clone());
                model
            })
            .collect();
        let cable = match models.as_slice() {
            [first, second, ..] => {
                let (cable, near, far) = Cable::new(self.cable.clone(), self.nic.seed);
                for (model, end) in [(first, near), (second, far)] {
                    let mut model = model.lock().unwrap_or_else(PoisonError::into_inner);
                    model.connect(end);
                }
                Some(cable)
            }
            _ => None,
        };
        Parts {
            one_page: self.one_page,
            bus,
            models,
            driven: Vec::new(),
            cable,
        }
    }
}

/// NICs on a bus, before anything drives them. Their numbers on the bus are their places in the list.
struct Parts {
    bus: Arc<Bus>,
    models: Vec<Arc<Mutex<NicModel>>>,
    one_page: bool,
    driven: Vec<Arc<dyn Driven>>,
    cable: Option<Cable>,
}

impl Parts {
    /// Hands the NICs to another driver, if there is one.
    fn lend(&mut self, drive: Option<DriveNic>, thread: Option<&Arc<Background>>) {
        let Some(drive) = drive else { return };
        let simulated = |(number, model): (usize, &Arc<Mutex<NicModel>>)| {
            drive(Simulated {
                bus: self.bus.clone(),
                model: model.clone(),
                number,
                thread: thread.cloned(),
            })
        };
        self.driven = self.models.iter().enumerate().map(simulated).collect();
    }

    fn join(self, drive: impl Fn(usize) -> Drive, processor: Processor) -> World {
        let Self {
            bus,
            models,
            one_page,
            driven,
            cable,
        } = self;
        let driver = |(number, model)| {
            let nic = SimNic::new(model, bus.clone(), drive(number), one_page);
            Arc::new(nic)
        };
        World {
            nics: models.into_iter().enumerate().map(driver).collect(),
            driven,
            bus,
            cable,
            processor,
            findings: Mutex::default(),
        }
    }
}
