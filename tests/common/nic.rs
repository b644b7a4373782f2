//! Which NICs the tests have, and what they write down of them.
//!
//! `WARPVERBS_TEST_PAGES=one`: the simulated driver has one doorbell page for all, as some versions of libmlx5 have.
//! `WARPVERBS_TEST_NIC` says which: `sim` (without it: the simulated driver) or `mlx5`, the real driver over the machine's libibverbs
//! and libmlx5, with the same simulated NIC behind the kernel's ABI. `WARPVERBS_TEST_VALUES` names a folder: what each test sees
//! (verdicts of driver calls, completions, final memory) is written there, one file a test, for `ci/both-drivers` to compare.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses its own part"
)]

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt::{Debug, Write as _};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write as _;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warpverbs::driver::sim::{self, Trace, WorldBuilder};
use warpverbs::driver::{
    Access, DmabufMapping, DriverError, GidEntry, Gpu, GpuHandle, LaunchCounters, LaunchShape,
    MemoryRegion, MrInfo, Nic, NicHandle, PdInfo, PortInfo, Progress, UarInfo, UarKind, UmemInfo,
    WriteOrdering,
};
use warpverbs::wire::eqe::Event;
use warpverbs::wire::prm::header;

type Result<T> = std::result::Result<T, DriverError>;

/// True if the tests drive their NICs by the real driver.
pub fn over_mlx5() -> bool {
    match std::env::var("WARPVERBS_TEST_NIC").as_deref() {
        Err(_) | Ok("sim") => false,
        Ok("mlx5") => true,
        Ok(other) => panic!("WARPVERBS_TEST_NIC is {other}, not sim or mlx5"),
    }
}

/// Simulated devices, with the NICs' driver that the environment asks for.
pub struct World {
    inner: sim::World,
    notes: Option<Arc<Notes>>,
}

/// As [`WorldBuilder`].
#[derive(Clone)]
pub struct Builder {
    inner: WorldBuilder,
    /// Memory has a model: to look at it is an access that it judges.
    judged: bool,
}

impl World {
    /// Simulated devices as [`sim::World::builder`] makes them.
    pub fn builder() -> Builder {
        let mut inner = sim::World::builder();
        if over_mlx5() {
            #[cfg(target_os = "linux")]
            {
                inner = inner.drive(super::mlx5::drive);
            }
            #[cfg(not(target_os = "linux"))]
            panic!("the real driver needs Linux");
        }
        // What libmlx5 does depends on its version: the simulated driver does as it is told.
        if std::env::var_os("WARPVERBS_TEST_PAGES").is_some_and(|pages| pages == "one") {
            inner = inner.one_doorbell_page();
        }
        Builder {
            inner,
            judged: false,
        }
    }
}

macro_rules! options {
    ($($name:ident($arg:ident: $ty:ty);)*) => {$(
        pub fn $name(mut self, $arg: $ty) -> Self {
            self.inner = self.inner.$name($arg);
            self
        }
    )*};
}

impl Builder {
    options! {
        seed(seed: u64);
        nics(nics: usize);
        cable(plan: sim::CablePlan);
        scheduler(scheduler: sim::Scheduler);
        first_index(index: u64);
        write_ordering(ordering: WriteOrdering);
        on_finding(policy: sim::FindingPolicy);
        nic_config(change: impl FnOnce(&mut sim::NicConfig));
        gpu_config(change: impl FnOnce(&mut sim::GpuConfig));
    }

    pub fn check(mut self, check: sim::Check) -> Self {
        self.judged = check != sim::Check::Fast;
        self.inner = self.inner.check(check);
        self
    }

    pub fn infiniband(mut self) -> Self {
        self.inner = self.inner.infiniband();
        self
    }

    pub fn build(self) -> World {
        World::new(self.inner.build(), true, self.judged)
    }

    /// In real time, with the host as the GPU.
    pub fn build_on_host(self) -> std::io::Result<World> {
        Ok(World::new(self.inner.build_on_host()?, false, true))
    }
}

impl World {
    /// `stepped`: what happens is the same in every run. `judged`: memory is not looked at.
    fn new(inner: sim::World, stepped: bool, judged: bool) -> Self {
        let folder = std::env::var_os("WARPVERBS_TEST_VALUES");
        let notes = folder.map(|folder| Arc::new(Notes::new(folder.into(), stepped, judged)));
        if let Some(notes) = notes.as_ref().filter(|_| stepped) {
            inner.trace(&notes.trace);
        }
        Self { inner, notes }
    }

