#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    ringstep_eyeriss::fuzzing::architecture(input);
});
