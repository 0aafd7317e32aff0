//! The central model of CROSSBOW's synchronous model averaging (SMA: Koliousis et al., "CROSSBOW: scaling deep learning with
//! small batch sizes on multi-GPU servers", VLDB 2019, algorithm 1).
//!
//! Replicas w_j learn on their own, each on small batches, and are held together by a central model z. In each step, with w_j as
//! it was before:
//!
//! ```text
//! c_j = a (w_j - z)               how far a replica is pulled back
//! w_j <- w_j + its own step - c_j
//! v <- mu v + sum_j c_j           the central model follows all of them, with momentum
//! z <- z + v
//! ```

use ringstep_nn::state::State;

/// The model that replicas are averaged into.
#[derive(Debug, Clone, PartialEq)]
pub struct Central {
    values: Vec<f32>,
    velocity: Vec<f32>,
    /// a and mu above.
    pull: f32,
    momentum: f32,
}

impl Central {
    /// Begins where the replicas do.
    pub fn new(values: Vec<f32>, pull: f32, momentum: f32) -> Self {
        Self { velocity: vec![0.0; values.len()], values, pull, momentum }
    }

    /// What it remembers from step to step.
    pub fn state(&mut self, state: &mut State<'_>) {
        state.numbers("values", &mut self.values);
        state.numbers("velocity", &mut self.velocity);
    }

    /// z.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// c_j of a replica as it is before its step.
    pub fn correction(&self, replica: &[f32], correction: &mut [f32]) {
        assert!(replica.len() == self.values.len() && correction.len() == self.values.len());
        for ((correction, &replica), &central) in correction.iter_mut().zip(replica).zip(&self.values) {
            *correction = self.pull * (replica - central);
        }
    }

    /// Follows the replicas: takes the sum of all corrections.
    pub fn follow(&mut self, corrections: &[f32]) {
        assert_eq!(corrections.len(), self.values.len());
        for ((value, velocity), &correction) in self.values.iter_mut().zip(&mut self.velocity).zip(corrections) {
            *velocity = self.momentum * *velocity + correction;
            *value += *velocity;
        }
    }

    /// Forgets where it was going: when the learning rate has dropped, replicas begin anew from here.
    pub fn stop(&mut self) {
        self.velocity.fill(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One step of replicas that do not learn.
    fn step(central: &mut Central, replicas: &mut [[f32; 2]]) {
        let mut sum = [0.0; 2];
        for replica in replicas {
            let mut correction = [0.0; 2];
            central.correction(replica, &mut correction);
            for at in 0..2 {
                replica[at] -= correction[at];
                sum[at] += correction[at];
            }
        }
        central.follow(&sum);
    }

    #[test]
    fn without_a_pull_nobody_moves() {
        let (mut central, mut replicas) = (Central::new(vec![1.0, 2.0], 0.0, 0.9), [[3.0, 4.0], [5.0, -6.0]]);
        step(&mut central, &mut replicas);
        assert_eq!((central.values(), replicas), (&[1.0, 2.0][..], [[3.0, 4.0], [5.0, -6.0]]));
    }

    /// z + the mean of k replicas times k a stays, and so what they agree on: with a = 1 / k the central model is their mean at once.
    #[test]
    fn pulled_by_its_share_each_the_central_model_is_their_mean() {
        let (mut central, mut replicas) = (Central::new(vec![0.0; 2], 0.5, 0.0), [[2.0, 4.0], [6.0, -8.0]]);
        step(&mut central, &mut replicas);
        assert_eq!(central.values(), [4.0, -2.0]);
        // Half of the way to where the central model was.
        assert_eq!(replicas, [[1.0, 2.0], [3.0, -4.0]]);
    }

    /// One replica at distance d: without momentum the distance is multiplied by 1 - 2a in each step.
    #[test]
    fn a_replica_and_the_central_model_meet_half_way() {
        let (mut central, mut replicas) = (Central::new(vec![0.0, 0.0], 0.25, 0.0), [[8.0, -8.0]]);
        for step_number in 1..=10 {
            step(&mut central, &mut replicas);
            let distance = 8.0 * 0.5f32.powi(step_number);
            assert_eq!(replicas[0][0] - central.values()[0], distance);
            assert_eq!(replicas[0][0] + central.values()[0], 8.0);
        }
    }

    /// Velocity after n steps of the same sum c: c (1 - mu^n) / (1 - mu).
    #[test]
    fn momentum_follows_the_geometric_series_until_it_is_stopped() {
        let mut central = Central::new(vec![0.0], 1.0, 0.5);
        let mut expected = 0.0;
        for n in 1..=8 {
            central.follow(&[2.0]);
            expected += 2.0 * (1.0 - 0.5f32.powi(n)) / 0.5;
            assert_eq!(central.values(), [expected]);
        }
        central.stop();
        central.follow(&[0.0]);
        assert_eq!(central.values(), [expected]);
    }
}
