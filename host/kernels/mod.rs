//! Launches of the provided kernels, typed. docs/kernels.md lists them.
//!
//! Knows: what holds of all of them.
//! Must not know: what a caller measures or verifies.

mod bandwidth;
#[allow(unsafe_code)]
mod latency;
mod mode;
#[allow(unsafe_code)]
mod rate;
mod run;
#[allow(unsafe_code)]
mod sends;
#[allow(unsafe_code)]
mod task;

use std::time::Duration;

use crate::error::{Error, Result};
use crate::export::ExportedQp;
use crate::resource::{GpuContext, GpuMemory};

pub use bandwidth::{Bandwidth, Direction};
pub use latency::{Latency, LatencyEnd};
pub use mode::{Completions, Doorbell, Order, Sharing};
pub use rate::{Operation, Rate};
pub use run::{Run, RunReport, ThreadReport};
pub use sends::{Landed, LandedLog, Sends};
pub use task::{SeededData, Task, TaskLaunch};

/// Longer than a QP's retry time at timeout 14 and retry count 7, about 3.6 s (rule O9).
const DEFAULT_WAIT_DEADLINE: Duration = Duration::from_secs(10);

fn check_qps(gpu: &GpuContext, qps: &[&ExportedQp], size: u32) -> Result<()> {
    for (at, qp) in qps.iter().enumerate() {
        if qps[..at]
            .iter()
            .any(|earlier| earlier.handle() == qp.handle())
        {
            return Err(Error::InvalidArgument {
                what: format!("QP {:#x} is given twice", qp.qpn()),
                cure: "give each QP once",
            });
        }
        if !qp.qp().gpu().is(gpu) {
            return Err(Error::InvalidArgument {
                what: format!("QP {:#x} is on another GPU than the module", qp.qpn()),
                cure: "load the module on the QP's GPU",
            });
        }
        let log_max = qp.qp().log_max_message();
        if u64::from(size) > 1u64.checked_shl(log_max.into()).unwrap_or(u64::MAX) {
            return Err(Error::InvalidArgument {
                what: format!(
                    "{size} bytes are more than the port's largest message of 2^{log_max}"
                ),
                cure: "move less in one operation",
            });
        }
    }
    Ok(())
}

fn wrong<T>(what: String, cure: &'static str) -> Result<T> {
    Err(Error::InvalidArgument { what, cure })
}

/// A table of addresses, for a kernel.
fn addresses(gpu: &GpuContext, all: impl Iterator<Item = u64>) -> Result<GpuMemory> {
    let bytes: Vec<u8> = all.flat_map(u64::to_le_bytes).collect();
    gpu.alloc_copy(&bytes, "addresses of handles")
}

/// Fails unless threads, blocks and QPs fit each other.
fn check_geometry(
    (threads, block, sharing): (u32, u32, Sharing),
    (size, slots, iters): (u32, u32, u64),
    qps: &[ExportedQp],
) -> Result<()> {
    if threads == 0 || block == 0 || size == 0 || slots == 0 || iters == 0 {
        return wrong(
            "threads, block, size, slots and iters must not be 0".into(),
            "give each at least 1",
        );
    }
    if threads > block && !threads.is_multiple_of(block) {
        return wrong(
            format!("{threads} threads are no whole number of blocks of {block}"),
            "choose a multiple of the block",
        );
    }
    if qps.is_empty() {
        return wrong("no QP given".into(), "give at least one");
    }
    let (needed, who) = match sharing {
        Sharing::Exclusive => (threads, "threads"),
        Sharing::Warp | Sharing::Cta => (threads.div_ceil(block), "blocks"),
        Sharing::Gpu => (1, "GPU"),
    };
    if needed as usize > qps.len() {
        return wrong(
            format!(
                "{needed} {who} need as many QPs of their own, {} given",
                qps.len()
            ),
            "give a QP for each, or share the QPs more widely",
        );
    }
    if sharing == Sharing::Warp && block.min(threads) > 32 {
        return wrong(
            format!("blocks of {block} threads are more than a warp"),
            "choose blocks of at most 32 threads, or share the QPs by block",
        );
    }
    Ok(())
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_beyond_64_bits_is_the_longest() {
        assert_eq!(nanos(Duration::from_micros(7)), 7000);
        assert_eq!(nanos(Duration::MAX), u64::MAX);
    }
}
