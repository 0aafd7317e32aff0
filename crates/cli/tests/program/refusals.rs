//! Everything that is refused, and in which words.

use std::fs;
use std::io::Write;
use std::path::Path;

use super::{Place, reference};

#[test]
fn what_has_no_meaning_is_not_ignored() {
    let place = Place::new();
    assert_eq!(
        place.refused("train --optimizer adam --momentum 0.9"),
        "--momentum belongs to sgd and lars, not to adam"
    );
    assert_eq!(place.refused("train --trust 0.1"), "--trust belongs to lars, not to sgd");
    assert_eq!(place.refused("train --nesterov"), "--nesterov needs a --momentum above 0");
    assert_eq!(place.refused("train --power 2"), "--power belongs to --schedule polynomial, not to constant");
    assert_eq!(
        place.refused("train --schedule cosine --decay-every 5"),
        "--decay-every belongs to --schedule step, not to cosine"
    );
    assert_eq!(place.refused("train --threads 0"), "0 threads: at least 1 is needed");
    assert_eq!(place.refused("train --warm-up -1"), "warm-up is -1: it must be at least 0");
    assert_eq!(place.refused("train --test-every 0"), "0 epochs from test to test: at least 1 is needed");
    assert_eq!(place.refused("bench kernels --batch 0"), "0 images a batch: at least 1 is needed");
    assert_eq!(place.refused("bench kernels --threads 5000"), "5000 threads: at most 1024 are possible");
}

#[test]
fn instructions_that_are_not_there_are_refused_with_those_that_are() {
    let place = Place::new();
    let foreign = if cfg!(target_arch = "x86_64") { "neon" } else { "avx2" };
    let there: Vec<&str> = ringstep_cpu::Level::available().iter().map(|level| level.name()).collect();
    let refusal = format!("this machine has no {foreign} instructions: it has {}", there.join(", "));
    for command in ["train", "compare", "bench kernels", "eval weights.safetensors --model lenet5"] {
        assert_eq!(place.refused(&format!("{command} --instructions {foreign}")), refusal);
    }
    assert!(place.refused("train --instructions avx3").starts_with("unknown instructions 'avx3'"), "avx3");
}

#[test]
fn ways_of_synchronising_take_what_they_can_use() {
    let place = Place::new();
    assert_eq!(place.refused("train --sync ddp --bucket 0"), "0 bytes a bucket: at least 1 is needed");
    assert_eq!(place.refused("train --sync ddp --bucket large"), "'large' is no size: write 4096, 64KiB or 1MB");
    assert_eq!(place.refused("train --bucket 1MiB"), "--bucket belongs to ddp, not to all-reduce");
    assert_eq!(
        place.refused("train --sync gather-scatter --algorithm tree"),
        "--algorithm belongs to all-reduce and ddp, not to gather-scatter"
    );
    assert_eq!(
        place.refused("train --sync data-parallel --shard contiguous"),
        "--shard: in data-parallel rank 0 deals every batch out, and no worker has a shard"
    );
    for option in ["--transport shm", "--meet 127.0.0.1", "--start-with nice", "--pin=false"] {
        let flag = option.split([' ', '=']).next().unwrap_or_default();
        assert_eq!(
            place.refused(&format!("train --launch threads {option}")),
            format!("{flag} is for worker processes; these workers are threads of one")
        );
    }
    assert_eq!(
        place.refused("train --accumulate 6"),
        "a step of 6 batches is longer than an epoch of 5: accumulate less"
    );
    assert_eq!(place.refused("train --batch-norm sync"), "--batch-norm sync: lenet5 has no batch norm");
    assert_eq!(
        place.refused("train --model resnet20 --dataset synthetic --batch-norm synch"),
        "unknown batch norm mode 'synch': known are local, broadcast, sync; nearest is 'sync'"
    );
    assert_eq!(
        place.refused("train --sync data-parallel --launch processes"),
        "data-parallel is one process: its workers are threads, not processes"
    );
    assert_eq!(
        place.refused("train --sync data-parallel --verify-every 5"),
        "--verify-every: data-parallel has one model, that of rank 0: nothing can differ"
    );
    assert_eq!(
        place.refused("train --verify-every 0"),
        "0 steps from one comparison of the ranks to the next: at least 1 is needed"
    );
    for seconds in ["0", "-1", "nan"] {
        assert!(
            place
                .refused(&format!("train --timeout {seconds}"))
                .ends_with("it must be positive, and at most a year in seconds")
        );
    }
    assert_eq!(place.refused("train --log-every 0"), "0 steps from line to line: at least 1 is needed");
    assert_eq!(
        place.refused("train --shard stride"),
        "unknown way to shard 'stride': known are strided, contiguous; nearest is 'strided'"
    );
}

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

