//! Post-training quantization: a trained model goes in, a model that computes in integers comes out.
//!
//! The arithmetic is the int8 specification of TFLite (Jacob et al., "Quantization and training of neural networks for efficient
//! integer-arithmetic-only inference", CVPR 2018; "LiteRT 8-bit quantization specification"): `real = scale * (integer -
//! zero point)`; weights from -127 to 127 around zero, with a scale for each filter; activations from -128 to 127; sums and
//! biases of 32 bits at the product of both scales.
//!
//! | look for | in |
//! | --- | --- |
//! | a scale and a zero point, and the integers between | [`grid`] |
//! | a trained model as the operators that are quantized | [`graph`] |
//! | what goes through it, and which range counts | [`survey`], [`calibrate`], [`entropy`] |
//! | the model in integers | [`model`] |
//! | what each step costs: weights, activations, one layer alone | [`steps`] |
//! | each operator, and a whole model, in plain integers | [`reference`], [`plain`] |
//! | the same at speed | [`engine`] |
//! | as a file, and as one for other runtimes | [`file`], [`onnx`] |

pub mod calibrate;
pub mod engine;
pub mod entropy;
pub mod error;
pub mod file;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
pub mod graph;
pub mod grid;
pub mod model;
pub mod onnx;
pub mod plain;
pub mod reference;
#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;
pub mod steps;
pub mod survey;

pub use calibrate::Calibration;
pub use error::QuantError;
pub use graph::Graph;
pub use grid::{Bits, Grid};
pub use model::{Granularity, Quantized, Recipe};
pub use survey::Survey;
