//! The real driver over the real libibverbs and libmlx5, with the simulated NIC behind the kernel's ABI in this process;
//! and the same calls over the simulated driver: the answers agree.
//!
//! Needs rdma-core (Debian: ibverbs-providers). Where it is missing the tests say so and pass, unless
//! `WARPVERBS_REQUIRE_RDMA_CORE` is set, as CI does.
#![cfg(target_os = "linux")]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};

use warpverbs::driver::fault::Faults;
use warpverbs::driver::mlx5::Mlx5;
use warpverbs::driver::sim::World;
use warpverbs::driver::{
    Access, DriverError, DriverErrorKind, GidKind, LinkLayer, MemoryRegion, MrInfo, Nic, NicHandle,
    PdInfo, UarInfo, UarKind, UmemInfo,
};
use warpverbs::wire::cqe::{Completion, is_new};
use warpverbs::wire::doorbell::{DBR_SEND, cq_dbr_word, dbr_word, doorbell};
use warpverbs::wire::eqe::{Event, EventType};
use warpverbs::wire::prm::ads::Ads;
use warpverbs::wire::prm::cqc::Cqc;
use warpverbs::wire::prm::hca_cap::GeneralCaps;
use warpverbs::wire::prm::qpc::{Mtu, OptParam, PathMigration, QpState, Qpc, RqType};
use warpverbs::wire::prm::query_hca_cap::Query;
use warpverbs::wire::prm::{
    Command, create_cq, create_qp, init2rtr_qp, qp_2err, query_qp, rst2init_qp, rtr2rts_qp,
};
use warpverbs::wire::wqe::{Control, DataPointer, Opcode, RemoteAddress, SIGNALLED};
// Its names come before libc's: libibverbs finds the simulated NIC.
use warpverbs_sim as _;

use std::sync::Arc;
use warpverbs::{
    Bandwidth, Context, GpuContext, MemoryPath, Module, Mr, Pd, QpConfig, QueuePair, Stream,
};

type Result<T> = std::result::Result<T, DriverError>;

/// Whether rdma-core is there.
fn rdma_core() -> bool {
    match Mlx5::devices() {
        Ok(_) => true,
        Err(error) => {
            let required = std::env::var_os("WARPVERBS_REQUIRE_RDMA_CORE").is_some();
            assert!(!required, "{error}");
            eprintln!("SKIPPED: {error}");
            false
        }
    }
}

/// Memory of whole pages, words that a NIC shares.
struct Block(&'static [AtomicU64]);

impl Block {
    fn new(pages: usize) -> Self {
        #[repr(align(4096))]
        struct Page([AtomicU64; 512]);
        let pages: Vec<Page> = (0..pages)
            .map(|_| Page([const { AtomicU64::new(0) }; 512]))
            .collect();
        let words = Box::leak(pages.into_boxed_slice())
            .iter()
            .flat_map(|page| &page.0);
        // The pages follow each other: their words are one slice.
        let first = words.clone().next().unwrap();
        let count = words.count();
        // SAFETY: `count` words follow each other from the first, and live for `'static`.
        Self(unsafe { std::slice::from_raw_parts(first, count) })
    }

    fn addr(&self) -> u64 {
        self.0.as_ptr() as u64
    }

    fn region(&self) -> MemoryRegion {
        MemoryRegion::Address {
            addr: self.addr(),
            len: self.0.len() as u64 * 8,
        }
    }

    fn put(&self, offset: usize, bytes: &[u8]) {
        for (at, word) in bytes.chunks_exact(8).enumerate() {
            let word = u64::from_ne_bytes(word.try_into().unwrap());
            self.0[offset / 8 + at].store(word, Ordering::Relaxed);
        }
    }

    fn get(&self, offset: usize, len: usize) -> Vec<u8> {
        (offset / 8..(offset + len) / 8)
            .flat_map(|at| self.0[at].load(Ordering::Relaxed).to_ne_bytes())
            .collect()
    }

    /// The 4 bytes at `offset`.
    fn half(&self, offset: usize) -> &AtomicU32 {
        let word = self.0[offset / 8].as_ptr().cast::<u32>();
        // SAFETY: it is half a word that is only accessed atomically.
        unsafe { AtomicU32::from_ptr(word.add(offset % 8 / 4)) }
    }
}

fn execute<C: Command>(
    command: &C,
    run: impl FnOnce(&[u8], &mut [u8]) -> Result<()>,
) -> Result<C::Out> {
    let input = command.encode().unwrap();
    let mut output = C::reply();
    run(input.as_ref(), output.as_mut())?;
    Ok(C::decode(output.as_ref()).unwrap())
}

fn create<C: Command>(nic: &dyn Nic, command: &C) -> Result<(NicHandle, C::Out)> {
    let mut handle = None;
    let out = execute(command, |input, output| {
        handle = Some(nic.create(input, output)?);
        Ok(())
    })?;
    Ok((handle.unwrap(), out))
}

/// Bytes of a ring; its doorbell record follows.
const RING: usize = 4096;

struct Queue {
    handle: NicHandle,
    number: u32,
    block: Block,
    umem: UmemInfo,
    next: u64,
}

/// A NIC with what queues need.
struct Rig<'a> {
    nic: &'a dyn Nic,
    pd: PdInfo,
    uar: UarInfo,
    memory: Block,
    mr: MrInfo,
}

impl<'a> Rig<'a> {
    fn new(nic: &'a dyn Nic) -> Self {
        let pd = nic.alloc_pd().unwrap();
        let uar = nic.alloc_uar(UarKind::NonCachedDedicated).unwrap();
        assert_eq!((uar.page_len, uar.doorbell_offset % 0x100), (4096, 0));
        let memory = Block::new(4);
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        // SAFETY: the memory lives for ever and is accessed atomically.
        let mr = unsafe { nic.reg_mr(pd.handle, memory.region(), rights) }.unwrap();
        Self {
            nic,
            pd,
            uar,
            memory,
            mr,
        }
    }

    fn umem(&self, block: &Block) -> UmemInfo {
        // SAFETY: as above.
        unsafe {
            self.nic
                .reg_umem(block.region(), Access::LOCAL_WRITE, 1 << 12)
        }
        .unwrap()
    }

