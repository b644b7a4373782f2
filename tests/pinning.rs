//! What keeps a region: the same for memory of this crate and for memory that was adopted, on the GPU and on the host.
#![allow(
    unsafe_code,
    reason = "memory is adopted by its address, and an own kernel is launched"
)]

mod common;

use std::time::Duration;

use common::{Bench, Options, PATIENCE};
use warpverbs::driver::LaunchShape;
use warpverbs::driver::sim::InjectedFault;
use warpverbs::{
    Access, Error, ErrorKind, GpuMemory, HostMemory, Module, Mr, Refused, RemoteMr, View,
};

const LEN: u64 = 256;

fn options() -> Options {
    Options {
        depth: 8,
        size: 64,
        slots: 2,
        iters: 20,
        step_budget: Some(u64::MAX),
        ..Options::default()
    }
}

/// Whose memory, and where.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    OwnGpu,
    OwnHost,
    AdoptedGpu,
    AdoptedHost,
}

const KINDS: [Kind; 4] = [
    Kind::OwnGpu,
    Kind::OwnHost,
    Kind::AdoptedGpu,
    Kind::AdoptedHost,
];

/// What a region is over, in the hands of whoever owns it.
enum Memory {
    Gpu(GpuMemory),
    Host(HostMemory),
}

fn region(bench: &Bench, kind: Kind) -> (Mr, Memory) {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let (pd, gpu) = (&bench.pd, &bench.gpu);
    match kind {
        Kind::OwnGpu => {
            let memory = gpu.alloc(LEN, "own").unwrap();
            (
                Mr::register(pd, &memory, access).unwrap(),
                Memory::Gpu(memory),
            )
        }
        Kind::OwnHost => {
            let memory = HostMemory::zeroed(LEN as usize);
            let mr = Mr::register_host(pd, &memory, access).unwrap();
            (mr, Memory::Host(memory))
        }
        Kind::AdoptedGpu => {
            let memory = gpu.alloc(LEN, "someone else's").unwrap();
            // SAFETY: the memory outlives the region, and host code never references GPU memory.
            let mr = unsafe { Mr::adopt_gpu(pd, gpu, memory.addr(), LEN, access) };
            (mr.unwrap(), Memory::Gpu(memory))
        }
        Kind::AdoptedHost => {
            let memory = HostMemory::zeroed(LEN as usize);
            // SAFETY: the memory outlives the region, and its bytes are atomics.
            let mr = unsafe { Mr::adopt_host(pd, memory.addr() as usize as *mut u8, LEN, access) };
            (mr.unwrap(), Memory::Host(memory))
        }
    }
}

/// The region is busy; it is handed back.
fn busy(mr: Mr, kind: Kind) -> Mr {
    let Refused { error, value } = mr.close().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{kind:?}: {error}");
    value
}

/// Closes the region, which frees no memory, and then everything.
fn finish(bench: Bench, mr: Mr, memory: Memory, kind: Kind) {
    let before = bench.world.live().len();
    mr.close().unwrap();
    assert_eq!(
        bench.world.live().len(),
        before - 1,
        "{kind:?}: deregistered, and no more"
    );
    match memory {
        // It is there still.
        Memory::Gpu(memory) => {
            memory.write(0, &[7; LEN as usize]).unwrap();
            memory.close().unwrap();
        }
        Memory::Host(memory) => memory.write(0, &[7; LEN as usize]).unwrap(),
    }
    let world = bench.world.clone();
    bench.nic.clone().close().unwrap();
    bench.gpu.clone().close().unwrap();
    drop(bench);
    assert_eq!(world.live(), [""; 0], "{kind:?}");
}

/// A kernel that ends when the word that it is given is not 0.
fn wait_ptx() -> String {
    format!(
        ".version 7.0\n.target sm_70\n.address_size 64\n\
         .visible .global .align 4 .u32 {} = {};\n\
         .visible .entry wait(.param .u64 word) {{\n\
         .reg .b64 %rd<3>;\n.reg .pred %p<2>;\n\
         ld.param.u64 %rd1, [word];\n\
         AGAIN:\n ld.relaxed.sys.global.u64 %rd2, [%rd1];\n\
         setp.eq.s64 %p1, %rd2, 0;\n @%p1 bra AGAIN;\n ret;\n}}\n",
        warpverbs_wire::abi::VERSION_SYMBOL,
        warpverbs_wire::abi::VERSION,
    )
}

