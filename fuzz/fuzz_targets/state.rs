#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    ringstep_train::fuzzing::state(input);
});