    fn cq(&self) -> Queue {
        let block = Block::new(2);
        block.put(0, &[0xff; RING]);
        let umem = self.umem(&block);
        let command = create_cq::In {
            cq_context: Cqc {
                log_cq_size: 6,
                uar_page: self.uar.page_id,
                c_eqn: self.nic.query_eqn(0).unwrap(),
                dbr_umem_valid: true,
                dbr_umem_id: umem.id,
                dbr_addr: RING as u64,
                ..Cqc::default()
            },
            cq_umem_id: umem.id,
            cq_umem_valid: true,
            cq_umem_offset: 0,
        };
        let (handle, out) = create(self.nic, &command).unwrap();
        Queue {
            handle,
            number: out.cqn,
            block,
            umem,
            next: 0,
        }
    }

    fn qp_command(&self, cq: &Queue, umem: UmemInfo) -> create_qp::In {
        create_qp::In {
            qpc: Qpc {
                pd: self.pd.pdn,
                cqn_snd: cq.number,
                cqn_rcv: cq.number,
                uar_page: self.uar.page_id,
                log_sq_size: 6,
                rq_type: RqType::ZeroSize,
                user_index: 0x12_3456,
                dbr_umem_valid: true,
                dbr_umem_id: umem.id,
                dbr_addr: RING as u64,
                ..Qpc::default()
            },
            wq_umem_id: umem.id,
            wq_umem_valid: true,
            ..create_qp::In::default()
        }
    }

    fn qp(&self, cq: &Queue) -> Queue {
        let block = Block::new(2);
        let umem = self.umem(&block);
        let (handle, out) = create(self.nic, &self.qp_command(cq, umem)).unwrap();
        Queue {
            handle,
            number: out.qpn,
            block,
            umem,
            next: 0,
        }
    }

    fn modify<C: Command>(&self, object: NicHandle, command: &C) -> Result<C::Out> {
        execute(command, |input, output| {
            self.nic.modify(object, input, output)
        })
    }

    fn connect(&self, qp: &Queue, peer: &Queue) {
        let index = 3;
        let gid = self.nic.query_gid(1, index).unwrap().unwrap();
        assert_eq!(gid.kind, GidKind::RoceV2);
        let rmac = self
            .nic
            .resolve_mac(self.pd.handle, 1, index, gid.gid)
            .unwrap();
        let qpn = qp.number;
        let port = Ads {
            vhca_port_num: 1,
            ..Ads::default()
        };
        let init = rst2init_qp::In {
            qpn,
            qpc: Qpc {
                pm_state: PathMigration::Migrated,
                rwe: true,
                primary_address_path: port,
                ..Qpc::default()
            },
            ..rst2init_qp::In::default()
        };
        let rtr = init2rtr_qp::In {
            qpn,
            opt_param_mask: OptParam::RWE,
            qpc: Qpc {
                mtu: Mtu::Bytes1024,
                log_msg_max: 30,
                remote_qpn: peer.number,
                next_rcv_psn: 0xff_fffe,
                rwe: true,
                primary_address_path: Ads {
                    src_addr_index: index as u8,
                    rgid_rip: gid.gid,
                    rmac,
                    hop_limit: 64,
                    ..Ads::default()
                },
                ..Qpc::default()
            },
            ..init2rtr_qp::In::default()
        };
        let rts = rtr2rts_qp::In {
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
        };
        self.modify(qp.handle, &init).unwrap();
        self.modify(qp.handle, &rtr).unwrap();
        self.modify(qp.handle, &rts).unwrap();
    }

    fn state(&self, qp: &Queue) -> QpState {
        let command = query_qp::In {
            qpn: qp.number,
            ..query_qp::In::default()
        };
        execute(&command, |input, output| {
            self.nic.query(qp.handle, input, output)
        })
        .unwrap()
        .qpc
        .state
    }

    /// Posts a WQE of one block and rings the doorbell.
    fn post(&self, qp: &mut Queue, opcode: Opcode, segments: &[[u8; 16]]) {
        let control = Control {
            index: qp.next as u16,
            opcode,
            qpn: qp.number,
            ds: 1 + segments.len() as u8,
            flags: SIGNALLED,
            ..Control::default()
        };
        let slot = (qp.next as usize % 64) * 64;
        qp.block.put(slot, &control.emit());
        for (at, segment) in segments.iter().enumerate() {
            qp.block.put(slot + 16 + at * 16, segment);
        }
        qp.next += 1;
        fence(Ordering::Release);
        qp.block
            .half(RING + DBR_SEND)
            .store(dbr_word(qp.next), Ordering::Relaxed);
        let value = doorbell(qp.next, qp.number).to_le_bytes();
        self.nic.ring_doorbell(self.uar.handle, value).unwrap();
    }

    fn write(&self, qp: &mut Queue, to: u64, rkey: u32, len: u32) {
        let remote = RemoteAddress {
            address: to,
            key: rkey,
        };
        let data = DataPointer {
            byte_count: len,
            key: self.mr.lkey,
            address: self.memory.addr(),
        };
        self.post(qp, Opcode::RdmaWrite, &[remote.emit(), data.emit()]);
    }

    fn poll(&self, cq: &mut Queue) -> Completion {
        let slot = (cq.next as usize % 64) * 64;
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let tail = cq.block.0[slot / 8 + 7]
                .load(Ordering::Acquire)
                .to_ne_bytes();
            if is_new(tail[7], cq.next, 64) {
                break;
            }
            assert!(Instant::now() < until, "no completion");
            thread::yield_now();
        }
        let bytes = cq.block.get(slot, 64);
        cq.next += 1;
        cq.block
            .half(RING)
            .store(cq_dbr_word(cq.next), Ordering::Release);
        Completion::parse(&bytes).unwrap()
    }

    fn destroy(&self, queue: Queue) {
        self.nic.destroy(queue.handle).unwrap();
        self.nic.dereg_umem(queue.umem.handle).unwrap();
    }

    fn close(self) {
        self.nic.free_uar(self.uar.handle).unwrap();
        self.nic.dereg_mr(self.mr.handle).unwrap();
        self.nic.dealloc_pd(self.pd.handle).unwrap();
    }
}

