//! libmlx5 and this project's code as oracles of each other, over the simulated NIC: WQEs, CQEs, and what QUERY_QP says.
//!
//! Both parse or build the same thing for parameters by chance; any difference ends the run. Run by ci/oracle:
//! `oracle [CASES [CASES_OF_THE_NIC [SEED]]]`.

mod cqes;
mod device;
mod ffi;
mod memory;
mod nic;
mod query;
mod receives;
mod request;
mod verbs;
mod wqes;

use std::collections::BTreeMap;
use std::process::ExitCode;

use warpverbs_sim_bus::Rng;
// Its names come before libc's: libibverbs finds the simulated NIC.
use warpverbs_sim as _;

/// How many cases were compared, by type.
#[derive(Default)]
pub struct Tally {
    /// Cases a type that are wanted.
    pub wanted: u64,
    /// In the order in which types were begun.
    groups: Vec<(&'static str, BTreeMap<String, u64>)>,
}

impl Tally {
    fn group(&mut self, name: &'static str) {
        self.groups.push((name, BTreeMap::new()));
    }

    /// One more case of a type.
    pub fn add(&mut self, name: impl Into<String>) {
        let (_, types) = self.groups.last_mut().expect("a group");
        *types.entry(name.into()).or_default() += 1;
    }

    /// True if there are fewer cases of a type than wanted.
    pub fn wants(&self, name: &str) -> bool {
        self.count(name) < self.wanted
    }

    pub fn count(&self, name: &str) -> u64 {
        let (_, types) = self.groups.last().expect("a group");
        types.get(name).copied().unwrap_or(0)
    }

    fn tell(&self) {
        for (group, types) in &self.groups {
            for (name, count) in types {
                println!("  {name}: {count}");
            }
            let least = types.values().min().copied().unwrap_or(0);
            println!(
                "{group}: {} types, {least} cases each or more, 0 differences",
                types.len()
            );
        }
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mut number = |or: u64| match arguments.next().map(|text| text.parse()) {
        None => Some(or),
        Some(parsed) => parsed.ok(),
    };
    let (Some(wanted), Some(of_nic), Some(seed)) = (number(1000), number(100), number(1)) else {
        eprintln!("usage: oracle [CASES [CASES_OF_THE_NIC [SEED]]]");
        return ExitCode::from(2);
    };
    println!("seed {seed}, {wanted} cases a type, {of_nic} of the simulated NIC");
    let mut tally = Tally {
        wanted,
        ..Tally::default()
    };
    let mut rng = Rng::new(seed);
    tally.group("WQEs that libmlx5 posts");
    wqes::compare(&mut tally, &mut rng);
    tally.group("receive WQEs that libmlx5 posts");
    receives::compare(&mut tally, &mut rng);
    tally.group("CQEs of every content, read by libmlx5");
    cqes::compare(&mut tally, &mut rng);
    tally.wanted = of_nic;
    tally.group("CQEs of the simulated NIC, read by libmlx5");
    nic::compare(&mut tally, &mut rng);
    tally.group("QUERY_QP");
    query::compare(&mut tally, &mut rng);
    tally.tell();
    ExitCode::SUCCESS
}
