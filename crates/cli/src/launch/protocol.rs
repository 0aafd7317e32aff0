//! What launcher and worker processes tell each other, a line of JSON a message.

use std::net::SocketAddr;
use std::path::PathBuf;

use ringstep_comm::rendezvous::Token;
use ringstep_train::worker::{Outcome, Report, WorkerError};
use serde::{Deserialize, Serialize};

use crate::settings::Settings;

/// The launcher's first and only line to a worker. The end of the worker's standard input means that the launcher is
/// gone.
#[derive(Serialize, Deserialize)]
pub struct Start {
    pub settings: Settings,
    pub model_file: PathBuf,
    pub rank: usize,
    pub meeting: SocketAddr,
    pub token: Token,
}

/// What a worker says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Message {
    /// While it trains.
    Report(Report),
    /// At the end.
    Done(Outcome),
    /// At the end, if it failed.
    Failed {
        /// Begins with `rank N`.
        error: String,
        /// Whether it only failed because another rank was gone.
        lost_peer: bool,
    },
}

impl Message {
    /// What a rank that failed says.
    pub fn failure(rank: usize, error: &anyhow::Error) -> Self {
        let mut text = format!("{error:#}");
        if !text.starts_with(&format!("rank {rank}:")) {
            text = format!("rank {rank}: {text}");
        }
        let lost_peer = matches!(error.downcast_ref(), Some(WorkerError::Collective(_)));
        Self::Failed { error: text, lost_peer }
    }
}