/// What a completion says, but for numbers that differ from run to run.
fn told(completion: &Completion) -> String {
    match completion {
        Completion::Pending => "pending".into(),
        Completion::Done(cqe) => format!("{:?} of {}", cqe.opcode, cqe.wqe_counter),
        Completion::Failed(cqe) => format!(
            "{:?} of {}: {:?} {:#x}",
            cqe.opcode, cqe.wqe_counter, cqe.syndrome, cqe.vendor_syndrome
        ),
    }
}

fn kind<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => "done".into(),
        Err(error) => format!("{:?}", error.kind),
    }
}

/// A life of two QPs; everything that was answered.
fn life(nic: &dyn Nic) -> Vec<String> {
    let mut answers = Vec::new();
    let caps = execute(&Query::<GeneralCaps>::new(), |input, output| {
        nic.command(input, output)
    });
    answers.push(format!("{:?}", caps.unwrap()));
    let port = nic.query_port(1).unwrap();
    assert_eq!((port.active, port.link_layer), (true, LinkLayer::Ethernet));
    answers.push(format!("{port:?}"));
    answers.push(kind(nic.query_port(2)));
    let gids: Vec<_> = (0..port.gids)
        .map(|index| nic.query_gid(1, index).unwrap())
        .collect();
    answers.push(format!("{gids:?}"));
    let rig = Rig::new(nic);
    let mut cq = rig.cq();
    let (mut a, mut b) = (rig.qp(&cq), rig.qp(&cq));
    rig.connect(&a, &b);
    rig.connect(&b, &a);
    answers.push(format!("{:?}", rig.state(&a)));

    rig.post(&mut a, Opcode::Nop, &[]);
    answers.push(told(&rig.poll(&mut cq)));
    let bytes: Vec<u8> = (0..4096u32).map(|n| n as u8 ^ 0x5a).collect();
    rig.memory.put(0, &bytes);
    for round in 0..100u64 {
        let to = rig.memory.addr() + 8192 + round * 8;
        rig.write(&mut a, to, rig.mr.rkey, 4096);
        answers.push(told(&rig.poll(&mut cq)));
    }
    fence(Ordering::Acquire);
    assert_eq!(rig.memory.get(8192 + 99 * 8, 4096), bytes, "the last write");
    // Both ends at once, on one page.
    for _ in 0..20 {
        let (to, rkey) = (rig.memory.addr() + 8192, rig.mr.rkey);
        rig.write(&mut a, to, rkey, 64);
        rig.write(&mut b, to + 4096, rkey, 64);
        rig.poll(&mut cq);
        rig.poll(&mut cq);
    }

    // What is in use is not taken away.
    answers.push(kind(nic.destroy(cq.handle)));
    answers.push(kind(nic.dereg_umem(a.umem.handle)));
    answers.push(kind(nic.dealloc_pd(rig.pd.handle)));
    // A mailbox that the firmware refuses: status and syndrome come through.
    let mut wrong = rig.qp_command(&cq, a.umem);
    wrong.qpc.log_sq_size = 15;
    answers.push(kind(create(nic, &wrong).map(|_| ())));
    // A key that is nobody's.
    rig.write(&mut a, rig.memory.addr(), 0x00ff_ff00, 64);
    answers.push(told(&rig.poll(&mut cq)));
    answers.push(format!("{:?}", rig.state(&a)));
    rig.modify(b.handle, &qp_2err::In { qpn: b.number })
        .unwrap();
    answers.push(format!("{:?}", rig.state(&b)));

    // Nothing there, and not an object of that kind.
    answers.push(kind(nic.destroy(NicHandle(1 << 40))));
    answers.push(kind(nic.free_uar(rig.pd.handle)));
    // SAFETY: a region of no memory is refused.
    answers.push(kind(unsafe {
        let region = MemoryRegion::Address {
            addr: 4096,
            len: u64::MAX / 2,
        };
        nic.reg_mr(rig.pd.handle, region, Access::LOCAL_WRITE)
    }));
    // SAFETY: as above: rights that need another.
    answers.push(kind(unsafe {
        nic.reg_mr(rig.pd.handle, rig.memory.region(), Access::REMOTE_WRITE)
    }));
    rig.destroy(a);
    rig.destroy(b);
    rig.destroy(cq);
    rig.close();
    answers
}

#[test]
fn the_real_driver_answers_as_the_simulated_one() {
    if !rdma_core() {
        return;
    }
    let world = World::builder().build_on_host().unwrap();
    let expected = life(&*world.nic());
    assert!(world.live().is_empty(), "{:?}", world.live());
    let nic = Mlx5::open("mlx5_0").unwrap();
    let found = life(&nic);
    assert_eq!(found, expected);
}

#[test]
fn what_cannot_be_opened_says_what_to_do() {
    if !rdma_core() {
        return;
    }
    let error = Mlx5::open("mlx5_9").unwrap_err();
    assert_eq!(error.kind, DriverErrorKind::NotFound);
    assert!(error.text.contains("mlx5_0"), "{error}");
}

#[test]
fn every_kind_of_doorbell_page_is_to_be_had() {
    if !rdma_core() {
        return;
    }
    let nic = Mlx5::open("mlx5_0").unwrap();
    // rdma-core 44 knows no dedicated pages: one that is not cached stands in.
    for kind in [
        UarKind::NonCachedDedicated,
        UarKind::NonCached,
        UarKind::BlueFlame,
    ] {
        let uar = nic.alloc_uar(kind).unwrap();
        assert_eq!((uar.page % 4096, uar.doorbell_offset % 0x100), (0, 0));
        nic.free_uar(uar.handle).unwrap();
        let again = nic.free_uar(uar.handle).unwrap_err();
        assert_eq!(again.kind, DriverErrorKind::NotFound);
    }
}

