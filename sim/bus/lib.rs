//! The bus that joins the simulated NIC, the simulated GPU and the host.
//!
//! Knows: an address map, a memory behind a trait, devices that take steps and MMIO stores, windows onto
//! host memory, dmabuf handles, and the seeded random numbers that every agent's choices come from.
//! Must not know: PTX, mlx5, work requests, or anything of the host crate.
//!
//! Everything on one bus runs under one lock ([`Bus::lock`]), one step at a time, so that a seed replays a run
//! exactly. Lock order: a GPU's execution state, then the bus, then a device. A device never locks the bus:
//! it is handed a [`Dma`] for the length of a step.
#![deny(unsafe_code)]

mod addr;
mod device;
mod dmabuf;
mod event;
mod fault;
mod finding;
#[allow(unsafe_code)]
mod host;
mod memory;
mod rng;
mod script;

use device::{by_parts, by_two};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use addr::{BAR_SIZE, Region, bar_base, region_of};
pub use device::{CopyFault, Device, Dma, DmaAccess, Purpose, Step};
pub use dmabuf::DmabufTable;
pub use event::{Event, Posted};
pub use fault::{Fault, FaultKind};
pub use finding::{Actor, MemoryFinding, OrderFault, Party};
pub use host::HostWindows;
pub use memory::{Access, Agent, FenceKind, Memory, Order, RmwOp, Scope, Space};
pub use rng::Rng;
pub use script::Script;

/// The bus: one lock over memory and the list of devices.
pub struct Bus {
    state: Mutex<BusState>,
    /// Who waits for the lock.
    waiting: AtomicU32,
}

/// What the lock protects.
pub struct BusState {
    /// GPU memory and host-mapped memory, behind the memory model chosen at construction.
    pub memory: Box<dyn Memory>,
    /// Windows onto the process's own memory that a device may reach by DMA.
    pub host: HostWindows,
    /// Open dmabuf handles.
    pub dmabufs: DmabufTable,
    devices: Vec<Arc<Mutex<dyn Device>>>,
    /// Where devices reach each other.
    addresses: Vec<Option<u64>>,
}

impl Bus {
    /// A bus over `memory`, with no device.
    pub fn new(memory: Box<dyn Memory>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(BusState {
                memory,
                host: HostWindows::default(),
                dmabufs: DmabufTable::default(),
                devices: Vec::new(),
                addresses: Vec::new(),
            }),
            waiting: AtomicU32::new(0),
        })
    }

    /// Locks the bus. A panic while it was held does not poison it: the state is only counters and bytes.
    pub fn lock(&self) -> MutexGuard<'_, BusState> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        state
    }

    /// True if someone waits for the lock. A mutex is not fair: who takes it again and again looks here in between.
    pub fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Attaches a device and returns its number; its BAR is at [`bar_base`] of that number.
    pub fn attach(&self, device: Arc<Mutex<dyn Device>>) -> usize {
        let mut state = self.lock();
        state.addresses.push(lock_device(&device).address());
        state.devices.push(device);
        state.devices.len() - 1
    }
}

impl BusState {
    /// How many devices are attached.
    pub fn devices(&self) -> usize {
        self.devices.len()
    }