#[test]
fn a_region_stays_while_a_launch_names_it() {
    for kind in KINDS {
        let bench = options().bench().unwrap();
        let (mr, memory) = region(&bench, kind);
        let module = Module::load(&bench.gpu, "own", &wait_ptx()).unwrap();
        let word = bench.gpu.alloc_copy(&[0; 8], "word").unwrap();
        let kernel = module.kernel("wait").unwrap();
        let view = View::new().mr(&mr).memory(&word);
        let params = word.addr().to_le_bytes();
        // SAFETY: the kernel's parameter is the address of a word, which it loads alone and the view keeps.
        let launched = unsafe {
            bench
                .stream
                .launch(&kernel, LaunchShape::linear(1, 1), &params, view)
        };
        let mut launch = launched.unwrap();
        let mr = busy(mr, kind);
        word.write(0, &[1; 8]).unwrap();
        launch.wait(PATIENCE).unwrap();
        drop((launch, word));
        finish(bench, mr, memory, kind);
    }
}

/// Runs the write kernel from the region against a key that does not exist: the QP is in error, with work outstanding.
fn fail_outstanding(bench: &Bench, local: &Mr) {
    let remote = RemoteMr {
        rkey: 0xffff_ff00,
        ..bench.target_mr.remote()
    };
    let mut run = options()
        .bandwidth()
        .launch(&bench.module, &bench.stream, &bench.qps, local, &remote)
        .unwrap();
    assert!(run.wait(PATIENCE).unwrap().fault().is_some());
}

#[test]
fn a_region_stays_until_the_work_that_names_it_has_retired() {
    for kind in KINDS {
        let mut bench = options().bench().unwrap();
        let (mr, memory) = region(&bench, kind);
        fail_outstanding(&bench, &mr);
        let mr = busy(mr, kind);
        let mut qp = bench.qps.remove(0).unexport().unwrap();
        let mr = busy(mr, kind);
        qp.reset().unwrap();
        drop(qp);
        finish(bench, mr, memory, kind);
    }
}

#[test]
fn a_region_stays_while_a_qp_of_its_pd_cannot_be_drained() {
    for kind in KINDS {
        let mut bench = options().bench().unwrap();
        let (mr, memory) = region(&bench, kind);
        // Work over another region: the QP may name any of its PD.
        fail_outstanding(&bench, &bench.source_mr);
        let qp = bench.qps.remove(0);
        let qpn = qp.qpn();
        bench
            .world
            .with_nic(|nic| nic.inject(InjectedFault::DropDbr { qpn }));
        let soon = Duration::from_millis(50);
        let Refused { error, value: qp } = qp.close_within(soon).unwrap_err();
        assert!(matches!(error, Error::Incomplete(_)), "{error}");
        let mr = busy(mr, kind);
        bench.world.with_nic(|nic| nic.heal());
        qp.close().unwrap();
        finish(bench, mr, memory, kind);
    }
}

/// Memory of this crate is busy under a region. What was adopted is its owner's to look after.
#[test]
fn own_gpu_memory_stays_while_it_is_registered() {
    let bench = options().bench().unwrap();
    let (mr, memory) = region(&bench, Kind::OwnGpu);
    let Memory::Gpu(memory) = memory else {
        unreachable!()
    };
    let Refused { error, value } = memory.close().unwrap_err();
    assert!(
        matches!(
            error,
            Error::Busy {
                what: "GPU memory",
                users: 1
            }
        ),
        "{error}"
    );
    // Nor does it go when its handle does.
    let live = bench.world.live().len();
    drop(value.clone());
    assert_eq!(bench.world.live().len(), live);
    finish(bench, mr, Memory::Gpu(value), Kind::OwnGpu);
    // Host memory has no close: the region holds it.
    let bench = options().bench().unwrap();
    let (mr, memory) = region(&bench, Kind::OwnHost);
    drop(memory);
    let rest = Memory::Host(HostMemory::zeroed(LEN as usize));
    finish(bench, mr, rest, Kind::OwnHost);
}

#[test]
fn memory_that_is_none_is_not_adopted() {
    let bench = options().bench().unwrap();
    let live = bench.world.live();
    let (pd, gpu, access) = (&bench.pd, &bench.gpu, Access::LOCAL_WRITE);
    // SAFETY: none of these is memory that anyone uses, so nothing is registered.
    let refused = unsafe {
        [
            Mr::adopt_gpu(pd, gpu, 0x1000, 64, access),
            Mr::adopt_gpu(pd, gpu, bench.source.addr(), 0, access),
            Mr::adopt_gpu(pd, gpu, bench.source.addr(), 1 << 40, access),
            Mr::adopt_gpu(pd, gpu, u64::MAX, 2, access),
            Mr::adopt_host(pd, std::ptr::null_mut(), 64, access),
            Mr::adopt_host(pd, std::ptr::null_mut(), 0, access),
        ]
    };
    for refused in refused {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    assert_eq!(bench.world.live(), live);
}
