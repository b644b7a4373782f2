//! Packet sequence numbers: 24 bits that wrap (IBA 9.7, 9.7).

/// A packet sequence number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// How many there are.
    pub const COUNT: u32 = 1 << 24;
    /// Half of them: a number is behind those of the half before it.
    pub const WINDOW: u32 = Self::COUNT / 2;

    /// The low 24 bits.
    pub const fn new(number: u32) -> Self {
        Self(number % Self::COUNT)
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number `packets` further on.
    pub const fn plus(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_add(packets))
    }

    /// The number `packets` back.
    pub const fn minus(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_sub(packets))
    }

    /// The next number.
    pub const fn next(self) -> Self {
        self.plus(1)
    }

    /// How far it is ahead of `other`: from `-WINDOW` to `WINDOW - 1`.
    pub const fn since(self, other: Self) -> i32 {
        // The difference's 24 bits at the top of the word, so that the shift back extends their sign.
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }

    /// True if it comes before `other`.
    pub const fn is_before(self, other: Self) -> bool {
        self.since(other) < 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_wrap_at_24_bits() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.next(), Psn::new(0));
        assert_eq!(Psn::new(0).minus(1), last);
        assert_eq!(Psn::new(0x100_0005).get(), 5);
        assert_eq!((Psn::new(2).since(last), last.since(Psn::new(2))), (3, -3));
        assert!(last.is_before(Psn::new(0)) && !Psn::new(0).is_before(last));
    }

    #[test]
    fn half_of_the_numbers_are_behind() {
        for base in [0, 1, 0x7f_ffff, 0x80_0000, 0xff_ffff] {
            let base = Psn::new(base);
            assert_eq!(base.plus(Psn::WINDOW - 1).since(base), 0x7f_ffff);
            assert_eq!(base.plus(Psn::WINDOW).since(base), -0x80_0000);
            assert!(!base.is_before(base));
        }
    }
}
