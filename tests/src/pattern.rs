//! Data that says where it belongs: any missing, doubled or misplaced byte shows.

/// A stream of bytes that only depends on a seed.
#[derive(Clone, Debug)]
pub struct Pattern {
    state: u64,
    word: [u8; 8],
    used: usize,
}

impl Pattern {
    /// The stream of `seed`, from its beginning.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // The generator has one bad state, zero.
        Self { state: seed.wrapping_mul(SPREAD) | 1, word: [0; 8], used: 8 }
    }

    /// Writes the next bytes of the stream.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        for byte in buffer {
            *byte = self.next_byte();
        }
    }

    /// The position in `data` of the first byte that is not the stream's next.
    pub fn mismatch(&mut self, data: &[u8]) -> Option<usize> {
        data.iter().position(|byte| *byte != self.next_byte())
    }

    /// A number below `bound`, taken from the stream.
    pub fn below(&mut self, bound: usize) -> usize {
        let word = self.next_word();
        usize::try_from(word % bound.max(1) as u64).expect("smaller than bound, which is a usize")
    }

    fn next_byte(&mut self) -> u8 {
        if self.used == self.word.len() {
            self.word = self.next_word().to_le_bytes();
            self.used = 0;
        }
        self.used += 1;
        self.word[self.used - 1]
    }

    /// Xorshift: fast, and its period (2^64 - 1) exceeds every transfer.
    fn next_word(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }
}

/// Makes neighbouring seeds start far apart (2^64 divided by the golden ratio).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::Pattern;

    #[test]
    fn the_same_seed_gives_the_same_stream_in_any_pieces() {
        let mut whole = [0; 100];
        Pattern::new(7).fill(&mut whole);
        let mut again = Pattern::new(7);
        assert_eq!(again.mismatch(&whole[..33]), None);
        assert_eq!(again.mismatch(&whole[33..]), None);
    }

    #[test]
    fn a_lost_byte_is_found_where_it_is_missing() {
        let mut whole = [0; 100];
        Pattern::new(7).fill(&mut whole);
        let mut damaged = whole.to_vec();
        damaged.remove(40);
        let found = Pattern::new(7).mismatch(&damaged).expect("a byte is missing");
        assert!((40..48).contains(&found), "found at {found}");
    }
}
