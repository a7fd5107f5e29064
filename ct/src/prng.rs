//! Repeatable random numbers for tests and load, by splitmix64, which needs no package.
//!
//! A seed gives the same numbers on every machine and in every release, so a failing run can be
//! repeated with its seed. The generator is not fit for secrets.

/// The generator splitmix64 (Steele, Lea, Flood 2014).
#[derive(Debug, Clone)]
pub struct Prng {
    state: u64,
}

impl Prng {
    /// Starts the random sequence of `seed`; neighbouring seeds give unrelated sequences.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns the next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a random number from 0 to `bound - 1`, and 0 for the bound 0.
    ///
    /// The number is the upper half of a 128-bit product. The numbers' bias is below `bound /
    /// 2^64`, too small to matter in a test.
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(wide >> 64).expect("the upper half of a product of two 64-bit numbers")
    }

    /// Returns true with the probability `numerator / denominator`, at random.
    pub fn chance(&mut self, numerator: u64, denominator: u64) -> bool {
        self.below(denominator) < numerator
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_printed_by_a_failing_run_repeats_it_everywhere() {
        // The reference values of the authors' splitmix64.c.
        let mut prng = Prng::new(1_234_567);
        let known = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(known.map(|_| prng.next_u64()), known);
        assert_eq!(Prng::new(0).next_u64(), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn below_and_chance_keep_their_bounds_and_reach_every_value() {
        let mut prng = Prng::new(7);
        let mut seen = [0_u32; 6];
        for _ in 0..6000 {
            let face = usize::try_from(prng.below(6)).unwrap();
            seen[face] += 1;
        }
        assert!(seen.iter().all(|&count| (850..1150).contains(&count)), "{seen:?}");
        assert_eq!(prng.below(0), 0);
        assert_eq!(prng.below(1), 0);
        assert!(!prng.chance(0, 5));
        assert!(prng.chance(5, 5));
    }
}
