//! Decisions of the generator, drawn from fuzzer bytes or from a seed: one code path for both.

use arbitrary::Unstructured;

/// Bytes drawn from a seed for one case.
const SEED_BYTES: usize = 24 * 1024;

/// The bytes that stand for `seed`: splitmix64.
pub fn bytes_of_seed(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut bytes = Vec::with_capacity(SEED_BYTES);
    while bytes.len() < SEED_BYTES {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend((mixed ^ (mixed >> 31)).to_le_bytes());
    }
    bytes
}

/// Draws decisions. When the bytes run out, every decision is the first one.
pub(crate) struct Choices<'a, 'u> {
    bytes: &'a mut Unstructured<'u>,
}

impl<'a, 'u> Choices<'a, 'u> {
    pub(crate) fn new(bytes: &'a mut Unstructured<'u>) -> Self {
        Choices { bytes }
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        debug_assert!(bound > 0);
        self.bytes.int_in_range(0..=bound - 1).unwrap_or(0)
    }

    /// A number from `low` to `high`.
    pub(crate) fn between(&mut self, low: i64, high: i64) -> i64 {
        self.bytes.int_in_range(low..=high).unwrap_or(low)
    }

    /// True in `percent` of 100 cases.
    pub(crate) fn percent(&mut self, percent: usize) -> bool {
        self.below(100) >= 100 - percent
    }

    /// One of `items`.
    pub(crate) fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    /// One of `items` by weight.
    pub(crate) fn weighted<T: Copy>(&mut self, items: &[(usize, T)]) -> T {
        let total = items.iter().map(|(weight, _)| weight).sum();
        let mut at = self.below(total);
        for &(weight, item) in items {
            if at < weight {
                return item;
            }
            at -= weight;
        }
        items[0].1
    }

    /// Any 64 bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.bytes.arbitrary().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_gives_the_same_bytes() {
        assert_eq!(bytes_of_seed(7), bytes_of_seed(7));
        assert_ne!(bytes_of_seed(7), bytes_of_seed(8));
    }

    #[test]
    fn without_bytes_the_first_choice_is_taken() {
        let mut bytes = Unstructured::new(&[]);
        let mut choices = Choices::new(&mut bytes);
        assert_eq!(choices.below(9), 0);
        assert!(!choices.percent(99));
        assert_eq!(choices.weighted(&[(1, 'a'), (5, 'b')]), 'a');
    }
}
