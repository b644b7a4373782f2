//! Which bytes were ever written.
//!
//! Knows: allocations and the bytes of them that hold something.
//! Must not know: who wrote what.

use std::collections::BTreeMap;

enum Written {
    Nothing,
    Everything,
    Bits(Vec<u64>),
}

/// For each live object: which bytes are initialised.
#[derive(Default)]
pub(super) struct WrittenBytes {
    objects: BTreeMap<u64, (u64, Written)>,
}

impl WrittenBytes {
    pub(super) fn alloc(&mut self, addr: u64, len: u64) {
        self.objects.insert(addr, (len, Written::Nothing));
    }

    /// Ends an object; gives its length.
    pub(super) fn free(&mut self, addr: u64) -> u64 {
        self.objects.remove(&addr).map_or(0, |(len, _)| len)
    }

    /// Bytes `[addr, addr + len)`, which lie in one object, hold something now.
    pub(super) fn note(&mut self, addr: u64, len: u64) {
        let Some((base, (size, written))) = self.objects.range_mut(..=addr).next_back() else {
            return;
        };
        let from = addr - base;
        match written {
            Written::Everything => {}
            _ if from == 0 && len >= *size => *written = Written::Everything,
            Written::Nothing => {
                let mut words = vec![0; size.div_ceil(64) as usize];
                set(&mut words, from, len);
                *written = Written::Bits(words);
            }
            Written::Bits(words) => set(words, from, len),
        }
    }

    /// The first byte of the range that nobody has written.
    pub(super) fn first_unwritten(&self, addr: u64, len: u64) -> Option<u64> {
        let (base, (_, written)) = self.objects.range(..=addr).next_back()?;
        match written {
            Written::Everything => None,
            Written::Nothing => (len > 0).then_some(addr),
            Written::Bits(words) => (addr..addr + len).find(|at| {
                let bit = at - base;
                words
                    .get((bit / 64) as usize)
                    .is_some_and(|word| word >> (bit % 64) & 1 == 0)
            }),
        }
    }
}

fn set(words: &mut [u64], from: u64, len: u64) {
    let end = from + len;
    let mut at = from;
    while at < end {
        let upto = ((at / 64 + 1) * 64).min(end);
        let count = upto - at;
        let ones = if count == 64 {
            u64::MAX
        } else {
            (1 << count) - 1
        };
        if let Some(word) = words.get_mut((at / 64) as usize) {
            *word |= ones << (at % 64);
        }
        at = upto;
    }
}

#[cfg(test)]
mod tests {
    use super::WrittenBytes;

    #[test]
    fn bytes_are_unwritten_until_written() {
        let mut written = WrittenBytes::default();
        written.alloc(1000, 200);
        assert_eq!(written.first_unwritten(1010, 4), Some(1010));
        written.note(1000, 100);
        assert_eq!(written.first_unwritten(1000, 100), None);
        assert_eq!(written.first_unwritten(1090, 20), Some(1100));
        written.note(1100, 100);
        assert_eq!(written.first_unwritten(1000, 200), None);
        written.alloc(2000, 64);
        written.note(2000, 64);
        assert_eq!(written.first_unwritten(2000, 64), None);
        assert_eq!((written.free(2000), written.free(2000)), (64, 0));
    }
}
