//! The simulated GPU behind the [`Gpu`] trait.
//!
//! Knows: which call of the model belongs to which call of a driver, what is allocated, and that
//! time passes in queries. Must not know: PTX.
//!
//! One of the files with `unsafe`: `Gpu::launch` is an unsafe function.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warpverbs_sim_bus::{
    Access, Agent, Bus, Fault, FaultKind, Order, Party, Purpose, Scope, Space,
};
use warpverbs_sim_gpu::{self as model, EventId, GpuError, GpuModel, KernelId, ModuleId, StreamId};

#[cfg(target_os = "linux")]
use super::beside::{Arena, close};
use super::turns::{self, Schedule};
use crate::driver::rows;
use crate::driver::{
    DmabufMapping, DriverError, DriverErrorKind, Gpu, GpuHandle, LaunchCounters, LaunchShape,
    PhaseCounters, Progress, WriteOrdering,
};

type Result<T> = std::result::Result<T, DriverError>;

/// Steps of the simulation that one query takes.
const QUANTUM: u64 = 1 << 17;
/// Alignment of GPU memory: pages of 64 KiB.
const PAGE: u64 = 1 << 16;
/// Alignment of host-mapped memory: a line of its own.
const LINE: u64 = 64;

/// A simulated GPU.
pub(super) struct SimGpu {
    model: Mutex<GpuModel>,
    bus: Arc<Bus>,
    beside: Arc<Schedule>,
    write_ordering: WriteOrdering,
    /// Where registers lie on the bus that a driver of a NIC has mapped at an address of its own.
    registers: Registers,
    live: Mutex<BTreeMap<(Kind, u64), u64>>,
    /// Memory that is files, beside NICs that are not on the bus.
    #[cfg(target_os = "linux")]
    files: Option<Arc<Mutex<Arena>>>,
    /// Doorbell pages that are mapped, once for each time.
    pages: Mutex<Vec<Mapped>>,
}

/// A doorbell page that is mapped.
#[derive(Clone, Copy)]
struct Mapped {
    /// As it was given.
    page: u64,
    /// On the bus.
    bus_addr: u64,
    /// Where the GPU sees it.
    addr: u64,
}

/// The bus address of registers that are mapped at an address, if they are a NIC's.
pub(super) type Registers = Box<dyn Fn(u64) -> Option<u64> + Send + Sync>;

/// What the driver has handed out, by address or handle; the value is a length where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Memory,
    HostMapped,
    Module,
    Stream,
    Event,
}

impl SimGpu {
    /// The driver of `model`, which runs on `bus`, and takes turns with what is `beside` it.
    pub(super) fn new(
        model: GpuModel,
        bus: Arc<Bus>,
        beside: Arc<Schedule>,
        write_ordering: WriteOrdering,
        registers: Registers,
    ) -> Self {
        Self {
            model: Mutex::new(model),
            bus,
            beside,
            write_ordering,
            registers,
            live: Mutex::default(),
            #[cfg(target_os = "linux")]
            files: None,
            pages: Mutex::default(),
        }
    }

    /// Its memory is these files, which NICs that are not on its bus import as dmabufs.
    #[cfg(target_os = "linux")]
    pub(super) fn in_files(mut self, files: Arc<Mutex<Arena>>) -> Self {
        self.files = Some(files);
        self
    }

    /// Everything that was handed out and not taken back, one line each. What a dead context had is gone with it.
    pub(super) fn live(&self) -> Vec<String> {
        if !self.is_alive() {
            return Vec::new();
        }
        let mut live: Vec<String> = self
            .handed_out()
            .keys()
            .map(|(kind, id)| format!("GPU {kind:?} {id:#x}"))
            .collect();
        let pages = self.pages();
        live.extend(
            pages
                .iter()
                .map(|mapped| format!("GPU Uar {:#x}", mapped.page)),
        );
        live
    }

    /// What the memory model found wrong since the last call.
    pub(super) fn order_reports(&self) -> Vec<model::OrderReport> {
        self.model().take_order_reports()
    }

    /// What it found beyond the reports that it keeps.
    pub(super) fn order_reports_left_out(&self) -> u64 {
        self.model().order_reports_left_out()
    }

    /// An access that a NIC's finding names.
    pub(super) fn access(&self, party: Party) -> model::AccessReport {
        self.model().access(party)
    }

    /// What the host's threads do in the schedule.
    pub(super) fn beside(&self) -> &Arc<Schedule> {
        &self.beside
    }