#[test]
fn errors_of_queues_are_events() {
    if !rdma_core() {
        return;
    }
    let nic = Mlx5::open("mlx5_0").unwrap();
    assert_eq!(nic.take_events().unwrap(), []);
    let rig = Rig::new(&nic);
    let mut cq = rig.cq();
    let (mut a, b) = (rig.qp(&cq), rig.qp(&cq));
    rig.connect(&a, &b);
    rig.connect(&b, &a);
    rig.write(&mut a, rig.memory.addr(), 0x00ff_ff00, 64);
    assert!(matches!(rig.poll(&mut cq), Completion::Failed(_)));
    let until = Instant::now() + Duration::from_secs(30);
    let event = loop {
        match nic.take_events().unwrap().as_slice() {
            [] => assert!(Instant::now() < until, "no event"),
            [event] => break *event,
            more => panic!("{more:?}"),
        }
        thread::yield_now();
    };
    // The responder refused the access (IBA 11.6.3.1).
    assert_eq!(
        event,
        Event::Queue {
            event: EventType::WqAccessError,
            number: b.number
        }
    );
    rig.destroy(a);
    rig.destroy(b);
    rig.destroy(cq);
    rig.close();
}

/// Runs a test of this file again, with a variable set before anything is opened.
fn again(test: &str, variable: (&str, &str)) {
    again_with(test, &[variable]);
}

fn again_with(test: &str, variables: &[(&str, &str)]) {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        // Its own tree.
        .env_remove("SYSFS_PATH")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let ran = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(ran.contains("1 passed"), "{ran}");
}

const REFUSE: &str = "WARPVERBS_SIM_REFUSE";

/// What the simulated NIC found wrong, once there is something.
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
fn findings(count: usize) -> Vec<String> {
    let until = Instant::now() + Duration::from_secs(30);
    let mut all = Vec::new();
    while all.len() < count {
        all.extend(warpverbs_sim::take_findings());
        assert!(Instant::now() < until, "{count} expected: {all:#?}");
        thread::yield_now();
    }
    all
}

#[test]
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
fn every_store_to_a_doorbell_page_is_seen() {
    if !rdma_core() {
        return;
    }
    again(
        "with_every_store_seen",
        ("WARPVERBS_SIM_DOORBELLS", "conformance"),
    );
}

#[test]
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
#[ignore = "run by another test, in conformance mode"]
fn with_every_store_seen() {
    let world = World::builder().build_on_host().unwrap();
    let expected = life(&*world.nic());
    let nic = Mlx5::open("mlx5_0").unwrap();
    assert_eq!(life(&nic), expected);
    assert_eq!(warpverbs_sim::take_findings(), [] as [&str; 0]);

    // Doorbells that are wrong are seen as a NIC sees them, and are none.
    let rig = Rig::new(&nic);
    let other = nic.alloc_uar(UarKind::BlueFlame).unwrap();
    assert_ne!(other.page_id, rig.uar.page_id);
    let mut cq = rig.cq();
    let (mut a, b) = (rig.qp(&cq), rig.qp(&cq));
    rig.connect(&a, &b);
    rig.connect(&b, &a);
    let control = Control {
        opcode: Opcode::Nop,
        qpn: a.number,
        ds: 1,
        flags: SIGNALLED,
        ..Control::default()
    };
    a.block.put(0, &control.emit());
    a.block
        .half(RING + DBR_SEND)
        .store(dbr_word(1), Ordering::Release);
    let value = u64::from_le_bytes(doorbell(1, a.number).to_le_bytes());
    let register = (rig.uar.page + u64::from(rig.uar.doorbell_offset)) as *mut u64;
    // SAFETY: stores to pages that the driver has mapped.
    unsafe {
        register.cast::<u32>().write_volatile(value as u32);
        register.byte_add(4).write_unaligned(value);
        ((rig.uar.page + 0x50) as *mut u64).write_volatile(value);
        ((other.page + 0x800) as *mut u64).write_volatile(value);
    }
    let found = findings(4);
    let (page, at) = (rig.uar.page_id, rig.uar.doorbell_offset);
    for (line, text) in found.iter().zip([
        format!("doorbell-refused: UAR {page:#x}: a store of 4 bytes at {at:#x}"),
        format!(
            "doorbell-refused: UAR {page:#x}: a store of 8 bytes at {:#x}",
            at + 4
        ),
        format!("doorbell-refused: UAR {page:#x}: a store of 8 bytes at 0x50"),
        format!("doorbell-wrong-page: QP {:#x}", a.number),
    ]) {
        assert!(line.contains(&text), "{text}: {line}");
    }
    thread::sleep(Duration::from_millis(20));
    let owner = cq.block.0[7].load(Ordering::Acquire).to_ne_bytes();
    assert!(!is_new(owner[7], 0, 64), "nobody rang");
    // SAFETY: as above.
    unsafe { register.write_volatile(value) };
    assert_eq!(told(&rig.poll(&mut cq)), "Requester of 0");
    a.next = 1;
    rig.destroy(a);
    rig.destroy(b);
    rig.destroy(cq);
    nic.free_uar(other.handle).unwrap();
    rig.close();
    assert_eq!(warpverbs_sim::take_findings(), [] as [&str; 0]);
}

#[test]
fn what_a_machine_lacks_is_a_typed_error_with_its_cure() {
    if !rdma_core() {
        return;
    }
    again("without_devx", (REFUSE, "devx"));
    again("without_pages_that_are_not_cached", (REFUSE, "nc-uar"));
    again("without_dmabufs", (REFUSE, "dmabuf"));
    again(
        "with_little_memory_to_pin",
        ("WARPVERBS_SIM_MEMLOCK", "65536"),
    );
}

