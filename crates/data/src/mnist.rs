//! MNIST, handwritten digits (LeCun and Cortes), and Fashion-MNIST, clothes (Xiao, Rasul and Vollgraf), which has the
//! same files with other images: 28x28, grey, ten classes.

use std::path::Path;
use std::sync::Arc;

use crate::fetch::{Packing, Piece, Source};
use crate::idx::{self, Kind};
use crate::{DataError, Dataset, Images, Shape, file};

const SIDE: usize = 28;
const CLASSES: usize = 10;
/// Training images in the embedded sample.
pub const SAMPLE_TRAIN: usize = 2_000;

/// What is known of a data set without its files.
struct Known {
    /// Mean and standard deviation of the training images, where white is 1.
    normalisation: (f32, f32),
    class_names: &'static [&'static str],
}

const DIGITS: Known = Known { normalisation: (0.1307, 0.3081), class_names: &[] };
const CLOTHES: Known = Known {
    normalisation: (0.2860, 0.3530),
    class_names: &[
        "T-shirt",
        "trousers",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ],
};

const TRAIN_IMAGES: &str = "train-images-idx3-ubyte";
const TRAIN_LABELS: &str = "train-labels-idx1-ubyte";
const TEST_IMAGES: &str = "t10k-images-idx3-ubyte";
const TEST_LABELS: &str = "t10k-labels-idx1-ubyte";

/// MNIST.
pub const MNIST: Source = Source {
    name: "mnist",
    summary: "handwritten digits, 28x28: 60,000 training and 10,000 test images",
    licence: "LeCun and Cortes, CC BY-SA 3.0",
    files: &[
        Piece { name: TRAIN_IMAGES, sha256: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db" },
        Piece { name: TRAIN_LABELS, sha256: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5" },
        Piece { name: TEST_IMAGES, sha256: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7" },
        Piece { name: TEST_LABELS, sha256: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2" },
    ],
    packing: Packing::Gzip,
    mirrors: &["https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist"],
    load: |folder| load(&MNIST, DIGITS, folder),
};

/// Fashion-MNIST.
pub const FASHION_MNIST: Source = Source {
    name: "fashion-mnist",
    summary: "clothes, 28x28: 60,000 training and 10,000 test images",
    licence: "Zalando SE, MIT licence",
    files: &[
        Piece { name: TRAIN_IMAGES, sha256: "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888" },
        Piece { name: TRAIN_LABELS, sha256: "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9" },
        Piece { name: TEST_IMAGES, sha256: "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b" },
        Piece { name: TEST_LABELS, sha256: "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34" },
    ],
    packing: Packing::Gzip,
    mirrors: &[
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    ],
    load: |folder| load(&FASHION_MNIST, CLOTHES, folder),
};

fn dataset(source: &Source, known: Known, train: Images, test: Images) -> Dataset {
    Dataset {
        name: source.name,
        licence: source.licence,
        classes: CLASSES,
        class_names: known.class_names,
        normalisation: vec![known.normalisation],
        train: Arc::new(train),
        test: Arc::new(test),
    }
}

/// The first 2,000 training and 1,000 test images of MNIST, which are part of the program.
pub fn sample() -> Dataset {
    let parts = |images: &[u8], labels: &[u8]| {
        let unpack = |bytes: &[u8]| file::gunzip(bytes.to_vec()).expect("the embedded files are whole");
        pair(Path::new("images"), &unpack(images), Path::new("labels"), &unpack(labels))
            .expect("the embedded files are right")
    };
    let train = parts(
        include_bytes!("../sample/train-images-idx3-ubyte.gz"),
        include_bytes!("../sample/train-labels-idx1-ubyte.gz"),
    );
    let test = parts(
        include_bytes!("../sample/t10k-images-idx3-ubyte.gz"),
        include_bytes!("../sample/t10k-labels-idx1-ubyte.gz"),
    );
    dataset(&MNIST, DIGITS, train, test)
}

/// Reads the four files from a folder, gzipped or unpacked.
fn load(source: &Source, known: Known, folder: &Path) -> Result<Dataset, DataError> {
    if !folder.is_dir() {
        return Err(DataError::NoFolder(folder.to_owned()));
    }
    let split = |images, labels| {
        let (images, labels) = (file::find(folder, images)?, file::find(folder, labels)?);
        pair(&images, &file::read(&images)?, &labels, &file::read(&labels)?)
    };
    let (train, test) = (split(TRAIN_IMAGES, TRAIN_LABELS)?, split(TEST_IMAGES, TEST_LABELS)?);
    Ok(dataset(source, known, train, test))
}

/// Parses an images file and its labels file, and checks that they belong together.
pub(crate) fn pair(images_path: &Path, images: &[u8], labels_path: &Path, labels: &[u8]) -> Result<Images, DataError> {
    let (dimensions, pixels) =
        idx::parse(images, Kind::Images).map_err(|problem| DataError::malformed(images_path, problem))?;
    let (_, labels) = idx::parse(labels, Kind::Labels).map_err(|problem| DataError::malformed(labels_path, problem))?;

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
        let problem = format!("label {index} is {}, not 0 to {}", labels[index], CLASSES - 1);
        return Err(DataError::malformed(labels_path, problem));
    }
    Ok(Images { shape: Shape::new(SIDE, SIDE, 1), pixels: pixels.to_vec(), labels: labels.to_vec() })
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
