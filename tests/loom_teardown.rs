//! The gate, the baton and the stage table under every interleaving of a few threads: `RUSTFLAGS="--cfg loom" cargo test --test
//! loom_teardown --release`.
#![cfg(loom)]
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "modules of the host crate, on loom's primitives"
)]

#[path = "../host/teardown/baton.rs"]
mod baton;
#[path = "../host/teardown/gate.rs"]
mod gate;
#[path = "../host/teardown/stage.rs"]
mod stage;
/// Loom's primitives in the place of `std`'s.
mod sync {
    pub(crate) use loom::sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicU8, Ordering},
    };
    pub(crate) use std::sync::PoisonError;
}

use std::time::{Duration, Instant};

use baton::Baton;
use gate::{Claim, Gate};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use stage::{Stage, StageCell, StageEvent};

/// A deadline that no wait reaches: loom's waits end when they are told to.
fn far() -> Instant {
    Instant::now() + Duration::from_secs(1 << 20)
}

/// A deadline that has passed: whoever would wait does not.
fn past() -> Instant {
    Instant::now()
}

/// What a gate guards: whether it lives, and how often it was destroyed.
struct Guarded {
    gate: Gate,
    destroyed: AtomicUsize,
}

impl Guarded {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            gate: Gate::new(),
            destroyed: AtomicUsize::new(0),
        })
    }

    fn close(&self, refused: bool, deadline: Instant) -> bool {
        if self.gate.claim(deadline) != Claim::Yours {
            return false;
        }
        if !refused {
            self.destroyed.fetch_add(1, Ordering::Relaxed);
        }
        self.gate.settle(!refused);
        !refused
    }

    fn lives(&self) -> bool {
        self.destroyed.load(Ordering::Relaxed) == 0
    }
}

#[test]
fn nobody_inside_sees_it_destroyed_and_it_is_destroyed_once() {
    loom::model(|| {
        let guarded = Guarded::new();
        let user = {
            let guarded = guarded.clone();
            thread::spawn(move || {
                if guarded.gate.enter() {
                    assert!(guarded.lives());
                    guarded.gate.leave();
                }
            })
        };
        let guest = {
            let guarded = guarded.clone();
            thread::spawn(move || {
                if guarded.gate.visit() {
                    assert!(guarded.lives());
                    guarded.gate.depart();
                }
            })
        };
        guarded.close(false, far());
        user.join().unwrap();
        guest.join().unwrap();
        guarded.close(false, far());
        assert_eq!(guarded.destroyed.load(Ordering::Relaxed), 1);
        assert_eq!(guarded.gate.claim(past()), Claim::Closed);
        assert!(!guarded.gate.enter());
    });
}

#[test]
fn two_destroyers_take_turns_and_a_refusal_leaves_it_to_the_next() {
    loom::model(|| {
        let guarded = Guarded::new();
        let other = {
            let guarded = guarded.clone();
            thread::spawn(move || guarded.close(true, far()))
        };
        let mine = guarded.close(false, far());
        other.join().unwrap();
        // Whoever came first, the refusal did not end it.
        assert!(mine);
        assert_eq!(guarded.destroyed.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_gate_that_is_shut_waits_for_those_inside() {
    loom::model(|| {
        let guarded = Guarded::new();
        let inside = Arc::new(AtomicUsize::new(0));
        let user = {
            let (guarded, inside) = (guarded.clone(), inside.clone());
            thread::spawn(move || {
                if guarded.gate.enter() {
                    inside.fetch_add(1, Ordering::Relaxed);
                    inside.fetch_sub(1, Ordering::Relaxed);
                    guarded.gate.leave();
                }
            })
        };
        assert_eq!(guarded.gate.shut(far()), 0);
        assert_eq!(inside.load(Ordering::Relaxed), 0);
        assert!(!guarded.gate.enter());
        user.join().unwrap();
    });
}

#[test]
fn a_destroyer_that_is_late_leaves_the_gate_as_it_was() {
    loom::model(|| {
        let guarded = Guarded::new();
        let guest = {
            let guarded = guarded.clone();
            thread::spawn(move || {
                let came_in = guarded.gate.visit();
                if came_in {
                    assert!(guarded.lives());
                    guarded.gate.depart();
                }
            })
        };
        // Either it comes before the guest, or after, or in between: then it is late, and nothing was destroyed.
        let mine = guarded.close(false, past());
        assert_eq!(guarded.lives(), !mine);
        guest.join().unwrap();
        assert_eq!(guarded.gate.visit(), !mine);
        if !mine {
            guarded.gate.depart();
            assert!(guarded.close(false, far()));
        }
        assert_eq!(guarded.destroyed.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_gate_that_is_shut_too_late_says_how_many_are_inside() {
    loom::model(|| {
        let guarded = Guarded::new();
        let user = {
            let guarded = guarded.clone();
            thread::spawn(move || {
                if guarded.gate.enter() {
                    guarded.gate.leave();
                }
            })
        };
        assert!(guarded.gate.shut(past()) <= 1);
        assert!(!guarded.gate.enter(), "shut, whoever is inside");
        user.join().unwrap();
        assert_eq!(guarded.gate.shut(past()), 0);
    });
}

#[test]
fn one_holds_the_baton_and_a_late_one_goes_without() {
    loom::model(|| {
        let baton = Arc::new(Baton::new());
        let holders = Arc::new(AtomicUsize::new(0));
        let hold = |baton: &Baton, holders: &AtomicUsize, deadline| {
            let Some(_held) = baton.take(deadline) else {
                return false;
            };
            assert_eq!(holders.fetch_add(1, Ordering::Relaxed), 0);
            holders.fetch_sub(1, Ordering::Relaxed);
            true
        };
        let patient = {
            let (baton, holders) = (baton.clone(), holders.clone());
            thread::spawn(move || assert!(hold(&baton, &holders, far())))
        };
        hold(&baton, &holders, past());
        patient.join().unwrap();
        assert!(hold(&baton, &holders, past()));
    });
}

#[test]
fn two_closers_and_a_reset_take_each_stage_in_order() {
    const PATH: [StageEvent; 5] = [
        StageEvent::Stop,
        StageEvent::Sync,
        StageEvent::Drain,
        StageEvent::Unexport,
        StageEvent::Destroy,
    ];
    loom::model(|| {
        let stage = Arc::new(StageCell::live());
        let closer = {
            let stage = stage.clone();
            // Goes on as far as it is let: a reset may come in between.
            thread::spawn(move || {
                PATH.iter()
                    .try_for_each(|event| stage.take(*event).map(drop))
            })
        };
        let before = stage.get();
        if let Ok(after) = stage.take(StageEvent::Revive) {
            assert_eq!(after, Stage::Live);
        }
        let refused = stage.take(StageEvent::Destroy);
        if let Err(found) = refused {
            assert!(found < Stage::Unexported);
        }
        let closed = closer.join().unwrap();
        let end = stage.get();
        assert!(before <= Stage::Destroyed);
        if closed.is_ok() {
            assert_eq!(end, Stage::Destroyed);
            assert_eq!(stage.take(StageEvent::Revive), Err(Stage::Destroyed));
        }
    });
}