/// A folder that is removed.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("mlx5-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.0.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Devices of sysfs, each by name and PCI device.
    fn devices(&self, devices: &[(&str, &str)]) {
        self.write("class/infiniband_verbs/abi_version", "6\n");
        for (index, (name, part)) in devices.iter().enumerate() {
            let verbs = format!("class/infiniband_verbs/uverbs{index}");
            self.write(&format!("{verbs}/ibdev"), &format!("{name}\n"));
            self.write(&format!("{verbs}/dev"), "1:3\n");
            // What mlx4's provider takes, and mlx5's.
            let abi = if *part == "1003" { "4\n" } else { "1\n" };
            self.write(&format!("{verbs}/abi_version"), abi);
            let device = format!("class/infiniband/{name}");
            self.write(&format!("{device}/node_type"), "1: CA\n");
            let alias = format!("pci:v000015B3d0000{part}sv000015B3sd00000041bc02sc00i00\n");
            self.write(&format!("{device}/device/modalias"), &alias);
            self.write(&format!("{verbs}/device/modalias"), &alias);
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const FOUND: &str = "WARPVERBS_TEST_EXPECTS";

#[test]
fn rdma_core_that_is_missing_or_too_old_says_so() {
    // What stands in the place of each library: no library, and one that knows nothing of RDMA.
    let folder = Folder::new("core");
    let place = |library: &str, old: bool| {
        let path = folder.0.join(library);
        let _ = std::fs::remove_file(&path);
        if !old {
            return std::fs::write(&path, "").unwrap();
        }
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc = maps
            .lines()
            .filter_map(|line| line.split_whitespace().nth(5))
            .find(|path| path.contains("/libc.so") || path.contains("/libc-"))
            .unwrap();
        std::os::unix::fs::symlink(libc, &path).unwrap();
    };
    for library in ["libibverbs.so.1", "libmlx5.so.1"] {
        // The second library is looked at only where the first is there.
        if library == "libmlx5.so.1" && !rdma_core() {
            continue;
        }
        for old in [false, true] {
            place(library, old);
            let expected = match (library, old) {
                // Which libmlx5 needs in its own version.
                ("libibverbs.so.1", true) => "libmlx5.so.1 cannot be loaded".to_owned(),
                (_, true) => format!("{library} has no"),
                (_, false) => format!("{library} cannot be loaded"),
            };
            again_with(
                "without_rdma_core",
                &[("LD_LIBRARY_PATH", folder.path()), (FOUND, &expected)],
            );
        }
        std::fs::remove_file(folder.0.join(library)).unwrap();
    }
}

#[test]
#[ignore = "run by another test, with libraries that are none"]
fn without_rdma_core() {
    let expected = std::env::var(FOUND).unwrap();
    for error in [
        Mlx5::open("mlx5_0").unwrap_err(),
        Mlx5::devices().unwrap_err(),
    ] {
        assert_eq!(error.kind, DriverErrorKind::Unsupported);
        assert!(error.text.contains(&expected), "{error}");
        assert!(error.text.contains("install rdma-core"), "{error}");
    }
}

#[test]
fn devices_that_are_not_mlx5_or_have_one_name_are_refused() {
    if !rdma_core() {
        return;
    }
    let folder = Folder::new("devices");
    // A ConnectX-3, whose provider is rdma-core's mlx4.
    folder.devices(&[("mlx4_0", "1003")]);
    again_with(
        "with_another_vendors_device",
        &[("SYSFS_PATH", folder.path())],
    );
    let folder = Folder::new("twins");
    folder.devices(&[("mlx5_7", "1021"), ("mlx5_7", "1021")]);
    again_with(
        "with_two_devices_of_one_name",
        &[("SYSFS_PATH", folder.path()), ("WARPVERBS_SIM_NICS", "2")],
    );
    let folder = Folder::new("none");
    folder.devices(&[]);
    again_with("without_any_device", &[("SYSFS_PATH", folder.path())]);
}

#[test]
#[ignore = "run by another test, with a device of mlx4"]
fn with_another_vendors_device() {
    assert_eq!(Mlx5::devices().unwrap(), ["mlx4_0"]);
    let error = Mlx5::open("mlx4_0").unwrap_err();
    assert_eq!(error.kind, DriverErrorKind::Unsupported);
    assert!(
        error.text.contains("is not an mlx5 device: choose"),
        "{error}"
    );
}

#[test]
#[ignore = "run by another test, with two devices of one name"]
fn with_two_devices_of_one_name() {
    assert_eq!(Mlx5::devices().unwrap(), ["mlx5_7", "mlx5_7"]);
    let error = Mlx5::open("mlx5_7").unwrap_err();
    assert_eq!(error.kind, DriverErrorKind::InvalidArgument);
    assert!(error.text.contains("2 devices") && error.text.contains("rdma dev set"));
}

#[test]
#[ignore = "run by another test, without devices"]
fn without_any_device() {
    let error = Mlx5::open("mlx5_0").unwrap_err();
    assert_eq!(error.kind, DriverErrorKind::NotFound);
    assert!(error.text.contains("there is no RDMA device") && error.text.contains("sim-env"));
}

#[test]
#[ignore = "run by another test, with DevX refused"]
fn without_devx() {
    let error = Mlx5::open("mlx5_0").unwrap_err();
    assert_eq!(error.kind, DriverErrorKind::Os(libc::EPERM));
    assert!(error.text.contains("DevX") && error.text.contains("mlx5_ib"));
}

#[test]
#[ignore = "run by another test, with these pages refused"]
fn without_pages_that_are_not_cached() {
    let nic = Mlx5::open("mlx5_0").unwrap();
    // Verbs have no page for their queues: nobody can tell the port's counter set, and QPs work without.
    let error = nic.port_counter_set(1).unwrap_err();
    assert_eq!(error.kind, DriverErrorKind::Unsupported);
    let rig = Rig::new(&nic);
    // A page for BlueFlame stands in, and rings.
    let mut cq = rig.cq();
    let (mut a, b) = (rig.qp(&cq), rig.qp(&cq));
    rig.connect(&a, &b);
    rig.connect(&b, &a);
    rig.post(&mut a, Opcode::Nop, &[]);
    assert!(matches!(rig.poll(&mut cq), Completion::Done(_)));
    rig.destroy(a);
    rig.destroy(b);
    rig.destroy(cq);
    rig.close();
}

/// A file of memory, which the simulated NIC takes for a dmabuf.
fn memory_file(len: i64) -> i32 {
    // SAFETY: it reads a string.
    let fd = unsafe { libc::memfd_create(c"dmabuf".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: it takes numbers.
    assert_eq!(unsafe { libc::ftruncate(fd, len) }, 0);
    fd
}

fn dmabuf(fd: i32, offset: u64, len: u64) -> MemoryRegion {
    MemoryRegion::Dmabuf {
        fd,
        offset,
        len,
        iova: 0x10_0000 + offset,
        data_direct: false,
    }
}

#[test]
fn dmabufs_are_registered_as_far_as_they_reach() {
    if !rdma_core() {
        return;
    }
    let nic = Mlx5::open("mlx5_0").unwrap();
    let pd = nic.alloc_pd().unwrap();
    let fd = memory_file(16384);
    let register = |region| {
        // SAFETY: nobody holds a reference to memory of the file.
        unsafe { nic.reg_mr(pd.handle, region, Access::LOCAL_WRITE) }
    };
    let mr = register(dmabuf(fd, 4096, 8192)).unwrap();
    nic.dereg_mr(mr.handle).unwrap();
    for bad in [dmabuf(fd, 12288, 8192), dmabuf(fd, 0, 0)] {
        let error = register(bad).unwrap_err();
        assert_eq!(error.kind, DriverErrorKind::InvalidArgument);
    }
    // No dmabuf at all.
    let null = std::fs::File::open("/dev/null").unwrap();
    let null = dmabuf(std::os::fd::AsRawFd::as_raw_fd(&null), 0, 4096);
    assert!(register(null).is_err());
    // SAFETY: as above.
    let umem = unsafe { nic.reg_umem(dmabuf(fd, 0, 16384), Access::LOCAL_WRITE, 1 << 12) };
    nic.dereg_umem(umem.unwrap().handle).unwrap();
    // SAFETY: it is this test's.
    unsafe { libc::close(fd) };
    nic.dealloc_pd(pd.handle).unwrap();
}

#[test]
fn a_data_direct_function_is_used_where_rdma_core_knows_it() {
    if !rdma_core() {
        return;
    }
    // An ordinary NIC has none.
    let nic = Mlx5::open("mlx5_0").unwrap();
    assert!(!nic.data_direct().unwrap());
    again(
        "with_a_data_direct_function",
        ("WARPVERBS_SIM_OFFER", "data-direct"),
    );
}

#[test]
#[ignore = "run by another test, with a data-direct function"]
fn with_a_data_direct_function() {
    let nic = Mlx5::open("mlx5_0").unwrap();
    let pd = nic.alloc_pd().unwrap();
    let fd = memory_file(16384);
    let MemoryRegion::Dmabuf {
        offset, len, iova, ..
    } = dmabuf(fd, 4096, 8192)
    else {
        unreachable!()
    };
    let region = MemoryRegion::Dmabuf {
        fd,
        offset,
        len,
        iova,
        data_direct: true,
    };
    // SAFETY: nobody holds a reference to memory of the file.
    let registered = unsafe { nic.reg_mr(pd.handle, region, Access::LOCAL_WRITE) };
    // rdma-core 54 and later.
    if nic.data_direct().unwrap() {
        nic.dereg_mr(registered.unwrap().handle).unwrap();
    } else {
        let error = registered.unwrap_err();
        assert_eq!(error.kind, DriverErrorKind::Unsupported);
        assert!(error.text.contains("rdma-core"), "{error}");
    }
    // SAFETY: as above.
    let umem = unsafe { nic.reg_umem(region, Access::LOCAL_WRITE, 1 << 12) };
    assert_eq!(umem.unwrap_err().kind, DriverErrorKind::InvalidArgument);
    nic.dealloc_pd(pd.handle).unwrap();
}

#[test]
fn a_umem_of_a_dmabuf_takes_every_page_size_and_lies_where_it_should() {
    if !rdma_core() {
        return;
    }
    let nic = Mlx5::open("mlx5_0").unwrap();
    let rig = Rig::new(&nic);
    let fd = memory_file(1 << 20);
    let queues = 1 << 18;
    let cq = rig.cq();
    for page_sizes in [1 << 12, (1 << 17) - (1 << 12), 1 << 16] {
        // SAFETY: nobody holds a reference to memory of the file.
        let umem = unsafe {
            let region = dmabuf(fd, 1 << 16, queues);
            nic.reg_umem(region, Access::LOCAL_WRITE, page_sizes)
        }
        .unwrap();
        let mut command = rig.qp_command(&cq, umem);
        command.wq_umem_offset = 1 << 16;
        command.qpc.dbr_addr = queues - 8;
        let (qp, _) = create(&nic, &command).unwrap();
        // Queues are within it.
        assert_eq!(
            nic.dereg_umem(umem.handle).unwrap_err().kind,
            DriverErrorKind::Busy
        );
        nic.destroy(qp).unwrap();
        command.qpc.dbr_addr = queues;
        assert!(create(&nic, &command).is_err());
        nic.dereg_umem(umem.handle).unwrap();
    }
    // SAFETY: it is this test's.
    unsafe { libc::close(fd) };
    rig.destroy(cq);
    rig.close();
}

#[test]
fn gpus_map_a_doorbell_page_once_and_the_simulated_ones_memory_is_dmabufs() {
    if !rdma_core() {
        return;
    }
    let nic = Arc::new(Mlx5::open("mlx5_0").unwrap());
    let nics = std::slice::from_ref(&nic);
    let uar = nic.alloc_uar(UarKind::NonCached).unwrap();
    for gpu in [
        warpverbs::driver::mlx5::host_gpu(nics),
        warpverbs::driver::mlx5::sim_gpu(nics, 1),
    ] {
        let map = || gpu.map_uar(uar.page, uar.page_len);
        let first = map().unwrap();
        assert_eq!(map().unwrap(), first);
        gpu.unmap_uar(uar.page).unwrap();
        assert_eq!(map().unwrap(), first, "it was mapped all the time");
        gpu.unmap_uar(uar.page).unwrap();
        gpu.unmap_uar(uar.page).unwrap();
        let error = gpu.unmap_uar(uar.page).unwrap_err();
        assert_eq!(error.kind, DriverErrorKind::NotFound);
        assert!(gpu.map_uar(uar.page + 4096, 4096).is_err());
    }
    nic.free_uar(uar.handle).unwrap();

    let gpu = warpverbs::driver::mlx5::sim_gpu(nics, 1);
    let context = Context::open(nic.clone()).unwrap();
    let gpu = GpuContext::open(gpu).unwrap();
    let paths = context.probe_memory(&gpu).unwrap();
    let way = Some(MemoryPath::Dmabuf);
    assert_eq!((paths.data, paths.queues), (way, way));
    // What the NIC writes there is what the GPU sees, and the other way round.
    let pd = Pd::alloc(&context).unwrap();
    let bytes: Vec<u8> = (0..70_000u32).map(|n| (n % 251) as u8).collect();
    let source = gpu.alloc_copy(&bytes, "source").unwrap();
    let target = gpu.alloc_copy(&vec![0; bytes.len()], "target").unwrap();
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    // A range that begins beside a page.
    let from = Mr::register_range(&pd, &source, 100..68_100, rights).unwrap();
    let to = Mr::register_range(&pd, &target, 72..68_072, rights).unwrap();
    let mut qps: Vec<QueuePair> = (0..2)
        .map(|_| QueuePair::create(&pd, &gpu, &QpConfig::default()).unwrap())
        .collect();
    let infos: Vec<_> = qps.iter().map(QueuePair::local_info).collect();
    QueuePair::connect_all(&mut qps, &[&infos[1], &infos[0]]).unwrap();
    let exported = vec![qps.remove(0).export().unwrap()];
    let module = Module::embedded(&gpu).unwrap();
    let stream = Stream::create(&gpu).unwrap();
    let bandwidth = Bandwidth {
        size: 17_000,
        slots: 4,
        iters: 4,
        ..Bandwidth::default()
    };
    let mut run = bandwidth
        .launch(&module, &stream, &exported, &from, &to.remote())
        .unwrap();
    run.wait(Duration::from_secs(120)).unwrap().check().unwrap();
    drop(run);
    let mut expected = vec![0; bytes.len()];
    expected[72..68_072].copy_from_slice(&bytes[100..68_100]);
    assert!(target.to_vec().unwrap() == expected);
    drop((exported, qps, from, to, source, target, module, stream, pd));
    context.close().unwrap();
    gpu.close().unwrap();
}

/// What sysfs says that a port has counted.
fn hw_counter(name: &str) -> u64 {
    let root = std::env::var("SYSFS_PATH").unwrap();
    let path = format!("{root}/class/infiniband/mlx5_0/ports/1/hw_counters/{name}");
    std::fs::read_to_string(path)
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}

#[test]
fn hw_counters_count_the_queue_pairs_of_this_crate() {
    if !rdma_core() {
        return;
    }
    again("with_hw_counters", ("WARPVERBS_SIM_NICS", "1"));
}

#[test]
#[ignore = "run by another test, alone with the counters"]
fn with_hw_counters() {
    const ERRORS: &str = "req_remote_access_errors";
    let nic = Arc::new(Mlx5::open("mlx5_0").unwrap());
    assert_eq!(hw_counter(ERRORS), 0);
    let set = nic.port_counter_set(1).unwrap();
    assert!(set.is_some());
    assert_eq!(nic.port_counter_set(1).unwrap(), set, "the same one again");
    assert!(nic.port_counter_set(2).is_err());
    // A QP that is attached to no set counts nowhere.
    let rig = Rig::new(&*nic);
    let mut cq = rig.cq();
    let (mut a, b) = (rig.qp(&cq), rig.qp(&cq));
    rig.connect(&a, &b);
    rig.connect(&b, &a);
    rig.write(&mut a, rig.memory.addr(), 0x00ff_ff00, 64);
    assert!(matches!(rig.poll(&mut cq), Completion::Failed(_)));
    assert_eq!(hw_counter(ERRORS), 0);
    rig.destroy(a);
    rig.destroy(b);
    rig.destroy(cq);
    rig.close();

    let gpu = warpverbs::driver::mlx5::host_gpu(std::slice::from_ref(&nic));
    let context = Context::open(nic).unwrap();
    let gpu = GpuContext::open(gpu).unwrap();
    let pd = Pd::alloc(&context).unwrap();
    let memory = gpu.alloc(4096, "memory").unwrap();
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mr = Mr::register(&pd, &memory, rights).unwrap();
    let module = Module::embedded(&gpu).unwrap();
    let stream = Stream::create(&gpu).unwrap();
    let bandwidth = Bandwidth {
        size: 64,
        slots: 1,
        iters: 1,
        ..Bandwidth::default()
    };
    for (key, errors, writes) in [(0, 0, 1), (0x100, 1, 1)] {
        let mut qps: Vec<QueuePair> = (0..2)
            .map(|_| QueuePair::create(&pd, &gpu, &QpConfig::default()).unwrap())
            .collect();
        let infos: Vec<_> = qps.iter().map(QueuePair::local_info).collect();
        QueuePair::connect_all(&mut qps, &[&infos[1], &infos[0]]).unwrap();
        let mut remote = mr.remote();
        remote.rkey ^= key;
        let first = vec![qps.remove(0).export().unwrap()];
        let mut run = bandwidth
            .launch(&module, &stream, &first, &mr, &remote)
            .unwrap();
        let done = run.wait(Duration::from_secs(60)).unwrap().check();
        assert_eq!(done.is_ok(), key == 0);
        drop(run);
        assert_eq!(hw_counter(ERRORS), errors);
        assert_eq!(hw_counter("rx_write_requests"), writes);
    }
    drop((mr, memory, module, stream, pd));
    context.close().unwrap();
    gpu.close().unwrap();
}

#[test]
fn memory_of_a_gpu_without_dmabufs_is_reached_by_its_address_and_a_shared_doorbell_page_is_mapped_once()
 {
    if !rdma_core() {
        return;
    }
    let nic = Arc::new(Mlx5::open("mlx5_0").unwrap());
    let host = warpverbs::driver::mlx5::host_gpu(std::slice::from_ref(&nic));
    let faults = Faults::new();
    let context = Context::open(faults.nic(nic.clone())).unwrap();
    let gpu = GpuContext::open(faults.gpu(host.clone())).unwrap();
    let pd = Pd::alloc(&context).unwrap();
    // Each has a slab of its own.
    let mut qps: Vec<QueuePair> = (0..3)
        .map(|_| QueuePair::create(&pd, &gpu, &QpConfig::default()).unwrap())
        .collect();
    let memory = gpu.alloc(4096, "memory").unwrap();
    let mr = Mr::register(&pd, &memory, Access::LOCAL_WRITE).unwrap();
    assert_eq!(mr.memory_path(), Some(MemoryPath::PeerMemory));
    let paths = context.memory_paths(&gpu);
    let way = Some(MemoryPath::PeerMemory);
    assert_eq!((paths.data, paths.queues), (way, way));
    let refused: Vec<MemoryPath> = paths.refused.iter().map(|(path, _)| *path).collect();
    assert_eq!(refused, [MemoryPath::DataDirect, MemoryPath::Dmabuf]);
    // rdma-core 44 has one page for all. It is mapped once for each, by the GPU's driver once.
    let pages = || {
        let trace = faults.trace();
        let mapped = trace.iter().filter(|call| call.name == "map_uar");
        mapped.map(|call| call.object).collect::<Vec<_>>()
    };
    assert_eq!(pages().len(), 3);
    // The first to have mapped the page is not the last to use it.
    drop(qps.remove(0));
    let infos: Vec<_> = qps.iter().map(QueuePair::local_info).collect();
    QueuePair::connect_all(&mut qps, &[&infos[1], &infos[0]]).unwrap();
    let qps: Vec<_> = qps.into_iter().map(|qp| qp.export().unwrap()).collect();
    let module = Module::embedded(&gpu).unwrap();
    let stream = Stream::create(&gpu).unwrap();
    let bandwidth = Bandwidth {
        size: 64,
        slots: 4,
        iters: 4,
        ..Bandwidth::default()
    };
    let target = gpu.alloc(4096, "target").unwrap();
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let target = Mr::register(&pd, &target, rights).unwrap();
    let mut run = bandwidth
        .launch(&module, &stream, &qps, &mr, &target.remote())
        .unwrap();
    run.wait(Duration::from_secs(60)).unwrap().check().unwrap();
    drop(run);
    drop((qps, mr, target, memory, module, stream, pd));
    assert_eq!(context.retained(), []);
    context.close().unwrap();
    gpu.close().unwrap();
}

#[test]
#[ignore = "run by another test, with dmabufs refused"]
fn without_dmabufs() {
    let nic = Mlx5::open("mlx5_0").unwrap();
    let pd = nic.alloc_pd().unwrap();
    let fd = memory_file(4096);
    // SAFETY: nobody holds a reference to memory of the file.
    let error = unsafe { nic.reg_mr(pd.handle, dmabuf(fd, 0, 4096), Access::LOCAL_WRITE) };
    let error = error.unwrap_err();
    assert_eq!(error.kind, DriverErrorKind::Unsupported);
    assert!(error.text.contains("Linux 5.12"), "{error}");
}

#[test]
#[ignore = "run by another test, with little memory to pin"]
fn with_little_memory_to_pin() {
    let nic = Mlx5::open("mlx5_0").unwrap();
    let pd = nic.alloc_pd().unwrap();
    let register = |pages| {
        let block = Block::new(pages);
        // SAFETY: the memory lives for ever and is accessed atomically.
        unsafe { nic.reg_mr(pd.handle, block.region(), Access::LOCAL_WRITE) }
    };
    let mr = register(16).unwrap();
    let error = register(1).unwrap_err();
    assert_eq!(error.kind, DriverErrorKind::Exhausted);
    assert!(error.text.contains("ulimit -l"), "{error}");
    // What is given back can be pinned again.
    nic.dereg_mr(mr.handle).unwrap();
    nic.dereg_mr(register(1).unwrap().handle).unwrap();
}

/// A QP of the host crate, over the real driver: its doorbell record lies in host memory, and a proxy's thread rings.
#[test]
fn a_proxy_rings_over_the_real_driver() {
    use warpverbs::{
        Access, Context, DoorbellPath, GpuContext, Mr, Pd, Proxy, QpConfig, QueuePair,
    };
    use warpverbs_device::{Exclusive, Local, Proxy as ByProxy, Remote, Ring, Sq};
    if !rdma_core() {
        return;
    }
    let nic = std::sync::Arc::new(Mlx5::open("mlx5_0").unwrap());
    let nics = [nic.clone(), nic.clone()];
    let gpu = GpuContext::open(warpverbs::driver::mlx5::host_gpu(&nics)).unwrap();
    let context = Context::open(nic).unwrap();
    let pd = Pd::alloc(&context).unwrap();
    let source = gpu.alloc_copy(&[42; 4096], "source").unwrap();
    let target = gpu.alloc_copy(&[0; 4096], "target").unwrap();
    let local = Mr::register(&pd, &source, Access::LOCAL_WRITE).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let remote = Mr::register(&pd, &target, access).unwrap();
    let config = QpConfig::default()
        .depth(8)
        .doorbell_path(DoorbellPath::Proxy);
    let mut qp = QueuePair::create(&pd, &gpu, &config).unwrap();
    let info = qp.local_info();
    qp.connect(&info).unwrap();
    let proxy = Proxy::start().unwrap();
    proxy.add(&qp).unwrap();
    let qp = qp.export().unwrap();
    {
        // SAFETY: the QP is exported for as long as the queue is used, by this thread alone; nobody touches the buffers.
        let mut sq = unsafe { Sq::<Exclusive, ByProxy, Ring>::open(qp.handle()) }.unwrap();
        for i in 0..64 {
            let local = Local {
                addr: local.addr() + 64 * i,
                lkey: local.lkey(),
            };
            let remote = remote.remote();
            let remote = Remote {
                addr: remote.addr + 64 * i,
                rkey: remote.rkey,
            };
            let ticket = sq.post_write(local, remote, 64).unwrap();
            if i == 63 {
                sq.wait(ticket).unwrap();
            }
        }
    }
    assert_eq!(target.to_vec().unwrap(), [42; 4096]);
    let served = proxy.remove(qp.qp()).unwrap();
    assert_eq!((served.rung, served.is_all_rung()), (64, true));
    proxy.stop().unwrap();
    qp.close().unwrap();
    context.close().unwrap();
    gpu.close().unwrap();
}
