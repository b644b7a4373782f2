//! Conformance mode: every store to a doorbell page is an event, of its own width at its own place.
//!
//! Each test runs in a process of its own, as the mode is the process's.
#![cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]

mod common;

use std::arch::asm;
use std::process::Command;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use libc::{c_int, c_void};

use common::{alloc_page, attr, close, device, ioctl, map};

/// Runs `body` in a process of its own in conformance mode: this test, again.
fn alone(test: &str, body: impl FnOnce()) {
    const MODE: &str = "WARPVERBS_SIM_DOORBELLS";
    if std::env::var_os(MODE).is_some() {
        return body();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(MODE, "conformance")
        .env_remove("SYSFS_PATH")
        .output()
        .unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{:?}\n{out}{err}", output.status);
    assert!(out.contains("1 passed"), "{out}");
}

/// A device with a mapped page of a kind.
fn page(kind: u64) -> (c_int, u32, *mut u8) {
    let fd = device();
    let page = alloc_page(fd, kind);
    let mapped = map(fd, page.offset, 4096);
    assert_ne!(mapped, libc::MAP_FAILED);
    (fd, page.number, mapped.cast())
}

/// Waits for findings: `count` at least, one line each.
fn findings(count: usize) -> Vec<String> {
    let until = Instant::now() + Duration::from_secs(30);
    let mut all = Vec::new();
    while all.len() < count {
        all.extend(warpverbs_sim::take_findings());
        assert!(Instant::now() < until, "{count} expected: {all:#?}");
        std::thread::yield_now();
    }
    all
}

/// A doorbell of a QP that was never made, as it lies in memory.
fn ring(qpn: u32) -> u64 {
    u64::from(0x0100u32.to_be()) | u64::from((qpn << 8).to_be()) << 32
}

const SEND: usize = 0x800;

#[test]
fn the_width_and_the_place_of_every_store_are_known() {
    alone("the_width_and_the_place_of_every_store_are_known", || {
        let (_, number, page) = page(1);
        let value = 0x0123_4567_89ab_cdefu64;
        // What each stores: place and width. Values hold bytes that are all zeros and all ones too.
        // SAFETY: stores to the page, each within it.
        unsafe {
            let at = |offset: usize| page.add(offset);
            at(SEND).write_volatile(0);
            at(SEND).cast::<u16>().write_volatile(0xff00);
            at(SEND).cast::<u32>().write_volatile(u32::MAX);
            at(SEND + 4).cast::<u64>().write_unaligned(value);
            at(0x10).cast::<u64>().write_volatile(0);
            at(0xff8).cast::<u64>().write_volatile(u64::MAX);
            asm!("xchg [{0}], {1}", in(reg) at(SEND + 1), inout(reg) value => _);
            asm!("movnti [{0} + {1}], {2:e}", in(reg) page, in(reg) SEND, in(reg) 7);
            asm!("mov word ptr [{0} + 8 * {1}], 5", in(reg) page, in(reg) SEND / 8);
            asm!("movups [{0}], xmm3", in(reg) at(SEND), out("xmm3") _);
            asm!("mov [{0}], rsi", in(reg) at(0x30), in("rsi") value);
            asm!("mov [rdi], ah", in("rdi") at(SEND), in("rax") value);
        }
        let expected = [
            (SEND, 1),
            (SEND, 2),
            (SEND, 4),
            (SEND + 4, 8),
            (0x10, 8),
            (0xff8, 8),
            (SEND + 1, 8),
            (SEND, 4),
            (SEND, 2),
            (SEND, 16),
            (0x30, 8),
            (SEND, 1),
        ];
        // Only the first few of a kind on one page are kept: so they are counted, and looked at one by one below.
        let until = Instant::now() + Duration::from_secs(30);
        while warpverbs_sim::findings_of("doorbell-refused") < expected.len() as u64 {
            assert!(Instant::now() < until);
        }
        let kept = warpverbs_sim::take_findings();
        assert_eq!(kept.len(), 8);
        for (line, (offset, width)) in kept.iter().zip(expected) {
            let text = format!("a store of {width} bytes at {offset:#x} is no doorbell");
            assert!(line.contains(&text), "{text}: {line}");
            assert!(
                line.starts_with(&format!("mlx5_0: doorbell-refused: UAR {number:#x}")),
                "{line}"
            );
        }
        // SAFETY: as above.
        unsafe {
            let at = |offset: usize| page.add(offset);
            asm!("movups [{0}], xmm3", in(reg) at(SEND), out("xmm3") _);
            asm!("mov [{0}], rsi", in(reg) at(0x30), in("rsi") value);
            asm!("mov [rdi], ah", in("rdi") at(SEND), in("rax") value);
        }
        for (line, (offset, width)) in findings(3).iter().zip(expected.iter().skip(9)) {
            let text = format!("a store of {width} bytes at {offset:#x} is no doorbell");
            assert!(line.contains(&text), "{text}: {line}");
        }
    });
}

#[test]
fn the_same_doorbell_twice_and_doorbells_in_a_row_are_all_seen() {
    alone(
        "the_same_doorbell_twice_and_doorbells_in_a_row_are_all_seen",
        || {
            let (_, _, page) = page(1);
            let register = page.wrapping_add(SEND).cast::<u64>();
            // In a row, faster than anyone looks: other QPs are other objects, each of whose findings is kept.
            let rung: Vec<u32> = (0x1000..0x1400).chain([0x1000; 3]).collect();
            for qpn in &rung {
                // SAFETY: a store to the page.
                unsafe { register.write_volatile(ring(*qpn)) };
            }
            let found = findings(rung.len());
            for (line, qpn) in found.iter().zip(&rung) {
                assert!(
                    line.starts_with(&format!("mlx5_0: doorbell-unknown-qp: QP {qpn:#x}:")),
                    "{line}"
                );
            }
            assert_eq!(found.len(), rung.len());
        },
    );
}

#[test]
fn a_burst_to_a_blueflame_buffer_is_eight_events_and_a_string_is_one_a_word() {
    alone(
        "a_burst_to_a_blueflame_buffer_is_eight_events_and_a_string_is_one_a_word",
        || {
            // Not cached: a wide store is refused. Of a page for BlueFlame it is part of a burst.
            let (_, _, flame) = page(0);
            let mut wqe = [0u64; 8];
            wqe[0] = ring(0x2222);
            let mut after = (0u64, 0u64);
            // SAFETY: stores of 64 bytes to buffers of the page, from an array of as many.
            unsafe {
                for buffer in [SEND, SEND + 0x100] {
                    for (word, value) in wqe.iter().enumerate() {
                        flame
                            .add(buffer + word * 8)
                            .cast::<u64>()
                            .write_volatile(*value);
                    }
                }
                asm!(
                    "cld", "rep movsq",
                    inout("rdi") flame.add(SEND) => after.0,
                    inout("rsi") wqe.as_ptr() => _,
                    inout("rcx") 8u64 => after.1,
                );
                assert_eq!(after, (flame.add(SEND + 64) as u64, 0));
                if std::arch::is_x86_feature_detected!("avx") {
                    asm!(
                        "vmovdqu ymm0, [{0}]", "vmovdqu ymm1, [{0} + 32]",
                        "vmovdqu [{1}], ymm0", "vmovdqu [{1} + 32], ymm1",
                        in(reg) wqe.as_ptr(), in(reg) flame.add(SEND),
                        out("ymm0") _, out("ymm1") _,
                    );
                } else {
                    flame.add(SEND).cast::<u64>().write_volatile(wqe[0]);
                }
            }
            let found = findings(4);
            assert_eq!(found.len(), 4, "{found:#?}");
            assert!(
                found
                    .iter()
                    .all(|line| line.contains("doorbell-unknown-qp: QP 0x2222")),
                "{found:#?}"
            );
            assert_eq!(warpverbs_sim::findings_of("doorbell-refused"), 0);
        },
    );
}

#[test]
fn threads_that_store_at_once_lose_nothing() {
    alone("threads_that_store_at_once_lose_nothing", || {
        const THREADS: u32 = 4;
        const EACH: u32 = 5_000;
        let (_, _, page) = page(1);
        let register = page as usize + SEND;
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    for number in 0..EACH {
                        let qpn = 0x10_0000 * (thread + 1) + number;
                        // SAFETY: a store to the page.
                        unsafe { (register as *mut u64).write_volatile(ring(qpn)) };
                    }
                });
            }
        });
        let found = findings((THREADS * EACH) as usize);
        assert_eq!(found.len(), (THREADS * EACH) as usize);
        // Each thread's in its order.
        let mut next = [0; THREADS as usize];
        for line in &found {
            let number = line
                .split("QP 0x")
                .nth(1)
                .unwrap()
                .split(':')
                .next()
                .unwrap();
            let number = u32::from_str_radix(number, 16).unwrap();
            let thread = (number >> 20) as usize - 1;
            assert_eq!(number & 0xf_ffff, next[thread]);
            next[thread] += 1;
        }
    });
}

