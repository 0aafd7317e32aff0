//! Runs a fuzz target without a fuzzer: on its corpus, and on some ten thousand inputs that are made of it, the same every time.
//! Each crate that has targets includes this file in its tests.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// How many inputs are made.
const MUTANTS: usize = 20_000;
/// The longest of them.
const LONGEST: usize = 1 << 16;
/// Whoever sets this wants the corpus to be written anew, after a format has changed.
const UPDATE: &str = "UPDATE_CORPUS";

/// Runs a target, which says whether it takes an input for what it should be, on all that its folder in the corpus holds and on
/// mutants of that. `seeds` are what the program itself writes; they are in the folder, and are taken.
pub fn replay(name: &str, target: fn(&[u8]) -> bool, seeds: &[Vec<u8>]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    if std::env::var_os(UPDATE).is_some() {
        fs::create_dir_all(&folder).unwrap();
        seeds.iter().enumerate().for_each(|(at, seed)| fs::write(folder.join(format!("seed-{at}")), seed).unwrap());
    }
    let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    let corpus: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    let taken = |input: &[u8]| {
        catch_unwind(AssertUnwindSafe(|| target(input))).unwrap_or_else(|_| {
            let found = std::env::temp_dir().join(format!("{name}-panics"));
            fs::write(&found, input).unwrap();
            panic!("{name} panics on {} bytes, which are in {}", input.len(), found.display());
        })
    };
    for (file, input) in files.iter().zip(&corpus) {
        let is_seed = file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("seed"));
        assert!(taken(input) || !is_seed, "{}: not taken; is it old? {UPDATE}=1 writes it anew", file.display());
    }
    assert!(corpus.len() >= seeds.len(), "{}: {UPDATE}=1 writes what is missing", folder.display());
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..MUTANTS {
        let mut mutant = corpus[random.below(corpus.len())].clone();
        for _ in 0..=random.below(4) {
            random.mutate(&mut mutant, &corpus);
        }
        mutant.truncate(LONGEST);
        taken(&mutant);
    }
}

/// xorshift64 (Marsaglia, *Xorshift RNGs*, 2003).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below this one, which is not 0.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// A range within so many bytes, mostly a short one.
    fn range(&mut self, length: usize) -> std::ops::Range<usize> {
        let start = self.below(length + 1);
        let most = if self.below(4) == 0 { length - start } else { (length - start).min(16) };
        start..start + self.below(most + 1)
    }

    /// What fuzzers do to an input: bits flip, numbers become those that break things, pieces are lost, doubled and mixed, and
    /// what is written in digits becomes another number.
    fn mutate(&mut self, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        const NUMBERS: [u64; 10] =
            [0, 1, 0x7f, 0xff, 0x7fff, 0xffff_ffff, 1 << 31, i64::MAX as u64, u64::MAX, u64::MAX - 7];
        const WORDS: [&str; 12] = [
            "0",
            "-1",
            "1e999",
            "nan",
            "-inf",
            "18446744073709551615",
            "9223372036854775807",
            "\u{fc}",
            "\"",
            "[[",
            "=",
            "\n",
        ];
        let range = self.range(input.len());
        match self.below(9) {
            0 | 1 if !input.is_empty() => {
                let at = self.below(input.len());
                input[at] ^= 1 << self.below(8);
            }
            2 if !input.is_empty() => {
                let at = self.below(input.len());
                input[at] = self.next() as u8;
            }
            3 => drop(input.drain(range)),
            4 => {
                let copy = input[range].to_vec();
                let at = self.below(input.len() + 1);
                drop(input.splice(at..at, copy));
            }
            5 => {
                let other = &corpus[self.below(corpus.len())];
                let piece = other[self.range(other.len())].to_vec();
                drop(input.splice(range, piece));
            }
            6 => {
                let bytes = NUMBERS[self.below(NUMBERS.len())].to_le_bytes();
                let (at, size) = (self.below(input.len() + 1), [1, 2, 4, 8][self.below(4)]);
                for (byte, new) in input[at..].iter_mut().zip(&bytes[..size]) {
                    *byte = *new;
                }
            }
            7 => {
                let word = WORDS[self.below(WORDS.len())];
                drop(input.splice(range, word.bytes()));
            }
            _ => {
                let digits: Vec<usize> = (0..input.len()).filter(|&at| input[at].is_ascii_digit()).collect();
                if !digits.is_empty() {
                    let start = digits[self.below(digits.len())];
                    let end = (start..input.len()).find(|&at| !input[at].is_ascii_digit()).unwrap_or(input.len());
                    let number = NUMBERS[self.below(NUMBERS.len())].to_string();
                    drop(input.splice(start..end, number.into_bytes()));
                }
            }
        }
    }
}
