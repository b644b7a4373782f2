//! PTX as LLVM's NVPTX back-end prints it, from a small RDMA device library: loads, runs, and moves the words it should.

mod support;

use std::sync::{Arc, Mutex};

use support::{Rig, config, threads};
use warpverbs_sim_bus::{Device, Dma, Fault, Step, bar_base};
use warpverbs_sim_gpu::Scheduler;

const PTX: &str = include_str!("ptx/llvm_put.ptx");

/// A device that keeps the MMIO stores it gets.
#[derive(Default)]
struct Bell {
    rung: Vec<(u64, Vec<u8>)>,
}

impl Device for Bell {
    fn name(&self) -> &str {
        "bell"
    }
    fn step(&mut self, _: &mut dyn Dma) -> Step {
        Step::Idle
    }
    fn mmio_write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.rung.push((offset, bytes.to_vec()));
        Ok(())
    }
}

#[test]
fn a_put_writes_its_wqe_its_dbr_and_rings_once_a_thread() {
    for scheduler in [Scheduler::Independent, Scheduler::Converge] {
        let mut rig = Rig::new(config(7, scheduler));
        let bell = Arc::new(Mutex::new(Bell::default()));
        rig.bus.attach(bell.clone());
        let doorbell = rig.gpu.map_registers(bar_base(0) + 0x1000, 4096).unwrap() + 0x800;
        let ring = rig.alloc(64 * 64, "ring");
        let dbr = rig.alloc(8, "dbr");
        // Queue: reserved, ready, ring, dbr, doorbell, mask, qpn.
        let queue = rig.alloc(64, "queue");
        for (i, word) in [0, 0, ring, dbr, doorbell].iter().enumerate() {
            rig.write(queue + 8 * i as u64, &word.to_le_bytes());
        }
        rig.write(queue + 40, &63u32.to_le_bytes());
        rig.write(queue + 44, &0x12_3456u32.to_le_bytes());

        let module = rig.load(PTX).unwrap();
        let kernel = rig.gpu.kernel(module, "put_gpu_gpu").unwrap();
        assert_eq!(rig.gpu.param_bytes(kernel), Some(40));
        let mut params = Vec::new();
        params.extend(queue.to_le_bytes());
        params.extend(0x1122_3344_0000_0000u64.to_le_bytes());
        params.extend(0xaabb_ccddu32.to_le_bytes());
        params.extend([0; 4]);
        params.extend(0x5566_7788_0000_0000u64.to_le_bytes());
        params.extend(0x0102_0304u32.to_le_bytes());
        params.extend(16u32.to_le_bytes());
        rig.gpu.launch(kernel, threads(40), rig.stream, &params).unwrap();
        let counters = rig.finish().unwrap();

        assert_eq!(rig.read_u64(queue), 40);
        assert_eq!(rig.read_u64(queue + 8), 40);
        // Every WQE: opcode and index big-endian, QPN and ds.
        for i in 0..40u64 {
            let ctrl = rig.read_u64(ring + 64 * i).swap_bytes();
            assert_eq!(ctrl, (i << 40 | 0x1234_5603 | 0x8_0000_0000).rotate_left(0), "{i}");
            let raddr = rig.read_u64(ring + 64 * i + 16).swap_bytes();
            assert_eq!(raddr & !0xfff, 0x1122_3344_0000_0000);
        }
        // Concurrent ringers may leave any of their indices last in the DBR, which is why a ticket is needed instead.
        let last = (rig.read_u64(dbr) as u32).swap_bytes();
        assert!((1..=40).contains(&last));
        let rung = &bell.lock().unwrap().rung;
        assert_eq!(rung.len(), 40);
        assert!(rung.iter().all(|(offset, bytes)| *offset == 0x1800 && bytes.len() == 8));
        let all = counters.phases[0];
        assert_eq!((all.mmio_stores, all.fences), (40, 40));
        // Three WQE stores, DBR, doorbell.
        assert_eq!(all.stores, 40 * 5);
        assert_eq!(all.loads, 40 * 4);
        assert!(all.atomics >= 80);
        assert!(all.instructions > 40 * 70);
    }
}