    /// Runs devices until they have nothing to do, or the GPU until a quantum is over.
    pub(super) fn advance(&self) {
        if let Err(error) = self.run(QUANTUM) {
            tracing::debug!(%error, "the simulation does not advance");
        }
    }

    /// A call of the host's work takes time.
    fn pass_call(&self) {
        if turns::is_inside() {
            self.advance();
        }
    }

    /// Runs GPU, devices and the host's work in turn.
    fn run(&self, steps: u64) -> std::result::Result<(), GpuError> {
        if let Some(steps) = self.beside.during_call() {
            return self.model().advance(steps).map(drop);
        }
        let mut left = steps;
        while left > 0 {
            let slice = self.beside.slice(left);
            let advanced = self.model().advance(slice)?;
            left -= slice;
            // Where nothing else is to be done, all of the work has its turn.
            let worked = self.beside.run(advanced.idle);
            if advanced.idle && !worked {
                break;
            }
        }
        Ok(())
    }

    fn model(&self) -> MutexGuard<'_, GpuModel> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handed_out(&self) -> MutexGuard<'_, BTreeMap<(Kind, u64), u64>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pages(&self) -> MutexGuard<'_, Vec<Mapped>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, kind: Kind, id: u64, len: u64) {
        self.handed_out().insert((kind, id), len);
    }

    fn remove(&self, kind: Kind, id: u64) {
        self.handed_out().remove(&(kind, id));
    }

    fn require(&self, call: &'static str, kind: Kind, id: u64) -> Result<()> {
        if self.handed_out().contains_key(&(kind, id)) {
            return Ok(());
        }
        let text = format!("{id:#x} is no {kind:?} of this GPU");
        Err(DriverError::new(call, DriverErrorKind::NotFound, text))
    }

    /// As a driver does, every call but an undoing one fails once the context is dead.
    fn require_alive(&self, call: &'static str) -> Result<()> {
        match self.model().failure() {
            None => Ok(()),
            Some(report) => Err(from_model(call, &GpuError::Dead(report))),
        }
    }

    fn alloc_in(
        &self,
        call: &'static str,
        kind: Kind,
        space: Space,
        len: u64,
        align: u64,
        label: &str,
    ) -> Result<u64> {
        self.require_alive(call)?;
        let mut bus = self.bus.lock();
        let addr = bus
            .memory
            .alloc(space, len, align, label)
            .map_err(|fault| from_fault(call, &fault))?;
        drop(bus);
        self.add(kind, addr, len);
        Ok(addr)
    }

    fn free_in(&self, call: &'static str, kind: Kind, addr: u64) -> Result<()> {
        self.require(call, kind, addr)?;
        self.bus
            .lock()
            .memory
            .free(addr)
            .map_err(|fault| from_fault(call, &fault))?;
        self.remove(kind, addr);
        Ok(())
    }

    /// True once the stream or event is done; otherwise a quantum passes first.
    fn query(
        &self,
        call: &'static str,
        done: impl Fn(&GpuModel) -> std::result::Result<bool, GpuError>,
    ) -> Result<Progress> {
        let look = || done(&self.model()).map_err(|error| from_model(call, &error));
        if !look()? {
            self.run(QUANTUM)
                .map_err(|error| from_model(call, &error))?;
            if !look()? {
                return Ok(Progress::Pending);
            }
        }
        Ok(Progress::Done)
    }
}

impl Gpu for SimGpu {
    fn name(&self) -> String {
        "sim".into()
    }

    fn compute_capability(&self) -> u32 {
        // The interpreter runs any PTX that it parses; it offers what a GPU of compute capability
        // 9.0 does.
        90
    }

    fn is_alive(&self) -> bool {
        self.model().is_alive()
    }

    fn alloc(&self, len: u64, label: &str) -> Result<u64> {
        self.alloc_in("alloc", Kind::Memory, Space::Device, len, PAGE, label)
    }

    fn free(&self, addr: u64) -> Result<()> {
        self.free_in("free", Kind::Memory, addr)
    }

    fn copy_to_device(&self, addr: u64, bytes: &[u8]) -> Result<()> {
        const CALL: &str = "copy_to_device";
        self.require_alive(CALL)?;
        self.bus
            .lock()
            .memory
            .write(Access::HOST_COPY, addr, bytes)
            .map_err(|fault| from_fault(CALL, &fault))
    }

