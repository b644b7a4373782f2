//! Runs of the provided kernels, by mode.
//!
//! Knows: how a mode is run and what is wrong with a run. Must not know: what was changed in the PTX.

use std::fmt;
use std::time::Duration;

use warpverbs::driver::sim::{CablePlan, Check, InjectedFault, Scheduler};
use warpverbs::driver::{LaunchShape, WriteOrdering};
use warpverbs::wire::abi::{self, FaultCause};
use warpverbs::wire::cqe::Syndrome;
use warpverbs::{
    Access, Context, CqForm, Direction, Doorbell, ExportedQp, GpuContext, Latency, LatencyEnd,
    Module, Mr, Pd, QpFault, Result, Run, RunReport, Sharing, Stream, ThreadError, View,
};

use crate::common::{Options, PATIENCE, POISON, World, connected_pair};

/// What of a kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mode {
    pub kernel: &'static str,
    pub sharing: Sharing,
    pub doorbell: Doorbell,
    pub cq: CqForm,
}

/// How a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ending {
    /// With all its operations done. Then somebody else uses the queues.
    Done,
    /// With error completions: the destination forbids what is done to it.
    Refused,
    /// The same with so few operations that the first is seen in the wait for the last.
    RefusedLast,
    /// Before its time: the host stops it.
    Stopped,
    /// The same while completions stay away: every thread ends in a wait, and of each kind some do.
    Stalled,
    /// With an error of what makes the data of reads visible (rule O14).
    DumpFailed,
    /// Stopped while that does not complete.
    DumpStalled,
    /// With an error after some success: packets get lost, an answer of the other end for one, until a QP gives up.
    Lossy,
    /// As [`Self::Done`], by many blocks of which few run at a time: each that begins finds others many laps ahead, knowing of none.
    Relay,
}

impl Ending {
    pub(crate) const ALL: [Self; 9] = [
        Self::Done,
        Self::Refused,
        Self::RefusedLast,
        Self::Stopped,
        Self::Stalled,
        Self::DumpFailed,
        Self::DumpStalled,
        Self::Lossy,
        Self::Relay,
    ];
}

/// How much of it runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub iters: u64,
    pub check: Check,
    pub scheduler: Scheduler,
    pub seed: u64,
    pub ending: Ending,
}

impl Effort {
    /// The host stops the run before it begins, and threads learn of that in their own time: some at their DUMP only.
    fn stops_at_once(&self) -> bool {
        self.ending == Ending::DumpStalled && self.seed.is_multiple_of(3)
    }
}

/// The module to run, made for a GPU.
pub(crate) type Code<'a> = &'a dyn Fn(&GpuContext) -> Result<String>;

pub(crate) const KERNELS: [&str; 3] = ["wv_write_bw", "wv_read_bw", "wv_write_lat"];
const SIZE: u64 = 64;
const SLOTS: u32 = 4;

/// A kernel of the queue's next user: it writes to every slot that is free, as a post of as many WQEs would. A run before it
/// that is over must have ordered what the NIC did to those slots.
const NEXT_USER: &str = "
.visible .entry next_user(.param .u64 next_user_param_0)
{
	.reg .pred %p<2>;
	.reg .b64 %rd<10>;
	.reg .b32 %r<2>;
	ld.param.u64 %rd1, [next_user_param_0];
	ld.global.u64 %rd2, [%rd1+8];
	ld.global.u32 %r1, [%rd1+32];
	cvt.u64.u32 %rd3, %r1;
	sub.s64 %rd3, %rd3, 1;
	ld.global.u64 %rd4, [%rd1+64];
	ld.global.u64 %rd5, [%rd1+192];
	add.s64 %rd5, %rd5, %rd3;
$next:
	setp.ge.u64 %p1, %rd4, %rd5;
	@%p1 bra $over;
	and.b64 %rd6, %rd4, %rd3;
	shl.b64 %rd6, %rd6, 6;
	add.s64 %rd6, %rd6, %rd2;
	st.global.u64 [%rd6], %rd4;
	add.s64 %rd4, %rd4, 1;
	bra $next;
$over:
	ret;
}
";

