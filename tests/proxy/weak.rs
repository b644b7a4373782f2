//! Drivers whose calls leave out an order, or a place, that the proxy relies on; and that write down what it does.

use std::sync::{Arc, Mutex};

use warpverbs::driver::sim::World;
use warpverbs::driver::*;
use warpverbs::wire::eqe::Event;
use warpverbs_sim_bus::{self as bus, Bus};

type Result<T> = std::result::Result<T, DriverError>;

/// What is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    Nothing,
    /// The producer is loaded relaxed.
    Acquire,
    /// The record is stored relaxed.
    Release,
    /// No barrier stands before the doorbell.
    Barrier,
    /// The record is stored behind the doorbell.
    RecordFirst,
    /// The record is not stored.
    Record,
    /// The producer goes to the receive word.
    SendWord,
    /// The doorbell goes to the first page that was made.
    OwnPage,
    /// The driver panics in a look of the proxy's thread.
    Life,
}

/// What the proxy told the NIC, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// The 4 bytes of a record, and where.
    Record(u64, [u8; 4]),
    /// The 8 bytes of a doorbell, and the page.
    Doorbell(u64, [u8; 8]),
}

#[derive(Debug)]
struct Shared {
    left: Left,
    pages: Mutex<Vec<UarInfo>>,
    late: Mutex<Option<(u64, u32)>>,
    told: Mutex<Vec<Told>>,
}

struct Weak<T: ?Sized> {
    inner: Arc<T>,
    bus: Arc<Bus>,
    shared: Arc<Shared>,
}

impl<T: ?Sized> std::fmt::Debug for Weak<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.shared.fmt(f)
    }
}

/// Reads what was told so far.
#[derive(Clone)]
pub(crate) struct Notes(Arc<Shared>);

impl Notes {
    pub(crate) fn told(&self) -> Vec<Told> {
        self.0.told.lock().unwrap().clone()
    }
}

pub(crate) fn drivers(world: &World, left: Left) -> (Arc<dyn Nic>, Arc<dyn Gpu>, Notes) {
    let shared = Arc::new(Shared {
        left,
        pages: Mutex::default(),
        late: Mutex::default(),
        told: Mutex::default(),
    });
    let nic = Weak {
        inner: world.nic(),
        bus: world.bus().clone(),
        shared: shared.clone(),
    };
    let gpu = Weak {
        inner: world.gpu(),
        bus: world.bus().clone(),
        shared: shared.clone(),
    };
    (Arc::new(nic), Arc::new(gpu), Notes(shared))
}

fn access(order: bus::Order) -> bus::Access {
    bus::Access {
        agent: bus::Agent::Host,
        order,
        scope: bus::Scope::Sys,
        purpose: bus::Purpose::Instruction,
        site: 0,
    }
}

macro_rules! forward {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty;)*) => {$(
        fn $name(&self, $($arg: $ty),*) -> $out {
            self.inner.$name($($arg),*)
        }
    )*};
}

impl Gpu for Weak<dyn Gpu> {
    forward! {
        name() -> String;
        compute_capability() -> u32;
        is_alive() -> bool;
        alloc(len: u64, label: &str) -> Result<u64>;
        free(addr: u64) -> Result<()>;
        copy_to_device(addr: u64, bytes: &[u8]) -> Result<()>;
        copy_rows_to_device(addr: u64, pitch: u64, width: u64, bytes: &[u8]) -> Result<()>;
        fill(addr: u64, len: u64, byte: u8) -> Result<()>;
        copy_from_device(bytes: &mut [u8], addr: u64) -> Result<()>;
        alloc_host_mapped(len: u64, label: &str) -> Result<u64>;
        free_host_mapped(addr: u64) -> Result<()>;
        store_release(addr: u64, value: u64) -> Result<()>;
        export_dmabuf(addr: u64, len: u64, mapping: DmabufMapping) -> Result<(i32, u64)>;
        close_dmabuf(fd: i32) -> Result<()>;
        map_uar(page: u64, len: u64) -> Result<u64>;
        unmap_uar(page: u64) -> Result<()>;
        write_ordering() -> WriteOrdering;
        flush_writes() -> Result<()>;
        load_module(ptx: &str) -> Result<GpuHandle>;
        unload_module(module: GpuHandle) -> Result<()>;
        module_global(module: GpuHandle, name: &str) -> Result<Option<(u64, u64)>>;
        kernel(module: GpuHandle, name: &str) -> Result<GpuHandle>;
        max_resident_blocks(kernel: GpuHandle, shape: LaunchShape) -> Result<u32>;
        create_stream() -> Result<GpuHandle>;
        destroy_stream(stream: GpuHandle) -> Result<()>;
        query_stream(stream: GpuHandle) -> Result<Progress>;
        create_event() -> Result<GpuHandle>;
        destroy_event(event: GpuHandle) -> Result<()>;
        record_event(event: GpuHandle, stream: GpuHandle) -> Result<()>;
        query_event(event: GpuHandle) -> Result<Progress>;
        counters(event: GpuHandle) -> Option<LaunchCounters>;
    }