    /// The first NIC.
    pub fn nic(&self) -> Arc<dyn Nic> {
        self.noted(self.inner.nic())
    }

    /// NIC number `index`, if there is one.
    pub fn nic_at(&self, index: usize) -> Option<Arc<dyn Nic>> {
        Some(self.noted(self.inner.nic_at(index)?))
    }

    fn noted(&self, nic: Arc<dyn Nic>) -> Arc<dyn Nic> {
        match &self.notes {
            Some(notes) => Arc::new(Noted {
                inner: nic,
                notes: notes.clone(),
            }),
            None => nic,
        }
    }

    /// The GPU.
    pub fn gpu(&self) -> Arc<dyn Gpu> {
        match &self.notes {
            Some(notes) if !notes.judged => Arc::new(Noted {
                inner: self.inner.gpu(),
                notes: notes.clone(),
            }),
            _ => self.inner.gpu(),
        }
    }

    /// How far kernels come, or which of several threads is first, is up to the machine here: less is written down.
    pub fn is_timed(&self) {
        if let Some(notes) = &self.notes {
            locked(&notes.kept).timed = true;
        }
    }

    /// Has the first NIC execute a command for whoever has made the object that it concerns: the kernel gives each opened device a
    /// number, and a NIC refuses others.
    pub fn command(&self, input: &[u8], output: &mut [u8]) {
        let mut input = input.to_vec();
        let at = header::UID.offset as usize / 8;
        for uid in 0..1000u16 {
            input[at..at + 2].copy_from_slice(&uid.to_be_bytes());
            if self
                .inner
                .with_nic(|nic| nic.command(&input, output))
                .is_ok()
            {
                return;
            }
        }
        panic!("the NIC refuses the command");
    }

    /// Writes down a value that both drivers must lead to.
    pub fn note(&self, name: &str, value: impl Debug) {
        if let Some(notes) = &self.notes {
            locked(&notes.kept).told.push(format!("{name}: {value:?}"));
        }
    }
}

impl Deref for World {
    type Target = sim::World;
    fn deref(&self) -> &sim::World {
        &self.inner
    }
}

impl Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let Some(notes) = &self.notes else { return };
        if notes.stepped {
            for number in 0.. {
                let Some(stats) = self.inner.nic_stats_at(number) else {
                    break;
                };
                notes.of_nic(number, &stats);
            }
        }
        notes.write();
    }
}

