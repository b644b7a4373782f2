//! Streams and launches.
//!
//! Knows: that a launch keeps all that its kernel may touch until it has finished, and that QPs know their launches.
//! Must not know: what a kernel does.
//!
//! One of the files that call `unsafe` functions.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::driver::{
    DriverError, DriverErrorKind, GpuHandle, LaunchCounters, LaunchShape, Progress,
};
use crate::error::{Error, Refused, Result};
use crate::export::ExportedQp;
use crate::module::{Kernel, ModuleNode};
use crate::resource::{Attached, Context, GpuContext, GpuMemory, Kept, MemoryNode, Mr};
use crate::teardown::{Graph, Node, Pin, Shared, Slot, Stage, Wait, building, poll};

/// What a kernel may touch. It borrows what it names, so nothing of it is given up before the launch; the launch then
/// keeps all of it until the kernel has finished.
#[derive(Debug, Default)]
pub struct View<'a> {
    qps: Vec<(&'a ExportedQp, bool)>,
    mrs: Vec<&'a Mr>,
    memories: Vec<&'a GpuMemory>,
}

impl<'a> View<'a> {
    /// Nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// And this QP, which the kernel has for itself: a launch with it on another stream is refused until this one's kernel
    /// has finished. Launches on one stream follow each other.
    #[must_use]
    pub fn qp(mut self, qp: &'a ExportedQp) -> Self {
        self.qps.push((qp, false));
        self
    }

    /// And this QP, which the kernel shares with all threads of the GPU: launches on other streams that share it too may
    /// run at the same time.
    #[must_use]
    pub fn shared_qp(mut self, qp: &'a ExportedQp) -> Self {
        self.qps.push((qp, true));
        self
    }

    /// And this memory region, which its work requests name. If the kernel leaves work requests outstanding, the region
    /// stays until they have retired.
    #[must_use]
    pub fn mr(mut self, mr: &'a Mr) -> Self {
        self.mrs.push(mr);
        self
    }