impl Mode {
    /// Every kernel in every mode.
    pub(crate) fn all() -> Vec<Self> {
        let mut out = Vec::new();
        for kernel in KERNELS {
            for sharing in [Sharing::Exclusive, Sharing::Gpu] {
                for doorbell in [Doorbell::Db, Doorbell::DbEarly] {
                    for cq in [CqForm::Collapsed, CqForm::Ring] {
                        // A thread of the latency kernel has a queue of its own.
                        if kernel != "wv_write_lat" || sharing == Sharing::Exclusive {
                            out.push(Self {
                                kernel,
                                sharing,
                                doorbell,
                                cq,
                            });
                        }
                    }
                }
            }
        }
        out
    }

    pub(crate) fn is_latency(&self) -> bool {
        self.kernel == "wv_write_lat"
    }

    /// How runs of the mode end.
    pub(crate) fn endings(&self) -> Vec<Ending> {
        // In the bandwidth kernels errors with others behind them come of refusals; an end of the other waits for each message.
        let fits = |ending: &Ending| match ending {
            Ending::Lossy => self.is_latency(),
            Ending::DumpFailed | Ending::DumpStalled => self.kernel == "wv_read_bw",
            Ending::RefusedLast => !self.is_latency(),
            // Only a ring has laps, and only who shares it can be behind.
            Ending::Relay => self.sharing == Sharing::Gpu && self.cq == CqForm::Ring,
            _ => true,
        };
        Ending::ALL.into_iter().filter(fits).collect()
    }

    /// Runs the kernel of a module once; says what is wrong, if anything.
    pub(crate) fn run(&self, code: Code<'_>, effort: Effort) -> Option<String> {
        let ran = if self.is_latency() {
            self.latency(code, effort)
        } else {
            self.bandwidth(code, effort)
        };
        ran.unwrap_or_else(|error| Some(error.to_string()))
    }

    fn options(&self, effort: Effort) -> Options {
        // Now and then a crowd, of which many wait for their last operation at the same time.
        let relay = effort.ending == Ending::Relay;
        let crowded = self.sharing == Sharing::Gpu && effort.seed % 4 == 2 && !relay;
        let (threads, qps) = match self.sharing {
            Sharing::Exclusive if effort.stops_at_once() => (8, 8),
            Sharing::Exclusive | Sharing::Warp | Sharing::Cta => (2, 2),
            Sharing::Gpu if relay => (96, 2),
            Sharing::Gpu if crowded => (24, 2),
            Sharing::Gpu => (6, 2),
        };
        let full = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        // With two WQEBBs there is room for one WQE: every post waits for the one before.
        let depth = if effort.stops_at_once() {
            128
        } else if relay {
            2
        } else {
            [8, 2, 4][(effort.seed % 3) as usize]
        };
        Options {
            seed: effort.seed,
            scheduler: effort.scheduler,
            check: effort.check,
            direction: if self.kernel == "wv_read_bw" {
                Direction::Read
            } else {
                Direction::Write
            },
            sharing: self.sharing,
            doorbell: self.doorbell,
            cq: self.cq,
            threads,
            // So that no scope is wider than it need be; and a block may begin when another has ended.
            block: if self.sharing == Sharing::Gpu { 2 } else { 1 },
            // The two sides of the latency kernel wait for each other.
            resident: Some(if self.is_latency() {
                2
            } else if crowded {
                12
            } else if relay {
                // Few blocks get far ahead of who begins; of many, some are far ahead of who waits.
                [2, 12][(effort.seed / 2 % 2) as usize]
            } else {
                1 + (effort.seed % 3) as u32
            }),
            qps,
            depth,
            size: SIZE as u32,
            slots: SLOTS,
            iters: match effort.ending {
                // Long enough for the host to find it running.
                Ending::Stopped => 12 * effort.iters,
                // Some end in the wait for their last operation, some in one for room.
                Ending::Stalled if effort.seed.is_multiple_of(2) => u64::from(depth) / 4,
                Ending::RefusedLast if self.sharing == Sharing::Gpu => 1,
                Ending::RefusedLast => 3.min(u64::from(depth) - 1),
                // The DUMP has a 64th index, at which a post looks at the host's stop word (O10).
                Ending::DumpStalled if effort.stops_at_once() => 64,
                Ending::DumpFailed | Ending::DumpStalled => 3,
                Ending::Relay => u64::from(SLOTS),
                _ => effort.iters,
            }
            .div_ceil(if crowded { 8 } else { 1 })
            .max(if crowded && effort.ending == Ending::Done {
                u64::from(SLOTS)
            } else {
                1
            }),
            // A READ is refused where it lands: its own region cannot be written.
            access: match (effort.ending, self.kernel) {
                (Ending::Refused | Ending::RefusedLast, "wv_read_bw") => Access::REMOTE_READ,
                (Ending::Refused | Ending::RefusedLast, _) => Access::LOCAL_WRITE,
                _ => full,
            },
            write_ordering: match effort.ending {
                Ending::DumpFailed | Ending::DumpStalled => WriteOrdering::None,
                // Reads whose data is visible with their completion, and others.
                _ if effort.seed.is_multiple_of(2) => WriteOrdering::None,
                _ => WriteOrdering::Owner,
            },
            wait_deadline: match effort.ending {
                // Nobody gives up before the host says so.
                Ending::Stalled | Ending::DumpStalled => Duration::from_secs(1),
                _ => Duration::from_micros(400),
            },
            step_budget: Some(3_000_000),
            ptx: Some(stub()),
            ..Options::default()
        }
    }