thread_local! {
    static WHO: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Worlds that this thread makes from now on belong to this part of a test.
pub fn part_of_test(name: &str) {
    WHO.with(|who| *who.borrow_mut() = name.to_owned());
}

/// Worlds made so far, by part of a test.
static WORLDS: Mutex<BTreeMap<String, u32>> = Mutex::new(BTreeMap::new());
/// One writes at a time.
static WRITING: Mutex<()> = Mutex::new(());

/// What is written down of one world.
struct Notes {
    file: PathBuf,
    number: u32,
    stepped: bool,
    judged: bool,
    trace: Trace,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// Values that a test names.
    told: Vec<String>,
    /// Memory, and what was counted.
    lines: Vec<String>,
    /// How often a call had this verdict.
    verdicts: BTreeMap<String, u64>,
    /// How many WQEs were fetched, CQEs written and QPs sent to ERR, and all of that in order as one number.
    events: (u64, u64),
    /// What QPs and CQs are called.
    names: BTreeMap<(&'static str, String, u32), u32>,
    /// The first of the events.
    first: Vec<String>,
    /// What the GPU has allocated: what for, and how much.
    allocated: HashMap<u64, (String, usize)>,
    /// How far things come is up to the machine.
    timed: bool,
}

impl Kept {
    fn rename(&mut self, what: &'static str, nic: &str, number: u32) -> u32 {
        let next = self.names.len() as u32;
        *self
            .names
            .entry((what, nic.to_owned(), number))
            .or_insert(next)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Notes {
    fn new(folder: PathBuf, stepped: bool, judged: bool) -> Self {
        let binary = std::env::current_exe().unwrap();
        let binary = binary.file_stem().unwrap().to_string_lossy();
        // Cargo adds a number to a name.
        let binary = binary.rsplit_once('-').map_or(&*binary, |(name, _)| name);
        let part = WHO.with(|who| who.borrow().clone());
        let thread = std::thread::current();
        let test = thread.name().unwrap_or("a thread");
        let who = if part.is_empty() {
            test.to_owned()
        } else {
            part
        };
        let number = {
            let mut worlds = locked(&WORLDS);
            let number = worlds.entry(who.clone()).or_default();
            *number += 1;
            *number
        };
        Self {
            file: folder.join(format!("{binary}.{}", who.replace([':', ' ', '/'], "_"))),
            number,
            stepped,
            judged,
            trace: Trace::new(),
            kept: Mutex::new(Kept {
                // Under a memory model a seed's choices depend on queues' numbers, of which a driver takes some for itself.
                timed: !stepped || judged,
                ..Kept::default()
            }),
        }
    }

    fn add(&self, line: String) {
        locked(&self.kept).lines.push(line);
    }

    fn verdict<T>(&self, call: &str, result: &Result<T>) {
        self.fold();
        let verdict = match result {
            // How often something is looked at is up to the machine.
            Ok(_) if matches!(call, "query" | "command" | "take_events") => return,
            Ok(_) => format!("{call}: done"),
            Err(error) => format!("{call}: {:?}", error.kind),
        };
        *locked(&self.kept).verdicts.entry(verdict).or_default() += 1;
    }

    /// Takes completions out of the trace: a long run's would fill memory.
    fn fold(&self) {
        let records = self.trace.take();
        let mut kept = locked(&self.kept);
        for record in records {
            let mut event = record.event;
            // Numbers that the driver has taken for itself do not count: QPs and CQs are named in the order in which they come up.
            match &mut event {
                sim::NicEvent::Completion { qpn, cqn, .. } => {
                    *qpn = kept.rename("QP", &record.nic, *qpn);
                    *cqn = kept.rename("CQ", &record.nic, *cqn);
                }
                sim::NicEvent::Fetch { qpn, .. } | sim::NicEvent::Error { qpn } => {
                    *qpn = kept.rename("QP", &record.nic, *qpn);
                }
                _ => continue,
            }
            let line = format!("{}: {event}", record.nic);
            kept.events.0 += 1;
            kept.events.1 = hash(&(kept.events.1, &line));
            if kept.first.len() < 64 {
                kept.first.push(line);
            }
        }
    }

    /// What a NIC counted.
    fn of_nic(&self, number: usize, stats: &sim::NicStats) {
        let mut text = format!("NIC {number}:");
        let numbers = [
            ("CQEs", stats.cqes),
            ("errors", stats.error_cqes),
            ("flushes", stats.flush_cqes),
            ("WQEs", stats.wqes_fetched),
            ("bytes read", stats.bytes_read),
            ("bytes written", stats.bytes_written),
        ];
        for (what, count) in numbers {
            let _ = write!(text, " {count} {what}");
        }
        let _ = write!(text, "; {:?}", stats.executed);
        self.add(text);
    }

    /// Contents of memory that goes.
    fn memory(&self, addr: u64, read: impl FnOnce(&mut [u8]) -> bool) {
        let Some((label, len)) = locked(&self.kept).allocated.remove(&addr) else {
            return;
        };
        // Queues hold numbers that are the driver's choice; what they say is among the events.
        if label == "QP queues" {
            return;
        }
        let mut bytes = vec![0; len];
        if read(&mut bytes) {
            self.add(format!("{label}, {len} bytes: {:016x}", hash(&bytes)));
        }
    }

    fn write(&self) {
        let mut text = format!("world {}\n", self.number);
        self.fold();
        let kept = locked(&self.kept);
        for line in &kept.told {
            let _ = writeln!(text, "  {line}");
        }
        if kept.timed {
            let done = |verdict: &&String| verdict.ends_with(": done");
            for verdict in kept.verdicts.keys().filter(|verdict| !done(verdict)) {
                let _ = writeln!(text, "  {verdict}");
            }
            return self.append(&text);
        }
        for line in &kept.lines {
            let _ = writeln!(text, "  {line}");
        }
        for (verdict, count) in &kept.verdicts {
            let _ = writeln!(text, "  {count} {verdict}");
        }
        let (count, all) = kept.events;
        for line in &kept.first {
            let _ = writeln!(text, "  {line}");
        }
        let _ = writeln!(text, "  {count} events: {all:016x}");
        self.append(&text);
    }

    fn append(&self, text: &str) {
        let _writing = locked(&WRITING);
        let file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.file);
        file.and_then(|mut file| file.write_all(text.as_bytes()))
            .unwrap_or_else(|error| panic!("{}: {error}", self.file.display()));
    }
}

/// The same in every process.
pub fn hash(value: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// A driver of which is written down what it answers.
#[derive(Debug)]
struct Noted<T: ?Sized> {
    notes: Arc<Notes>,
    inner: Arc<T>,
}

impl Debug for Notes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Notes")
    }
}

macro_rules! forward {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty;)*) => {$(
        fn $name(&self, $($arg: $ty),*) -> Result<$out> {
            let done = self.inner.$name($($arg),*);
            self.notes.verdict(stringify!($name), &done);
            done
        }
    )*};
}

