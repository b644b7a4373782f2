//! The host as a GPU: the native build of the kernels, run on CPU threads over the process's own memory.
//!
//! Knows: which call of the driver belongs to which part, and what was handed out.
//! Must not know: which NIC is beside it.
//!
//! A device address is an address of this process, a doorbell page is the NIC's own, a launch's threads are threads. What the
//! simulated GPU checks of a kernel's accesses, nobody checks here.

#[allow(unsafe_code)]
mod kernels;
#[allow(unsafe_code)]
mod memory;
#[allow(unsafe_code)]
mod stream;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warpverbs_sim_bus::Bus;
use warpverbs_wire::abi;

use self::kernels::KERNELS;
use self::memory::{Kind, Memory, PAGE};
use self::stream::{Launch, MOST_BLOCK, Mark, RESIDENT, Streams};
use super::{
    DmabufMapping, DriverError, DriverErrorKind, Gpu, GpuHandle, LaunchCounters, LaunchShape,
    Progress, WriteOrdering, rows,
};
use crate::ptx;

type Result<T> = std::result::Result<T, DriverError>;

/// The host as a GPU.
pub(crate) struct HostGpu {
    bus: Arc<Bus>,
    /// NICs beside it are not on the bus: they have its memory by address.
    real_nics: bool,
    write_ordering: WriteOrdering,
    /// Says whether an address is that of a doorbell page.
    is_page: Box<dyn Fn(u64) -> bool + Send + Sync>,
    /// Dropped before the memory that its kernels use.
    streams: Mutex<Streams>,
    memory: Mutex<Memory>,
    objects: Mutex<Objects>,
}

#[derive(Default)]
struct Objects {
    issued: u64,
    /// Loaded modules: each with the address of its `wv_device_abi`.
    modules: BTreeMap<u64, u64>,
    /// Events: each with what it was last recorded behind.
    events: BTreeMap<u64, Option<Mark>>,
    /// Doorbell pages that are mapped, and how often.
    pages: BTreeMap<u64, u32>,
}

impl Objects {
    fn issue(&mut self) -> u64 {
        self.issued += 1;
        self.issued
    }
}

impl HostGpu {
    /// A GPU on `bus`, whose dmabufs it uses. Its threads see what a NIC writes in the order in which it is written, whatever
    /// the GPU says of that (`write_ordering`). `is_page` knows the doorbell pages that can be mapped.
    pub(crate) fn new(
        bus: Arc<Bus>,
        write_ordering: WriteOrdering,
        is_page: impl Fn(u64) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            streams: Mutex::default(),
            memory: Mutex::new(Memory::new(bus.clone())),
            objects: Mutex::default(),
            is_page: Box::new(is_page),
            write_ordering,
            bus,
            real_nics: false,
        }
    }

    /// As [`Self::new`], beside NICs that a driver of the system knows.
    #[cfg(target_os = "linux")]
    pub(crate) fn beside_real_nics(is_page: impl Fn(u64) -> bool + Send + Sync + 'static) -> Self {
        let memory = warpverbs_sim_gpu::memory_of(&warpverbs_sim_gpu::GpuConfig::default());
        Self {
            real_nics: true,
            ..Self::new(Bus::new(memory), WriteOrdering::Owner, is_page)
        }
    }

    /// Everything that was handed out and not taken back, one line each.
    pub(crate) fn live(&self) -> Vec<String> {
        if !self.is_alive() {
            return Vec::new();
        }
        let mut live: Vec<String> = self.memory().live().chain(self.streams().live()).collect();
        let objects = self.objects();
        live.extend(
            objects
                .modules
                .keys()
                .map(|id| format!("GPU module {id:#x}")),
        );
        live.extend(objects.events.keys().map(|id| format!("GPU event {id:#x}")));
        live.extend(
            objects
                .pages
                .iter()
                .flat_map(|(page, users)| (0..*users).map(move |_| page))
                .map(|page| format!("GPU page {page:#x}")),
        );
        live
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As a driver does, calls fail once the context is dead.
    fn require_alive(&self, call: &'static str) -> Result<()> {
        match self.streams().failure() {
            None => Ok(()),
            Some(why) => Err(DriverError::new(call, DriverErrorKind::KernelFault, why)),
        }
    }

    fn mark(&self, call: &'static str, stream: GpuHandle) -> Result<Mark> {
        self.streams()
            .mark(stream.0)
            .ok_or_else(|| missing(call, "stream", stream.0))
    }
}

