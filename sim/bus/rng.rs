//! Seeded random numbers: SplitMix64 (Steele, Lea, Flood 2014).
//!
//! Own code because the sequence is part of a run's identity: a seed must replay the same run with every
//! later version of this workspace, which no random-number crate promises of its generators.

use crate::script::Script;

/// A generator.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
    /// Makes the bounded choices instead.
    script: Option<Script>,
}

impl Rng {
    /// A generator for `seed`; all seeds are good, zero included.
    pub fn new(seed: u64) -> Self {
        Self {
            state: seed,
            script: None,
        }
    }

    /// A generator whose bounded choices a script makes, if there is one.
    pub fn scripted(seed: u64, script: Option<Script>) -> Self {
        Self {
            state: seed,
            script,
        }
    }

    /// What makes the choices, if not chance.
    pub fn script(&self) -> Option<&Script> {
        self.script.as_ref()
    }

    /// A generator whose sequence is independent of this one's, for an agent of its own.
    pub fn fork(&mut self) -> Self {
        Self {
            state: self.next_u64(),
            script: self.script.clone(),
        }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not zero; zero gives zero. Multiply-shift: the bias is below 2^-32 for the small
    /// bounds used here.
    pub fn below(&mut self, bound: u32) -> u32 {
        if let Some(script) = &self.script {
            return script.choose(bound);
        }
        (((self.next_u64() >> 32) * u64::from(bound)) >> 32) as u32
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn the_sequence_is_splitmix64() {
        // First outputs for seed 1234567, from the algorithm's published test vectors.
        let mut rng = Rng::new(1_234_567);
        assert_eq!(rng.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(rng.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn below_stays_below() {
        let mut rng = Rng::new(7);
        for bound in [1, 2, 3, 32, 1000] {
            for _ in 0..1000 {
                assert!(rng.below(bound) < bound);
            }
        }
        assert_eq!(rng.below(0), 0);
    }
}
