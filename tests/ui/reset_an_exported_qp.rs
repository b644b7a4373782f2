use warpverbs::QueuePair;

fn reset(mut qp: QueuePair) {
    let exported = qp.export().unwrap();
    qp.reset().unwrap();
    drop(exported);
}

fn main() {}
