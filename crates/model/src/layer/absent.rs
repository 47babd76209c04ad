//! A mixer that is not there: some layers have a sequence mixer alone, some a channel mixer alone.

use std::marker::PhantomData;

use super::kind::Stages;
use super::{Found, Kept, Kind, Linear, MixerKind, MlpKind, Packed, PlannedTensors};
use crate::device::Device;
use crate::error::ModelError;
use crate::export::Listing;
use crate::load::{Lookup, Packer};
use crate::parameters::Parameters;

/// No mixer: the layer has neither its norm nor its weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Absent;

/// The tensors of no mixer.
#[derive(Debug)]
pub struct NoTensors;

/// The weights of no mixer on a device.
#[derive(Debug)]
pub struct NoWeights<B>(PhantomData<fn() -> B>);

impl Kind for Absent {
    type Plan<'a> = NoTensors;
    type Weights<B: Device> = NoWeights<B>;

    fn n_weights(&self, _hidden_size: usize) -> usize {
        0
    }

    fn parameters(&self, _hidden_size: usize, _head_rows: usize) -> Parameters {
        Parameters::default()
    }
}

impl MixerKind for Absent {
    fn n_heads(&self) -> usize {
        1
    }

    fn kept(&self) -> Kept {
        Kept::default()
    }

    fn window(&self) -> Option<usize> {
        None
    }

    fn is_causal(&self) -> bool {
        true
    }

    fn query_width(&self) -> usize {
        0
    }

    fn out_width(&self) -> usize {
        0
    }

    fn out<B: Device>(_weights: &NoWeights<B>) -> Option<&Linear<B>> {
        None
    }
}

impl MlpKind for Absent {
    fn intermediate_size(&self) -> usize {
        0
    }

    fn n_active_weights(&self, _hidden_size: usize) -> usize {
        0
    }

    fn active_bytes<B: Device>(&self, _weights: &NoWeights<B>) -> usize {
        0
    }
}

impl<'a> Found<'a> for NoTensors {
    fn tensors(&self) -> PlannedTensors<'_, 'a> {
        PlannedTensors::default()
    }
}

impl<B: Device> Packed<B> for NoWeights<B> {
    fn matrices(&self) -> Vec<&B::Weight> {
        Vec::new()
    }

    fn inputs(&self) -> Vec<&Linear<B>> {
        Vec::new()
    }
}

impl Stages for Absent {
    fn plan<'a>(&self, _lookup: &Lookup<'a, '_>, _layer: usize) -> Result<NoTensors, ModelError> {
        Ok(NoTensors)
    }

    fn pack<B: Device>(
        &self,
        _plan: &NoTensors,
        _packer: &mut Packer<'_, B>,
    ) -> Result<NoWeights<B>, ModelError> {
        Ok(NoWeights(PhantomData))
    }

    fn list<'a>(
        &self,
        _plan: NoTensors,
        _layer: usize,
        _list: &mut Listing<'a, '_>,
    ) -> Result<(), ModelError> {
        Ok(())
    }
}
