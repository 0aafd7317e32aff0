#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    ringstep_quant::fuzzing::quantized(input);
});
