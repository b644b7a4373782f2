//! Who rings in the mode `--doorbell proxy`: a host thread, or a simulation's schedule.
//!
//! Knows: how long that goes on, and what it says at the end. Must not know: what is posted.

use warpverbs::driver::sim::Beside;
use warpverbs::{Proxy, QueuePair};

use super::devices::Devices;
use crate::failure::{Failure, one_line};

/// A proxy at work. Its queue pairs are served until it is dropped.
pub(super) struct Serving {
    /// In the schedule of a simulation: a seed replays it. It ends first.
    beside: Option<Beside>,
    proxy: Proxy,
}

impl Serving {
    pub(super) fn start(devices: &Devices) -> Result<Self, Failure> {
        let stepped = Proxy::without_thread();
        let steps = stepped.clone();
        Ok(match devices.run_beside(move || steps.step() > 0) {
            Some(beside) => Self {
                beside: Some(beside),
                proxy: stepped,
            },
            None => Self {
                beside: None,
                proxy: Proxy::start()?,
            },
        })
    }

    pub(super) fn add(&self, qps: &[QueuePair]) -> Result<(), Failure> {
        for qp in qps {
            self.proxy.add(qp)?;
        }
        Ok(())
    }

    /// Ends it; what it left undone, one line each.
    pub(super) fn end(self) -> Vec<String> {
        drop(self.beside);
        let stood = match self.proxy.stop() {
            Ok(stood) => stood,
            Err(error) => return vec![format!("the proxy does not end: {}", one_line(&error))],
        };
        stood
            .iter()
            .filter_map(|served| match &served.failure {
                Some(why) => Some(format!(
                    "the proxy gave up queue pair {:#x}: {}",
                    served.qpn,
                    one_line(why)
                )),
                None if served.is_all_rung() => None,
                None => Some(format!(
                    "the proxy rang for {} work request blocks of queue pair {:#x}, of {}",
                    served.rung, served.qpn, served.producer
                )),
            })
            .collect()
    }
}
