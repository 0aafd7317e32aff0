//! Gradients that are compressed on their way to servers.
//!
//! A piece of a gradient goes as a code, with its message before it as ever. Servers answer with parameters as they are: what a
//! code of these lacked nobody could send later, since workers keep no model that it could be added to.
//!
//! A code is made with the number of the worker's step and that of the piece, which its server knows, too.

use std::ops::Range;
use std::time::Instant;

use ringstep_comm::Group;
use ringstep_cpu::Level;
use ringstep_nn::kernels::rows::sum_of_squares;
use ringstep_nn::optim::Rule;
use ringstep_nn::state::State;

use super::shards::Cut;
use crate::Job;
use crate::compress::dgc::{Dgc, WarmUp, clip};
use crate::compress::error_feedback::{Residuals, leave};
use crate::compress::factors::{Factors, Parts, Tensor};
use crate::compress::half::{Format, Half};
use crate::compress::memory::Memory;
use crate::compress::qsgd::{Qsgd, Width};
use crate::compress::random_k::RandomK;
use crate::compress::sign::Sign;
use crate::compress::sparse::{self, Threshold, TopK};
use crate::compress::{Codec, Compression, Key, Malformed, Method};
use crate::error::WorkerError;
use crate::recorder::Recorder;
use crate::records::Compressed;
use crate::trace::Kind;

/// What codes are made by; the same on workers and servers.
pub(super) struct Codes {
    level: Level,
    seed: u64,
    servers: usize,
    method: &'static str,
    maker: Maker,
}

enum Maker {
    /// What a code lacks shows when it is decoded.
    Plain(Box<dyn Codec>),
    /// The same, and a worker keeps the Q of each piece, which the next code begins with.
    OfMatrices(Matrices, Memory),
    /// What it lacks, [`Dgc`] knows.
    Deep {
        dgc: Dgc,
        warm_up: WarmUp,
        /// Steps of an epoch.
        epoch: usize,
        /// The largest norm of all workers' gradients of a piece together.
        norm: Option<f64>,
        workers: usize,
    },
}

/// Matrices of a rank, in the shards of all servers.
struct Matrices {
    rank: usize,
    tensors: Vec<Tensor>,
    shards: Vec<Range<usize>>,
}

impl Matrices {
    /// Those of a piece.
    fn of(&self, Piece { server, at, .. }: &Piece) -> Parts {
        let start = self.shards[*server].start;
        Parts::of(&(start + at.start..start + at.end), &self.tensors, self.rank)
    }
}

/// A piece of a worker's gradient.
#[derive(Debug, Clone)]
struct Piece {
    server: usize,
    /// Its number among those of the step that this server gets.
    number: usize,
    /// Where it stands in the server's shard.
    at: Range<usize>,
}

impl Codes {
    /// For a job on so many images, if it compresses.
    pub fn new(job: &Job, images: usize, level: Level) -> Option<Self> {
        let Compression { method, error_feedback } = job.compress?;
        let servers = job.sync.servers(job.workers);
        let maker = match method {
            Method::Fp16 => Maker::Plain(Box::new(Half::new(level, Format::Fp16))),
            Method::Bf16 => Maker::Plain(Box::new(Half::new(level, Format::Bf16))),
            Method::Int8 => Maker::Plain(Box::new(Qsgd::new(level, Width::Int8))),
            Method::Int4 => Maker::Plain(Box::new(Qsgd::new(level, Width::Int4))),
            Method::Sign => Maker::Plain(Box::new(Sign::new(level))),
            Method::TopK { keep } => Maker::Plain(Box::new(TopK::new(keep))),
            Method::RandomK { keep } => Maker::Plain(Box::new(RandomK::new(keep, !error_feedback))),
            Method::Threshold { threshold } => Maker::Plain(Box::new(Threshold::new(threshold))),
            Method::Dgc { keep, warm_up_epochs, clip } => {
                let momentum = if let Rule::Sgd { momentum, .. } = job.rule { momentum } else { 0.0 };
                Maker::Deep {
                    dgc: Dgc::new(level, momentum, keep),
                    warm_up: WarmUp { epochs: warm_up_epochs, share: keep },
                    epoch: job.steps_an_epoch(images),
                    norm: clip,
                    workers: job.workers,
                }
            }
            Method::PowerSgd { rank } => {
                let parameters = job.model.network().parameters().expect("its layers are checked");
                let (tensors, shards) = (Tensor::trained(&parameters), Cut::new(&parameters, servers).shards);
                Maker::OfMatrices(Matrices { rank, tensors, shards }, Memory::default())
            }
        };
        Some(Self { level, seed: job.seed, servers, method: method.name(), maker })
    }

