//! Copies of rows and fills, as the plain copies that they stand for.
//!
//! Knows: where each row or chunk goes. Must not know: the memory.

use super::{DriverError, DriverErrorKind};

/// Most bytes that a fill copies at a time.
const CHUNK: u64 = 1 << 20;

/// Gives each row of `bytes`, with its address, to `copy`.
pub(super) fn copy_rows(
    call: &'static str,
    (addr, pitch, width): (u64, u64, u64),
    bytes: &[u8],
    mut copy: impl FnMut(u64, &[u8]) -> Result<(), DriverError>,
) -> Result<(), DriverError> {
    let whole = usize::try_from(width)
        .ok()
        .filter(|len| *len > 0 && pitch >= width && bytes.len().is_multiple_of(*len));
    let Some(len) = whole else {
        let text = format!(
            "{} bytes are no rows of {width} that lie {pitch} apart",
            bytes.len()
        );
        return Err(DriverError::new(
            call,
            DriverErrorKind::InvalidArgument,
            text,
        ));
    };
    (0u64..)
        .zip(bytes.chunks_exact(len))
        .try_for_each(|(number, row)| copy(addr.wrapping_add(number.wrapping_mul(pitch)), row))
}

/// Gives chunks of `byte`, with their addresses, to `copy`.
pub(super) fn fill(
    (addr, len, byte): (u64, u64, u8),
    mut copy: impl FnMut(u64, &[u8]) -> Result<(), DriverError>,
) -> Result<(), DriverError> {
    let chunk = vec![byte; len.min(CHUNK) as usize];
    let mut done = 0;
    while done < len {
        let part = chunk.get(..(len - done).min(CHUNK) as usize);
        copy(addr.wrapping_add(done), part.unwrap_or(&chunk))?;
        done += CHUNK;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_lie_a_pitch_apart_and_a_part_of_a_row_is_refused() {
        let mut seen = Vec::new();
        let bytes = [1, 2, 3, 4, 5, 6];
        copy_rows("copy", (100, 16, 2), &bytes, |at, row| {
            seen.push((at, row.to_vec()));
            Ok(())
        })
        .unwrap();
        assert_eq!(
            seen,
            [(100, vec![1, 2]), (116, vec![3, 4]), (132, vec![5, 6])]
        );
        for (pitch, width) in [(16, 4), (16, 0), (1, 2)] {
            let refused = copy_rows("copy", (100, pitch, width), &bytes, |_, _| Ok(()));
            assert_eq!(refused.unwrap_err().kind, DriverErrorKind::InvalidArgument);
        }
    }

    #[test]
    fn a_fill_is_exact() {
        for len in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK] {
            let (mut at, mut bytes) = (64, 0);
            fill((64, len, 0xff), |addr, part| {
                assert_eq!(addr, at);
                assert!(part.iter().all(|byte| *byte == 0xff));
                at += part.len() as u64;
                bytes += part.len() as u64;
                Ok(())
            })
            .unwrap();
            assert_eq!(bytes, len);
        }
    }
}
