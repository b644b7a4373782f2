//! The simulated GPU, as a driver sees it.
//!
//! Knows: modules, kernels, streams, events, launches, mapped registers, and that a failed kernel kills the context.
//! Must not know: instructions or scheduling.

use std::collections::BTreeMap;
use std::sync::Arc;

use warpverbs_sim_bus::{BAR_SIZE, Bus, BusState, Event, Memory, Party, Region, region_of};

use crate::config::{Check, GpuConfig, Scheduler};
use crate::counters::LaunchCounters;
use crate::error::{GpuError, LoadError};
use crate::memory::FastMemory;
use crate::module::{Module, needs};
use crate::order::{AccessReport, LaunchNames, OrderReport};
use crate::report::RunReport;
use crate::run::machine::Machine;
use crate::run::state::{Launch, LaunchShape};
use crate::stream::Streams;
use crate::strict::{StrictMemory, beyond_the_model};
use crate::window::RegisterWindow;

/// Limits of a launch (CUDA C++ Programming Guide, "Compute Capabilities").
const MAX_BLOCK_THREADS: u64 = 1024;
const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
const MAX_GRID: [u32; 3] = [0x7fff_ffff, 65_535, 65_535];
/// Shared memory of a block: 227 KiB.
const MAX_SHARED: u64 = 227 * 1024;

macro_rules! id {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u64);
        impl $name {
            /// Its number.
            pub const fn raw(self) -> u64 {
                self.0
            }
            /// The object of a number, which need not exist.
            pub const fn from_raw(raw: u64) -> Self {
                Self(raw)
            }
        }
    )*};
}

id! {
    /// A loaded module.
    ModuleId;
    /// A kernel of a loaded module.
    KernelId;
    /// A stream.
    StreamId;
    /// An event.
    EventId;
}

impl KernelId {
    fn new(module: u64, func: u32) -> Self {
        Self(module << 32 | u64::from(func))
    }

    fn module(self) -> u64 {
        self.0 >> 32
    }

    fn func(self) -> u32 {
        self.0 as u32
    }
}

/// What [`GpuModel::advance`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advance {
    /// Steps taken: instructions, and steps of devices.
    pub steps: u64,
    /// True if nothing is left to do: no kernel runs or waits, and all devices are idle.
    pub idle: bool,
}

/// A simulated GPU.
///
/// Nothing runs by itself: [`Self::advance`] does all work. Streams run concurrently, each in order.
pub struct GpuModel {
    bus: Arc<Bus>,
    converge: bool,
    machine: Machine,
    modules: BTreeMap<u64, Module>,
    modules_issued: u64,
    streams: Streams,
    launches_issued: u64,
    registers: RegisterWindow,
    /// Sorted ranges of constant variables of all modules.
    read_only: Vec<(u64, u64)>,
    failure: Option<Arc<RunReport>>,
    /// For reports on memory order; empty with [`Check::Fast`].
    names: LaunchNames,
    check: Check,
    order_reports: Vec<OrderReport>,
}

/// Memory that models what a configuration asks for.
pub fn memory_of(config: &GpuConfig) -> Box<dyn Memory> {
    match config.check {
        Check::Fast => Box::new(FastMemory::new()),
        Check::Strict => Box::new(StrictMemory::scripted(
            config.seed,
            config.script.clone(),
            false,
        )),
        Check::Gpu => Box::new(StrictMemory::scripted(
            config.seed,
            config.script.clone(),
            true,
        )),
    }
}

impl GpuModel {
    /// A GPU whose memory is that of the bus.
    pub fn new(config: GpuConfig, bus: Arc<Bus>) -> Self {
        Self {
            bus,
            converge: config.scheduler == Scheduler::Converge,
            check: config.check,
            names: LaunchNames::default(),
            order_reports: Vec::new(),
            machine: Machine::new(config),
            modules: BTreeMap::new(),
            modules_issued: 0,
            streams: Streams::default(),
            launches_issued: 0,
            registers: RegisterWindow::default(),
            read_only: Vec::new(),
            failure: None,
        }
    }

    /// False once a kernel has failed.
    pub fn is_alive(&self) -> bool {
        self.failure.is_none()
    }

    /// Why the context is dead.
    pub fn failure(&self) -> Option<Arc<RunReport>> {
        self.failure.clone()
    }

