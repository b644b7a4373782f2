//! The real driver over the machine's libibverbs and libmlx5, with a test's own simulated NIC behind the kernel's ABI.
//!
//! Beside the calls themselves only time is simulated here, as the simulated driver does it: where a call has the CPU ring a doorbell,
//! or look again at an object, the devices take their steps.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use warpverbs::driver::mlx5::Mlx5;
use warpverbs::driver::sim::{Driven, ObjectId, ObjectKind, Simulated};
use warpverbs::driver::{
    Access, DriverError, GidEntry, MemoryRegion, MrInfo, Nic, NicHandle, PdInfo, PortInfo, UarInfo,
    UarKind, UmemInfo,
};
use warpverbs::wire::eqe::Event;
// Its names come before libc's: libibverbs finds the simulated NICs.
use warpverbs_sim::{Lent, Loan};

type Result<T> = std::result::Result<T, DriverError>;

/// Longer than any test has its devices.
const PATIENCE: Duration = Duration::from_secs(200);
/// Steps that the devices may take while a call of the CPU travels.
const QUANTUM: u64 = 1 << 16;

/// The real driver of a simulated NIC.
#[derive(Debug)]
struct OverMlx5 {
    /// Closed before the device goes.
    mlx5: Mlx5,
    device: Lent,
    nic: Simulated,
    /// What libmlx5 has made for itself.
    own: Vec<ObjectId>,
    /// Doorbell pages that were handed out, by handle.
    pages: Mutex<Vec<(NicHandle, u32)>>,
    /// One doorbell at a time: a register holds one value.
    ringing: Mutex<()>,
}

/// Puts the real driver in front of a NIC.
pub(super) fn drive(nic: Simulated) -> Arc<dyn Driven> {
    let loan = Loan {
        bus: nic.bus.clone(),
        model: nic.model.clone(),
        number: nic.number,
        thread: nic.thread.clone(),
    };
    // Other tests have the devices for a while.
    let until = Instant::now() + PATIENCE;
    let device = loop {
        match Lent::new(loan.clone()) {
            Some(device) => break device,
            None => std::thread::sleep(Duration::from_millis(1)),
        }
        assert!(
            Instant::now() < until,
            "no device is free: WARPVERBS_SIM_NICS=16 makes as many as there can be"
        );
    };
    let mlx5 = Mlx5::open(&device.name()).unwrap();
    let own = live(&nic);
    Arc::new(OverMlx5 {
        mlx5,
        device,
        nic,
        own,
        pages: Mutex::default(),
        ringing: Mutex::default(),
    })
}

fn live(nic: &Simulated) -> Vec<ObjectId> {
    let model = nic.model.lock().unwrap_or_else(PoisonError::into_inner);
    model.live_objects()
}

impl OverMlx5 {
    fn advance(&self) {
        if self.nic.thread.is_none() {
            self.nic.bus.lock().run_devices(QUANTUM);
        }
    }
}

impl Driven for OverMlx5 {
    fn page_at(&self, addr: u64) -> Option<u32> {
        self.device.page_at(addr)
    }

    /// libmlx5 keeps a doorbell page for further users, and hands it to several.
    fn of_user(&self, live: Vec<ObjectId>) -> Vec<ObjectId> {
        let users = live
            .into_iter()
            .filter(|object| object.kind != ObjectKind::Uar && !self.own.contains(object));
        let pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let pages = pages
            .iter()
            .map(|(_, page)| ObjectId::new(ObjectKind::Uar, *page));
        users.chain(pages).collect()
    }
}

macro_rules! forward {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty;)*) => {$(
        fn $name(&self, $($arg: $ty),*) -> Result<$out> {
            self.mlx5.$name($($arg),*)
        }
    )*};
}

impl Nic for OverMlx5 {
    fn name(&self) -> String {
        self.mlx5.name()
    }

    forward! {
        command(input: &[u8], output: &mut [u8]) -> ();
        create(input: &[u8], output: &mut [u8]) -> NicHandle;
        modify(object: NicHandle, input: &[u8], output: &mut [u8]) -> ();
        destroy(object: NicHandle) -> ();
        alloc_pd() -> PdInfo;
        dealloc_pd(pd: NicHandle) -> ();
        dereg_mr(mr: NicHandle) -> ();
        dereg_umem(umem: NicHandle) -> ();
        query_eqn(vector: u32) -> u32;
        data_direct() -> bool;
        port_counter_set(port: u8) -> Option<u8>;
        query_port(port: u8) -> PortInfo;
        query_gid(port: u8, index: u32) -> Option<GidEntry>;
        resolve_mac(pd: NicHandle, port: u8, gid_index: u32, remote: [u8; 16]) -> [u8; 6];
    }

    fn query(&self, object: NicHandle, input: &[u8], output: &mut [u8]) -> Result<()> {
        self.advance();
        self.mlx5.query(object, input, output)
    }

    fn ring_doorbell(&self, uar: NicHandle, value: [u8; 8]) -> Result<()> {
        let ringing = self.ringing.lock().unwrap_or_else(PoisonError::into_inner);
        self.mlx5.ring_doorbell(uar, value)?;
        self.device.deliver();
        drop(ringing);
        self.advance();
        Ok(())
    }

    fn alloc_uar(&self, kind: UarKind) -> Result<UarInfo> {
        let uar = self.mlx5.alloc_uar(kind)?;
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        pages.push((uar.handle, uar.page_id));
        Ok(uar)
    }

    fn free_uar(&self, uar: NicHandle) -> Result<()> {
        self.mlx5.free_uar(uar)?;
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        pages.retain(|(handle, _)| *handle != uar);
        Ok(())
    }

    fn take_events(&self) -> Result<Vec<Event>> {
        self.device.tell();
        self.mlx5.take_events()
    }

    unsafe fn reg_mr(&self, pd: NicHandle, region: MemoryRegion, access: Access) -> Result<MrInfo> {
        // SAFETY: the caller's.
        unsafe { self.mlx5.reg_mr(pd, region, access) }
    }

    unsafe fn reg_umem(
        &self,
        region: MemoryRegion,
        access: Access,
        page_sizes: u64,
    ) -> Result<UmemInfo> {
        // SAFETY: the caller's.
        unsafe { self.mlx5.reg_umem(region, access, page_sizes) }
    }
}