#[test]
fn a_load_finds_ones_and_is_told() {
    alone("a_load_finds_ones_and_is_told", || {
        let (_, _, page) = page(1);
        // SAFETY: a load from the page.
        let found = unsafe { page.add(SEND).cast::<u64>().read_volatile() };
        assert_eq!(found, u64::MAX);
        assert!(findings(1)[0].contains("a load from byte 0x800"));
    });
}

/// How often the handlers below were called.
static CALLS: AtomicU32 = AtomicU32::new(0);
static OTHER: AtomicU64 = AtomicU64::new(0);

/// Makes the memory that faulted accessible.
extern "C" fn open_memory(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    CALLS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the kernel passes the information of a fault; the page is this test's.
    unsafe {
        let addr = (*info).si_addr() as usize & !4095;
        assert_eq!(addr as u64, OTHER.load(Ordering::Relaxed));
        libc::mprotect(
            addr as *mut c_void,
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
        );
    }
}

extern "C" fn count(_: c_int) {
    CALLS.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn signals_of_others_reach_their_handlers() {
    alone("signals_of_others_reach_their_handlers", || {
        let (_, _, page) = page(1);
        // SAFETY: a structure of numbers.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let mut before = action;
        action.sa_sigaction = open_memory as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: handlers of the forms that are said, a mapping of this test's, and numbers.
        unsafe {
            libc::sigfillset(&raw mut action.sa_mask);
            assert_eq!(
                libc::sigaction(libc::SIGSEGV, &raw const action, &raw mut before),
                0
            );
            // Rust's own, of stack overflows, was there first.
            assert_ne!(before.sa_sigaction, libc::SIG_DFL);
            let mut now = action;
            assert_eq!(
                libc::sigaction(libc::SIGSEGV, std::ptr::null(), &raw mut now),
                0
            );
            assert_eq!(now.sa_sigaction, action.sa_sigaction);
            let other = libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            OTHER.store(other as u64, Ordering::Relaxed);
            other.cast::<u64>().write_volatile(5);
            assert_eq!(
                (
                    other.cast::<u64>().read_volatile(),
                    CALLS.load(Ordering::Relaxed)
                ),
                (5, 1)
            );
            libc::signal(libc::SIGTRAP, count as *const () as usize);
            libc::raise(libc::SIGTRAP);
            asm!("int3");
            assert_eq!(CALLS.load(Ordering::Relaxed), 3);
            // All signals blocked: a doorbell is seen all the same.
            let mut all = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
            libc::sigfillset(all.as_mut_ptr());
            assert_eq!(
                libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut()),
                0
            );
            page.add(SEND).cast::<u64>().write_volatile(ring(0x77));
            let mut left = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
            libc::sigprocmask(libc::SIG_SETMASK, std::ptr::null(), left.as_mut_ptr());
            assert_eq!(
                libc::sigismember(left.as_ptr(), libc::SIGUSR1),
                1,
                "the mask is as it was"
            );
        }
        assert!(findings(1)[0].contains("QP 0x77"));
    });
}