    /// Simulated time, in ns: one step is one ns. Not a measurement.
    pub fn now_ns(&self) -> u64 {
        self.machine.now()
    }

    /// A number that mixes every choice of the scheduler so far: equal for runs that took the same steps.
    pub fn schedule_fingerprint(&self) -> u64 {
        self.machine.fingerprint()
    }

    fn alive(&self) -> Result<(), GpuError> {
        match &self.failure {
            None => Ok(()),
            Some(report) => Err(GpuError::Dead(report.clone())),
        }
    }

    /// Loads a PTX module. Its variables are allocated and initialised in GPU memory.
    pub fn load_module(&mut self, ptx: &str) -> Result<ModuleId, LoadError> {
        if let Some(report) = &self.failure {
            return Err(LoadError::new(0, format!("the context is dead: {report}")));
        }
        let mut bus = self.bus.lock();
        let module = Module::load(ptx, &mut bus, self.converge)?;
        if self.check != Check::Fast
            && let Some(error) = beyond_the_model(&module.program)
        {
            for (addr, _) in module.globals.values() {
                // Just allocated: freeing it cannot fail.
                let _ = bus.memory.free(*addr);
            }
            return Err(error);
        }
        drop(bus);
        self.modules_issued += 1;
        let id = self.modules_issued;
        self.modules.insert(id, module);
        self.collect_read_only();
        Ok(ModuleId(id))
    }

    /// Unloads a module and frees its variables.
    pub fn unload_module(&mut self, module: ModuleId) -> Result<(), GpuError> {
        let id = module.0;
        if self.machine.runs_module(id) || self.streams.holds_module(id) {
            return Err(GpuError::Busy(format!("module {id}")));
        }
        let Some(module) = self.modules.remove(&id) else {
            return Err(GpuError::NoSuch { what: "module", id });
        };
        self.collect_read_only();
        let mut bus = self.bus.lock();
        for (addr, _) in module.globals.values() {
            bus.memory.free(*addr)?;
        }
        Ok(())
    }

    fn collect_read_only(&mut self) {
        self.read_only = self
            .modules
            .values()
            .flat_map(|m| m.constants.iter().copied())
            .collect();
        self.read_only.sort_unstable();
    }

    /// Address and size of a module's global or constant variable.
    pub fn global(&self, module: ModuleId, name: &str) -> Option<(u64, u64)> {
        self.modules.get(&module.0)?.globals.get(name).copied()
    }

    /// A module's kernel.
    pub fn kernel(&self, module: ModuleId, name: &str) -> Option<KernelId> {
        let functions = &self.modules.get(&module.0)?.program.functions;
        let func = functions
            .iter()
            .position(|f| f.is_kernel && f.name == name)?;
        Some(KernelId::new(module.0, func as u32))
    }

    /// Size of a kernel's parameter buffer.
    pub fn param_bytes(&self, kernel: KernelId) -> Option<usize> {
        let module = self.modules.get(&kernel.module())?;
        let function = module.program.functions.get(kernel.func() as usize)?;
        Some(function.kernel_params as usize)
    }

    /// How many blocks of this shape can be resident together.
    pub fn max_resident_blocks(
        &self,
        kernel: KernelId,
        shape: LaunchShape,
    ) -> Result<u32, GpuError> {
        self.alive()?;
        self.prepare(kernel, shape, 0, None)?;
        Ok(self.machine.max_resident(shape.threads()))
    }

    /// Creates a stream.
    pub fn create_stream(&mut self) -> Result<StreamId, GpuError> {
        self.alive()?;
        Ok(StreamId(self.streams.create_stream()))
    }

    /// Destroys a stream. Work it still holds goes on.
    pub fn destroy_stream(&mut self, stream: StreamId) -> Result<(), GpuError> {
        found(self.streams.destroy_stream(stream.0), "stream", stream.0)
    }

    /// True if all work of a stream is done.
    pub fn stream_done(&self, stream: StreamId) -> Result<bool, GpuError> {
        self.alive()?;
        let done = self.streams.done(stream.0).ok_or(GpuError::NoSuch {
            what: "stream",
            id: stream.0,
        })?;
        if done {
            self.bus
                .lock()
                .memory
                .event(Event::HostSync { stream: stream.0 });
        }
        Ok(done)
    }

