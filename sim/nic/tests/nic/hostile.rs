//! Hostile programs and peers: bytes drive what is put into mailboxes, rings, records, doorbells and frames.
//!
//! Each door here takes any bytes. The NIC may refuse, complete with an error, or note a finding; it must not panic, hang, or touch
//! memory that no registration covers. The fuzzer drives these doors (`fuzz/`), and `replay` runs what it kept.

use warpverbs_sim_bus::Fault;
use warpverbs_sim_nic::{DmaRange, Link, NicConfig, UarKind};
use warpverbs_wire::prm::{
    Command, alloc_pd, alloc_q_counter, alloc_transport_domain, alloc_uar, create_cq, create_mkey,
    create_qp, create_rmp, dealloc_pd, dealloc_q_counter, dealloc_transport_domain, dealloc_uar,
    destroy_cq, destroy_mkey, destroy_qp, destroy_rmp, init2init_qp, init2rtr_qp, modify_rmp,
    qp_2err, qp_2rst, query_cq, query_hca_cap, query_hca_vport_context, query_hca_vport_gid,
    query_hca_vport_pkey, query_nic_vport_context, query_q_counter, query_qp, query_rmp,
    query_roce_address, query_special_contexts, query_vport_state, rst2init_qp, rtr2rts_qp,
    rts2rts_qp, set_roce_address, sqerr2rts_qp,
};
use warpverbs_wire::roce::address::gid_of_ipv4;
use warpverbs_wire::roce::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Ethernet, Extended, Frame, Ieth, ImmDt, Ip,
    MaskedAtomicEth, Opcode, Reth, Syndrome, icrc,
};
use warpverbs_wire::wqe::{Opcode as WqeOpcode, SIGNALLED, fetch_add, segment_bytes};

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use crate::rig::{EVERY_RIGHT, Piece, Rig, TestMr, TestQp};

/// Commands, and the lengths of their mailboxes.
const COMMANDS: [(u16, usize); 38] = [
    (alloc_pd::In::OPCODE, alloc_pd::In::LEN),
    (alloc_q_counter::In::OPCODE, alloc_q_counter::In::LEN),
    (
        alloc_transport_domain::In::OPCODE,
        alloc_transport_domain::In::LEN,
    ),
    (alloc_uar::In::OPCODE, alloc_uar::In::LEN),
    (create_cq::In::OPCODE, create_cq::In::LEN),
    (create_mkey::In::OPCODE, create_mkey::In::LEN),
    (create_qp::In::OPCODE, create_qp::In::LEN),
    (create_rmp::In::OPCODE, create_rmp::In::LEN),
    (dealloc_pd::In::OPCODE, dealloc_pd::In::LEN),
    (dealloc_q_counter::In::OPCODE, dealloc_q_counter::In::LEN),
    (
        dealloc_transport_domain::In::OPCODE,
        dealloc_transport_domain::In::LEN,
    ),
    (dealloc_uar::In::OPCODE, dealloc_uar::In::LEN),
    (destroy_cq::In::OPCODE, destroy_cq::In::LEN),
    (destroy_mkey::In::OPCODE, destroy_mkey::In::LEN),
    (destroy_qp::In::OPCODE, destroy_qp::In::LEN),
    (destroy_rmp::In::OPCODE, destroy_rmp::In::LEN),
    (init2init_qp::In::OPCODE, init2init_qp::In::LEN),
    (init2rtr_qp::In::OPCODE, init2rtr_qp::In::LEN),
    (modify_rmp::In::OPCODE, modify_rmp::In::LEN),
    (qp_2err::In::OPCODE, qp_2err::In::LEN),
    (qp_2rst::In::OPCODE, qp_2rst::In::LEN),
    (query_cq::In::OPCODE, query_cq::In::LEN),
    (query_hca_cap::In::OPCODE, query_hca_cap::In::LEN),
    (
        query_hca_vport_context::In::OPCODE,
        query_hca_vport_context::In::LEN,
    ),
    (
        query_hca_vport_gid::In::OPCODE,
        query_hca_vport_gid::In::LEN,
    ),
    (
        query_hca_vport_pkey::In::OPCODE,
        query_hca_vport_pkey::In::LEN,
    ),
    (
        query_nic_vport_context::In::OPCODE,
        query_nic_vport_context::In::LEN,
    ),
    (query_q_counter::In::OPCODE, query_q_counter::In::LEN),
    (query_qp::In::OPCODE, query_qp::In::LEN),
    (query_rmp::In::OPCODE, query_rmp::In::LEN),
    (query_roce_address::In::OPCODE, query_roce_address::In::LEN),
    (
        query_special_contexts::In::OPCODE,
        query_special_contexts::In::LEN,
    ),
    (query_vport_state::In::OPCODE, query_vport_state::In::LEN),
    (rst2init_qp::In::OPCODE, rst2init_qp::In::LEN),
    (rtr2rts_qp::In::OPCODE, rtr2rts_qp::In::LEN),
    (rts2rts_qp::In::OPCODE, rts2rts_qp::In::LEN),
    (set_roce_address::In::OPCODE, set_roce_address::In::LEN),
    (sqerr2rts_qp::In::OPCODE, sqerr2rts_qp::In::LEN),
];

