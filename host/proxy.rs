//! The host thread that rings for GPU threads: the other end of the device's doorbell mode `Proxy`.
//!
//! Knows: which QPs are served, when they are looked at, and how that ends. Must not know: records and doorbells
//! (`resource::service`).

mod back_off;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use self::back_off::Pause;
use crate::driver::{DriverError, DriverErrorKind};
use crate::error::{Error, Result};
use crate::resource::{QueuePair, Served, Service};
use crate::teardown::{GRACE, Wait, poll};

/// A host thread that writes doorbell records and rings for the QPs added to it: those made with
/// [`DoorbellPath::Proxy`](crate::DoorbellPath::Proxy). Clones are the same; it stops with the last of them.
///
/// QPs are added and removed while it runs, of any NIC and GPU. A QP that is served is kept, as by a launch: closing it, or
/// its pool or NIC, ends its service, when no kernel uses it any more. Resetting it does too: add it again.
///
/// The thread looks at all QPs in turn. Without news it yields for 100 us, then sleeps 50 us to 1 ms between looks; without a QP
/// it sleeps until one is added.
///
/// ```
/// # #[cfg(feature = "sim")]
/// # fn main() -> warpverbs::Result<()> {
/// # use warpverbs::driver::sim::World;
/// # use warpverbs::{Context, DoorbellPath, GpuContext, Pd, Proxy, QpConfig, QueuePair};
/// # let world = World::builder().build();
/// # let (nic, gpu) = (Context::open(world.nic())?, GpuContext::open(world.gpu())?);
/// # let pd = Pd::alloc(&nic)?;
/// let config = QpConfig::default().doorbell_path(DoorbellPath::Proxy);
/// let qp = QueuePair::create(&pd, &gpu, &config)?;
/// let proxy = Proxy::start()?;
/// proxy.add(&qp)?;
/// // Connect it, export it, launch kernels that use the mode `Proxy`.
/// assert!(proxy.remove(&qp)?.is_all_rung());
/// proxy.stop()?;
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "sim"))]
/// # fn main() {}
/// ```
#[derive(Clone)]
pub struct Proxy(Arc<Running>);

/// The handles' part: with it, the thread ends.
struct Running {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The thread's part.
#[derive(Default)]
struct Shared {
    services: Mutex<Arc<Vec<Arc<Service>>>>,
    stopping: AtomicBool,
}

impl Proxy {
    /// Starts a thread that serves no QP yet.
    pub fn start() -> Result<Self> {
        let proxy = Self::without_thread();
        let shared = proxy.0.shared.clone();
        let thread = thread::Builder::new()
            .name("wv-proxy".to_owned())
            .spawn(move || shared.run())
            .map_err(|error| {
                let kind = DriverErrorKind::Os(error.raw_os_error().unwrap_or_default());
                let source = DriverError::new("spawn", kind, error.to_string());
                Error::driver("start the proxy's thread")(source)
            })?;
        *proxy.0.thread() = Some(thread);
        Ok(proxy)
    }

    /// One without a thread: the caller looks, by [`Self::step`], from a thread of its own that has other things to do, or in
    /// the schedule of a simulation (`World::run_beside`), where a seed replays the run.
    pub fn without_thread() -> Self {
        Self(Arc::new(Running {
            shared: Arc::default(),
            thread: Mutex::new(None),
        }))
    }

    /// Serves a QP from here on: from where an earlier service of the same life has left off, so what GPU threads have asked for
    /// meanwhile is rung for.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the QP was not made for it; [`Error::QpState`] if it is served already, or being closed;
    /// [`Error::Closed`] if this was stopped, or the QP closed.
    pub fn add(&self, qp: &QueuePair) -> Result<()> {
        let shared = &self.0.shared;
        let closed = || Err(Error::Closed { what: "proxy" });
        if shared.stopping.load(Ordering::Acquire) {
            return closed();
        }
        // Not under the lock, which the thread takes for each step: it asks the driver.
        let service = qp.serve()?;
        let stopped = {
            let mut services = shared.services();
            let stopped = shared.stopping.load(Ordering::Acquire);
            if !stopped {
                let mut changed = Vec::clone(&services);
                changed.retain(|known| !known.is_over());
                changed.push(service.clone());
                *services = Arc::new(changed);
            }
            stopped
        };
        if stopped {
            service.end(Wait::within(GRACE))?;
            return closed();
        }
        tracing::debug!(qpn = qp.qpn(), "served by a proxy");
        self.0.wake();
        Ok(())
    }

    /// Ends the service of a QP, behind a last look: what GPU threads had asked for by then was rung for, or the answer says that it
    /// was not, and why. What they ask for later waits until the QP is added again, here or elsewhere; waits for it end by their
    /// deadlines.
    ///
    /// # Errors
    ///
    /// [`Error::QpState`] if this does not serve the QP; [`Error::Timeout`] if a driver call for it does not return: it is served
    /// still.
    pub fn remove(&self, qp: &QueuePair) -> Result<Served> {
        self.remove_within(qp, GRACE)
    }

