//! The macro that compiles one generic algorithm for each instruction set.

/// Writes the `#[target_feature]` shells of a generic algorithm `fn name<S: Simd>(s: S, ...)`:
/// a module with `scalar`, `avx2` and `avx512`, all of the same type.
macro_rules! shells {
    ($vis:vis mod $module:ident = $generic:ident($($arg:ident: $type:ty),* $(,)?) $(-> $out:ty)?) => {
        $vis mod $module {
            #![allow(unused_imports)]
            use super::*;

            /// The reference. Tests call it most of the time, and a fused multiply-add without the
            /// instruction is a call of the C library.
            ///
            /// # Safety
            ///
            /// None beyond the shapes that the generic function names; in tests of this crate, this
            /// CPU has fused multiply-adds.
            #[cfg_attr(all(test, target_arch = "x86_64"), target_feature(enable = "fma"))]
            pub(crate) unsafe fn scalar($($arg: $type),*) $(-> $out)? {
                // SAFETY: every CPU has the scalar instructions.
                super::$generic(unsafe { $crate::simd::Scalar::assume() }, $($arg),*)
            }

            /// # Safety
            ///
            /// This CPU has the features below.
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            pub(crate) unsafe fn avx2($($arg: $type),*) $(-> $out)? {
                // SAFETY: the features of this function are those that the proof is about.
                super::$generic(unsafe { $crate::simd::Avx2::assume() }, $($arg),*)
            }

            /// # Safety
            ///
            /// This CPU has the features below.
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
            pub(crate) unsafe fn avx512($($arg: $type),*) $(-> $out)? {
                // SAFETY: the features of this function are those that the proof is about.
                super::$generic(unsafe { $crate::simd::Avx512::assume() }, $($arg),*)
            }
        }
    };
}
pub(crate) use shells;
