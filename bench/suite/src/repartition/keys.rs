//! Keys with self-describing values, and the check of every key.

use honeycomb::failure::CommandResult;
use honeycomb_client::Kv;
use honeycomb_types::limits::{KV_BATCH_BYTES_MAX, KV_BATCH_MAX};

/// Bytes of a key.
pub const KEY: usize = 16;
/// Minimum bytes of a value: its key, and the number of the write.
pub const VALUE_MIN: usize = 12;
/// Bytes of one part of a scan.
const SCAN: u32 = 1 << 20;

/// The key of a number.
pub fn key(number: u32) -> [u8; KEY] {
    let mut key = *b"split-0000000000";
    let mut rest = number;
    for digit in key[6..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

fn number(key: &[u8]) -> Option<u32> {
    std::str::from_utf8(key.strip_prefix(b"split-")?).ok()?.parse().ok()
}

/// Distinct values of one size.
pub struct Values {
    noise: Vec<u8>,
    size: usize,
}

impl Values {
    /// Values of this size.
    pub fn new(size: usize) -> Values {
        Values { noise: crate::kv::noise(size + 4096), size }
    }

    /// The value of a key's `times`th write.
    pub fn value(&self, number: u32, times: u32) -> Vec<u8> {
        let at = (number as usize).wrapping_mul(61) % 4096;
        let mut value = self.noise[at..at + self.size].to_vec();
        value[..4].copy_from_slice(&number.to_le_bytes());
        value[4..8].copy_from_slice(&times.to_le_bytes());
        value[self.size - 4..].copy_from_slice(&(number ^ times).to_le_bytes());
        value
    }

    /// The number of the write that stored this value; `None` when it is not a value of the key.
    pub fn times(&self, number: u32, value: &[u8]) -> Option<u32> {
        let times = u32::from_le_bytes(value.get(4..8)?.try_into().ok()?);
        (value == self.value(number, times)).then_some(times)
    }

    /// Number of entries in a request of about `bytes`.
    pub fn batch(&self, bytes: usize) -> usize {
        let each = KEY + self.size;
        (bytes.min(KV_BATCH_BYTES_MAX / 2) / each).clamp(1, KV_BATCH_MAX)
    }
}

/// Errors in a store; all must be 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wrong {
    /// Keys that were written and are missing, or have a value that is not theirs.
    pub lost: u64,
    /// Keys that exist more than once, or were never written.
    pub doubled: u64,
    /// Keys with a value older than the last acknowledged write.
    pub stale: u64,
}

impl Wrong {
    /// The sum of both.
    pub fn and(self, other: Wrong) -> Wrong {
        Wrong {
            lost: self.lost + other.lost,
            doubled: self.doubled + other.doubled,
            stale: self.stale + other.stale,
        }
    }
}

/// Checks every key twice: by a scan of all blocks, which finds duplicates, and by a get as clients do it.
/// `written[number]` is the number of acknowledged writes of a key. There must be no concurrent writes.
pub fn check(kv: &Kv, values: &Values, written: &[u32]) -> CommandResult<Wrong> {
    let mut wrong = Wrong::default();
    let mut seen = vec![0u8; written.len()];
    let mut cursor = Some(0);
    while let Some(at) = cursor {
        let page = kv.scan(at, b"", true, SCAN)?;
        for (key, _) in &page.entries {
            match number(key).and_then(|number| seen.get_mut(number as usize)) {
                Some(times) => {
                    wrong.doubled += u64::from(*times > 0);
                    *times = 1;
                }
                None => wrong.doubled += 1,
            }
        }
        cursor = page.next;
    }
    for (number, times) in written.iter().enumerate() {
        // Never written, but present.
        wrong.doubled += u64::from(*times == 0 && seen[number] > 0);
    }
    let numbers: Vec<u32> = (0..written.len() as u32).collect();
    for part in numbers.chunks(512) {
        let keys: Vec<[u8; KEY]> = part.iter().map(|number| key(*number)).collect();
        let refs: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        for (number, found) in part.iter().zip(kv.multi_get(&refs)) {
            wrong.add(values, *number, written[*number as usize], found?.as_deref());
        }
    }
    Ok(wrong)
}

impl Wrong {
    fn add(&mut self, values: &Values, number: u32, written: u32, found: Option<&[u8]>) {
        if written == 0 {
            return;
        }
        match found.and_then(|value| values.times(number, value)) {
            None => self.lost += 1,
            Some(times) if times < written => self.stale += 1,
            // A value newer than the acknowledged one comes from a write whose reply was lost.
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_tell_whose_and_which_they_are() {
        for size in [VALUE_MIN, 64, 100 << 10] {
            let values = Values::new(size);
            let value = values.value(77, 3);
            assert_eq!(value.len(), size);
            assert_eq!(values.times(77, &value), Some(3));
            assert_eq!(values.times(78, &value), None);
            assert_eq!(values.times(77, &value[1..]), None);
        }
        assert_eq!(number(&key(4_294_967_295)), Some(u32::MAX));
        assert_eq!(number(b"else"), None);
    }

    #[test]
    fn what_is_wrong_is_counted() {
        let values = Values::new(64);
        let mut wrong = Wrong::default();
        wrong.add(&values, 1, 2, Some(&values.value(1, 2)));
        wrong.add(&values, 1, 2, Some(&values.value(1, 3)));
        wrong.add(&values, 1, 0, None);
        assert_eq!(wrong, Wrong::default());
        wrong.add(&values, 1, 2, Some(&values.value(1, 1)));
        wrong.add(&values, 1, 2, Some(&values.value(2, 2)));
        wrong.add(&values, 1, 2, None);
        assert_eq!(wrong, Wrong { lost: 2, doubled: 0, stale: 1 });
    }
}