    fn load_acquire(&self, addr: u64) -> Result<u64> {
        if self.shared.left == Left::Life && std::thread::current().name() == Some("wv-proxy") {
            panic!("a driver that panics, as planned");
        }
        if self.shared.left != Left::Acquire {
            return self.inner.load_acquire(addr);
        }
        let mut bus = self.bus.lock();
        Ok(bus
            .memory
            .load(access(bus::Order::Relaxed), addr, 8)
            .unwrap())
    }

    fn store_release_u32(&self, addr: u64, value: u32) -> Result<()> {
        let mut told = self.shared.told.lock().unwrap();
        told.push(Told::Record(addr, value.to_le_bytes()));
        drop(told);
        match self.shared.left {
            Left::Record => Ok(()),
            Left::SendWord => self.inner.store_release_u32(addr - 4, value),
            Left::Release => {
                let mut bus = self.bus.lock();
                let relaxed = access(bus::Order::Relaxed);
                bus.memory.store(relaxed, addr, 4, value.into()).unwrap();
                Ok(())
            }
            Left::RecordFirst => {
                *self.shared.late.lock().unwrap() = Some((addr, value));
                Ok(())
            }
            _ => self.inner.store_release_u32(addr, value),
        }
    }

    unsafe fn launch(
        &self,
        kernel: GpuHandle,
        shape: LaunchShape,
        stream: GpuHandle,
        params: &[u8],
    ) -> Result<()> {
        // SAFETY: the caller promises what the trait demands.
        unsafe { self.inner.launch(kernel, shape, stream, params) }
    }
}

impl Nic for Weak<dyn Nic> {
    forward! {
        name() -> String;
        command(input: &[u8], output: &mut [u8]) -> Result<()>;
        create(input: &[u8], output: &mut [u8]) -> Result<NicHandle>;
        modify(object: NicHandle, input: &[u8], output: &mut [u8]) -> Result<()>;
        query(object: NicHandle, input: &[u8], output: &mut [u8]) -> Result<()>;
        destroy(object: NicHandle) -> Result<()>;
        alloc_pd() -> Result<PdInfo>;
        dealloc_pd(pd: NicHandle) -> Result<()>;
        dereg_mr(mr: NicHandle) -> Result<()>;
        dereg_umem(umem: NicHandle) -> Result<()>;
        free_uar(uar: NicHandle) -> Result<()>;
        take_events() -> Result<Vec<Event>>;
        query_eqn(vector: u32) -> Result<u32>;
        query_port(port: u8) -> Result<PortInfo>;
        query_gid(port: u8, index: u32) -> Result<Option<GidEntry>>;
        resolve_mac(pd: NicHandle, port: u8, gid_index: u32, remote: [u8; 16]) -> Result<[u8; 6]>;
    }

    fn alloc_uar(&self, kind: UarKind) -> Result<UarInfo> {
        let info = self.inner.alloc_uar(kind)?;
        self.shared.pages.lock().unwrap().push(info);
        Ok(info)
    }

    fn ring_doorbell(&self, uar: NicHandle, value: [u8; 8]) -> Result<()> {
        let pages = self.shared.pages.lock().unwrap().clone();
        let own = pages.iter().find(|page| page.handle == uar).unwrap();
        let mut told = self.shared.told.lock().unwrap();
        told.push(Told::Doorbell(own.page, value));
        drop(told);
        match self.shared.left {
            Left::Barrier => {
                let register = own.page + u64::from(own.doorbell_offset);
                let mut bus = self.bus.lock();
                let store = access(bus::Order::Mmio);
                bus.mmio_store(store, register, &value).unwrap();
                Ok(())
            }
            // The drain's own doorbell has the other form.
            Left::OwnPage if value[7] == 0 => self.inner.ring_doorbell(pages[0].handle, value),
            _ => {
                self.inner.ring_doorbell(uar, value)?;
                if let Some((addr, value)) = self.shared.late.lock().unwrap().take() {
                    let mut bus = self.bus.lock();
                    let release = access(bus::Order::Release);
                    bus.memory.store(release, addr, 4, value.into()).unwrap();
                }
                Ok(())
            }
        }
    }

    unsafe fn reg_mr(&self, pd: NicHandle, region: MemoryRegion, access: Access) -> Result<MrInfo> {
        // SAFETY: the caller promises what the trait demands.
        unsafe { self.inner.reg_mr(pd, region, access) }
    }

    unsafe fn reg_umem(
        &self,
        region: MemoryRegion,
        access: Access,
        page_sizes: u64,
    ) -> Result<UmemInfo> {
        // SAFETY: the caller promises what the trait demands.
        unsafe { self.inner.reg_umem(region, access, page_sizes) }
    }
}