    /// Creates an event.
    pub fn create_event(&mut self) -> Result<EventId, GpuError> {
        self.alive()?;
        Ok(EventId(self.streams.create_event()))
    }

    /// Destroys an event, recorded or not.
    pub fn destroy_event(&mut self, event: EventId) -> Result<(), GpuError> {
        found(self.streams.destroy_event(event.0), "event", event.0)
    }

    /// Records an event behind all work that the stream holds now.
    pub fn record_event(&mut self, event: EventId, stream: StreamId) -> Result<(), GpuError> {
        self.alive()?;
        found(self.streams.event_done(event.0).is_some(), "event", event.0)?;
        found(self.streams.has_stream(stream.0), "stream", stream.0)?;
        self.streams.record(event.0, stream.0);
        self.streams.pump(&mut self.machine);
        Ok(())
    }

    /// True if the work before the event's last record is done, or it was never recorded.
    pub fn event_done(&self, event: EventId) -> Result<bool, GpuError> {
        self.alive()?;
        let done = self.streams.event_done(event.0).ok_or(GpuError::NoSuch {
            what: "event",
            id: event.0,
        })?;
        if done && let Some(stream) = self.streams.recorded_on(event.0) {
            self.bus.lock().memory.event(Event::HostSync { stream });
        }
        Ok(done)
    }

    /// Launches a kernel. `params` is its parameter buffer, laid out as the kernel declares it.
    pub fn launch(
        &mut self,
        kernel: KernelId,
        shape: LaunchShape,
        stream: StreamId,
        params: &[u8],
    ) -> Result<(), GpuError> {
        self.alive()?;
        found(self.streams.has_stream(stream.0), "stream", stream.0)?;
        let mut launch = self.prepare(kernel, shape, stream.0, Some(params))?;
        let resident = self.machine.max_resident(shape.threads());
        if shape.cooperative && shape.blocks() > u64::from(resident) {
            return Err(GpuError::TooManyBlocks {
                blocks: shape.blocks(),
                resident,
            });
        }
        self.launches_issued += 1;
        launch.id = self.launches_issued;
        if self.check != Check::Fast {
            self.names.add(&launch);
            let event = Event::Launch { launch: launch.id };
            self.bus.lock().memory.event(event);
        }
        self.streams.push_launch(launch);
        self.streams.pump(&mut self.machine);
        Ok(())
    }

    /// Checks a launch against the kernel and the limits of the device.
    fn prepare(
        &self,
        kernel: KernelId,
        shape: LaunchShape,
        stream: u64,
        params: Option<&[u8]>,
    ) -> Result<Launch, GpuError> {
        let no_kernel = GpuError::NoSuch {
            what: "kernel",
            id: kernel.0,
        };
        let Some(module) = self.modules.get(&kernel.module()) else {
            return Err(no_kernel);
        };
        let program = module.program.clone();
        let Some(function) = program
            .functions
            .get(kernel.func() as usize)
            .filter(|f| f.is_kernel)
        else {
            return Err(no_kernel);
        };
        let refuse = |why: String| Err(GpuError::BadLaunch(why));
        let within = |values: [u32; 3], most: [u32; 3]| {
            values.iter().zip(most).all(|(v, m)| *v >= 1 && *v <= m)
        };
        if !within(shape.grid, MAX_GRID) {
            return refuse(format!(
                "grid {:?}: each side is 1 to {MAX_GRID:?}",
                shape.grid
            ));
        }
        if !within(shape.block, MAX_BLOCK) || shape.threads() > MAX_BLOCK_THREADS {
            return refuse(format!(
                "block {:?}: each side is 1 to {MAX_BLOCK:?}, and at most {MAX_BLOCK_THREADS} threads",
                shape.block
            ));
        }
        // Threads of the whole grid have 32-bit numbers on the bus.
        if shape.blocks().saturating_mul(shape.threads()) > u64::from(u32::MAX / 2) {
            return refuse("the grid has too many threads to simulate".into());
        }
        if function
            .max_threads
            .is_some_and(|most| shape.threads() > most)
        {
            return refuse(format!(
                "`{}` allows fewer threads in a block (.maxntid)",
                function.name
            ));
        }
        if function
            .required_shape
            .is_some_and(|required| shape.block != required)
        {
            return refuse(format!(
                "`{}` requires another shape of block (.reqntid)",
                function.name
            ));
        }
        let needs = needs(&program, kernel.func());
        let fixed = if needs.shared {
            program.static_shared
        } else {
            0
        };
        let shared = u64::from(fixed) + u64::from(shape.shared_bytes);
        if shared > MAX_SHARED {
            return refuse(format!(
                "{shared} bytes of shared memory; a block has at most {MAX_SHARED}"
            ));
        }
        if let Some(params) = params
            && params.len() != function.kernel_params as usize
        {
            return refuse(format!(
                "{} bytes of parameters; `{}` takes {}",
                params.len(),
                function.name,
                function.kernel_params
            ));
        }
        Ok(Launch {
            id: 0,
            module: kernel.module(),
            func: kernel.func(),
            shape,
            params: params.unwrap_or_default().to_vec(),
            stream,
            shared_bytes: shared as u32,
            local_bytes: needs.local,
            agents: 0,
            next_block: 0,
            resident: 0,
            active: 0,
            counters: LaunchCounters::default(),
            started_ns: 0,
            program,
        })
    }

