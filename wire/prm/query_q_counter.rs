//! QUERY_Q_COUNTER: reads a set of counters.
//!
//! `mlx5_ifc_query_q_counter_in_bits`, `mlx5_ifc_query_q_counter_out_bits`.

use crate::layout::structure;
use crate::prm::Status;

structure! {
    /// Reads a counter set.
    pub struct In: Mlx5Ifc "query_q_counter_in", 0x100 bits, opcode 0x773 {
        /// True: the set is another function's.
        other_vport: bool => 0x40, 1;
        /// The other function's port.
        vport_number: u16 => 0x50, 16;
        /// True: the counters are zeroed after they are read.
        clear: bool => 0xc0, 1;
        /// True: all sets are summed up.
        aggregate: bool => 0xc1, 1;
        /// Number of the counter set.
        counter_set_id: u8 => 0xf8, 8;
    }
}

structure! {
    /// The answer to [`In`].
    pub struct Out: Mlx5Ifc "query_q_counter_out", 0x800 bits {
        /// How the command ended.
        status: Status => 0x00, 8;
        /// Which check of the firmware failed.
        syndrome: u32 => 0x20, 32;
        /// RDMA WRITE requests received.
        rx_write_requests: u32 => 0x80, 32;
        /// RDMA READ requests received.
        rx_read_requests: u32 => 0xc0, 32;
        /// Atomic requests received.
        rx_atomic_requests: u32 => 0x100, 32;
        /// Connections of dynamically connected targets.
        rx_dct_connect: u32 => 0x140, 32;
        /// Receives dropped because no receive WQE was posted.
        out_of_buffer: u32 => 0x180, 32;
        /// Packets received out of sequence.
        out_of_sequence: u32 => 0x1c0, 32;
        /// Requests received twice.
        duplicate_request: u32 => 0x200, 32;
        /// Receiver-not-ready answers received.
        rnr_nak_retry_err: u32 => 0x240, 32;
        /// Sequence-error answers received.
        packet_seq_err: u32 => 0x280, 32;
        /// Responses whose PSN told that an earlier one is lost.
        implied_nak_seq_err: u32 => 0x2c0, 32;
        /// Timeouts of the requester.
        local_ack_timeout_err: u32 => 0x300, 32;
        /// Requests given up after receiver-not-ready retries.
        req_rnr_retries_exceeded: u32 => 0x380, 32;
        /// Local length errors of the responder.
        resp_local_length_error: u32 => 0x3c0, 32;
        /// Local length errors of the requester.
        req_local_length_error: u32 => 0x3e0, 32;
        /// Local QP operation errors of the responder.
        resp_local_qp_error: u32 => 0x400, 32;
        /// Local operation errors of the requester.
        local_operation_error: u32 => 0x420, 32;
        /// Local protection errors of the responder.
        resp_local_protection: u32 => 0x440, 32;
        /// Local protection errors of the requester.
        req_local_protection: u32 => 0x460, 32;
        /// Responder completions with error.
        resp_cqe_error: u32 => 0x480, 32;
        /// Requester completions with error.
        req_cqe_error: u32 => 0x4a0, 32;
        /// Memory window bind errors.
        req_mw_binding: u32 => 0x4c0, 32;
        /// Bad responses.
        req_bad_response: u32 => 0x4e0, 32;
        /// Requests that the remote side found invalid.
        req_remote_invalid_request: u32 => 0x500, 32;
        /// Requests of the remote side found invalid.
        resp_remote_invalid_request: u32 => 0x520, 32;
        /// Requests that the remote side refused access to.
        req_remote_access_errors: u32 => 0x540, 32;
        /// Requests of the remote side refused access.
        resp_remote_access_errors: u32 => 0x560, 32;
        /// Requests that the remote side failed to carry out.
        req_remote_operation_errors: u32 => 0x580, 32;
        /// Requests given up after transport retries.
        req_transport_retries_exceeded: u32 => 0x5a0, 32;
        /// Completions that found their CQ full.
        cq_overflow: u32 => 0x5c0, 32;
        /// Receive WQEs flushed.
        resp_cqe_flush_error: u32 => 0x5e0, 32;
        /// Send WQEs flushed.
        req_cqe_flush_error: u32 => 0x600, 32;
        /// Adaptive retransmissions.
        roce_adp_retrans: u32 => 0x640, 32;
        /// Timeouts of adaptive retransmission.
        roce_adp_retrans_to: u32 => 0x660, 32;
        /// Slow restarts.
        roce_slow_restart: u32 => 0x680, 32;
        /// Congestion notifications of slow restarts.
        roce_slow_restart_cnps: u32 => 0x6a0, 32;
        /// Changes to slow restart.
        roce_slow_restart_trans: u32 => 0x6c0, 32;
    }
}

crate::prm::command!(In, Out, "QUERY_Q_COUNTER");
