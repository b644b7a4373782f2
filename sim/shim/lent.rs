//! NICs of somebody else in this process, behind devices of this library: unmodified libibverbs and libmlx5 drive a NIC that
//! a test made, watches, breaks and steps.
//!
//! Knows: where a lent NIC's registers are mapped, what was stored there, what events it has raised.
//! Must not know: who steps it.
//!
//! For tests, and only where this library is linked into them. A process that has opened a device which nobody lent a NIC for has
//! NICs of this library's own, and can lend none.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warpverbs_sim_bus::{Access, Agent, Bus, Event, FenceKind, Order, Purpose, Scope, bar_base};
use warpverbs_sim_nic::{About, Background, HostCall, NicModel, Registers};

use crate::sys::PAGE;
use crate::world::{self, World};
use crate::{events, sysfs};

/// A NIC to be lent.
#[derive(Clone)]
pub struct Loan {
    /// The bus that it is attached to.
    pub bus: Arc<Bus>,
    /// The NIC.
    pub model: Arc<Mutex<NicModel>>,
    /// Its number on the bus, and on its thread.
    pub number: usize,
    /// The thread that it runs on; none if the bus steps it.
    pub thread: Option<Arc<Background>>,
}

/// A lent NIC, as long as it is lent.
pub(crate) struct LentNic {
    loan: Loan,
    /// What a program stores to doorbell pages, of a NIC that is stepped.
    registers: Registers,
    /// Where programs have mapped pages.
    mapped: Mutex<BTreeMap<u64, u32>>,
}

impl LentNic {
    pub(crate) fn bus(&self) -> &Bus {
        &self.loan.bus
    }

    pub(crate) fn lock(&self) -> (MutexGuard<'_, NicModel>, Option<HostCall<'_>>) {
        match &self.loan.thread {
            Some(thread) => {
                let call = thread.call();
                (
                    thread.lock(self.loan.number, &self.loan.model, About::Everything),
                    Some(call),
                )
            }
            None => {
                let model = self.loan.model.lock();
                (model.unwrap_or_else(PoisonError::into_inner), None)
            }
        }
    }

    /// A call of the driver follows: what its program has stored before, the NIC sees.
    pub(crate) fn comes_command(&self) {
        if self.loan.thread.is_none() {
            self.loan.bus.lock().memory.event(Event::Command);
        }
    }

    fn pages(&self) -> MutexGuard<'_, BTreeMap<u64, u32>> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Page `page` lies in this memory.
    pub(crate) fn map(&self, page: u32, words: &'static crate::sys::PageWords) {
        match &self.loan.thread {
            Some(thread) => {
                thread.map_given(self.loan.number, page, words);
            }
            None => self.registers.map_given(page, words),
        }
    }

    /// It does so no longer.
    pub(crate) fn unmap(&self, page: u32) {
        match &self.loan.thread {
            Some(thread) => thread.unmap(self.loan.number, page),
            None => self.registers.unmap(page),
        }
        self.pages().retain(|_, other| *other != page);
    }

    /// A program has mapped a page at an address.
    pub(crate) fn mapped_at(&self, page: u32, addr: u64) {
        self.pages().insert(addr, page);
    }
}

/// A device that a NIC was lent to. Dropped, it takes the NIC away from whoever has the device open.
pub struct Lent {
    world: &'static World,
    index: usize,
    nic: Arc<LentNic>,
}

impl Lent {
    /// Puts a NIC behind a device. `None` if all devices have one (`WARPVERBS_SIM_NICS` says how many there are), or if this process
    /// cannot have simulated devices.
    pub fn new(loan: Loan) -> Option<Self> {
        let world = world::current().ok()?;
        let nic = Arc::new(LentNic {
            loan,
            registers: Registers::default(),
            mapped: Mutex::default(),
        });
        let index = world.lend(&nic)?;
        Some(Self { world, index, nic })
    }

    /// The device's name.
    pub fn name(&self) -> String {
        sysfs::device_name(self.index)
    }

    /// The doorbell page that a program has mapped at an address.
    pub fn page_at(&self, addr: u64) -> Option<u32> {
        self.nic.pages().get(&addr).copied()
    }

    /// Hands the NIC what programs have stored to its registers: as its own, each a store of the CPU behind the barrier that libmlx5
    /// and this crate's users have before it. Of stores to one register only the last is still there, so whoever wants each calls
    /// this after each. A NIC on a thread finds stores by itself.
    pub fn deliver(&self) {
        let mut stores = Vec::new();
        self.nic.registers.take_all(|page, offset, value| {
            stores.push((u64::from(page) * PAGE + offset as u64, value));
        });
        let store = Access {
            agent: Agent::Host,
            order: Order::Mmio,
            scope: Scope::Sys,
            purpose: Purpose::Instruction,
            site: 0,
        };
        let bar = bar_base(self.nic.loan.number);
        let mut bus = self.nic.loan.bus.lock();
        for (register, value) in stores {
            bus.memory
                .fence(store.agent, FenceKind::AcqRel, store.scope);
            // A register that is none is nothing that a CPU is told of.
            let _ = bus.mmio_store(store, bar + register, &value);
        }
    }

    /// Sends the events that the NIC has raised to whoever has asked for them.
    pub fn tell(&self) {
        let raised = self.nic.lock().0.take_events();
        if !raised.is_empty() {
            events::of_nic(self.index, raised);
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.world.take_back(self.index);
    }
}

impl std::fmt::Debug for Lent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lent({})", self.name())
    }
}
