//! Memory regions over all that can be registered, and nothing outside them is touched.

mod common;

use common::{Options, PATIENCE, POISON, pattern};
use warpverbs::{
    Access, Bandwidth, Direction, ErrorKind, GpuMemory, HostMemory, Mr, Refused, RemoteMr,
};

const ALL: [Direction; 2] = [Direction::Write, Direction::Read];

fn access() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ
}

/// Moves `bytes` bytes between two regions of that size in 4 operations.
fn transfer(bench: &common::Bench, direction: Direction, local: &Mr, remote: &RemoteMr) {
    let bandwidth = Bandwidth {
        direction,
        size: (local.len() / 4) as u32,
        slots: 4,
        iters: 4,
        ..Options::default().bandwidth()
    };
    let mut run = bandwidth
        .launch(&bench.module, &bench.stream, &bench.qps, local, remote)
        .unwrap();
    run.wait(PATIENCE).unwrap().check().unwrap();
    assert_eq!(bench.world.findings(), [""; 0]);
}

/// The parts of `memory` before, in and after `range`.
fn parts(memory: &GpuMemory, range: std::ops::Range<usize>) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
    let bytes = memory.to_vec().unwrap();
    (
        bytes[..range.start].to_vec(),
        bytes[range.clone()].to_vec(),
        bytes[range.end..].to_vec(),
    )
}

#[test]
fn an_interior_range_of_gpu_memory_keeps_its_surroundings() {
    for direction in ALL {
        let bench = Options::default().bench().unwrap();
        let len = 64 * 1024 + 4096;
        let range = 0x200..0x200 + 0x1000;
        let bytes = pattern(9, 0x1000);
        let source = bench.gpu.alloc_copy(&bytes, "source").unwrap();
        let target = bench.gpu.alloc_copy(&vec![POISON; len], "target").unwrap();
        let source = Mr::register(&bench.pd, &source, access()).unwrap();
        let inner = Mr::register_range(&bench.pd, &target, 0x200..0x1200, access()).unwrap();
        assert_eq!(inner.addr(), target.addr() + 0x200);
        match direction {
            Direction::Write => transfer(&bench, direction, &source, &inner.remote()),
            Direction::Read => transfer(&bench, direction, &inner, &source.remote()),
        }
        let (before, inside, after) = parts(&target, range);
        assert_eq!(inside, bytes);
        assert!(before.iter().chain(&after).all(|byte| *byte == POISON));
    }
}