    /// And this memory, which it loads from or stores to.
    #[must_use]
    pub fn memory(mut self, memory: &'a GpuMemory) -> Self {
        self.memories.push(memory);
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
        let _entered = gpu.enter()?;
        let handle = gpu
            .driver()
            .create_stream()
            .map_err(Error::driver("create a stream"))?;
        Ok(Self {
            gpu: gpu.clone(),
            handle,
            node: Shared::new(StreamNode {
                gpu: gpu.clone(),
                handle,
            }),
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
        view: View<'_>,
    ) -> Result<Launch> {
        let _entered = self.gpu.enter()?;
        if !self.gpu.is(kernel.module.gpu()) {
            return Err(Error::InvalidArgument {
                what: format!(
                    "kernel {} is loaded on another GPU than the stream is of",
                    kernel.name()
                ),
                cure: "load the module on the stream's GPU",
            });
        }
        // Whoever closes a NIC of the view waits until the launch is registered, or refused.
        let _nics = view
            .qps
            .iter()
            .map(|(qp, _)| qp.qp().context())
            .chain(view.mrs.iter().map(|mr| mr.context()))
            .map(Context::enter)
            .collect::<Result<Vec<_>>>()?;
        building(|| {
            let launch = Launch::prepare(self, kernel, view)?;
            launch.node.visit(|node| -> Result<()> {
                // SAFETY: `Gpu::launch` demands that the kernel accesses only memory that stays allocated
                // until it has finished, and none that a Rust reference covers. The caller promises both,
                // given that `view` stays: the launch's node keeps it until the kernel has finished.
                let launched = unsafe {
                    self.gpu
                        .driver()
                        .launch(kernel.handle, shape, self.handle, params)
                };
                if let Err(refusal) = launched {
                    *node.state() = State::Over;
                    return Err(Error::driver("launch the kernel")(refusal));
                }
                let recorded = self
                    .gpu
                    .driver()
                    .record_event(node.event.handle, self.handle);
                if let Err(refusal) = &recorded {
                    // The kernel runs: it must be waited for all the same, then with all that follows it
                    // on the stream.
                    tracing::warn!(%refusal, kernel = kernel.name(), "no event after the launch");
                }
                *node.state() = match recorded {
                    Ok(()) => State::Recorded,
                    Err(_) => State::Unrecorded,
                };
                Ok(())
            })??;
            tracing::debug!(kernel = kernel.name(), ?shape, "launched");
            Ok(launch)
        })
    }

    /// Destroys it. Busy while a launch on it is held.
    pub fn close(self) -> Result<(), Refused<Self>> {
        self.node
            .close()
            .map_err(|error| Refused { error, value: self })
    }
}

struct StreamNode {
    gpu: GpuContext,
    handle: GpuHandle,
}

impl Node for StreamNode {
    const NAME: &'static str = "stream";

    fn number(&self) -> Option<u64> {
        Some(self.handle.0)
    }

    fn destroy(&self) -> Result<()> {
        self.gpu
            .undo("destroy the stream", |gpu| gpu.destroy_stream(self.handle))
    }

    fn graph(&self) -> &Graph {
        self.gpu.graph()
    }

    fn parents(&self) -> Vec<Arc<dyn Slot>> {
        Vec::new()
    }
}

/// An event of our own behind a launch: the caller may use the stream for anything else.
struct EventNode {
    gpu: GpuContext,
    handle: GpuHandle,
}

impl EventNode {
    fn create(gpu: &GpuContext) -> Result<Shared<Self>> {
        let handle = gpu
            .driver()
            .create_event()
            .map_err(Error::driver("create an event"))?;
        Ok(Shared::new(Self {
            gpu: gpu.clone(),
            handle,
        }))
    }
}

impl Node for EventNode {
    const NAME: &'static str = "event";

    fn number(&self) -> Option<u64> {
        Some(self.handle.0)
    }

    fn destroy(&self) -> Result<()> {
        self.gpu
            .undo("destroy an event", |gpu| gpu.destroy_event(self.handle))
    }

    fn graph(&self) -> &Graph {
        self.gpu.graph()
    }

    fn parents(&self) -> Vec<Arc<dyn Slot>> {
        Vec::new()
    }
}

/// A kernel that runs, or has run. If it is dropped while the kernel runs, its QPs are told to
/// stop; what the kernel uses is kept for as long as it runs.
pub struct Launch {
    gpu: GpuContext,
    kernel: Arc<str>,
    qps: Vec<ExportedQp>,
    figures: Arc<Figures>,
    node: Shared<LaunchNode>,
}

/// What a launch counted, once its kernel has finished.
type Figures = OnceLock<Option<LaunchCounters>>;

impl Launch {
    /// Keeps what the view names, and lets the QPs know.
    fn prepare(stream: &Stream, kernel: &Kernel, view: View<'_>) -> Result<Self> {
        let pins = (stream.node.pin()?, kernel.module.pin()?);
        let mrs: Vec<_> = view
            .mrs
            .iter()
            .map(|mr| Ok(Arc::new(mr.pin()?)))
            .collect::<Result<_>>()?;
        let memories = view
            .memories
            .iter()
            .map(|memory| memory.pin())
            .collect::<Result<_>>()?;
        let event = EventNode::create(&stream.gpu)?;
        let event = event.pin()?;
        let qps = view
            .qps
            .iter()
            .map(|(qp, shared)| qp.qp().attach(stream.node.id(), *shared))
            .collect::<Result<_>>()?;
        let figures = Arc::new(OnceLock::new());
        let node = Shared::new(LaunchNode {
            gpu: stream.gpu.clone(),
            kernel: kernel.name().into(),
            figures: Arc::clone(&figures),
            state: Mutex::new(State::Preparing),
            qps,
            mrs,
            memories,
            event,
            stream_handle: stream.handle,
            stream: pins.0,
            module: pins.1,
        });
        node.visit(|launch| {
            for qp in &launch.qps {
                qp.name(stream.gpu.graph(), node.id());
            }
        })?;
        Ok(Self {
            gpu: stream.gpu.clone(),
            kernel: kernel.name().into(),
            qps: view.qps.iter().map(|(qp, _)| (*qp).clone()).collect(),
            figures,
            node,
        })
    }

    /// True if the kernel has finished. Never blocks.
    pub fn is_finished(&mut self) -> Result<bool> {
        match self.node.visit(LaunchNode::progress) {
            Ok(progress) => Ok(progress? == Progress::Done),
            // Something that it used was closed: its kernel had finished, or went with the GPU.
            Err(_) if self.gpu.is_alive() => Ok(true),
            Err(_) => Err(Error::driver("run the kernel")(DriverError::new(
                "query_event",
                DriverErrorKind::DeviceLost,
                "the context is dead",
            ))),
        }
    }

    /// Waits until the kernel has finished, at most `deadline`; returns its counters, where the GPU can count. After a
    /// timeout the kernel still runs: wait again, or stop its QPs first.
    pub fn wait(&mut self, deadline: Duration) -> Result<Option<LaunchCounters>> {
        poll("a kernel", Wait::within(deadline), || self.is_finished())?;
        // If the launch is closed already, it has left them.
        let _ = self.node.visit(LaunchNode::count);
        Ok(self.figures.get().copied().flatten())
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
        write!(f, "Launch({})", self.kernel)
    }
}

/// How far a launch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not given to the driver yet.
    Preparing,
    /// With an event behind it.
    Recorded,
    /// Without: the stream is asked.
    Unrecorded,
    /// Refused by the driver.
    Over,
}

struct LaunchNode {
    gpu: GpuContext,
    kernel: Arc<str>,
    figures: Arc<Figures>,
    state: Mutex<State>,
    mrs: Vec<Kept>,
    memories: Vec<Pin<MemoryNode>>,
    event: Pin<EventNode>,
    stream_handle: GpuHandle,
    stream: Pin<StreamNode>,
    module: Pin<ModuleNode>,
    /// Dropped last: who waits for the QPs finds nothing of the launch left.
    qps: Vec<Attached>,
}

impl LaunchNode {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn progress(&self) -> Result<Progress> {
        let state = *self.state();
        let driver = self.gpu.driver();
        match state {
            State::Preparing => return Ok(Progress::Pending),
            State::Over => return Ok(Progress::Done),
            State::Recorded => driver.query_event(self.event.handle),
            State::Unrecorded => driver.query_stream(self.stream_handle),
        }
        .map_err(Error::driver("run the kernel"))
    }

