//! What comes from other ranks and from files, for fuzzers.

use std::cell::RefCell;
use std::path::Path;

use ringstep_cpu::Level;
use ringstep_nn::Model;
use ringstep_nn::network::{Kind, Layer, Network};
use ringstep_nn::state::State;
use ringstep_nn::team::Team;

use crate::checkpoint;
use crate::compress::dgc::Dgc;
use crate::compress::factors::{Factors, Parts, Tensor};
use crate::compress::half::{Format, Half};
use crate::compress::qsgd::{Qsgd, Width};
use crate::compress::random_k::RandomK;
use crate::compress::sign::Sign;
use crate::compress::sparse::{Threshold, TopK};
use crate::compress::{Codec, Key};
use crate::saving::file;
use crate::strategy::server::messages::{Answer, Request};

/// Every codec there is, by number.
const CODECS: u8 = 10;

/// A codec of so many numbers.
fn codec(number: u8, length: usize) -> Box<dyn Codec> {
    let level = Level::best();
    match number % CODECS {
        0 => Box::new(Half::new(level, Format::Fp16)),
        1 => Box::new(Half::new(level, Format::Bf16)),
        2 => Box::new(Qsgd::new(level, Width::Int8)),
        3 => Box::new(Qsgd::new(level, Width::Int4)),
        4 => Box::new(Sign::new(level)),
        5 => Box::new(TopK::new(0.1)),
        6 => Box::new(RandomK::new(0.1, true)),
        7 => Box::new(Threshold::new(0.5)),
        8 => Box::new(Dgc::new(level, 0.9, 0.1)),
        _ => {
            let matrix = length / 12 * 12;
            let tensors = [Tensor { at: 0..matrix, rows: 12 }, Tensor { at: matrix..length, rows: length - matrix }];
            let tensors = tensors.into_iter().filter(|tensor| !tensor.at.is_empty()).collect::<Vec<_>>();
            Box::new(Factors::new(level, Parts::of(&(0..length), &tensors, 2)))
        }
    }
}

/// A code of a gradient: which codec, of how many numbers, and the code. One that is refused has changed nothing.
pub fn code(input: &[u8]) -> bool {
    let [number, low, high, code @ ..] = input else { return false };
    let length = usize::from(u16::from_le_bytes([*low, *high]) % 5000);
    let codec = codec(*number, length);
    let mut numbers = vec![1.5_f32; length];
    let taken = codec.add(Key::default(), code, &mut numbers).is_ok();
    assert!(taken || numbers.iter().all(|&number| number == 1.5));
    // What was taken fits into the room that messages have, but for a share that changes, and for factors, which are of one slice.
    assert!(!taken || code.len() <= codec.limit(length) || number % CODECS >= 8);
    taken
}

/// What workers and parameter servers say to each other.
pub fn server_message(input: &[u8]) -> bool {
    let (request, answer) = (Request::decode(input), Answer::decode(input));
    assert!(request.is_none_or(|request| request.encode() == input));
    assert!(answer.is_none_or(|answer| answer.encode() == input));
    request.is_some() || answer.is_some()
}

/// A rank's state in a checkpoint: a model's, and what a compression remembers, which is used if it is taken.
pub fn state(input: &[u8]) -> bool {
    let Ok(saved) = file::from_bytes(input, Path::new("file")) else { return false };
    let mut dgc = Dgc::new(Level::best(), 0.9, 0.1);
    let taken = SMALL.with_borrow_mut(|model| saved.load(|state| show(state, model, &mut dgc)).is_ok());
    if taken {
        dgc.encode(Key::default(), &[1.0; 16], &mut Vec::new());
    }
    taken
}

fn show(state: &mut State<'_>, model: &mut Model, dgc: &mut Dgc) {
    state.within("model", |state| model.state(state));
    state.within("dgc", |state| dgc.state(state));
}

/// Weights, for a model of two layers.
pub fn weights(input: &[u8]) -> bool {
    SMALL.with_borrow_mut(|model| checkpoint::load_bytes(model, input, Path::new("file")).is_ok())
}

thread_local! {
    static SMALL: RefCell<Model> = RefCell::new(small());
}

/// A model of two layers.
fn small() -> Model {
    let layers = vec![Layer::new("norm", Kind::BatchNorm), Layer::new("last", Kind::Linear { outputs: 3, bias: true })];
    Model::new(&Network { input: [2, 2, 1], layers }, 1, Team::new(1, Level::best())).expect("it is small")
}

#[cfg(test)]
mod tests {
    use ringstep_nn::state::Saved;

    use super::*;
    use crate::replay::replay;
    use crate::strategy::server::messages::Push;

    #[test]
    fn codes() {
        let seed = |number: u8| {
            let values: Vec<f32> = (0..100).map(|at| (at as f32 * 0.7).sin()).collect();
            let mut code = Vec::new();
            codec(number, values.len()).encode(Key::default(), &values, &mut code);
            [&[number, 100, 0], &code[..]].concat()
        };
        replay("code", code, &(0..CODECS).map(seed).collect::<Vec<_>>());
    }

    #[test]
    fn messages() {
        let push = Push { version: u64::MAX, images: 2, start: 3, length: 4 };
        let requests = [Request::Push(push), Request::Pull, Request::Save(7)].map(|request| request.encode().to_vec());
        let answer = Answer::Values { version: 1, step: 2, end: true }.encode().to_vec();
        replay("server-message", server_message, &[&requests[..], &[answer]].concat());
    }

    #[test]
    fn states_and_weights() {
        let (mut model, mut dgc) = (small(), Dgc::new(Level::best(), 0.9, 0.1));
        dgc.encode(Key::default(), &[1.0; 16], &mut Vec::new());
        let saved = Saved::of(|state| show(state, &mut model, &mut dgc));
        replay("state", state, &[file::to_bytes(&saved)]);
        replay("weights", weights, &[checkpoint::to_bytes(&model)]);
    }

    /// A state with sound names and another length of what was left out: once a panic in the next step.
    #[test]
    fn what_was_left_out_of_other_numbers_is_no_panic() {
        let mut other = Dgc::new(Level::best(), 0.9, 0.1);
        other.encode(Key::default(), &[1.0; 5], &mut Vec::new());
        let saved = Saved::of(|saved| show(saved, &mut small(), &mut other));
        assert!(state(&file::to_bytes(&saved)));
    }
}
