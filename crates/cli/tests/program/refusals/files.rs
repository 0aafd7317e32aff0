//! Networks, data, weights and experiments that are not what they should be.

use std::fs;
use std::io::Write;
use std::path::Path;

use crate::{Place, reference};

#[test]
fn a_network_that_cannot_be_built_is_told_with_file_and_layer() {
    let place = Place::new();
    let refused = |text: &str| {
        fs::write(place.path("net.toml"), text).unwrap();
        let message = place.refused("train --model net.toml --dataset synthetic");
        message.rsplit_once("net.toml").expect("the file is named").1.to_owned()
    };
    assert_eq!(
        refused("input = [8, 8, 1]\n[[layer]]\ntype = \"conv\"\nfilters = 2\nkernel = 9\n"),
        ": layer conv1: a 9x9 filter does not fit in an input of 8x8x1"
    );
    assert!(
        refused("input = [8, 8, 1]\n[[layer]]\ntype = \"convv\"\n").starts_with(", line 2: unknown variant `convv`")
    );
    assert!(refused("input = [8, 8]\n").starts_with(", line 1: "));
}

#[test]
fn data_that_is_not_there() {
    let place = Place::new();
    let at = |name: &str| place.path(name).display().to_string();
    assert_eq!(place.refused("train --data nowhere"), format!("data folder {} does not exist", at("nowhere")));
    let error = place.refused("train --dataset mnist");
    assert!(error.contains("ringstep data get mnist") && error.contains("--data DIR"), "{error}");
    assert_eq!(
        place.refused("train --dataset cifar10 --samples 100"),
        "cifar10 is not on this machine: run `ringstep data get cifar10`, or give --data DIR"
    );
    fs::create_dir(place.path("empty")).unwrap();
    assert_eq!(
        place.refused("train --data empty"),
        format!("{} has neither train-images-idx3-ubyte nor train-images-idx3-ubyte.gz", at("empty"))
    );
}

fn idx(dimensions: &[u32], elements: &[u8]) -> Vec<u8> {
    let sizes = dimensions.iter().flat_map(|size| size.to_be_bytes());
    [0, 0, 8, dimensions.len() as u8].into_iter().chain(sizes).chain(elements.iter().copied()).collect()
}

/// Writes a small data set whose four files are right.
fn write_data(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    for (split, count) in [("train", 20u32), ("t10k", 8)] {
        let pixels: Vec<u8> = (0..count * 28 * 28).map(|i| (i * 31 % 251) as u8).collect();
        let labels: Vec<u8> = (0..count).map(|i| (i % 10) as u8).collect();
        fs::write(folder.join(format!("{split}-images-idx3-ubyte")), idx(&[count, 28, 28], &pixels)).unwrap();
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(&idx(&[count], &labels)).unwrap();
        fs::write(folder.join(format!("{split}-labels-idx1-ubyte.gz")), packed.finish().unwrap()).unwrap();
    }
}

#[test]
fn data_that_is_not_what_it_should_be() {
    let place = Place::new();
    let folder = place.path("data");
    let command = "train --data data --workers 2 --epochs 1";
    let refused = || place.refused(command).replace(&place.path("").display().to_string(), "");
    let images = folder.join("train-images-idx3-ubyte");
    let labels = folder.join("train-labels-idx1-ubyte.gz");
    write_data(&folder);
    place.ok(command);

    let whole = fs::read(&images).unwrap();
    fs::write(&images, &whole[..whole.len() - 100]).unwrap();
    assert_eq!(refused(), "data/train-images-idx3-ubyte: truncated: its header says 20 x 28 x 28 bytes, 15580 follow");
    fs::write(&images, idx(&[20], &[0; 20])).unwrap();
    assert_eq!(refused(), "data/train-images-idx3-ubyte: mislabelled: holds labels, not images");
    fs::write(&images, idx(&[1, 32, 32], &[0; 1024])).unwrap();
    assert_eq!(refused(), "data/train-images-idx3-ubyte: images of 32x32, not 28x28");
    fs::write(&images, idx(&[0, 28, 28], &[])).unwrap();
    assert_eq!(refused(), "data/train-images-idx3-ubyte: holds no images");
    fs::write(&images, b"<!doctype html>").unwrap();
    assert!(refused().starts_with("data/train-images-idx3-ubyte: not an IDX file of images"));

    write_data(&folder);
    fs::write(&labels, idx(&[19], &[0; 19])).unwrap();
    assert_eq!(
        refused(),
        "data/train-labels-idx1-ubyte.gz: 19 labels for the 20 images of data/train-images-idx3-ubyte"
    );
    fs::write(&labels, idx(&[20], &[11; 20])).unwrap();
    assert_eq!(refused(), "data/train-labels-idx1-ubyte.gz: label 0 is 11, not 0 to 9");

    write_data(&folder);
    let packed = fs::read(&labels).unwrap();
    fs::write(&labels, &packed[..packed.len() / 2]).unwrap();
    assert!(refused().starts_with("data/train-labels-idx1-ubyte.gz: not a whole gzip file"));
    write_data(&folder);
    assert_eq!(
        place.refused("train --data data --samples 21"),
        "21 samples are more than the 20 training images that there are"
    );
}

