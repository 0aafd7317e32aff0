//! The model as it was when tests were due. It is tested after the training, so that no rank ever waits for a test.

use std::sync::Arc;

use ringstep_comm::Group;
use ringstep_data::Dataset;
use ringstep_data::canvas::Canvas;
use ringstep_nn::Model;
use ringstep_nn::state::{Saved, State};

use crate::error::WorkerError;
use crate::evaluate;
use crate::records::Tested;

/// A model that is to be tested.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    /// When it was, with no images as yet.
    pub when: Tested,
    /// The parameters.
    pub values: Vec<f32>,
    /// Batch norm's running statistics.
    pub statistics: Vec<f32>,
}

impl Snapshot {
    /// One of a model of this size, to be set.
    pub fn like(model: &mut Model) -> Self {
        let (values, statistics) = (model.values_mut().to_vec(), model.statistics_mut().to_vec());
        Self { when: Tested::default(), values, statistics }
    }

    /// As a file holds it.
    pub fn saved(&self) -> Saved {
        let mut copy = self.clone();
        Saved::of(|state| copy.state(state))
    }

    /// What it is.
    pub fn state(&mut self, state: &mut State<'_>) {
        let Tested { epoch, step, seconds, bytes_sent, .. } = &mut self.when;
        state.count("epoch", epoch);
        state.count("step", step);
        state.number("seconds", seconds);
        state.number("bytes_sent", bytes_sent);
        state.numbers("values", &mut self.values);
        state.numbers("statistics", &mut self.statistics);
    }
}

/// Tests what rank 0 has kept, one after the other; the others have kept nothing. Afterwards the model is the last of
/// these.
pub(crate) fn test(
    snapshots: Vec<Arc<Snapshot>>,
    model: &mut Model,
    data: &Dataset,
    canvas: &Canvas,
    group: &mut Group,
) -> Result<Vec<Tested>, WorkerError> {
    let mut count = [snapshots.len() as i64];
    group.broadcast(&mut count, 0)?;
    let mut snapshots = snapshots.into_iter();
    let mut tests = Vec::new();
    for _ in 0..count[0] {
        let mut when = [0f64; 4];
        if let Some(Snapshot { when: Tested { epoch, step, seconds, bytes_sent, .. }, values, statistics }) =
            snapshots.next().as_deref()
        {
            model.values_mut().copy_from_slice(values);
            model.statistics_mut().copy_from_slice(statistics);
            when = [*epoch as f64, *step as f64, *seconds, *bytes_sent as f64];
        }
        group.broadcast(&mut when, 0)?;
        group.broadcast(model.values_mut(), 0)?;
        let (images, correct) = evaluate::test(model, data, canvas, group)?;
        let [epoch, step, seconds, bytes_sent] = when;
        let (epoch, step, bytes_sent) = (epoch as usize, step as usize, bytes_sent as u64);
        tests.push(Tested { epoch, step, seconds, bytes_sent, images, correct });
    }
    Ok(tests)
}
