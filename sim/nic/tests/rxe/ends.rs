//! Both ends of the segment: the simulated NIC with a driver's few calls, and the guest's rxe0.
//!
//! Knows: how their QPs are connected, where their memory is.
//! Must not know: what is posted.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use warpverbs_sim_nic::{CablePlan, NicConfig, SocketEnd, Wire};
use warpverbs_wire::cqe::Completion;
use warpverbs_wire::prm::qpc::{AtomicMode, Mtu};

use crate::pattern;
use crate::rig::{EVERY_RIGHT, Rig, TestCq, TestMr, TestQp, TestRq};
use crate::vm::Vm;

/// Bytes of each end's memory.
pub(crate) const MEMORY: usize = 8 << 20;
/// 10.0.0.2 as a GID, and whose it is: `ci/rxe` gives them to the guest.
const GUEST_GID: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2];
const GUEST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// First PSNs: both wrap early in the run.
const PSN: u32 = 0xff_fff0;
const GUEST_PSN: u32 = 0xff_ffc0;
/// Code of the ACK timeout: 0.27 s, eight times, so that an end that is slow is not taken for one that is gone.
const ACK_TIMEOUT: u8 = 16;

/// The ends.
pub(crate) struct Ends {
    pub(crate) rig: Rig,
    pub(crate) wire: Wire,
    pub(crate) vm: Vm,
    pub(crate) cq: TestCq,
    pub(crate) mr: TestMr,
    pub(crate) guest_mr: GuestMr,
    /// QPs in RST: memory of these tests is never free again.
    spare: Vec<(TestQp, TestRq)>,
    _stepper: Stepper,
}

/// Memory of the guest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GuestMr {
    pub(crate) number: u64,
    pub(crate) addr: u64,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// A connection.
pub(crate) struct Pair {
    pub(crate) qp: TestQp,
    pub(crate) rq: TestRq,
    pub(crate) guest: u32,
}

