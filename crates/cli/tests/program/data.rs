//! `data get` and `data list`, and training on each data set. Downloads that succeed are tested in the data crate, on
//! files that it makes.

use std::fs;
use std::path::Path;

use super::Place;

#[test]
fn nothing_is_there_at_first() {
    let place = Place::new();
    let text = place.ok("data list");
    assert!(text.contains("built in: the first 2,000 training and 1,000 test images"), "{text}");
    for name in ["mnist", "fashion-mnist", "cifar10"] {
        assert!(text.contains(&format!("`ringstep data get {name}` gets it")), "{text}");
    }
    assert!(text.contains("synthetic:32x32x3"), "{text}");
}

#[test]
fn files_that_are_not_mnist_are_not_taken_for_it() {
    let place = Place::new();
    // The sample has MNIST's names and format, and is not MNIST.
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/sample");
    let error = place.refused(&format!("data get mnist --from {}", sample.display()));
    assert!(error.contains("train-images-idx3-ubyte.gz: its sha256 is "), "{error}");
    assert!(!place.path(".cache").exists());
}

#[test]
fn folders_and_servers_that_are_not_there() {
    let place = Place::new();
    assert_eq!(place.refused("data get mnist --from nowhere"), "data folder nowhere does not exist");
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let error = place.refused(&format!("data get mnist --from http://127.0.0.1:{port}/mnist"));
    assert!(error.starts_with(&format!("http://127.0.0.1:{port}/mnist/train-images-idx3-ubyte.gz: ")), "{error}");
}

#[test]
fn what_is_damaged_is_said_so() {
    let place = Place::new();
    let folder = place.path(".cache/ringstep/mnist");
    fs::create_dir_all(&folder).unwrap();
    assert!(place.ok("data list").contains("train-images-idx3-ubyte is missing"));
    fs::write(folder.join("train-images-idx3-ubyte"), "half").unwrap();
    assert!(place.ok("data list").contains("damaged"));
}

/// Writes a CIFAR-10 with two records a file.
fn write_cifar10(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    for name in [1, 2, 3, 4, 5].map(|batch| format!("data_batch_{batch}")).iter().chain(&["test_batch".to_owned()]) {
        let record = |label: u8| [label].into_iter().chain((0..3072u32).map(move |i| (i * 7 + u32::from(label)) as u8));
        fs::write(folder.join(format!("{name}.bin")), record(1).chain(record(2)).collect::<Vec<u8>>()).unwrap();
    }
}

#[test]
fn cifar10_is_read_and_told_from_what_it_is_not() {
    let place = Place::new();
    write_cifar10(&place.path("cifar10"));
    let command = "train --dataset cifar10 --data cifar10 --workers 2";
    // Only colour images are in the way: all files were read before.
    assert_eq!(place.refused(command), "lenet5 takes images of 1 channel, cifar10 has 3");
    let error = place.refused("data get cifar10 --from cifar10");
    assert!(error.starts_with("cifar10/data_batch_1.bin: its sha256 is "), "{error}");

    fs::write(place.path("cifar10/data_batch_4.bin"), vec![10; 3073]).unwrap();
    let error = place.refused(command);
    assert!(error.ends_with("cifar10/data_batch_4.bin: the label of record 0 is 10, not 0 to 9"), "{error}");
}

#[test]
fn fashion_mnist_has_the_files_of_mnist() {
    let place = Place::new();
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/sample");
    let train = |dataset: &str| {
        let command = format!(
            "train --json --dataset {dataset} --data {} --samples 40 --epochs 2 --out run --overwrite",
            sample.display()
        );
        place.json(&command)["runs"][0]["weights_sha256"].clone()
    };
    // The same pixels, normalised with other numbers.
    assert_ne!(train("fashion-mnist"), train("mnist"));
    assert!(super::read(place.path("run/report.html")).contains("lenet5 on mnist"));
    train("fashion-mnist");
    let report = super::read(place.path("run/report.html"));
    assert!(report.contains("lenet5 on fashion-mnist") && report.contains("Zalando SE, MIT licence"));
}

#[test]
fn synthetic_images_need_no_files_and_repeat() {
    let place = Place::new();
    let run = |arguments: &str| place.json(&format!("train --json --epochs 3 {arguments}"))["runs"][0].clone();
    let first = run("--dataset synthetic --samples 200 --lr 0.05 --momentum 0.9 --out first");
    let losses: Vec<f64> =
        first["epoch_losses"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect();
    assert!(losses[2] < 0.7 * losses[0], "{losses:?}");
    assert_eq!(run("first/config.toml")["weights_sha256"], first["weights_sha256"]);
    assert!(super::read(place.path("first/config.toml")).contains("dataset = \"synthetic:32x32x1\""));
    run("--dataset synthetic:20x30x1 --samples 40");

    for (arguments, error) in [
        ("synthetic:32x32x3", "lenet5 takes images of 1 channel, synthetic has 3"),
        ("synthetic:64x32x1", "lenet5 takes images of up to 32x32, those of synthetic are 64x32"),
        ("synthetic:0x32x1", "images of 0x32x1 hold nothing"),
        ("synthetic:32x32", "dataset 'synthetic:32x32': a shape is rows x columns x channels, as in synthetic:32x32x3"),
        ("synthetic --data here", "synthetic images are made, not read: no --data"),
        ("synthetic --samples 9000000", "9001000 images of 32x32x1 are more than 4 GiB"),
    ] {
        assert_eq!(place.refused(&format!("train --dataset {arguments}")), error);
    }
}

#[test]
fn augmentation_is_asked_for_by_name_and_does_not_depend_on_the_launch() {
    let place = Place::new();
    let weights = |arguments: &str| {
        place.json(&format!("train --json --epochs 2 {arguments}"))["runs"][0]["weights_sha256"].clone()
    };
    let plain = weights("");
    let both = weights("--augment crop,flip --out both");
    assert_eq!(both, weights("--augment flip,crop --launch threads"));
    assert_eq!(both, weights("both/config.toml"));
    assert_eq!(plain, weights("both/config.toml --augment none"));
    let one_by_one = [weights("--augment crop"), weights("--augment flip")];
    assert!(plain != both && !one_by_one.contains(&plain) && !one_by_one.contains(&both));
    assert_eq!(place.refused("train --augment none,flip"), "none and other changes of images: which of them?");
}
