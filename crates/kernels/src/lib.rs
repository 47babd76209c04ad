//! CPU arithmetic: scalar reference, SIMD, thread team, run-time dispatch.
