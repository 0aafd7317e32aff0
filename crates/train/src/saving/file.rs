//! A copied state as a safetensors file: a list of numbers is a tensor of one dimension.

use std::io;
use std::path::Path;

use bytemuck::cast_slice;
use ringstep_data::file::{read_whole, write_summed};
use ringstep_nn::state::{Numbers, Saved};
use safetensors::tensor::{Dtype, SafeTensors};
use serde_json::json;

use crate::checkpoint::CheckpointError;

// Files are little-endian, and numbers are written as they are.
const _: () = assert!(cfg!(target_endian = "little"));

/// The bytes of a file with this state.
pub fn to_bytes(saved: &Saved) -> Vec<u8> {
    let (header, numbers) = parts(saved);
    [&[&header[..]], &numbers[..]].concat().concat()
}

/// Writes such a file; returns its sha256.
pub(crate) fn write(path: &Path, saved: &Saved) -> io::Result<String> {
    let (header, numbers) = parts(saved);
    write_summed(path, std::iter::once(&header[..]).chain(numbers))
}

/// The beginning of a file, and the numbers behind it as they are: a state can be large, so it is not copied for that.
fn parts(saved: &Saved) -> (Vec<u8>, Vec<&[u8]>) {
    let mut tensors: Vec<(&String, &str, &[u8])> = Vec::new();
    for (name, numbers) in &saved.numbers {
        tensors.push(match numbers {
            Numbers::F32(numbers) => (name, "F32", cast_slice(numbers)),
            Numbers::F64(numbers) => (name, "F64", cast_slice(numbers)),
            Numbers::U64(numbers) => (name, "U64", cast_slice(numbers)),
        });
    }
    // Numbers of eight bytes first, so that all are aligned.
    tensors.sort_by_key(|(_, kind, _)| *kind == "F32");
    let (mut entries, mut end) = (serde_json::Map::new(), 0);
    for (name, kind, bytes) in &tensors {
        let count = saved.numbers[*name].len();
        let entry = json!({ "dtype": kind, "shape": [count], "data_offsets": [end, end + bytes.len()] });
        entries.insert((*name).clone(), entry);
        end += bytes.len();
    }
    let mut header = serde_json::Value::Object(entries).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let length = (header.len() as u64).to_le_bytes();
    ([&length[..], &header].concat(), tensors.into_iter().map(|(.., bytes)| bytes).collect())
}

/// What a file holds.
pub fn read(path: &Path) -> Result<Saved, CheckpointError> {
    let bytes = read_whole(path).map_err(|error| CheckpointError::Io { path: path.to_owned(), error })?;
    from_bytes(&bytes, path)
}

/// What the bytes of a file hold; errors call it by this path.
pub fn from_bytes(bytes: &[u8], path: &Path) -> Result<Saved, CheckpointError> {
    let malformed = |problem: String| CheckpointError::Malformed { path: path.to_owned(), problem };
    let file = SafeTensors::deserialize(bytes).map_err(|error| malformed(error.to_string()))?;
    let mut saved = Saved::default();
    for (name, tensor) in file.tensors() {
        let (words, halves) = (tensor.data().as_chunks::<8>().0, tensor.data().as_chunks::<4>().0);
        let numbers = match tensor.dtype() {
            Dtype::F32 => Numbers::F32(halves.iter().copied().map(f32::from_le_bytes).collect()),
            Dtype::F64 => Numbers::F64(words.iter().copied().map(f64::from_le_bytes).collect()),
            Dtype::U64 => Numbers::U64(words.iter().copied().map(u64::from_le_bytes).collect()),
            other => return Err(malformed(format!("{name} is {other:?}"))),
        };
        saved.numbers.insert(name, numbers);
    }
    Ok(saved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_comes_back_bit_by_bit() {
        let numbers = [
            ("odd", Numbers::F32(vec![f32::MIN_POSITIVE, -0.0, f32::INFINITY])),
            ("none", Numbers::F32(Vec::new())),
            ("times", Numbers::F64(vec![0.1])),
            ("counts", Numbers::U64(vec![u64::MAX, 0])),
        ];
        let saved = Saved { numbers: numbers.map(|(name, numbers)| (name.to_owned(), numbers)).into() };
        let bytes = to_bytes(&saved);
        let path = Path::new("rank-0.safetensors");
        assert_eq!(from_bytes(&bytes, path).unwrap(), saved);
        for length in 0..bytes.len() {
            assert!(from_bytes(&bytes[..length], path).is_err(), "{length}");
        }
    }
}
