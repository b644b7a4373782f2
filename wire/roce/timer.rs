//! Times that packets and QP contexts hold as 5-bit codes.

/// Time after which a requester may repeat what a receiver was not ready for, in microseconds (IBA 9.7, table 45;
/// `IB_RNR_TIMER_*` of Linux's `rdma/ib_verbs.h`). `None` for a code wider than 5 bits.
pub const fn rnr_us(code: u8) -> Option<u32> {
    match code {
        0 => Some(655_360),
        1..=3 => Some(code as u32 * 10),
        // 40, 60, 80, 120, 160: two for each power of two.
        4..=31 => Some((20 + 10 * (code as u32 & 1)) << (code / 2 - 1)),
        _ => None,
    }
}

/// Local ACK timeout in nanoseconds: 4.096 us * 2^`code` (IBA 9.7). `None` for 0, which never times out, and for a
/// code wider than 5 bits.
pub const fn ack_timeout_ns(code: u8) -> Option<u64> {
    match code {
        1..=31 => Some(4096 << code),
        _ => None,
    }
}

/// The codes' names in Linux's `rdma/ib_verbs.h`: the name is the time in milliseconds.
pub const RNR_CONSTANTS: &[(&str, u64)] = &[
    ("IB_RNR_TIMER_655_36", 0),
    ("IB_RNR_TIMER_000_01", 1),
    ("IB_RNR_TIMER_000_02", 2),
    ("IB_RNR_TIMER_000_03", 3),
    ("IB_RNR_TIMER_000_04", 4),
    ("IB_RNR_TIMER_000_06", 5),
    ("IB_RNR_TIMER_000_08", 6),
    ("IB_RNR_TIMER_000_12", 7),
    ("IB_RNR_TIMER_000_16", 8),
    ("IB_RNR_TIMER_000_24", 9),
    ("IB_RNR_TIMER_000_32", 10),
    ("IB_RNR_TIMER_000_48", 11),
    ("IB_RNR_TIMER_000_64", 12),
    ("IB_RNR_TIMER_000_96", 13),
    ("IB_RNR_TIMER_001_28", 14),
    ("IB_RNR_TIMER_001_92", 15),
    ("IB_RNR_TIMER_002_56", 16),
    ("IB_RNR_TIMER_003_84", 17),
    ("IB_RNR_TIMER_005_12", 18),
    ("IB_RNR_TIMER_007_68", 19),
    ("IB_RNR_TIMER_010_24", 20),
    ("IB_RNR_TIMER_015_36", 21),
    ("IB_RNR_TIMER_020_48", 22),
    ("IB_RNR_TIMER_030_72", 23),
    ("IB_RNR_TIMER_040_96", 24),
    ("IB_RNR_TIMER_061_44", 25),
    ("IB_RNR_TIMER_081_92", 26),
    ("IB_RNR_TIMER_122_88", 27),
    ("IB_RNR_TIMER_163_84", 28),
    ("IB_RNR_TIMER_245_76", 29),
    ("IB_RNR_TIMER_327_68", 30),
    ("IB_RNR_TIMER_491_52", 31),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_code_is_the_time_in_its_name() {
        assert_eq!(RNR_CONSTANTS.len(), 32);
        for (name, code) in RNR_CONSTANTS {
            // The last six characters are three digits of milliseconds, and two of hundredths.
            let time = name.trim_start_matches("IB_RNR_TIMER_");
            let (ms, hundredths) = time.split_once('_').unwrap();
            let us = ms.parse::<u32>().unwrap() * 1000 + hundredths.parse::<u32>().unwrap() * 10;
            assert_eq!(rnr_us(*code as u8), Some(us), "{name}");
        }
        assert_eq!(rnr_us(32), None);
    }

    #[test]
    fn timeouts() {
        assert_eq!(ack_timeout_ns(0), None);
        assert_eq!(ack_timeout_ns(1), Some(8192));
        // 67 ms, the usual code 14.
        assert_eq!(ack_timeout_ns(14), Some(67_108_864));
        assert_eq!(ack_timeout_ns(31), Some(8_796_093_022_208));
        assert_eq!(ack_timeout_ns(32), None);
    }
}
