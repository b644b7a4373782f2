//! A NIC on a bus with flat memory, and the little of a driver that tests need.

use std::sync::{Arc, Mutex};

use warpverbs_sim_bus::{
    Access, Agent, Bus, Fault, FaultKind, FenceKind, Memory, Order, Purpose, RmwOp, Scope, Space,
    bar_base,
};
use warpverbs_sim_nic::{
    Cable, CablePlan, CommandError, DmaRange, Event, FindingKind, LinkLayer, MrKeys, NicConfig,
    NicModel, Trace as EventTrace, UarKind, access,
};
use warpverbs_wire::cqe::{Completion, Cqe, CqeOpcode, ErrorCqe, is_new};
use warpverbs_wire::doorbell::{DBR_RECEIVE, DBR_SEND, cq_dbr_word, dbr_word, doorbell};
use warpverbs_wire::prm::ads::Ads;
use warpverbs_wire::prm::cqc::Cqc;
use warpverbs_wire::prm::qpc::{AtomicMode, Mtu, PathMigration, QpState, Qpc, RqType};
use warpverbs_wire::prm::rmpc::{RmpState, Rmpc, Wq, WqType};
use warpverbs_wire::prm::{
    Command, create_cq, create_qp, create_rmp, init2rtr_qp, qp_2err, qp_2rst, query_qp,
    rst2init_qp, rtr2rts_qp,
};
use warpverbs_wire::wqe::{
    Control, DataPointer, Opcode, RemoteAddress, SIGNALLED, receive_end, segment_bytes, srq_next,
};

#[path = "exercised.rs"]
#[allow(dead_code, reason = "not all tests that use the rig are listed")]
pub(crate) mod exercised;

use exercised::Exercised;

pub(crate) const ALL_RIGHTS: u32 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ;
pub(crate) const EVERY_RIGHT: u32 = ALL_RIGHTS | access::REMOTE_ATOMIC;
pub(crate) const PAGE_4K: u64 = 1 << 12;

/// Accesses of the NIC since the trace was last taken.
pub(crate) type Trace = Arc<Mutex<Vec<Traced>>>;

/// One access of the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Traced {
    pub(crate) write: bool,
    pub(crate) purpose: Purpose,
    pub(crate) relaxed_ordering: bool,
    pub(crate) addr: u64,
    pub(crate) len: usize,
}

/// Flat memory that hands out addresses and never reuses them.
struct Flat {
    trace: Trace,
    bytes: Vec<u8>,
    live: Vec<(u64, u64)>,
    next: u64,
}

impl Flat {
    fn new(len: usize, trace: Trace) -> Self {
        Self {
            trace,
            bytes: vec![0; len],
            live: vec![],
            next: Space::Device.base(),
        }
    }

    fn note(&self, access: Access, write: bool, addr: u64, len: usize) {
        if matches!(access.agent, Agent::Device(_)) {
            self.trace.lock().unwrap().push(Traced {
                write,
                purpose: access.purpose,
                relaxed_ordering: access.order == Order::Weak,
                addr,
                len,
            });
        }
    }

    fn at(&mut self, addr: u64, len: usize) -> Result<&mut [u8], Fault> {
        let len64 = len as u64;
        if !self
            .live
            .iter()
            .any(|(start, size)| addr >= *start && addr + len64 <= start + size)
        {
            return Err(Fault::new(
                FaultKind::Freed,
                addr,
                len64,
                "no live allocation",
            ));
        }
        let start = (addr - Space::Device.base()) as usize;
        Ok(&mut self.bytes[start..start + len])
    }
}

