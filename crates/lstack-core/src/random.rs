//! Sub-keys and unpredictable numbers, all derived from the one [`Secret`] of a stack.
//!
//! Used when tables and generators are made, and for ports and packet ids. Never reads a source of
//! randomness of its own.

use core::hash::{BuildHasher, Hasher};

use siphasher::sip::SipHasher13;
use siphasher::sip128::{Hasher128, SipHasher24};

use crate::config::Secret;

impl Secret {
    /// A key for one purpose. Keys of different labels tell nothing of each other or of the
    /// secret.
    pub(crate) fn sub_key(&self, label: &str) -> (u64, u64) {
        let (key, rest) = self.0.split_at(16);
        let mut key_bytes = [0; 16];
        key_bytes.copy_from_slice(key);
        let mut hasher = SipHasher24::new_with_key(&key_bytes);
        hasher.write(rest);
        hasher.write(label.as_bytes());
        hasher.finish128().as_u64()
    }
}

/// Builds keyed hashers for tables whose keys a peer chooses: without the key nobody can aim at
/// one bucket.
#[derive(Clone, Debug)]
pub(crate) struct KeyedHash {
    key: (u64, u64),
}

impl KeyedHash {
    pub(crate) fn new(secret: &Secret, label: &str) -> Self {
        Self { key: secret.sub_key(label) }
    }
}

impl BuildHasher for KeyedHash {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.key.0, self.key.1)
    }
}

/// A sequence of numbers that nobody can continue who has seen part of it: a keyed hash of a
/// counter. (The usual small generators can be run forward from a few outputs, which would give
/// away the next port.)
#[derive(Clone, Debug)]
pub(crate) struct Random {
    hash: KeyedHash,
    counter: u64,
}

impl Random {
    pub(crate) fn new(secret: &Secret, label: &str) -> Self {
        Self { hash: KeyedHash::new(secret, label), counter: 0 }
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.counter = self.counter.wrapping_add(1);
        let mut hasher = self.hash.build_hasher();
        hasher.write_u64(self.counter);
        hasher.finish()
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        // Multiply and shift: the bias is below 2^-32 per value, which gives nothing away.
        let product = (self.next_u64() >> 32) * u64::from(bound);
        u32::try_from(product >> 32).expect("a 32 by 32 bit product shifted right by 32")
    }
}

#[cfg(test)]
mod tests {
    use super::Random;
    use crate::config::Secret;

    #[test]
    fn labels_and_secrets_give_different_keys() {
        let one = Secret([1; 32]);
        let mut other = Secret([1; 32]);
        other.0[31] = 2;
        assert_ne!(one.sub_key("a"), one.sub_key("b"));
        assert_ne!(one.sub_key("a"), other.sub_key("a"));
        assert_eq!(one.sub_key("a"), one.sub_key("a"));
    }

    #[test]
    fn below_stays_below_and_reaches_every_value() {
        let mut random = Random::new(&Secret([7; 32]), "test");
        let mut seen = [false; 10];
        for _ in 0..1_000 {
            seen[random.below(10) as usize] = true;
        }
        assert_eq!(seen, [true; 10]);
        assert_eq!(random.below(1), 0);
    }
}