/// Steps after which the NIC is left alone: retries that never end are legal.
const STEPS: u64 = 3_000;
/// Actions of one run.
const ACTIONS: usize = 48;

/// Bytes, taken from the front; zeroes behind the end.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        head
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut all = [0; N];
        let head = self.take(N);
        all[..head.len()].copy_from_slice(head);
        all
    }

    fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// The actions that the bytes hold.
    fn actions(&mut self) -> impl Iterator<Item = (u8, Bytes<'a>)> + use<'a> {
        let mut rest = Bytes(self.0);
        (0..ACTIONS).map_while(move |_| {
            if rest.0.is_empty() {
                return None;
            }
            let kind = rest.u8();
            let len = usize::from(rest.u8()) * 4;
            Some((kind, Bytes(rest.take(len))))
        })
    }
}

/// A NIC, and the memory that it may touch.
struct World {
    rig: Rig,
    allowed: Vec<(u64, u64)>,
}

impl World {
    fn new() -> Self {
        Self {
            rig: Rig::new(),
            allowed: vec![],
        }
    }

    fn allow(&mut self, addr: u64, len: u64) {
        self.allowed.push((addr, len));
    }

    fn run(&self) {
        self.rig.bus.lock().run_devices(STEPS);
    }

    /// Every access so far lay in registered memory.
    fn judge(&self) {
        for access in self.rig.take_trace() {
            let end = access.addr + access.len as u64;
            assert!(
                self.allowed
                    .iter()
                    .any(|(addr, len)| access.addr >= *addr && end <= addr + len),
                "outside registered memory: {access:x?}"
            );
        }
    }

    /// A store to the NIC's registers, at any address of the BAR.
    fn store(&self, page: u32, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.rig.mmio(page, offset & 0xfff, bytes)
    }
}

