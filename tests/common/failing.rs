//! Drivers that fail at a chosen call.
//!
//! Knows: the order of calls.
//! Must not know: what a call is for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use warpverbs::driver::{
    Access, DriverError, DriverErrorKind, GidEntry, Gpu, GpuHandle, LaunchCounters, LaunchShape,
    MemoryRegion, MrInfo, Nic, NicHandle, PdInfo, PortInfo, Progress, UarInfo, UarKind, UmemInfo,
    WriteOrdering,
};

type Result<T> = std::result::Result<T, DriverError>;

/// Which calls fail.
#[derive(Debug, Default)]
pub struct Plan {
    calls: AtomicU64,
    first: AtomicU64,
    count: AtomicU64,
    failed: Mutex<Vec<&'static str>>,
}

impl Plan {
    /// `count` calls fail, from call number `first` on (the next one is 0).
    pub fn fail(&self, first: u64, count: u64) {
        self.calls.store(0, Ordering::Relaxed);
        self.first.store(first, Ordering::Relaxed);
        self.count.store(count, Ordering::Relaxed);
        self.failed.lock().unwrap().clear();
    }

    /// Calls that failed since then.
    pub fn failed(&self) -> Vec<&'static str> {
        self.failed.lock().unwrap().clone()
    }

    fn step(&self, call: &'static str) -> Result<()> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let first = self.first.load(Ordering::Relaxed);
        if number < first || number >= first.saturating_add(self.count.load(Ordering::Relaxed)) {
            return Ok(());
        }
        self.failed.lock().unwrap().push(call);
        Err(DriverError::new(
            call,
            DriverErrorKind::Exhausted,
            "planned failure",
        ))
    }
}

/// A driver in front of another.
#[derive(Debug)]
pub struct Failing<T: ?Sized> {
    pub inner: Arc<T>,
    pub plan: Arc<Plan>,
}

macro_rules! forward {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty;)*) => {$(
        fn $name(&self, $($arg: $ty),*) -> Result<$out> {
            self.plan.step(stringify!($name))?;
            self.inner.$name($($arg),*)
        }
    )*};
}

impl Nic for Failing<dyn Nic> {
    fn name(&self) -> String {
        self.inner.name()
    }

    forward! {
        command(input: &[u8], output: &mut [u8]) -> ();
        create(input: &[u8], output: &mut [u8]) -> NicHandle;
        modify(object: NicHandle, input: &[u8], output: &mut [u8]) -> ();
        query(object: NicHandle, input: &[u8], output: &mut [u8]) -> ();
        destroy(object: NicHandle) -> ();
        alloc_pd() -> PdInfo;
        dealloc_pd(pd: NicHandle) -> ();
        dereg_mr(mr: NicHandle) -> ();
        dereg_umem(umem: NicHandle) -> ();
        alloc_uar(kind: UarKind) -> UarInfo;
        free_uar(uar: NicHandle) -> ();
        ring_doorbell(uar: NicHandle, value: [u8; 8]) -> ();
        query_eqn(vector: u32) -> u32;
        query_port(port: u8) -> PortInfo;
        query_gid(port: u8, index: u32) -> Option<GidEntry>;
        resolve_mac(pd: NicHandle, port: u8, gid_index: u32, remote: [u8; 16]) -> [u8; 6];
    }

    unsafe fn reg_mr(&self, pd: NicHandle, region: MemoryRegion, access: Access) -> Result<MrInfo> {
        self.plan.step("reg_mr")?;
        // SAFETY: the caller promises what `Nic::reg_mr` demands.
        unsafe { self.inner.reg_mr(pd, region, access) }
    }

    unsafe fn reg_umem(
        &self,
        region: MemoryRegion,
        access: Access,
        page_sizes: u64,
    ) -> Result<UmemInfo> {
        self.plan.step("reg_umem")?;
        // SAFETY: the caller promises what `Nic::reg_umem` demands.
        unsafe { self.inner.reg_umem(region, access, page_sizes) }
    }
}

impl Gpu for Failing<dyn Gpu> {
    fn name(&self) -> String {
        self.inner.name()
    }
    fn compute_capability(&self) -> u32 {
        self.inner.compute_capability()
    }
    fn is_alive(&self) -> bool {
        self.inner.is_alive()
    }
    fn write_ordering(&self) -> WriteOrdering {
        self.inner.write_ordering()
    }
    fn counters(&self, stream: GpuHandle) -> Option<LaunchCounters> {
        self.inner.counters(stream)
    }

    fn close_dmabuf(&self, fd: i32) -> Result<()> {
        // As close(2): when it fails, the descriptor is closed all the same.
        let closed = self.inner.close_dmabuf(fd);
        self.plan.step("close_dmabuf").and(closed)
    }

    forward! {
        alloc(len: u64, label: &str) -> u64;
        free(addr: u64) -> ();
        copy_to_device(addr: u64, bytes: &[u8]) -> ();
        copy_from_device(bytes: &mut [u8], addr: u64) -> ();
        alloc_host_mapped(len: u64, label: &str) -> u64;
        free_host_mapped(addr: u64) -> ();
        load_acquire(addr: u64) -> u64;
        store_release(addr: u64, value: u64) -> ();
        export_dmabuf(addr: u64, len: u64) -> (i32, u64);
        map_uar(page: u64, len: u64) -> u64;
        unmap_uar(page: u64) -> ();
        flush_writes() -> ();
        load_module(ptx: &str) -> GpuHandle;
        unload_module(module: GpuHandle) -> ();
        module_global(module: GpuHandle, name: &str) -> Option<(u64, u64)>;
        kernel(module: GpuHandle, name: &str) -> GpuHandle;
        max_resident_blocks(kernel: GpuHandle, shape: LaunchShape) -> u32;
        create_stream() -> GpuHandle;
        destroy_stream(stream: GpuHandle) -> ();
        query_stream(stream: GpuHandle) -> Progress;
        create_event() -> GpuHandle;
        destroy_event(event: GpuHandle) -> ();
        record_event(event: GpuHandle, stream: GpuHandle) -> ();
        query_event(event: GpuHandle) -> Progress;
    }

    unsafe fn launch(
        &self,
        kernel: GpuHandle,
        shape: LaunchShape,
        stream: GpuHandle,
        params: &[u8],
    ) -> Result<()> {
        self.plan.step("launch")?;
        // SAFETY: the caller promises what `Gpu::launch` demands.
        unsafe { self.inner.launch(kernel, shape, stream, params) }
    }
}