impl Memory for Flat {
    fn alloc(&mut self, _: Space, len: u64, align: u64, _: &str) -> Result<u64, Fault> {
        let addr = self.next.next_multiple_of(align);
        self.next = addr + len;
        assert!(
            self.next - Space::Device.base() <= self.bytes.len() as u64,
            "test memory is used up"
        );
        self.live.push((addr, len));
        Ok(addr)
    }
    fn free(&mut self, addr: u64) -> Result<(), Fault> {
        self.live.retain(|(start, _)| *start != addr);
        Ok(())
    }
    fn load(&mut self, _: Access, _: u64, _: u32) -> Result<u64, Fault> {
        unimplemented!("no scalar access in these tests")
    }
    fn store(&mut self, _: Access, _: u64, _: u32, _: u64) -> Result<(), Fault> {
        unimplemented!("no scalar access in these tests")
    }
    fn rmw(
        &mut self,
        access: Access,
        addr: u64,
        size: u32,
        op: RmwOp,
        a: u64,
        b: u64,
    ) -> Result<u64, Fault> {
        let mut bytes = [0; 8];
        self.read(access, addr, &mut bytes[..size as usize])?;
        let old = u64::from_le_bytes(bytes);
        let new = op.apply(size, old, a, b).to_le_bytes();
        self.write(access, addr, &new[..size as usize])?;
        Ok(old)
    }
    fn fence(&mut self, _: Agent, _: FenceKind, _: Scope) {}
    fn read(&mut self, access: Access, addr: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        self.note(access, false, addr, bytes.len());
        bytes.copy_from_slice(self.at(addr, bytes.len())?);
        Ok(())
    }
    fn write(&mut self, access: Access, addr: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.note(access, true, addr, bytes.len());
        self.at(addr, bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }
    fn describe(&self, addr: u64) -> String {
        format!("{addr:#x}")
    }
}

/// A bus with one NIC, a PD and a UAR page.
pub(crate) struct Rig {
    pub(crate) bus: Arc<Bus>,
    pub(crate) nic: Arc<Mutex<NicModel>>,
    pub(crate) pd: u32,
    pub(crate) uar: u32,
    trace: Trace,
    /// The NIC's number on the bus.
    device: usize,
    exercised: Option<Exercised>,
}

impl Drop for Rig {
    fn drop(&mut self) {
        // A test that failed has exercised nothing.
        if let Some(exercised) = self.exercised.take()
            && !std::thread::panicking()
        {
            exercised.note(&self.nic());
        }
    }
}

/// A completion queue and its reader.
#[derive(Clone, Debug)]
pub(crate) struct TestCq {
    pub(crate) cqn: u32,
    pub(crate) ring: u64,
    pub(crate) dbr: u64,
    pub(crate) depth: u32,
    pub(crate) collapsed: bool,
    pub(crate) umem: u32,
    /// Next CQE to read.
    pub(crate) next: u64,
}

/// A send queue and its writer.
#[derive(Clone, Debug)]
pub(crate) struct TestQp {
    pub(crate) qpn: u32,
    pub(crate) ring: u64,
    pub(crate) dbr: u64,
    pub(crate) umem: u32,
    pub(crate) uar: u32,
    pub(crate) depth: u64,
    /// Next WQEBB to write.
    pub(crate) next: u64,
}

/// A receive queue of WQEs of 64 bytes, and its writer.
#[derive(Clone, Debug)]
pub(crate) struct TestRq {
    pub(crate) ring: u64,
    pub(crate) dbr: u64,
    depth: u64,
    pub(crate) next: u64,
}

impl TestRq {
    /// Posts a receive into up to four pieces.
    pub(crate) fn post(&mut self, rig: &Rig, pieces: &[Piece]) {
        let mut bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.local()).collect();
        while bytes.len() < 64 {
            bytes.extend(segment_bytes(receive_end()));
        }
        rig.write(self.ring + (self.next & (self.depth - 1)) * 64, &bytes);
        self.next += 1;
        rig.write(
            self.dbr + DBR_RECEIVE as u64,
            &dbr_word(self.next).to_le_bytes(),
        );
    }
}

/// A shared receive queue of WQEs of 64 bytes, and its writer.
#[derive(Clone, Debug)]
pub(crate) struct TestSrq {
    pub(crate) ring: u64,
    pub(crate) dbr: u64,
    depth: u64,
    /// Where the next WQE goes.
    head: u64,
    posted: u64,
}

impl TestSrq {
    /// Posts a receive into one piece, and returns the WQE's number.
    pub(crate) fn post(&mut self, rig: &Rig, piece: Piece) -> u16 {
        let at = self.head;
        self.head = (at + self.depth - 1) % self.depth;
        let mut bytes = segment_bytes(srq_next(self.head as u16)).to_vec();
        bytes.extend(piece.local());
        bytes.extend(segment_bytes(receive_end()));
        bytes.extend(segment_bytes(receive_end()));
        rig.write(self.ring + at * 64, &bytes);
        self.posted += 1;
        rig.write(self.dbr, &dbr_word(self.posted).to_le_bytes());
        at as u16
    }
}