#[test]
fn an_interrupted_thread_stores_in_a_handler_too() {
    static PAGE: AtomicU64 = AtomicU64::new(0);
    extern "C" fn ring_too(_: c_int) {
        CALLS.fetch_add(1, Ordering::Relaxed);
        let register = (PAGE.load(Ordering::Relaxed) as usize + SEND) as *mut u64;
        // SAFETY: a store to the page.
        unsafe { register.write_volatile(ring(0x4444)) };
    }
    alone("an_interrupted_thread_stores_in_a_handler_too", || {
        let (_, _, page) = page(1);
        PAGE.store(page as u64, Ordering::Relaxed);
        let rung = 3000u64;
        // SAFETY: a handler of that form; a timer that fills a structure.
        unsafe {
            libc::signal(libc::SIGALRM, ring_too as *const () as usize);
            let each = libc::timeval {
                tv_sec: 0,
                tv_usec: 200,
            };
            let timer = libc::itimerval {
                it_interval: each,
                it_value: each,
            };
            libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut());
            for _ in 0..rung {
                page.add(SEND).cast::<u64>().write_volatile(ring(0x3333));
            }
            let none: libc::itimerval = std::mem::zeroed();
            libc::setitimer(libc::ITIMER_REAL, &raw const none, std::ptr::null_mut());
        }
        let until = Instant::now() + Duration::from_secs(30);
        let expected = || rung + u64::from(CALLS.load(Ordering::Relaxed));
        while warpverbs_sim::findings_of("doorbell-unknown-qp") < expected() {
            assert!(Instant::now() < until);
        }
        assert_eq!(
            warpverbs_sim::findings_of("doorbell-unknown-qp"),
            expected()
        );
        assert!(CALLS.load(Ordering::Relaxed) > 0, "the timer never ran out");
        warpverbs_sim::take_findings();
    });
}