    fn copy_rows_to_device(&self, addr: u64, pitch: u64, width: u64, bytes: &[u8]) -> Result<()> {
        const CALL: &str = "copy_rows_to_device";
        self.require_alive(CALL)?;
        let mut bus = self.bus.lock();
        rows::copy_rows(CALL, (addr, pitch, width), bytes, |at, row| {
            bus.memory
                .write(Access::HOST_COPY, at, row)
                .map_err(|fault| from_fault(CALL, &fault))
        })
    }

    fn fill(&self, addr: u64, len: u64, byte: u8) -> Result<()> {
        const CALL: &str = "fill";
        self.require_alive(CALL)?;
        let mut bus = self.bus.lock();
        rows::fill((addr, len, byte), |at, part| {
            bus.memory
                .write(Access::HOST_COPY, at, part)
                .map_err(|fault| from_fault(CALL, &fault))
        })
    }

    fn copy_from_device(&self, bytes: &mut [u8], addr: u64) -> Result<()> {
        const CALL: &str = "copy_from_device";
        self.require_alive(CALL)?;
        self.bus
            .lock()
            .memory
            .read(Access::HOST_COPY, addr, bytes)
            .map_err(|fault| from_fault(CALL, &fault))
    }

    fn alloc_host_mapped(&self, len: u64, label: &str) -> Result<u64> {
        const CALL: &str = "alloc_host_mapped";
        let addr = self.alloc_in(CALL, Kind::HostMapped, Space::HostMapped, len, LINE, label)?;
        let zeroes = vec![0; usize::try_from(len).unwrap_or(0)];
        let zeroed = self
            .bus
            .lock()
            .memory
            .write(Access::HOST_COPY, addr, &zeroes)
            .map_err(|fault| from_fault(CALL, &fault));
        if let Err(refusal) = zeroed {
            self.free_in(CALL, Kind::HostMapped, addr)?;
            return Err(refusal);
        }
        Ok(addr)
    }

    fn free_host_mapped(&self, addr: u64) -> Result<()> {
        self.free_in("free_host_mapped", Kind::HostMapped, addr)
    }

    fn load_acquire(&self, addr: u64) -> Result<u64> {
        // Whoever looks at a word in a loop waits for GPU threads to change it.
        self.advance();
        self.bus
            .lock()
            .memory
            .load(host(Order::Acquire), addr, 8)
            .map_err(|fault| from_fault("load_acquire", &fault))
    }

    fn store_release(&self, addr: u64, value: u64) -> Result<()> {
        self.pass_call();
        self.bus
            .lock()
            .memory
            .store(host(Order::Release), addr, 8, value)
            .map_err(|fault| from_fault("store_release", &fault))
    }

    fn store_release_u32(&self, addr: u64, value: u32) -> Result<()> {
        self.pass_call();
        self.bus
            .lock()
            .memory
            .store(host(Order::Release), addr, 4, value.into())
            .map_err(|fault| from_fault("store_release_u32", &fault))
    }

    fn export_dmabuf(&self, addr: u64, len: u64, _: DmabufMapping) -> Result<(i32, u64)> {
        const CALL: &str = "export_dmabuf";
        self.require_alive(CALL)?;
        #[cfg(target_os = "linux")]
        if let Some(files) = &self.files {
            let files = files.lock().unwrap_or_else(PoisonError::into_inner);
            return files
                .export(addr, len)
                .map_err(|fault| from_fault(CALL, &fault));
        }
        let allocation = self
            .handed_out()
            .range(..=(Kind::Memory, addr))
            .next_back()
            .map(|((_, base), size)| (*base, *size));
        let inside =
            |(base, size): (u64, u64)| addr.checked_add(len).is_some_and(|end| end - base <= size);
        match allocation {
            Some((base, size)) if len > 0 && inside((base, size)) => {
                // A dmabuf is whole pages; the offset leads to the range.
                let page = addr / PAGE * PAGE;
                let end = (addr + len).next_multiple_of(PAGE);
                Ok((
                    self.bus.lock().dmabufs.export(page, end - page),
                    addr - page,
                ))
            }
            _ => Err(DriverError::new(
                CALL,
                DriverErrorKind::InvalidArgument,
                format!("{len} bytes at {addr:#x} do not lie in an allocation of GPU memory"),
            )),
        }
    }