impl Gpu for HostGpu {
    fn name(&self) -> String {
        "host".into()
    }

    fn compute_capability(&self) -> u32 {
        // Of what is embedded any will do: its kernels are known by name. As the simulated GPU's.
        90
    }

    fn is_alive(&self) -> bool {
        self.streams().failure().is_none()
    }

    fn alloc(&self, len: u64, _label: &str) -> Result<u64> {
        const CALL: &str = "alloc";
        self.require_alive(CALL)?;
        self.memory().alloc(CALL, Kind::Device, len)
    }

    fn free(&self, addr: u64) -> Result<()> {
        self.memory().free("free", Kind::Device, addr)
    }

    fn copy_to_device(&self, addr: u64, bytes: &[u8]) -> Result<()> {
        const CALL: &str = "copy_to_device";
        self.require_alive(CALL)?;
        self.memory().write(CALL, addr, bytes)
    }

    fn copy_rows_to_device(&self, addr: u64, pitch: u64, width: u64, bytes: &[u8]) -> Result<()> {
        const CALL: &str = "copy_rows_to_device";
        self.require_alive(CALL)?;
        let memory = self.memory();
        rows::copy_rows(CALL, (addr, pitch, width), bytes, |at, row| {
            memory.write(CALL, at, row)
        })
    }

    fn fill(&self, addr: u64, len: u64, byte: u8) -> Result<()> {
        const CALL: &str = "fill";
        self.require_alive(CALL)?;
        let memory = self.memory();
        rows::fill((addr, len, byte), |at, part| memory.write(CALL, at, part))
    }

    fn copy_from_device(&self, bytes: &mut [u8], addr: u64) -> Result<()> {
        const CALL: &str = "copy_from_device";
        self.require_alive(CALL)?;
        self.memory().read(CALL, addr, bytes)
    }

    fn alloc_host_mapped(&self, len: u64, _label: &str) -> Result<u64> {
        const CALL: &str = "alloc_host_mapped";
        self.require_alive(CALL)?;
        self.memory().alloc(CALL, Kind::HostMapped, len)
    }

    fn free_host_mapped(&self, addr: u64) -> Result<()> {
        self.memory()
            .free("free_host_mapped", Kind::HostMapped, addr)
    }

    fn load_acquire(&self, addr: u64) -> Result<u64> {
        self.memory().load("load_acquire", addr)
    }

    fn store_release(&self, addr: u64, value: u64) -> Result<()> {
        self.memory().store("store_release", addr, value)
    }

    fn store_release_u32(&self, addr: u64, value: u32) -> Result<()> {
        self.memory().store_u32("store_release_u32", addr, value)
    }

    fn export_dmabuf(&self, addr: u64, len: u64, _: DmabufMapping) -> Result<(i32, u64)> {
        const CALL: &str = "export_dmabuf";
        self.require_alive(CALL)?;
        if self.real_nics {
            let text = "memory of the host is no dmabuf";
            return Err(DriverError::new(CALL, DriverErrorKind::Unsupported, text));
        }
        // The allocation must not go while its range is exported.
        let memory = self.memory();
        if !memory.holds(addr, len) {
            let text =
                format!("{len} bytes at {addr:#x} do not lie in an allocation of GPU memory");
            return Err(DriverError::new(
                CALL,
                DriverErrorKind::InvalidArgument,
                text,
            ));
        }
        // A dmabuf is whole pages, and so is an allocation; the offset leads to the range.
        let page = addr / PAGE as u64 * PAGE as u64;
        let end = (addr + len).next_multiple_of(PAGE as u64);
        let fd = self.bus.lock().dmabufs.export(page, end - page);
        Ok((fd, addr - page))
    }

