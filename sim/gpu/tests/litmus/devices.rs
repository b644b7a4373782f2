//! A device as an observer: what it may read when, and what threads may read of its writes.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use warpverbs_sim_bus::{
    Access, Bus, Device, Dma, DmaAccess, Fault, Purpose, Space, Step, bar_base,
};
use warpverbs_sim_gpu::{Check, GpuConfig, GpuModel, LaunchShape, OrderFault, memory_of};

use crate::rig::seeds;

/// One thing that the device does in a step, in this order.
#[derive(Clone, Copy)]
enum Does {
    /// Waits until it reads this from a location, as a doorbell record.
    Await(Purpose, Place, u32),
    /// Waits until so many doorbells have arrived.
    AwaitDoorbells(usize),
    /// Reads a location and notes what it read.
    Read(Purpose, Place),
    /// Writes a location; `true`: with relaxed ordering.
    Write(Purpose, Place, u32, bool),
}
use Does::{Await, AwaitDoorbells, Read, Write};

/// Locations: two in GPU memory, one in host memory.
#[derive(Clone, Copy)]
enum Place {
    X,
    Y,
    Host,
}
use Place::{Host, X, Y};

#[derive(Default)]
struct Script {
    does: Vec<Does>,
    at: usize,
    places: [u64; 3],
    /// What it noted: values read, and bytes of doorbells.
    noted: Vec<u32>,
    /// What the record held for certain as each doorbell arrived.
    certain: Vec<u32>,
    doorbells: usize,
}

impl Script {
    fn addr(&self, place: Place) -> u64 {
        self.places[place as usize]
    }
}

fn read(dma: &mut dyn Dma, purpose: Purpose, addr: u64) -> u32 {
    let mut bytes = [0; 4];
    dma.read(DmaAccess::new(purpose, 1), addr, &mut bytes)
        .unwrap();
    u32::from_le_bytes(bytes)
}

impl Device for Script {
    fn name(&self) -> &str {
        "script"
    }

    fn step(&mut self, dma: &mut dyn Dma) -> Step {
        let Some(next) = self.does.get(self.at).copied() else {
            return Step::Idle;
        };
        match next {
            Await(purpose, place, value) => {
                if read(dma, purpose, self.addr(place)) != value {
                    return Step::Idle;
                }
            }
            AwaitDoorbells(count) => {
                if self.doorbells < count {
                    return Step::Idle;
                }
            }
            Read(purpose, place) => {
                let value = read(dma, purpose, self.addr(place));
                self.noted.push(value);
            }
            Write(purpose, place, value, relaxed_ordering) => {
                let access = DmaAccess {
                    relaxed_ordering,
                    ..DmaAccess::new(purpose, 1)
                };
                dma.write(access, self.addr(place), &value.to_le_bytes())
                    .unwrap();
            }
        }
        self.at += 1;
        Step::Progress
    }

    fn context_of(&self, _: u64, _: &[u8]) -> Result<u32, Fault> {
        Ok(1)
    }

    fn mmio_write(&mut self, _: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.noted.push(bytes[0].into());
        self.doorbells += 1;
        Ok(())
    }

    fn mmio_arrives(&mut self, offset: u64, bytes: &[u8], dma: &mut dyn Dma) -> Result<(), Fault> {
        self.mmio_write(offset, bytes)?;
        let certain = read(dma, Purpose::DbrAtDoorbell, self.addr(Y));
        self.certain.push(certain);
        Ok(())
    }
}

/// Declares each function a test, and lists them all.
macro_rules! tests {
    ($($name:ident,)*) => {
        pub(crate) const ALL: &[(&str, fn())] = &[$((stringify!($name), $name),)*];
        mod tests {
            $(
                #[test]
                fn $name() {
                    super::$name();
                }
            )*
        }
    };
}

tests! {
    a_work_request_is_published_by_a_system_fence_before_the_record,
    without_the_fence_the_fetch_is_reported_and_may_be_stale,
    a_gpu_fence_publishes_to_a_device_at_gpu_scope_only,
    the_record_takes_strong_system_stores_only,
    data_that_a_work_request_names_is_published_like_the_request,
    a_doorbell_carries_what_was_fenced_before_it,
    a_doorbell_makes_sure_of_its_record_only_if_a_fence_is_between,
    doorbells_arrive_in_order_only_if_they_are_ordered,
    data_is_read_behind_the_completion_and_a_system_fence,
    a_completion_on_another_path_proves_nothing_until_a_read_pushes_the_data,
    relaxed_ordering_writes_are_ordered_by_the_completion_alone,
    memory_is_reused_behind_the_completion_only,
    bytes_that_nobody_wrote_are_reported_when_a_device_fetches_them,
}

