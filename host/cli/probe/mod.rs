//! `warpverbs probe`: what a NIC does where specifications are silent, tried out with rings in host memory and no GPU.
//!
//! Knows: which NIC, how often, and how two reports are compared.
//! Must not know: what a trial does.

#[allow(unsafe_code)]
mod rig;
mod trials;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use warpverbs::driver::sim::World;
use warpverbs::driver::{Gpu, Nic};
use warpverbs::{Context, GpuContext, MemoryPath};

use crate::args::ProbeArgs;
use crate::failure::Failure;
use crate::mlx5;
use crate::output;

pub(crate) fn run(args: &ProbeArgs) -> Result<(), Failure> {
    let expected = match &args.against {
        Some(path) => Some(read(path)?),
        None => None,
    };
    let begun = Instant::now();
    let world = match args.nic.as_str() {
        "sim" => Some(
            World::builder()
                .build_on_host()
                .map_err(|error| Failure::Run(format!("cannot start the NIC: {error}")))?,
        ),
        _ => None,
    };
    let (nic, gpu) = match &world {
        Some(world) => (world.nic(), world.gpu()),
        None => mlx5::open_with_host(&args.nic)?,
    };
    let name = mlx5::shown(&nic.name());
    let memory = memory(nic.clone(), gpu)?;
    let device = rig::Device::open(nic)?;
    let trials = trials::all(&device, args.trials)?;
    device.close()?;
    // Trials break rules, so findings are not looked at; leaks are.
    if let Some(object) = world.iter().flat_map(World::live).next() {
        return Err(Failure::Run(format!("left behind: {object}")));
    }
    let report = json!({
        "nic": name,
        "rings": "host memory",
        "gpu_memory": memory,
        "trials": args.trials,
        "probes": trials,
        "seconds": begun.elapsed().as_secs_f64(),
    });
    let text = serde_json::to_string_pretty(&report)
        .map_err(|error| Failure::Run(format!("cannot write the report: {error}")))?;
    output::result(&(text + "\n"))?;
    let Some(expected) = expected else {
        return Ok(());
    };
    let mut differences = Vec::new();
    compare(
        "probes",
        &report["probes"],
        &expected["probes"],
        &mut differences,
    );
    if differences.is_empty() {
        return Ok(());
    }
    Err(Failure::Run(format!(
        "{} difference(s): {}",
        differences.len(),
        differences.join("; ")
    )))
}

/// How the NIC reaches memory of a GPU, and what other ways would take.
fn memory(nic: Arc<dyn Nic>, gpu: Arc<dyn Gpu>) -> Result<Value, Failure> {
    let (nic, gpu) = (Context::open(nic)?, GpuContext::open(gpu)?);
    let paths = nic.probe_memory(&gpu)?;
    let name = |path: Option<MemoryPath>| path.map(MemoryPath::name);
    let refused: serde_json::Map<String, Value> = paths
        .refused
        .iter()
        .map(|(path, refusal)| {
            let why = json!({"refusal": refusal.to_string(), "cure": path.cure()});
            (path.name().to_owned(), why)
        })
        .collect();
    Ok(json!({
        "gpu": gpu.name(),
        "data": name(paths.data),
        "queues": name(paths.queues),
        "refused": refused,
    }))
}

fn read(path: &Path) -> Result<Value, Failure> {
    let bad = |why: String| Failure::Usage(format!("{}: {why}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
    let value: Value = serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
    if value["probes"].is_object() {
        Ok(value)
    } else {
        Err(bad("not a report of `warpverbs probe`".into()))
    }
}

/// Notes where two reports differ: in what was seen at all, not in how often, nor in times.
fn compare(place: &str, found: &Value, expected: &Value, differences: &mut Vec<String>) {
    match (found, expected) {
        (Value::Object(found), Value::Object(expected)) => {
            let keys = found
                .keys()
                .chain(expected.keys().filter(|key| !found.contains_key(*key)));
            for key in keys.filter(|key| !key.ends_with("_us")) {
                let place = format!("{place}: {key}");
                match (found.get(key), expected.get(key)) {
                    (Some(found), Some(expected)) => compare(&place, found, expected, differences),
                    (Some(_), None) => {
                        differences.push(format!("{place}: not in the other report"))
                    }
                    _ => differences.push(format!("{place}: in the other report alone")),
                }
            }
        }
        (Value::Number(_), Value::Number(_)) => {}
        _ if found == expected => {}
        _ => differences.push(format!("{place}: {found}, in the other report {expected}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_differ_in_what_was_seen_and_not_in_how_often_or_how_long() {
        let differences = |found: Value, expected: Value| {
            let mut differences = Vec::new();
            compare("probes", &found, &expected, &mut differences);
            differences
        };
        let one = json!({"a": {"0x05/0xf9": 3}, "took_us": 5, "nop": "done 0x00"});
        let same = json!({"a": {"0x05/0xf9": 30}, "took_us": 7, "nop": "done 0x00"});
        assert_eq!(differences(one.clone(), same), [""; 0]);
        let other = json!({"a": {"0x05/0xf5": 3}, "took_us": 5, "nop": "done 0x01"});
        assert_eq!(
            differences(one, other),
            [
                "probes: a: 0x05/0xf9: not in the other report",
                "probes: a: 0x05/0xf5: in the other report alone",
                "probes: nop: \"done 0x00\", in the other report \"done 0x01\"",
            ]
        );
    }
}
