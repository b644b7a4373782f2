//! NICs that run by themselves: doorbells that are stores to a page, records that nobody rang for, rest and end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use warpverbs_sim_nic::{About, Background, NicConfig};
use warpverbs_wire::cqe::Completion;
use warpverbs_wire::doorbell::{REGISTER, doorbell};
use warpverbs_wire::prm::destroy_qp;

use crate::rig::{ALL_RIGHTS, Rig, TestCq, TestQp, pattern};

/// A NIC that runs, and its doorbell page.
pub(crate) struct Running {
    pub(crate) rig: Rig,
    background: Background,
    page: u64,
}

impl Running {
    pub(crate) fn new() -> Self {
        Self::with(NicConfig::default())
    }

    pub(crate) fn with(config: NicConfig) -> Self {
        let rig = Rig::with(config);
        let background = Background::start(&rig.bus, vec![(0, rig.nic.clone())]).unwrap();
        let page = background.map(0, rig.uar).unwrap();
        assert!(background.is_page(page));
        Self {
            rig,
            background,
            page,
        }
    }

    /// What a producer does: one store to the register.
    pub(crate) fn ring(&self, qp: &TestQp) {
        self.ring_at(qp, REGISTER);
    }

    fn ring_at(&self, qp: &TestQp, register: usize) {
        let value = u64::from_le_bytes(doorbell(qp.next, qp.qpn).to_le_bytes());
        self.store(register, value);
    }

    pub(crate) fn store(&self, register: usize, value: u64) {
        let register = (self.page as usize + register) as *mut u64;
        // SAFETY: `AtomicU64::from_ptr` demands an aligned word that is live and accessed atomically meanwhile: the NICs' page,
        // which `background` keeps.
        unsafe { AtomicU64::from_ptr(register) }.store(value, Ordering::Release);
    }

    /// The next completion, which comes.
    pub(crate) fn completion(&self, cq: &mut TestCq) -> Completion {
        let begun = Instant::now();
        loop {
            if let Some(completion) = cq.poll(&self.rig) {
                return completion;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "no completion");
            std::thread::yield_now();
        }
    }

    /// WQEs of these QPs complete, in any order: how many of each.
    pub(crate) fn completed(&self, cq: &mut TestCq, qps: &[&TestQp], count: usize) -> Vec<usize> {
        let mut done = vec![0; qps.len()];
        for _ in 0..count {
            let Completion::Done(cqe) = self.completion(cq) else {
                panic!("an error")
            };
            let at = qps.iter().position(|qp| qp.qpn == cqe.qpn).unwrap();
            done[at] += 1;
        }
        done
    }

    pub(crate) fn settle(&self) {
        assert!(self.background.quiesce(Duration::from_secs(60)));
    }
}

#[test]
fn queues_that_overwrite_each_others_doorbells_in_one_register_lose_nothing() {
    let running = Running::new();
    let rig = &running.rig;
    let mut cq = rig.cq(8);
    let (mut a, mut b) = rig.pair(&cq, 6);
    let mut c = rig.qp(&cq, 6);
    rig.to_rts(c.qpn, c.qpn);
    for _ in 0..200 {
        for qp in [&mut a, &mut b, &mut c] {
            qp.nop(rig);
            qp.dbr(rig);
        }
        // Between two looks of the NIC the last one stays.
        for qp in [&a, &b, &c] {
            running.ring(qp);
        }
        assert_eq!(running.completed(&mut cq, &[&a, &b, &c], 3), [1, 1, 1]);
    }
    running.settle();
    rig.nic().end_of_run();
    rig.assert_no_findings();
}

#[test]
fn a_record_that_nobody_rang_for_is_found_in_time() {
    // That is a finding of a queue that has its page alone: of others the doorbell may have been overwritten.
    for (alone, findings) in [(true, &["dbr-unrung"][..]), (false, &[])] {
        let running = Running::new();
        let rig = &running.rig;
        let mut cq = rig.cq(4);
        let mut a = rig.qp(&cq, 4);
        rig.to_rts(a.qpn, a.qpn);
        if !alone {
            rig.qp(&cq, 4);
        }
        a.nop(rig);
        a.dbr(rig);
        running.completed(&mut cq, &[&a], 1);
        running.settle();
        rig.nic().end_of_run();
        assert_eq!(rig.take_findings(), findings);
    }
}

#[test]
fn the_same_doorbell_again_is_no_finding_and_a_late_one_is_taken_before_its_queue_goes() {
    let running = Running::new();
    let rig = &running.rig;
    let mut cq = rig.cq(4);
    let mut a = rig.qp(&cq, 4);
    rig.to_rts(a.qpn, a.qpn);
    a.nop(rig);
    running.ring(&a);
    a.dbr(rig);
    running.ring(&a);
    running.completed(&mut cq, &[&a], 1);
    for _ in 0..50 {
        running.ring(&a);
        std::thread::yield_now();
    }
    let doorbells = rig.nic().stats().doorbells;
    assert!(doorbells >= 1);
    // As a driver does: doorbells from before a command come before it.
    running.ring(&a);
    let call = running.background.call();
    let destroy = destroy_qp::In { qpn: a.qpn }.emit();
    let about = About::Command(&destroy);
    let mut model = running.background.lock(0, &rig.nic, about);
    let mut output = [0; 16];
    model.command(&destroy, &mut output).unwrap();
    drop((model, call));
    running.settle();
    rig.assert_no_findings();
    // After it, it is one.
    running.ring(&a);
    running.settle();
    assert_eq!(rig.take_findings(), ["doorbell-after-destroy"]);
}