/// Registered memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TestMr {
    pub(crate) addr: u64,
    pub(crate) iova: u64,
    pub(crate) keys: MrKeys,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with(NicConfig::default())
    }

    pub(crate) fn with(config: NicConfig) -> Self {
        let trace = Trace::default();
        let bus = Bus::new(Box::new(Flat::new(64 << 20, trace.clone())));
        Self::on(bus, trace, config)
    }

    fn on(bus: Arc<Bus>, trace: Trace, config: NicConfig) -> Self {
        let mut model = NicModel::new(NicConfig {
            checks_wqes: true,
            ..config
        });
        let pd = model.alloc_pd().unwrap();
        let uar = model.alloc_uar(UarKind::NonCachedDedicated).unwrap();
        let exercised = Exercised::of(&mut model);
        let nic = Arc::new(Mutex::new(model));
        let device = bus.attach(nic.clone());
        Self {
            bus,
            nic,
            pd,
            uar,
            trace,
            device,
            exercised,
        }
    }

    /// Two NICs on one bus, joined by a cable.
    pub(crate) fn joined(config: NicConfig, plan: CablePlan, seed: u64) -> (Self, Self, Cable) {
        let near = Self::with(config.clone());
        let mut config = config;
        config.mac[5] += 1;
        config.lid += 1;
        config.name = "sim1".to_owned();
        let far = Self::on(near.bus.clone(), near.trace.clone(), config);
        let (cable, a, b) = Cable::new(plan, seed);
        near.nic().connect(a);
        far.nic().connect(b);
        (near, far, cable)
    }

    /// What the NIC does from now on; `take_events` gives it.
    pub(crate) fn watch(&self) -> EventTrace {
        let trace = EventTrace::new();
        self.nic().trace(&trace);
        trace
    }

    pub(crate) fn take_events(&self, trace: &EventTrace) -> Vec<Event> {
        let events: Vec<Event> = trace
            .take()
            .into_iter()
            .map(|record| record.event)
            .collect();
        if let Some(exercised) = &self.exercised {
            exercised.took(&events);
        }
        events
    }

    pub(crate) fn nic(&self) -> std::sync::MutexGuard<'_, NicModel> {
        self.nic.lock().unwrap()
    }

    /// The NIC's accesses since the last call.
    pub(crate) fn take_trace(&self) -> Vec<Traced> {
        std::mem::take(&mut self.trace.lock().unwrap())
    }

    pub(crate) fn alloc(&self, len: u64) -> u64 {
        let mut state = self.bus.lock();
        state
            .memory
            .alloc(Space::Device, len, 1 << 16, "test")
            .unwrap()
    }

    pub(crate) fn free(&self, addr: u64) {
        self.bus.lock().memory.free(addr).unwrap();
    }

    pub(crate) fn write(&self, addr: u64, bytes: &[u8]) {
        self.bus
            .lock()
            .memory
            .write(Access::HOST_COPY, addr, bytes)
            .unwrap();
    }

    pub(crate) fn read(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.bus
            .lock()
            .memory
            .read(Access::HOST_COPY, addr, &mut bytes)
            .unwrap();
        bytes
    }

    /// Steps the NIC until it is idle.
    pub(crate) fn run(&self) -> u64 {
        let steps = self.bus.lock().run_devices(10_000_000);
        assert!(steps < 10_000_000, "the NIC never becomes idle");
        steps
    }

    pub(crate) fn command<C: Command>(&self, command: C) -> Result<C::Out, CommandError> {
        let input = command.encode().unwrap();
        let mut output = C::reply();
        self.nic().command(input.as_ref(), output.as_mut())?;
        Ok(C::decode(output.as_ref()).unwrap())
    }

    pub(crate) fn umem(&self, len: u64) -> (u32, u64) {
        let bus_addr = self.alloc(len);
        let range = DmaRange {
            bus_addr,
            len,
            iova: 0,
        };
        let id = self
            .nic()
            .reg_umem(range, PAGE_4K, access::LOCAL_WRITE)
            .unwrap();
        (id, bus_addr)
    }

    pub(crate) fn mr(&self, len: u64, rights: u32) -> TestMr {
        let addr = self.alloc(len);
        self.mr_at(self.pd, addr, len, addr ^ 0x5500_0000_0000, rights)
    }

    pub(crate) fn mr_at(&self, pd: u32, addr: u64, len: u64, iova: u64, rights: u32) -> TestMr {
        let range = DmaRange {
            bus_addr: addr,
            len,
            iova,
        };
        let keys = self.nic().reg_mr(pd, range, rights).unwrap();
        TestMr { addr, iova, keys }
    }

    /// What CREATE_CQ needs, with a ring of `1 << log` CQEs and the record in one UMEM.
    pub(crate) fn cq_request(&self, log: u8) -> (create_cq::In, TestCq) {
        let depth = 1u32 << log;
        let ring_len = u64::from(depth) * 64;
        let (umem, ring) = self.umem(ring_len + 64);
        self.write(ring, &vec![0xff; ring_len as usize]);
        let first = self.nic().config().first_index;
        let dbr = ring + ring_len;
        self.write(dbr, &cq_dbr_word(first).to_le_bytes());
        let eqn = self.nic().query_eqn(0).unwrap();
        let request = create_cq::In {
            cq_context: Cqc {
                log_cq_size: log,
                uar_page: self.uar,
                c_eqn: eqn,
                dbr_umem_valid: true,
                dbr_umem_id: umem,
                dbr_addr: ring_len,
                ..Cqc::default()
            },
            cq_umem_id: umem,
            cq_umem_valid: true,
            cq_umem_offset: 0,
        };
        let cq = TestCq {
            cqn: 0,
            ring,
            dbr,
            depth,
            collapsed: false,
            umem,
            next: first,
        };
        (request, cq)
    }

    pub(crate) fn cq(&self, log: u8) -> TestCq {
        let (request, mut cq) = self.cq_request(log);
        cq.cqn = self.command(request).unwrap().cqn;
        cq
    }

    /// A CQ that ignores overrun, collapsed or not.
    pub(crate) fn cq_oi(&self, log: u8, collapsed: bool) -> TestCq {
        let (mut request, mut cq) = self.cq_request(log);
        request.cq_context.oi = true;
        request.cq_context.cc = collapsed;
        cq.collapsed = collapsed;
        cq.cqn = self.command(request).unwrap().cqn;
        cq
    }

    /// What CREATE_QP needs, with `1 << log` WQEBBs and the record in one UMEM.
    pub(crate) fn qp_request(&self, cq: &TestCq, log: u8) -> (create_qp::In, TestQp) {
        let depth = 1u64 << log;
        let (umem, ring) = self.umem(depth * 64 + 64);
        let first = self.nic().config().first_index;
        let dbr = ring + depth * 64;
        self.write(dbr + DBR_SEND as u64, &dbr_word(first).to_le_bytes());
        let request = create_qp::In {
            qpc: Qpc {
                pd: self.pd,
                cqn_snd: cq.cqn,
                cqn_rcv: cq.cqn,
                uar_page: self.uar,
                log_sq_size: log,
                rq_type: RqType::ZeroSize,
                user_index: 0x12_3456,
                dbr_umem_valid: true,
                dbr_umem_id: umem,
                dbr_addr: depth * 64,
                ..Qpc::default()
            },
            wq_umem_id: umem,
            wq_umem_valid: true,
            ..create_qp::In::default()
        };
        let qp = TestQp {
            qpn: 0,
            ring,
            dbr,
            umem,
            uar: self.uar,
            depth,
            next: first,
        };
        (request, qp)
    }

    pub(crate) fn qp(&self, cq: &TestCq, log: u8) -> TestQp {
        let (request, mut qp) = self.qp_request(cq, log);
        qp.qpn = self.command(request).unwrap().qpn;
        qp
    }

    pub(crate) fn rst2init(&self, qpn: u32) -> rst2init_qp::In {
        rst2init_qp::In {
            qpn,
            qpc: Qpc {
                pm_state: PathMigration::Migrated,
                rre: true,
                rwe: true,
                primary_address_path: Ads {
                    vhca_port_num: 1,
                    ..Ads::default()
                },
                ..Qpc::default()
            },
            ..rst2init_qp::In::default()
        }
    }

    pub(crate) fn init2rtr(&self, qpn: u32, remote_qpn: u32) -> init2rtr_qp::In {
        let path = self.path_to(self);
        init2rtr_qp::In {
            qpn,
            qpc: Qpc {
                mtu: Mtu::Bytes1024,
                log_msg_max: 30,
                remote_qpn,
                next_rcv_psn: 0xff_fffe,
                primary_address_path: path,
                ..Qpc::default()
            },
            ..init2rtr_qp::In::default()
        }
    }

    /// The path to a NIC: RoCE v2 over IPv4, or by LID.
    pub(crate) fn path_to(&self, other: &Self) -> Ads {
        let (layer, lid) = {
            let nic = other.nic();
            (nic.config().link_layer, nic.config().lid)
        };
        if layer == LinkLayer::InfiniBand {
            return Ads {
                rlid: lid,
                ..Ads::default()
            };
        }
        let gid = other.nic().query_gid(1, 3).unwrap().unwrap();
        Ads {
            src_addr_index: 3,
            rgid_rip: gid.gid,
            rmac: gid.mac,
            hop_limit: 64,
            ..Ads::default()
        }
    }

    pub(crate) fn rtr2rts(&self, qpn: u32) -> rtr2rts_qp::In {
        rtr2rts_qp::In {
            qpn,
            qpc: Qpc {
                next_send_psn: 0xff_fffe,
                retry_count: 7,
                rnr_retry: 7,
                primary_address_path: Ads {
                    ack_timeout: 14,
                    ..Ads::default()
                },
                ..Qpc::default()
            },
            ..rtr2rts_qp::In::default()
        }
    }

    /// Brings a fresh QP to RTS with `remote_qpn` as peer.
    pub(crate) fn to_rts(&self, qpn: u32, remote_qpn: u32) {
        self.command(self.rst2init(qpn)).unwrap();
        self.command(self.init2rtr(qpn, remote_qpn)).unwrap();
        self.command(self.rtr2rts(qpn)).unwrap();
    }

    /// Two connected QPs, both with their completions in `cq`.
    pub(crate) fn pair(&self, cq: &TestCq, log: u8) -> (TestQp, TestQp) {
        let (a, b) = (self.qp(cq, log), self.qp(cq, log));
        self.to_rts(a.qpn, b.qpn);
        self.to_rts(b.qpn, a.qpn);
        (a, b)
    }

    /// Connects a QP of this NIC with one of another, atomics allowed, after a change to the context.
    pub(crate) fn connect(
        &self,
        qpn: u32,
        other: &Rig,
        remote_qpn: u32,
        change: impl Fn(&mut Qpc),
    ) {
        let mut request = self.rst2init(qpn);
        (request.qpc.rae, request.qpc.atomic_mode) = (true, AtomicMode::UpTo8);
        change(&mut request.qpc);
        self.command(request).unwrap();
        let mut request = self.init2rtr(qpn, remote_qpn);
        request.qpc.primary_address_path = self.path_to(other);
        (request.qpc.log_rra_max, request.qpc.min_rnr_nak) = (2, 12);
        change(&mut request.qpc);
        self.command(request).unwrap();
        let mut request = self.rtr2rts(qpn);
        request.qpc.log_sra_max = 2;
        change(&mut request.qpc);
        self.command(request).unwrap();
    }

    /// A QP with `1 << log` WQEBBs and as many receive WQEs of 64 bytes.
    pub(crate) fn qp_with_receives(&self, cq: &TestCq, log: u8) -> (TestQp, TestRq) {
        let (mut request, mut qp) = self.qp_request(cq, log);
        let depth = 1u64 << log;
        let (umem, rings) = self.umem(depth * 128);
        request.qpc.rq_type = RqType::Regular;
        (request.qpc.log_rq_size, request.qpc.log_rq_stride) = (log, 2);
        (request.wq_umem_id, qp.umem) = (umem, umem);
        qp.ring = rings + depth * 64;
        qp.qpn = self.command(request).unwrap().qpn;
        let first = dbr_word(qp.next).to_le_bytes();
        self.write(qp.dbr + DBR_RECEIVE as u64, &first);
        let queue = TestRq {
            ring: rings,
            dbr: qp.dbr,
            depth,
            next: qp.next,
        };
        (qp, queue)
    }

    /// What CREATE_RMP needs, with a list of `1 << log` WQEs of 64 bytes and the record in one UMEM. The list runs backwards,
    /// so that it is no ring.
    pub(crate) fn rmp_request(&self, log: u8) -> (create_rmp::In, TestSrq) {
        let depth = 1u64 << log;
        let (umem, ring) = self.umem(depth * 64 + 64);
        let context = Rmpc {
            state: RmpState::Ready,
            wq: Wq {
                wq_type: WqType::LinkedList,
                pd: self.pd,
                dbr_addr: depth * 64,
                log_wq_stride: 6,
                log_wq_sz: log,
                dbr_umem_valid: true,
                wq_umem_valid: true,
                dbr_umem_id: umem,
                wq_umem_id: umem,
                ..Wq::default()
            },
            ..Rmpc::default()
        };
        let srq = TestSrq {
            ring,
            dbr: ring + depth * 64,
            depth,
            head: 0,
            posted: self.nic().config().first_index,
        };
        self.write(srq.dbr, &dbr_word(srq.posted).to_le_bytes());
        (create_rmp::In { context }, srq)
    }

    pub(crate) fn to_error(&self, qpn: u32) {
        self.command(qp_2err::In { qpn }).unwrap();
    }

    pub(crate) fn to_reset(&self, qpn: u32) {
        self.command(qp_2rst::In { qpn }).unwrap();
    }

    pub(crate) fn query_qp(&self, qpn: u32) -> Qpc {
        self.command(query_qp::In {
            qpn,
            ..Default::default()
        })
        .unwrap()
        .qpc
    }

    pub(crate) fn state(&self, qpn: u32) -> QpState {
        self.query_qp(qpn).state
    }

    pub(crate) fn mmio(&self, page: u32, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        let addr = bar_base(self.device) + u64::from(page) * 4096 + offset;
        self.bus.lock().mmio_write(addr, bytes)
    }

    /// Names of the findings, in order; they are taken away.
    pub(crate) fn take_findings(&self) -> Vec<&'static str> {
        let findings = self.nic().take_findings();
        for finding in &findings {
            assert!(!finding.to_string().contains('\n'), "{finding}");
        }
        findings.iter().map(|finding| finding.kind.name()).collect()
    }

    pub(crate) fn finding_kinds(&self) -> Vec<FindingKind> {
        self.nic()
            .findings()
            .iter()
            .map(|finding| finding.kind)
            .collect()
    }

    #[track_caller]
    pub(crate) fn assert_no_findings(&self) {
        self.nic().end_of_run();
        let lines: Vec<String> = self
            .nic()
            .findings()
            .iter()
            .map(|f| f.to_string())
            .collect();
        assert!(lines.is_empty(), "{lines:#?}");
    }
}