#[test]
fn memory_of_another_library_is_borrowed() {
    let bench = Options::default().bench().unwrap();
    let gpu = bench.world.gpu();
    // Another library's allocation, and a pointer into the middle of it.
    let base = gpu.alloc(0x3000, "someone else's").unwrap();
    gpu.copy_to_device(base, &[POISON; 0x3000]).unwrap();
    let bytes = pattern(4, 0x1000);
    let source = bench.gpu.alloc_copy(&bytes, "source").unwrap();
    let source = Mr::register(&bench.pd, &source, access()).unwrap();
    // SAFETY: the allocation is freed after the region is closed, and no reference to GPU memory
    // exists.
    let adopted =
        unsafe { Mr::adopt_gpu(&bench.pd, &bench.gpu, base + 0x200, 0x1000, access()) }.unwrap();
    transfer(&bench, Direction::Write, &source, &adopted.remote());
    adopted.close().unwrap();
    let mut all = vec![0; 0x3000];
    gpu.copy_from_device(&mut all, base).unwrap();
    assert_eq!(all[0x200..0x1200], bytes);
    assert!(
        all[..0x200]
            .iter()
            .chain(&all[0x1200..])
            .all(|byte| *byte == POISON)
    );
    gpu.free(base).unwrap();
    // What is not GPU memory cannot be adopted as such.
    // SAFETY: as above; it is refused.
    let refused = unsafe { Mr::adopt_gpu(&bench.pd, &bench.gpu, 0x1000, 0x1000, access()) };
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn host_memory_is_written_and_read() {
    let bench = Options::default().bench().unwrap();
    let bytes = pattern(11, 0x1000);
    let source = bench.gpu.alloc_copy(&bytes, "source").unwrap();
    let source = Mr::register(&bench.pd, &source, access()).unwrap();
    let host = HostMemory::zeroed(0x1000);
    let mr = Mr::register_host(&bench.pd, &host, access()).unwrap();
    transfer(&bench, Direction::Write, &source, &mr.remote());
    let mut seen = vec![0; 0x1000];
    host.read(0, &mut seen).unwrap();
    assert_eq!(seen, bytes);
    // And back, from other bytes.
    let other = pattern(12, 0x1000);
    host.write(0, &other).unwrap();
    let target = bench.gpu.alloc(0x1000, "target").unwrap();
    let target_mr = Mr::register(&bench.pd, &target, access()).unwrap();
    transfer(&bench, Direction::Read, &target_mr, &mr.remote());
    assert_eq!(target.to_vec().unwrap(), other);
    assert!(host.write(0xfff, &[0; 2]).is_err());
}

#[test]
fn host_memory_of_the_application_is_borrowed() {
    let bench = Options::default().bench().unwrap();
    let bytes = pattern(13, 0x1000);
    let source = bench.gpu.alloc_copy(&bytes, "source").unwrap();
    let source = Mr::register(&bench.pd, &source, access()).unwrap();
    let mut buffer = vec![POISON; 0x1200];
    // SAFETY: the buffer outlives the region, and is not touched until the region is closed.
    let adopted = unsafe {
        Mr::adopt_host(
            &bench.pd,
            buffer.as_mut_ptr().wrapping_add(0x100),
            0x1000,
            access(),
        )
    }
    .unwrap();
    transfer(&bench, Direction::Write, &source, &adopted.remote());
    adopted.close().unwrap();
    assert_eq!(buffer[0x100..0x1100], bytes);
    assert!(
        buffer[..0x100]
            .iter()
            .chain(&buffer[0x1100..])
            .all(|byte| *byte == POISON)
    );
}

#[test]
fn a_region_in_use_is_busy_and_stays() {
    let options = Options::default();
    let bench = options.bench().unwrap();
    let local = bench.source_mr.clone();
    let run = options
        .bandwidth()
        .launch(
            &bench.module,
            &bench.stream,
            &bench.qps,
            &local,
            &bench.target_mr.remote(),
        )
        .unwrap();
    let Refused {
        error,
        value: local,
    } = local.close().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    drop(run);
    drop(bench);
    local.close().unwrap();
}

#[test]
fn ranges_outside_the_memory_are_refused() {
    let bench = Options::default().bench().unwrap();
    let memory = bench.gpu.alloc(100, "small").unwrap();
    for range in [0..101, 50..50, 100..101, u64::MAX - 1..u64::MAX] {
        let error = Mr::register_range(&bench.pd, &memory, range, access()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    assert!(memory.write(99, &[0; 2]).is_err());
    assert!(memory.write(u64::MAX, &[0; 2]).is_err());
    assert!(bench.gpu.alloc(0, "nothing").is_err());
    assert!(Mr::register_host(&bench.pd, &HostMemory::zeroed(0), access()).is_err());
}

#[test]
fn memory_that_no_process_has_is_refused() {
    let bench = Options::default().bench().unwrap();
    for (addr, len) in [
        (0u64, 64u64),
        (8, 64),
        (1 << 47, 64),
        ((1 << 47) - 8, 64),
        (4096, u64::MAX),
    ] {
        // SAFETY: the registration is refused, so nothing is accessed.
        let refused = unsafe { Mr::adopt_host(&bench.pd, addr as *mut u8, len, access()) };
        assert!(refused.is_err(), "{len} bytes at {addr:#x}");
    }
}
