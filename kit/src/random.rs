//! Where random numbers come from: back-off, session ids, term nonces, the order of addresses.
//!
//! None of them is a secret and none decides whether an ENI may go; they keep many processes from acting in one instant.
//! A simulation needs them to repeat, so a thread can put its own seeded source in the place of the system's
//! ([`seed_this_thread`]). Nothing in the product does.

use std::cell::RefCell;
use std::ops::RangeInclusive;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, RngCore, SeedableRng};

thread_local! {
    static SEEDED: RefCell<Option<StdRng>> = const { RefCell::new(None) };
}

/// As long as it lives, random numbers on its thread follow from a seed.
#[derive(Debug)]
pub struct Seeded(());

/// Makes all random numbers of this thread follow from `seed`, until the guard is dropped. For simulations.
#[must_use = "the seed is in force while the guard lives"]
pub fn seed_this_thread(seed: u64) -> Seeded {
    SEEDED.with_borrow_mut(|source| *source = Some(StdRng::seed_from_u64(seed)));
    Seeded(())
}

impl Drop for Seeded {
    fn drop(&mut self) {
        SEEDED.with_borrow_mut(|source| *source = None);
    }
}

fn with<T>(draw: impl FnOnce(&mut dyn RngCore) -> T) -> T {
    SEEDED.with_borrow_mut(|source| match source {
        Some(seeded) => draw(seeded),
        None => draw(&mut rand::rng()),
    })
}

/// 64 random bits.
pub fn bits64() -> u64 {
    with(|source| source.next_u64())
}

/// 128 random bits.
pub fn bits128() -> u128 {
    (u128::from(bits64()) << 64) | u128::from(bits64())
}

/// A number of the range, each alike.
pub fn within(range: RangeInclusive<u64>) -> u64 {
    with(|source| source.random_range(range))
}

/// Brings a list into random order.
pub fn shuffle<T>(list: &mut [T]) {
    with(|source| list.shuffle(source));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw() -> (u64, u128, u64, Vec<u8>) {
        let mut list = (0..20).collect::<Vec<u8>>();
        shuffle(&mut list);
        (bits64(), bits128(), within(5..=500), list)
    }

    #[test]
    fn a_seed_makes_a_thread_repeat_itself_until_its_guard_goes() {
        let first = {
            let _seeded = seed_this_thread(7);
            draw()
        };
        let (second, third) = {
            let _seeded = seed_this_thread(7);
            (draw(), draw())
        };
        assert_eq!(first, second);
        assert_ne!(second, third);
        assert_ne!(draw(), draw());
    }
}