    fn close_dmabuf(&self, fd: i32) -> Result<()> {
        #[cfg(target_os = "linux")]
        if self.files.is_some() {
            return close(fd).map_err(|error| {
                let kind = DriverErrorKind::Os(error.raw_os_error().unwrap_or(0));
                DriverError::new("close_dmabuf", kind, error.to_string())
            });
        }
        if self.bus.lock().dmabufs.close(fd) {
            return Ok(());
        }
        let text = format!("dmabuf {fd} is not open");
        Err(DriverError::new(
            "close_dmabuf",
            DriverErrorKind::NotFound,
            text,
        ))
    }

    fn map_uar(&self, page: u64, len: u64) -> Result<u64> {
        const CALL: &str = "map_uar";
        self.require_alive(CALL)?;
        let mut pages = self.pages();
        // A driver of a NIC may give one page several times: it is mapped once.
        let again = pages.iter().find(|mapped| mapped.page == page).copied();
        let mapped = match again {
            Some(mapped) => mapped,
            None => {
                let bus_addr = (self.registers)(page).unwrap_or(page);
                let addr = self
                    .model()
                    .map_registers(bus_addr, len)
                    .map_err(|error| from_model(CALL, &error))?;
                Mapped {
                    page,
                    bus_addr,
                    addr,
                }
            }
        };
        pages.push(mapped);
        Ok(mapped.addr)
    }

    fn unmap_uar(&self, page: u64) -> Result<()> {
        const CALL: &str = "unmap_uar";
        let mut pages = self.pages();
        let mut users = pages.iter().enumerate().filter(|(_, one)| one.page == page);
        let Some((at, mapped)) = users.next().map(|(at, mapped)| (at, *mapped)) else {
            let text = format!("{page:#x} is no doorbell page that this GPU has mapped");
            return Err(DriverError::new(CALL, DriverErrorKind::NotFound, text));
        };
        if users.next().is_none() {
            self.model()
                .unmap_registers(mapped.bus_addr)
                .map_err(|error| from_model(CALL, &error))?;
        }
        pages.remove(at);
        Ok(())
    }

    fn write_ordering(&self) -> WriteOrdering {
        self.write_ordering
    }

    fn flush_writes(&self) -> Result<()> {
        // Every write of the simulated NIC is visible when it is made.
        self.require_alive("flush_writes")
    }

    fn load_module(&self, ptx: &str) -> Result<GpuHandle> {
        const CALL: &str = "load_module";
        self.require_alive(CALL)?;
        let module = self
            .model()
            .load_module(ptx)
            .map_err(|error| DriverError::new(CALL, DriverErrorKind::InvalidPtx, one_line(&error)))?
            .raw();
        self.add(Kind::Module, module, 0);
        Ok(GpuHandle(module))
    }

    fn unload_module(&self, module: GpuHandle) -> Result<()> {
        const CALL: &str = "unload_module";
        self.require(CALL, Kind::Module, module.0)?;
        self.model()
            .unload_module(ModuleId::from_raw(module.0))
            .map_err(|error| from_model(CALL, &error))?;
        self.remove(Kind::Module, module.0);
        Ok(())
    }

    fn module_global(&self, module: GpuHandle, name: &str) -> Result<Option<(u64, u64)>> {
        self.require("module_global", Kind::Module, module.0)?;
        Ok(self.model().global(ModuleId::from_raw(module.0), name))
    }

    fn kernel(&self, module: GpuHandle, name: &str) -> Result<GpuHandle> {
        const CALL: &str = "kernel";
        self.require(CALL, Kind::Module, module.0)?;
        match self.model().kernel(ModuleId::from_raw(module.0), name) {
            Some(kernel) => Ok(GpuHandle(kernel.raw())),
            None => {
                let text = format!("the module has no kernel {name}");
                Err(DriverError::new(CALL, DriverErrorKind::NotFound, text))
            }
        }
    }

    fn max_resident_blocks(&self, kernel: GpuHandle, shape: LaunchShape) -> Result<u32> {
        self.model()
            .max_resident_blocks(KernelId::from_raw(kernel.0), to_model(shape))
            .map_err(|error| from_model("max_resident_blocks", &error))
    }

    fn create_stream(&self) -> Result<GpuHandle> {
        const CALL: &str = "create_stream";
        self.require_alive(CALL)?;
        let stream = self
            .model()
            .create_stream()
            .map_err(|error| from_model(CALL, &error))?
            .raw();
        self.add(Kind::Stream, stream, 0);
        Ok(GpuHandle(stream))
    }