    /// Of a piece of a worker's step.
    fn key(&self, worker: usize, step: u64, piece: &Piece) -> Key {
        let bucket = (piece.number * self.servers + piece.server) as u32;
        Key { seed: self.seed, step, bucket, rank: worker as u32, part: 0 }
    }

    /// Bytes of the longest code of so many numbers.
    pub fn limit(&self, numbers: usize) -> usize {
        match &self.maker {
            Maker::Plain(codec) => codec.limit(numbers),
            // As long as the numbers, where none of them are a matrix.
            Maker::OfMatrices(..) => size_of::<f32>() * numbers,
            // How many it sends changes from epoch to epoch.
            Maker::Deep { .. } => sparse::bytes(numbers),
        }
    }

    /// Adds what the code of a piece stands for.
    fn add(&self, key: Key, piece: &Piece, code: &[u8], into: &mut [f32]) -> Result<(), Malformed> {
        match &self.maker {
            Maker::Plain(codec) => codec.add(key, code, into),
            Maker::OfMatrices(matrices, _) => {
                let parts = matrices.of(piece);
                if parts.numbers() != into.len() {
                    return Err(Malformed::Cut);
                }
                Factors::new(self.level, parts).add(key, code, into)
            }
            Maker::Deep { dgc, .. } => dgc.add(key, code, into),
        }
    }
}

/// Takes codes on a server.
pub(super) struct Decoder {
    codes: Codes,
    /// Its number among the servers.
    server: usize,
    /// Time in decoding so far.
    pub seconds: f64,
}

impl Decoder {
    pub fn new(job: &Job, images: usize, level: Level, server: usize) -> Option<Self> {
        Codes::new(job, images, level).map(|codes| Self { codes, server, seconds: 0.0 })
    }

    /// Receives the code of the next piece of a worker's step, of which some have come, and adds what it stands for to the
    /// numbers that stand there in the shard.
    pub fn receive(
        &mut self,
        group: &mut Group,
        recorder: &mut Recorder,
        [from, step, number]: [usize; 3],
        (start, numbers): (usize, &mut [f32]),
    ) -> Result<(), WorkerError> {
        let Self { codes, server, seconds } = self;
        let mut code = Vec::new();
        group.recv_varied(from, codes.limit(numbers.len()), &mut code)?;
        let began = Instant::now();
        let piece = Piece { server: *server, number, at: start..start + numbers.len() };
        let key = codes.key(from, step as u64, &piece);
        let decoded = recorder.timed(Kind::Encode, "push", || codes.add(key, &piece, &code, numbers));
        *seconds += began.elapsed().as_secs_f64();
        decoded.map_err(|problem| {
            let slice = format!("step {step}, piece {number}");
            WorkerError::MalformedCode { rank: group.rank(), slice, peer: from, method: codes.method, problem }
        })
    }
}

/// Makes codes on a worker, and knows what they lack.
pub(super) struct Encoder {
    pub codes: Codes,
    /// What was left out and is not forgotten, with error feedback.
    residuals: Option<Residuals>,
    /// What is left out of a piece, without.
    left: Vec<f32>,
    sent: Vec<f32>,
    pub code: Vec<u8>,
    /// Steps of this worker so far, and pieces of this one that each server has got.
    pub step: u64,
    pub pieces: Vec<usize>,
    pub record: Compressed,
    /// When something was encoded, and what it was about.
    pub encoding: Vec<(u16, [Instant; 2])>,
}