    fn close_dmabuf(&self, fd: i32) -> Result<()> {
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
        if len == 0 || len > 4096 || !(self.is_page)(page) {
            let text = format!("{len} bytes at {page:#x} are no doorbell page");
            return Err(DriverError::new(
                CALL,
                DriverErrorKind::InvalidArgument,
                text,
            ));
        }
        *self.objects().pages.entry(page).or_default() += 1;
        Ok(page)
    }

    fn unmap_uar(&self, page: u64) -> Result<()> {
        let mut objects = self.objects();
        let users = objects
            .pages
            .get_mut(&page)
            .ok_or_else(|| missing("unmap_uar", "doorbell page", page))?;
        *users -= 1;
        if *users == 0 {
            objects.pages.remove(&page);
        }
        Ok(())
    }

    fn write_ordering(&self) -> WriteOrdering {
        self.write_ordering
    }

    fn flush_writes(&self) -> Result<()> {
        self.require_alive("flush_writes")
    }

    fn load_module(&self, text: &str) -> Result<GpuHandle> {
        const CALL: &str = "load_module";
        self.require_alive(CALL)?;
        if !ptx::EMBEDDED.iter().any(|embedded| embedded.text == text) {
            let text =
                "the host runs the embedded kernels only, from their native build: no other PTX";
            return Err(DriverError::new(CALL, DriverErrorKind::Unsupported, text));
        }
        let mut memory = self.memory();
        let version = memory.alloc(CALL, Kind::HostMapped, 4)?;
        memory.write(CALL, version, &abi::VERSION.to_le_bytes())?;
        let mut objects = self.objects();
        let module = objects.issue();
        objects.modules.insert(module, version);
        Ok(GpuHandle(module))
    }

    fn unload_module(&self, module: GpuHandle) -> Result<()> {
        const CALL: &str = "unload_module";
        let mut memory = self.memory();
        match self.objects().modules.remove(&module.0) {
            Some(version) => memory.free(CALL, Kind::HostMapped, version),
            None => Err(missing(CALL, "module", module.0)),
        }
    }

    fn module_global(&self, module: GpuHandle, name: &str) -> Result<Option<(u64, u64)>> {
        match self.objects().modules.get(&module.0) {
            Some(version) => Ok((name == abi::VERSION_SYMBOL).then_some((*version, 4))),
            None => Err(missing("module_global", "module", module.0)),
        }
    }

    fn kernel(&self, module: GpuHandle, name: &str) -> Result<GpuHandle> {
        const CALL: &str = "kernel";
        if !self.objects().modules.contains_key(&module.0) {
            return Err(missing(CALL, "module", module.0));
        }
        match KERNELS.iter().position(|kernel| kernel.name == name) {
            Some(at) => Ok(GpuHandle(at as u64)),
            None => {
                let text = format!("the module has no kernel {name}");
                Err(DriverError::new(CALL, DriverErrorKind::NotFound, text))
            }
        }
    }

    fn max_resident_blocks(&self, _kernel: GpuHandle, shape: LaunchShape) -> Result<u32> {
        let (_, threads) = linear("max_resident_blocks", shape)?;
        Ok(RESIDENT / threads)
    }

    fn create_stream(&self) -> Result<GpuHandle> {
        const CALL: &str = "create_stream";
        self.require_alive(CALL)?;
        let handle = self.objects().issue();
        self.streams().create(handle).map_err(|error| {
            let kind = DriverErrorKind::Os(error.raw_os_error().unwrap_or(0));
            DriverError::new(CALL, kind, error.to_string())
        })?;
        Ok(GpuHandle(handle))
    }

    fn destroy_stream(&self, stream: GpuHandle) -> Result<()> {
        if self.streams().destroy(stream.0) {
            return Ok(());
        }
        Err(missing("destroy_stream", "stream", stream.0))
    }

    fn query_stream(&self, stream: GpuHandle) -> Result<Progress> {
        const CALL: &str = "query_stream";
        let mark = self.mark(CALL, stream)?;
        self.require_alive(CALL)?;
        Ok(progress(&mark))
    }