    fn bandwidth(&self, code: Code<'_>, effort: Effort) -> Result<Option<String>> {
        let options = self.options(effort);
        let bench = options.bench()?;
        let module = load(&bench.gpu, code)?;
        // Each thread's reads, then each one's DUMP.
        let reads = options.iters * u64::from(options.threads) / options.qps as u64;
        match effort.ending {
            Ending::Stalled => stall(&bench.world, 0, |_| true),
            Ending::DumpStalled => stall(&bench.world, reads, |_| true),
            Ending::DumpFailed => bench.world.with_nic(|nic| {
                for qp in &bench.qps {
                    nic.inject(InjectedFault::Fail {
                        qpn: qp.qpn(),
                        index: reads,
                        syndrome: Syndrome::LocalProtection.code(),
                        vendor: 0x81,
                    });
                }
            }),
            _ => {}
        }
        let (local, remote) = match options.direction {
            Direction::Write => (&bench.source_mr, bench.target_mr.remote()),
            Direction::Read => (&bench.target_mr, bench.source_mr.remote()),
        };
        let mut run =
            options
                .bandwidth()
                .launch(&module, &bench.stream, &bench.qps, local, &remote)?;
        let report = finish(&mut run, effort)?;
        bench.world.with_nic(|nic| nic.heal());
        // What has been done must be here, and that is judged too.
        let early = matches!(effort.ending, Ending::Done | Ending::Relay)
            .then(|| bench.target.to_vec())
            .transpose()?;
        let dumps = if options.write_ordering == WriteOrdering::None && self.kernel == "wv_read_bw"
        {
            u64::from(options.threads)
        } else {
            0
        };
        let wrong = self.judge(&bench.world, &report, effort, options.depth, dumps);
        if let Some(wrong) = wrong {
            return Ok(Some(wrong));
        }
        if let Some(bytes) = early {
            if bytes != bench.bytes {
                return Ok(Some("verified: false".into()));
            }
            let qps: Vec<&ExportedQp> = bench.qps.iter().collect();
            return use_again(&bench.world, &module, &bench.stream, &qps);
        }
        Ok(None)
    }

