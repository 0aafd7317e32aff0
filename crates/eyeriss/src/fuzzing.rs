//! Files of architectures, for fuzzers.

use crate::arch::Architecture;

/// An architecture; one that is taken has sizes that can be counted.
pub fn architecture(input: &[u8]) -> bool {
    let Ok(Ok(architecture)) = std::str::from_utf8(input).map(Architecture::from_toml) else { return false };
    let Architecture { rows, columns, .. } = architecture;
    assert_eq!(architecture.pes(), rows * columns);
    let words = [architecture.map_words(), architecture.filter_words(), architecture.others_buffer_words()];
    words.into_iter().for_each(|words| assert!(architecture.dram_milliseconds(words as u64) >= 0.0));
    let text = toml::to_string(&architecture).expect("what was read can be written");
    assert_eq!(Architecture::from_toml(&text), Ok(architecture));
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures() {
        let chip = include_bytes!("../../../architectures/eyeriss-chip.toml").to_vec();
        let default = toml::to_string(&Architecture::default()).unwrap().into_bytes();
        crate::replay::replay("architecture", architecture, &[chip, default, b"rows = 3".to_vec()]);
    }
}
