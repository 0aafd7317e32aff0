//! What must hold for every codec.

use ringstep_cpu::Level;
use ringstep_cpu::random::mix;

use super::{Codec, Key, Malformed};

/// Lengths around those of vectors and blocks.
pub const LENGTHS: [usize; 15] = [0, 1, 2, 3, 15, 16, 17, 31, 33, 255, 256, 257, 1000, 4097, 9001];

/// Numbers without a pattern, of magnitudes as different as those of gradients are, zeros among them.
pub fn noise(length: usize, seed: u64) -> Vec<f32> {
    let number = |at: u32| {
        let [a, b] = [2 * at, 2 * at + 1].map(|place| mix(place, seed) as f32 / 4_294_967_296.0);
        if a < 0.02 { 0.0 } else { (a - 0.51) * (-9.0 * b).exp() }
    };
    (0..length as u32).map(number).collect()
}

/// What the others take numbers for.
pub fn decoded(codec: &mut impl Codec, key: Key, values: &[f32]) -> Vec<f32> {
    let (mut code, mut into) = (vec![9; 5], vec![0.0; values.len()]);
    codec.encode(key, values, &mut code);
    assert!(code.len() <= codec.limit(values.len()), "{} bytes", code.len());
    codec.add(key, &code, &mut into).unwrap();
    into
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

pub fn every_level_makes_the_same_code<C: Codec>(make: impl Fn(Level) -> C) {
    let key = Key { seed: 5, step: 3, ..Key::default() };
    for length in LENGTHS {
        let values = noise(length, 2);
        let of = |level: Level| {
            let (mut codec, mut code) = (make(level), Vec::new());
            // Twice, since some codecs remember.
            codec.encode(key, &values, &mut code);
            codec.encode(key, &values, &mut code);
            let mut into = noise(length, 3);
            codec.add(key, &code, &mut into).unwrap();
            (code, bits(&into))
        };
        let levels = Level::available();
        assert!(levels.iter().all(|&level| of(level) == of(levels[0])), "{length} numbers");
    }
}

/// Every truncation, one byte too much, and random changes: an error that leaves everything as it was, or a code that could
/// have been meant. Nothing is written around the slice.
pub fn what_is_no_code_is_refused<C: Codec>(make: impl Fn(Level) -> C) {
    let key = Key { seed: 5, ..Key::default() };
    for level in Level::available() {
        let mut random = 0;
        let mut draw = |below: usize| {
            random += 1;
            mix(random, 77) as usize % below
        };
        for length in [0, 1, 2, 33, 300] {
            let (mut codec, mut code) = (make(level), Vec::new());
            codec.encode(key, &noise(length, 4), &mut code);
            let mut room = noise(length + 64, 5);
            let mut add = |code: &[u8]| -> Result<(), Malformed> {
                let before = bits(&room);
                let result = codec.add(key, code, &mut room[32..][..length]);
                let after = bits(&room);
                let written = if result.is_ok() { 32..32 + length } else { 0..0 };
                for at in (0..room.len()).filter(|at| !written.contains(at)) {
                    assert_eq!(before[at], after[at], "{level}: place {at} of {length} was written");
                }
                room = noise(length + 64, 5);
                result
            };
            assert_eq!(add(&code), Ok(()), "{level}: {length} numbers");
            for end in 0..code.len() {
                assert!(add(&code[..end]).is_err(), "{level}: {end} bytes of the code of {length} numbers");
            }
            assert!(add(&[&code[..], &[0]].concat()).is_err(), "{level}: one byte more for {length} numbers");
            for _ in 0..if code.is_empty() { 0 } else { 2000 } {
                let mut changed = code.clone();
                for _ in 0..1 + draw(4) {
                    let at = draw(code.len());
                    changed[at] = match draw(3) {
                        0 => changed[at] ^ 1 << draw(8),
                        1 => [0, 0xff, 0x7f, 0x80][draw(4)],
                        _ => draw(256) as u8,
                    };
                }
                let _ = add(&changed);
            }
        }
    }
}
