//! `hw_counters` in sysfs: what the port's counter set holds, as files.
//!
//! Knows: the names that the kernel's driver gives to counters (Linux mlx5_ib counters.c `basic_q_cnts`, `out_of_seq_q_cnts`,
//! `retrans_q_cnts`, `extended_err_cnts`). Must not know: what counts.
//!
//! A file is no query: files are written again when the program opens one, and a few times a second for those who look
//! from outside.

use std::fs;
use std::path::Path;
use std::time::Duration;

use warpverbs_wire::prm::query_q_counter::Out as Values;
use warpverbs_wire::prm::{Command, query_q_counter};

use crate::errno::{Errno, Result};
use crate::world::{World, existing};

/// So often files are written for others.
const EVERY: Duration = Duration::from_millis(200);

type Counter = (&'static str, fn(&Values) -> u32);

/// The counters.
const COUNTERS: &[Counter] = &[
    ("rx_write_requests", |set| set.rx_write_requests),
    ("rx_read_requests", |set| set.rx_read_requests),
    ("rx_atomic_requests", |set| set.rx_atomic_requests),
    ("out_of_buffer", |set| set.out_of_buffer),
    ("out_of_sequence", |set| set.out_of_sequence),
    ("duplicate_request", |set| set.duplicate_request),
    ("rnr_nak_retry_err", |set| set.rnr_nak_retry_err),
    ("packet_seq_err", |set| set.packet_seq_err),
    ("implied_nak_seq_err", |set| set.implied_nak_seq_err),
    ("local_ack_timeout_err", |set| set.local_ack_timeout_err),
    ("resp_local_length_error", |set| set.resp_local_length_error),
    ("resp_cqe_error", |set| set.resp_cqe_error),
    ("req_cqe_error", |set| set.req_cqe_error),
    ("req_remote_invalid_request", |set| {
        set.req_remote_invalid_request
    }),
    ("req_remote_access_errors", |set| {
        set.req_remote_access_errors
    }),
    ("resp_remote_access_errors", |set| {
        set.resp_remote_access_errors
    }),
];

/// Folder of the first NIC's counters, below the tree's root.
pub(crate) fn folder(device: &str) -> String {
    format!("class/infiniband/{device}/ports/1/hw_counters")
}

/// Names of all files.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    COUNTERS.iter().map(|(name, _)| *name)
}

/// What a NIC's port has counted.
fn read(world: &World, nic: usize) -> Result<Values> {
    let command = query_q_counter::In {
        counter_set_id: world.port_counters(nic)?,
        ..query_q_counter::In::default()
    };
    let input = command.encode().map_err(|_| Errno::INVAL)?;
    let mut output = query_q_counter::In::reply();
    let answered = world
        .nic(nic)?
        .lock()
        .command(input.as_ref(), output.as_mut());
    answered.map_err(|_| Errno(libc::EIO))?;
    query_q_counter::In::decode(output.as_ref()).map_err(|_| Errno(libc::EIO))
}

/// Writes what has changed since `known`. A file is put in place whole.
fn write(root: &Path, device: &str, known: &Values, now: &Values) {
    for (name, counter) in COUNTERS {
        if counter(known) == counter(now) {
            continue;
        }
        let folder = root.join(folder(device));
        let fresh = folder.join(format!(".{name}"));
        // The tree may be gone: the process ends.
        let _ = fs::write(&fresh, format!("{}\n", counter(now)))
            .and_then(|()| fs::rename(&fresh, folder.join(name)));
    }
}

/// Writes all counters of NICs again.
pub(crate) fn refresh(root: &Path) {
    let Some(world) = existing() else { return };
    let Some(mut known) = world.counters_shown() else {
        return;
    };
    for (nic, known) in known.iter_mut().enumerate() {
        if let Ok(now) = read(world, nic) {
            write(root, &crate::sysfs::device_name(nic), known, &now);
            *known = now;
        }
    }
}

/// Writes them again and again, on a thread, for whoever reads from outside. Without a thread they are written when the
/// program itself opens one.
pub(crate) fn keep_fresh() {
    let thread = std::thread::Builder::new().name("counters".into());
    let _ = thread.spawn(|| {
        loop {
            std::thread::sleep(EVERY);
            if let Some(root) = crate::interpose::tree() {
                refresh(&root);
            }
        }
    });
}