/// Commands: mailboxes of any bytes, and legal ones with bytes changed, mixed with driver calls and doorbells.
pub(crate) fn mailboxes(data: &[u8]) {
    let mut world = World::new();
    let cq = world.rig.cq(3);
    world.allow(cq.ring, 8 * 64 + 64);
    let mut qps: Vec<TestQp> = vec![];
    let mut numbers = vec![cq.cqn];
    let mut umems = vec![];
    for (kind, mut bytes) in Bytes(data).actions() {
        let pick = |numbers: &[u32], at: u8| {
            numbers
                .get(usize::from(at) % numbers.len().max(1))
                .copied()
                .unwrap_or_default()
        };
        let mut created = None;
        let mailbox: Vec<u8> = match kind % 32 {
            0..8 => bytes.take(1020).to_vec(),
            8 => {
                let (mut request, cq) = world.rig.cq_request(bytes.u8() % 4);
                request.cq_context.oi = bytes.u8() & 1 != 0;
                world.allow(cq.ring, u64::from(cq.depth) * 64 + 64);
                umems.push(cq.umem);
                request.encode().unwrap().to_vec()
            }
            9 | 10 => {
                let (request, qp) = world.rig.qp_request(&cq, 1 + bytes.u8() % 3);
                world.allow(qp.ring, qp.depth * 64 + 64);
                umems.push(qp.umem);
                created = Some(qp);
                request.encode().unwrap().to_vec()
            }
            11 => {
                let (request, srq) = world.rig.rmp_request(2);
                world.allow(srq.ring, 4 * 64 + 64);
                umems.push(request.context.wq.wq_umem_id);
                request.encode().unwrap().to_vec()
            }
            12 => {
                let request = world.rig.rst2init(pick(&numbers, bytes.u8()));
                request.encode().unwrap().to_vec()
            }
            13 => {
                let (qpn, remote) = (pick(&numbers, bytes.u8()), pick(&numbers, bytes.u8()));
                let request = world.rig.init2rtr(qpn, remote);
                request.encode().unwrap().to_vec()
            }
            14 => {
                let request = world.rig.rtr2rts(pick(&numbers, bytes.u8()));
                request.encode().unwrap().to_vec()
            }
            15 => {
                let qpn = pick(&numbers, bytes.u8());
                qp_2err::In { qpn }.encode().unwrap().to_vec()
            }
            16 => {
                let qpn = pick(&numbers, bytes.u8());
                qp_2rst::In { qpn }.encode().unwrap().to_vec()
            }
            17 => {
                let qpn = pick(&numbers, bytes.u8());
                let request = query_qp::In {
                    qpn,
                    ..Default::default()
                };
                request.encode().unwrap().to_vec()
            }
            18 => {
                let cqn = pick(&numbers, bytes.u8());
                query_cq::In { cqn }.encode().unwrap().to_vec()
            }
            19 => {
                let rmpn = pick(&numbers, bytes.u8());
                query_rmp::In { rmpn }.encode().unwrap().to_vec()
            }
            20 => {
                let mkey_umem_id = pick(&umems, bytes.u8());
                let mut request = create_mkey::In {
                    mkey_umem_valid: true,
                    mkey_umem_id,
                    ..Default::default()
                };
                request.mkey_context.pd = world.rig.pd;
                request.mkey_context.len = u64::from(bytes.u16());
                request.encode().unwrap().to_vec()
            }
            21 => {
                let mkey_index = pick(&numbers, bytes.u8());
                destroy_mkey::In { mkey_index }.encode().unwrap().to_vec()
            }
            22 => {
                let qpn = pick(&numbers, bytes.u8());
                destroy_qp::In { qpn }.encode().unwrap().to_vec()
            }
            23 => {
                let cqn = pick(&numbers, bytes.u8());
                destroy_cq::In { cqn }.encode().unwrap().to_vec()
            }
            24 => {
                let rmpn = pick(&numbers, bytes.u8());
                destroy_rmp::In { rmpn }.encode().unwrap().to_vec()
            }
            25 => query_special_contexts::In {}.encode().unwrap().to_vec(),
            26 => [&[1, 0, 0, 0, 0, 0, 0, bytes.u8()][..], &[0; 8]].concat(),
            // Any command at its right length, with a number where most have one.
            31 => {
                let (opcode, len) = COMMANDS[usize::from(bytes.u8()) % COMMANDS.len()];
                let number = pick(&numbers, bytes.u8()).to_be_bytes();
                let mut mailbox = vec![0; len];
                mailbox[..2].copy_from_slice(&opcode.to_be_bytes());
                if let Some(field) = mailbox.get_mut(8..12) {
                    field.copy_from_slice(&number);
                }
                mailbox
            }
            // Driver calls with any numbers.
            27 => {
                let range = DmaRange {
                    bus_addr: bytes.u64(),
                    len: bytes.u64(),
                    iova: bytes.u64(),
                };
                let pd = world.rig.pd;
                let mr = world.rig.nic().reg_mr(pd, range, bytes.u32());
                let umem = world.rig.nic().reg_umem(range, bytes.u64(), bytes.u32());
                if mr.is_ok() || umem.is_ok() {
                    world.allow(range.bus_addr, range.len);
                }
                umems.extend(umem);
                continue;
            }
            28 => {
                let id = bytes.u32();
                let _ = match bytes.u8() % 5 {
                    0 => world.rig.nic().dereg_mr(id),
                    1 => world.rig.nic().dereg_umem(pick(&umems, id as u8)),
                    2 => world.rig.nic().free_uar(id % 4),
                    3 => world.rig.nic().dealloc_pd(id % 4),
                    _ => {
                        let _ = world.rig.nic().alloc_uar(UarKind::NonCachedDedicated);
                        world.rig.nic().alloc_pd().map(|_| ())
                    }
                };
                continue;
            }
            29 => {
                let offset = bytes.u64();
                let _ = world.store(bytes.u32() % 8, offset, bytes.take(16));
                world.run();
                continue;
            }
            _ => {
                if let Some(qp) = qps.last_mut() {
                    for _ in 0..bytes.u8() % 4 {
                        qp.nop(&world.rig);
                    }
                    qp.dbr(&world.rig);
                    let doorbell = warpverbs_wire::doorbell::doorbell(qp.next, qp.qpn);
                    let _ = world.store(qp.uar, 0x800, &doorbell.to_le_bytes());
                    world.run();
                }
                continue;
            }
        };
        let mut mailbox = mailbox;
        // Changes: how many, and each place and what is added to it.
        if kind % 32 >= 8 {
            for _ in 0..bytes.u8() % 4 {
                let at = usize::from(bytes.u16()) % mailbox.len();
                mailbox[at] ^= bytes.u8();
            }
        }
        let mut output = vec![0xee; usize::from(bytes.u8()) * 4 + 4096 * usize::from(kind >> 7)];
        if kind & 0x40 == 0 {
            output.resize(512.max(output.len()), 0xee);
        }
        match world.rig.nic().command(&mailbox, &mut output) {
            Err(error) => {
                if let Some(status) = output.first() {
                    assert_eq!(*status, error.status());
                    assert_ne!(*status, 0, "{error}");
                }
            }
            Ok(()) => {
                if let Some(number) = output.get(8..12) {
                    let number = u32::from_be_bytes(number.try_into().unwrap()) & 0xff_ffff;
                    numbers.push(number);
                    if let Some(mut qp) = created {
                        qp.qpn = number;
                        qps.push(qp);
                    }
                }
            }
        }
        world.judge();
    }
    world.run();
    world.rig.nic().end_of_run();
    world.judge();
}

