//! Mutations of the committed PTX: the memory model finds each fence, scope and store that is missing.
//!
//! The default share is a selection; `WARPVERBS_FULL=1` is everything, and with `BLESS=1` writes the table in docs/mutants.md.

#[path = "../common/mod.rs"]
mod common;
mod modes;
mod places;
mod reached;
mod survivors;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use warpverbs::driver::sim::{Check, Scheduler};

use modes::{Effort, Ending, KERNELS, Mode};
use places::{Kind, Mutant, Place};
use table::{Row, Table};

/// Seeds within which a change is found.
const SEEDS: u64 = 100;
/// Seeds for a change that is listed as changing nothing.
const LISTED_SEEDS: u64 = 8;
/// Seeds whose runs say which places a mode executes.
const REACH_SEEDS: u64 = 6;
const ITERS: u64 = 30;

fn full() -> bool {
    std::env::var_os("WARPVERBS_FULL").is_some()
}

/// Works through a list with as many threads as there are CPUs, at most 4.
fn each<T: Sync>(work: &[T], act: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(4);
    let test = std::thread::current();
    let test = test.name().unwrap_or_default();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = work.get(at) else { break };
                    common::part_of_test(&format!("{test} {at}"));
                    act(item);
                }
            });
        }
    });
}

/// The places that a mode executes, each with the endings that get there.
fn places_of(ptx: &str, mode: &Mode) -> Vec<(Place, Vec<Ending>)> {
    let mut out: BTreeMap<usize, (Place, Vec<Ending>)> = BTreeMap::new();
    for ending in mode.endings() {
        for place in reached::reached(ptx, mode, ending, REACH_SEEDS) {
            out.entry(place.line)
                .or_insert_with(|| (place, Vec::new()))
                .1
                .push(ending);
        }
    }
    // A relay says nothing of a look at the stop word, which it finds unset: where it alone gets, nothing is judged.
    out.retain(|_, (_, endings)| *endings != [Ending::Relay]);
    out.into_values().collect()
}

const SCHEDULERS: [Scheduler; 2] = [Scheduler::Independent, Scheduler::Converge];

/// The first seed that finds the change, under either scheduler, and what was found.
fn find(
    kernel: &str,
    mode: &Mode,
    mutant: &Mutant,
    endings: &[Ending],
    seeds: u64,
) -> Option<(u64, String)> {
    let text = mutant.apply(kernel);
    let held = places::held(&text, &mutant.place);
    (1..=seeds).find_map(|seed| {
        SCHEDULERS.iter().find_map(|scheduler| {
            endings.iter().find_map(|ending| {
                let effort = Effort {
                    iters: ITERS,
                    check: Check::Strict,
                    scheduler: *scheduler,
                    seed,
                    ending: *ending,
                };
                let text = match ending {
                    // Who is held where it matters falls behind further than the schedulers alone let it.
                    Ending::Relay => &held,
                    _ => &text,
                };
                let found = mode.run(&|_| Ok(text.clone()), effort);
                found.map(|found| (seed, found))
            })
        })
    })
}

