//! The way that the parameters of a request ask for.

use super::Candidates;
use pelton_base::{Dynatemp, SamplerStage, SamplingParams, Xtc};

/// How the tokens of a request are cut and weighed.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Zero means greedy.
    pub(crate) temperature: f32,
    /// Zero keeps all.
    pub(crate) top_k: usize,
    pub(crate) top_p: f32,
    pub(crate) min_p: f32,
    /// The stages, where temperature, top-k, top-p and min-p in this order are not enough.
    pub(crate) staged: Option<Staged>,
}

/// The stages of a request, in their order.
#[derive(Clone, Debug)]
pub(crate) struct Staged {
    stages: Vec<SamplerStage>,
    typical_p: f32,
    top_n_sigma: f32,
    pub(crate) xtc: Xtc,
    dynatemp: Dynatemp,
    /// Tokens that every truncation leaves; at least 1.
    pub(crate) min_keep: usize,
}

impl Plan {
    /// The plan of a request; stages that change nothing are left out of it.
    pub(crate) fn new(params: &SamplingParams) -> Self {
        let order = match (&params.mirostat, &params.samplers) {
            // Mirostat takes the place of all truncations.
            (Some(_), _) => &[SamplerStage::Temperature][..],
            (None, Some(order)) => order,
            (None, None) => &SamplerStage::ALL,
        };
        let stages: Vec<_> = order.iter().copied().filter(|&stage| acts(stage, params)).collect();
        let place = |stage: &SamplerStage| SamplerStage::ALL.iter().position(|it| it == stage);
        let is_plain = |stage: &SamplerStage| {
            use SamplerStage::{MinP, Temperature, TopK, TopP};
            matches!(stage, Temperature | TopK | TopP | MinP)
        };
        let has = |stage: SamplerStage| stages.contains(&stage);
        let needs_stages = params.mirostat.is_some()
            || params.min_keep > 1
            || (params.dynatemp.range > 0.0 && has(SamplerStage::Temperature))
            || !stages.iter().all(is_plain)
            || !stages.is_sorted_by_key(place);
        let is_greedy = params.is_greedy();
        let staged = || Staged {
            typical_p: params.typical_p,
            top_n_sigma: params.top_n_sigma,
            xtc: params.xtc,
            dynatemp: params.dynatemp,
            min_keep: params.min_keep.max(1),
            stages: stages.clone(),
        };
        Self {
            // Temperature zero is greedy, whatever the order says.
            temperature: match is_greedy || has(SamplerStage::Temperature) {
                true => params.temperature,
                false => 1.0,
            },
            top_k: if has(SamplerStage::TopK) { params.top_k as usize } else { 0 },
            top_p: if has(SamplerStage::TopP) { params.top_p } else { 1.0 },
            min_p: if has(SamplerStage::MinP) { params.min_p } else { 0.0 },
            staged: (needs_stages && !is_greedy).then(staged),
        }
    }

    /// Tokens that the stages begin with, where only the largest logits matter to them.
    pub(crate) fn first_k(&self, staged: &Staged) -> Option<usize> {
        // A temperature that is the same for all logits keeps their order.
        let is_steady = staged.dynatemp.range <= 0.0;
        let skips = |stage: &&SamplerStage| is_steady && **stage == SamplerStage::Temperature;
        let first = staged.stages.iter().find(|stage| !skips(stage))?;
        (*first == SamplerStage::TopK).then(|| self.top_k.max(staged.min_keep))
    }

    /// Takes the candidates through the stages; `excludes` tells whether XTC applies to this token.
    pub(crate) fn run(
        &self,
        staged: &Staged,
        candidates: &mut Candidates<'_>,
        excludes: impl Fn() -> bool,
    ) {
        for stage in &staged.stages {
            match stage {
                SamplerStage::Temperature => {
                    candidates.heat(self.temperature, staged.dynatemp);
                }
                SamplerStage::TopNSigma => candidates.top_n_sigma(staged.top_n_sigma),
                SamplerStage::TopK => candidates.keep_largest(self.top_k),
                SamplerStage::TypicalP => candidates.typical(staged.typical_p),
                SamplerStage::TopP => candidates.top_p(self.top_p),
                SamplerStage::MinP => candidates.min_p(self.min_p),
                SamplerStage::Xtc => {
                    if excludes() {
                        candidates.exclude_top(staged.xtc.threshold);
                    }
                }
            }
        }
    }
}