impl TestCq {
    /// Takes the next CQE, if it is there, and moves the consumer in the doorbell record.
    pub(crate) fn poll(&mut self, rig: &Rig) -> Option<Completion> {
        let slot = if self.collapsed {
            0
        } else {
            self.next & u64::from(self.depth - 1)
        };
        let bytes = rig.read(self.ring + slot * 64, 64);
        // On a collapsed CQ the owner bit says nothing; tests poll it once.
        let new =
            is_new(bytes[63], self.next, self.depth) || (self.collapsed && bytes[63] >> 4 != 0xf);
        if !new {
            return None;
        }
        self.next += 1;
        rig.write(self.dbr, &cq_dbr_word(self.next).to_le_bytes());
        Some(Completion::parse(&bytes).unwrap())
    }

    #[track_caller]
    pub(crate) fn success(&mut self, rig: &Rig) -> Cqe {
        match self.poll(rig) {
            Some(Completion::Done(cqe)) => {
                assert_eq!(cqe.opcode, CqeOpcode::Requester);
                cqe
            }
            other => panic!(
                "no success but {other:?}; findings {:?}",
                rig.finding_kinds()
            ),
        }
    }

    #[track_caller]
    pub(crate) fn failure(&mut self, rig: &Rig) -> ErrorCqe {
        match self.poll(rig) {
            Some(Completion::Failed(cqe)) => {
                assert_eq!(cqe.opcode, CqeOpcode::RequesterError);
                cqe
            }
            other => panic!("no error but {other:?}"),
        }
    }