impl Encoder {
    pub fn new(job: &Job, images: usize, level: Level) -> Option<Self> {
        let codes = Codes::new(job, images, level)?;
        let feedback = job.compress.is_some_and(|compression| compression.error_feedback);
        Some(Self {
            pieces: vec![0; codes.servers],
            codes,
            residuals: feedback.then(|| Residuals::new(level)),
            left: Vec::new(),
            sent: Vec::new(),
            code: Vec::new(),
            step: 0,
            record: Compressed::default(),
            encoding: Vec::new(),
        })
    }

    /// What it remembers from step to step.
    pub fn state(&mut self, state: &mut State<'_>) {
        match &mut self.codes.maker {
            Maker::Plain(_) => {}
            Maker::OfMatrices(_, q) => state.within("q", |state| q.state(state)),
            Maker::Deep { dgc, .. } => state.within("dgc", |state| dgc.state(state)),
        }
        if let Some(residuals) = &mut self.residuals {
            state.within("residuals", |state| residuals.state(state));
        }
        state.number("step", &mut self.step);
        state.within("record", |state| self.record.state(state));
    }

    /// Makes the code of the next piece for a server, which stands there in its shard; `about` is what it is about. Where a
    /// gradient `counts` for nothing, its server will not apply it, and nothing that was left out before may go along.
    pub fn encode(
        &mut self,
        worker: usize,
        (server, at): (usize, Range<usize>),
        values: &mut [f32],
        counts: bool,
        about: u16,
    ) {
        let began = Instant::now();
        let piece = Piece { server, number: self.pieces[server], at };
        let key = self.codes.key(worker, self.step, &piece);
        self.pieces[server] += 1;
        let level = self.codes.level;
        let mut plain = |codec: &mut dyn Codec| {
            let left = match &mut self.residuals {
                Some(residuals) if counts => residuals.add_to(key.bucket, values),
                _ => {
                    self.left.resize(values.len(), 0.0);
                    &mut self.left
                }
            };
            codec.encode(key, values, &mut self.code);
            leave(level, values, left, |sent| {
                // What this worker refuses of its own its server refuses, too.
                let _ = codec.add(key, &self.code, sent);
            });
            [&*left, &*values].map(|numbers| sum_of_squares(level, numbers))
        };
        let [lost, all] = match &mut self.codes.maker {
            Maker::Plain(codec) => plain(codec.as_mut()),
            Maker::OfMatrices(matrices, q) => {
                let parts = matrices.of(&piece);
                let q = q.of(key.bucket, parts.q_len);
                let mut factors = Factors::after(level, parts, q.to_vec());
                let losses = plain(&mut factors);
                q.copy_from_slice(factors.q());
                losses
            }
            Maker::Deep { dgc, warm_up, epoch, norm, workers } => {
                if let Some(norm) = *norm {
                    clip(level, values, norm, *workers);
                }
                dgc.set_share(if counts { warm_up.share(key.step as usize / *epoch) } else { 0.0 });
                dgc.encode(key, values, &mut self.code);
                self.sent.clear();
                self.sent.resize(values.len(), 0.0);
                let _ = dgc.add(key, &self.code, &mut self.sent);
                let [lost, sent] =
                    [dgc.unsent(key.bucket, values.len()), &self.sent].map(|numbers| sum_of_squares(level, numbers));
                // What was sent and what is left have no place in common.
                [lost, lost + sent]
            }
        };
        let ended = Instant::now();
        self.record.lost += lost;
        self.record.all += all;
        self.record.encode_seconds += (ended - began).as_secs_f64();
        self.encoding.push((about, [began, ended]));
    }
}