#[test]
fn what_is_unmapped_or_freed_is_no_doorbell_page_any_more() {
    alone(
        "what_is_unmapped_or_freed_is_no_doorbell_page_any_more",
        || {
            let fd = device();
            let page = alloc_page(fd, 1);
            let mapped = map(fd, page.offset, 4096);
            let again = map(fd, page.offset, 4096);
            // SAFETY: mappings of this test's.
            unsafe {
                assert_eq!(libc::munmap(mapped, 4096), 0);
                let memory = libc::mmap(
                    mapped,
                    4096,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                    -1,
                    0,
                );
                assert_eq!(memory, mapped);
                memory.cast::<u64>().write_volatile(ring(0x55));
                assert_eq!(memory.cast::<u64>().read_volatile(), ring(0x55));
            }
            assert_eq!(
                ioctl(fd, 0x1008, 0x1001, &[attr(0x1000, 0, page.handle)]).0,
                0
            );
            // SAFETY: a store to a page that the device has taken back, and whose mapping is there.
            unsafe {
                again
                    .cast::<u8>()
                    .add(SEND)
                    .cast::<u64>()
                    .write_volatile(ring(0x66))
            };
            let found = findings(1);
            assert!(
                found.len() == 1 && found[0].contains("was freed"),
                "{found:?}"
            );
            close(fd);
        },
    );
}

#[test]
fn what_nobody_asked_for_is_said_at_the_end() {
    const LEFT: &str = "WARPVERBS_TEST_LEAVES_FINDINGS";
    if std::env::var_os(LEFT).is_some() {
        let (_, _, page) = page(1);
        // SAFETY: a store to the page.
        unsafe { page.add(SEND).cast::<u32>().write_volatile(5) };
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "what_nobody_asked_for_is_said_at_the_end"])
        .envs([("WARPVERBS_SIM_DOORBELLS", "conformance"), (LEFT, "1")])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("libwarpverbs_sim: mlx5_0: doorbell-refused: UAR")
            && said.contains("a store of 4 bytes at 0x800"),
        "{said}"
    );
}
