//! Weights as safetensors files, with PyTorch's names and layouts, so that a file saved by either loads in the other.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use ringstep_data::file::read_whole;
use ringstep_nn::Model;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

/// Weights that cannot be read, or do not fit.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file cannot be read.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The file is no safetensors file.
    #[error("{}: not a safetensors file: {problem}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The file's weights are those of another model.
    #[error("{}: does not fit the model: {problem}", path.display())]
    DoesNotFit {
        /// The file.
        path: PathBuf,
        /// The first difference.
        problem: String,
    },
}

/// The bytes of a safetensors file with the model's weights. They depend on nothing but the weights.
pub fn to_bytes(model: &Model) -> Vec<u8> {
    let tensors: Vec<(&str, &[usize], Vec<u8>)> = model
        .parameters()
        .iter()
        .map(|parameter| {
            let bytes = model.export(parameter).iter().flat_map(|value| value.to_le_bytes()).collect();
            (parameter.name.as_str(), &parameter.shape[..], bytes)
        })
        .collect();
    let views = tensors.iter().map(|(name, shape, bytes)| {
        let view = TensorView::new(Dtype::F32, shape.to_vec(), bytes)
            .expect("a parameter has as many values as its shape says");
        (*name, view)
    });
    let written_for = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize(views, Some(written_for)).expect("names and sizes are valid")
}

/// Sets all of the model's weights from a safetensors file.
pub fn load(model: &mut Model, path: &Path) -> Result<(), CheckpointError> {
    let bytes = read_whole(path).map_err(|error| CheckpointError::Io { path: path.to_owned(), error })?;
    load_bytes(model, &bytes, path)
}

/// Whether this is a safetensors file at all, whatever the model.
pub fn check_bytes(bytes: &[u8], path: &Path) -> Result<(), CheckpointError> {
    let checked = SafeTensors::deserialize(bytes);
    checked
        .map(|_| ())
        .map_err(|error| CheckpointError::Malformed { path: path.to_owned(), problem: error.to_string() })
}

/// The same from the bytes of a file; errors call it by this path.
pub fn load_bytes(model: &mut Model, bytes: &[u8], path: &Path) -> Result<(), CheckpointError> {
    let file = SafeTensors::deserialize(bytes)
        .map_err(|error| CheckpointError::Malformed { path: path.to_owned(), problem: error.to_string() })?;
    let does_not_fit = |problem| CheckpointError::DoesNotFit { path: path.to_owned(), problem };

    let parameters = model.parameters().to_vec();
    let mut names = file.names();
    // PyTorch counts the batches that batch norm has seen; nothing depends on it.
    names.retain(|name| !name.ends_with(".num_batches_tracked"));
    names.sort_unstable();
    if let Some(unknown) = names.iter().find(|&&name| parameters.iter().all(|parameter| parameter.name != name)) {
        let known: Vec<_> = parameters.iter().map(|parameter| parameter.name.as_str()).collect();
        return Err(does_not_fit(format!("it has {unknown}, the model has {}", known.join(", "))));
    }
    for (index, parameter) in parameters.iter().enumerate() {
        let name = &parameter.name;
        let tensor = file.tensor(name).map_err(|_| does_not_fit(format!("it lacks {name}")))?;
        if tensor.shape() != parameter.shape {
            let problem = format!("{name} has shape {:?}, not {:?}", tensor.shape(), parameter.shape);
            return Err(does_not_fit(problem));
        }
        if tensor.dtype() != Dtype::F32 {
            return Err(does_not_fit(format!("{name} is {:?}, not F32", tensor.dtype())));
        }
        let values: Vec<f32> = tensor
            .data()
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four bytes")))
            .collect();
        model.import(index, &values);
    }
    Ok(())
}
