//! Rings, records, doorbells: anything a program can write there.
#![no_main]

#[allow(dead_code)]
#[path = "../../sim/nic/tests/nic/hostile.rs"]
mod hostile;
#[allow(dead_code)]
#[path = "../../sim/nic/tests/nic/rig.rs"]
mod rig;

libfuzzer_sys::fuzz_target!(|data: &[u8]| hostile::queues(data));