/// What a model would take is told in the launcher, before a worker is started.
#[test]
fn a_model_that_no_memory_holds_is_told_with_what_it_would_take() {
    let place = Place::new();
    let refused = |text: &str, rest: &str| {
        fs::write(place.path("net.toml"), text).unwrap();
        let message = place.refused(&format!("train --model net.toml --dataset synthetic --samples 20 {rest}"));
        assert!(!place.path("runs").exists());
        message.rsplit_once("net.toml").expect("the file is named").1.to_owned()
    };
    let conv = "[[layer]]\ntype = \"conv\"\nfilters = 2\nkernel = 3\npadding = 9223372036854775807\n";
    let linear = |outputs: usize| format!("[[layer]]\ntype = \"linear\"\noutputs = {outputs}\n");
    let told = refused(&format!("input = [8, 8, 1]\n{conv}{}", linear(10)), "");
    assert!(
        told.starts_with(": layer conv1: 1 image of ") && told.contains(" with padding would take 1.4e39 bytes"),
        "{told}"
    );
    let told = refused(&format!("input = [9999999999, 9999999999, 1]\n{}", linear(10)), "");
    assert!(told.starts_with(": layer input: 1 image of 9999999999x9999999999x1 would take 4.0e20 bytes"), "{told}");

    // Sizes that can be counted, for a machine that nobody has.
    let large = format!("input = [100, 100, 3]\n{}{}", linear(50_000_000), linear(10));
    for (rest, begin) in [("--workers 1", ""), ("--workers 4 --batch 2 --momentum 0.9", "4 workers of ")] {
        let told = refused(&large, rest);
        assert!(told.starts_with(" needs 6.00 TB for parameters, 6.00 TB for gradients, "), "{told}");
        assert!(told.contains("; this machine has "), "{told}");
        let whole = place.refused(&format!("train --model net.toml --dataset synthetic --samples 20 {rest}"));
        assert!(whole.starts_with(begin), "{whole}");
    }

    let told = place.refused("bench kernels --batch 999999999999");
    let begin = "vgg11: layer input: 999999999999 images of 32x32x3 would take 1.2e16 bytes";
    assert!(told.starts_with(begin) && told.contains("; this machine has "), "{told}");
    let told = place.refused("bench kernels --batch 9999999");
    assert!(told.contains(" TB for activations, ") && told.contains("; this machine has "), "{told}");
}

#[test]
fn unknown_names_get_the_known_and_the_nearest() {
    let place = Place::new();
    assert_eq!(
        place.refused("train --sync allreduce"),
        "unknown way to synchronise 'allreduce': known are single, gather-scatter, all-reduce, ddp, \
         data-parallel, none, local-sgd, post-local-sgd, diloco, sma, \
         parameter-server, stale, async; nearest is 'all-reduce'"
    );
    assert_eq!(
        place.refused("train --model lenet"),
        "unknown model 'lenet': known are lenet5, vgg11, resnet18, resnet20, cnn, cnn-without-bias, mlp; nearest is \
         'lenet5'"
    );
    assert_eq!(
        place.refused("train --optimizer adm"),
        "unknown optimizer 'adm': known are sgd, adam, adamw, lars; nearest is 'adam'"
    );
    assert_eq!(
        place.refused("train --schedule cosin"),
        "unknown schedule 'cosin': known are constant, step, cosine, polynomial; nearest is 'cosine'"
    );
    assert_eq!(
        place.refused("train --warm-up-kind slow"),
        "unknown kind of warm-up 'slow': known are linear, constant; nearest is 'linear'"
    );
    assert_eq!(
        place.refused("compare --dataset mnits"),
        "unknown dataset 'mnits': known are mnist, fashion-mnist, cifar10, synthetic; nearest is 'mnist'"
    );
    assert_eq!(
        place.refused("train --algorithm rign"),
        "unknown algorithm 'rign': known are auto, gather-scatter, tree, ring, recursive-doubling, halving-doubling, \
         direct, hierarchical; nearest is 'ring'"
    );
    assert_eq!(
        place.refused("train --launch thread"),
        "unknown way to launch 'thread': known are processes, threads; nearest is 'threads'"
    );
    assert_eq!(
        place.refused("data get cifar"),
        "unknown dataset 'cifar': known are mnist, fashion-mnist, cifar10; nearest is 'cifar10'"
    );
    assert_eq!(
        place.refused("train --augment corp"),
        "unknown change of images 'corp': known are crop, flip, none; nearest is 'crop'"
    );
    assert!(place.refused("train --wrokers 3").contains("--workers"));
    assert!(place.refused("comprae").contains("compare"));
}

