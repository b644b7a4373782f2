//! Which calls fail, and how.

use std::time::Duration;

use crate::driver::DriverErrorKind;

/// A fault.
#[derive(Clone, Debug)]
#[must_use]
pub struct Fault {
    at: At,
    name: Option<&'static str>,
    effect: Effect,
    kind: DriverErrorKind,
}

#[derive(Clone, Debug)]
enum At {
    /// So many calls from this one on, counted from 0.
    Number(u64, u64),
    /// Each call with a probability of 1 in `one_in`, by a seed.
    Random { state: u64, one_in: u64 },
}

#[derive(Clone, Copy, Debug)]
enum Effect {
    Fail,
    /// This many refusals are left; `None`: no end.
    Refuse(Option<u64>),
    Delay(Duration),
    Hold,
    Die,
}

impl Fault {
    fn new(number: u64, effect: Effect) -> Self {
        Self {
            at: At::Number(number, 1),
            name: None,
            effect,
            kind: DriverErrorKind::Exhausted,
        }
    }

    /// Call number `number`, from 0, fails without effect.
    pub fn fail(number: u64) -> Self {
        Self::new(number, Effect::Fail)
    }

    /// Call number `number`, from 0, is refused, and so is each later one of the same name on the same object.
    pub fn refuse(number: u64) -> Self {
        Self::new(number, Effect::Refuse(None))
    }

    /// As [`Self::refuse`], but after `times` refusals it succeeds.
    pub fn refuse_times(number: u64, times: u64) -> Self {
        Self::new(number, Effect::Refuse(Some(times)))
    }

    /// Call number `number`, from 0, takes this much longer. A query of a stream or event does not block: it says
    /// `Pending` as long.
    pub fn delay(number: u64, time: Duration) -> Self {
        Self::new(number, Effect::Delay(time))
    }

    /// Call number `number`, from 0, does not return before [`Faults::clear`](super::Faults::clear); then it is made.
    pub fn hold(number: u64) -> Self {
        Self::new(number, Effect::Hold)
    }

    /// At call number `number`, from 0, the device that is called goes away: this call and all later ones fail with
    /// [`DriverErrorKind::DeviceLost`], and a GPU's context is dead.
    pub fn die(number: u64) -> Self {
        Self::new(number, Effect::Die)
    }

    /// Each call fails with a probability of 1 in `one_in`: the same seed, the same calls.
    pub fn random(seed: u64, one_in: u64) -> Self {
        let state = seed ^ 0x9e37_79b9_7f4a_7c15;
        Self {
            at: At::Random {
                state,
                one_in: one_in.max(1),
            },
            ..Self::fail(0)
        }
    }

    /// Strikes this many calls in a row, not one.
    pub fn calls(mut self, count: u64) -> Self {
        if let At::Number(_, calls) = &mut self.at {
            *calls = count;
        }
        self
    }

    /// Counts, and strikes, calls of this name only: a method of `Nic` or `Gpu`.
    pub fn of(mut self, name: &'static str) -> Self {
        self.name = Some(name);
        self
    }

    /// The kind of error that it gives.
    pub fn error(mut self, kind: DriverErrorKind) -> Self {
        self.kind = kind;
        self
    }
}

/// What a call does to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Makes it.
    Makes,
    /// Uses it.
    Uses,
    /// Undoes it.
    Undoes,
    /// None of these.
    Asks,
}

/// A call of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// The method.
    pub name: &'static str,
    /// What it does to the object.
    pub role: Role,
    /// The object's handle or address.
    pub object: Option<u64>,
    /// How it ended.
    pub outcome: Outcome,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The driver did it.
    Done,
    /// A fault struck; the driver was not asked.
    Injected,
    /// The driver itself refused.
    Failed,
}

pub(super) enum Verdict {
    Pass,
    Delay(Duration),
    /// Until the plan is another one than this.
    Hold(u64),
    Fail(DriverErrorKind),
    Die,
}

type Target = (&'static str, Option<u64>);

#[derive(Default)]
pub(super) struct Plan {
    faults: Vec<(Fault, u64)>,
    /// What is refused, how many times more, and how.
    refused: Vec<(Target, Option<u64>, DriverErrorKind)>,
    /// Plans so far: each ends when it is cleared.
    pub(super) era: u64,
    /// Calls that are held now.
    pub(super) held: usize,
    pub(super) trace: Vec<Call>,
}

impl Plan {
    pub(super) fn add(&mut self, fault: Fault) {
        self.faults.push((fault, 0));
    }

    pub(super) fn clear(&mut self) {
        self.faults.clear();
        self.refused.clear();
        self.era += 1;
    }

    pub(super) fn record(&mut self, call: Call) {
        self.trace.push(call);
    }

    pub(super) fn judge(&mut self, name: &'static str, object: Option<u64>) -> Verdict {
        let mut verdict = Verdict::Pass;
        for (fault, calls) in &mut self.faults {
            if fault.name.is_some_and(|wanted| wanted != name) {
                continue;
            }
            let number = *calls;
            *calls += 1;
            let struck = match &mut fault.at {
                At::Number(first, count) => {
                    (*first..first.saturating_add(*count)).contains(&number)
                }
                At::Random { state, one_in } => {
                    *state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    (*state >> 33).is_multiple_of(*one_in)
                }
            };
            if !struck {
                continue;
            }
            verdict = match fault.effect {
                Effect::Fail => Verdict::Fail(fault.kind),
                Effect::Delay(time) => Verdict::Delay(time),
                Effect::Hold => Verdict::Hold(self.era),
                Effect::Die => Verdict::Die,
                Effect::Refuse(times) => {
                    self.refused.push(((name, object), times, fault.kind));
                    Verdict::Pass
                }
            };
        }
        let refusal = self
            .refused
            .iter_mut()
            .find(|(target, times, _)| *target == (name, object) && *times != Some(0));
        if let Some((_, times, kind)) = refusal {
            if let Some(times) = times {
                *times -= 1;
            }
            return Verdict::Fail(*kind);
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn struck(fault: Fault, calls: &[(&'static str, Option<u64>)]) -> Vec<bool> {
        let mut plan = Plan::default();
        plan.add(fault);
        calls
            .iter()
            .map(|(name, object)| !matches!(plan.judge(name, *object), Verdict::Pass))
            .collect()
    }

    #[test]
    fn a_failure_strikes_once_and_a_refusal_its_object_as_often_as_planned() {
        let calls = [
            ("a", None),
            ("b", Some(1)),
            ("b", Some(2)),
            ("b", Some(1)),
            ("b", Some(1)),
        ];
        assert_eq!(
            struck(Fault::fail(1), &calls),
            [false, true, false, false, false]
        );
        assert_eq!(
            struck(Fault::fail(1).of("b"), &calls),
            [false, false, true, false, false]
        );
        assert_eq!(
            struck(Fault::refuse(1), &calls),
            [false, true, false, true, true]
        );
        assert_eq!(
            struck(Fault::refuse_times(1, 2), &calls),
            [false, true, false, true, false]
        );
    }

    #[test]
    fn a_seed_strikes_the_same_calls_each_time() {
        let calls = [("a", None); 200];
        let once = struck(Fault::random(7, 4), &calls);
        assert_eq!(once, struck(Fault::random(7, 4), &calls));
        assert_ne!(once, struck(Fault::random(8, 4), &calls));
        let count = once.iter().filter(|struck| **struck).count();
        assert!((20..80).contains(&count), "{count}");
    }
}
