//! MNIST: handwritten digits, 28x28 (LeCun and Cortes).

use std::fs;
use std::path::Path;

use crate::idx::{self, Kind};
use crate::{DataError, Dataset, Images, file};

/// Rows and columns of an image.
pub const SIDE: usize = 28;
/// How many digits there are.
pub const CLASSES: usize = 10;
/// Training images in the embedded sample.
pub const SAMPLE_TRAIN: usize = 2_000;
/// Mean and standard deviation of the pixels of the training images, where white is 1.
pub const NORMALISATION: (f32, f32) = (0.1307, 0.3081);

/// The first 2,000 training and 1,000 test images, which are part of the program.
pub fn sample() -> Dataset {
    let parts = |images: &[u8], labels: &[u8]| {
        pair(Path::new("images"), images.to_vec(), Path::new("labels"), labels.to_vec())
            .expect("the embedded files are whole")
    };
    Dataset {
        train: parts(
            include_bytes!("../sample/train-images-idx3-ubyte.gz"),
            include_bytes!("../sample/train-labels-idx1-ubyte.gz"),
        ),
        test: parts(
            include_bytes!("../sample/t10k-images-idx3-ubyte.gz"),
            include_bytes!("../sample/t10k-labels-idx1-ubyte.gz"),
        ),
    }
}

/// Reads the four files from a folder, gzipped or unpacked.
pub fn load(folder: &Path) -> Result<Dataset, DataError> {
    if !folder.is_dir() {
        return Err(DataError::NoFolder(folder.to_owned()));
    }
    let split = |images, labels| {
        let (images, labels) = (file::find(folder, images)?, file::find(folder, labels)?);
        let read = |path: &Path| fs::read(path).map_err(DataError::io(path));
        pair(&images, read(&images)?, &labels, read(&labels)?)
    };
    Ok(Dataset {
        train: split("train-images-idx3-ubyte", "train-labels-idx1-ubyte")?,
        test: split("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")?,
    })
}

/// Parses an images file and its labels file, and checks that they belong together.
fn pair(images_path: &Path, images: Vec<u8>, labels_path: &Path, labels: Vec<u8>) -> Result<Images, DataError> {
    let unpack = |path: &Path, bytes| {
        file::gunzip(bytes).map_err(|error| DataError::malformed(path, format!("not a whole gzip file: {error}")))
    };
    let (images, labels) = (unpack(images_path, images)?, unpack(labels_path, labels)?);
    let (dimensions, pixels) =
        idx::parse(&images, Kind::Images).map_err(|problem| DataError::malformed(images_path, problem))?;
    let (_, labels) =
        idx::parse(&labels, Kind::Labels).map_err(|problem| DataError::malformed(labels_path, problem))?;

    if dimensions[1..] != [SIDE, SIDE] {
        let problem = format!("images of {}x{}, not {SIDE}x{SIDE}", dimensions[1], dimensions[2]);
        return Err(DataError::malformed(images_path, problem));
    }
    if dimensions[0] == 0 {
        return Err(DataError::malformed(images_path, "holds no images"));
    }
    if dimensions[0] != labels.len() {
        let problem = format!("{} labels for the {} images of {}", labels.len(), dimensions[0], images_path.display());
        return Err(DataError::malformed(labels_path, problem));
    }
    if let Some(index) = labels.iter().position(|&label| usize::from(label) >= CLASSES) {
        let problem = format!("label {index} is {}, not a digit", labels[index]);
        return Err(DataError::malformed(labels_path, problem));
    }
    Ok(Images { height: SIDE, width: SIDE, pixels: pixels.to_vec(), labels: labels.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_is_the_beginning_of_mnist() {
        let sample = sample();
        assert_eq!((sample.train.len(), sample.test.len()), (SAMPLE_TRAIN, 1_000));
        // The first digits of MNIST, as everyone who has plotted them knows them.
        assert_eq!(sample.train.labels[..10], [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]);
        assert_eq!(sample.test.labels[..10], [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]);
    }
}
