//! The wrappers: each method of the two boundaries, judged before it is forwarded.
//!
//! One of the files that call `unsafe` functions.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use warpverbs_wire::eqe::Event;

use super::plan::{Role, Verdict};
use super::{Call, Device, Faults, Outcome};
use crate::driver::{
    Access, DmabufMapping, DriverError, DriverErrorKind, GidEntry, Gpu, GpuHandle, LaunchCounters,
    LaunchShape, MemoryRegion, MrInfo, Nic, NicHandle, PdInfo, PortInfo, Progress, UarInfo,
    UarKind, UmemInfo, WriteOrdering,
};
use crate::teardown::deadline_after;

type Result<T> = std::result::Result<T, DriverError>;

/// By call and object: how many times more, and until when.
type Pending = HashMap<(&'static str, u64), (u64, Instant)>;

/// A driver in front of another.
#[derive(Debug)]
pub(super) struct Faulty<T: ?Sized> {
    inner: Arc<T>,
    faults: Faults,
    device: Device,
    /// Streams and events that are pending by plan: by which, and until when.
    pending: Mutex<Pending>,
}

impl<T: ?Sized> Faulty<T> {
    pub(super) fn new(inner: Arc<T>, faults: Faults) -> Self {
        Self {
            inner,
            faults,
            device: Device::default(),
            pending: Mutex::default(),
        }
    }

    /// A query that a delay makes say `Pending`.
    fn progress(
        &self,
        name: &'static str,
        object: u64,
        run: impl FnOnce() -> Result<Progress>,
    ) -> Result<Progress> {
        let (verdict, era) = {
            let mut plan = self.faults.lock();
            (plan.judge(name, Some(object)), plan.era)
        };
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let mut injected = None;
        match verdict {
            Verdict::Pass => {}
            Verdict::Delay(time) => {
                pending.insert((name, object), (era, deadline_after(time)));
            }
            Verdict::Hold(era) => {
                drop(pending);
                self.faults.hold(era);
                pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
            }
            Verdict::Fail(kind) => injected = Some(kind),
            Verdict::Die => self.device.die(),
        }
        if self.device.is_gone() {
            injected = Some(DriverErrorKind::DeviceLost);
        }
        let waits = pending
            .get(&(name, object))
            .is_some_and(|(of, until)| *of == era && Instant::now() < *until);
        drop(pending);
        let (done, outcome) = match injected {
            Some(kind) => (
                Err(DriverError::new(name, kind, "planned failure")),
                Outcome::Injected,
            ),
            None if waits => (Ok(Progress::Pending), Outcome::Injected),
            None => {
                let done = run();
                let outcome = match &done {
                    Ok(_) => Outcome::Done,
                    Err(_) => Outcome::Failed,
                };
                (done, outcome)
            }
        };
        self.faults.lock().record(Call {
            name,
            role: Role::Uses,
            object: Some(object),
            outcome,
        });
        done
    }
}

macro_rules! forward {
    ($($role:ident $name:ident($($arg:ident: $ty:ty),*) -> $out:ty, $object:expr, $made:expr;)*) => {$(
        fn $name(&self, $($arg: $ty),*) -> Result<$out> {
            let call = (stringify!($name), Role::$role, $object);
            self.faults.call(&self.device, call, $made, || self.inner.$name($($arg),*))
        }
    )*};
}

impl Nic for Faulty<dyn Nic> {
    fn name(&self) -> String {
        self.inner.name()
    }

    forward! {
        Asks command(input: &[u8], output: &mut [u8]) -> (), None, |()| None;
        Makes create(input: &[u8], output: &mut [u8]) -> NicHandle, None, |made: &NicHandle| Some(made.0);
        Uses modify(object: NicHandle, input: &[u8], output: &mut [u8]) -> (), Some(object.0), |()| None;
        Uses query(object: NicHandle, input: &[u8], output: &mut [u8]) -> (), Some(object.0), |()| None;
        Undoes destroy(object: NicHandle) -> (), Some(object.0), |()| None;
        Makes alloc_pd() -> PdInfo, None, |made: &PdInfo| Some(made.handle.0);
        Undoes dealloc_pd(pd: NicHandle) -> (), Some(pd.0), |()| None;
        Undoes dereg_mr(mr: NicHandle) -> (), Some(mr.0), |()| None;
        Undoes dereg_umem(umem: NicHandle) -> (), Some(umem.0), |()| None;
        Makes alloc_uar(kind: UarKind) -> UarInfo, None, |made: &UarInfo| Some(made.handle.0);
        Undoes free_uar(uar: NicHandle) -> (), Some(uar.0), |()| None;
        Uses ring_doorbell(uar: NicHandle, value: [u8; 8]) -> (), Some(uar.0), |()| None;
        Asks take_events() -> Vec<Event>, None, |_| None;
        Asks data_direct() -> bool, None, |_| None;
        Asks query_eqn(vector: u32) -> u32, None, |_| None;
        Asks port_counter_set(port: u8) -> Option<u8>, None, |_| None;
        Asks query_port(port: u8) -> PortInfo, None, |_| None;
        Asks query_gid(port: u8, index: u32) -> Option<GidEntry>, None, |_| None;
        Uses resolve_mac(pd: NicHandle, port: u8, gid_index: u32, remote: [u8; 16]) -> [u8; 6], Some(pd.0), |_| None;
    }

    unsafe fn reg_mr(&self, pd: NicHandle, region: MemoryRegion, access: Access) -> Result<MrInfo> {
        let call = ("reg_mr", Role::Makes, None);
        let made = |made: &MrInfo| Some(made.handle.0);
        // SAFETY: the caller promises what `Nic::reg_mr` demands.
        let run = || unsafe { self.inner.reg_mr(pd, region, access) };
        self.faults.call(&self.device, call, made, run)
    }

    unsafe fn reg_umem(
        &self,
        region: MemoryRegion,
        access: Access,
        page_sizes: u64,
    ) -> Result<UmemInfo> {
        let call = ("reg_umem", Role::Makes, None);
        let made = |made: &UmemInfo| Some(made.handle.0);
        // SAFETY: the caller promises what `Nic::reg_umem` demands.
        let run = || unsafe { self.inner.reg_umem(region, access, page_sizes) };
        self.faults.call(&self.device, call, made, run)
    }
}

impl Gpu for Faulty<dyn Gpu> {
    fn name(&self) -> String {
        self.inner.name()
    }
    fn compute_capability(&self) -> u32 {
        self.inner.compute_capability()
    }
    fn is_alive(&self) -> bool {
        !self.device.is_gone() && self.inner.is_alive()
    }
    fn write_ordering(&self) -> WriteOrdering {
        self.inner.write_ordering()
    }
    fn counters(&self, event: GpuHandle) -> Option<LaunchCounters> {
        self.inner.counters(event)
    }

    fn close_dmabuf(&self, fd: i32) -> Result<()> {
        // As close(2): when it fails, the descriptor is closed all the same.
        let closed = self.inner.close_dmabuf(fd);
        let call = ("close_dmabuf", Role::Undoes, Some(fd as u64));
        self.faults.call(&self.device, call, |()| None, || closed)
    }

    fn query_stream(&self, stream: GpuHandle) -> Result<Progress> {
        self.progress("query_stream", stream.0, || self.inner.query_stream(stream))
    }

    fn query_event(&self, event: GpuHandle) -> Result<Progress> {
        self.progress("query_event", event.0, || self.inner.query_event(event))
    }

    forward! {
        Makes alloc(len: u64, label: &str) -> u64, None, |addr: &u64| Some(*addr);
        Undoes free(addr: u64) -> (), Some(addr), |()| None;
        Uses copy_to_device(addr: u64, bytes: &[u8]) -> (), Some(addr), |()| None;
        Uses copy_rows_to_device(addr: u64, pitch: u64, width: u64, bytes: &[u8]) -> (), Some(addr), |()| None;
        Uses fill(addr: u64, len: u64, byte: u8) -> (), Some(addr), |()| None;
        Uses copy_from_device(bytes: &mut [u8], addr: u64) -> (), Some(addr), |()| None;
        Makes alloc_host_mapped(len: u64, label: &str) -> u64, None, |addr: &u64| Some(*addr);
        Undoes free_host_mapped(addr: u64) -> (), Some(addr), |()| None;
        Uses load_acquire(addr: u64) -> u64, Some(addr), |_| None;
        Uses store_release(addr: u64, value: u64) -> (), Some(addr), |()| None;
        Uses store_release_u32(addr: u64, value: u32) -> (), Some(addr), |()| None;
        Makes export_dmabuf(addr: u64, len: u64, mapping: DmabufMapping) -> (i32, u64), None, |(fd, _): &(i32, u64)| Some(*fd as u64);
        Makes map_uar(page: u64, len: u64) -> u64, Some(page), |_| Some(page);
        Undoes unmap_uar(page: u64) -> (), Some(page), |()| None;
        Asks flush_writes() -> (), None, |()| None;
        Makes load_module(ptx: &str) -> GpuHandle, None, |made: &GpuHandle| Some(made.0);
        Undoes unload_module(module: GpuHandle) -> (), Some(module.0), |()| None;
        Uses module_global(module: GpuHandle, name: &str) -> Option<(u64, u64)>, Some(module.0), |_| None;
        Uses kernel(module: GpuHandle, name: &str) -> GpuHandle, Some(module.0), |_| None;
        Asks max_resident_blocks(kernel: GpuHandle, shape: LaunchShape) -> u32, None, |_| None;
        Makes create_stream() -> GpuHandle, None, |made: &GpuHandle| Some(made.0);
        Undoes destroy_stream(stream: GpuHandle) -> (), Some(stream.0), |()| None;
        Makes create_event() -> GpuHandle, None, |made: &GpuHandle| Some(made.0);
        Undoes destroy_event(event: GpuHandle) -> (), Some(event.0), |()| None;
        Uses record_event(event: GpuHandle, stream: GpuHandle) -> (), Some(event.0), |()| None;
    }

    unsafe fn launch(
        &self,
        kernel: GpuHandle,
        shape: LaunchShape,
        stream: GpuHandle,
        params: &[u8],
    ) -> Result<()> {
        let call = ("launch", Role::Uses, Some(stream.0));
        // SAFETY: the caller promises what `Gpu::launch` demands.
        let run = || unsafe { self.inner.launch(kernel, shape, stream, params) };
        self.faults.call(&self.device, call, |()| None, run)
    }
}