thread_local! {
    /// What [`observe`] has shown in this thread.
    static SHOWN: RefCell<Vec<Row>> = const { RefCell::new(Vec::new()) };
}

/// A run of many seeds, for the table.
pub(crate) struct Row {
    pub(crate) check: Check,
    pub(crate) threads: Vec<String>,
    pub(crate) does: String,
    pub(crate) reports: Vec<(&'static str, u64)>,
    /// What the device noted and what the thread loaded, with how many seeds showed it.
    pub(crate) outcomes: Vec<(String, u64)>,
}

/// Takes what was shown since the last time.
pub(crate) fn shown() -> Vec<Row> {
    SHOWN.take()
}

impl Does {
    fn says(self) -> String {
        let place = |place| match place {
            X => "X",
            Y => "Y",
            Host => "H",
        };
        let purpose = |purpose| match purpose {
            Purpose::Dbr => "as its record",
            Purpose::Wqe => "as a work request",
            Purpose::Payload => "as data",
            Purpose::Cqe => "as a completion",
            _ => "",
        };
        match self {
            Await(as_what, at, value) => {
                format!("waits for {} = {value} {}", place(at), purpose(as_what))
            }
            AwaitDoorbells(count) => format!("waits for {count} of D"),
            Read(as_what, at) => format!("reads {} {}", place(at), purpose(as_what)),
            Write(as_what, at, value, relaxed) => {
                let relaxed = if relaxed { ", relaxed ordering" } else { "" };
                format!(
                    "writes {} = {value} {}{relaxed}",
                    place(at),
                    purpose(as_what)
                )
            }
        }
    }
}

/// What all seeds together showed.
#[derive(Debug, Default)]
struct Seen {
    noted: BTreeSet<Vec<u32>>,
    certain: BTreeSet<Vec<u32>>,
    /// `%a` of thread 0.
    results: BTreeSet<u32>,
    faults: BTreeSet<OrderFault>,
}

/// Runs threads, each a block, and a device. `X` and `Y` are in GPU memory, `H` in host memory, `D` the doorbell.
fn observe(check: Check, threads: &[&str], does: &[Does]) -> Seen {
    let mut seen = Seen::default();
    let mut ptx = String::from(
        ".version 8.6\n.target sm_90\n.address_size 64\n\
         .visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3, .param .u64 p4)\n{\n\
         .reg .pred %p<8>;\n.reg .b32 %r<16>;\n.reg .b32 %a;\n.reg .b64 %x;\n.reg .b64 %y;\n.reg .b64 %h;\n\
         .reg .b64 %d;\n.reg .b64 %out;\n\
         ld.param.u64 %x, [p0];\nld.param.u64 %y, [p1];\nld.param.u64 %h, [p2];\nld.param.u64 %d, [p3];\n\
         ld.param.u64 %out, [p4];\nmov.u32 %a, 0;\nmov.u32 %r0, %ctaid.x;\n",
    );
    for number in 0..threads.len() {
        ptx += &format!("setp.eq.u32 %p0, %r0, {number};\n@%p0 bra T{number};\n");
    }
    for (number, body) in threads.iter().enumerate() {
        let body = body
            .replace('X', "[%x]")
            .replace('Y', "[%y]")
            .replace('H', "[%h]")
            .replace('D', "[%d]")
            .replace("; ", ";\n")
            .replace(": ", ":\n");
        ptx += &format!("T{number}:\n{body}\nbra.uni END;\n");
    }
    ptx += "END:\nsetp.ne.u32 %p0, %r0, 0;\n@%p0 ret;\nst.global.u32 [%out], %a;\nret;\n}\n";
    let mut reports: BTreeMap<&str, u64> = BTreeMap::new();
    let mut outcomes: BTreeMap<String, u64> = BTreeMap::new();
    for seed in 1..=seeds() {
        let config = GpuConfig {
            seed,
            check,
            max_burst: 12,
            ..GpuConfig::default()
        };
        let bus = Bus::new(memory_of(&config));
        let mut gpu = GpuModel::new(config, bus.clone());
        let alloc = |space, label| {
            let mut bus = bus.lock();
            let addr = bus.memory.alloc(space, 64, 64, label).unwrap();
            bus.memory.write(Access::HOST_COPY, addr, &[0; 8]).unwrap();
            addr
        };
        let places = [
            alloc(Space::Device, "x"),
            alloc(Space::Device, "y"),
            alloc(Space::HostMapped, "h"),
        ];
        let out = alloc(Space::Device, "out");
        let script = Arc::new(Mutex::new(Script {
            does: does.to_vec(),
            places,
            ..Script::default()
        }));
        let device = bus.attach(script.clone());
        let doorbell = gpu.map_registers(bar_base(device), 4096).unwrap();
        let module = gpu
            .load_module(&ptx)
            .unwrap_or_else(|e| panic!("{e}\n{ptx}"));
        let kernel = gpu.kernel(module, "k").unwrap();
        let stream = gpu.create_stream().unwrap();
        let shape = LaunchShape {
            grid: [threads.len() as u32, 1, 1],
            block: [1, 1, 1],
            shared_bytes: 0,
            cooperative: false,
        };
        let params: Vec<u8> = [places[0], places[1], places[2], doorbell, out]
            .iter()
            .flat_map(|p| p.to_le_bytes())
            .collect();
        gpu.launch(kernel, shape, stream, &params).unwrap();
        while !gpu.advance(10_000).unwrap().idle {}
        assert!(gpu.stream_done(stream).unwrap());
        let mut result = [0; 4];
        bus.lock()
            .memory
            .read(Access::HOST_COPY, out, &mut result)
            .unwrap();
        let result = u32::from_le_bytes(result);
        seen.results.insert(result);
        let faults: BTreeSet<OrderFault> =
            gpu.take_order_reports().iter().map(|r| r.kind).collect();
        for fault in &faults {
            *reports.entry(fault.name()).or_default() += 1;
        }
        seen.faults.extend(faults);
        let script = script.lock().unwrap();
        let outcome = format!("device {:?}, a = {result}", script.noted);
        *outcomes.entry(outcome).or_default() += 1;
        seen.noted.insert(script.noted.clone());
        seen.certain.insert(script.certain.clone());
    }
    let row = Row {
        check,
        threads: threads.iter().map(|thread| (*thread).to_owned()).collect(),
        does: does
            .iter()
            .map(|does| does.says())
            .collect::<Vec<_>>()
            .join("; "),
        reports: reports.into_iter().collect(),
        outcomes: outcomes.into_iter().collect(),
    };
    SHOWN.with_borrow_mut(|shown| shown.push(row));
    seen
}

fn only(fault: OrderFault) -> BTreeSet<OrderFault> {
    BTreeSet::from([fault])
}

const FETCH: [Does; 2] = [Await(Purpose::Dbr, Y, 1), Read(Purpose::Wqe, X)];

fn a_work_request_is_published_by_a_system_fence_before_the_record() {
    let thread = "st.global.u32 X, 7; fence.acq_rel.sys; st.relaxed.sys.global.u32 Y, 1;";
    let seen = observe(Check::Strict, &[thread], &FETCH);
    assert_eq!(seen.noted, BTreeSet::from([vec![7]]));
    assert!(seen.faults.is_empty(), "{seen:?}");
}

fn without_the_fence_the_fetch_is_reported_and_may_be_stale() {
    let thread = "st.global.u32 X, 7; st.relaxed.sys.global.u32 Y, 1;";
    let seen = observe(Check::Strict, &[thread], &FETCH);
    assert_eq!(seen.noted, BTreeSet::from([vec![0], vec![7]]));
    assert_eq!(seen.faults, only(OrderFault::WorkRequest));
}

fn a_gpu_fence_publishes_to_a_device_at_gpu_scope_only() {
    let thread = "st.global.u32 X, 7; fence.acq_rel.gpu; st.relaxed.sys.global.u32 Y, 1;";
    let strict = observe(Check::Strict, &[thread], &FETCH);
    assert_eq!(strict.faults, only(OrderFault::WorkRequest));
    let gpu = observe(Check::Gpu, &[thread], &FETCH);
    assert_eq!(gpu.noted, BTreeSet::from([vec![7]]));
    assert!(gpu.faults.is_empty(), "{gpu:?}");
}

fn the_record_takes_strong_system_stores_only() {
    for store in [
        "st.weak.global.u32 Y, 1;",
        "st.relaxed.gpu.global.u32 Y, 1;",
    ] {
        let thread = format!("fence.acq_rel.sys; {store}");
        let seen = observe(Check::Strict, &[&thread], &FETCH[..1]);
        let fault = if store.contains("weak") {
            OrderFault::Race
        } else {
            OrderFault::Scope
        };
        assert_eq!(seen.faults, only(fault), "{store}");
    }
}

fn data_that_a_work_request_names_is_published_like_the_request() {
    let does = [Await(Purpose::Dbr, Y, 1), Read(Purpose::Payload, X)];
    let thread = "st.relaxed.sys.global.u32 X, 7; st.relaxed.sys.global.u32 Y, 1;";
    let seen = observe(Check::Strict, &[thread], &does);
    assert_eq!(seen.faults, only(OrderFault::DeviceRead));
}

fn a_doorbell_carries_what_was_fenced_before_it() {
    let does = [AwaitDoorbells(1), Read(Purpose::Wqe, X)];
    let right = "st.global.u32 X, 7; fence.acq_rel.sys; st.mmio.relaxed.sys.global.u64 D, 1;";
    let seen = observe(Check::Strict, &[right], &does);
    assert_eq!(seen.noted, BTreeSet::from([vec![1, 7]]));
    assert!(seen.faults.is_empty(), "{seen:?}");
    let wrong = "st.global.u32 X, 7; st.mmio.relaxed.sys.global.u64 D, 1;";
    let seen = observe(Check::Strict, &[wrong], &does);
    assert_eq!(seen.faults, only(OrderFault::WorkRequest));
}

fn a_doorbell_makes_sure_of_its_record_only_if_a_fence_is_between() {
    let right =
        "st.relaxed.sys.global.u32 Y, 1; fence.acq_rel.sys; st.mmio.relaxed.sys.global.u64 D, 1;";
    let seen = observe(Check::Strict, &[right], &[AwaitDoorbells(1)]);
    assert_eq!(seen.certain, BTreeSet::from([vec![1]]));
    let wrong =
        "fence.acq_rel.sys; st.relaxed.sys.global.u32 Y, 1; st.mmio.relaxed.sys.global.u64 D, 1;";
    let seen = observe(Check::Strict, &[wrong], &[AwaitDoorbells(1)]);
    assert_eq!(seen.certain, BTreeSet::from([vec![0]]));
}

fn doorbells_arrive_in_order_only_if_they_are_ordered() {
    let first = "st.mmio.relaxed.sys.global.u64 D, 1; st.release.gpu.global.u32 X, 1;";
    let second = "WAIT: ld.acquire.gpu.global.u32 %r1, X; setp.ne.u32 %p1, %r1, 1; @%p1 bra WAIT; \
                  st.mmio.relaxed.sys.global.u64 D, 2;";
    // Only the locations are replaced by name.
    let second = second.replace("WAIT", "W0");
    let seen = observe(Check::Strict, &[first, &second], &[AwaitDoorbells(2)]);
    assert_eq!(seen.noted, BTreeSet::from([vec![1, 2]]));
    let relaxed = second.replace("acquire", "relaxed");
    let seen = observe(Check::Strict, &[first, &relaxed], &[AwaitDoorbells(2)]);
    assert_eq!(seen.noted, BTreeSet::from([vec![1, 2], vec![2, 1]]));
}

/// A thread that waits for a completion in `at` and then reads X.
fn completion_then(at: &str, between: &str, then: &str) -> String {
    format!(
        "L0: ld.relaxed.sys.global.u32 %r1, {at}; setp.ne.u32 %p1, %r1, 1; @%p1 bra L0; {between} {then}"
    )
}

const LOAD: &str = "ld.global.u32 %a, X;";
const ARRIVES: [Does; 2] = [
    Write(Purpose::Payload, X, 7, false),
    Write(Purpose::Cqe, Y, 1, false),
];

fn data_is_read_behind_the_completion_and_a_system_fence() {
    let thread = completion_then("Y", "fence.acq_rel.sys;", LOAD);
    let seen = observe(Check::Strict, &[&thread], &ARRIVES);
    assert_eq!(seen.results, BTreeSet::from([7]));
    assert!(seen.faults.is_empty(), "{seen:?}");
    for fence in ["", "fence.acq_rel.gpu;"] {
        let thread = completion_then("Y", fence, LOAD);
        let seen = observe(Check::Strict, &[&thread], &ARRIVES);
        assert_eq!(seen.results, BTreeSet::from([0, 7]), "{fence}");
        assert_eq!(seen.faults, only(OrderFault::DeviceWrite), "{fence}");
    }
    let gpu = completion_then("Y", "fence.acq_rel.gpu;", LOAD);
    assert!(observe(Check::Gpu, &[&gpu], &ARRIVES).faults.is_empty());
}

fn a_completion_on_another_path_proves_nothing_until_a_read_pushes_the_data() {
    let thread = completion_then("H", "fence.acq_rel.sys;", LOAD);
    let mut does = vec![
        Write(Purpose::Payload, X, 7, false),
        Write(Purpose::Cqe, Host, 1, false),
    ];
    let seen = observe(Check::Strict, &[&thread], &does);
    assert_eq!(seen.results, BTreeSet::from([0, 7]));
    assert_eq!(seen.faults, only(OrderFault::DeviceWrite));
    // The DUMP of rule O14.
    does.insert(1, Read(Purpose::Payload, X));
    let seen = observe(Check::Strict, &[&thread], &does);
    assert_eq!(seen.results, BTreeSet::from([7]));
    assert!(seen.faults.is_empty(), "{seen:?}");
}

fn relaxed_ordering_writes_are_ordered_by_the_completion_alone() {
    let thread = completion_then("Y", "fence.acq_rel.sys;", LOAD);
    let completed = [
        Write(Purpose::Payload, X, 7, true),
        Write(Purpose::Cqe, Y, 1, false),
    ];
    assert!(
        observe(Check::Strict, &[&thread], &completed)
            .faults
            .is_empty()
    );
    let polled = [
        Write(Purpose::Payload, X, 7, true),
        Write(Purpose::Payload, Y, 1, true),
    ];
    let seen = observe(Check::Strict, &[&thread], &polled);
    assert_eq!(seen.faults, only(OrderFault::DeviceWrite));
}

fn memory_is_reused_behind_the_completion_only() {
    let does = [Read(Purpose::Payload, X), Write(Purpose::Cqe, Y, 1, false)];
    let store = "st.global.u32 X, 9;";
    let right = completion_then("Y", "fence.acq_rel.sys;", store);
    let seen = observe(Check::Strict, &[&right], &does);
    assert_eq!(seen.noted, BTreeSet::from([vec![0]]));
    assert!(seen.faults.is_empty(), "{seen:?}");
    let wrong = completion_then("Y", "", store);
    let seen = observe(Check::Strict, &[&wrong], &does);
    assert_eq!(seen.faults, only(OrderFault::Reuse));
}

fn bytes_that_nobody_wrote_are_reported_when_a_device_fetches_them() {
    let config = GpuConfig {
        check: Check::Strict,
        ..GpuConfig::default()
    };
    let bus = Bus::new(memory_of(&config));
    let mut gpu = GpuModel::new(config, bus.clone());
    let addr = bus
        .lock()
        .memory
        .alloc(Space::Device, 64, 64, "ring")
        .unwrap();
    bus.lock()
        .memory
        .write(Access::HOST_COPY, addr, &[0; 3])
        .unwrap();
    let script = Arc::new(Mutex::new(Script {
        does: vec![Read(Purpose::Wqe, X)],
        places: [addr; 3],
        ..Script::default()
    }));
    bus.attach(script);
    gpu.advance(10).unwrap();
    let reports = gpu.take_order_reports();
    assert_eq!(reports.len(), 1);
    assert_eq!(
        (reports[0].kind, reports[0].addr),
        (OrderFault::Uninitialised, addr + 3)
    );
    assert!(
        reports[0].to_string().contains("ring+0x3"),
        "{}",
        reports[0]
    );
}