    fn destroy_stream(&self, stream: GpuHandle) -> Result<()> {
        const CALL: &str = "destroy_stream";
        self.require(CALL, Kind::Stream, stream.0)?;
        self.model()
            .destroy_stream(StreamId::from_raw(stream.0))
            .map_err(|error| from_model(CALL, &error))?;
        self.remove(Kind::Stream, stream.0);
        Ok(())
    }

    fn query_stream(&self, stream: GpuHandle) -> Result<Progress> {
        let stream = StreamId::from_raw(stream.0);
        self.query("query_stream", |model| model.stream_done(stream))
    }

    fn create_event(&self) -> Result<GpuHandle> {
        const CALL: &str = "create_event";
        self.require_alive(CALL)?;
        let event = self
            .model()
            .create_event()
            .map_err(|error| from_model(CALL, &error))?
            .raw();
        self.add(Kind::Event, event, 0);
        Ok(GpuHandle(event))
    }

    fn destroy_event(&self, event: GpuHandle) -> Result<()> {
        const CALL: &str = "destroy_event";
        self.require(CALL, Kind::Event, event.0)?;
        self.model()
            .destroy_event(EventId::from_raw(event.0))
            .map_err(|error| from_model(CALL, &error))?;
        self.remove(Kind::Event, event.0);
        Ok(())
    }

    fn record_event(&self, event: GpuHandle, stream: GpuHandle) -> Result<()> {
        self.model()
            .record_event(EventId::from_raw(event.0), StreamId::from_raw(stream.0))
            .map_err(|error| from_model("record_event", &error))
    }

    fn query_event(&self, event: GpuHandle) -> Result<Progress> {
        let event = EventId::from_raw(event.0);
        self.query("query_event", |model| model.event_done(event))
    }

    #[allow(
        unsafe_code,
        reason = "the simulation checks every access; the trait's promise is not needed here"
    )]
    unsafe fn launch(
        &self,
        kernel: GpuHandle,
        shape: LaunchShape,
        stream: GpuHandle,
        params: &[u8],
    ) -> Result<()> {
        let (kernel, stream) = (KernelId::from_raw(kernel.0), StreamId::from_raw(stream.0));
        self.model()
            .launch(kernel, to_model(shape), stream, params)
            .map_err(|error| from_model("launch", &error))
    }

    fn counters(&self, event: GpuHandle) -> Option<LaunchCounters> {
        let counters = self.model().counters(EventId::from_raw(event.0))?;
        Some(LaunchCounters {
            phases: counters.phases.map(|phase| PhaseCounters {
                instructions: phase.instructions,
                loads: phase.loads,
                stores: phase.stores,
                atomics: phase.atomics,
                fences: phase.fences,
                ordered: phase.ordered,
                mmio_stores: phase.mmio_stores,
            }),
            simulated_ns: counters.simulated_ns,
        })
    }
}

impl fmt::Debug for SimGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimGpu")
    }
}

/// An access of the CPU to a host-mapped word.
fn host(order: Order) -> Access {
    Access {
        agent: Agent::Host,
        order,
        scope: Scope::Sys,
        purpose: Purpose::Instruction,
        site: 0,
    }
}

fn to_model(shape: LaunchShape) -> model::LaunchShape {
    model::LaunchShape {
        grid: shape.grid,
        block: shape.block,
        shared_bytes: shape.shared_bytes,
        cooperative: shape.cooperative,
    }
}

fn from_model(call: &'static str, error: &GpuError) -> DriverError {
    let kind = match error {
        GpuError::NoSuch { .. } => DriverErrorKind::NotFound,
        GpuError::Busy(_) => DriverErrorKind::Busy,
        GpuError::TooManyBlocks { .. } => DriverErrorKind::Exhausted,
        GpuError::Memory(fault) => return from_fault(call, fault),
        GpuError::Dead(_) => DriverErrorKind::KernelFault,
        _ => DriverErrorKind::InvalidArgument,
    };
    DriverError::new(call, kind, one_line(error))
}

fn from_fault(call: &'static str, fault: &Fault) -> DriverError {
    let kind = match fault.kind {
        FaultKind::OutOfMemory => DriverErrorKind::Exhausted,
        _ => DriverErrorKind::InvalidArgument,
    };
    DriverError::new(call, kind, fault.to_string())
}

/// A report of several lines as one.
fn one_line(error: &dyn fmt::Display) -> String {
    let text = error.to_string();
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join("; ")
}
