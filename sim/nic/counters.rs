//! Counter sets: what the QPs that are attached to one count together.
//!
//! Knows: the counters, and that a QP without a set counts nowhere.
//! Must not know: what is counted when.

use warpverbs_wire::cqe::Syndrome;
use warpverbs_wire::prm::query_q_counter::Out as Values;
use warpverbs_wire::roce::NakCode;

use crate::failure::Failed;
use crate::work::Work;

/// A counter set.
#[derive(Clone, Debug)]
pub(crate) struct CounterSet {
    pub(crate) uid: u16,
    /// As QUERY_Q_COUNTER answers.
    pub(crate) values: Values,
}

impl Work<'_> {
    /// Counts one more of `which`, if the QP is attached to a set.
    pub(crate) fn count(&mut self, which: impl FnOnce(&mut Values) -> &mut u32) {
        let set = self
            .objects
            .qps
            .get(self.qpn)
            .map_or(0, |qp| u32::from(qp.context.counter_set_id));
        // Set 0 is none (assumed: no set has the number).
        if set != 0
            && let Some(set) = self.objects.counters.get_mut(set)
        {
            let counter = which(&mut set.values);
            *counter = counter.wrapping_add(1);
        }
    }

    /// Counts the error of a requester, whether or not a CQE will tell of it (docs/hardware-facts.md).
    pub(crate) fn count_failure(&mut self, failed: Failed) {
        match failed.syndrome {
            Syndrome::LocalLength => self.count(|set| &mut set.req_local_length_error),
            Syndrome::LocalQpOperation => self.count(|set| &mut set.local_operation_error),
            Syndrome::LocalProtection => self.count(|set| &mut set.req_local_protection),
            Syndrome::BadResponse => self.count(|set| &mut set.req_bad_response),
            Syndrome::RemoteInvalidRequest => {
                self.count(|set| &mut set.req_remote_invalid_request);
            }
            Syndrome::RemoteAccess => self.count(|set| &mut set.req_remote_access_errors),
            Syndrome::RemoteOperation => self.count(|set| &mut set.req_remote_operation_errors),
            Syndrome::TransportRetryExceeded => {
                self.count(|set| &mut set.req_transport_retries_exceeded);
            }
            Syndrome::RnrRetryExceeded => self.count(|set| &mut set.req_rnr_retries_exceeded),
            _ => {}
        }
    }

    /// Counts a request that the responder refuses.
    pub(crate) fn count_refusal(&mut self, code: NakCode) {
        match code {
            NakCode::InvalidRequest => self.count(|set| &mut set.resp_remote_invalid_request),
            NakCode::RemoteAccess => self.count(|set| &mut set.resp_remote_access_errors),
            _ => {}
        }
    }

    /// Counts the error of a receive WQE.
    pub(crate) fn count_receive_failure(&mut self, failed: Failed) {
        match failed.syndrome {
            Syndrome::LocalLength => self.count(|set| &mut set.resp_local_length_error),
            Syndrome::LocalQpOperation => self.count(|set| &mut set.resp_local_qp_error),
            Syndrome::LocalProtection => self.count(|set| &mut set.resp_local_protection),
            _ => {}
        }
    }
}
