//! CIFAR-10: small colour photographs, 32x32 (Krizhevsky), in the binary version.
//!
//! A file is a row of records: a byte for the label, then the image, one channel after the other.

use std::path::Path;
use std::sync::Arc;

use crate::fetch::{Packing, Piece, Source};
use crate::{DataError, Dataset, Images, Shape, file};

pub(crate) const SHAPE: Shape = Shape::new(32, 32, 3);
const CLASSES: usize = 10;
const CLASS_NAMES: [&str; CLASSES] =
    ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];
/// Bytes of a record.
const RECORD: usize = 1 + SHAPE.len();
const TRAIN: [&str; 5] =
    ["data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"];
const TEST: [&str; 1] = ["test_batch.bin"];

/// CIFAR-10.
pub const CIFAR10: Source = Source {
    name: "cifar10",
    summary: "photographs of ten kinds of things, 32x32 in colour: 50,000 training and 10,000 test images",
    licence: "Alex Krizhevsky, \"Learning Multiple Layers of Features from Tiny Images\", 2009",
    files: &[
        Piece { name: TRAIN[0], sha256: "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5" },
        Piece { name: TRAIN[1], sha256: "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed" },
        Piece { name: TRAIN[2], sha256: "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67" },
        Piece { name: TRAIN[3], sha256: "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48" },
        Piece { name: TRAIN[4], sha256: "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add" },
        Piece { name: TEST[0], sha256: "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b" },
    ],
    packing: Packing::Archive("cifar-10-binary.tar.gz"),
    mirrors: &["https://www.cs.toronto.edu/~kriz"],
    load,
};

/// Reads the six files from a folder, gzipped or unpacked.
pub fn load(folder: &Path) -> Result<Dataset, DataError> {
    if !folder.is_dir() {
        return Err(DataError::NoFolder(folder.to_owned()));
    }
    Ok(Dataset {
        name: CIFAR10.name,
        licence: CIFAR10.licence,
        classes: CLASSES,
        class_names: &CLASS_NAMES,
        normalisation: vec![(0.4914, 0.2470), (0.4822, 0.2435), (0.4465, 0.2616)],
        train: Arc::new(read(folder, &TRAIN)?),
        test: Arc::new(read(folder, &TEST)?),
    })
}

fn read(folder: &Path, names: &[&'static str]) -> Result<Images, DataError> {
    let mut images = Images { shape: SHAPE, pixels: Vec::new(), labels: Vec::new() };
    for name in names {
        let path = file::find(folder, name)?;
        parse(&file::read(&path)?, &mut images).map_err(|problem| DataError::malformed(&path, problem))?;
    }
    Ok(images)
}

/// Adds a file's images; the error says what is wrong, without the file's name.
pub(crate) fn parse(bytes: &[u8], images: &mut Images) -> Result<(), String> {
    let (records, rest) = bytes.as_chunks::<RECORD>();
    if !rest.is_empty() {
        return Err(format!("truncated: record {} has {} bytes, not {RECORD}", records.len(), rest.len()));
    }
    if records.is_empty() {
        return Err("holds no images".to_owned());
    }
    images.pixels.reserve(records.len() * SHAPE.len());
    for (index, [label, planes @ ..]) in records.iter().enumerate() {
        if usize::from(*label) >= CLASSES {
            return Err(format!("the label of record {index} is {label}, not 0 to {}", CLASSES - 1));
        }
        images.labels.push(*label);
        let (red, rest) = planes.split_at(planes.len() / 3);
        let (green, blue) = rest.split_at(rest.len() / 2);
        let colours = red.iter().zip(green).zip(blue);
        images.pixels.extend(colours.flat_map(|((&red, &green), &blue)| [red, green, blue]));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A record whose pixel at (y, x) of channel c is y + x + 90 c.
    fn record(label: u8) -> Vec<u8> {
        let planes = (0..3).flat_map(|c| (0..32).flat_map(move |y| (0..32).map(move |x| y + x + 90 * c)));
        [label].into_iter().chain(planes).collect()
    }

    fn write_all(folder: &Path, records: usize) {
        for (at, name) in TRAIN.iter().chain(&TEST).enumerate() {
            let bytes: Vec<u8> = (0..records).flat_map(|_| record(at as u8)).collect();
            fs::write(folder.join(name), bytes).unwrap();
        }
    }

    #[test]
    fn planes_become_pixels() {
        let mut images = Images { shape: SHAPE, pixels: Vec::new(), labels: Vec::new() };
        parse(&[record(3), record(9)].concat(), &mut images).unwrap();
        assert_eq!(images.labels, [3, 9]);
        for (at, pixel) in images.image(1).chunks_exact(3).enumerate() {
            let sum = (at / 32 + at % 32) as u8;
            assert_eq!(pixel, [sum, sum + 90, sum + 180]);
        }
    }

    #[test]
    fn the_batches_follow_each_other() {
        let folder = tempfile::tempdir().unwrap();
        write_all(folder.path(), 2);
        let data = load(folder.path()).unwrap();
        assert_eq!(data.train.labels, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]);
        assert_eq!(data.test.labels, [5, 5]);
        assert_eq!((data.class_name(5), data.class_name(10)), ("dog".to_owned(), "10".to_owned()));
        assert_eq!(data.train.pixels.len(), 10 * SHAPE.len());
    }

    #[test]
    fn errors_name_the_file_and_the_record() {
        let folder = tempfile::tempdir().unwrap();
        let refusal = |name: &str, bytes: &[u8]| {
            write_all(folder.path(), 2);
            fs::write(folder.path().join(name), bytes).unwrap();
            let error = load(folder.path()).unwrap_err().to_string();
            error.strip_prefix(&format!("{}/", folder.path().display())).unwrap().to_owned()
        };
        let two = [record(1), record(10)].concat();
        assert_eq!(refusal(TRAIN[2], &two), "data_batch_3.bin: the label of record 1 is 10, not 0 to 9");
        let cut = &two[..RECORD + 5];
        assert_eq!(refusal(TRAIN[4], cut), "data_batch_5.bin: truncated: record 1 has 5 bytes, not 3073");
        assert_eq!(refusal(TEST[0], &[]), "test_batch.bin: holds no images");
        write_all(folder.path(), 1);
        fs::remove_file(folder.path().join(TRAIN[1])).unwrap();
        let error = load(folder.path()).unwrap_err().to_string();
        assert!(error.ends_with("has neither data_batch_2.bin nor data_batch_2.bin.gz"), "{error}");
    }
}
