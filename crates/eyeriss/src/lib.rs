//! Eyeriss: an accelerator for convolutions whose PEs each keep a row of a filter. What a layer takes on it, how it is
//! best laid out, and the dataflow itself, step by step.
//!
//! After Chen, Krishna, Emer and Sze, JSSC 52(1), 2017 (the chip) and Chen, Emer and Sze, ISCA 2016 (the dataflows).
//!
//! | look for | in |
//! | --- | --- |
//! | the accelerator's sizes and costs | [`arch`] |
//! | the shape of a layer, and well-known networks | [`layer`], [`networks`] |
//! | m, n, e, p, q, r, t, and whether they fit | [`mapping`], [`array`] |
//! | what a layer takes, in closed form | [`analysis`], [`counts`] |
//! | the same cycle by cycle, with real numbers | [`simulate`], against [`reference`] |
//! | the best mapping | [`search`] |
//! | the dataflows that Eyeriss was compared with | [`dataflows`] |
//! | zero gating and run-length coding | [`sparsity`] |
//! | one small convolution, as a lecture would show it | [`lecture`] |
//! | the numbers of the papers | [`published`] |

pub mod analysis;
pub mod arch;
pub mod array;
pub mod counts;
pub mod dataflows;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
pub mod layer;
pub mod lecture;
pub mod mapping;
pub mod networks;
pub mod published;
pub mod reference;
#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;
pub mod search;
pub mod simulate;
pub mod sparsity;
