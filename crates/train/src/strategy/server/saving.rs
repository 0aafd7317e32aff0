//! What a server remembers. It is saved when all workers stand between two steps and have asked for it: then it has got all that
//! they have pushed, and owes them nothing.

use ringstep_nn::state::{Saved, State};

use super::messages::{Answer, LENGTH};
use super::{Label, Server};
use crate::error::WorkerError;
use crate::records::Report;
use crate::saving::writer::{Task, Writer};

impl Server<'_> {
    /// Goes on from where a server of this number was before.
    pub(super) fn restore(&mut self, saved: &Saved) -> Result<(), WorkerError> {
        let rank = self.world.rank();
        saved.load(|state| self.state(state)).map_err(|foreign| WorkerError::OtherState { rank, foreign })?;
        self.world.all.barrier()?;
        self.before = self.world.traffic();
        self.world.take_exchanges();
        Ok(())
    }

    /// The name of the checkpoint, if all workers that still train have asked to be saved.
    pub(super) fn name_to_save(&self) -> Option<usize> {
        let open = self.workers.iter().enumerate().filter(|(rank, _)| !self.service.has_finished(*rank));
        let mut open = open.map(|(_, worker)| worker);
        let name = open.clone().find_map(|worker| worker.saves)?;
        open.all(|worker| worker.saves.is_some()).then_some(name as usize)
    }

    /// Copies its state, lets it be written, and tells all workers to go on.
    pub(super) fn save(
        &mut self,
        name: usize,
        writer: Option<&mut Writer>,
        report: &mut dyn FnMut(Report),
    ) -> Result<(), WorkerError> {
        let rank = self.world.rank();
        if let Some(writer) = writer {
            report(Report::Checkpoint(name));
            let task = Task { name, state: Saved::of(|state| self.state(state)), tests: Vec::new() };
            writer.write(task, report).map_err(WorkerError::no_thread(rank, "write checkpoints"))?;
        }
        for to in 0..self.workers.len() {
            if self.workers[to].saves.take().is_some() {
                self.workers[to].waits = None;
                self.about(Label::Request).send_varied(&Answer::Saved.encode(), LENGTH, to)?;
            }
        }
        Ok(())
    }

    fn state(&mut self, state: &mut State<'_>) {
        self.service.state(state);
        state.within("records", |state| {
            state.within("recorder", |state| self.recorder.state(state));
            state.list("observed", &mut self.observed);
            if let Some(decoder) = &mut self.decoder {
                state.number("decoding", &mut decoder.seconds);
            }
            let mut traffic = self.traffic();
            state.numbers("payload", &mut traffic.payload);
            state.numbers("wire", &mut traffic.wire);
            state.numbers("messages", &mut traffic.messages);
            (self.earlier, self.before) = (traffic, self.world.traffic());
        });
    }
}