#[test]
fn weights_that_do_not_fit() {
    let place = Place::new();
    let nowhere = place.path("nowhere.safetensors");
    assert_eq!(
        place.refused("train --init nowhere.safetensors"),
        format!("{}: No such file or directory (os error 2)", nowhere.display())
    );
    fs::write(place.path("text.safetensors"), "not weights at all").unwrap();
    assert!(place.refused("train --init text.safetensors").contains("text.safetensors: not a safetensors file: "));

    // Changing names and sizes in the header of a right file makes wrong ones.
    let right = fs::read(reference("lenet5-init.safetensors")).unwrap();
    let change = |from: &str, to: &str| {
        assert_eq!(from.len(), to.len());
        let at = right.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
        let mut wrong = right.clone();
        wrong[at..at + to.len()].copy_from_slice(to.as_bytes());
        fs::write(place.path("wrong.safetensors"), wrong).unwrap();
        let error = place.refused("train --init wrong.safetensors");
        error.split_once("wrong.safetensors: ").unwrap().1.to_owned()
    };
    assert_eq!(
        change("conv1.weight", "conv9.weight"),
        "does not fit the model: it has conv9.weight, the model has conv1.weight, conv1.bias, \
         conv2.weight, conv2.bias, conv3.weight, conv3.bias, fc1.weight, fc1.bias, fc2.weight, fc2.bias"
    );
    assert_eq!(
        change("[6,1,5,5]", "[1,6,5,5]"),
        "does not fit the model: conv1.weight has shape [1, 6, 5, 5], not [6, 1, 5, 5]"
    );
}

#[test]
fn experiment_files_that_make_no_sense() {
    let place = Place::new();
    assert!(place.refused("train nowhere.toml").starts_with("nowhere.toml: No such file"));
    let refused = |text: &str| {
        fs::write(place.path("x.toml"), text).unwrap();
        place.refused("train x.toml")
    };
    assert_eq!(refused("lr = 0.1\nwrokers = 3\n"), "x.toml, line 2: unknown field `wrokers`; nearest is `workers`");
    assert_eq!(
        refused("lr = 0.1\n\nworkers = \"four\"\n"),
        "x.toml, line 3: invalid type: string \"four\", expected usize"
    );
    assert!(refused("lr = \n").starts_with("x.toml, line 1: "));
    assert_eq!(
        refused("# One way.\nsync = \"ddpp\"\n"),
        "x.toml, line 2: unknown way to synchronise 'ddpp': known are single, gather-scatter, all-reduce, ddp, \
         data-parallel, none, local-sgd, post-local-sgd, diloco, sma, \
         parameter-server, stale, async; nearest is 'ddp'"
    );
    assert_eq!(refused("sync = 3\n"), "x.toml, line 1: expected a name, or a list of names");
    assert_eq!(refused("bucket = \"large\"\n"), "x.toml, line 1: 'large' is no size: write 4096, 64KiB or 1MB");
    assert_eq!(refused("epochs = 3\nsteps = 3\n"), "epochs and steps are both given: which of them?");
}