/// Rings, doorbell records and registers: any WQE bytes, any doorbells, receives, arms, BlueFlame stores, on two connected
/// QPs and a shared CQ.
pub(crate) fn queues(data: &[u8]) {
    let mut bytes = Bytes(data);
    let mut world = World::new();
    let mode = bytes.u8();
    let cq = match mode & 3 {
        0 => world.rig.cq(3),
        1 => world.rig.cq(6),
        2 => world.rig.cq_oi(3, false),
        _ => world.rig.cq_oi(0, true),
    };
    world.allow(cq.ring, u64::from(cq.depth) * 64 + 64);
    let mut ends = vec![];
    for _ in 0..2 {
        let (qp, rq) = world.rig.qp_with_receives(&cq, 3);
        // Receives, send queue and record lie in three places.
        world.allow(rq.ring, 8 * 128);
        world.allow(qp.dbr, 64);
        ends.push((qp, rq));
    }
    let remotes = [ends[1].0.qpn, ends[0].0.qpn];
    for (end, remote) in ends.iter().zip(remotes) {
        world.rig.connect(end.0.qpn, &world.rig, remote, |qpc| {
            qpc.rnr_retry = mode >> 5;
            qpc.retry_count = 1;
        });
    }
    let mrs: Vec<TestMr> = (0..2).map(|_| world.rig.mr(8192, EVERY_RIGHT)).collect();
    for mr in &mrs {
        world.allow(mr.addr, 8192);
    }
    let piece = |bytes: &mut Bytes| {
        let choice = bytes.u8();
        let mr = &mrs[usize::from(choice & 1)];
        let piece = mr.piece(u64::from(bytes.u16() % 9000), u32::from(bytes.u16()));
        Piece {
            key: piece.key ^ u32::from(choice >> 7),
            ..piece
        }
    };
    for (kind, mut bytes) in bytes.actions() {
        let at = usize::from(kind >> 7);
        let (qp, rq) = &mut ends[at];
        match kind & 0xf {
            // Any bytes at any place of the send ring.
            0 => {
                let place = u64::from(bytes.u16()) % (qp.depth * 64);
                let some = bytes.take((qp.depth * 64 - place) as usize);
                world.rig.write(qp.ring + place, some);
            }
            // A WQE whose head is right, and whose rest is any bytes.
            1 | 2 => {
                let (opcode, flags, opmod) = (bytes.u8(), bytes.u8(), bytes.u8());
                let immediate = bytes.u32();
                let rest = bytes.take(1008);
                let mut segments = rest.to_vec();
                segments.resize(rest.len().next_multiple_of(16).min(15 * 16), 0);
                qp.post_with(
                    &world.rig,
                    |control| {
                        (control.flags, control.opmod) = (flags, opmod);
                        control.immediate = immediate;
                    },
                    WqeOpcode::from_code(opcode),
                    &segments,
                );
            }
            // A WQE that may well be legal.
            3..7 => {
                let opcode = [0x08, 0x09, 0x0a, 0x0b, 0x0c, 0x10, 0x11, 0x12, 0x00, 0x23]
                    [usize::from(bytes.u8()) % 10];
                let opcode = WqeOpcode::from_code(opcode);
                let flags = bytes.u8();
                let mut segments = vec![];
                if matches!(opcode.code(), 0x08 | 0x09 | 0x10 | 0x11 | 0x12) {
                    segments.extend(piece(&mut bytes).remote());
                }
                if opcode.is_atomic() {
                    segments.extend(segment_bytes(fetch_add(bytes.u64())));
                }
                for _ in 0..bytes.u8() % 5 {
                    segments.extend(piece(&mut bytes).local());
                }
                let immediate = mrs[0].keys.rkey;
                qp.post_with(
                    &world.rig,
                    |control| {
                        control.flags = flags;
                        control.immediate = immediate;
                    },
                    opcode,
                    &segments,
                );
            }
            7 => {
                let pieces: Vec<Piece> = (0..bytes.u8() % 5).map(|_| piece(&mut bytes)).collect();
                rq.post(&world.rig, &pieces);
            }
            8 => {
                let place = u64::from(bytes.u16()) % (8 * 64);
                let some = bytes.take((8 * 64 - place) as usize);
                world.rig.write(rq.ring + place, some);
            }
            // Records.
            9 => world.rig.write(qp.dbr, &bytes.array::<8>()),
            10 => world.rig.write(cq.dbr, &bytes.array::<8>()),
            // Registers.
            11 => {
                let offset = bytes.u64();
                let page = bytes.u32() % 4;
                let len = usize::from(bytes.u8() % 17);
                let _ = world.store(page, offset, bytes.take(len));
            }
            12 => {
                let value = warpverbs_wire::doorbell::doorbell(bytes.u64(), qp.qpn);
                let _ = world.store(qp.uar, 0x800, &value.to_le_bytes());
            }
            13 => {
                let command = (bytes.u32() & 0xf1ff_ffff).to_be_bytes();
                let arm = [command, cq.cqn.to_be_bytes()].concat();
                let _ = world.store(qp.uar, 0x20, &arm);
            }
            _ => {
                qp.dbr(&world.rig);
                let value = warpverbs_wire::doorbell::doorbell(qp.next, qp.qpn);
                let _ = world.store(qp.uar, 0x800, &value.to_le_bytes());
            }
        }
        if kind & 0x10 != 0 {
            world.run();
        } else if kind & 0x20 != 0 {
            world.rig.bus.lock().run_devices(1 + u64::from(kind >> 6));
        }
    }
    world.run();
    world.rig.nic().end_of_run();
    world.judge();
}