    /// DMA of device number `index`, for whoever drives the device itself.
    pub fn dma(&mut self, index: usize) -> impl Dma + '_ {
        View {
            agent: Agent::Device(index as u16),
            memory: self.memory.as_mut(),
            host: &self.host,
            addresses: &self.addresses,
        }
    }

    /// Lets device `index` take one step. An unknown device is idle.
    pub fn step_device(&mut self, index: usize) -> Step {
        let Some(device) = self.devices.get(index) else {
            return Step::Idle;
        };
        let number = index as u16;
        let mut view = View {
            agent: Agent::Device(number),
            memory: self.memory.as_mut(),
            host: &self.host,
            addresses: &self.addresses,
        };
        let mut device = lock_device(device);
        let arrived = view.memory.arrive(number);
        if let Some(posted) = arrived
            && let Err(fault) = device.mmio_arrives(posted.offset, posted.bytes(), &mut view)
        {
            view.memory.refused(posted, &fault);
        }
        let step = device.step(&mut view);
        if arrived.is_some() || view.memory.has_posted(number) {
            Step::Progress
        } else {
            step
        }
    }

    /// Steps all devices in turn until all are idle or `budget` steps are spent; returns the steps taken.
    pub fn run_devices(&mut self, budget: u64) -> u64 {
        let mut taken = 0;
        loop {
            let mut busy = false;
            for index in 0..self.devices.len() {
                if taken == budget {
                    return taken;
                }
                if self.step_device(index) == Step::Progress {
                    taken += 1;
                    busy = true;
                }
            }
            if !busy {
                return taken;
            }
        }
    }

    /// Makes an MMIO store for a thread: it arrives at once, or later if the memory model says so.
    pub fn mmio_store(&mut self, access: Access, addr: u64, bytes: &[u8]) -> Result<(), Fault> {
        if let Region::Bar { device, offset } = region_of(addr)
            && let Some(target) = self.devices.get(device)
            && let Some(len) = u8::try_from(bytes.len()).ok().filter(|len| *len <= 8)
        {
            let context = lock_device(target).context_of(offset, bytes)?;
            let mut posted = Posted {
                device: device as u16,
                context,
                offset,
                bytes: [0; 8],
                len,
            };
            for (to, from) in posted.bytes.iter_mut().zip(bytes) {
                *to = *from;
            }
            if self.memory.post(access, posted) {
                return Ok(());
            }
        }
        self.mmio_write(addr, bytes)
    }

    /// Delivers one MMIO store. The address decides the device; no device there is a fault.
    pub fn mmio_write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), Fault> {
        if let Region::Bar { device, offset } = region_of(addr)
            && let Some(target) = self.devices.get(device)
        {
            return lock_device(target).mmio_write(offset, bytes);
        }
        Err(Fault::new(
            FaultKind::Unmapped,
            addr,
            bytes.len() as u64,
            "MMIO store to an address that no device answers",
        ))
    }
}

fn lock_device(device: &Mutex<dyn Device>) -> MutexGuard<'_, dyn Device + 'static> {
    device.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a device sees of the bus while it takes a step.
struct View<'a> {
    agent: Agent,
    memory: &'a mut dyn Memory,
    host: &'a HostWindows,
    addresses: &'a [Option<u64>],
}

impl Dma for View<'_> {
    fn read(&mut self, access: DmaAccess, addr: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        match region_of(addr) {
            Region::Simulated => self.memory.read(access.by(self.agent), addr, bytes),
            Region::Host => self.host.read(addr, bytes),
            Region::Bar { .. } => Err(peer_to_peer(addr, bytes.len())),
        }
    }

    fn write(&mut self, access: DmaAccess, addr: u64, bytes: &[u8]) -> Result<(), Fault> {
        match region_of(addr) {
            Region::Simulated => self.memory.write(access.by(self.agent), addr, bytes),
            Region::Host => self.host.write(addr, bytes),
            Region::Bar { .. } => Err(peer_to_peer(addr, bytes.len())),
        }
    }

    fn copy(
        &mut self,
        from: (DmaAccess, u64),
        to: (DmaAccess, u64),
        len: u64,
    ) -> Result<(), CopyFault> {
        match (region_of(from.1), region_of(to.1)) {
            (Region::Host, Region::Host) => self.host.copy(from.1, to.1, len),
            _ => by_parts(self, from, to, len),
        }
    }

    fn atomic(
        &mut self,
        access: DmaAccess,
        addr: u64,
        size: u32,
        op: RmwOp,
        operand: u64,
    ) -> Result<u64, Fault> {
        match region_of(addr) {
            Region::Simulated => {
                let access = access.by(self.agent);
                self.memory.rmw(access, addr, size, op, operand, 0)
            }
            // Nothing but this device makes it one operation there.
            Region::Host => by_two(self, (access, addr), size, (op, operand)),
            Region::Bar { .. } => Err(peer_to_peer(addr, size as usize)),
        }
    }

    fn follow(&mut self, context: u32, peer: u32, address: Option<u64>) {
        let Agent::Device(device) = self.agent else {
            return;
        };
        let has_it = |(at, own): (usize, &Option<u64>)| {
            (at != usize::from(device) && *own == address).then_some(at as u16)
        };
        let of = match address {
            None => Some(device),
            Some(_) => self.addresses.iter().enumerate().find_map(has_it),
        };
        // A peer that is on no device of this bus does nothing to its memory.
        if let Some(of) = of {
            self.memory.follow((device, context), (of, peer));
        }
    }

    fn doorbell_by(&self, context: u32) -> Option<Party> {
        match self.agent {
            Agent::Device(device) => self.memory.doorbell_by(device, context),
            _ => None,
        }
    }

    fn written_by(&mut self, addr: u64) -> Option<Party> {
        match region_of(addr) {
            Region::Simulated => self.memory.written_by(addr),
            Region::Host | Region::Bar { .. } => None,
        }
    }
}

