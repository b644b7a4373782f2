//! The data path on the CPU, over queues made by hand.
#![cfg(not(loom))]

mod completions;
mod doorbells;
mod forms;
mod groups;
mod operations;
mod posts;
mod queue;
mod reads;
mod receives;
mod requests;
mod threads;

use warpverbs_device::{Local, Remote};

const LOCAL: Local = Local {
    addr: 0x1122_3344_5566_7788,
    lkey: 0x0102_0304,
};
const REMOTE: Remote = Remote {
    addr: 0x99aa_bbcc_ddee_ff00,
    rkey: 0x1122_3344,
};

/// A queue of the given modes, opened.
macro_rules! open {
    ($queue:expr, $sharing:ty, $doorbell:ty, $form:ty) => {{
        let address = $queue.address();
        // SAFETY: a live handle; the test keeps it, and uses it in one mode at a time.
        unsafe { warpverbs_device::Sq::<$sharing, $doorbell, $form>::open(address) }
    }};
}
pub(crate) use open;