    fn latency(&self, code: Code<'_>, effort: Effort) -> Result<Option<String>> {
        let options = self.options(effort);
        let lossy = effort.ending == Ending::Lossy;
        let world = if lossy {
            lossy_world(&options)
        } else {
            options.world()
        };
        let nics = [
            Context::open(world.nic())?,
            Context::open(world.nic_at(1).unwrap_or_else(|| world.nic()))?,
        ];
        let gpu = GpuContext::open(world.gpu())?;
        let config = if lossy {
            // The shortest timeout, and no patience.
            options.qp_config().timeout(1).retry_count(1)
        } else {
            options.qp_config()
        };
        let pds = [Pd::alloc(&nics[0])?, Pd::alloc(&nics[1])?];
        let (first, second) = if lossy {
            let mut first = warpverbs::QueuePair::create(&pds[0], &gpu, &config)?;
            let mut second = warpverbs::QueuePair::create(&pds[1], &gpu, &config)?;
            first.connect(&second.local_info())?;
            second.connect(&first.local_info())?;
            (first, second)
        } else {
            connected_pair(&pds[0], &gpu, &config)?
        };
        let (first, second) = (first.export()?, second.export()?);
        let memory = gpu.alloc_copy(&vec![POISON; 4 * SIZE as usize], "mailboxes")?;
        let access = match effort.ending {
            Ending::Refused => Access::LOCAL_WRITE,
            _ => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        };
        let pd = |end: usize| if lossy { &pds[end] } else { &pds[0] };
        // Now and then a message of one byte, which is its sequence number.
        let size = if effort.seed.is_multiple_of(2) {
            1
        } else {
            SIZE
        };
        let mr = |end: usize, n: u64| {
            let over = (n + 1) * SIZE;
            Mr::register_range(pd(end), &memory, over - size..over, access)
        };
        let mrs = [mr(0, 0)?, mr(0, 1)?, mr(1, 2)?, mr(1, 3)?];
        let module = load(&gpu, code)?;
        let stream = Stream::create(&gpu)?;
        if effort.ending == Ending::Stalled {
            // One end runs out of room, and the other waits for its message; or both wait for the completion of their last.
            stall(&world, 0, |cq| {
                effort.seed.is_multiple_of(4) || cq as u64 == effort.seed / 2 % 2
            });
        }
        let ends = [
            LatencyEnd {
                qp: &first,
                outbox: &mrs[0],
                inbox: &mrs[1],
            },
            LatencyEnd {
                qp: &second,
                outbox: &mrs[2],
                inbox: &mrs[3],
            },
        ];
        let latency = Latency {
            size: size as u32,
            iters: options.iters,
            doorbell: self.doorbell,
            wait_deadline: options.wait_deadline,
            ..Latency::default()
        };
        let mut run = latency.launch(&module, &stream, ends)?;
        let report = finish(&mut run, effort)?;
        world.with_nic(|nic| nic.heal());
        if let Some(wrong) = self.judge(&world, &report, effort, options.depth, 0) {
            return Ok(Some(wrong));
        }
        if effort.ending != Ending::Done {
            return Ok(None);
        }
        let bytes = memory.to_vec()?;
        let width = if size < 8 { 1 } else { 8 };
        for over in [2 * SIZE as usize, 4 * SIZE as usize] {
            if bytes[over - width..over] != options.iters.to_le_bytes()[..width] {
                return Ok(Some("the last message is not there".into()));
            }
        }
        use_again(&world, &module, &stream, &[&first, &second])
    }

    /// What is wrong with a run that is over.
    fn judge(
        &self,
        world: &World,
        report: &RunReport,
        effort: Effort,
        depth: u32,
        dumps: u64,
    ) -> Option<String> {
        let mut findings = world.findings().into_iter();
        if let Some(finding) = findings.next() {
            return Some(finding);
        }
        let errors = report.threads.iter().filter_map(|thread| thread.error);
        match effort.ending {
            Ending::Done | Ending::Relay => {
                if let Err(error) = report.check() {
                    return Some(error.to_string());
                }
                let posted: u64 = report.threads.iter().map(|thread| thread.posted).sum();
                let rings = (posted + dumps)
                    * if self.doorbell == Doorbell::DbEarly {
                        2
                    } else {
                        1
                    };
                let rung = world.nic_stats().doorbells;
                (rung != rings)
                    .then(|| format!("{posted} posts rang {rung} times, not {rings} (rule O4)"))
            }
            Ending::Stopped | Ending::Stalled | Ending::DumpStalled => errors
                .filter(|error| !is_stop(*error))
                .map(|error| format!("a thread that was stopped says: {error}"))
                .next(),
            Ending::Refused | Ending::RefusedLast | Ending::DumpFailed | Ending::Lossy => {
                let mut faults = 0;
                for error in errors {
                    match error {
                        ThreadError::Fault(fault) => {
                            if !self.is_right(fault, effort.ending, depth) {
                                return Some(format!("a thread says: {error} ({fault:?})"));
                            }
                            faults += 1;
                        }
                        // The end that waits for the message of one that failed.
                        ThreadError::Timeout if self.is_latency() => {}
                        other => return Some(format!("a thread says: {other}")),
                    }
                }
                // Some seeds lose too little.
                (faults == 0 && effort.ending != Ending::Lossy)
                    .then(|| "refused operations were reported as done".into())
            }
        }
    }

