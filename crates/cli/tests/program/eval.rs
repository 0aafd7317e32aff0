//! `eval`: how good a trained model is, and what it is wrong about.

use std::fs;

use serde_json::Value;

use super::{Place, read, reference};

const TRAIN: &str = "train --launch threads --workers 2 --samples 200 --epochs 10 --lr 0.05";

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

/// What holds of any evaluation.
fn check(json: &Value) {
    let (images, classes) = (number(&json["images"]), json["classes"].as_array().unwrap().len());
    let rows: Vec<&Vec<Value>> =
        json["confusion"].as_array().unwrap().iter().map(|row| row.as_array().unwrap()).collect();
    assert!(rows.iter().all(|row| row.len() == classes));
    assert_eq!(rows.iter().flat_map(|row| row.iter()).map(number).sum::<u64>(), images);
    let right: u64 = rows.iter().enumerate().map(|(class, row)| number(&row[class])).sum();
    assert_eq!(right, number(&json["correct"]));
    assert_eq!(json["accuracy"].as_f64().unwrap(), right as f64 / images as f64);
    assert!(json["loss"].as_f64().unwrap() > 0.0);

    let [p50, p99] = ["p50_seconds", "p99_seconds"].map(|name| json["latency"][name].as_f64().unwrap());
    assert!(0.0 < p50 && p50 <= p99 && number(&json["latency"]["images"]) >= 200);
    assert!(json["images_per_second"].as_f64().unwrap() > 0.0);
    let [single, batch, peak] =
        ["model_bytes_single", "model_bytes_batch", "peak_bytes"].map(|name| number(&json["memory"][name]));
    assert!(0 < single && single <= batch && batch < peak);

    let worst = json["most_wrong"].as_array().unwrap();
    assert_eq!(worst.len() as u64, (images - right).min(48));
    assert!(worst.iter().all(|verdict| verdict["true"] != verdict["predicted"]));
    assert!(worst.is_sorted_by(|a, b| a["loss"].as_f64() >= b["loss"].as_f64()));
}

/// The page has no addresses and loads nothing but the pictures that it holds.
fn alone(page: &str) -> usize {
    let picture = "src=\"data:image/png;base64,";
    let rest = page.replace(picture, "");
    assert!(!rest.contains("{{") && rest.ends_with("</html>\n"));
    for word in ["://", "<link", "src=", "@import", "url("] {
        assert!(!rest.contains(word), "{word}");
    }
    page.matches(picture).count()
}

#[test]
fn a_run_is_as_good_as_its_summary_says() {
    let place = Place::new();
    let accuracy = place.json(&format!("{TRAIN} --out run --json"))["runs"][0]["test_accuracy"].clone();
    let json = place.json("eval run --json");
    check(&json);
    assert_eq!(json["accuracy"], accuracy);
    assert_eq!((&json["model"], &json["dataset"], number(&json["images"])), (&"lenet5".into(), &"mnist".into(), 1000));
    let wrong = json["most_wrong"].as_array().unwrap().len();
    assert!(wrong > 0);
    let page = read(place.path("run/eval.html"));
    assert_eq!(alone(&page), wrong);
    assert!(page.contains(&format!("alt=\"test image {}\"", json["most_wrong"][0]["image"])));

    // The same weights as a file, in other batches, which do not divide the images, on two threads.
    fs::remove_file(place.path("run/eval.html")).unwrap();
    let file = place.json("eval run/model.safetensors --model lenet5 --batch 300 --threads 2 --json");
    check(&file);
    assert_eq!((&file["confusion"], number(&file["batch"])), (&json["confusion"], 300));
    assert!(!place.path("run/eval.html").exists());

    let text = place.ok("eval run --html page.html");
    let percent = format!("{:.2}%", 100.0 * accuracy.as_f64().unwrap());
    assert!(text.lines().any(|line| line.starts_with("accuracy") && line.contains(&percent)), "{text}");
    assert!(text.ends_with("Page: page.html\n") && !place.path("run/eval.html").exists());
    alone(&read(place.path("page.html")));
}

/// What was said about a run's weights does not outlive them.
#[test]
fn a_new_run_removes_the_page_of_the_old_one() {
    let place = Place::new();
    let train = "--launch threads --samples 20 --epochs 1 --out run --overwrite";
    for (command, folder) in [("train", "run"), ("compare", "run/single")] {
        place.ok(&format!("{command} {train}"));
        place.ok(&format!("eval {folder}"));
        assert!(place.path(&format!("{folder}/eval.html")).exists());
        place.ok(&format!("{command} {train}"));
        assert!(!place.path(&format!("{folder}/eval.html")).exists());
        fs::remove_dir_all(place.path("run")).unwrap();
    }
}