impl Nic for Noted<dyn Nic> {
    fn name(&self) -> String {
        self.inner.name()
    }

    forward! {
        command(input: &[u8], output: &mut [u8]) -> ();
        create(input: &[u8], output: &mut [u8]) -> NicHandle;
        modify(object: NicHandle, input: &[u8], output: &mut [u8]) -> ();
        query(object: NicHandle, input: &[u8], output: &mut [u8]) -> ();
        destroy(object: NicHandle) -> ();
        alloc_pd() -> PdInfo;
        dealloc_pd(pd: NicHandle) -> ();
        dereg_mr(mr: NicHandle) -> ();
        dereg_umem(umem: NicHandle) -> ();
        alloc_uar(kind: UarKind) -> UarInfo;
        free_uar(uar: NicHandle) -> ();
        ring_doorbell(uar: NicHandle, value: [u8; 8]) -> ();
        take_events() -> Vec<Event>;
        query_eqn(vector: u32) -> u32;
        data_direct() -> bool;
        port_counter_set(port: u8) -> Option<u8>;
        query_port(port: u8) -> PortInfo;
        query_gid(port: u8, index: u32) -> Option<GidEntry>;
        resolve_mac(pd: NicHandle, port: u8, gid_index: u32, remote: [u8; 16]) -> [u8; 6];
    }

    unsafe fn reg_mr(&self, pd: NicHandle, region: MemoryRegion, access: Access) -> Result<MrInfo> {
        // SAFETY: the caller's.
        let done = unsafe { self.inner.reg_mr(pd, region, access) };
        self.notes.verdict("reg_mr", &done);
        done
    }

    unsafe fn reg_umem(
        &self,
        region: MemoryRegion,
        access: Access,
        page_sizes: u64,
    ) -> Result<UmemInfo> {
        // SAFETY: the caller's.
        let done = unsafe { self.inner.reg_umem(region, access, page_sizes) };
        self.notes.verdict("reg_umem", &done);
        done
    }
}

macro_rules! pass_on {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty;)*) => {$(
        fn $name(&self, $($arg: $ty),*) -> $out {
            self.inner.$name($($arg),*)
        }
    )*};
}

impl Noted<dyn Gpu> {
    fn allocated(&self, addr: Result<u64>, len: u64, label: &str) -> Result<u64> {
        if let Ok(addr) = addr {
            let what = (label.to_owned(), len as usize);
            locked(&self.notes.kept).allocated.insert(addr, what);
        }
        addr
    }

    fn look(&self, addr: u64) {
        self.notes.memory(addr, |bytes| {
            self.inner.copy_from_device(bytes, addr).is_ok()
        });
    }
}

impl Gpu for Noted<dyn Gpu> {
    fn alloc(&self, len: u64, label: &str) -> Result<u64> {
        self.allocated(self.inner.alloc(len, label), len, label)
    }
    fn free(&self, addr: u64) -> Result<()> {
        self.look(addr);
        self.inner.free(addr)
    }
    fn alloc_host_mapped(&self, len: u64, label: &str) -> Result<u64> {
        self.inner.alloc_host_mapped(len, label)
    }

    pass_on! {
        name() -> String;
        compute_capability() -> u32;
        is_alive() -> bool;
        copy_to_device(addr: u64, bytes: &[u8]) -> Result<()>;
        copy_rows_to_device(addr: u64, pitch: u64, width: u64, bytes: &[u8]) -> Result<()>;
        fill(addr: u64, len: u64, byte: u8) -> Result<()>;
        copy_from_device(bytes: &mut [u8], addr: u64) -> Result<()>;
        free_host_mapped(addr: u64) -> Result<()>;
        load_acquire(addr: u64) -> Result<u64>;
        store_release(addr: u64, value: u64) -> Result<()>;
        store_release_u32(addr: u64, value: u32) -> Result<()>;
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

    unsafe fn launch(
        &self,
        kernel: GpuHandle,
        shape: LaunchShape,
        stream: GpuHandle,
        params: &[u8],
    ) -> Result<()> {
        // SAFETY: the caller's.
        unsafe { self.inner.launch(kernel, shape, stream, params) }
    }
}