    /// Runs one quantum: about `steps` steps of threads and devices, under one lock of the bus.
    pub fn advance(&mut self, steps: u64) -> Result<Advance, GpuError> {
        self.alive()?;
        let bus = self.bus.clone();
        let mut bus = bus.lock();
        let streams = &mut self.streams;
        let result = self.machine.advance(
            &mut bus,
            &self.registers,
            &self.read_only,
            steps,
            |machine, done| {
                streams.finished(&done.launch);
                streams.pump(machine);
            },
        );
        collect(&mut bus, &self.names, &mut self.order_reports);
        match result {
            Ok(advanced) => Ok(Advance {
                steps: advanced.steps,
                idle: advanced.idle,
            }),
            Err(report) => {
                self.machine.kill(&mut bus);
                self.streams.kill();
                let report = Arc::new(*report);
                self.failure = Some(report.clone());
                Err(GpuError::Dead(report))
            }
        }
    }

    /// What the memory model found wrong since the last call: at most one report of a kind for each pair of instructions.
    pub fn take_order_reports(&mut self) -> Vec<OrderReport> {
        collect(&mut self.bus.lock(), &self.names, &mut self.order_reports);
        std::mem::take(&mut self.order_reports)
    }

    /// Pairs of instructions, each with a kind of report, beyond those that [`Self::take_order_reports`] gives: it keeps the
    /// first 64.
    pub fn order_reports_left_out(&self) -> u64 {
        self.bus.lock().memory.findings_left_out()
    }

    /// An access that somebody else reports, with kernel, instruction and thread by name.
    pub fn access(&self, party: Party) -> AccessReport {
        self.names.access(party)
    }

    /// Counters of the last launch before an event's last record, once that is reached.
    pub fn counters(&self, event: EventId) -> Option<LaunchCounters> {
        self.streams.counters(event.0)
    }

    /// Maps registers of a device, given by their bus address, into the GPU; returns their device address. Only
    /// `st.mmio` reaches them.
    pub fn map_registers(&mut self, bar_addr: u64, len: u64) -> Result<u64, GpuError> {
        self.alive()?;
        let inside = match region_of(bar_addr) {
            Region::Bar { offset, .. } => len > 0 && len <= BAR_SIZE - offset,
            Region::Simulated | Region::Host => false,
        };
        if !inside {
            return Err(GpuError::BadArgument(format!(
                "{len} bytes at {bar_addr:#x} are no registers of one device"
            )));
        }
        self.registers.map(bar_addr, len).ok_or_else(|| {
            GpuError::BadArgument("the window of mapped registers is used up".into())
        })
    }

    /// Unmaps registers, by the bus address they were mapped from. Later accesses fault.
    pub fn unmap_registers(&mut self, bar_addr: u64) -> Result<(), GpuError> {
        found(self.registers.unmap(bar_addr), "register mapping", bar_addr)
    }
}

const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<GpuModel>();
};
fn collect(bus: &mut BusState, names: &LaunchNames, reports: &mut Vec<OrderReport>) {
    reports.extend(
        bus.memory
            .take_findings()
            .into_iter()
            .map(|finding| names.resolve(finding)),
    );
}

fn found(found: bool, what: &'static str, id: u64) -> Result<(), GpuError> {
    if found {
        Ok(())
    } else {
        Err(GpuError::NoSuch { what, id })
    }
}
