//! A QP that was handed to the GPU is not the owner's to hand over again.

use warpverbs::{ExportedQp, QueuePair, Result};

fn twice(qp: QueuePair) -> Result<[ExportedQp; 2]> {
    Ok([qp.export()?, qp.export()?])
}

fn main() {
    let _ = twice;
}