    /// Syndrome, vendor syndrome and WQE counter of the next CQE, which is an error's.
    #[track_caller]
    pub(crate) fn error(&mut self, rig: &Rig) -> (u8, u8, u16) {
        let cqe = self.failure(rig);
        (cqe.syndrome.code(), cqe.vendor_syndrome, cqe.wqe_counter)
    }

    #[track_caller]
    pub(crate) fn assert_empty(&mut self, rig: &Rig) {
        assert_eq!(self.poll(rig), None);
    }
}

impl TestQp {
    /// Writes a WQE of whole segments at the producer, around the end of the ring if need be, and moves the producer.
    pub(crate) fn put(&mut self, rig: &Rig, bytes: &[u8]) -> u64 {
        assert_eq!(bytes.len() % 16, 0);
        let index = self.next;
        for (block, chunk) in (index..).zip(bytes.chunks(64)) {
            rig.write(self.ring + (block & (self.depth - 1)) * 64, chunk);
        }
        self.next += bytes.len().div_ceil(64) as u64;
        index
    }

    /// Posts a WQE: control segment for this slot, then `segments`.
    pub(crate) fn post(&mut self, rig: &Rig, opcode: Opcode, flags: u8, segments: &[u8]) -> u64 {
        let control = self.control(opcode, flags, segments.len());
        let mut bytes = control.emit().to_vec();
        bytes.extend_from_slice(segments);
        self.put(rig, &bytes)
    }

