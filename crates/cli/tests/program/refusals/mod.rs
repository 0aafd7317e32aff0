//! Everything that is refused, and in which words: here options, in [`ways`] those of ways and compressions, in [`files`] what
//! files say.

mod files;
mod ways;

use std::fs;

use super::Place;

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
    assert_eq!(
        place.refused("train --tls --transport shm"),
        "--tls encrypts what goes between hosts, and with --transport shm all workers are on one"
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
        "unknown dataset 'mnits': known are mnist, fashion-mnist, cifar10, synthetic, mnist-or-sample, cifar10-or-synthetic; \
         nearest is 'mnist'"
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
    place.ok("train --epochs 1 --init run/model.safetensors --out run --overwrite");
    let error = place.refused("train --lr 1e20 --init run/model.safetensors --out run --overwrite");
    assert!(error.contains("diverged"), "{error}");
    assert!(place.path("run/model.safetensors").exists() && !place.path("run/summary.json").exists());
}

/// How to get one is said wherever it is asked for, in files too.
#[cfg(not(feature = "mpi"))]
#[test]
fn a_build_without_mpi_says_how_to_get_one() {
    let place = Place::new();
    let build = "is not in this build: cargo build --release --features mpi";
    for command in ["train --transport mpi", "compare --transport mpi", "bench collectives --transport shm,mpi"] {
        assert!(place.refused(command).ends_with(&format!("transport 'mpi' {build}")), "{command}");
    }
    assert!(place.refused("train --algorithm mpi").ends_with(&format!("algorithm 'mpi' {build}")));
    std::fs::write(place.path("mpi.toml"), "transport = \"mpi\"\n").unwrap();
    assert!(place.refused("train mpi.toml").contains(build));
}
