use warpverbs::QueuePair;

fn destroy(qp: QueuePair) {
    let exported = qp.export().unwrap();
    qp.close().unwrap();
    drop(exported);
}

fn main() {}
