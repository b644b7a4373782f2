//! Data that is sent, poison that it replaces, and the comparison afterwards.
//!
//! The poison of a byte is its complement: a byte that was never written cannot be taken for one that was.

/// Data for a seed: SplitMix64's finaliser over a counter, so that no two 8-byte words are alike.
pub(crate) fn source(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    let mut counter = seed;
    while bytes.len() < len {
        counter = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = counter;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend_from_slice(&(word ^ (word >> 31)).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// What a destination holds before a run.
pub(crate) fn poison(arriving: &[u8]) -> Vec<u8> {
    arriving.iter().map(|byte| !byte).collect()
}

/// Says where a destination first differs from what should have arrived, and in how many bytes.
pub(crate) fn difference(place: &str, arrived: &[u8], expected: &[u8]) -> Option<String> {
    let differing = |(_, (a, b)): &(usize, (&u8, &u8))| a != b;
    let pairs = || arrived.iter().zip(expected).enumerate().filter(differing);
    let (first, (found, wanted)) = pairs().next()?;
    Some(format!(
        "{place}: {} of {} bytes differ, the first at offset {first}: {found:#04x} instead of {wanted:#04x}",
        pairs().count(),
        expected.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poison_differs_in_every_byte() {
        let data = source(3, 1001);
        assert_eq!(data.len(), 1001);
        assert!(data.iter().zip(poison(&data)).all(|(a, b)| *a != b));
        assert_ne!(data, source(4, 1001));
    }

    #[test]
    fn a_difference_is_located() {
        assert_eq!(difference("x", &[1, 2, 3], &[1, 2, 3]), None);
        let text = difference("x", &[1, 9, 8], &[1, 2, 3]).unwrap();
        assert!(
            text.contains("2 of 3 bytes differ, the first at offset 1: 0x09 instead of 0x02"),
            "{text}"
        );
    }
}
