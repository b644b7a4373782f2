//! End to end: two GPU threads on two QPs send each other messages in turn.

mod common;

use common::{Options, PATIENCE, POISON, connected_pair};
use warpverbs::driver::sim::Scheduler;
use warpverbs::{
    Access, Context, Doorbell, GpuContext, Latency, LatencyEnd, Module, Mr, Pd, Stream,
};

#[test]
fn messages_go_back_and_forth() {
    for (scheduler, doorbell, size) in [
        (Scheduler::Independent, Doorbell::Db, 8),
        (Scheduler::Converge, Doorbell::Db, 64),
        (Scheduler::Independent, Doorbell::DbEarly, 1),
        (Scheduler::Independent, Doorbell::Db, 4096),
    ] {
        let world = Options {
            scheduler,
            ..Options::default()
        }
        .world();
        let nic = Context::open(world.nic()).unwrap();
        let gpu = GpuContext::open(world.gpu()).unwrap();
        let pd = Pd::alloc(&nic).unwrap();
        let (first, second) = connected_pair(&pd, &gpu, &Options::default().qp_config()).unwrap();
        let (first, second) = (first.export().unwrap(), second.export().unwrap());
        let memory = gpu.alloc_copy(&[POISON; 4 * 4096], "mailboxes").unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        // Each message ends where its page ends.
        let mrs: Vec<Mr> = (1..=4)
            .map(|page| {
                let end = page * 4096;
                Mr::register_range(&pd, &memory, end - u64::from(size)..end, access).unwrap()
            })
            .collect();
        let module = Module::embedded(&gpu).unwrap();
        let stream = Stream::create(&gpu).unwrap();
        let iters = 300;
        let ends = [
            LatencyEnd {
                qp: &first,
                outbox: &mrs[0],
                inbox: &mrs[1],
            },
            LatencyEnd {
                qp: &second,
                outbox: &mrs[2],
                inbox: &mrs[3],
            },
        ];
        let mut run = Latency {
            size,
            iters,
            doorbell,
            ..Latency::default()
        }
        .launch(&module, &stream, ends)
        .unwrap();
        let report = run.wait(PATIENCE).unwrap();
        report.check().unwrap();
        assert_eq!(report.completed(), 2 * iters);
        assert_eq!(world.findings(), [""; 0]);
        // The last message's sequence number lies at its end, in both inboxes.
        let bytes = memory.to_vec().unwrap();
        let width = if size < 8 { 1 } else { 8 };
        for end in [2 * 4096, 4 * 4096] {
            assert_eq!(bytes[end - width..end], iters.to_le_bytes()[..width]);
            let message = &bytes[end - size as usize..end - width];
            assert!(message.iter().all(|byte| *byte == POISON));
        }
    }
}