#[test]
fn a_comparison_has_a_folder_for_each_way() {
    let place = Place::new();
    let runs = place.json("compare --samples 20 --epochs 3 --launch threads --out both --sync single,ddp --json");
    for (run, way) in runs["runs"].as_array().unwrap().iter().zip(["single", "ddp"]) {
        let json = place.json(&format!("eval both/{way} --json"));
        check(&json);
        assert_eq!(json["accuracy"], run["test_accuracy"]);
        assert!(place.path(&format!("both/{way}/eval.html")).exists());
    }
    assert_eq!(
        place.refused("eval both"),
        "both is a comparison, with weights for each way: choose one of both/ddp, both/single"
    );
}

/// A network of one's own with more outputs than there are classes, colours, and fewer test images than a usual batch.
#[test]
fn any_model_and_data_set_will_do() {
    let place = Place::new();
    let net = "input = [8, 8, 3]\n[[layer]]\ntype = \"conv\"\nfilters = 4\nkernel = 3\n[[layer]]\ntype = \"batch-norm\"\n\
               [[layer]]\ntype = \"relu\"\n[[layer]]\ntype = \"linear\"\noutputs = 13\n";
    fs::write(place.path("net.toml"), net).unwrap();
    let train = "train --model net.toml --dataset synthetic:8x8x3 --samples 40 --workers 1 --batch 8 --epochs 4";
    let accuracy = place.json(&format!("{train} --out run --json"))["runs"][0]["test_accuracy"].clone();
    let json = place.json("eval run --json");
    check(&json);
    assert_eq!((number(&json["images"]), number(&json["batch"])), (40, 40));
    assert_eq!(json["accuracy"], accuracy);
    // A data set that is named counts with all its test images, whatever the run's samples were.
    let all = place.json("eval run --dataset synthetic:7x7x3 --json");
    check(&all);
    assert_eq!(number(&all["images"]), 1000);
}

#[test]
fn what_cannot_be_evaluated_is_refused() {
    let place = Place::new();
    place.ok("train --launch threads --samples 20 --epochs 1 --out run");
    fs::create_dir(place.path("empty")).unwrap();
    fs::create_dir(place.path("lone")).unwrap();
    fs::copy(place.path("run/model.safetensors"), place.path("lone/model.safetensors")).unwrap();
    fs::write(place.path("text.safetensors"), "not weights at all").unwrap();
    let path = |name: &str| place.path(name).display().to_string();
    let lenet5 = "eval run/model.safetensors --model lenet5";
    for (command, error) in [
        ("eval nowhere".to_owned(), "nowhere: there is no such run or file".to_owned()),
        ("eval empty".to_owned(), "empty: there is no model.safetensors in it".to_owned()),
        ("eval lone".to_owned(), "lone: there is no config.toml in it or above it".to_owned()),
        (
            "eval run/model.safetensors".to_owned(),
            "--model is missing: run/model.safetensors does not say which network its weights are for".to_owned(),
        ),
        ("eval run --batch 0".to_owned(), "0 images a batch: at least 1 is needed".to_owned()),
        ("eval run --batch 1001".to_owned(), "--batch 1001: there are 1000 test images".to_owned()),
        ("eval run --threads 0".to_owned(), "0 threads: at least 1 is needed".to_owned()),
        ("eval run --threads 1025".to_owned(), "1025 threads: at most 1024 are possible".to_owned()),
        (
            "eval run --model lenet".to_owned(),
            "unknown model 'lenet': known are lenet5, vgg11, resnet18, resnet20, cnn, cnn-without-bias, mlp; nearest is \
             'lenet5'"
                .to_owned(),
        ),
        (
            "eval run --model mlp".to_owned(),
            "run/model.safetensors: does not fit the model: it has conv1.bias, the model has fc1.weight, fc1.bias, \
             fc2.weight, fc2.bias, fc3.weight, fc3.bias"
                .to_owned(),
        ),
        (
            format!("{lenet5} --dataset synthetic:32x32x3"),
            "lenet5 takes images of 1 channel, synthetic has 3".to_owned(),
        ),
        (
            format!("{lenet5} --dataset cifar10"),
            "cifar10 is not on this machine: run `ringstep data get cifar10`, or give --data DIR".to_owned(),
        ),
        (format!("{lenet5} --data nowhere"), format!("data folder {} does not exist", path("nowhere"))),
        (format!("{lenet5} --html no/where.html"), "no/where.html: No such file or directory (os error 2)".to_owned()),
    ] {
        assert_eq!(place.refused(&command), error, "{command}");
    }
    assert!(
        place.refused("eval text.safetensors --model lenet5").starts_with("text.safetensors: not a safetensors file: ")
    );
    // One number changed to a NaN.
    let mut weights = fs::read(reference("lenet5-init.safetensors")).unwrap();
    let last = weights.len() - 4;
    weights[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(place.path("nan.safetensors"), weights).unwrap();
    assert_eq!(
        place.refused("eval nan.safetensors --model lenet5"),
        "what the model makes of test image 0 is not finite: its weights are of no use"
    );
}
