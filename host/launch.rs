//! Streams and launches.
//!
//! Knows: that a launch keeps all that its kernel may touch until it has finished. Must not know: what a kernel does.
//!
//! One of the files that call `unsafe` functions.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::driver::{GpuHandle, LaunchCounters, LaunchShape, Progress};
use crate::error::{Error, Refused, Result};
use crate::export::ExportedQp;
use crate::module::Kernel;
use crate::resource::{GpuContext, GpuMemory, Mr};
use crate::teardown::{Node, Owner, Registry, Shared, close_shared};

/// What a kernel may touch, kept until its launch has finished.
#[derive(Default)]
pub struct View {
    qps: Vec<ExportedQp>,
    kept: Vec<Box<dyn Any + Send + Sync>>,
}

impl View {
    /// Nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// And this QP.
    #[must_use]
    pub fn qp(mut self, qp: &ExportedQp) -> Self {
        self.qps.push(qp.clone());
        self
    }

    /// And this memory region, which its work requests name.
    #[must_use]
    pub fn mr(mut self, mr: &Mr) -> Self {
        self.kept.push(Box::new(mr.clone()));
        self
    }

    /// And this memory, which it loads from or stores to.
    #[must_use]
    pub fn memory(mut self, memory: &GpuMemory) -> Self {
        self.kept.push(Box::new(memory.clone()));
        self
    }
}

/// A stream: launches on it run one after the other.
#[derive(Clone, Debug)]
pub struct Stream {
    gpu: GpuContext,
    handle: GpuHandle,
    node: Shared<StreamNode>,
}

impl Stream {
    /// Creates one.
    pub fn create(gpu: &GpuContext) -> Result<Self> {
        let handle = gpu
            .driver()
            .create_stream()
            .map_err(Error::driver("create a stream"))?;
        Ok(Self {
            gpu: gpu.clone(),
            handle,
            node: Arc::new(Owner::new(StreamNode {
                gpu: gpu.clone(),
                handle,
            })),
        })
    }

    /// Launches a kernel, which goes on after this returns. `params` is the kernel's parameter
    /// buffer; `view` is kept until the kernel has finished.
    ///
    /// # Safety
    ///
    /// `params` are laid out as the kernel declares them; with them, it accesses only memory of the
    /// GPU that `view` keeps (or that the caller keeps until the launch has finished), and no
    /// memory that a Rust reference covers.
    pub unsafe fn launch(
        &self,
        kernel: &Kernel,
        shape: LaunchShape,
        params: &[u8],
        view: View,
    ) -> Result<Launch> {
        self.node.get()?;
        if !self.gpu.is(kernel.module.gpu()) {
            return Err(Error::InvalidArgument {
                what: format!(
                    "kernel {} is loaded on another GPU than the stream is of",
                    kernel.name()
                ),
                cure: "load the module on the stream's GPU",
            });
        }
        let driver = self.gpu.driver();
        let event = Event::create(&self.gpu)?;
        // SAFETY: `Gpu::launch` demands that the kernel accesses only memory that stays allocated
        // until it has finished, and none that a Rust reference covers. The caller promises both,
        // given that `view` stays: the launch's node keeps it until the kernel has finished.
        unsafe { driver.launch(kernel.handle, shape, self.handle, params) }
            .map_err(Error::driver("launch the kernel"))?;
        let recorded = driver.record_event(event.handle, self.handle);
        if let Err(refusal) = &recorded {
            // The kernel runs: it must be waited for all the same, then with all that follows it on
            // the stream.
            tracing::warn!(%refusal, kernel = kernel.name(), "no event after the launch");
        }
        tracing::debug!(kernel = kernel.name(), ?shape, "launched");
        Ok(Launch {
            qps: view.qps.clone(),
            node: Owner::new(LaunchNode {
                event: recorded.is_ok().then_some(event),
                stream: self.clone(),
                kernel: kernel.clone(),
                _view: view,
            }),
        })
    }

    /// Destroys it. Busy while a launch on it is held.
    pub fn close(mut self) -> Result<(), Refused<Self>> {
        close_shared(&mut self.node).map_err(|error| Refused { error, value: self })
    }
}

struct StreamNode {
    gpu: GpuContext,
    handle: GpuHandle,
}

impl Node for StreamNode {
    const NAME: &'static str = "stream";

    fn destroy(&mut self) -> Result<()> {
        self.gpu
            .undo("destroy the stream", |gpu| gpu.destroy_stream(self.handle))
    }

    fn registry(&self) -> &Registry {
        self.gpu.registry()
    }
}