#[test]
fn numbers_that_make_no_job() {
    let place = Place::new();
    for (arguments, error) in [
        ("compare --workers 0", "0 workers: at least 1 is needed"),
        ("train --batch 0", "0 images a step: at least 1 is needed"),
        ("train --epochs 0", "0 epochs: at least 1 is needed"),
        ("train --samples 0", "0 training images: at least 1 is needed"),
        ("train --samples 3", "4 workers for 3 images: each needs at least one"),
        ("compare --batch 26", "a batch of 26 is larger than a worker's shard of 25 images (100 images, 4 workers)"),
        ("train --lr 0", "lr is 0: it must be positive and finite"),
        ("train --lr nan", "lr is NaN: it must be positive and finite"),
        ("train --workers 1025 --samples 2000 --batch 1", "1025 workers: at most 1024 are possible"),
        ("compare --sync single,ddp,single", "single is given twice"),
        ("train --epochs 9223372036854775807", "9223372036854775807 epochs of 5 steps are more than can be counted"),
        ("train --momentum 1.5", "momentum is 1.5: it must be at least 0 and below 1"),
        (
            "train --sync single --workers 4",
            "single has one worker, not 4: the same job is --sync single --workers 1 --batch 20",
        ),
        (
            "train --sync single,all-reduce",
            "train runs one way of synchronising, not 2: choose with --sync, or use compare",
        ),
    ] {
        assert_eq!(place.refused(arguments), error);
    }
    assert!(place.refused("train --workers -1").contains("-1"));
    assert!(place.refused("train --workers many").contains("many"));
    assert!(place.refused("train --epochs 3 --steps 3").contains("--steps"));
}

#[test]
fn nothing_is_left_behind_by_what_is_refused() {
    let place = Place::new();
    place.refused("train --workers 0");
    assert!(!place.path("runs").exists());
}

/// A folder of the user's own is not written to, and weights are not deleted by a run that starts from them.
#[test]
fn what_is_not_a_runs_is_left_alone() {
    let place = Place::new();
    fs::create_dir(place.path("mine")).unwrap();
    fs::write(place.path("mine/config.toml"), "precious").unwrap();
    let error = "--out mine: the folder is neither empty nor that of an earlier run";
    assert_eq!(place.refused("train --out mine"), error);
    assert_eq!(fs::read(place.path("mine/config.toml")).unwrap(), b"precious");

    place.ok("train --epochs 1 --out run");
    place.ok("train --epochs 1 --init run/model.safetensors --out run");
    let error = place.refused("train --lr 1e20 --init run/model.safetensors --out run");
    assert!(error.contains("diverged"), "{error}");
    assert!(place.path("run/model.safetensors").exists() && !place.path("run/summary.json").exists());
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

#[test]
fn rows_that_cannot_be_compared() {
    let place = Place::new();
    let refused = |text: &str| {
        fs::write(place.path("x.toml"), text).unwrap();
        place.refused("compare x.toml")
    };
    assert_eq!(
        refused("lr = 0.1\n[[row]]\nsync = \"ddp\"\nmodel = \"mlp\"\n"),
        "x.toml, line 4: `model` is for all rows: none can have its own"
    );
    assert_eq!(refused("lr = 0.1\nrow = 3\n"), "x.toml, line 2: each row begins with [[row]]");
    assert_eq!(refused("row = [3]\n"), "x.toml, line 1: each row begins with [[row]]");
    assert_eq!(
        refused("[[row]]\nsync = \"ddp\"\n[[row]]\nsync = \"single\"\nbuckets = 3\n"),
        "x.toml, line 5: unknown field `buckets`; nearest is `bucket`"
    );
    assert_eq!(
        refused("[[row]]\nsync = \"ddp\"\n[[row]]\nsync = \"single\"\nbucket = \"1kB\"\n"),
        "--bucket belongs to ddp, not to single"
    );
    assert_eq!(refused("[[row]]\nsync = \"ddp\"\n[[row]]\nsync = \"ddp\"\n"), "ddp, ring is given twice");
    assert_eq!(
        place.refused("train x.toml"),
        "train runs one way of synchronising, not 2: choose with --sync, or use compare"
    );
    place.ok("train x.toml --sync ddp --steps 1");
}
