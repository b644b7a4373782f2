use warpverbs::QueuePair;

fn export(qp: QueuePair) {
    let one = qp.export().unwrap();
    let two = qp.export().unwrap();
    drop((one, two));
}

fn main() {}
