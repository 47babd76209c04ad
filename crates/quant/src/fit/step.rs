//! Half-precision parameters.

use half::f16;

/// `x` in half precision; a number that is too large becomes the largest finite value.
pub(crate) fn saturating_half(x: f32) -> f16 {
    f16::from_f32(x.clamp(f16::MIN.to_f32(), f16::MAX.to_f32()))
}

/// The step in which parameters of magnitude up to `extreme` are stored as integers up to
/// `n_steps`; the step has the sign of `extreme / n_steps`.
///
/// Near the smallest half-precision number the rounded step can be so much too small that `n_steps`
/// of it do not reach; then it is the next larger one.
pub(crate) fn step_for(extreme: f32, n_steps: f32) -> f16 {
    let step = saturating_half(extreme / n_steps);
    let reach = step.to_f32().abs() * (n_steps.abs() + 0.5);
    if extreme.abs() <= reach || step.to_f32().abs() == f16::MAX.to_f32() {
        return step;
    }
    let is_zero_wanted = step.to_f32() == 0.0 && extreme.abs() < 0.5 * f16::from_bits(1).to_f32();
    if is_zero_wanted { step } else { f16::from_bits(step.to_bits() + 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_reaches_its_extreme_and_is_always_finite() {
        for n_steps in [15.0, 63.0, -32.0, -128.0] {
            for exponent in -149..128 {
                for extreme in [2.0_f32.powi(exponent), -1.37 * 2.0_f32.powi(exponent)] {
                    let step = step_for(extreme, n_steps).to_f32();
                    assert!(step.is_finite());
                    if extreme.abs() > 2.0_f32.powi(-24) && extreme.abs() < 65_504.0 {
                        assert!(step * (n_steps + 0.5 * n_steps.signum()) / extreme >= 1.0);
                        assert!(step * n_steps / extreme < 1.0 + n_steps.abs());
                    }
                }
            }
            assert_eq!(step_for(0.0, n_steps).to_f32(), 0.0);
        }
    }
}
