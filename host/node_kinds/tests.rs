//! The table against what nodes say of themselves while everything exists.

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use crate::driver::sim::World;
use crate::*;

type Arrows = BTreeSet<(&'static str, &'static str)>;

/// What nodes of both contexts say: their kind and context, and what they depend on.
fn seen(nic: &Context, gpu: &GpuContext, kinds: &mut Arrows, arrows: &mut Arrows) {
    for (context, graph) in [(NIC, nic.graph()), (GPU, gpu.graph())] {
        for (node, parents) in graph.nodes() {
            kinds.insert((node.kind, context));
            arrows.extend(parents.iter().map(|parent| (node.kind, parent.kind)));
        }
    }
}

#[test]
fn the_table_says_what_nodes_depend_on() {
    let world = World::builder().build();
    let (nic, gpu) = (
        Context::open(world.nic()).unwrap(),
        GpuContext::open(world.gpu()).unwrap(),
    );
    let pd = Pd::alloc(&nic).unwrap();
    let memory = gpu.alloc(4096, "memory").unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mr = Mr::register(&pd, &memory, access).unwrap();
    let host = HostMemory::zeroed(64);
    let _host_mr = Mr::register_host(&pd, &host, access).unwrap();
    let mut qp = QueuePair::create(&pd, &gpu, &QpConfig::default()).unwrap();
    let info = qp.local_info();
    qp.connect(&info).unwrap();
    let qps = [qp.export().unwrap()];
    let proxied = QpConfig::default().doorbell_path(DoorbellPath::Proxy);
    let _proxied = QueuePair::create(&pd, &gpu, &proxied).unwrap();
    let module = Module::embedded(&gpu).unwrap();
    let stream = Stream::create(&gpu).unwrap();
    // A key that does not exist: work stays outstanding when the launch is over.
    let remote = RemoteMr {
        rkey: 0xffff_ff00,
        ..mr.remote()
    };
    let write = Bandwidth {
        size: 64,
        slots: 1,
        iters: 20,
        ..Bandwidth::default()
    };
    let mut run = write.launch(&module, &stream, &qps, &mr, &remote).unwrap();
    let (mut kinds, mut arrows) = (Arrows::new(), Arrows::new());
    seen(&nic, &gpu, &mut kinds, &mut arrows);
    assert!(run.wait(Duration::from_secs(60)).unwrap().fault().is_some());
    drop(run);
    seen(&nic, &gpu, &mut kinds, &mut arrows);

    let table = NODE_KINDS.iter().map(|kind| (kind.name, kind.context));
    assert_eq!(kinds, table.collect());
    let table = NODE_KINDS
        .iter()
        .flat_map(|kind| kind.depends_on.iter().map(|other| (kind.name, other.on)));
    assert_eq!(arrows, table.collect());
}

#[test]
fn a_kind_stands_below_all_that_it_depends_on() {
    let mut above = BTreeSet::new();
    for kind in NODE_KINDS {
        assert!(kind.depends_on.iter().all(|other| above.contains(other.on)));
        assert!(above.insert(kind.name), "{} twice", kind.name);
    }
}
