//! Launches of the provided kernels, typed: `wv_write_bw`, `wv_read_bw`, `wv_write_lat`.
//!
//! Knows: the choices that their parameter blocks have in common.
//! Must not know: what a caller measures or verifies.

#[allow(unsafe_code)]
mod bandwidth;
#[allow(unsafe_code)]
mod latency;
mod run;

use std::time::Duration;

use warpverbs_wire::abi;

use crate::error::{Error, Result};
use crate::export::ExportedQp;
use crate::launch::View;
use crate::resource::{DoorbellPath, GpuContext};

pub use bandwidth::{Bandwidth, Direction};
pub use latency::{Latency, LatencyEnd};
pub use run::{Run, RunReport, ThreadReport};

/// Which threads share a QP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// None: each thread has a QP of its own. A launch with the QP on another stream is refused meanwhile.
    #[default]
    Exclusive,
    /// All threads of the GPU: thread `t` uses QP `t % qps`. Launches on other streams that share it too may run at the
    /// same time.
    Gpu,
}

impl Sharing {
    /// How a view names the QPs.
    fn view<'a>(self) -> fn(View<'a>, &'a ExportedQp) -> View<'a> {
        match self {
            Self::Exclusive => View::qp,
            Self::Gpu => View::shared_qp,
        }
    }
}

/// How the doorbell is rung (rule O4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Doorbell {
    /// Doorbell record, then one ring.
    #[default]
    Db,
    /// Ring, doorbell record, ring.
    DbEarly,
    /// A host thread does both ([`Proxy`](crate::Proxy)): for QPs made with [`DoorbellPath::Proxy`].
    Proxy,
    /// One ring: for QPs made with [`DoorbellPath::GpuWithoutRecord`].
    NoDbr,
}

impl Doorbell {
    fn code(self) -> u32 {
        match self {
            Self::Db => abi::DOORBELL_DB,
            Self::DbEarly => abi::DOORBELL_EARLY,
            Self::Proxy => abi::DOORBELL_PROXY,
            Self::NoDbr => abi::DOORBELL_NO_DBR,
        }
    }

    /// How a QP must have been made for it.
    pub fn path(self) -> DoorbellPath {
        match self {
            Self::Db | Self::DbEarly => DoorbellPath::Gpu,
            Self::Proxy => DoorbellPath::Proxy,
            Self::NoDbr => DoorbellPath::GpuWithoutRecord,
        }
    }
}

/// Longer than a QP's retry time at timeout 14 and retry count 7, about 3.6 s (rule O9).
const DEFAULT_WAIT_DEADLINE: Duration = Duration::from_secs(10);

fn check_qps(gpu: &GpuContext, qps: &[&ExportedQp], size: u32, doorbell: Doorbell) -> Result<()> {
    for (at, qp) in qps.iter().enumerate() {
        let path = qp.qp().config().path();
        if path != doorbell.path() {
            return Err(Error::InvalidArgument {
                what: format!(
                    "QP {:#x} was made with DoorbellPath::{path:?}, doorbell {doorbell:?} needs {:?}",
                    qp.qpn(),
                    doorbell.path()
                ),
                cure: "create the QP with the doorbell's path, or launch with another doorbell",
            });
        }
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