/// A link whose other end is a script.
#[derive(Clone, Default)]
struct Script(Arc<Mutex<VecDeque<Vec<u8>>>>);

impl Link for Script {
    fn send(&mut self, _: u64, _: &[u8]) {}
    fn receive(&mut self) -> Option<Vec<u8>> {
        self.0.lock().unwrap().pop_front()
    }
    fn wait(&mut self, now: u64, deadline: Option<u64>) -> Option<u64> {
        deadline.map(|deadline| deadline.max(now))
    }
    fn resume(&mut self) {}
}

/// A peer's number and addresses.
const PEER_QPN: u32 = 0x77;
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const PEER_IPV4: [u8; 4] = [10, 0, 0, 2];
const OWN_IPV4: [u8; 4] = [10, 0, 0, 1];
/// What the rig's transitions set.
const PSN: u32 = 0xff_fffe;

/// Frames: any bytes, any bytes with a right ICRC, and packets of every kind around what a connected QP expects, while it has
/// requests outstanding.
pub(crate) fn frames(data: &[u8]) {
    let mut bytes = Bytes(data);
    let mut world = World::new();
    let mode = bytes.u8();
    let cq = world.rig.cq_oi(6, false);
    world.allow(cq.ring, 64 * 64 + 64);
    let (mut qp, mut rq) = world.rig.qp_with_receives(&cq, 4);
    world.allow(rq.ring, 16 * 128);
    world.allow(qp.dbr, 64);
    let mr = world.rig.mr(16384, EVERY_RIGHT);
    world.allow(mr.addr, 16384);
    let script = Script::default();
    world.rig.nic().connect(script.clone());
    let peer = Rig::with(NicConfig {
        mac: PEER_MAC,
        ..NicConfig::default()
    });
    world.rig.connect(qp.qpn, &peer, PEER_QPN, |qpc| {
        qpc.retry_count = mode & 7;
        qpc.rnr_retry = (mode >> 3) & 7;
    });
    for _ in 0..3 {
        rq.post(&world.rig, &[mr.piece(0, 600), mr.piece(4096, 1500)]);
    }
    // Requests of its own, of every kind whose answers differ.
    let request = |opcode, extra: Vec<u8>, local: Piece| (opcode, extra, local);
    for (opcode, extra, local) in [
        request(WqeOpcode::RdmaWrite, vec![], mr.piece(0, 3000)),
        request(WqeOpcode::RdmaRead, vec![], mr.piece(8192, 3000)),
        request(
            WqeOpcode::AtomicFetchAdd,
            segment_bytes(fetch_add(1)).to_vec(),
            mr.piece(16376, 8),
        ),
        request(WqeOpcode::RdmaRead, vec![], mr.piece(8192, 0)),
        request(WqeOpcode::RdmaWrite, vec![], mr.piece(0, 10)),
    ] {
        let segments = [mr.piece(64, 0).remote(), extra, local.local()].concat();
        qp.post(&world.rig, opcode, SIGNALLED, &segments);
    }
    qp.ring(&world.rig);
    if mode & 0x40 != 0 {
        world.rig.bus.lock().run_devices(40);
    }
    for (kind, mut bytes) in bytes.actions() {
        let frame = match kind & 7 {
            0 => bytes.take(1020).to_vec(),
            1 => sealed(bytes.take(1020).to_vec()),
            2 => {
                rq.post(&world.rig, &[mr.piece(0, u32::from(bytes.u16()))]);
                continue;
            }
            _ => packet(&mut bytes, &qp, mr),
        };
        script.0.lock().unwrap().push_back(frame);
        if kind & 8 != 0 {
            let steps = 1 + u64::from(kind >> 3);
            world.rig.bus.lock().run_devices(steps);
        }
    }
    world.run();
    world.rig.nic().end_of_run();
    world.judge();
}