    /// As [`Self::remove`], with the time that a driver call under way may take.
    ///
    /// # Errors
    ///
    /// As [`Self::remove`]'s.
    pub fn remove_within(&self, qp: &QueuePair, time: Duration) -> Result<Served> {
        let known = |service: &Arc<Service>| qp.is_served_by(service);
        let services = self.0.shared.services().clone();
        let service = services.iter().find(|service| known(service));
        let Some(service) = service else {
            return Err(Error::QpState {
                doing: "take it from the proxy",
                state: "not served by it",
            });
        };
        let served = service.end(Wait::within(time))?;
        self.0.shared.prune();
        tracing::debug!(qpn = qp.qpn(), rung = served.rung, "removed from its proxy");
        Ok(served)
    }

    /// Looks once at every QP; how many doorbells were rung. A QP at which another thread looks is left to that.
    pub fn step(&self) -> usize {
        self.0.shared.step()
    }

    /// How the QPs stand that it serves, in the order in which they were added.
    pub fn served(&self) -> Vec<Served> {
        let services = self.0.shared.services().clone();
        let serves = services.iter().filter(|service| !service.is_over());
        serves.map(|service| service.served()).collect()
    }

    /// True while its thread runs.
    pub fn is_running(&self) -> bool {
        let thread = self.0.thread();
        thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Ends the service of all QPs, each behind a last look, and the thread. QPs cannot be added any more. Says how each stood.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if a driver call of the thread does not return: its QP stays served, all others are not. Stopping again
    /// goes on with the rest.
    pub fn stop(&self) -> Result<Vec<Served>> {
        self.stop_within(GRACE)
    }

    /// As [`Self::stop`], with the time that driver calls under way may take.
    ///
    /// # Errors
    ///
    /// As [`Self::stop`]'s.
    pub fn stop_within(&self, time: Duration) -> Result<Vec<Served>> {
        self.0.stop(Wait::within(time))
    }
}

impl Running {
    fn thread(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        if let Some(thread) = self.thread().as_ref() {
            thread.thread().unpark();
        }
    }

    fn stop(&self, wait: Wait) -> Result<Vec<Served>> {
        let services = {
            let services = self.shared.services();
            // Under the lock that QPs are added under: none comes after.
            self.shared.stopping.store(true, Ordering::Release);
            services.clone()
        };
        self.wake();
        // Whatever became of the thread, even if it died: looks are anyone's.
        let mut stood = Vec::new();
        let mut late = None;
        for service in services.iter().filter(|service| !service.is_over()) {
            match service.end(wait) {
                Ok(served) => stood.push(served),
                Err(error) => late = Some(error),
            }
        }
        self.shared.prune();
        if let Some(late) = late {
            return Err(late);
        }
        poll("the proxy's thread", wait, || {
            Ok(self.thread().as_ref().is_none_or(JoinHandle::is_finished))
        })?;
        let thread = self.thread().take();
        if let Some(Err(_)) = thread.map(JoinHandle::join) {
            tracing::error!("the proxy's thread had panicked");
        }
        Ok(stood)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        match self.stop(Wait::within(GRACE)) {
            Ok(stood) => {
                for served in stood.iter().filter(|served| !served.is_all_rung()) {
                    tracing::error!(?served, "a proxy ended with work that was not rung for");
                }
            }
            // Its thread keeps what it uses, and ends when its call returns.
            Err(error) => tracing::error!(%error, "a proxy's thread is left behind"),
        }
    }
}

impl Shared {
    fn services(&self) -> MutexGuard<'_, Arc<Vec<Arc<Service>>>> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets services that are over: QPs that were removed, closed or reset.
    fn prune(&self) {
        let mut services = self.services();
        if services.iter().any(|service| service.is_over()) {
            let left = services.iter().filter(|service| !service.is_over());
            *services = Arc::new(left.cloned().collect());
        }
    }

    fn step(&self) -> usize {
        let services = self.services().clone();
        let rung = services.iter().filter(|service| service.look()).count();
        if rung == 0 && services.iter().any(|service| service.is_over()) {
            self.prune();
        }
        rung
    }

    /// The thread.
    fn run(&self) {
        let mut news = Instant::now();
        while !self.stopping.load(Ordering::Acquire) {
            // Our own code does not panic; a driver might.
            let Ok(rung) = catch_unwind(AssertUnwindSafe(|| self.step())) else {
                for service in self.services().clone().iter() {
                    service.abandon();
                }
                return;
            };
            if rung > 0 {
                news = Instant::now();
                continue;
            }
            let serves = !self.services().is_empty();
            match back_off::pause(serves, news.elapsed()) {
                Pause::Yield => thread::yield_now(),
                Pause::Sleep(time) => thread::park_timeout(time),
                Pause::UntilWoken => {
                    thread::park();
                    news = Instant::now();
                }
            }
        }
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.served()).finish()
    }
}