    /// Posts a WQE with immediate data, or an opmod.
    pub(crate) fn post_with(
        &mut self,
        rig: &Rig,
        change: impl Fn(&mut Control),
        opcode: Opcode,
        segments: &[u8],
    ) -> u64 {
        let mut control = self.control(opcode, SIGNALLED, segments.len());
        change(&mut control);
        let mut bytes = control.emit().to_vec();
        bytes.extend_from_slice(segments);
        self.put(rig, &bytes)
    }

    pub(crate) fn control(&self, opcode: Opcode, flags: u8, segment_bytes: usize) -> Control {
        Control {
            index: self.next as u16,
            opcode,
            qpn: self.qpn,
            ds: 1 + (segment_bytes / 16) as u8,
            flags,
            ..Control::default()
        }
    }

    pub(crate) fn dbr(&self, rig: &Rig) {
        self.dbr_at(rig, self.next);
    }

    pub(crate) fn dbr_at(&self, rig: &Rig, index: u64) {
        rig.write(self.dbr + DBR_SEND as u64, &dbr_word(index).to_le_bytes());
    }

    pub(crate) fn doorbell(&self, rig: &Rig) {
        self.doorbell_at(rig, self.next);
    }

    pub(crate) fn doorbell_at(&self, rig: &Rig, index: u64) {
        rig.mmio(self.uar, 0x800, &doorbell(index, self.qpn).to_le_bytes())
            .unwrap();
    }

