//! The ranks of a job, and what each is there for.

use std::ops::Add;

use ringstep_comm::log::Exchange;
use ringstep_comm::transport::Traffic;
use ringstep_comm::{CollectiveError, Group};

use crate::content::Content;

/// What a rank is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It trains.
    Worker,
    /// It holds a part of the parameters: the server of this number.
    Server(usize),
}

/// The rank whose model and statistics stand for the job.
pub(crate) const CHIEF: usize = 0;

/// All ranks as one of them sees them: workers first, then servers.
pub(crate) struct World<'a> {
    /// Everybody.
    pub all: &'a mut Group,
    /// Those of this rank's kind, where there is another kind.
    own_kind: Option<Group>,
    /// What exchanges are about, and what they are there for.
    labels: Vec<(String, Content)>,
}

impl<'a> World<'a> {
    /// All ranks call it at the same time; `roles` has one for each. Where all are workers nobody needs connections
    /// beside those that there are.
    pub fn new(all: &'a mut Group, roles: &[Role]) -> Result<Self, CollectiveError> {
        let kind = |role: Role| i64::from(role != Role::Worker);
        let own_kind = match roles.iter().all(|&role| role == Role::Worker) {
            true => None,
            false => Some(all.split(kind(roles[all.rank()]), all.rank() as i64)?),
        };
        Ok(Self { all, own_kind, labels: Vec::new() })
    }

    /// The workers, on a worker.
    pub fn workers(&mut self) -> &mut Group {
        self.own_kind.as_mut().unwrap_or(self.all)
    }

    /// This rank's number among all, which for workers is also that among the workers.
    pub fn rank(&self) -> usize {
        self.all.rank()
    }

    /// Whether this rank's model and statistics stand for the job.
    pub fn is_chief(&self) -> bool {
        self.rank() == CHIEF
    }

    /// A number for what exchanges are about, by which traces find its name.
    pub fn label(&mut self, name: impl Into<String>, content: Content) -> u16 {
        let (label, name) = (self.labels.len() as u16, name.into());
        self.all.watch().name(label, &name);
        self.labels.push((name, content));
        label
    }

    /// The name behind a number.
    pub fn name(&self, label: u16) -> &str {
        &self.labels[usize::from(label)].0
    }

    /// What exchanges with this number are there for.
    pub fn content(&self, label: u16) -> Content {
        self.labels[usize::from(label)].1
    }

    /// The workers, for exchanges that are about this.
    pub fn workers_for(&mut self, label: u16) -> &mut Group {
        let workers = self.workers();
        workers.label(label);
        workers
    }

    /// Exchanges that follow are about nothing that has a name.
    pub fn unlabel(&mut self) {
        self.all.unlabel();
        self.workers().unlabel();
    }

    /// From now on exchanges are remembered.
    pub fn record(&mut self) {
        self.all.record(true);
        self.workers().record(true);
    }

    /// The exchanges since the last time, each with the number of its group: 0 for that of all, 1 for that of one kind.
    pub fn take_exchanges(&mut self) -> Vec<(u8, Exchange)> {
        let groups = [Some(&mut *self.all), self.own_kind.as_mut()];
        let mut taken = Vec::new();
        for (number, group) in (0..).zip(groups.into_iter().flatten()) {
            let mut exchanges = Vec::new();
            group.take_exchanges(&mut exchanges);
            taken.extend(exchanges.into_iter().map(|exchange| (number, exchange)));
        }
        taken
    }

    /// What this rank has sent and received.
    pub fn traffic(&self) -> Traffic {
        let groups = [Some(&*self.all), self.own_kind.as_ref()];
        groups.into_iter().flatten().map(Group::traffic).fold(Traffic::default(), Traffic::add)
    }
}

#[cfg(test)]
mod tests {
    use ringstep_comm::transport::mem;
    use ringstep_comm::{How, Op};

    use super::*;

    /// Sums over the workers leave servers out, who can do the same among themselves.
    #[test]
    fn workers_and_servers_have_groups_of_their_own() {
        for servers in 0..3 {
            let roles: Vec<Role> = [Role::Worker; 3].into_iter().chain((0..servers).map(Role::Server)).collect();
            let sums: Vec<f32> = std::thread::scope(|scope| {
                let roles = &roles;
                let ranks: Vec<_> = mem::mesh(roles.len())
                    .into_iter()
                    .map(|transport| {
                        scope.spawn(move || {
                            let mut group = Group::new(transport);
                            let mut world = World::new(&mut group, roles).unwrap();
                            let mut ones = [1.0f32];
                            world.record();
                            let [_, label] = ["zeros", "ones"].map(|name| world.label(name, Content::Gradients));
                            let own_kind = world.workers_for(label);
                            own_kind.all_reduce(&mut ones, Op::Sum, How::default()).unwrap();
                            let names = world
                                .take_exchanges()
                                .iter()
                                .map(|(_, exchange)| world.name(exchange.label))
                                .collect::<Vec<_>>();
                            assert_eq!(names, ["ones"]);
                            ones[0]
                        })
                    })
                    .collect();
                ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
            });
            assert_eq!(sums[..3], [3.0; 3]);
            assert!(sums[3..].iter().all(|&sum| sum == servers as f32));
        }
    }
}
