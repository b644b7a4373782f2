use warpverbs::QueuePair;

fn connect(mut qp: QueuePair, peer: &[u8]) {
    qp.close().unwrap();
    qp.connect(peer).unwrap();
}

fn main() {}