    /// Doorbell record, then doorbell.
    pub(crate) fn ring(&self, rig: &Rig) {
        self.dbr(rig);
        self.doorbell(rig);
    }

    pub(crate) fn write(&mut self, rig: &Rig, from: Piece, to: Piece) -> u64 {
        self.post(
            rig,
            Opcode::RdmaWrite,
            SIGNALLED,
            &[to.remote(), from.local()].concat(),
        )
    }

    pub(crate) fn nop(&mut self, rig: &Rig) -> u64 {
        self.post(rig, Opcode::Nop, SIGNALLED, &[])
    }
}

/// A part of an MR.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) key: u32,
    pub(crate) iova: u64,
    pub(crate) len: u32,
}

impl TestMr {
    pub(crate) fn piece(&self, offset: u64, len: u32) -> Piece {
        Piece {
            key: self.keys.lkey,
            iova: self.iova.wrapping_add(offset),
            len,
        }
    }
}

impl Piece {
    pub(crate) fn local(self) -> Vec<u8> {
        let pointer = DataPointer {
            byte_count: self.len,
            key: self.key,
            address: self.iova,
        };
        pointer.emit().to_vec()
    }

    pub(crate) fn remote(self) -> Vec<u8> {
        let remote = RemoteAddress {
            address: self.iova,
            key: self.key,
        };
        remote.emit().to_vec()
    }
}

/// An inline data segment.
pub(crate) fn inline(data: &[u8]) -> Vec<u8> {
    let mut bytes = (0x8000_0000 | data.len() as u32).to_be_bytes().to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(16), 0);
    bytes
}

/// Bytes that differ from their neighbours and from those of another salt.
pub(crate) fn pattern(len: usize, salt: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ salt)
        .collect()
}
