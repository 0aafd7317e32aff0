//! One source for all instruction sets.

/// Defines kernels: functions that are compiled once for each instruction set, and whose first argument says for which one
/// they run.
///
/// ```
/// use ringstep_cpu::{Level, Simd, kernels};
///
/// kernels! {
///     /// Doubles numbers.
///     pub fn double<S>(simd: S, numbers: &mut [f32]) {
///         for start in (0..numbers.len()).step_by(S::LANES) {
///             let count = S::LANES.min(numbers.len() - start);
///             let at = numbers[start..].as_mut_ptr();
///             // SAFETY: `count` numbers begin there.
///             unsafe {
///                 let vector = simd.load_some(at, count);
///                 simd.store_some(at, count, vector + vector);
///             }
///         }
///     }
/// }
///
/// for level in Level::available() {
///     let mut numbers = [1.0, 2.0, 3.0];
///     double(level, &mut numbers);
///     assert_eq!(numbers, [2.0, 4.0, 6.0]);
/// }
/// ```
#[macro_export]
macro_rules! kernels {
    ($(
        $(#[$attribute:meta])*
        $visible:vis fn $name:ident<$set:ident>($simd:ident: $same:ident $(, $argument:ident: $type:ty)* $(,)?) $(-> $result:ty)? $body:block
    )+) => {$(
        $(#[$attribute])*
        #[allow(unsafe_code, clippy::too_many_arguments)]
        $visible fn $name(level: $crate::Level $(, $argument: $type)*) $(-> $result)? {
            #[allow(unused_imports)]
            use $crate::{Simd as _, Vector as _};

            #[inline(always)]
            fn body<$set: $crate::Simd>($simd: $set $(, $argument: $type)*) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2(simd: $crate::simd::Avx2 $(, $argument: $type)*) $(-> $result)? { body(simd $(, $argument)*) }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512vl,avx512bw,avx512dq")]
            fn avx512(simd: $crate::simd::Avx512 $(, $argument: $type)*) $(-> $result)? { body(simd $(, $argument)*) }

            match level {
                $crate::Level::Portable(simd) => body(simd $(, $argument)*),
                // SAFETY: the token proves that the machine has the instructions.
                #[cfg(target_arch = "x86_64")]
                $crate::Level::Avx2(simd) => unsafe { avx2(simd $(, $argument)*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::Level::Avx512(simd) => unsafe { avx512(simd $(, $argument)*) },
                // Every aarch64 is compiled for it.
                #[cfg(target_arch = "aarch64")]
                $crate::Level::Neon(simd) => body(simd $(, $argument)*),
            }
        }
    )+};
}