struct Event {
    handle: GpuHandle,
    _node: Owner<EventNode>,
}

impl Event {
    fn create(gpu: &GpuContext) -> Result<Self> {
        let handle = gpu
            .driver()
            .create_event()
            .map_err(Error::driver("create an event"))?;
        Ok(Self {
            handle,
            _node: Owner::new(EventNode {
                gpu: gpu.clone(),
                handle,
            }),
        })
    }
}

struct EventNode {
    gpu: GpuContext,
    handle: GpuHandle,
}

impl Node for EventNode {
    const NAME: &'static str = "event";

    fn destroy(&mut self) -> Result<()> {
        self.gpu
            .undo("destroy an event", |gpu| gpu.destroy_event(self.handle))
    }

    fn registry(&self) -> &Registry {
        self.gpu.registry()
    }
}

/// How long a dropped launch is waited for after its QPs were told to stop.
const GRACE: Duration = Duration::from_secs(5);
/// Queries in a row before the waiting thread sleeps between them.
const EAGER_QUERIES: u32 = 64;
/// How long it sleeps.
const NAP: Duration = Duration::from_micros(50);

/// A kernel that runs, or has run. If it is dropped while the kernel runs, its QPs are told to
/// stop; what the kernel uses is kept for as long as it runs.
pub struct Launch {
    qps: Vec<ExportedQp>,
    node: Owner<LaunchNode>,
}

impl Launch {
    /// True if the kernel has finished. Never blocks.
    pub fn is_finished(&mut self) -> Result<bool> {
        match self.node.get()?.progress()? {
            Progress::Pending => Ok(false),
            Progress::Done => Ok(true),
        }
    }

    /// Waits until the kernel has finished, at most `deadline`; returns the counters of the last
    /// kernel that finished on the stream, where the GPU can count: this one, unless a later one
    /// has finished too. After a timeout the kernel still runs: wait again, or stop its QPs first.
    pub fn wait(&mut self, deadline: Duration) -> Result<Option<LaunchCounters>> {
        let started = Instant::now();
        let mut queries = 0u32;
        while !self.is_finished()? {
            let waited = started.elapsed();
            if waited >= deadline {
                return Err(Error::Timeout {
                    what: "a kernel",
                    waited,
                });
            }
            queries = queries.saturating_add(1);
            if queries > EAGER_QUERIES {
                std::thread::sleep(NAP);
            }
        }
        let stream = &self.node.get()?.stream;
        Ok(stream.gpu.driver().counters(stream.handle))
    }

    /// The QPs that its view keeps.
    pub(crate) fn qps(&self) -> &[ExportedQp] {
        &self.qps
    }

    /// Tells the launch's QPs to stop. Its waits end at their next look at the stop word.
    pub fn stop(&self) -> Result<()> {
        self.qps.iter().try_for_each(ExportedQp::stop)
    }
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.node.get() {
            Ok(node) => write!(f, "Launch({})", node.kernel.name()),
            Err(_) => f.write_str("Launch(closed)"),
        }
    }
}

impl Drop for Launch {
    fn drop(&mut self) {
        if self.node.close().is_ok() {
            return;
        }
        if let Err(error) = self.stop() {
            tracing::error!(%error, launch = ?self, "cannot be stopped");
        }
        let started = Instant::now();
        while let Err(error) = self.node.close() {
            if started.elapsed() >= GRACE {
                // The node is dropped next, and retained with all that the kernel uses.
                tracing::error!(%error, launch = ?self, "dropped while its kernel runs");
                return;
            }
            std::thread::sleep(NAP);
        }
    }
}

struct LaunchNode {
    event: Option<Event>,
    stream: Stream,
    kernel: Kernel,
    _view: View,
}

impl LaunchNode {
    fn progress(&self) -> Result<Progress> {
        let driver = self.stream.gpu.driver();
        match &self.event {
            Some(event) => driver.query_event(event.handle),
            None => driver.query_stream(self.stream.handle),
        }
        .map_err(Error::driver("run the kernel"))
    }
}

impl Node for LaunchNode {
    const NAME: &'static str = "launch";

    fn destroy(&mut self) -> Result<()> {
        // On a dead context no kernel can touch anything any more.
        if !self.stream.gpu.driver().is_alive() {
            return Ok(());
        }
        match self.progress()? {
            Progress::Done => Ok(()),
            Progress::Pending => Err(Error::Running {
                kernel: self.kernel.name().to_owned(),
            }),
        }
    }

    fn registry(&self) -> &Registry {
        self.stream.gpu.registry()
    }
}
