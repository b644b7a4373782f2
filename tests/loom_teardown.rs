//! The gate and the stage table under every interleaving of a few threads: `RUSTFLAGS="--cfg loom" cargo test --test
//! loom_teardown --release`.
#![cfg(loom)]
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "modules of the host crate, on loom's primitives"
)]

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

use gate::{Claim, Gate};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use stage::{Stage, StageCell, StageEvent};

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

    fn close(&self, refused: bool) -> bool {
        if self.gate.claim() != Claim::Yours {
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
        guarded.close(false);
        user.join().unwrap();
        guest.join().unwrap();
        guarded.close(false);
        assert_eq!(guarded.destroyed.load(Ordering::Relaxed), 1);
        assert_eq!(guarded.gate.claim(), Claim::Closed);
        assert!(!guarded.gate.enter());
    });
}

#[test]
fn two_destroyers_take_turns_and_a_refusal_leaves_it_to_the_next() {
    loom::model(|| {
        let guarded = Guarded::new();
        let other = {
            let guarded = guarded.clone();
            thread::spawn(move || guarded.close(true))
        };
        let mine = guarded.close(false);
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
        guarded.gate.shut();
        assert_eq!(inside.load(Ordering::Relaxed), 0);
        assert!(!guarded.gate.enter());
        user.join().unwrap();
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