fn peer_to_peer(addr: u64, len: usize) -> Fault {
    Fault::new(
        FaultKind::Unmapped,
        addr,
        len as u64,
        "DMA to a device's registers",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Echo {
        seen: Vec<(u64, Vec<u8>)>,
        steps: u32,
    }
    impl Device for Echo {
        fn name(&self) -> &str {
            "echo"
        }
        fn step(&mut self, _: &mut dyn Dma) -> Step {
            if self.steps == 0 {
                return Step::Idle;
            }
            self.steps -= 1;
            Step::Progress
        }
        fn mmio_write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
            self.seen.push((offset, bytes.to_vec()));
            Ok(())
        }
    }

    struct NoMemory;
    impl Memory for NoMemory {
        fn alloc(&mut self, _: Space, len: u64, _: u64, _: &str) -> Result<u64, Fault> {
            Err(Fault::new(FaultKind::OutOfMemory, 0, len, "none"))
        }
        fn free(&mut self, addr: u64) -> Result<(), Fault> {
            Err(Fault::new(FaultKind::Unmapped, addr, 0, "none"))
        }
        fn load(&mut self, _: Access, addr: u64, size: u32) -> Result<u64, Fault> {
            Err(Fault::new(FaultKind::Unmapped, addr, size.into(), "none"))
        }
        fn store(&mut self, _: Access, addr: u64, size: u32, _: u64) -> Result<(), Fault> {
            Err(Fault::new(FaultKind::Unmapped, addr, size.into(), "none"))
        }
        fn rmw(
            &mut self,
            _: Access,
            addr: u64,
            size: u32,
            _: RmwOp,
            _: u64,
            _: u64,
        ) -> Result<u64, Fault> {
            Err(Fault::new(FaultKind::Unmapped, addr, size.into(), "none"))
        }
        fn fence(&mut self, _: Agent, _: FenceKind, _: Scope) {}
        fn read(&mut self, _: Access, addr: u64, b: &mut [u8]) -> Result<(), Fault> {
            Err(Fault::new(
                FaultKind::Unmapped,
                addr,
                b.len() as u64,
                "none",
            ))
        }
        fn write(&mut self, _: Access, addr: u64, b: &[u8]) -> Result<(), Fault> {
            Err(Fault::new(
                FaultKind::Unmapped,
                addr,
                b.len() as u64,
                "none",
            ))
        }
        fn describe(&self, _: u64) -> String {
            String::new()
        }
    }

    #[test]
    fn an_mmio_store_reaches_the_device_that_owns_the_address() {
        let bus = Bus::new(Box::new(NoMemory));
        let first = Arc::new(Mutex::new(Echo {
            seen: vec![],
            steps: 0,
        }));
        let second = Arc::new(Mutex::new(Echo {
            seen: vec![],
            steps: 0,
        }));
        assert_eq!(bus.attach(first.clone()), 0);
        assert_eq!(bus.attach(second.clone()), 1);
        bus.lock()
            .mmio_write(bar_base(1) + 0x1800, &[1, 2, 3])
            .unwrap();
        assert!(first.lock().unwrap().seen.is_empty());
        assert_eq!(second.lock().unwrap().seen, [(0x1800, vec![1, 2, 3])]);
        let fault = bus.lock().mmio_write(bar_base(2), &[0]).unwrap_err();
        assert_eq!(fault.kind, FaultKind::Unmapped);
    }

    #[test]
    fn devices_run_until_idle_or_until_the_budget_is_spent() {
        let bus = Bus::new(Box::new(NoMemory));
        bus.attach(Arc::new(Mutex::new(Echo {
            seen: vec![],
            steps: 5,
        })));
        bus.attach(Arc::new(Mutex::new(Echo {
            seen: vec![],
            steps: 2,
        })));
        assert_eq!(bus.lock().run_devices(4), 4);
        assert_eq!(bus.lock().run_devices(100), 3);
        assert_eq!(bus.lock().step_device(9), Step::Idle);
    }
}