/// The same bytes with the ICRC of an Ethernet frame in the last four.
fn sealed(mut frame: Vec<u8>) -> Vec<u8> {
    if let Some(end) = frame.len().checked_sub(4)
        && let Some(packet) = frame.get(14..end)
        && let Some(value) = icrc(packet)
    {
        frame[end..].copy_from_slice(&value.to_le_bytes());
    }
    frame
}

/// A frame that is right as a frame.
fn packet(bytes: &mut Bytes, qp: &TestQp, mr: TestMr) -> Vec<u8> {
    let opcode = Opcode::from_code(bytes.u8());
    let flags = bytes.u8();
    // Around what is expected, or anything.
    let psn = match flags & 3 {
        0 => bytes.u32() & 0xff_ffff,
        _ => (PSN.wrapping_add(u32::from(bytes.u8())).wrapping_sub(8)) & 0xff_ffff,
    };
    let address = mr.iova.wrapping_add(u64::from(bytes.u16()));
    let key = mr.keys.rkey ^ u32::from(flags & 4 != 0);
    let headers = opcode.headers();
    let has =
        |which: fn(&warpverbs_wire::roce::Headers) -> bool| headers.as_ref().is_some_and(which);
    let reth = Reth {
        address,
        key,
        length: match flags & 8 {
            0 => u32::from(bytes.u16()),
            _ => bytes.u32(),
        },
    };
    let extended = Extended {
        reth: has(|h| h.reth).then_some(reth),
        atomic: has(|h| h.atomic).then(|| AtomicEth {
            address,
            key,
            swap_or_add: bytes.u64(),
            compare: bytes.u64(),
        }),
        masked_atomic: has(|h| h.masked_atomic).then(|| MaskedAtomicEth {
            address,
            key,
            length: u32::from(bytes.u8()),
            swap_or_add: bytes.u64(),
            compare: bytes.u64(),
            swap_mask_or_boundary: bytes.u64(),
            compare_mask: bytes.u64(),
        }),
        aeth: has(|h| h.aeth).then(|| Aeth {
            syndrome: Syndrome::from_code(bytes.u8()),
            msn: bytes.u32() & 0xff_ffff,
        }),
        atomic_ack: has(|h| h.atomic_ack).then(|| AtomicAckEth {
            original: bytes.u64(),
        }),
        immediate: has(|h| h.immediate).then(|| ImmDt {
            immediate: bytes.u32(),
        }),
        invalidate: has(|h| h.invalidate).then_some(Ieth { key }),
    };
    let length = match flags >> 6 {
        0 => 0,
        1 => 1024,
        2 => usize::from(bytes.u8()),
        _ => usize::from(bytes.u16() % 5000),
    };
    let payload = vec![bytes.u8(); length];
    let frame = Frame {
        ethernet: Ethernet {
            destination: [2, 0, 0, 0, 0, 1],
            source: PEER_MAC,
            ..Ethernet::default()
        },
        vlan: None,
        ip: Ip::between(gid_of_ipv4(PEER_IPV4), gid_of_ipv4(OWN_IPV4), 64),
        source_port: 0xc001,
        bth: Bth {
            opcode,
            pkey: 0xffff,
            destination_qp: qp.qpn,
            ack_request: flags & 16 != 0,
            solicited: flags & 32 != 0,
            psn,
            ..Bth::default()
        },
        extended,
        payload: if has(|h| h.payload) { &payload } else { &[] },
    };
    let mut out = vec![0; frame.len()];
    match frame.emit(&mut out) {
        Ok(_) => out,
        Err(_) => payload,
    }
}