/// Steps the NIC all the time.
struct Stepper {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Stepper {
    fn start(rig: &Rig) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let bus = rig.bus.clone();
        let thread = std::thread::spawn({
            let stop = stop.clone();
            move || {
                while !stop.load(Ordering::Relaxed) {
                    let steps = bus.lock().run_devices(64);
                    // The guest needs the processor more.
                    if steps < 64 {
                        std::thread::sleep(Duration::from_micros(50));
                    } else {
                        std::thread::yield_now();
                    }
                }
            }
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Stepper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Ends {
    pub(crate) fn boot(folder: &Path) -> Self {
        let begun = Instant::now();
        let mut vm = Vm::boot(folder);
        println!(
            "the guest is up after {:.1} s",
            begun.elapsed().as_secs_f64()
        );
        let rig = Rig::with(NicConfig::default());
        let wire = Wire::new(CablePlan::default(), 0);
        let (local, peer) = vm.sockets();
        let end = SocketEnd::bind(&local, &peer).expect("QEMU's socket");
        rig.nic().connect(end.behind(&wire));
        if let Some(file) = std::env::var_os("RXE_PCAP") {
            let file = std::fs::File::create(file).expect("a pcap file");
            wire.capture(std::io::BufWriter::new(file)).unwrap();
        }
        let cq = rig.cq(12);
        let mr = rig.mr(MEMORY as u64, EVERY_RIGHT);
        let [number, addr, lkey, rkey] = vm.numbers(&format!("mr {MEMORY}"));
        let guest_mr = GuestMr {
            number,
            addr,
            lkey: lkey as u32,
            rkey: rkey as u32,
        };
        Self {
            _stepper: Stepper::start(&rig),
            spare: vec![],
            rig,
            wire,
            vm,
            cq,
            mr,
            guest_mr,
        }
    }

    /// A new connection. `rnr_retry` is both ends'.
    pub(crate) fn pair(&mut self, mtu: u32, rnr_retry: u8) -> Pair {
        let (mut qp, mut rq) = match self.spare.pop() {
            Some(spare) => spare,
            None => self.rig.qp_with_receives(&self.cq, 7),
        };
        (qp.next, rq.next) = (0, 0);
        self.rig.write(qp.dbr, &[0; 8]);
        let [guest] = self.vm.numbers("qp");
        let guest = guest as u32;
        let mut request = self.rig.rst2init(qp.qpn);
        (request.qpc.rae, request.qpc.atomic_mode) = (true, AtomicMode::UpTo8);
        self.rig.command(request).unwrap();
        let mut request = self.rig.init2rtr(qp.qpn, guest);
        let context = &mut request.qpc;
        context.mtu = match mtu {
            1024 => Mtu::Bytes1024,
            2048 => Mtu::Bytes2048,
            _ => Mtu::Bytes4096,
        };
        context.next_rcv_psn = GUEST_PSN;
        (context.log_rra_max, context.min_rnr_nak) = (2, 12);
        let path = &mut context.primary_address_path;
        (path.rgid_rip, path.rmac) = (GUEST_GID, GUEST_MAC);
        self.rig.command(request).unwrap();
        let mut request = self.rig.rtr2rts(qp.qpn);
        let context = &mut request.qpc;
        (
            context.next_send_psn,
            context.rnr_retry,
            context.log_sra_max,
        ) = (PSN, rnr_retry, 2);
        context.primary_address_path.ack_timeout = ACK_TIMEOUT;
        self.rig.command(request).unwrap();
        self.vm.ask(&format!(
            "connect {guest} {} 10.0.0.1 {mtu} {GUEST_PSN} {PSN} {ACK_TIMEOUT} {rnr_retry}",
            qp.qpn
        ));
        Pair { qp, rq, guest }
    }

    /// The NIC's next `count` completions.
    #[track_caller]
    pub(crate) fn poll(&mut self, count: usize) -> Vec<Completion> {
        let begun = Instant::now();
        let mut all = vec![];
        while all.len() < count {
            match self.cq.poll(&self.rig) {
                Some(completion) => all.push(completion),
                None => std::thread::sleep(Duration::from_micros(200)),
            }
            assert!(
                begun.elapsed() < Duration::from_secs(90),
                "the NIC has only {} of {count} completions: {all:?}",
                all.len()
            );
        }
        all
    }

    pub(crate) fn fill(&self, len: usize, salt: u32) {
        self.rig.write(self.mr.addr, &pattern::bytes(0, len, salt));
    }

    pub(crate) fn guest_fill(&mut self, len: usize, salt: u32) {
        let number = self.guest_mr.number;
        self.vm.ask(&format!("fill {number} 0 {len} {salt}"));
    }

    /// The guest's memory at `at` holds bytes of a filled memory from `source` on.
    #[track_caller]
    pub(crate) fn guest_check(&mut self, at: usize, len: usize, salt: u32, source: usize) {
        let number = self.guest_mr.number;
        let answer = self
            .vm
            .ask(&format!("check {number} {at} {len} {salt} {source}"));
        assert_eq!(
            answer, "same",
            "{len} bytes at {at}, from {source}, salt {salt}"
        );
    }

    /// The same for the NIC's.
    #[track_caller]
    pub(crate) fn check(&self, at: usize, len: usize, salt: u32, source: usize) {
        let found = self.rig.read(self.mr.addr + at as u64, len);
        let expected = pattern::bytes(source, len, salt);
        let differs = found.iter().zip(&expected).position(|(a, b)| a != b);
        assert_eq!(
            differs, None,
            "{len} bytes at {at}, from {source}, salt {salt}"
        );
    }

    /// Posts to a guest's send queue.
    #[track_caller]
    pub(crate) fn guest_send(&mut self, pair: &Pair, id: u64, wr: GuestWr) {
        let GuestWr {
            opcode,
            local: (addr, len),
            remote: (remote, rkey),
            immediate,
            operands: (a, b),
        } = wr;
        let (guest, lkey) = (pair.guest, self.guest_mr.lkey);
        self.vm.ask(&format!(
            "send {guest} {id} {opcode} 0 {addr} {len} {lkey} {remote} {rkey} {immediate} {a} {b}"
        ));
    }

    /// Posts to a guest's receive queue.
    #[track_caller]
    pub(crate) fn guest_receive(&mut self, pair: &Pair, id: u64, at: usize, len: u32) {
        let (guest, lkey) = (pair.guest, self.guest_mr.lkey);
        let addr = self.guest_mr.addr + at as u64;
        self.vm
            .ask(&format!("receive {guest} {id} {addr} {len} {lkey}"));
    }

    /// Destroys both QPs.
    pub(crate) fn part(&mut self, pair: Pair) {
        self.vm.ask(&format!("destroy {}", pair.guest));
        self.rig.to_reset(pair.qp.qpn);
        self.spare.push((pair.qp, pair.rq));
    }
}

/// A work request of the guest.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GuestWr {
    /// `enum ibv_wr_opcode`
    pub(crate) opcode: u32,
    pub(crate) local: (u64, u32),
    pub(crate) remote: (u64, u32),
    pub(crate) immediate: u32,
    pub(crate) operands: (u64, u64),
}