#[test]
fn a_message_inside_the_nic_is_the_same_message_in_real_time() {
    const LEN: u64 = 1 << 20;
    let running = Running::new();
    let rig = &running.rig;
    let mut cq = rig.cq(4);
    let (mut a, _b) = rig.pair(&cq, 4);
    let (source, target) = (rig.mr(LEN, 0), rig.mr(LEN, ALL_RIGHTS));
    rig.write(source.addr, &pattern(LEN as usize, 1));
    for size in [1, 1024, 1025, 4096, 33 * 1024, 900_001] {
        rig.write(target.addr, &vec![0xee; LEN as usize]);
        let before = rig.nic().stats().clone();
        a.write(rig, source.piece(3, size), target.piece(5, size));
        a.dbr(rig);
        running.ring(&a);
        running.completed(&mut cq, &[&a], 1);
        running.settle();
        let after = rig.nic().stats().clone();
        let packets = u64::from(size.div_ceil(1024));
        // One acknowledgement every 32 packets and at the end.
        let sent = packets + packets.div_ceil(32);
        assert_eq!(after.packets_sent - before.packets_sent, sent, "{size}");
        assert_eq!(after.bytes_read - before.bytes_read, size.into());
        assert_eq!(after.bytes_written - before.bytes_written, size.into());
        let mut expected = vec![0xee; LEN as usize];
        let whole = pattern(LEN as usize, 1);
        expected[5..5 + size as usize].copy_from_slice(&whole[3..3 + size as usize]);
        assert!(rig.read(target.addr, LEN as usize) == expected, "{size}");
    }
    rig.assert_no_findings();
}

#[test]
fn timers_run_in_real_time() {
    let running = Running::new();
    let rig = &running.rig;
    let mut cq = rig.cq(4);
    // The peer is not connected.
    let (mut a, b) = (rig.qp(&cq, 4), rig.qp(&cq, 4));
    rig.to_rts(a.qpn, b.qpn);
    let (source, target) = (rig.mr(4096, 0), rig.mr(4096, ALL_RIGHTS));
    a.write(rig, source.piece(0, 8), target.piece(0, 8));
    a.dbr(rig);
    let begun = Instant::now();
    running.ring(&a);
    let Completion::Failed(cqe) = running.completion(&mut cq) else {
        panic!("nobody is there")
    };
    assert_eq!((cqe.syndrome.code(), cqe.vendor_syndrome), (0x15, 0x81));
    let qpc = rig.query_qp(a.qpn);
    let timeout = 4096u64 << qpc.primary_address_path.ack_timeout;
    let least = Duration::from_nanos(timeout * (u64::from(qpc.retry_count) + 1));
    assert!(begun.elapsed() >= least, "{least:?} of retries");
}

#[test]
fn an_end_while_work_is_under_way_is_clean() {
    for _ in 0..20 {
        let running = Running::new();
        let rig = &running.rig;
        let cq = rig.cq(8);
        let (mut a, _b) = rig.pair(&cq, 8);
        let (source, target) = (rig.mr(1 << 20, 0), rig.mr(1 << 20, ALL_RIGHTS));
        for _ in 0..64 {
            a.write(rig, source.piece(0, 1 << 20), target.piece(0, 1 << 20));
        }
        a.dbr(rig);
        running.ring(&a);
        let Running {
            rig, background, ..
        } = running;
        drop(background);
        // Nothing moves any more.
        let stats = rig.nic().stats().clone();
        std::thread::yield_now();
        assert_eq!(*rig.nic().stats(), stats);
    }
}

#[test]
fn doorbells_on_two_buffers_in_turn_are_no_finding_in_whatever_order_they_are_found() {
    let running = Running::new();
    let rig = &running.rig;
    let mut cq = rig.cq(8);
    let mut a = rig.qp(&cq, 6);
    rig.to_rts(a.qpn, a.qpn);
    for round in 0..300 {
        a.nop(rig);
        a.dbr(rig);
        // The NIC finds the first register's value first, whichever was stored to first.
        running.ring_at(&a, REGISTER + if round % 2 == 0 { 0x100 } else { 0 });
        if round % 32 == 31 {
            assert_eq!(running.completed(&mut cq, &[&a], 32), [32]);
        }
    }
    running.completed(&mut cq, &[&a], 300 % 32);
    running.settle();
    rig.nic().end_of_run();
    rig.assert_no_findings();
}
