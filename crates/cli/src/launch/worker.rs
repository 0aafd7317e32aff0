//! What a worker does, as a process or as a thread.

use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use anyhow::{Context, Result};
use ringstep_comm::transport::DEFAULT_TIMEOUT;
use ringstep_comm::transport::shm::Shm;
use ringstep_comm::{Group, rendezvous};
use ringstep_data::{Dataset, file};
use ringstep_train::Job;
use ringstep_train::worker::{self, Outcome, Report};

use super::protocol::{Message, Start};
use crate::datasets;
use crate::settings::ProcessTransport;

/// `ringstep worker`: takes its orders from standard input and reports on standard output.
pub fn main() -> ExitCode {
    let mut line = String::new();
    let start: Start = match io::stdin().lock().read_line(&mut line).map(|_| serde_json::from_str(&line)) {
        Ok(Ok(start)) => start,
        // The launcher was gone before it could say anything.
        Ok(Err(_)) if line.is_empty() && !io::stdin().is_terminal() => return ExitCode::FAILURE,
        _ => {
            eprintln!("error: worker is started by compare and train, not by hand");
            return ExitCode::from(2);
        }
    };
    follow_the_launcher();
    let message = match work(&start) {
        Ok(outcome) => Message::Done(outcome),
        Err(error) => Message::failure(start.rank, &error),
    };
    say(&message);
    ExitCode::from(u8::from(matches!(message, Message::Failed { .. })))
}

/// Ctrl-C in a terminal reaches workers too, but the launcher decides; and when it is gone, so are they.
fn follow_the_launcher() {
    let _ = signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::new(AtomicBool::new(false)));
    thread::spawn(|| {
        let _ = io::stdin().lock().read(&mut [0]);
        std::process::exit(1);
    });
}

fn say(message: &Message) {
    let mut line = serde_json::to_string(message).expect("messages are plain data");
    line.push('\n');
    if io::stdout().lock().write_all(line.as_bytes()).is_err() {
        std::process::exit(1); // Nobody is listening any more.
    }
}

fn work(start: &Start) -> Result<Outcome> {
    let job = start.settings.job()?;
    let data = datasets::load(&start.settings)?;
    let transport = rendezvous::join(start.meeting, start.token, start.rank, job.workers, DEFAULT_TIMEOUT)?;
    let run = Worker { job: &job, settings: &start.settings, data: &data, model_file: &start.model_file };
    let group = match start.settings.transport()? {
        ProcessTransport::Tcp => Group::new(transport),
        ProcessTransport::Shm => Group::new(Shm::over(transport)?),
    };
    run.train(group, &mut |report| say(&Message::Report(report)))
}

/// One rank of a run.
pub(super) struct Worker<'a> {
    pub job: &'a Job,
    pub settings: &'a crate::settings::Settings,
    pub data: &'a Dataset,
    pub model_file: &'a std::path::Path,
}

impl Worker<'_> {
    /// Trains; rank 0 also writes the weights down.
    pub fn train(&self, mut group: Group, report: &mut dyn FnMut(Report)) -> Result<Outcome> {
        let (outcome, weights) = worker::run(self.job, self.settings.init.as_deref(), self.data, &mut group, report)?;
        if group.rank() == 0 {
            file::write_whole(self.model_file, &weights).with_context(|| self.model_file.display().to_string())?;
        }
        Ok(outcome)
    }
}