/// That threads are held is not what is found.
#[test]
fn held_threads_give_no_report() {
    let ptx = common::embedded_ptx();
    let wrong = Mutex::new(Vec::new());
    let modes: Vec<Mode> = Mode::all()
        .into_iter()
        .filter(|mode| mode.endings().contains(&Ending::Relay))
        .collect();
    each(&modes, |mode| {
        let kernel = places::kernel_alone(ptx, mode.kernel);
        for (place, endings) in places_of(ptx, mode) {
            if !endings.contains(&Ending::Relay) {
                continue;
            }
            let text = places::held(&kernel, &place);
            for seed in 1..=if full() { SEEDS } else { 2 } {
                let effort = Effort {
                    iters: ITERS,
                    check: Check::Strict,
                    scheduler: SCHEDULERS[(seed % 2) as usize],
                    seed,
                    ending: Ending::Relay,
                };
                if let Some(found) = mode.run(&|_| Ok(text.clone()), effort) {
                    let text = format!("{mode}, {}, {effort:?}: {found}", place.name);
                    wrong.lock().unwrap().push(text);
                }
            }
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A seed replays the same run, with the same report.
#[test]
fn the_same_seed_finds_the_same() {
    let mode = Mode::all()[0];
    let kernel = places::kernel_alone(common::embedded_ptx(), mode.kernel);
    let fence = Kind::NoFence;
    let found: Vec<_> = places::places(&kernel, mode.kernel)
        .iter()
        .flat_map(|place| places::mutants(&kernel, place))
        .filter(|mutant| mutant.kind == fence)
        .map(|mutant| {
            let run = || find(&kernel, &mode, &mutant, &[Ending::Done], 2);
            let first = run();
            assert_eq!(first, run());
            first
        })
        .collect();
    assert!(found.iter().filter(|found| found.is_some()).count() >= 3);
}

/// What the default share leaves out: each costs seconds, or is the same elsewhere.
fn in_default_share(mode: &Mode, kind: Kind) -> bool {
    use warpverbs::{CqForm, Doorbell, Sharing};
    let modes = [
        (
            "wv_write_bw",
            Sharing::Exclusive,
            Doorbell::Db,
            CqForm::Collapsed,
        ),
        ("wv_write_bw", Sharing::Gpu, Doorbell::DbEarly, CqForm::Ring),
        ("wv_read_bw", Sharing::Gpu, Doorbell::Db, CqForm::Collapsed),
        (
            "wv_write_lat",
            Sharing::Exclusive,
            Doorbell::Db,
            CqForm::Ring,
        ),
    ];
    modes.contains(&(mode.kernel, mode.sharing, mode.doorbell, mode.cq))
        && !matches!(kind, Kind::Cta | Kind::Weak)
}

#[test]
fn every_change_is_found_or_changes_nothing() {
    let ptx = common::embedded_ptx();
    let table = Mutex::new(Table::default());
    let wrong = Mutex::new(Vec::new());
    let modes: Vec<Mode> = Mode::all()
        .into_iter()
        .filter(|mode| full() || in_default_share(mode, Kind::NoFence))
        .collect();
    let executed = Mutex::new(BTreeSet::new());
    each(&modes, |mode| {
        let started = std::time::Instant::now();
        let kernel = places::kernel_alone(ptx, mode.kernel);
        for (place, endings) in places_of(ptx, mode) {
            executed.lock().unwrap().insert(place.line);
            for mutant in places::mutants(&kernel, &place) {
                let reason = survivors::reason(mode, &mutant, &endings);
                if !full() && (reason.is_some() || !in_default_share(mode, mutant.kind)) {
                    continue;
                }
                let seeds = if reason.is_some() {
                    LISTED_SEEDS
                } else {
                    SEEDS
                };
                let found = find(&kernel, mode, &mutant, &endings, seeds);
                let (kind, name, line) = (mutant.kind, &mutant.place.name, mutant.place.line + 1);
                let says =
                    format!("{mode}: {kind} at `{name}`, PTX line {line}, reached by {endings:?}");
                match (&found, reason) {
                    (None, None) => wrong.lock().unwrap().push(format!("{says}: not found")),
                    (Some((seed, what)), Some(_)) => {
                        let text = format!(
                            "{says}: found by seed {seed}, but listed as changing nothing: {what}"
                        );
                        wrong.lock().unwrap().push(text);
                    }
                    _ => {}
                }
                table.lock().unwrap().add(Row {
                    kernel: mode.kernel,
                    kind,
                    place: name.clone(),
                    seed: found.map(|(seed, _)| seed),
                    reason,
                });
            }
        }
        println!("{mode}: {:.0?}", started.elapsed());
    });
    let mut table = table.into_inner().unwrap();
    let executed = executed.into_inner().unwrap();
    for kernel in KERNELS {
        for place in places::places(&places::kernel_alone(ptx, kernel), kernel) {
            if !executed.contains(&place.line) {
                table.add_unreached(kernel, place.name);
            }
        }
    }
    let wrong = wrong.into_inner().unwrap();
    println!("{}", table.summary());
    if full() {
        table::bless(&table.to_markdown());
    }
    assert!(
        wrong.is_empty(),
        "{}\n{}",
        table.summary(),
        wrong.join("\n")
    );
    if full() {
        table::compare(&table.to_markdown());
    }
}

#[test]
fn the_table_in_the_docs_is_current_in_form() {
    table::check_form(&table::committed());
}