    fn create_event(&self) -> Result<GpuHandle> {
        self.require_alive("create_event")?;
        let mut objects = self.objects();
        let event = objects.issue();
        objects.events.insert(event, None);
        Ok(GpuHandle(event))
    }

    fn destroy_event(&self, event: GpuHandle) -> Result<()> {
        match self.objects().events.remove(&event.0) {
            Some(_) => Ok(()),
            None => Err(missing("destroy_event", "event", event.0)),
        }
    }

    fn record_event(&self, event: GpuHandle, stream: GpuHandle) -> Result<()> {
        const CALL: &str = "record_event";
        self.require_alive(CALL)?;
        let mark = self.mark(CALL, stream)?;
        match self.objects().events.get_mut(&event.0) {
            Some(recorded) => {
                *recorded = Some(mark);
                Ok(())
            }
            None => Err(missing(CALL, "event", event.0)),
        }
    }

    fn query_event(&self, event: GpuHandle) -> Result<Progress> {
        const CALL: &str = "query_event";
        let mark = match self.objects().events.get(&event.0) {
            Some(mark) => mark.clone(),
            None => return Err(missing(CALL, "event", event.0)),
        };
        self.require_alive(CALL)?;
        Ok(mark.as_ref().map_or(Progress::Done, progress))
    }

    #[allow(unsafe_code, reason = "the trait's function is unsafe")]
    unsafe fn launch(
        &self,
        kernel: GpuHandle,
        shape: LaunchShape,
        stream: GpuHandle,
        params: &[u8],
    ) -> Result<()> {
        const CALL: &str = "launch";
        self.require_alive(CALL)?;
        let native = usize::try_from(kernel.0)
            .ok()
            .and_then(|at| KERNELS.get(at));
        let Some(native) = native else {
            return Err(missing(CALL, "kernel", kernel.0));
        };
        let (blocks, block_threads) = linear(CALL, shape)?;
        if params.len() != native.params {
            let text = format!(
                "{} takes {} bytes of parameters, not {}",
                native.name,
                native.params,
                params.len()
            );
            return Err(DriverError::new(
                CALL,
                DriverErrorKind::InvalidArgument,
                text,
            ));
        }
        if shape.cooperative && blocks > RESIDENT / block_threads {
            let text =
                format!("{blocks} blocks of {block_threads} threads cannot be resident together");
            return Err(DriverError::new(CALL, DriverErrorKind::Exhausted, text));
        }
        let launch = Launch {
            kernel: native,
            blocks,
            block_threads,
            params: params.to_vec(),
        };
        // SAFETY: the caller promises what `Gpu::launch` demands.
        if unsafe { self.streams().give(stream.0, launch) } {
            return Ok(());
        }
        Err(missing(CALL, "stream", stream.0))
    }

    fn counters(&self, _: GpuHandle) -> Option<LaunchCounters> {
        None
    }
}

impl fmt::Debug for HostGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostGpu")
    }
}

fn progress(mark: &Mark) -> Progress {
    if mark.is_reached() {
        Progress::Done
    } else {
        Progress::Pending
    }
}

/// Blocks, and threads of each, of a launch that has one dimension, as kernels here have.
fn linear(call: &'static str, shape: LaunchShape) -> Result<(u32, u32)> {
    let ([blocks, 1, 1], [threads, 1, 1]) = (shape.grid, shape.block) else {
        let text = "the host runs launches of one dimension only";
        return Err(DriverError::new(call, DriverErrorKind::Unsupported, text));
    };
    if blocks == 0 || !(1..=MOST_BLOCK).contains(&threads) {
        let text = format!("{blocks} blocks of {threads} threads; a block has 1 to {MOST_BLOCK}");
        return Err(DriverError::new(
            call,
            DriverErrorKind::InvalidArgument,
            text,
        ));
    }
    Ok((blocks, threads))
}

fn missing(call: &'static str, what: &str, handle: u64) -> DriverError {
    let text = format!("{handle:#x} is no {what} of this GPU");
    DriverError::new(call, DriverErrorKind::NotFound, text)
}