    /// Takes the counters of a kernel that has finished. Without an event there are none.
    fn count(&self) {
        let recorded = *self.state() == State::Recorded;
        self.figures.get_or_init(|| {
            let counters = || self.gpu.driver().counters(self.event.handle);
            recorded.then(counters).flatten()
        });
    }

    /// As `progress`; on a dead context no kernel can touch anything any more.
    fn is_over(&self) -> Result<bool> {
        match self.progress() {
            Err(_) if !self.gpu.is_alive() => Ok(true),
            progress => Ok(progress? == Progress::Done),
        }
    }
}

impl Node for LaunchNode {
    const NAME: &'static str = "launch";

    fn advance(&self, to: Stage, wait: Wait) -> Result<()> {
        match to {
            Stage::Stopping if !self.is_over()? => self.qps.iter().try_for_each(Attached::stop),
            Stage::Synced => poll("a kernel", wait, || self.is_over()),
            _ => Ok(()),
        }
    }

    fn stage(&self) -> Stage {
        match self.is_over() {
            Ok(true) => Stage::Unexported,
            _ => Stage::Stopping,
        }
    }

    fn destroy(&self) -> Result<()> {
        if !self.is_over()? {
            return Err(Error::Running {
                kernel: self.kernel.to_string(),
            });
        }
        Attached::settle(&self.qps, &self.mrs);
        self.count();
        Ok(())
    }

    fn graph(&self) -> &Graph {
        self.gpu.graph()
    }

    fn parents(&self) -> Vec<Arc<dyn Slot>> {
        let mut parents = vec![self.module.slot(), self.stream.slot(), self.event.slot()];
        parents.extend(self.memories.iter().map(Pin::slot));
        parents.extend(self.mrs.iter().map(|mr| mr.slot()));
        parents.extend(self.qps.iter().map(Attached::slot));
        parents
    }
}
