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

/// Entries of the lookup cache, and addresses that share one.
const CACHE: usize = 1024;
const CACHE_GRAIN: u32 = 12;

struct Object {
    base: u64,
    len: u64,
    written: Written,
}

/// For each live object: which bytes are initialised.
pub(super) struct WrittenBytes {
    by_address: BTreeMap<u64, usize>,
    objects: Vec<Object>,
    free: Vec<usize>,
    /// Where an object was last found.
    cache: Box<[usize; CACHE]>,
}

impl Default for WrittenBytes {
    fn default() -> Self {
        Self {
            by_address: BTreeMap::new(),
            objects: Vec::new(),
            free: Vec::new(),
            cache: Box::new([0; CACHE]),
        }
    }
}

impl WrittenBytes {
    pub(super) fn alloc(&mut self, addr: u64, len: u64) {
        let object = Object {
            base: addr,
            len,
            written: Written::Nothing,
        };
        let at = self.free.pop().unwrap_or(self.objects.len());
        match self.objects.get_mut(at) {
            Some(place) => *place = object,
            None => self.objects.push(object),
        }
        self.by_address.insert(addr, at);
    }

    /// Ends an object; gives its length.
    pub(super) fn free(&mut self, addr: u64) -> u64 {
        let Some(at) = self.by_address.remove(&addr) else {
            return 0;
        };
        self.free.push(at);
        self.objects.get_mut(at).map_or(0, |object| {
            object.written = Written::Nothing;
            std::mem::take(&mut object.len)
        })
    }

    fn object(&mut self, addr: u64) -> Option<&mut Object> {
        let slot = (addr >> CACHE_GRAIN) as usize % CACHE;
        let holds = |object: &Object| addr.wrapping_sub(object.base) < object.len;
        if !self.objects.get(self.cache[slot]).is_some_and(holds) {
            self.cache[slot] = *self.by_address.range(..=addr).next_back()?.1;
        }
        self.objects.get_mut(self.cache[slot])
    }

    /// Bytes `[addr, addr + len)`, which lie in one object, hold something now.
    pub(super) fn note(&mut self, addr: u64, len: u64) {
        let Some(object) = self.object(addr) else {
            return;
        };
        let from = addr - object.base;
        match &mut object.written {
            Written::Everything => {}
            written if from == 0 && len >= object.len => *written = Written::Everything,
            written @ Written::Nothing => {
                let mut words = vec![0; object.len.div_ceil(64) as usize];
                set(&mut words, from, len);
                *written = Written::Bits(words);
            }
            Written::Bits(words) => set(words, from, len),
        }
    }

    /// The first byte of the range that nobody has written.
    pub(super) fn first_unwritten(&mut self, addr: u64, len: u64) -> Option<u64> {
        let object = self.object(addr)?;
        let words = match &object.written {
            Written::Everything => return None,
            Written::Nothing => return (len > 0).then_some(addr),
            Written::Bits(words) => words,
        };
        let (from, end) = (addr - object.base, addr - object.base + len);
        let mut at = from;
        while at < end {
            let word = words.get((at / 64) as usize).copied().unwrap_or(u64::MAX);
            let written = u64::from((word >> (at % 64)).trailing_ones());
            if at % 64 + written < 64 {
                return (at + written < end).then_some(object.base + at + written);
            }
            at = (at / 64 + 1) * 64;
        }
        None
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
        assert_eq!(written.first_unwritten(1070, 0), None);
        written.alloc(2000, 64);
        written.note(2000, 64);
        assert_eq!(written.first_unwritten(2000, 64), None);
        assert_eq!((written.free(2000), written.free(2000)), (64, 0));
    }
}
