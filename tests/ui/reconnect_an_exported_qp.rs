use warpverbs::ExportedQp;

fn reconnect(qp: ExportedQp, peer: &[u8]) {
    qp.qp().connect(peer).unwrap();
}

fn main() {}
