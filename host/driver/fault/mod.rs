//! Drivers that fail on purpose: in front of any [`Nic`] and any [`Gpu`], for tests.
//!
//! Knows: which call of a driver makes an object, uses one, or undoes one. Must not know: what is built on them.
//!
//! ```
//! # #[cfg(feature = "sim")]
//! # fn main() -> warpverbs::Result<()> {
//! use warpverbs::driver::fault::{Fault, Faults};
//! use warpverbs::driver::sim::World;
//! use warpverbs::{Context, Pd};
//!
//! let (world, faults) = (World::builder().build(), Faults::new());
//! let nic = Context::open(faults.nic(world.nic()))?;
//! let pd = Pd::alloc(&nic)?;
//! faults.plan(Fault::refuse(0).of("dealloc_pd"));
//! let refused = pd.close().unwrap_err();
//! faults.clear();
//! refused.value.close()?;
//! assert!(world.live().is_empty());
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "sim"))]
//! # fn main() {}
//! ```

mod plan;
#[allow(unsafe_code)]
mod wrap;

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

pub use plan::{Call, Fault, Outcome, Role};

use self::plan::{Plan, Verdict};
use self::wrap::Faulty;
use super::{DriverError, DriverErrorKind, Gpu, Nic};

/// A plan of faults, and a record of the calls of all drivers that it is put in front of. Clones are the same.
#[derive(Clone, Default)]
pub struct Faults(Arc<Shared>);

#[derive(Default)]
struct Shared {
    plan: Mutex<Plan>,
    changed: Condvar,
}

impl Faults {
    /// No faults.
    pub fn new() -> Self {
        Self::default()
    }

    /// A NIC that fails as planned.
    pub fn nic(&self, nic: Arc<dyn Nic>) -> Arc<dyn Nic> {
        Arc::new(Faulty::new(nic, self.clone()))
    }

    /// A GPU that fails as planned.
    pub fn gpu(&self, gpu: Arc<dyn Gpu>) -> Arc<dyn Gpu> {
        Arc::new(Faulty::new(gpu, self.clone()))
    }

    /// Plans a fault, beside those planned before. It counts calls from here.
    pub fn plan(&self, fault: Fault) {
        self.lock().add(fault);
    }

    /// Forgets all faults, and what they have refused, held or made pending. A device that is gone stays so.
    pub fn clear(&self) {
        self.lock().clear();
        self.0.changed.notify_all();
    }

    /// How many calls [`Fault::hold`] holds now.
    pub fn held(&self) -> usize {
        self.lock().held
    }

    /// Every call so far.
    pub fn trace(&self) -> Vec<Call> {
        self.lock().trace.clone()
    }

    /// The calls that a fault has struck.
    pub fn injected(&self) -> Vec<Call> {
        let plan = self.lock();
        let injected = plan
            .trace
            .iter()
            .filter(|call| call.outcome == Outcome::Injected);
        injected.copied().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Plan> {
        self.0.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a plan is over.
    fn hold(&self, era: u64) {
        let mut plan = self.lock();
        plan.held += 1;
        while plan.era == era {
            plan = self
                .0
                .changed
                .wait(plan)
                .unwrap_or_else(PoisonError::into_inner);
        }
        plan.held -= 1;
    }

    /// Judges a call, makes it unless it is to fail, and records it.
    fn call<T>(
        &self,
        device: &Device,
        (name, role, object): (&'static str, Role, Option<u64>),
        made: impl FnOnce(&T) -> Option<u64>,
        run: impl FnOnce() -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        let verdict = self.lock().judge(name, object);
        let kind = match verdict {
            Verdict::Pass => None,
            Verdict::Delay(time) => {
                std::thread::sleep(time);
                None
            }
            Verdict::Hold(era) => {
                self.hold(era);
                None
            }
            Verdict::Fail(kind) => Some(kind),
            Verdict::Die => {
                device.die();
                None
            }
        };
        let kind = kind.or_else(|| device.is_gone().then_some(DriverErrorKind::DeviceLost));
        let done = match kind {
            Some(kind) => Err(DriverError::new(name, kind, "planned failure")),
            None => run(),
        };
        let outcome = match (&done, kind) {
            (Ok(_), _) => Outcome::Done,
            (Err(_), Some(_)) => Outcome::Injected,
            (Err(_), None) => Outcome::Failed,
        };
        let object = match &done {
            Ok(value) if role == Role::Makes => made(value),
            _ => object,
        };
        self.lock().record(Call {
            name,
            role,
            object,
            outcome,
        });
        done
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Faults({} calls)", self.lock().trace.len())
    }
}

/// Whether the device behind a wrapper is there.
#[derive(Debug, Default)]
struct Device(std::sync::atomic::AtomicBool);

impl Device {
    fn die(&self) {
        self.0.store(true, std::sync::atomic::Ordering::Release);
    }

    fn is_gone(&self) -> bool {
        self.0.load(std::sync::atomic::Ordering::Acquire)
    }
}
