//! Speed of the simulated NIC: work requests per second when it is stepped.
#![allow(missing_docs, reason = "a program")]

use std::time::{Duration, Instant};

use warpverbs::driver::Nic;
use warpverbs::driver::sim::World;
use warpverbs::wire::abi::QpHandle;
use warpverbs::wire::doorbell::{dbr_word, doorbell};
use warpverbs::wire::wqe::{
    Opcode, SIGNALLED, control, control_head, data, qpn_ds, remote, segment_bytes,
};
use warpverbs::{
    Access, Context, CqForm, ExportedQp, GpuContext, GpuMemory, Mr, Pd, QpConfig, QueuePair,
};
use warpverbs_sim_bus as bus;

const BATCH: u64 = 32;
const DEPTH: u32 = 128;

/// Two NICs at most, a QP of the first that is connected to one of the last, and buffers.
struct Stepped {
    world: World,
    qp: ExportedQp,
    handle: QpHandle,
    local: Mr,
    remote: Mr,
    _keep: (QueuePair, GpuMemory, GpuMemory),
    next: u64,
}

impl Stepped {
    fn new(nics: usize, size: u64) -> Self {
        let world = World::builder().seed(1).nics(nics).build();
        let far: std::sync::Arc<dyn Nic> = world.nic_at(nics - 1).expect("a NIC");
        let near = Context::open(world.nic()).expect("open");
        let far = if nics == 1 {
            near.clone()
        } else {
            Context::open(far).expect("open")
        };
        let gpu = GpuContext::open(world.gpu()).expect("open");
        let (pd, far_pd) = (Pd::alloc(&near).expect("PD"), Pd::alloc(&far).expect("PD"));
        let config = QpConfig::default().depth(DEPTH).cq_form(CqForm::Collapsed);
        let mut a = QueuePair::create(&pd, &gpu, &config).expect("QP");
        let mut b = QueuePair::create(&far_pd, &gpu, &config).expect("QP");
        a.connect(&b.local_info()).expect("connect");
        b.connect(&a.local_info()).expect("connect");
        let from = gpu
            .alloc_copy(&vec![7; size as usize], "source")
            .expect("memory");
        let to = gpu
            .alloc_copy(&vec![0; size as usize], "target")
            .expect("memory");
        let local = Mr::register(&pd, &from, Access::LOCAL_READ).expect("MR");
        let remote =
            Mr::register(&far_pd, &to, Access::LOCAL_WRITE | Access::REMOTE_WRITE).expect("MR");
        let qp = a.export().expect("export");
        let mut bytes = [0; QpHandle::LEN];
        world
            .gpu()
            .copy_from_device(&mut bytes, qp.handle())
            .expect("handle");
        let handle = QpHandle::from_bytes(&bytes).expect("handle");
        Self {
            world,
            qp,
            handle,
            local,
            remote,
            _keep: (b, from, to),
            next: 0,
        }
    }

    /// Posts a batch of writes, one doorbell each, and steps the NICs until they are idle.
    fn batch(&mut self) {
        let (handle, size) = (self.handle, self.local.len() as u32);
        let mut bus = self.world.bus().lock();
        for _ in 0..BATCH {
            let index = self.next;
            let mut wqe = [0; 64];
            let head = control_head(index, Opcode::RdmaWrite, qpn_ds(handle.qpn, 3));
            for (to, segment) in wqe.chunks_exact_mut(16).zip([
                control(head, SIGNALLED, 0),
                remote(self.remote.addr(), self.remote.remote().rkey),
                data(size, self.local.lkey(), self.local.addr()),
            ]) {
                to.copy_from_slice(&segment_bytes(segment));
            }
            let at = handle.sq + index % u64::from(DEPTH) * 64;
            bus.memory
                .write(bus::Access::HOST_COPY, at, &wqe)
                .expect("WQE");
            self.next += 1;
            let dbr = dbr_word(self.next).to_le_bytes();
            bus.memory
                .write(bus::Access::HOST_COPY, handle.dbr, &dbr)
                .expect("DBR");
            bus.mmio_write(
                bus::bar_base(0) + 0x1800,
                &doorbell(self.next, handle.qpn).to_le_bytes(),
            )
            .expect("ring");
        }
        bus.run_devices(u64::MAX);
    }
}

fn main() {
    for (name, nics) in [("one NIC", 1), ("two NICs, a cable", 2)] {
        let mut rig = Stepped::new(nics, 64);
        let begun = Instant::now();
        let mut count = 0;
        while begun.elapsed() < Duration::from_secs(2) {
            for _ in 0..100 {
                rig.batch();
                count += BATCH;
            }
        }
        let seconds = begun.elapsed().as_secs_f64();
        let stats = rig.world.nic_stats();
        assert_eq!(stats.cqes, count);
        println!("stepping, {name}: {:.0} WQEs/s", count as f64 / seconds);
        assert_eq!(rig.world.findings(), [""; 0]);
        let _ = &rig.qp;
    }
}