    /// True if the record of a fault is what the NIC said.
    fn is_right(&self, fault: QpFault, ending: Ending, depth: u32) -> bool {
        let (syndrome, opcode) = match (ending, self.kernel) {
            (Ending::Lossy, _) => (Syndrome::TransportRetryExceeded, 13),
            (_, "wv_read_bw") => (Syndrome::LocalProtection, 13),
            _ => (Syndrome::RemoteAccess, 13),
        };
        match fault.cause {
            FaultCause::Completion => {
                (fault.syndrome, fault.opcode) == (syndrome, opcode)
                    // The simulated NIC's vendor syndromes are those of its checks: never these.
                    && fault.vendor_syndrome != 0
                    && fault.vendor_syndrome != 0xff
                    && u64::from(fault.index) < 1 << 16
            }
            // With room for one WQE nothing is flushed behind it.
            FaultCause::CauseOverwritten => {
                self.cq == CqForm::Collapsed && depth > 2 && fault.syndrome == Syndrome::Flushed
            }
            _ => false,
        }
    }
}

/// Waits for a run, having stopped it if it is to be.
fn finish(run: &mut Run, effort: Effort) -> Result<RunReport> {
    if matches!(
        effort.ending,
        Ending::Stopped | Ending::Stalled | Ending::DumpStalled
    ) {
        let looks = if effort.stops_at_once() {
            0
        } else {
            effort.seed % 3
        };
        for _ in 0..looks {
            run.is_finished()?;
        }
        run.stop()?;
    }
    run.wait(PATIENCE)
}

fn is_stop(error: ThreadError) -> bool {
    match error {
        ThreadError::Stopped => true,
        ThreadError::Fault(fault) => fault.cause == FaultCause::Abandoned,
        _ => false,
    }
}

/// The queues' next user writes to all slots that are free; says what is wrong with that.
fn use_again(
    world: &World,
    module: &Module,
    stream: &Stream,
    qps: &[&ExportedQp],
) -> Result<Option<String>> {
    let kernel = module.kernel("next_user")?;
    for qp in qps {
        let params = qp.handle().to_le_bytes();
        // SAFETY: the kernel's parameter is the address of a handle; it accesses the QP's memory, which the view keeps.
        #[allow(unsafe_code)]
        let launch = unsafe {
            stream.launch(
                &kernel,
                LaunchShape::linear(1, 1),
                &params,
                View::new().qp(qp),
            )
        };
        launch?.wait(PATIENCE)?;
    }
    Ok(world
        .findings()
        .into_iter()
        .next()
        .map(|finding| format!("the next user: {finding}")))
}

fn load(gpu: &GpuContext, code: Code<'_>) -> Result<Module> {
    Module::load(gpu, "changed", &(code(gpu)? + NEXT_USER))
}

/// A module that costs nothing to load.
fn stub() -> String {
    format!(
        ".version 8.2\n.target sm_70\n.address_size 64\n.visible .global .align 4 .u32 {} = {};\n",
        "wv_device_abi",
        abi::VERSION
    )
}

/// Completions from an index on stay away from the CQs that `which` chooses by number.
fn stall(world: &World, from: u64, which: impl Fn(usize) -> bool) {
    world.with_nic(|nic| {
        let objects = nic.live_objects();
        let cqs = objects
            .iter()
            .filter(|object| object.to_string().starts_with("CQ"));
        for (_, cq) in cqs.enumerate().filter(|(n, _)| which(*n)) {
            nic.inject(InjectedFault::StuckCq { cqn: cq.id, from });
        }
    });
}

/// Two NICs, and a cable that loses a third of all packets.
fn lossy_world(options: &Options) -> World {
    World::builder()
        .seed(options.seed)
        .scheduler(options.scheduler)
        .check(options.check)
        .nics(2)
        .cable(CablePlan {
            loss_ppm: 330_000,
            ..CablePlan::default()
        })
        .gpu_config(|gpu| gpu.step_budget = 3_000_000)
        .build()
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sharing = match self.sharing {
            Sharing::Exclusive => "exclusive",
            Sharing::Warp => "warp",
            Sharing::Cta => "cta",
            Sharing::Gpu => "gpu",
        };
        let doorbell = match self.doorbell {
            Doorbell::Db => "db",
            Doorbell::DbEarly => "early",
            Doorbell::BlueFlame => "bf",
            Doorbell::Proxy => "proxy",
            Doorbell::NoDbr => "nodbr",
        };
        let cq = match self.cq {
            CqForm::Collapsed => "collapsed",
            CqForm::Ring => "ring",
        };
        write!(f, "{} {sharing} {doorbell} {cq}", self.kernel)
    }
}
