//! `data get` and `data list`. Downloads that succeed are tested in the data crate, on files that it makes.

use std::fs;
use std::path::Path;

use super::Place;

#[test]
fn nothing_is_there_at_first() {
    let place = Place::new();
    let text = place.ok("data list");
    assert!(text.contains("built in: the first 2,000 training and 1,000 test images"), "{text}");
    assert!(text.contains("`ringstep data get mnist` gets it"), "{text}");
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