/// Whether a stage can change anything with these parameters.
fn acts(stage: SamplerStage, params: &SamplingParams) -> bool {
    match stage {
        SamplerStage::Temperature => params.temperature != 1.0 || params.dynatemp.range > 0.0,
        SamplerStage::TopNSigma => params.top_n_sigma > 0.0,
        SamplerStage::TopK => params.top_k > 0,
        SamplerStage::TypicalP => params.typical_p < 1.0,
        SamplerStage::TopP => params.top_p < 1.0,
        SamplerStage::MinP => params.min_p > 0.0,
        SamplerStage::Xtc => params.xtc.probability > 0.0 && params.xtc.threshold <= 0.5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use SamplerStage::{MinP, Temperature, TopK, TopP};
    use pelton_base::Xtc;

    fn is_staged(params: SamplingParams) -> bool {
        Plan::new(&params).staged.is_some()
    }

    #[test]
    fn plain_parameters_take_the_fast_way() {
        let plain = SamplingParams {
            temperature: 0.7,
            top_k: 40,
            top_p: 0.9,
            min_p: 0.1,
            ..SamplingParams::default()
        };
        let ordered = |samplers: &[SamplerStage]| SamplingParams {
            samplers: Some(samplers.to_vec()),
            ..plain.clone()
        };
        assert!(!is_staged(plain.clone()));
        assert!(!is_staged(ordered(&SamplerStage::ALL)));
        assert!(!is_staged(ordered(&[TopK, TopP])));
        assert!(!is_staged(ordered(&[Temperature, SamplerStage::Xtc, MinP])), "XTC does nothing");
        assert!(is_staged(ordered(&[TopP, TopK])));
        assert!(is_staged(ordered(&[TopK, TopP, MinP, Temperature])));
        assert!(is_staged(SamplingParams { min_keep: 2, ..plain.clone() }));
        assert!(is_staged(SamplingParams { typical_p: 0.9, ..plain.clone() }));
        assert!(!is_staged(SamplingParams { typical_p: 0.9, temperature: 0.0, ..plain }));
    }

    #[test]
    fn a_stage_whose_parameter_is_off_does_not_act() {
        let off = SamplingParams::default();
        assert!(SamplerStage::ALL.iter().all(|&stage| !acts(stage, &off)));
        let on = SamplingParams {
            temperature: 0.7,
            top_n_sigma: 1.0,
            top_k: 1,
            typical_p: 0.9,
            top_p: 0.9,
            min_p: 0.1,
            xtc: Xtc { probability: 0.5, threshold: 0.5 },
            ..off
        };
        assert!(SamplerStage::ALL.iter().all(|&stage| acts(stage, &on)));
    }

    #[test]
    fn a_stage_that_is_not_in_the_order_does_not_apply() {
        let params = SamplingParams {
            temperature: 0.5,
            top_k: 40,
            top_p: 0.9,
            min_p: 0.1,
            samplers: Some(vec![TopP]),
            ..SamplingParams::default()
        };
        let plan = Plan::new(&params);
        assert_eq!((plan.temperature, plan.top_k, plan.min_p), (1.0, 0, 0.0));
        assert_eq!(plan.top_p, 0.9);
        assert_eq!(Plan::new(&SamplingParams { temperature: 0.0, ..params }).temperature, 0.0);
    }

    #[test]
    fn stages_that_begin_with_top_k_need_its_largest_logits_only() {
        let begin = |samplers: &[SamplerStage], range| {
            let plan = Plan::new(&SamplingParams {
                top_k: 40,
                top_p: 0.9,
                typical_p: 0.9,
                dynatemp: pelton_base::Dynatemp { range, exponent: 1.0 },
                samplers: Some(samplers.to_vec()),
                min_keep: 50,
                ..SamplingParams::default()
            });
            plan.first_k(plan.staged.as_ref().expect("stages"))
        };
        assert_eq!(begin(&[TopK, TopP], 0.0), Some(50), "as many as are kept in any case");
        assert_eq!(begin(&[Temperature, TopK], 0.0), Some(50), "order survives a temperature");
        assert_eq!(begin(&[Temperature, TopK], 0.5), None, "that is the same for all logits");
        assert_eq!(begin(&[TopP, TopK], 0.0), None);
    }
}
