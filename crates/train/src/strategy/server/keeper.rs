//! What a server does with gradients: keeps a clock, or takes them as they come.

use std::time::Duration;

use ringstep_nn::optim::Optimizer;
use ringstep_nn::state::State;
use ringstep_nn::team::Team;

use super::clocked::{self, Clocked};
use super::free::Free;
use super::messages::Push;
use crate::{Job, SyncMethod};

/// The parameters of a server, in one of the two ways to keep them.
pub(super) enum Keeper {
    Clocked(Clocked),
    Free {
        free: Free,
        /// From one step to the next; none for a step by each gradient.
        period: Duration,
        /// When the last step was taken, and when the next one is to be, if a gradient waits for it; after the beginning.
        last: Duration,
        due: Option<Duration>,
    },
}

/// What a worker gets.
pub(super) struct Read<'a> {
    pub values: &'a [f32],
    /// To be said with the gradient that is computed from them.
    pub version: u64,
    /// If it shows already now.
    pub staleness: Option<u64>,
}

impl Keeper {
    pub fn new(job: &Job, images: usize, values: Vec<f32>, optimizer: Optimizer) -> Self {
        let (schedule, workers) = (job.schedule(images), job.workers);
        match job.sync {
            SyncMethod::Async { period, staleness_aware, .. } => {
                let whole_step = workers * job.batch * job.accumulate;
                let free = Free::new(values, optimizer, schedule, workers, whole_step, staleness_aware);
                Self::Free { free, period: Duration::from_secs_f64(period), last: Duration::ZERO, due: None }
            }
            SyncMethod::Stale { staleness, .. } => {
                Self::Clocked(Clocked::new(values, optimizer, schedule, workers, staleness as u64))
            }
            _ => Self::Clocked(Clocked::new(values, optimizer, schedule, workers, 0)),
        }
    }

    /// What it remembers, to go on later. A step that was due some time later is due then from now on.
    pub fn state(&mut self, state: &mut State<'_>) {
        match self {
            Self::Clocked(clocked) => clocked.state(state),
            Self::Free { free, period, last, due } => {
                free.state(state);
                *due = free.has_arrivals().then(|| due.unwrap_or(*last + *period));
            }
        }
    }

    /// Takes a worker's gradient. Returns how stale it was, if that shows only now.
    pub fn push(
        &mut self,
        team: &mut Team,
        worker: usize,
        push: &Push,
        gradient: Vec<f32>,
    ) -> Result<Option<u64>, &'static str> {
        match self {
            Self::Clocked(clocked) => clocked.push(team, worker, push.version, gradient).map(|()| None),
            Self::Free { free, period, last, due } => {
                let staleness = free.push(push.version, push.images as usize, &gradient)?;
                due.get_or_insert(*last + *period);
                Ok(Some(staleness))
            }
        }
    }

    /// What a worker that has pushed so many gradients may see; `None` if it must wait.
    pub fn read(&mut self, team: &mut Team, clock: u64) -> Option<Read<'_>> {
        match self {
            Self::Clocked(clocked) => {
                let clocked::Read { values, staleness } = clocked.read(team, clock)?;
                Some(Read { values, version: clock, staleness: Some(staleness) })
            }
            Self::Free { free, .. } => {
                let (values, version) = free.read();
                Some(Read { values, version, staleness: None })
            }
        }
    }

    /// A worker has pushed its last gradient.
    pub fn leave(&mut self, team: &mut Team, worker: usize) {
        if let Self::Clocked(clocked) = self {
            clocked.leave(team, worker);
        }
    }

    /// Whether those that may not read yet wait for this worker's gradient.
    pub fn waits_for(&self, worker: usize) -> bool {
        matches!(self, Self::Clocked(clocked) if clocked.missing().any(|missing| missing == worker))
    }

    /// When it is to take a step by what has arrived, after the beginning.
    pub fn due(&self) -> Option<Duration> {
        if let Self::Free { due, .. } = self { *due } else { None }
    }

    /// Takes that step once it is time.
    pub fn apply_in_time(&mut self, team: &mut Team, now: Duration) {
        if let Self::Free { free, last, due, .. } = self
            && due.take_if(|due| *due <= now).is_some()
        {
            free.apply(team);
            *last = now;
        }
    }

    /// The parameters after all gradients, once all workers have left.
    pub fn last(&mut self, team: &mut Team) -> &[f32] {
        match self {
            Self::Clocked(clocked) => clocked.values(),
            Self::Free { free, .. } => {
                free.apply(team);
                free.read().0
            }
        }
    }

    /// Steps that the parameters have taken.
    pub fn steps(&self) -> u64 {
        match self {
            Self::Clocked(clocked) => clocked.clock(),
            Self::Free { free, .. } => free.read().1,
        }
    }
}
